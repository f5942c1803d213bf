"""Prompts and samples as text."""

from types import SimpleNamespace

import pytest

from serving.generation import Generation
from serving.requests import Completion, Request, Sampling
from serving.samples import (
    format_samples,
    sample_texts,
    stream_sample,
    tokenizer_of,
    write_predictions,
)
from serving.text_stream import StoppingText
from tests.support import make_config

SAMPLING = Sampling(1.0, 0, 1.0, 0, 5, None)


class Letters:
    """A tokenizer of letters: a = 0."""

    is_byte_level = True

    def __init__(self):
        self.token_bytes = {number: bytes([ord("a") + number]) for number in range(26)}

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + number) for number in ids)


class EchoEngine:
    """Continues a prompt by its last token, once more for each sample."""

    tokenizer = Letters()

    def __init__(self, config):
        self.config = config
        self.calls = []

    def generate(self, prompts, sampling, samples):
        self.calls.append((prompts, sampling, samples))
        fitted = [ids or [25] for ids in prompts]  # as the engine starts an empty one
        return [
            [
                Completion(ids, ids[-1:] * (number + 1), False, "z" * (number + 1))
                for number in range(samples)
            ]
            for ids in fitted
        ]

    def submit(self, request):
        self.calls.append(request)
        ids = list(request.prompt) or [25]
        self.generation = Generation(ids, request.sampling, 5, StoppingText(self.tokenizer, ids))
        for token in (1, 2):
            self.generation.push(token)
        return self.generation


def test_samples_begin_with_the_prompt():
    engine = EchoEngine(make_config())
    assert sample_texts(engine, "abc", SAMPLING, 2) == ["abcz", "abczz"]
    assert engine.calls == [([[0, 1, 2]], SAMPLING, 2)]


def test_samples_without_the_prompt():
    engine = EchoEngine(make_config(remove_partial_sequences=True))
    assert sample_texts(engine, "abc", SAMPLING, 2) == ["z", "zz"]


def test_samples_of_an_empty_prompt_do_not_show_what_stood_in_for_it():
    assert sample_texts(EchoEngine(make_config()), "", SAMPLING, 2) == ["z", "zz"]


@pytest.mark.parametrize(
    ("prompt", "with_prompt", "start"), [("xy", True, "xy"), ("xy", False, ""), ("", True, "")]
)
def test_a_sample_is_shown_as_it_is_written(prompt, with_prompt, start):
    engine = EchoEngine(make_config())
    pieces = stream_sample(engine, prompt, SAMPLING, with_prompt)
    shown = [next(pieces) for _ in range(3 if with_prompt else 2)]
    assert "".join(shown) == start + "bc"
    assert not engine.generation.ended  # and yet they are there
    pieces.close()
    assert engine.generation.result().cancelled
    assert engine.calls == [Request(engine.tokenizer.encode(prompt), SAMPLING)]


def test_one_text_is_written_as_it_is():
    assert format_samples(["one\ntwo"]) == "one\ntwo\n"


def test_several_texts_have_numbered_headings():
    line = "=" * 20
    assert format_samples(["one", "two\n"]) == (
        f"{line} sample 1 {line}\none\n{line} sample 2 {line}\ntwo\n\n"
    )


def test_predictions_file(tmp_path):
    config = make_config(model_path=str(tmp_path))
    path = write_predictions(config, "17", 300, ["Grüße", "zwei"])
    assert path == str(tmp_path / "predictions_17_300.txt")
    written = (tmp_path / "predictions_17_300.txt").read_text(encoding="utf-8")
    assert written == format_samples(["Grüße", "zwei"])


def test_tokenizer_is_the_dataset_s_or_gpt2_s(tmp_path):
    assert tokenizer_of(SimpleNamespace(dataset=None)).encode("Hello world") == [15496, 995]
    missing = str(tmp_path / "none.json")
    dataset = SimpleNamespace(tokenizer_path=missing, tokenizer_is_pretrained=False)
    with pytest.raises(ValueError, match=r"none\.json"):
        tokenizer_of(SimpleNamespace(dataset=dataset))
