"""Special tokens in a text that is all text: their ids never come out."""

import pytest
import tokenizers as library

from data.manifest import tokenizer_fingerprint
from data.tokenizers import load_tokenizer
from data.word_encoder import WordEncoder

TEXTS = ["USER", " USER: hello USERS", "<|endoftext|>USERUSER", "xUSER", "USE USES US"]


def save(backend, folder):
    path = folder / "tokenizer.json"
    backend.save(str(path))
    return str(path)


def byte_level(special, words=("USER USERS USER",) * 50, vocab_size=280):
    backend = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", *special],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(words, trainer)
    return backend


def test_merges_that_end_in_a_special_token_are_not_made(tmp_path):
    path = save(byte_level(["USER", "\u0120USER"]), tmp_path)
    plain = load_tokenizer(path, is_pretrained=False)
    as_text = load_tokenizer(path, is_pretrained=False, treat_eot_as_text=True)
    assert 1 in plain.encode(TEXTS[0]) and plain.encode("USES") == as_text.encode("USES")
    for text, ids in zip(TEXTS, as_text.encode_batch(TEXTS)):
        assert not as_text.special_ids & set(ids), text
        assert as_text.decode(ids) == text
        [words] = WordEncoder(as_text.backend).encode([text])
        assert words.tolist() == ids
    # It still is the tokenizer of the records, whose ids mean the same.
    assert tokenizer_fingerprint(as_text) == tokenizer_fingerprint(plain)


@pytest.mark.parametrize("special", ["A", "\u0120"])  # the latter stands for a space
def test_a_byte_has_no_other_token(tmp_path, special):
    path = save(byte_level([special]), tmp_path)
    load_tokenizer(path, is_pretrained=False)
    with pytest.raises(ValueError, match=f"special tokens must have other.*{special!r} of {path}"):
        load_tokenizer(path, is_pretrained=False, treat_eot_as_text=True)


def test_words_have_no_other_token(tmp_path):
    words = {"[UNK]": 0, "</s>": 1, "one": 2}
    backend = library.Tokenizer(library.models.WordLevel(words, unk_token="[UNK]"))
    backend.add_special_tokens(["</s>"])
    path = save(backend, tmp_path)
    with pytest.raises(ValueError, match=r"got '</s>' of .*Leave out --treat_eot_as_text"):
        load_tokenizer(path, is_pretrained=False, treat_eot_as_text=True)
