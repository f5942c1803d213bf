"""Generation with this project: the engine of ``--predict``, on a checkpoint of random weights."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from typing import Any

from benchmarks.worker import Run, serve


def build(task: dict[str, Any]) -> dict[str, Run]:
    """``generate`` and ``first_token`` of ``task``: config, batch, prompt, new."""
    import numpy as np

    from configs.load import parse_config
    from model_fns import Placement
    from serving.engine import Engine
    from serving.requests import Sampling
    from utils.devices import place_inference

    config = parse_config(task["config"])
    fit = place_inference(config, (), task["batch"], "--batch")
    placement = Placement(fit.mesh_layout, fit.devices)
    engine = Engine(config, placement, task["batch"])
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own: its memory is not that of generation.
        arguments = (task["config"], os.path.join(folder, "model.ckpt"))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            engine.load(pool.apply(random_checkpoint, arguments))
    shape = (task["batch"], task["prompt"])
    random = np.random.default_rng(0)

    def run(new: int) -> int:
        greedy = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=new, stop_id=None)
        # Others each time: a prompt that has just been fed is not fed again.
        prompts = random.integers(0, config.n_vocab, shape).tolist()
        written = engine.generate(prompts, greedy)
        return sum(len(one.continuation) for [one] in written)

    return {"generate": lambda: run(task["new"]), "first_token": lambda: run(1)}


def random_checkpoint(keys: dict[str, Any], prefix: str) -> str:
    """Writes initial weights of the model that config ``keys`` describe; returns the path."""
    import tensorflow as tf

    from configs.load import parse_config
    from model_fns import ModeKeys, Placement, inference_graph
    from models.sampling import FEATURES
    from utils.devices import place_inference

    config = parse_config(keys)
    fit = place_inference(config, (), 1, "--batch")
    placement = Placement(fit.mesh_layout, fit.devices)

    with tf.Graph().as_default():
        inputs = {
            name: tf.zeros([1, config.n_ctx] if name == "tokens" else [1], dtype)
            for name, dtype in FEATURES.items()
        }
        inference_graph(config, placement, ModeKeys.PREDICT, inputs)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return tf.compat.v1.train.Saver().save(session, prefix, global_step=0)


if __name__ == "__main__":
    serve(build)
