"""A graph that is built once and run on one checkpoint after another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from utils.checkpoints import (
    check_variables,
    checkpoint_step,
    needs_rounding,
    restore_rounded,
)
from utils.devices import session_config
from utils.tpu import Tpu

RELEASED = "released_variables"
"""Graph collection of variables whose memory is given back once weights are on the mesh: local
variables hold what is read of them."""


class InferenceSession:
    """Graph and session of an evaluation or generation.

    Building the graph costs seconds, restoring weights does not: a session is kept and
    restored from each new checkpoint.

    Args:
        build: makes the graph; returns what is to be fetched, and the hooks that bring weights
            to the mesh (of a TPUEstimatorSpec).
        devices: one per processor of the mesh.
        tpu: whose cores the mesh has in place of devices.
    """

    def __init__(
        self,
        build: Callable[[], tuple[Any, Sequence[Any]]],
        devices: Sequence[str],
        tpu: Optional[Tpu] = None,
    ) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.fetches, self._hooks = build()
            variables = tf.compat.v1.global_variables()
            self._shapes = {
                variable.op.name: variable.shape.as_list()
                for variable in variables
                if variable.op.name != "global_step"
            }
            self._dtypes = {variable.op.name: variable.dtype.base_dtype for variable in variables}
            # Reshaping, since released variables are empty when a second checkpoint comes.
            self._saver = tf.compat.v1.train.Saver(variables, reshape=True)
            for hook in self._hooks:
                hook.begin()
        self._session = tf.compat.v1.Session(
            tpu.master if tpu else "",
            graph=self.graph,
            config=tpu.session_config() if tpu else session_config(devices),
        )
        self.graph.finalize()
        self.step = 0

    def restore(self, checkpoint: str) -> None:
        """Loads the weights of ``checkpoint``.

        Raises:
            ValueError: it lacks a variable of the model or has one of another shape.
        """
        check_variables(checkpoint, self._shapes)
        if needs_rounding(checkpoint, self._dtypes):
            restore_rounded(self._session, self._saver, checkpoint)
        else:
            self._saver.restore(self._session, checkpoint)
        for hook in self._hooks:
            hook.after_create_session(self._session, None)
        self.step = checkpoint_step(checkpoint)

    def run(self, fetches: Any, feed: Optional[dict[Any, Any]] = None) -> Any:
        """Runs the graph on the restored weights."""
        return self._session.run(fetches, feed)

    def callable(self, fetches: Any, feeds: Sequence[tf.Tensor]) -> Callable[..., Any]:
        """A function of the values of ``feeds``, quicker than ``run`` for one that is run often."""
        return self._session.make_callable(fetches, feed_list=list(feeds))

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for shape in self._shapes.values())

    def save(self, folder: str, signatures: Mapping[str, Any]) -> None:
        """Writes the graph and the restored weights as a SavedModel.

        Args:
            folder: that does not exist yet.
            signatures: name -> value with ``inputs`` and ``outputs``, tensors by name.
        """
        saved_model = tf.compat.v1.saved_model
        definitions = {
            name: saved_model.predict_signature_def(signature.inputs, signature.outputs)
            for name, signature in signatures.items()
        }
        with self.graph.as_default():
            builder = saved_model.Builder(folder)
            builder.add_meta_graph_and_variables(
                self._session, [tf.saved_model.SERVING], definitions, saver=self._saver
            )
            builder.save()

    def close(self) -> None:
        """Frees the weights."""
        self._session.close()
