"""Losses and updated weights do not depend on the layout, on meshes of eight processors.

Smaller meshes, with dropout and with every option, are in test_model_fns and options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import (
    Trained,
    check_same_weights,
    large_weights,
    make_config,
    movements,
    random_batches,
    train,
)

STEPS = 3
SIZES = {"n_layer": 1, "n_ctx": 16, "n_vocab": 24, "train_batch_size": 8, "eval_batch_size": 8}
# Clipping and decay bind. epsilon is not 1e-8: that turns rounding of the smallest gradients into
# whole updates.
TRAINING = {"weight_decay": 0.1, "gradient_clipping": 0.5, "epsilon": 1e-3}
MODELS: dict[str, dict[str, Any]] = {
    "local": {"attention_types": [[["local"], 1]], "local_attention_radius": 5},
    "linear": {
        "attention_types": [[["linear"], 1]],
        "n_head": 4,
        "n_embd": 24,
        "rotary_emb": True,
        "mlp_glu": True,
        "activation_function": "silu",
    },
    "experts": {
        "attention_types": None,
        "moe_layers": [0],
        "moe_params": {"moe_num_experts": 6, "moe_hidden_size": 10},
    },
    "gptj": {
        "attention_types": None,
        "parallel_residual": True,
        "rotary_emb": True,
        "rotary_dim": 4,
        "rotary_interleaved": True,
        "scaled_attention": True,
        "attention_bias": "all",
        "no_weight_tie": True,
        "final_norm": True,
        "vocab_padding": 3,
        "norm": "rmsnorm-bias",
        "gradient_clipping": 0.1,  # vectors of length 1 have small gradients
        "n_head": 2,
        "n_embd": 12,
    },
}
EVERYTHING = "embd:y,memory_length:y,heads:z,vocab:z,intermediate_expanded:z"
# All that a mesh axis may split, alone and together with what the other axes split.
SPLITS = [
    ("local", "x:8", "batch:x,embed_sequence:x", {"optimizer_shard_axis": "x"}),
    ("local", "x:2,y:2,z:2", f"batch:x,embed_sequence:x,{EVERYTHING}", {}),
    ("linear", "x:2,y:4", "embd:x,heads:y,vocab:y,intermediate_expanded:y", {}),
    ("gptj", "x:2,y:2,z:2", f"batch:x,{EVERYTHING}", {}),
    ("experts", "x:2,y:2,z:2", f"batch:x,experts:x,{EVERYTHING}", {}),
]


def trained(folder: Path, model: str, **keys: Any) -> Trained:
    config = make_config(model_path=str(folder), **SIZES | TRAINING | MODELS[model] | keys)
    return train(config, random_batches(config, STEPS), large_weights)


@pytest.fixture(scope="module")
def on_one_processor(tmp_path_factory) -> dict[str, Trained]:
    return {model: trained(tmp_path_factory.mktemp(model), model) for model in MODELS}


@pytest.mark.parametrize(("model", "mesh_shape", "layout", "keys"), SPLITS)
def test_numbers_on_eight_processors(on_one_processor, tmp_path, model, mesh_shape, layout, keys):
    expected = on_one_processor[model]
    got = trained(tmp_path, model, mesh_shape=mesh_shape, layout=layout, **keys)
    for key in ("loss", "grad_norm"):
        values, wanted = ([step[key] for step in run.metrics] for run in (got, expected))
        np.testing.assert_allclose(values, wanted, rtol=1e-5, err_msg=key)
    check_same_weights(got, expected, large_weights, 1e-5)


def test_what_is_compared_would_show_a_difference(on_one_processor):
    """Every step is clipped, and no weight stays where it was."""
    for model, run in on_one_processor.items():
        largest = (TRAINING | MODELS[model])["gradient_clipping"]
        assert min(step["grad_norm"] for step in run.metrics) > 1.2 * largest, model
        for name, movement in movements(run, large_weights).items():
            assert np.linalg.norm(movement) > 3e-4 * np.linalg.norm(run.variables[name]), name
