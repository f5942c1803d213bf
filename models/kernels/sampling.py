"""Drawing the next token of each row from its logits.

Every row has its own settings and its own noise, which depends only on its seed and on the
position in its text: a row draws the same tokens whatever else is in the batch.
"""

from __future__ import annotations

import tensorflow as tf

from models.kernels.entmax import log_entmax
from models.kernels.noise import fold, hash_of_positions, mix, unit_interval


def uniform(seeds: tf.Tensor, positions: tf.Tensor, count: int) -> tf.Tensor:
    """Uniform noise in (0, 1).

    Args:
        seeds: [batch] int32.
        positions: [batch] int32.
        count: values per row.

    Returns:
        [batch, count] float32.
    """
    keys = fold(mix(tf.cast(seeds, tf.uint32)), positions)
    return unit_interval(hash_of_positions(keys, [tf.range(count)]))


def token_at(text: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Token of text [batch, length] at positions [batch]: [batch, 1]."""
    return tf.gather(text, positions[:, tf.newaxis], batch_dims=1)


def penalized(
    logits: tf.Tensor, text: tf.Tensor, lengths: tf.Tensor, penalty: tf.Tensor
) -> tf.Tensor:
    """Makes tokens that are in a row's text already less likely.

    Args:
        logits: [batch, vocab] floating.
        text: [batch, length] int32: prompt and continuation from position 0; ids beyond the
            logits are not counted.
        lengths: [batch] int32: tokens of the text that count.
        penalty: [batch] float32 above 0; 1 is off.

    Returns:
        [batch, vocab] float32: of tokens in the text, positive logits divided by the penalty and
        the others multiplied.

    Source: Keskar et al. 2019 (CTRL), equation 2, which divides all logits; that negative ones are
    multiplied, so that they do not become more likely, is transformers' reading.
    """
    logits = tf.cast(logits, tf.float32)
    (rows, length), count = text.shape.as_list(), logits.shape.as_list()[-1]

    def lowered() -> tf.Tensor:
        counts = tf.logical_and(tf.range(length) < lengths[:, tf.newaxis], text < count)
        columns = tf.where(counts, text, count)  # what does not count has a column of its own
        places = tf.stack([tf.tile(tf.range(rows)[:, tf.newaxis], [1, length]), columns], -1)
        seen = tf.scatter_nd(places, tf.ones([rows, length], tf.int32), [rows, count + 1])
        factor = penalty[:, tf.newaxis]
        changed = tf.where(logits > 0, logits / factor, logits * factor)
        return tf.where(seen[:, :count] > 0, changed, logits)

    return tf.cond(tf.reduce_any(tf.not_equal(penalty, 1.0)), lowered, lambda: logits)


def scores_of(
    logits: tf.Tensor, tokens: tf.Tensor, wanted: tf.Tensor, count: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Log-probabilities of the model's own distribution.

    Args:
        logits: [batch, vocab] floating.
        tokens: [batch] int32.
        wanted: [batch] bool; without any row that wants them, all results are 0.
        count: how many of the most likely tokens.

    Returns:
        (log-probability of each token, float32 [batch]; the most likely tokens, int32 [batch,
        count]; their log-probabilities, float32 [batch, count]).
    """
    logits = tf.cast(logits, tf.float32)
    rows = logits.shape.as_list()[0]

    def scored() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        log_probabilities = tf.nn.log_softmax(logits)
        own = tf.gather(log_probabilities, tokens[:, tf.newaxis], batch_dims=1)[:, 0]
        values, ids = tf.math.top_k(log_probabilities, count)
        return own, ids, values

    def nothing() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        zeros = tf.zeros([rows, count])
        return zeros[:, 0], tf.cast(zeros, tf.int32), zeros

    return tf.cond(tf.reduce_any(wanted), scored, nothing)


def _nucleus_threshold(logits: tf.Tensor, top_k: tf.Tensor, top_p: tf.Tensor) -> tf.Tensor:
    """The smallest logit of each row that may be drawn: [batch, 1].

    top_k keeps the k largest; of the renormalised rest, top_p keeps the fewest whose
    probabilities reach p (Fan et al. 2018; Holtzman et al. 2020).
    """
    count = logits.shape.as_list()[-1]
    ordered = tf.sort(logits, direction="DESCENDING")
    within_k = tf.range(count) < tf.where(top_k > 0, top_k, count)[:, tf.newaxis]
    probabilities = tf.nn.softmax(tf.where(within_k, ordered, ordered.dtype.min))
    before = tf.cumsum(probabilities, axis=-1, exclusive=True)
    kept = tf.logical_and(within_k, before < top_p[:, tf.newaxis])
    # The first always stays, also for a p of 0.
    last = tf.maximum(tf.reduce_sum(tf.cast(kept, tf.int32), -1), 1) - 1
    return tf.gather(ordered, last[:, tf.newaxis], batch_dims=1)


def draw(
    logits: tf.Tensor,
    positions: tf.Tensor,
    seeds: tf.Tensor,
    temperature: tf.Tensor,
    top_k: tf.Tensor,
    top_p: tf.Tensor,
    entmax: tf.Tensor,
) -> tf.Tensor:
    """Draws one token per row.

    Args:
        logits: [batch, vocab] floating.
        positions: [batch] int32 of the token that is drawn.
        seeds: [batch] int32.
        temperature: [batch] float32; 0 takes the most likely token.
        top_k: [batch] int32; 0 is off.
        top_p: [batch] float32; 1 is off.
        entmax: [batch] bool; True draws from entmax(logits / temperature) in place of softmax.
            top_k and top_p then restrict those probabilities; tokens of probability 0 are never
            drawn.

    Returns:
        [batch] int32.
    """
    logits = tf.cast(logits, tf.float32)
    greedy = tf.logical_or(temperature <= 0.0, tf.equal(top_k, 1))
    most_likely = tf.argmax(logits, -1, output_type=tf.int32)

    def sampled() -> tf.Tensor:
        scaled = logits / tf.where(greedy, tf.ones_like(temperature), temperature)[:, tf.newaxis]
        # The softmax of logarithms of probabilities is those probabilities.
        scaled = tf.cond(
            tf.reduce_any(entmax),
            lambda: tf.where(entmax[:, tf.newaxis], log_entmax(scaled), scaled),
            lambda: scaled,
        )
        restricted = tf.reduce_any(tf.logical_or(top_k > 0, top_p < 1.0))
        threshold = tf.cond(
            restricted,
            lambda: _nucleus_threshold(scaled, top_k, top_p),
            lambda: tf.fill(tf.stack([tf.shape(scaled)[0], 1]), scaled.dtype.min),
        )
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        gumbel = -tf.math.log(-tf.math.log(uniform(seeds, positions, logits.shape.as_list()[-1])))
        noisy = tf.where(scaled >= threshold, scaled + gumbel, scaled.dtype.min)
        return tf.where(greedy, most_likely, tf.argmax(noisy, -1, output_type=tf.int32))

    return tf.cond(tf.reduce_all(greedy), lambda: most_likely, sampled)
