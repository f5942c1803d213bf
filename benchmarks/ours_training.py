"""One training step of this project: the graph that ``main.py`` trains, in a session like its."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.worker import Run, peak_memory_bytes, serve


def build(task: dict[str, Any]) -> dict[str, Run]:
    """The step of ``task["config"]``, on ``task["devices"]`` if there are any.

    Also what it took to get there: processor seconds of building the graph, and the memory of the
    process before.
    """
    import numpy as np
    import tensorflow as tf

    from configs.load import parse_config
    from model_fns import ModeKeys, Placement, make_model_fn
    from utils.devices import place_training, session_config

    config = parse_config(task["config"])
    fit = place_training(config, task.get("devices", ()))
    base = peak_memory_bytes()
    with tf.Graph().as_default():
        shape = (config.train_batch_size, config.n_ctx + 1)
        ids = np.random.default_rng(0).integers(0, config.n_vocab, shape).astype(np.int32)
        # Placeholders, so that nothing can be computed before the first step.
        given = [
            tf.compat.v1.placeholder_with_default(part, part.shape)
            for part in (ids[:, :-1], ids[:, 1:])
        ]
        placement = Placement(fit.mesh_layout, fit.devices, steps_per_checkpoint=10**6)
        model_fn = make_model_fn(config, placement)
        began = time.process_time()
        spec = model_fn({"inputs": given[0]}, given[1], ModeKeys.TRAIN, {})
        graph_seconds = time.process_time() - began
        to_devices = spec.training_hooks[0]  # of several, each holds its part of the weights
        to_devices.begin()
        session = tf.compat.v1.Session(config=session_config(fit.devices))
        session.run(tf.compat.v1.global_variables_initializer())
        to_devices.after_create_session(session, None)
    return {
        "step": lambda: float(session.run([spec.loss, spec.train_op])[0]),
        "graph_seconds": lambda: graph_seconds,
        "base_bytes": lambda: base,
    }


if __name__ == "__main__":
    serve(build)
