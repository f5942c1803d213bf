"""Every pair of model and training options works together.

The rows of a covering array hold each pair of settings at least once. Each row is trained on one
processor and on two, evaluated, and, where it is causal, continued with and without a cache.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.schema import Config
from model_fns import Placement
from serving.engine import Engine, Sampling
from tests.support import Forward, Trained, make_config, mesh_layout, random_batches, train

Keys = dict[str, Any]
FACTORS: dict[str, list[Keys]] = {
    "positions": [{}, {"rotary_emb": True}, {"axial_pos_emb": [2, 6]}],
    "attention": [
        {"attention_types": [[["global", "local"], 1]]},
        {"attention_types": [[["linear", "global"], 1]]},
        {"attention_types": [[["local", "none"], 1]]},
    ],
    "norm": [{}, {"scalenorm": True}, {"rezero": True}],
    "feed_forward": [
        {"activation_function": "gelu"},
        {"mlp_glu": True, "activation_function": "silu"},
        {"moe_layers": [1], "moe_params": {"moe_num_experts": 2, "moe_hidden_size": 14}},
    ],
    "blocks": [{}, {"macaron": True}, {"share_parameters": True}],
    "head": [{}, {"no_weight_tie": True}],
    "slots": [{}, {"num_mem_kv": 3}],
    "objective": [
        {"z_loss": 1e-2},
        {"entmax_loss": True},
        {"mlm_training": True, "mlm_mask_id": 21},
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


def test_the_rows_hold_every_pair():
    for first, second in itertools.combinations(range(len(FACTORS)), 2):
        levels = [range(len(list(FACTORS.values())[number])) for number in (first, second)]
        wanted = set(itertools.product(*levels))
        assert {(row[first], row[second]) for row in ROWS} == wanted


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


class Row:
    """One combination of options, trained on one processor and on two."""

    def __init__(self, row: tuple[int, ...], folder: Path):
        keys = keys_of(row)
        alone = keys | {"mesh_shape": "x:1"}
        self.config = make_config(**alone, model_path=str(folder / "whole"))
        split = make_config(**keys, model_path=str(folder / "split"))
        self.whole = train(self.config, batches_of(self.config))
        self.split = train(split, batches_of(split))

    @property
    def rounds(self) -> bool:
        """Whether activations are rounded, so that another order of sums shows."""
        return self.config.precision == "bfloat16"


def _name(row: tuple[int, ...]) -> str:
    parts = [levels[level] for level, levels in zip(row, FACTORS.values())]
    return "-".join(key for part in parts for key in part)


@pytest.fixture(scope="module", params=ROWS, ids=_name)
def combination(request, tmp_path_factory) -> Row:
    return Row(request.param, tmp_path_factory.mktemp("options"))


def losses(trained: Trained) -> list[float]:
    return [float(step["loss"]) for step in trained.metrics]


def test_options_train(combination):
    values = losses(combination.whole)
    assert np.isfinite(values).all()
    assert min(values[-2:]) < values[0] - 0.01


def test_options_do_not_depend_on_the_layout(combination):
    tolerance = 0.03 if combination.rounds else 1e-4
    np.testing.assert_allclose(losses(combination.split), losses(combination.whole), rtol=tolerance)


def test_options_evaluate_and_continue(combination):
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
