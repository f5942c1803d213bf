"""A trained model as a SavedModel, which TensorFlow loads without this project.

The folder is what TensorFlow Serving expects: one numbered version per export under a common
base. Beside graph and weights it holds ``assets.extra/``, which TensorFlow ignores: a README.md
for people, the resolved config and the tokenizer.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from configs.schema import Config
from data.model_card import CARD_FILE, data_lines, description, result_lines, title
from data.tokenizers import Tokenizer
from serving.samples import tokenizer_of
from serving.signatures import GENERATE, LOGITS, Port, build_signatures, ports_of
from utils.checkpoints import checkpoint_step
from utils.devices import place_inference
from utils.inference_session import InferenceSession

LOGGER = logging.getLogger(__name__)
DEFAULT_SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
EXTRA_ASSETS = "assets.extra"


def export_model(config: Config, checkpoint: str, base: Optional[str] = None) -> str:
    """Writes ``base/<step of the checkpoint>``, whole or not at all.

    Args:
        config: a checked config; a mesh of several processors is shrunk to one with a notice.
        checkpoint: whose weights are exported.
        base: folder of the versions, made if it is not there; by default ``export`` in model_path.

    Returns:
        The folder that was written.

    Raises:
        ValueError: this version exists, or the checkpoint or the tokenizer cannot be used.
    """
    base = base or os.path.join(config.model_path, "export")
    step = checkpoint_step(checkpoint)
    folder = os.path.join(base, str(step))
    if tf.io.gfile.exists(folder):
        raise _taken(folder)
    if tf.io.gfile.exists(base) and not tf.io.gfile.isdir(base):
        raise ValueError(f"--out must be a folder; got the file {base}. Name another one.")
    tokenizer = tokenizer_of(config)
    tf.io.gfile.makedirs(base)  # what cannot be written is told before the slow part
    batch_size = rows_of(config)
    fit = place_inference(config, (), batch_size, "the number of rows")
    for notice in fit.notices:
        LOGGER.warning(notice)

    def build() -> tuple[Any, Sequence[Any]]:
        # TensorFlow 2 warns of reference variables and does not show them. A resource variable
        # is read where it is used, within the loop over tokens, unless it is cached: then once
        # per call.
        scope = tf.compat.v1.get_variable_scope()
        with tf.compat.v1.variable_scope(scope, use_resource=True, caching_device=""):
            return build_signatures(config, fit.mesh_layout, batch_size), []

    LOGGER.info("building the graph of the signatures")
    session = InferenceSession(build, fit.devices)
    session.restore(checkpoint)
    signatures = dict(session.fetches)
    signatures[DEFAULT_SIGNATURE] = signatures[default_signature(config)]
    unfinished = os.path.join(base, f"unfinished-{step}-{os.getpid()}")  # no version: no number
    try:
        session.save(unfinished, signatures)
        _write_extra_assets(unfinished, config, step, session.parameters, tokenizer)
        if tf.io.gfile.exists(folder):  # another process was faster
            raise _taken(folder)
        try:
            tf.io.gfile.rename(unfinished, folder)
        except tf.errors.AlreadyExistsError as error:
            raise _taken(folder) from error
    finally:
        session.close()
        if tf.io.gfile.exists(unfinished):
            tf.io.gfile.rmtree(unfinished)
    return folder


def _taken(folder: str) -> ValueError:
    return ValueError(
        "an exported version must not be overwritten, a server may have it open; got "
        f"{folder}, which exists. Delete it, or name another folder with --out."
    )


def rows_of(config: Config) -> int:
    """Most rows of a request: the batch of generation, or evaluation for a masked model."""
    return config.predict_batch_size if config.causal else config.eval_batch_size


def default_signature(config: Config) -> str:
    """Name of the signature that requests without a name are answered by."""
    return GENERATE if config.causal else LOGITS


def _write_extra_assets(
    folder: str, config: Config, step: int, parameters: int, tokenizer: Tokenizer
) -> None:
    extra = os.path.join(folder, EXTRA_ASSETS)
    tf.io.gfile.makedirs(extra)
    texts = {
        CARD_FILE: model_card(config, step, parameters, tokenizer.name),
        "config.json": json.dumps(config.to_json_dict(), indent=2) + "\n",
        "tokenizer.json": tokenizer.to_json(),
    }
    for name, text in texts.items():
        with tf.io.gfile.GFile(os.path.join(extra, name), "w") as file:
            file.write(text)


def model_card(config: Config, step: int, parameters: int, tokenizer: str) -> str:
    """What a user of the SavedModel must know, in Markdown."""
    lines = [
        title(os.path.basename(os.path.normpath(config.model_path)), step),
        "",
        *description(config, parameters),
        "",
        f"Texts are tokens of `tokenizer.json` (from {os.path.basename(tokenizer)}; in the format "
        "of the `tokenizers` library, `tokenizers.Tokenizer.from_file`). "
        f"Id {config.eos_id} ends a document.",
        "",
        f"A request has at most {rows_of(config)} row(s). `{DEFAULT_SIGNATURE}` is "
        f"`{default_signature(config)}`.",
    ]
    for name, ports in ports_of(config).items():
        for side, group in (("inputs, all of them required", ports.inputs), ("outputs", ports[1])):
            lines += ["", f"## `{name}`: {side}", ""]
            lines += ["| name | type | shape | meaning |", "| --- | --- | --- | --- |"]
            lines += [_port_row(key, port) for key, port in group.items()]
    lines += [*data_lines(config), *result_lines(config.model_path, step)]
    return "\n".join(lines) + "\n"


def _port_row(name: str, port: Port) -> str:
    sizes = ", ".join(map(str, port.shape))
    return f"| `{name}` | {port.dtype.name} | [{sizes}] | {port.meaning} |"
