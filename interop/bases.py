"""What a fine-tuning run begins with: weights, and perhaps an optimizer, of another model."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from configs.schema import Config
from interop import from_hf
from interop.formats import HF, MTJ, format_of, own_steps
from interop.hf_configs import PADDING_KEY
from interop.hf_files import read_json_object, weight_files
from interop.mtj_configs import check_architecture
from interop.mtj_files import MtjFiles, step_folder
from interop.mtj_source import MtjSource
from interop.own_files import GLOBAL_STEP, OwnCheckpoint, is_slot, is_weight
from interop.tensors import Source, check_tensors, is_finite, warn_of_spoiled
from update_rules import adafactor, adam
from utils.checkpoints import check_checkpoint, latest_checkpoint
from utils.errors import there_are
from utils.files import is_remote
from utils.stored_config import (
    MODEL_KEYS,
    changed_model_keys,
    config_path,
    other_model_keys,
    read_stored_config,
)

LOGGER = logging.getLogger(__name__)
_SLOTS = {"adam": adam.SLOTS, "adafactor": adafactor.SLOTS}


@dataclass(frozen=True)
class Base:
    """A model to begin from, which has been looked at but not read.

    Attributes:
        config: of the run; ``earlier_updates`` are those of the base's optimizer if it is kept.
        source: of its tensors, under the names of our variables.
        files: paths that they are read from.
    """

    config: Config
    source: Source
    files: tuple[str, ...]

    def scaffold(self) -> tf.compat.v1.train.Scaffold:
        """Makes a session of the training graph begin with the base.

        Tensors are read and loaded one at a time. What the base has not, is initialized: the step,
        measurements, and the optimizer if it begins anew.

        Raises:
            ValueError: names or shapes are not those of the graph.
        """
        variables = {item.op.name: item for item in tf.compat.v1.global_variables()}
        loaded = {
            name: variable
            for name, variable in variables.items()
            if is_weight(name) or (is_slot(name) and not self.config.fresh_opt)
        }
        shapes = {name: tuple(variable.shape.as_list()) for name, variable in loaded.items()}
        ignored = [name for name in self.source.specs if not is_weight(name) and name not in loaded]
        check_tensors(self.source.specs, shapes, str(self.config.init_from), ignored)
        rest = [variable for name, variable in variables.items() if name not in loaded]
        resources = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.RESOURCES)
        return tf.compat.v1.train.Scaffold(
            init_op=tf.group(
                tf.compat.v1.variables_initializer(rest), *(item.create for item in resources)
            ),
            init_fn=lambda _, session: self._load(session, loaded),
        )

    def _load(self, session: tf.compat.v1.Session, variables: dict[str, tf.Variable]) -> None:
        begin, spoiled = time.monotonic(), []
        for name, variable in variables.items():
            value = np.asarray(self.source.read(name), variable.dtype.base_dtype.as_numpy_dtype)
            spoiled += [] if is_finite(value) else [name]
            # The initializer's own value is replaced: nothing is added to the graph.
            session.run(variable.initializer, {variable.initializer.inputs[1]: value})
        warn_of_spoiled(spoiled, str(self.config.init_from))
        optimizer = "a new optimizer" if self.config.fresh_opt else "its optimizer"
        LOGGER.info(
            "began with the weights of %s and %s: %s numbers in %.0f s",
            self.config.init_from,
            optimizer,
            f"{sum(variable.shape.num_elements() for variable in variables.values()):,}",
            time.monotonic() - begin,
        )


def open_base(config: Config) -> Base:
    """Looks at the base of a run.

    Args:
        config: of the run, with ``init_from``.

    Raises:
        ValueError: there is none that is known, it is of another model than the config, or it lacks
            the optimizer that is to be kept.
    """
    path = str(config.init_from).rstrip("/")
    checkpoint = path.removesuffix(".index")
    if is_remote(path) or os.path.isfile(f"{checkpoint}.index"):
        return _open_own(config, checkpoint)
    _check_step_exists(checkpoint)
    kind = format_of(path, "--init_from")
    openers = {HF: _open_hf, MTJ: _open_mtj}
    return openers.get(kind, _open_own)(config, path)


def _check_step_exists(checkpoint: str) -> None:
    """Refuses the name of a checkpoint that a run's folder does not have."""
    folder, name = os.path.split(checkpoint)
    if (
        os.path.exists(checkpoint)
        or not name.startswith("model.ckpt-")
        or not os.path.isdir(folder)
    ):
        return
    raise ValueError(
        f"--init_from must name a checkpoint that exists; got {checkpoint}, and of the steps in "
        f"{folder} {there_are(own_steps(folder))}. Name another one."
    )


