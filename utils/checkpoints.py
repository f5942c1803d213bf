"""Checkpoints: whole variables, any mesh reads what any mesh wrote."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import tensorflow as tf

from utils.errors import reason
from utils.files import is_remote, names_in
from utils.mesh_tensorflow import mtf

LOGGER = logging.getLogger(__name__)
FULLY_READ_BYTES = 2 * 2**30
"""Checkpoints below this size are read whole before they are used, about 2 GB/s from memory."""

MEASUREMENTS = "measurements/"
"""Begins the names of variables that a run only looks at itself with: a checkpoint that lacks them
is whole, and they begin anew."""

_SAVED_FILE = re.compile(
    r"model\.ckpt-(?P<step>\d+)\.(index|meta|data-\d{5}-of-\d{5})(?P<partial>\.tempstate\d+)?"
)


def step_in_name(path: str) -> Optional[int]:
    """The step that ends the name of a checkpoint, ``model.ckpt-<step>``; None without one."""
    match = re.search(r"-(\d+)$", path)
    return int(match[1]) if match else None


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


def damaged(path: str, error: Exception) -> ValueError:
    """The error of a checkpoint that cannot be read, for what TensorFlow says of it."""
    return ValueError(
        f"checkpoint {path} must be readable; got: {reason(error)[:200]}. Restore its files "
        "from a copy, or name an older checkpoint in the file `checkpoint` beside it."
    )


def check_checkpoint(path: str) -> None:
    """Raises ValueError naming the checkpoint if its data files are missing or damaged.

    The reader compares the checksum of each tensor that it reads. Of a checkpoint of
    ``FULLY_READ_BYTES`` or more only the first and the last one are read, which finds files that
    are missing or cut short.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
        size = sum(math.prod(shapes[name]) * dtypes[name].size for name in shapes)
        for name in shapes:
            is_probe = name.endswith("global_step") or name == max(shapes)
            if is_probe or size < FULLY_READ_BYTES:
                reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        # IndexError: what the reader makes of a file that ends early.
        raise damaged(path, error) from error
    shards = tf.io.gfile.glob(f"{path}.data-*")
    expected = int(shards[0].rsplit("-of-", 1)[1]) if shards else 1
    if len(shards) != expected:
        raise ValueError(
            f"checkpoint {path} must have {expected} data file(s); got {len(shards)}. "
            "Restore the missing ones from a copy."
        )


def remove_partial_saves(model_path: str, newest: Optional[str]) -> None:
    """Removes what saves that were killed have left; a checkpoint that is whole never goes.

    These are files under temporary names, and files of a step past the newest listed checkpoint
    whose index, which is written last, is missing. In local folders only: without the lock of a
    run a save may be under way.

    Args:
        model_path: folder of the run, locked by this process.
        newest: the newest checkpoint that the state file lists; None if there is none.
    """
    if is_remote(model_path):
        return
    listed = step_in_name(newest) if newest is not None else None
    names = names_in(model_path)
    removed = []
    for name in names:
        match = _SAVED_FILE.fullmatch(name)
        if match is None:
            continue
        has_no_index = f"model.ckpt-{match['step']}.index" not in names
        is_past = listed is not None and int(match["step"]) > listed
        if match["partial"] or (has_no_index and is_past):
            os.remove(os.path.join(model_path, name))
            removed.append(name)
    if removed:
        LOGGER.info("removed what a killed save left in %s: %s", model_path, ", ".join(removed))


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
    missing = sorted(
        name for name in variables if name not in stored and not name.startswith(MEASUREMENTS)
    )
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


def needs_rounding(path: str, dtypes: Mapping[str, tf.DType]) -> bool:
    """Whether a checkpoint has variables in other number formats than a graph, as slim ones do.

    Args:
        path: of the checkpoint.
        dtypes: name -> number format of the graph's variables.
    """
    stored = tf.train.load_checkpoint(path).get_variable_to_dtype_map()
    return any(stored[name] != dtype for name, dtype in dtypes.items() if name in stored)


def restore_rounded(
    session: tf.compat.v1.Session, saver: tf.compat.v1.train.Saver, path: str
) -> None:
    """Restores a checkpoint, each variable rounded to the number format that the graph has it in.

    What the saver would read of the file is fed, a variable at a time, so that none of it is in
    memory twice but the largest; the graph stays as it is.

    Args:
        session: of the variables.
        saver: of the variables.
        path: of the checkpoint.
    """
    reader = tf.train.load_checkpoint(path)
    for assign in _assignments(
        session.graph.get_operation_by_name(saver.saver_def.restore_op_name)
    ):
        variable, value = assign.inputs[0], assign.inputs[1]
        array = reader.get_tensor(variable.op.name)
        session.run(assign, {value: array.astype(value.dtype.as_numpy_dtype)})


def _assignments(operation: tf.Operation) -> Iterator[tf.Operation]:
    """Operations that a saver restores variables with, in groups of groups."""
    for control in operation.control_inputs:
        if control.type == "NoOp":
            yield from _assignments(control)
        else:
            yield control


class _Saver(tf.compat.v1.train.Saver):
    """Restores measurements if they are there, and else lets them begin anew."""

    def __init__(self, variables: list[tf.Variable], **options: Any):
        super().__init__(variables, **options)
        measured = [item for item in variables if item.op.name.startswith(MEASUREMENTS)]
        self._measured = {item.op.name for item in measured}
        if measured:
            rest = [item for item in variables if item.op.name not in self._measured]
            self._without = tf.compat.v1.train.Saver(rest)
            self._anew = tf.compat.v1.variables_initializer(measured)

    def restore(self, sess: tf.compat.v1.Session, save_path: str) -> None:
        """Restores all variables."""
        if self._measured:
            stored = tf.train.load_checkpoint(save_path).get_variable_to_shape_map()
            if not self._measured <= stored.keys():
                self._without.restore(sess, save_path)
                sess.run(self._anew)
                return
        super().restore(sess, save_path)


def make_saver(max_to_keep: int, sharded: bool = False) -> tf.compat.v1.train.Saver:
    """A saver of every global variable, registered where the session looks for it.

    Args:
        max_to_keep: checkpoints.
        sharded: whether every host writes the variables that it holds.
    """
    saver = _Saver(
        tf.compat.v1.global_variables(),
        max_to_keep=max_to_keep,
        sharded=sharded,
        save_relative_paths=True,
    )
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
    return saver


class _SaverHook(tf.compat.v1.train.CheckpointSaverHook):
    """Saves every so many steps and at the end.

    TensorFlow's also writes the graph for TensorBoard, which takes a second for thousands of
    nodes, and a checkpoint before the first step. That of untrained weights is made for those who
    report on it alone: a run without one begins again with the same weights, drawn from the seed.

    Args:
        reports: whether there are listeners that want the untrained weights.
        **settings: of TensorFlow's hook.
    """

    def __init__(self, reports: bool, **settings: Any):
        super().__init__(**settings)
        self._reports = reports

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Saves untrained weights if they are wanted, and counts steps from here."""
        step = session.run(self._global_step_tensor)
        if step == 0 and self._reports:
            self._save(session, step)
        self._timer.update_last_triggered_step(step)


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
        _SaverHook(
            reports=bool(listeners),
            checkpoint_dir=model_path,
            save_steps=steps,
            saver=saver,
            listeners=[mtf.MtfCheckpointSaverListener(lowering), *listeners],
        ),
    ]
