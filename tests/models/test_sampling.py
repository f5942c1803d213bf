"""Drawing of tokens: which may be drawn, and how often each is, against softmax in numpy."""

import numpy as np
import pytest
import tensorflow as tf

from models.kernels.sampling import draw, penalized, scores_of, uniform
from tests.models.test_entmax import bisected
from tests.support import run_tf

VOCAB = 7
LOGITS = np.array([0.5, 2.0, -1.0, 1.0, -3.0, 1.6, 0.0], np.float32)
ORDER = [1, 5, 3, 0, 6, 2, 4]  # from the most likely
DRAWS = 20_000
SIGMAS = 4.5


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits.astype(np.float64) - logits.max())
    return exponentials / exponentials.sum()


def drawn(
    logits, temperature=1.0, top_k=0, top_p=1.0, seeds=None, positions=None, entmax=False
) -> np.ndarray:
    """One token per row; scalar settings hold for all rows."""
    rows = len(logits)

    def column(value, dtype):
        return tf.constant(np.broadcast_to(value, [rows]).astype(dtype))

    return run_tf(
        lambda: draw(
            tf.constant(logits),
            column(5 if positions is None else positions, np.int32),
            column(np.arange(rows) if seeds is None else seeds, np.int32),
            column(temperature, np.float32),
            column(top_k, np.int32),
            column(top_p, np.float32),
            column(entmax, np.bool_),
        )
    )


def many(**settings) -> np.ndarray:
    return drawn(np.tile(LOGITS, (DRAWS, 1)), **settings)


def assert_follows(tokens: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square: its mean is the number of classes less one, its variance twice that."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    expected = probabilities[probabilities > 0] * len(tokens)
    chi_square = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert chi_square < freedom + SIGMAS * np.sqrt(2 * freedom) + SIGMAS


def restricted(probabilities: np.ndarray, kept: list[int]) -> np.ndarray:
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept]
    return result / result.sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature(temperature):
    assert_follows(many(temperature=temperature), softmax(LOGITS / temperature))


@pytest.mark.parametrize("top_k", [2, 3, 6, 7, 100])
def test_top_k(top_k):
    expected = restricted(softmax(LOGITS), ORDER[:top_k])
    assert_follows(many(top_k=top_k), expected)


@pytest.mark.parametrize("top_p", [0.3, 0.5, 0.8, 0.9, 0.999])
def test_top_p_keeps_the_fewest_that_reach_p(top_p):
    probabilities = softmax(LOGITS)
    totals = np.cumsum(probabilities[ORDER])
    assert np.abs(totals - top_p).min() > 1e-4  # no border case
    kept = int((totals < top_p).sum()) + 1
    assert_follows(many(top_p=top_p), restricted(probabilities, ORDER[:kept]))


def test_top_p_counts_within_top_k_and_after_the_temperature():
    """Of the three most likely, two have 84 % of the probability; of all tokens only three do.

    Without the temperature two would not be enough either.
    """

    def kept(temperature, top_k):
        probabilities = restricted(softmax(LOGITS / temperature), ORDER[:top_k])
        return int((np.cumsum(probabilities[ORDER]) < 0.84).sum()) + 1

    assert (kept(0.7, 3), kept(0.7, 7), kept(1.0, 3)) == (2, 3, 3)
    tokens = many(temperature=0.7, top_k=3, top_p=0.84)
    assert_follows(tokens, restricted(softmax(LOGITS / 0.7), ORDER[:2]))


def test_rows_have_their_own_settings():
    """One batch in which rows are greedy, narrow and free by turns."""
    temperature = np.tile([0.0, 1.0, 1.0, 2.0], DRAWS // 4)
    top_k = np.tile([0, 2, 0, 0], DRAWS // 4)
    top_p = np.tile([1.0, 1.0, 0.5, 1.0], DRAWS // 4)
    tokens = many(temperature=temperature, top_k=top_k, top_p=top_p)
    probabilities = softmax(LOGITS)
    assert (tokens[0::4] == 1).all()
    assert_follows(tokens[1::4], restricted(probabilities, ORDER[:2]))
    assert_follows(tokens[2::4], restricted(probabilities, ORDER[:2]))
    assert_follows(tokens[3::4], softmax(LOGITS / 2))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"top_k": 1, "temperature": 5.0},
        {"top_p": 1e-6},
        {"temperature": 1e-4},
    ],
    ids=str,
)
def test_greedy(settings):
    logits = np.random.default_rng(0).permuted(np.tile(LOGITS, (500, 1)), axis=1)
    np.testing.assert_array_equal(drawn(logits, **settings), logits.argmax(1))


