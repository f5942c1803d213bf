"""Encoding: order and ids do not depend on the number of processes."""

import numpy as np
import pytest

from data import encoding
from data.encoding import EncoderSpec, encode_texts
from data.tokenizers import load_tokenizer

GPT2 = EncoderSpec("gpt2", True)


def texts():
    return [f"Text {n}: " + "word " * (n % 7) + "naïve" * (n % 3) for n in range(1500)]


def test_processes_do_not_change_the_result():
    one = list(encode_texts(texts(), GPT2, processes=1))
    three = list(encode_texts(texts(), GPT2, processes=3))
    expected = load_tokenizer().encode_batch(texts())
    assert [ids.tolist() for ids in one] == [ids.tolist() for ids in three] == expected
    assert one[0].dtype == np.int32


def test_texts_are_read_as_they_are_needed(monkeypatch):
    monkeypatch.setattr(encoding, "_BATCH_TEXTS", 2)
    read = []
    stream = encode_texts((read.append(n) or f"{n}" for n in range(1000)), GPT2, processes=1)
    next(stream)
    assert len(read) == 4
    stream.close()


def test_error_in_a_worker_reaches_the_caller():
    def broken():
        yield from texts()
        raise ValueError("input file must be readable; got a.txt. Repair it.")

    with pytest.raises(ValueError, match=r"got a\.txt"):
        list(encode_texts(broken(), GPT2, processes=2))


def test_cleaning_comes_before_encoding():
    spec = EncoderSpec("gpt2", True, ftfy=True, wikitext_detokenize=True)
    (ids,) = encode_texts(["schÃ¶n @-@ gut"], spec)
    assert load_tokenizer().decode(ids) == "schön-gut"


def test_no_text_gives_nothing():
    assert list(encode_texts([], GPT2)) == []


def test_negative_processes_are_refused():
    with pytest.raises(ValueError, match=r"processes must be 0 .* or more; got -1"):
        list(encode_texts([], GPT2, processes=-1))
