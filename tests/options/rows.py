"""Rows of a covering array over the options, and what must hold for each.

The rows hold every pair of settings of model and training at least once. Each row is trained on
one processor and on two, evaluated, and, where it is causal, continued with and without a cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.schema import Config
from model_fns import Placement
from serving.engine import Engine, Sampling
from tests.support import (
    Forward,
    Trained,
    check_same_weights,
    large_weights,
    make_config,
    mesh_layout,
    movements,
    random_batches,
    train,
)

Keys = dict[str, Any]
FACTORS: dict[str, list[Keys]] = {
    "positions": [
        {},
        {"rotary_emb": True},
        {"axial_pos_emb": [2, 6]},
        {"relative_position_bias": True},
        {"rotary_emb": True, "rotary_dim": 4, "rotary_interleaved": True},
    ],
    "attention": [
        {"attention_types": [[["global", "local"], 1]]},
        {"attention_types": [[["linear", "global"], 1]]},
        {"attention_types": [[["local", "none"], 1]]},
    ],
    "projections": [
        {},
        {"attention_bias": "none"},
        {"attention_bias": "all", "scaled_attention": True},
    ],
    "norm": [{}, {"scalenorm": True}, {"rezero": True}, {"norm": "rmsnorm"}],
    "feed_forward": [
        {"activation_function": "gelu"},
        {"mlp_glu": True, "activation_function": "silu"},
        {"moe_layers": [1], "moe_params": {"moe_num_experts": 2, "moe_hidden_size": 14}},
    ],
    "blocks": [
        {},
        {"macaron": True},
        {"share_parameters": True, "parallel_residual": True},
        {"macaron": True, "parallel_residual": True},
    ],
    "head": [
        {},
        {"no_weight_tie": True},
        {"no_weight_tie": True, "final_norm": True, "vocab_padding": 1},
    ],
    "slots": [{}, {"num_mem_kv": 3}],
    "objective": [
        {"z_loss": 1e-2},
        {"entmax_loss": True},
        {"mlm_training": True, "mlm_mask_id": 20},
    ],
    "microbatches": [{}, {"tokens_per_mb_per_replica": 12}],
    "recomputation": [{}, {"recompute_grad": True}],
    "precision": [{}, {"precision": "bfloat16"}],
    "optimizer": [{"beta2": 0.95}, {"opt_name": "adafactor", "lr": 0.05}],
    "optimizer_shard": [{}, {"optimizer_shard_axis": "x"}],
    "dropout": [{}, {"embed_dropout": 0.05, "attn_dropout": 0.05, "res_dropout": 0.05}],
    "layout": [
        {"layout": "batch:x"},
        {"layout": "heads:x,vocab:x,intermediate_expanded:x"},
        {"layout": "memory_length:x,embd:x"},
    ],
}
STEPS = 6


def covering_array(factors: dict[str, list[Keys]]) -> list[tuple[int, ...]]:
    """Rows of level numbers, one per factor, that hold every pair of levels of two factors.

    Greedy: each row starts with a pair that is missing and takes, factor by factor, the level
    that adds most missing pairs.
    """
    sizes = [len(levels) for levels in factors.values()]
    missing = {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(sizes)), 2)
        for a, b in itertools.product(range(sizes[i]), range(sizes[j]))
    }
    rows = []
    while missing:
        row = dict(min(missing))
        for factor in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
            if factor in row:
                continue

            gains = [
                sum(tuple(sorted([(factor, level), item])) in missing for item in row.items())
                for level in range(sizes[factor])
            ]
            row[factor] = gains.index(max(gains))
        missing -= set(itertools.combinations(sorted(row.items()), 2))
        rows.append(tuple(row[number] for number in range(len(sizes))))
    return rows


ROWS = covering_array(FACTORS)
# Shares that take about equally long: the first rows have most of the options.
FIRST, SECOND, LAST = ROWS[:6], ROWS[6:14], ROWS[14:]


def keys_of(row: tuple[int, ...]) -> Keys:
    keys: Keys = {"n_ctx": 12, "n_embd": 12, "train_batch_size": 4, "eval_batch_size": 2}
    keys |= {"mesh_shape": "x:2", "epsilon": 1e-3, "gradient_clipping": 1.0, "weight_decay": 0.01}
    for level, levels in zip(row, FACTORS.values()):
        keys |= levels[level]
    if keys.get("opt_name") == "adafactor":
        del keys["epsilon"]
    return keys


def batches_of(config: Config) -> list[tuple[np.ndarray, np.ndarray]]:
    """One batch over and over; for masked language modelling a third of its labels count."""
    [(inputs, labels)] = random_batches(config, 1)
    if config.mlm_training:
        labels = np.where(np.arange(labels.size).reshape(labels.shape) % 3 == 0, inputs, -1)
        inputs = np.where(labels >= 0, config.mlm_mask_id, inputs)
    return [(inputs, labels)] * STEPS


class Combination:
    """The options of one row, trained on one processor and on two."""

    def __init__(self, row: tuple[int, ...], folder: Path):
        keys = keys_of(row)
        alone = keys | {"mesh_shape": "x:1"}
        self.config = make_config(**alone, model_path=str(folder / "whole"))
        split = make_config(**keys, model_path=str(folder / "split"))
        self.whole = train(self.config, batches_of(self.config), large_weights)
        self.split = train(split, batches_of(split), large_weights)

    @property
    def rounds(self) -> bool:
        """Whether activations are rounded, so that another order of sums shows."""
        return self.config.precision == "bfloat16"


def name_of(row: tuple[int, ...]) -> str:
    parts = [levels[level] for level, levels in zip(row, FACTORS.values())]
    return "-".join(key for part in parts for key in part)


def losses(trained: Trained) -> list[float]:
    return [float(step["loss"]) for step in trained.metrics]


def moved_as_one(trained: Trained) -> np.ndarray:
    """Changes of all weights, end to end."""
    moved = movements(trained, large_weights)
    return np.concatenate([moved[name].ravel() for name in sorted(moved)])


def without_key_biases(trained: Trained) -> Trained:
    """They move all scores of a query alike, unless rotary: their gradients are rounding errors."""
    kept = {name: x for name, x in trained.variables.items() if not name.endswith("/k_b")}
    return trained._replace(variables=kept)


class OptionTests:
    """What holds for every row; a file runs it for its share of them, so that shares run abreast.

    Attributes:
        rows: the share.
    """

    rows: Sequence[tuple[int, ...]]

    def test_they_train(self, combination):
        values = losses(combination.whole)
        assert np.isfinite(values).all()
        assert min(values[-2:]) < values[0] - 0.01

    def test_numbers_do_not_depend_on_the_layout(self, combination):
        """Float32 to 1e-5. Rounded activations make gradients that differ by per cents.

        Single vectors may go ways of their own then, so all weights are compared as one.
        """
        whole, split = combination.whole, combination.split
        tolerance = 0.02 if combination.rounds else 1e-5
        np.testing.assert_allclose(losses(split), losses(whole), rtol=tolerance)
        if combination.rounds:
            got, expected = (moved_as_one(trained) for trained in (split, whole))
            assert np.linalg.norm(got - expected) < 0.3 * np.linalg.norm(expected)
        else:
            check_same_weights(*map(without_key_biases, (split, whole)), large_weights, 1e-5)

    def test_they_evaluate_and_continue(self, combination):
        """What the cache writes is what the whole window says."""
        config = combination.config
        checkpoint = combination.whole.checkpoint
        forward = Forward(config, checkpoint)
        if not config.causal:
            [(inputs, labels), *_] = batches_of(config)
            got = forward(inputs[:2], labels[:2])
            assert np.isfinite(got["total"]).all()
            assert (got["total"][labels[:2] < 0] == 0).all()
            return
        engine = Engine(config, Placement(mesh_layout("x:1", ""), ("",)), 2)
        engine.load(checkpoint)
        sampling = Sampling.from_config(config, temperature=0.0, max_new_tokens=5)
        prompts = [[3, 1, 4], [1, 5, 9, 2, 6]]
        texts = [row[0].prompt + row[0].continuation for row in engine.generate(prompts, sampling)]
        engine.close()
        window = np.zeros((2, config.n_ctx), np.int32)
        for number, text in enumerate(texts):
            window[number, : len(text)] = text
        logits = forward(window)["logits"]
        slack = 0.1 if combination.rounds else 1e-4
        for number, (prompt, text) in enumerate(zip(prompts, texts)):
            for position in range(len(prompt), len(text)):
                row = logits[number, position - 1]
                assert row[text[position]] >= row.max() - slack, (number, position)
