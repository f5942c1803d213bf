"""The adapter's numbers beside those of lm-evaluation-harness's own class for transformers."""

import numpy as np
import pytest

from tests.evaluation.harness_support import convert_model, our_model, requests, texts

pytest.importorskip("lm_eval", reason="lm-evaluation-harness has no release for this Python")
pytest.importorskip("torch", reason="PyTorch has no release for this Python")
TOLERANCE = 1e-4


def make_both(fixtures_dir, kind, folder):
    """(ours, theirs) of the same weights."""
    from lm_eval.models.huggingface import HFLM

    ours = our_model(convert_model(fixtures_dir, kind, folder))
    theirs = HFLM(str(folder / "theirs"), device="cpu", batch_size=3, dtype="float32")
    return ours, theirs


@pytest.fixture(scope="module")
def both(fixtures_dir, tmp_path_factory):
    return make_both(fixtures_dir, "gpt2", tmp_path_factory.mktemp("both"))


def check_loglikelihood(ours, theirs):
    window = theirs.max_length
    pairs = list(zip(texts(20, 9, seed=1), texts(20, 4, seed=2)))
    pairs += [
        ("", "the "),
        ("", "<|endoftext|>an"),
        ("the ", "an"),
        ("an  ", " the"),
        ("w" * (window - 1), "ofof"),
        ("an" * 2 * window, " the"),
        ("a", "b" * (window - 1)),
    ]
    asked = requests("loglikelihood", pairs)
    got, expected = ours.loglikelihood(asked), theirs.loglikelihood(asked, disable_tqdm=True)
    assert np.abs([a - b for (a, _), (b, _) in zip(got, expected)]).max() < TOLERANCE
    assert [greedy for _, greedy in got] == [greedy for _, greedy in expected]


def test_loglikelihood(both):
    check_loglikelihood(*both)


def test_loglikelihood_of_another_architecture(fixtures_dir, tmp_path):
    check_loglikelihood(*make_both(fixtures_dir, "gpt_neo", tmp_path))


def test_loglikelihood_rolling(both):
    ours, theirs = both
    window = theirs.max_length
    whole = ["", "the", "a" * window, "b" * (window + 1), *texts(5, 60, seed=3)]
    asked = requests("loglikelihood_rolling", [(text,) for text in whole])
    got = ours.loglikelihood_rolling(asked)
    expected = theirs.loglikelihood_rolling(asked, disable_tqdm=True)
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
    assert got[0] == 0.0 and max(got[1:]) < -1.0


def test_generate_until(both):
    ours, theirs = both
    contexts = texts(6, 5, seed=4) + ["the of an " * theirs.max_length]
    settings = [{"until": ["th", "\n"], "max_gen_toks": 9}, {"until": "a", "max_gen_toks": 5}]
    asked = requests("generate_until", [(c, s) for s in settings for c in contexts])
    got = ours.generate_until(asked)
    expected = theirs.generate_until(asked, disable_tqdm=True)
    assert got == expected
    assert len(set(got)) > 4
