"""Masked language modelling: shares, what is never chosen, and what draws depend on."""

import numpy as np
import pytest
import tensorflow as tf

from data.masking import NOT_PREDICTED, masked_example
from models.losses import IGNORED
from tests.support import make_config, run_tf

N_VOCAB, MASK, CLS, PADDING = 1009, 7, 5, 3
SPECIAL = [PADDING, CLS, MASK]


def config_of(**keys):
    standard = {"mlm_training": True, "mlm_mask_id": MASK, "padding_id": PADDING}
    return make_config(**({"n_vocab": N_VOCAB, "n_ctx": 40} | standard | keys))


def windows_of(config, count, seed=0, low=10):
    """Windows without special ids."""
    shape = (count, config.n_ctx + 1)
    return np.random.default_rng(seed).integers(low, config.n_vocab, shape, np.int32)


def examples(windows, config, seed=0, first=0):
    """(inputs, labels) of windows that are numbered from ``first``."""

    def build():
        dataset = tf.data.Dataset.from_tensor_slices(windows).enumerate(first)
        dataset = dataset.map(lambda number, ids: masked_example(ids, number, seed, config))
        return tf.compat.v1.data.make_one_shot_iterator(dataset.batch(len(windows))).get_next()

    inputs, labels = run_tf(build)
    assert inputs.dtype == labels.dtype == np.int32
    assert inputs.shape == labels.shape == (len(windows), config.n_ctx)
    return inputs, labels


