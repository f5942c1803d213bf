"""The memory of words gives the library's ids for every text."""

import random

import pytest
import tokenizers

from data import word_encoder
from data.tokenizers import load_tokenizer
from data.word_encoder import WordEncoder

# Borders of the classes of characters, and what the pattern treats specially.
SPECIAL = list(" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2003\u3000'\u2019stmdrevlaA1_<|>-.!")
SPECIAL += list("½²Ⅷ一١é\u0301\U0001d7d8𐌀𑁒")
TEXTS = [
    "",
    " ",
    "Don't I'll  we've\n\n  it's 'tis '''s",
    "x = {'a': [1, 22], 'b_c': None}\n\t# ok\r\n",
    "naïve 日本語 ½ x² ٣٤ a\u0301 \x1c\x1d é\x1c",
    "A<|endoftext|>B <|endoftext|>",
    "<|endoftex",
]


def random_texts(seed, count):
    generator = random.Random(seed)
    letters = SPECIAL * 6 + [chr(c) for c in range(0x3000) if not 0xD800 <= c < 0xE000]
    letters += [chr(generator.randrange(0x10000, 0x110000)) for _ in range(500)]
    return ["".join(generator.choices(letters, k=generator.randrange(30))) for _ in range(count)]


def same_as_library(backend, texts):
    encoder = WordEncoder(backend)
    ids = [array.tolist() for array in encoder.encode(texts)]
    expected = backend.encode_batch_fast(texts, add_special_tokens=False)
    return encoder, ids == [encoding.ids for encoding in expected]


@pytest.mark.parametrize("as_text", [False, True])
def test_ids_are_those_of_the_library(as_text):
    backend = load_tokenizer(treat_eot_as_text=as_text).backend
    encoder, is_same = same_as_library(backend, TEXTS + random_texts(0, 5000))
    assert is_same
    assert encoder.is_fast


def test_characters_that_the_library_classes_otherwise_are_left_to_it():
    """Letters of later Unicode versions; the library's may know others than Python's."""
    backend = load_tokenizer().backend
    texts = [
        f"a{chr(code)}1 {chr(code)}{chr(code)}b" for code in (0x1C89, 0xA7CB, 0x105C0, 0x2FFFF)
    ]
    encoder, is_same = same_as_library(backend, texts)
    assert is_same
    encoder._any = word_encoder._pattern("[a-z]", "[0-9]", r"[^\sa-z0-9]+", r"\s", r"\S")
    encoder._alike.clear()
    encoder._different.clear()
    assert [ids.tolist() for ids in encoder.encode(["né 1"])] == [backend.encode("né 1").ids]
    assert encoder._different == {"é"}
    assert encoder._unicode_pattern("né") is None


def test_words_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(word_encoder, "MOST_WORDS", 10)
    backend = load_tokenizer().backend
    encoder, is_same = same_as_library(backend, [f"word{n} some text" for n in range(50)] * 2)
    assert is_same
    assert 0 < len(encoder._words) <= 10
    encoder.encode(["x" * 1000])
    assert "x" * 1000 not in encoder._words


def trained(**changes):
    own = tokenizers.ByteLevelBPETokenizer(**changes)
    own.train_from_iterator(TEXTS, vocab_size=300, show_progress=False)
    return own._tokenizer


def test_own_vocabularies():
    backend = trained()
    backend.add_tokens(["x =", "ok"])
    encoder, is_same = same_as_library(backend, TEXTS + random_texts(1, 500))
    assert is_same
    assert encoder.is_fast


@pytest.mark.parametrize("changes", [{"add_prefix_space": True}, {"lowercase": True}])
def test_other_ways_to_cut_a_text_are_left_to_the_library(changes):
    encoder, is_same = same_as_library(trained(**changes), TEXTS)
    assert is_same
    assert not encoder.is_fast


def test_other_kinds_of_vocabularies_are_left_to_the_library():
    model = tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    encoder, is_same = same_as_library(backend, ["a b c", "b"])
    assert is_same
    assert not encoder.is_fast
