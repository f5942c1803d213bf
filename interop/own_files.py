"""This project's checkpoints: read and written one variable at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from configs.schema import Config
from interop.tensors import (
    DTYPES,
    OTHER_DTYPE,
    Part,
    Shape,
    Source,
    TensorSpec,
    checksum,
    grouped,
)
from utils.checkpoints import MEASUREMENTS, damaged
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

GLOBAL_STEP = "global_step"
_GROUP_BYTES = 32 * 2**20  # of small variables, that they are not a file each


class OwnCheckpoint:
    """The variables of a checkpoint, ``global_step`` among them.

    Args:
        path: of the checkpoint, ``.../model.ckpt-<step>``.

    Raises:
        ValueError: its files are missing, cut short or damaged.
    """

    def __init__(self, path: str):
        self._path = path
        known = {tf.as_dtype(dtype): dtype for dtype in DTYPES.values()}
        try:
            self._reader: Any = tf.train.load_checkpoint(path)
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise damaged(path, error) from error
        self.specs: dict[str, TensorSpec] = {
            name: TensorSpec(tuple(shape), known.get(dtypes[name], OTHER_DTYPE))
            for name, shape in sorted(shapes.items())
        }

    def read(self, name: str) -> np.ndarray:
        """Reads one variable; the reader compares its checksum."""
        try:
            return self._reader.get_tensor(name)
        except (tf.errors.OpError, RuntimeError, IndexError) as error:
            raise damaged(self._path, error) from error


def is_slot(name: str) -> bool:
    """Whether a variable is a slot of an optimizer."""
    from update_rules import adafactor, adam  # here, since they build kernels

    return name.endswith((*adam.SLOTS, *adafactor.SLOTS))


def is_weight(name: str) -> bool:
    """Whether a variable is part of the model, and no state of training."""
    return not (is_slot(name) or name == GLOBAL_STEP or name.startswith(MEASUREMENTS))


def model_variables(config: Config) -> dict[str, Shape]:
    """Shapes of the weights of a model, by name; its graph is built for them."""
    from model_fns import build_evaluation_graph  # here, since it builds kernels

    ids = [config.eval_batch_size, config.n_ctx]
    with tf.Graph().as_default():
        inputs, labels = (tf.compat.v1.placeholder(tf.int32, ids) for _ in range(2))
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        build_evaluation_graph(mesh, config, MeshLayout.from_config(config), inputs, labels)
        return {
            variable.op.name: tuple(variable.shape.as_list())
            for variable in tf.compat.v1.global_variables()
        }


class OwnTarget:
    """Writes a checkpoint.

    Each part is a small checkpoint of its own; merging them moves their data and writes one index.

    Args:
        folder: of the output.
        workshop: folder of the parts, within it.
        step: number of the checkpoint, updates that the weights have seen.
    """

    def __init__(self, folder: str, workshop: str, step: int):
        self._workshop = workshop
        self._step = step
        self.path = os.path.join(folder, f"model.ckpt-{step}")

    def parts(self, specs: Mapping[str, TensorSpec]) -> list[Part]:
        """Groups of small variables, and large ones alone; first the number of the step."""
        step = {GLOBAL_STEP: TensorSpec((), np.dtype(np.int64))}
        groups = [step, *grouped(specs, _GROUP_BYTES)]
        return [
            Part(f"part-{number:05d}.data-00000-of-00001", group)
            for number, group in enumerate(groups)
        ]

    def _prefix(self, part: Part) -> str:
        return os.path.join(self._workshop, part.file.partition(".")[0])

    def _final(self, number: int, count: int) -> str:
        return f"{self.path}.data-{number:05d}-of-{count:05d}"

    def files(self, parts: Sequence[Part]) -> list[str]:
        """Names of the files of the checkpoint."""
        finals = [self._final(number, len(parts)) for number in range(len(parts))]
        return [os.path.basename(path) for path in (f"{self.path}.index", *finals)]

    def write(self, part: Part, source: Source) -> dict[str, int]:
        """Writes one part; see ``Target``."""
        values: dict[str, np.ndarray] = {}
        for name, spec in part.specs.items():
            array = np.asarray(self._step, np.int64) if name == GLOBAL_STEP else source.read(name)
            values[name] = np.ascontiguousarray(array).reshape(spec.shape)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = {tf.compat.v1.placeholder(value.dtype): value for value in values.values()}
            whole = [""] * len(values)
            save = tf.raw_ops.SaveV2(
                prefix=self._prefix(part),
                tensor_names=list(values),
                shape_and_slices=whole,
                tensors=list(fed),
            )
            session.run(save, fed)
        return {name: checksum(value) for name, value in values.items()}

    def finished(self, parts: Sequence[Part]) -> set[str]:
        """Files of the parts that are whole; see ``Target``."""
        self._take_back(parts)
        if self._is_merged(parts):
            return {part.file for part in parts}
        return {part.file for part in parts if self._is_written(part)}

    def _is_written(self, part: Part) -> bool:
        """Whether a part is whole: a data file is the bytes of its tensors and nothing else."""
        size = sum(spec.size_bytes for spec in part.specs.values())
        path = os.path.join(self._workshop, part.file)
        index = os.path.isfile(f"{self._prefix(part)}.index")
        return index and os.path.isfile(path) and os.path.getsize(path) == size

    def _take_back(self, parts: Sequence[Part]) -> None:
        """Takes back what a merge has moved before it was interrupted.

        A merge removes the parts' own indices last, when its index is written.
        """
        if not self._can_merge(parts):
            return
        for number, part in enumerate(parts):
            final = self._final(number, len(parts))
            if os.path.isfile(final):
                os.replace(final, os.path.join(self._workshop, part.file))
        if os.path.isfile(f"{self.path}.index"):
            os.remove(f"{self.path}.index")

    def _can_merge(self, parts: Sequence[Part]) -> bool:
        return all(os.path.isfile(f"{self._prefix(part)}.index") for part in parts)

    def _is_merged(self, parts: Sequence[Part]) -> bool:
        finals = [self._final(number, len(parts)) for number in range(len(parts))]
        return all(map(os.path.isfile, (f"{self.path}.index", *finals)))

    def finish(self, parts: Sequence[Part]) -> Source:
        """Merges the parts; see ``Target``."""
        if self._can_merge(parts):
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                prefixes = [self._prefix(part) for part in parts]
                merge = tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=prefixes,
                    destination_prefix=self.path,
                    delete_old_dirs=False,
                )
                session.run(merge)
        return OwnCheckpoint(self.path)
