"""What a SavedModel offers: its named inputs and outputs, and the graph between them.

Inputs are as a client has them: any number of rows up to the batch of the export, texts of any
length up to the window, settings per row or one for all. The graph pads them to the static shapes
of Mesh TensorFlow and cuts the padding off what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from configs.schema import Config
from models.dimensions import Dimensions
from models.gpt import GPT
from models.sampling import generate
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

LOGITS, GENERATE = "logits", "generate"


class Port(NamedTuple):
    """One named input or output.

    Attributes:
        dtype: of its values.
        shape: sizes; one that a request chooses is a name.
        meaning: one line.
    """

    dtype: tf.DType
    shape: tuple[object, ...]
    meaning: str


class SignaturePorts(NamedTuple):
    """Inputs and outputs of a signature by name."""

    inputs: dict[str, Port]
    outputs: dict[str, Port]


class Signature(NamedTuple):
    """Inputs and outputs of a signature as tensors of the graph."""

    inputs: dict[str, tf.Tensor]
    outputs: dict[str, tf.Tensor]


def ports_of(config: Config) -> dict[str, SignaturePorts]:
    """The signatures of a model: ``logits``, and ``generate`` unless it is a masked one."""
    ids = f"token ids in [0, {config.token_count})"
    if config.causal:
        text = Port(tf.int32, ("rows", "length"), f"{ids}; length is at most {config.n_ctx}")
        logits = Port(
            tf.float32,
            ("rows", "length", config.n_vocab),
            "of the token that follows each position",
        )
    else:
        gaps = f"{ids}, {config.mlm_mask_id} for a gap"
        text = Port(tf.int32, ("rows", config.n_ctx), gaps)
        logits = Port(tf.float32, ("rows", config.n_ctx, config.n_vocab), "of each position")
    ports = {LOGITS: SignaturePorts({"tokens": text}, {"logits": logits})}
    if config.causal:
        ports[GENERATE] = SignaturePorts(_generate_inputs(config, text), _generate_outputs(config))
    return ports


def _generate_inputs(config: Config, text: Port) -> dict[str, Port]:
    def setting(dtype: tf.DType, meaning: str) -> Port:
        return Port(dtype, ("rows or 1",), meaning)

    return {
        "tokens": text._replace(meaning=f"prompts from position 0, then any ids; {text.meaning}"),
        "lengths": setting(tf.int32, "of the prompts, at least 1"),
        "max_new_tokens": setting(
            tf.int32, f"at most so many are written; a text also ends at {config.n_ctx} tokens"
        ),
        "stop_ids": setting(tf.int32, "token that ends a text; -1 for none"),
        "seeds": setting(tf.int32, "a seed repeats a text; rows with equal prompts need their own"),
        "temperature": setting(tf.float32, "divisor of the logits; 0 takes the most likely token"),
        "top_k": setting(tf.int32, "draws among the k most likely tokens; 0 for all"),
        "top_p": setting(
            tf.float32, "draws among the most likely tokens whose probabilities reach p; 1 for all"
        ),
        "entmax": setting(tf.bool, "draws from entmax probabilities in place of softmax ones"),
        "repetition_penalty": setting(
            tf.float32,
            "divides positive logits of tokens that the text has, multiplies others; 1 is off",
        ),
    }


def _generate_outputs(config: Config) -> dict[str, Port]:
    return {
        "tokens": Port(tf.int32, ("rows", config.n_ctx), "prompt and continuation, then zeros"),
        "lengths": Port(tf.int32, ("rows",), "of prompt and continuation, a stop token included"),
    }


def _placeholders(name: str, ports: Mapping[str, Port]) -> dict[str, tf.Tensor]:
    return {
        key: tf.compat.v1.placeholder(
            port.dtype,
            [size if isinstance(size, int) else None for size in port.shape],
            f"{name}_{key}",
        )
        for key, port in ports.items()
    }


def _windows(tokens: tf.Tensor, config: Config, batch_size: int) -> tf.Tensor:
    """Checked tokens [rows, length], padded to [batch_size, n_ctx]."""
    rows, length = tf.unstack(tf.shape(tokens))
    fits = tf.logical_and(rows <= batch_size, length <= config.n_ctx)
    known = tf.reduce_all(tf.logical_and(tokens >= 0, tokens < config.token_count))
    limits = f"at most {batch_size} rows of {config.n_ctx}"
    checks = [
        tf.debugging.Assert(fits, [f"tokens must be {limits}; got", rows, length]),
        tf.debugging.Assert(known, [f"tokens must lie in [0, {config.token_count}); got", tokens]),
    ]
    with tf.control_dependencies(checks):
        missing = [[0, batch_size - rows], [0, config.n_ctx - length]]
        return tf.ensure_shape(tf.pad(tokens, missing), [batch_size, config.n_ctx])


def _setting_checks(inputs: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
    """Refuses settings with which nothing could be drawn; NaN passes no comparison."""
    temperature, top_p = inputs["temperature"], inputs["top_p"]
    finite = tf.logical_and(temperature >= 0, tf.math.is_finite(temperature))
    penalty = inputs["repetition_penalty"]
    penalizes = tf.logical_and(penalty > 0, tf.math.is_finite(penalty))
    rules = {
        "temperature": (finite, "finite and at least 0"),
        "top_p": (tf.logical_and(top_p > 0, top_p <= 1), "above 0 and at most 1"),
        "top_k": (inputs["top_k"] >= 0, "at least 0"),
        "max_new_tokens": (inputs["max_new_tokens"] >= 0, "at least 0"),
        "repetition_penalty": (penalizes, "finite and above 0"),
    }
    return [
        tf.debugging.Assert(tf.reduce_all(fits), [f"{name} must be {words}; got", inputs[name]])
        for name, (fits, words) in rules.items()
    ]


def _features(
    inputs: dict[str, tf.Tensor], config: Config, batch_size: int
) -> dict[str, tf.Tensor]:
    """Inputs of ``generate`` as those of the prediction graph (models/sampling.FEATURES)."""
    tokens = _windows(inputs["tokens"], config, batch_size)
    # The number of rows is known to be right once tokens are there.
    with tf.control_dependencies([tokens, *_setting_checks(inputs)]):
        rows, width = tf.unstack(tf.shape(inputs["tokens"]))

    def per_row(name: str, filler: object) -> tf.Tensor:
        count = tf.size(inputs[name])
        fits = tf.logical_or(tf.equal(count, 1), tf.equal(count, rows))
        message = f"{name} must have one value, or one per row of tokens; got"
        with tf.control_dependencies([tf.debugging.Assert(fits, [message, count])]):
            given = tf.broadcast_to(inputs[name], [rows])
        filled = tf.concat([given, tf.fill([batch_size - rows], filler)], 0)
        return tf.ensure_shape(filled, [batch_size])

    lengths = per_row("lengths", 1)
    fits = tf.reduce_all(tf.logical_and(lengths >= 1, lengths <= tf.maximum(width, 1)))
    message = "lengths must be at least 1 and at most the width of tokens; got"
    with tf.control_dependencies([tf.debugging.Assert(fits, [message, lengths])]):
        # Rows that fill the batch hold one token and end at once.
        new = tf.minimum(per_row("max_new_tokens", 0), config.n_ctx - lengths)
    return {
        "tokens": tokens,
        "lengths": lengths,
        "ends": lengths + new,
        "stop_ids": per_row("stop_ids", -1),
        "seeds": per_row("seeds", 0),
        "temperature": per_row("temperature", 0.0),
        "top_k": per_row("top_k", 0),
        "top_p": per_row("top_p", 1.0),
        "entmax": per_row("entmax", False),
        "repetition_penalty": per_row("repetition_penalty", 1.0),
    }


def build_signatures(
    config: Config, mesh_layout: MeshLayout, batch_size: int
) -> dict[str, Signature]:
    """Builds the graph of all signatures over one set of variables.

    Args:
        config: a checked config.
        mesh_layout: of one processor; a SavedModel names no devices.
        batch_size: most rows of a request.
    """
    assert mesh_layout.size == 1
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    inputs = {name: _placeholders(name, ports.inputs) for name, ports in ports_of(config).items()}
    windows = _windows(inputs[LOGITS]["tokens"], config, batch_size)
    dims = Dimensions.from_config(config, batch_size)
    fed = mtf.import_tf_tensor(mesh, windows, mtf.Shape([dims.batch, dims.sequence]))
    logits = GPT(mesh, config, dims, mesh_layout).window_logits(fed)
    texts = None
    if GENERATE in inputs:
        features = _features(inputs[GENERATE], config, batch_size)
        texts = generate(mesh, config, mesh_layout, features)
    lowering = mtf.Lowering(mesh.graph, {mesh: mesh_layout.placement([""])}, autostack=False)
    rows, length = tf.unstack(tf.shape(inputs[LOGITS]["tokens"]))
    values = tf.cast(lowering.export_to_tf_tensor(logits)[:rows, :length], tf.float32)
    signatures = {LOGITS: Signature(inputs[LOGITS], {"logits": values})}
    if texts is not None:
        rows = tf.shape(inputs[GENERATE]["tokens"])[0]
        lengths = lowering.export_to_tf_tensor(texts.lengths)[:rows]
        tokens = lowering.export_to_tf_tensor(texts.tokens)[:rows, : config.n_ctx]
        written = tf.sequence_mask(lengths, config.n_ctx, tf.int32)
        outputs = {"tokens": tokens * written, "lengths": lengths}
        signatures[GENERATE] = Signature(inputs[GENERATE], outputs)
    return signatures