def _open_hf(config: Config, folder: str) -> Base:
    if not config.fresh_opt:
        raise _weights_only(config)
    model = from_hf.read(folder, config.model_path)
    weights = model.open()
    files = (from_hf.CONFIG, *weight_files(folder))
    paths = tuple(os.path.join(folder, name) for name in files)
    free = set()
    if model.tokenizer is None and PADDING_KEY not in read_json_object(paths[0]):
        free.add(PADDING_KEY)  # nothing tells
    keys = [key for key in _compared_keys(config) if key not in free]
    _check_model(config, folder, other_model_keys(config, model.config, keys))
    weights.check()
    return Base(config, weights.source, paths)


def _open_mtj(config: Config, folder: str) -> Base:
    """A checkpoint of Mesh Transformer JAX, which says nothing of its model but shapes."""
    check_architecture(config, "the config")
    files = MtjFiles(step_folder(folder, None))
    source = MtjSource(files, config)
    paths = tuple(os.path.join(files.folder, name) for name in files.names)
    if config.fresh_opt:
        return Base(config, source, paths)
    _check_optimizer(config, source)
    return Base(_with_updates(config, source.adam_count or 0), source, paths)


def _open_own(config: Config, path: str) -> Base:
    is_checkpoint = tf.io.gfile.exists(f"{path}.index")
    folder = os.path.dirname(path) if is_checkpoint else path
    if is_checkpoint:
        checkpoint = path
        check_checkpoint(checkpoint)
    else:
        newest = latest_checkpoint(folder)
        if newest is None:
            raise ValueError(
                "--init_from must be a folder with a checkpoint, a checkpoint, or a local Hugging "
                f"Face folder; got {path}, which is none. Correct it."
            )
        checkpoint = newest
    stored = read_stored_config(folder)
    known = None if stored is None else {k: v for k, v in stored.items() if k not in _free(config)}
    _check_model(config, checkpoint, changed_model_keys(config, known, config_path(folder)))
    source = OwnCheckpoint(checkpoint)
    files = tuple(sorted(tf.io.gfile.glob(f"{checkpoint}.*")))
    if config.fresh_opt:
        return Base(config, source, files)
    _check_optimizer(config, source)
    updates = int(source.read(GLOBAL_STEP)) if GLOBAL_STEP in source.specs else 0
    updates += (stored or {}).get("earlier_updates") or 0
    return Base(_with_updates(config, updates), source, files)


def _with_updates(config: Config, updates: int) -> Config:
    """The config, with the updates that the kept optimizer has made.

    Raises:
        ValueError: the config says something else.
    """
    if config.earlier_updates not in (0, updates):
        raise ValueError(
            f"earlier_updates must be {updates}, which the optimizer of {config.init_from} has "
            f"made; got {config.earlier_updates}. Leave it out."
        )
    return config.model_copy(update={"earlier_updates": updates})


def _free(config: Config) -> set[str]:
    """Keys of the model in which a run may differ from its base: the window, if no weight has it.

    With positions of its own, each place of the window has a weight.
    """
    return set() if config.has_position_embedding else {"n_ctx"}


def _compared_keys(config: Config) -> Iterable[str]:
    return [key for key in MODEL_KEYS if key not in _free(config)]


def _check_model(config: Config, where: str, changed: list[str]) -> None:
    if changed:
        raise ValueError(
            f"the config must be of the model in {where}; got {', '.join(changed)}. Set it as it "
            "was there, or name another base."
        )


def _check_optimizer(config: Config, source: Source) -> None:
    """Refuses a base without an optimizer, or with another one."""
    if not any(is_slot(name) for name in source.specs):
        raise _weights_only(config)
    if any(name.endswith(_SLOTS[config.opt_name]) for name in source.specs):
        return
    [other] = _SLOTS.keys() - {config.opt_name}
    raise ValueError(
        f"the optimizer that is kept must be that of the base; got opt_name {config.opt_name}, and "
        f"{config.init_from} has been trained with {other}. Change opt_name, or begin with a new "
        "optimizer: add --fresh_opt."
    )


def _weights_only(config: Config) -> ValueError:
    return ValueError(
        "--init_from must name a checkpoint with its optimizer, or come with --fresh_opt; got "
        f"{config.init_from}, which holds weights alone. Add --fresh_opt."
    )