def test_greedy_takes_the_first_of_equals():
    logits = np.array([[1, 3, 3, 0], [2, 2, 2, 2]], np.float32)
    np.testing.assert_array_equal(drawn(logits, temperature=0.0), [1, 0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_entmax(temperature):
    """``assert_follows`` also sees that tokens of probability 0 are never drawn."""
    expected = bisected(LOGITS / np.float32(temperature))
    tokens = many(temperature=temperature, entmax=True)
    assert_follows(tokens, expected)
    if temperature < 3:
        assert (expected == 0).sum() > 1


def test_entmax_is_restricted_by_top_k_and_top_p():
    probabilities = bisected(LOGITS / np.float32(2))
    assert_follows(
        many(temperature=2.0, top_k=3, entmax=True), restricted(probabilities, ORDER[:3])
    )
    totals = np.cumsum(probabilities[ORDER])
    kept = int((totals < 0.8).sum()) + 1
    # Entmax has more of its probability on the first ones than softmax.
    assert kept < (np.cumsum(softmax(LOGITS / 2)[ORDER]) < 0.8).sum() + 1
    tokens = many(temperature=2.0, top_p=0.8, entmax=True)
    assert_follows(tokens, restricted(probabilities, ORDER[:kept]))
    # A k beyond the possible tokens adds none of the others.
    assert_follows(many(top_k=6, entmax=True), bisected(LOGITS))


def test_rows_of_entmax_and_of_softmax_in_one_batch():
    entmax = np.arange(DRAWS) % 2 == 1
    tokens = many(entmax=entmax)
    assert_follows(tokens[1::2], bisected(LOGITS))
    assert_follows(tokens[0::2], softmax(LOGITS))
    np.testing.assert_array_equal(tokens[0::2], many()[0::2])
    assert (many(entmax=True, temperature=0.0) == 1).all()


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_logits(size):
    logits = np.tile(LOGITS, (DRAWS, 1))
    logits[:, 2] = size
    tokens = drawn(logits, top_p=0.99)
    if size > 0:
        assert (tokens == 2).all()
    else:
        assert not (tokens == 2).any()
        assert len(set(tokens)) == 5  # the least likely of the others is past 0.99
    equal = np.full((DRAWS, VOCAB), size, np.float32)
    assert_follows(drawn(equal), np.full(VOCAB, 1 / VOCAB))


def test_positions_draw_independently():
    """The next token of a row owes nothing to the one before, nor a row to its neighbour."""
    positions = np.arange(DRAWS)
    tokens = many(seeds=4, positions=positions)
    assert_follows(tokens, softmax(LOGITS))
    pairs = softmax(LOGITS)[:, None] * softmax(LOGITS)
    for lag in (1, 2, 64):
        assert_follows(tokens[:-lag] * VOCAB + tokens[lag:], pairs.ravel())
    neighbours = many()
    assert_follows(neighbours[:-1] * VOCAB + neighbours[1:], pairs.ravel())


def test_a_draw_depends_on_seed_and_position_only():
    first = many(seeds=3, positions=np.arange(DRAWS))
    np.testing.assert_array_equal(many(seeds=3, positions=np.arange(DRAWS)), first)
    backwards = many(seeds=3, positions=np.arange(DRAWS)[::-1])
    np.testing.assert_array_equal(backwards[::-1], first)
    # Two draws from one distribution agree by chance only.
    by_chance = (softmax(LOGITS) ** 2).sum()
    agreement = (many(seeds=4, positions=np.arange(DRAWS)) == first).mean()
    assert abs(agreement - by_chance) < 0.02


def test_no_seed_and_position_share_their_noise():
    """Were they only added, seed 3 at position 8 would draw as seed 4 at position 7."""
    seeds, positions = (grid.ravel() for grid in np.mgrid[0:40, 0:40].astype(np.int32))
    noise = run_tf(lambda: uniform(tf.constant(seeds), tf.constant(positions), 5))
    assert len(np.unique(noise, axis=0)) == 40 * 40


def test_uniform_stays_between_0_and_1():
    noise = run_tf(lambda: uniform(tf.range(300), tf.range(300), 1000))
    assert noise.shape == (300, 1000)
    assert 0 < noise.min() < 1e-4
    assert 1 > noise.max() > 1 - 1e-4
    counts = np.histogram(noise, 100, (0, 1))[0]
    chi_square = ((counts - 3000) ** 2 / 3000).sum()
    assert abs(chi_square - 99) < SIGMAS * np.sqrt(2 * 99)


TEXTS = np.array([[1, 5, 1, 3], [2, 2, 2, 2], [6, 0, 4, 5], [9, 7, 30, 4]], np.int32)
LENGTHS = np.array([2, 4, 1, 4], np.int32)
PENALTIES = np.array([1.5, 0.5, 1.0, 2.0], np.float32)


def test_repetition_penalty():
    """Of tokens within the length of the text; ids that are no tokens (9, 7, 30) have no part."""
    logits = np.random.default_rng(0).normal(0, 2, (4, VOCAB)).astype(np.float32)
    expected = logits.copy()
    for row, penalty in enumerate(PENALTIES):
        for token in {int(t) for t in TEXTS[row, : LENGTHS[row]] if t < VOCAB}:
            positive = logits[row, token] > 0
            expected[row, token] *= 1 / penalty if positive else penalty
    got = run_tf(lambda: penalized(*map(tf.constant, (logits, TEXTS, LENGTHS, PENALTIES))))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    changed = [set(np.flatnonzero(row)) for row in got != logits]
    assert changed == [{1, 5}, {2}, set(), {4}]
    off = np.ones(4, np.float32)
    same = run_tf(lambda: penalized(*map(tf.constant, (logits, TEXTS, LENGTHS, off))))
    np.testing.assert_array_equal(same, logits)


def test_log_probabilities():
    logits = np.random.default_rng(1).normal(0, 3, (5, VOCAB)).astype(np.float32)
    tokens = np.array([0, 6, 3, 3, 1], np.int32)
    expected = np.log([softmax(row) for row in logits])

    def scores(wanted):
        return run_tf(lambda: scores_of(*map(tf.constant, (logits, tokens, wanted)), 3))

    own, ids, values = scores([False, True, False, False, False])
    np.testing.assert_allclose(own, expected[range(5), tokens], atol=1e-5)
    np.testing.assert_array_equal(ids, (-expected).argsort(1)[:, :3])
    np.testing.assert_allclose(values, -np.sort(-expected)[:, :3], atol=1e-5)
    assert not np.any(np.concatenate([x.ravel() for x in scores([False] * 5)]))
