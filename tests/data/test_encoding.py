"""Encoding: order and ids do not depend on the number of processes."""

import multiprocessing
import re
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from data import encoding
from data.documents import BadDocument, Document, Key
from data.encoding import EncoderSpec, encode_documents
from data.tokenizers import load_tokenizer

GPT2 = EncoderSpec("gpt2", True)


def texts():
    return [f"Text {n}: " + "word " * (n % 7) + "naïve" * (n % 3) for n in range(1500)]


def documents(texts):
    return (Document(Key(0, n), text) for n, text in enumerate(texts))


def encode_texts(texts, spec, processes=0):
    for batch in encode_documents(documents(texts), spec, processes):
        yield from batch.ids


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
        yield from documents(texts())
        raise ValueError("input file must be readable; got a.txt. Repair it.")

    with pytest.raises(ValueError, match=r"got a\.txt"):
        list(encode_documents(broken(), GPT2, processes=2))


def test_an_interrupt_is_for_the_first_process_alone():
    """The terminal sends Ctrl-C to all of them, also while they start."""

    def holds_back(process):
        (line,) = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
        return bool(int(line, 16) >> (signal.SIGINT - 1) & 1)

    stream = encode_documents(documents(texts()), GPT2, processes=2)
    with closing(stream):
        next(stream)
        workers = multiprocessing.active_children()
        assert workers and all(holds_back(worker.pid) for worker in workers)
    assert not holds_back("self")


def test_cleaning_comes_before_encoding():
    spec = EncoderSpec("gpt2", True, ftfy=True, wikitext_detokenize=True)
    (ids,) = encode_texts(["schÃ¶n @-@ gut"], spec)
    assert load_tokenizer().decode(ids) == "schön-gut"


def test_no_text_gives_nothing():
    assert list(encode_texts([], GPT2)) == []


@pytest.mark.parametrize("processes", [-1, 10**20])
def test_a_number_of_processes_that_cannot_be_is_refused(processes):
    with pytest.raises(ValueError, match=rf"processes must be 0 .* to 1024; got {processes}\."):
        list(encode_texts([], GPT2, processes))


@pytest.mark.parametrize("processes", [1, 3])
def test_batches_say_where_to_go_on_and_name_bad_documents(monkeypatch, processes):
    monkeypatch.setattr(encoding, "_BATCH_TEXTS", 3)
    every = list(documents(["é" * n for n in range(8)]))
    bad = BadDocument(Key(0, 4), "a.txt", "line 5", "broken")
    every[4] = bad
    batches = list(encode_documents(every, GPT2, processes))
    assert [batch.end for batch in batches] == [(0, 3), (0, 6), (0, 8)]
    assert [batch.bad for batch in batches] == [[], [bad], []]
    assert [key.number for batch in batches for key in batch.keys] == [0, 1, 2, 3, 5, 6, 7]
    assert [n for batch in batches for n in batch.text_bytes] == [0, 2, 4, 6, 10, 12, 14]


def test_ids_of_a_prompt_are_masked():
    spec = EncoderSpec("gpt2", True, ftfy=True)
    pairs = [("Q: schÃ¶n?", " A"), (None, "plain"), ("", "x")]
    every = [Document(Key(0, n), text, prompt) for n, (prompt, text) in enumerate(pairs)]
    (batch,) = encode_documents(every, spec, 1)
    prompt, answer, plain, x = load_tokenizer().encode_batch(["Q: schön?", " A", "plain", "x"])
    assert [ids.tolist() for ids in batch.ids] == [[~i for i in prompt] + answer, plain, x]
    assert batch.text_bytes == [len("Q: schön? A".encode()), 5, 1]
