"""Samples of records: everything that is no text is visible."""

import numpy as np
import pytest

from data.tokenizers import load_tokenizer
from inspection.dataset_samples import sample
from tests.support import make_config

EOS, PAD = 50256, 50257


@pytest.fixture(scope="module")
def gpt2():
    return load_tokenizer()


@pytest.fixture(scope="module")
def config():
    return make_config(n_vocab=50258, eos_id=EOS, padding_id=PAD)


def shown(tokenizer, config, *parts):
    """The sample of texts, ids and (text, None) for a part without labels."""
    ids, mask = [], []
    for part in parts:
        hidden = isinstance(part, tuple)
        content = part[0] if hidden else part
        new = [content] if isinstance(content, int) else tokenizer.encode(content)
        ids += new
        mask += [0 if hidden else 1] * len(new)
    given = None if all(mask) else np.array(mask)
    return sample(tokenizer, np.array(ids), given, config)


def test_separators_and_space(gpt2, config):
    parts = ("One\nTwo\tx\r\n", EOS, "After", PAD, PAD, PAD)
    assert shown(gpt2, config, *parts) == "One⏎Two⇥x␍⏎⟦eos⟧After⟦pad x3⟧"


def test_parts_without_labels(gpt2, config):
    parts = (("Question?\n",), " Answer.", EOS, ("Next",), (EOS,), " done")
    assert shown(gpt2, config, *parts) == "⟨Question?⏎⟩ Answer.⟦eos⟧⟨Next⟦eos⟧⟩ done"


def test_a_long_record_shows_its_first_separator_and_its_first_change(gpt2, config):
    line = shown(gpt2, config, (" a" * 100,), " b" * 100, EOS, " c" * 100)
    start, change, separator, rest = line.split(" … ")[0:3] + [line[-2:]]
    assert start == f"⟨{' a' * 60}⟩"
    assert change == f"⟨{' a' * 12}⟩{' b' * 12}"
    assert separator.removesuffix(" …") == " b" * 12 + "⟦eos⟧" + " c" * 11
    assert rest == " …"


def test_places_near_each_other_are_shown_once(gpt2, config):
    line = shown(gpt2, config, (" a" * 70,), " b" * 5, EOS, " c" * 100)
    assert line == f"⟨{' a' * 70}⟩{' b' * 5}⟦eos⟧{' c' * 6} …"


def test_a_short_record_is_whole(gpt2, config):
    assert shown(gpt2, config, "short") == "short"
    assert shown(gpt2, config, " a" * 61) == " a" * 60 + " …"
