"""Checkpoints: whole variables, any mesh reads what any mesh wrote."""

from __future__ import annotations

import os
from typing import Any, Optional

import tensorflow as tf

from utils.errors import reason
from utils.mesh_tensorflow import mtf


def latest_checkpoint(model_path: str) -> Optional[str]:
    """The newest checkpoint of ``model_path``, or None if training has not begun.

    Raises:
        ValueError: the folder names a checkpoint whose files are missing or damaged.
    """
    state_file = os.path.join(model_path, "checkpoint")
    try:
        state = tf.train.get_checkpoint_state(model_path)
    except (tf.errors.OpError, ValueError):
        state = None
    if state is None:
        # TensorFlow takes a damaged state file for none, and the run would begin again.
        if tf.io.gfile.exists(state_file):
            raise ValueError(
                f"{state_file} must name the newest checkpoint; got a file that cannot be read. "
                'Write model_checkpoint_path: "model.ckpt-<step>" into it.'
            )
        names = tf.io.gfile.listdir(model_path) if tf.io.gfile.isdir(model_path) else []
        orphans = sorted(name for name in names if name.endswith(".index"))
        if orphans:  # training would begin again over them
            raise ValueError(
                f"{state_file} must name the newest checkpoint; got none beside {orphans[-1]}. "
                f'Write model_checkpoint_path: "{orphans[-1][: -len(".index")]}" into it, or '
                "start again with --new."
            )
        return None
    path = tf.train.latest_checkpoint(model_path)
    if path is None:
        raise ValueError(
            f"checkpoint {state.model_checkpoint_path} must have an .index file; got none. "
            f"Restore the file, or edit {state_file} to name another one."
        )
    check_checkpoint(path)
    return path


def _damaged(path: str, error: Exception) -> ValueError:
    return ValueError(
        f"checkpoint {path} must be readable; got: {reason(error)[:200]}. Restore its files "
        "from a copy, or name an older checkpoint in the file `checkpoint` beside it."
    )


def check_checkpoint(path: str) -> None:
    """Raises ValueError naming the checkpoint if one of its data files is missing or cut short."""
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        # The reader opens the data files only on access; the last tensor of each is enough to
        # find a file that is missing or shorter than the index says.
        for name in shapes:
            if name.endswith("global_step") or name == max(shapes):
                reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        # IndexError: what the reader makes of a file that ends early.
        raise _damaged(path, error) from error
    shards = tf.io.gfile.glob(f"{path}.data-*")
    expected = int(shards[0].rsplit("-of-", 1)[1]) if shards else 1
    if len(shards) != expected:
        raise ValueError(
            f"checkpoint {path} must have {expected} data file(s); got {len(shards)}. "
            "Restore the missing ones from a copy."
        )


def checkpoint_step(path: Optional[str]) -> int:
    """Updates made before ``path`` was written; 0 for None."""
    if path is None:
        return 0
    return int(tf.train.load_checkpoint(path).get_tensor("global_step"))


def check_variables(path: str, variables: dict[str, list[int]]) -> None:
    """Compares a checkpoint with the variables of a model.

    Args:
        path: of the checkpoint.
        variables: name -> shape of what the model needs.

    Raises:
        ValueError: a variable is missing or has another shape; names the first few.
    """
    stored = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    missing = sorted(name for name in variables if name not in stored)
    other = sorted(
        f"{name} {stored[name]} (the config makes it {shape})"
        for name, shape in variables.items()
        if name in stored and list(stored[name]) != list(shape)
    )
    if missing or other:
        shown = [f"{name} missing" for name in missing] + other
        more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
        raise ValueError(
            f"checkpoint {path} must hold the variables of the config; got "
            f"{'; '.join(shown[:4])}{more}. Use the config that the checkpoint was trained with "
            "(config.json beside it), or another model_path."
        )


def make_saver(max_to_keep: int) -> tf.compat.v1.train.Saver:
    """A saver of every global variable, registered where the session looks for it."""
    saver = tf.compat.v1.train.Saver(
        tf.compat.v1.global_variables(),
        max_to_keep=max_to_keep,
        save_relative_paths=True,
    )
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
    return saver


def checkpoint_hooks(
    lowering: Any,
    saver: tf.compat.v1.train.Saver,
    model_path: str,
    steps: int,
    listeners: list[Any],
) -> list[Any]:
    """Hooks that bring weights to the mesh at the start and back to the file every ``steps``."""
    return [
        mtf.MtfRestoreHook(lowering),
        tf.compat.v1.train.CheckpointSaverHook(
            model_path,
            save_steps=steps,
            saver=saver,
            save_graph_def=False,
            listeners=[mtf.MtfCheckpointSaverListener(lowering), *listeners],
        ),
    ]
