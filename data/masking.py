"""Masked language modelling: which tokens of a sequence are hidden, and what they were.

Source: Devlin et al. 2019 (BERT), section 3.1.
"""

from __future__ import annotations

import tensorflow as tf

from configs.schema import Config

NOT_PREDICTED = -1  # label of a position that does not count; models/losses.py calls it IGNORED
EVALUATION_SEED = 0  # of every evaluation, so that a score repeats and runs can be compared
_GOLDEN_RATIO = (5**0.5 - 1) / 2
_STREAM = 0x6D6C6D  # keeps these draws apart from others that are made of seed and number


def never_chosen(config: Config) -> list[int]:
    """Ids that are never labels: special ones and those to be ignored."""
    special = (config.padding_id, config.mlm_mask_id, config.mlm_cls_token_id)
    return [*(token for token in special if token is not None), *config.mlm_mask_ignore_ids]


def _may_be_chosen(tokens: tf.Tensor, config: Config) -> tf.Tensor:
    """Boolean [n_ctx]: ordinary tokens, neither special ones nor those to be ignored."""
    return tf.reduce_all(tf.not_equal(tokens[:, tf.newaxis], never_chosen(config)), 1)


def masked_example(
    window: tf.Tensor, number: tf.Tensor, seed: int, config: Config
) -> tuple[tf.Tensor, tf.Tensor]:
    """Hides a share of a sequence's tokens.

    The sequence is the first n_ctx ids of the window, since no label lies beyond it; with a class
    token it is that token and the first n_ctx - 1 ids.

    The tokens that may be chosen are put in a random order, and their places in it are spread
    evenly over [0, 1), beginning at an offset: those below ``mlm_mask_prob`` are chosen, the
    lowest of these keep their token, the next get a random one, the others the mask. Offsets
    follow one another by the golden ratio, which spreads any number of them evenly. Unlike with a
    draw per token, the shares of a sequence are as near to the config as whole tokens allow, and
    those of many sequences nearer.

    Args:
        window: [n_ctx + 1] int32.
        number: int64 scalar, of the sequence in its stream; the draws depend on it and on the
            seed alone, so that they differ between epochs and not between runs or layouts.
        seed: of the stream.
        config: a checked config with ``mlm_training``.

    Returns:
        (inputs, labels), each [n_ctx] int32; labels are the tokens at the chosen positions and
        NOT_PREDICTED elsewhere. A short sequence may have no chosen position.
    """
    tokens = window[: config.n_ctx]
    if config.mlm_cls_token_id is not None:
        tokens = tf.concat([[config.mlm_cls_token_id], tokens[:-1]], 0)
    stream = tf.constant([seed, _STREAM], tf.int64)
    seeds = tf.random.experimental.stateless_split(
        tf.random.experimental.stateless_fold_in(stream, number), 2
    )
    eligible = _may_be_chosen(tokens, config)
    draws = tf.random.stateless_uniform([config.n_ctx], seeds[0])
    order = tf.argsort(tf.where(eligible, draws, 2.0), stable=True)  # the others come last
    ranks = tf.cast(tf.math.invert_permutation(order), tf.float64)
    first_offset = tf.random.stateless_uniform([], stream, dtype=tf.float64)
    offset = (first_offset + tf.cast(number, tf.float64) * _GOLDEN_RATIO) % 1.0
    count = tf.maximum(tf.reduce_sum(tf.cast(eligible, tf.float64)), 1.0)
    quantiles = (ranks + offset) / count

    share = config.mlm_mask_prob
    kept_below = share * config.mlm_same_token_prob
    random_below = share * (config.mlm_same_token_prob + config.mlm_random_token_prob)
    chosen = tf.logical_and(eligible, quantiles < share)
    # Rows that only pad the embedding are no tokens.
    known = config.token_count
    if config.dataset:
        known = min(known, config.dataset.n_vocab)
    random_ids = tf.random.stateless_uniform([config.n_ctx], seeds[1], 0, known, tf.int32)
    shown = tf.where(quantiles < random_below, random_ids, config.mlm_mask_id)
    shown = tf.where(quantiles < kept_below, tokens, shown)
    return tf.where(chosen, shown, tokens), tf.where(chosen, tokens, NOT_PREDICTED)