@pytest.mark.parametrize(
    ("n_ctx", "keys"),
    [
        (40, {}),
        (10, {}),  # a token and a half per sequence
        (
            40,
            {"mlm_mask_prob": 0.4, "mlm_same_token_prob": 0.5, "mlm_random_token_prob": 0.3},
        ),
    ],
)
def test_shares_are_those_of_the_config_within_a_hundredth(n_ctx, keys):
    config = config_of(n_ctx=n_ctx, **keys)
    windows = windows_of(config, 100_000 // n_ctx)
    inputs, labels = examples(windows, config)
    chosen = labels != NOT_PREDICTED
    count = chosen.sum()
    assert count / chosen.size == pytest.approx(config.mlm_mask_prob, rel=0.01)
    masked = (inputs == MASK)[chosen].sum() / count
    same = (inputs == labels)[chosen].sum() / count
    same_share, random_share = config.mlm_same_token_prob, config.mlm_random_token_prob
    assert same == pytest.approx(same_share, rel=0.01)
    assert 1 - same - masked == pytest.approx(random_share, rel=0.01)
    assert masked == pytest.approx(1 - same_share - random_share, rel=0.01)


@pytest.fixture(scope="module")
def drawn():
    config = config_of()
    windows = windows_of(config, 3000)
    return windows, *examples(windows, config)


def test_labels_are_the_hidden_tokens_and_nothing_else_counts(drawn):
    windows, inputs, labels = drawn
    chosen = labels != NOT_PREDICTED
    np.testing.assert_array_equal(labels[chosen], windows[:, :-1][chosen])
    np.testing.assert_array_equal(inputs[~chosen], windows[:, :-1][~chosen])
    assert (inputs[chosen] == MASK).mean() > 0.75
    assert NOT_PREDICTED == IGNORED


def test_every_position_has_the_same_chance_and_neighbours_do_not_matter(drawn):
    chosen = drawn[2] != NOT_PREDICTED
    sigma = np.sqrt(0.15 * 0.85 / len(chosen))
    assert np.abs(chosen.mean(0) - 0.15).max() < 4.5 * sigma
    # Six of forty: the second of a pair is one of five of thirty-nine.
    pairs = (chosen[:, 1:] & chosen[:, :-1]).mean(0)
    assert np.abs(pairs - 0.15 * 5 / 39).max() < 4.5 * np.sqrt(0.02 / len(chosen))
    assert set(chosen.sum(1)) == {6}


def test_random_tokens_are_spread_over_the_whole_vocabulary(drawn):
    _, inputs, labels = drawn
    chosen = labels != NOT_PREDICTED
    random = inputs[chosen & (inputs != labels) & (inputs != MASK)]
    assert random.min() < 30
    assert random.max() > N_VOCAB - 30
    counts = np.histogram(random, 8, (0, N_VOCAB))[0]
    expected = len(random) / 8
    assert ((counts - expected) ** 2 / expected).sum() < 7 + 4.5 * np.sqrt(14)


def test_random_tokens_are_tokens_of_the_data():
    """Rows that only pad the embedding are not."""
    dataset = {"id": "d", "n_vocab": 20, "path": "none", "eos_id": 1, "padding_id": PADDING}
    dataset |= {"tokenizer_path": "t.json", "tokenizer_is_pretrained": False}
    config = config_of(
        datasets=[[dataset, None, None, None]], mlm_mask_prob=1.0, mlm_random_token_prob=0.9
    )
    inputs, _ = examples(windows_of(config, 100, low=N_VOCAB - 5), config)
    shown = inputs[inputs < N_VOCAB - 5]
    assert set(shown) == set(range(20))


def test_the_class_token_comes_first_and_the_sequence_keeps_its_length():
    config = config_of(mlm_cls_token_id=CLS, mlm_mask_prob=0.5)
    windows = windows_of(config, 50)
    inputs, labels = examples(windows, config)
    assert (inputs[:, 0] == CLS).all()
    assert (labels[:, 0] == NOT_PREDICTED).all()
    shown = np.where(labels == NOT_PREDICTED, inputs, labels)
    np.testing.assert_array_equal(shown[:, 1:], windows[:, : config.n_ctx - 1])


def test_special_and_ignored_ids_are_never_chosen_and_all_others_are():
    ignored = [11, 12]
    config = config_of(mlm_cls_token_id=CLS, mlm_mask_prob=1.0, mlm_mask_ignore_ids=ignored)
    windows = windows_of(config, 300, low=10)
    places = np.random.default_rng(1).random(windows.shape)
    windows[places < 0.5] = np.random.default_rng(2).choice(
        [*SPECIAL, *ignored], (places < 0.5).sum()
    )
    inputs, labels = examples(windows, config)
    tokens = np.concatenate([np.full((300, 1), CLS), windows[:, : config.n_ctx - 1]], 1)
    never = np.isin(tokens, [*SPECIAL, *ignored])
    np.testing.assert_array_equal(labels != NOT_PREDICTED, ~never)
    np.testing.assert_array_equal(inputs[never], tokens[never])


def test_the_share_is_one_of_the_tokens_that_may_be_chosen():
    config = config_of(mlm_mask_prob=0.25)
    windows = windows_of(config, 50)
    windows[:, 8:] = PADDING
    _, labels = examples(windows, config)
    assert ((labels != NOT_PREDICTED).sum(1) == 2).all()


def test_a_sequence_of_ignored_ids_stays_as_it_is():
    config = config_of(mlm_mask_ignore_ids=[11])
    windows = np.full((3, config.n_ctx + 1), 11, np.int32)
    inputs, labels = examples(windows, config)
    np.testing.assert_array_equal(inputs, windows[:, :-1])
    assert (labels == NOT_PREDICTED).all()


def test_draws_depend_on_seed_and_number_alone():
    config = config_of()
    windows = np.tile(windows_of(config, 1), (20, 1))
    inputs, labels = examples(windows, config, seed=4)
    assert len(np.unique(labels != NOT_PREDICTED, axis=0)) == 20
    for got, expected in zip(examples(windows[:5], config, seed=4, first=9), (inputs, labels)):
        np.testing.assert_array_equal(got, expected[9:14])
    others = examples(windows, config, seed=5)[1] != NOT_PREDICTED
    # Nor is a seed another one shifted.
    together = np.concatenate([labels != NOT_PREDICTED, others])
    assert len(np.unique(together, axis=0)) == 40
    far = examples(windows[:1], config, seed=4, first=2**40)[1]
    assert not (far == labels).all(1).any()
