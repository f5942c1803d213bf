"""Generation with caches of several kinds against the whole window without a cache."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from configs.schema import Config
from model_fns import Placement
from models import decoder as decoding
from models.dimensions import Dimensions
from models.gpt import GPT
from models.kernels.cache import KeyValueCache
from models.kernels.linear_cache import LinearCache
from models.kernels.sampling import draw
from models.layer_caches import empty_caches, flatten, unflatten
from serving.engine import Engine
from serving.requests import Sampling
from tests.support import (
    Forward,
    cpus,
    make_config,
    mesh_layout,
    random_variables,
    run_tf,
    write_checkpoint,
)
from utils.garbage import no_garbage_collection
from utils.mesh_tensorflow import mtf

N_CTX, ROWS, NEW = 150, 4, 20
MODELS = {
    "global and linear": {"attention_types": [[["global", "linear"], 1]]},
    "all linear, rotary, slots": {
        "attention_types": [[["linear"], 2]],
        "rotary_emb": True,
        "num_mem_kv": 3,
    },
    "linear and local, axial, slots, split": {
        "attention_types": [[["linear", "local"], 1]],
        "axial_pos_emb": [10, 15],
        "num_mem_kv": 3,
        "mesh_shape": "x:2,y:2",
        "layout": "batch:x,heads:y,vocab:y",
    },
    "global and local, relative, slots, split": {
        "attention_types": [[["global", "local"], 1]],
        "relative_position_bias": True,
        "num_mem_kv": 3,
        "mesh_shape": "x:2,y:2",
        "layout": "batch:x,heads:y,vocab:y",
    },
}
GREEDY = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=NEW, stop_id=None)
SAMPLED = Sampling(1.0, 0, 1.0, seed=3, max_new_tokens=NEW, stop_id=None)
# Around the borders of the prefill's chunks, side by side.
BATCHES = [(1, 130, 17, 70), (64, 65, 66, 120), (2, 63, 128, 129)]


def config_of(**keys) -> Config:
    sizes = {"n_ctx": N_CTX, "n_embd": 12, "eval_batch_size": ROWS, "local_attention_radius": 7}
    return make_config(**(sizes | {"no_weight_tie": True} | keys))


def variables_of(config: Config) -> dict[str, np.ndarray]:
    """Random weights; texts vary, and what linear layers sum up decides about them."""
    variables = random_variables(config, seed=12)
    random = np.random.default_rng(13)
    shapes = {
        "gpt2/axial_wpe_1": (10, 12),
        "gpt2/axial_wpe_2": (15, 12),
        # A tied head favours the token that is there already.
        "gpt2/wte_final_linear/conv1d_main/linear_out/kernel": (12, 22),
        "gpt2/wte_final_linear/conv1d_main/linear_out/bias": (22,),
    }
    for layer in range(config.n_layer):
        scope = f"gpt2/h{layer}/attn"
        for name in ("q", "k", "v"):
            variables[f"{scope}/{name}"] *= 4.0
        for name in ("mem_k", "mem_v"):
            shapes[f"{scope}/attention/{name}"] = (3, config.n_head, config.head_dim)
    variables["gpt2/wte"] *= 4.0
    shapes["gpt2/relative_positions/table"] = (2, 32)
    for name, shape in shapes.items():
        variables[name] = random.normal(0.0, 1.0, shape).astype(np.float32)
    return variables


def prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, 22, length).tolist()


class Loaded(NamedTuple):
    """One model with and without a cache."""

    engine: Engine
    forward: Forward


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: name)
def loaded(request, tmp_path_factory):
    config = config_of(**MODELS[request.param])
    folder: Path = tmp_path_factory.mktemp("caches")
    checkpoint = write_checkpoint(folder, variables_of(config))
    split = mesh_layout(config.mesh_shape, config.layout)
    devices = cpus(config.mesh_size) if config.mesh_size > 1 else ("",)
    with no_garbage_collection(), pytest.MonkeyPatch.context() as patch:
        # A small model's cache is shorter than the large chunk.
        patch.setattr(decoding, "PREFILL_CHUNKS", {128: 64, 64: 0})
        engine = Engine(config, Placement(split, devices), ROWS)
    engine.load(checkpoint)
    whole = {"mesh_shape": "x:1", "layout": "batch:x"}
    yield Loaded(engine, Forward(config_of(**(MODELS[request.param] | whole)), checkpoint))
    engine.close()


def texts(engine: Engine, prompts, sampling: Sampling) -> list[list[int]]:
    return [row[0].continuation for row in engine.generate(prompts, sampling)]


def uncached_choices(forward: Forward, texts_, sampling: Sampling) -> np.ndarray:
    """What a model without a cache puts behind each position of the texts."""
    window = np.zeros((ROWS, N_CTX), np.int32)
    for row, text in enumerate(texts_):
        window[row, : len(text)] = text
    logits = forward(window)["logits"]
    if sampling.temperature == 0:
        return logits.argmax(-1)
    rows, positions = ROWS * N_CTX, np.tile(np.arange(1, N_CTX + 1), ROWS)

    def drawn() -> tf.Tensor:
        return draw(
            tf.constant(logits.reshape(rows, -1)),
            tf.constant(positions.astype(np.int32)),
            tf.fill([rows], sampling.seed),
            tf.fill([rows], sampling.temperature),
            tf.fill([rows], 0),
            tf.fill([rows], 1.0),
            tf.fill([rows], False),
        )

    return run_tf(drawn).reshape(ROWS, N_CTX)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_cached_equals_uncached(loaded, sampling):
    """Every token of every row, whatever the lengths of the other prompts are."""
    for lengths in BATCHES:
        prompts = [prompt(length) for length in lengths]
        written = texts(loaded.engine, prompts, sampling)
        whole = [ids + text for ids, text in zip(prompts, written)]
        choices = uncached_choices(loaded.forward, whole, sampling)
        for row, (ids, text) in enumerate(zip(prompts, written)):
            assert len(text) == NEW
            expected = choices[row, len(ids) - 1 :][:NEW].tolist()
            assert text == expected, (lengths, row)
        assert len(set().union(*written)) > 5  # varied, or this would prove little


def test_each_row_is_the_same_prompt_alone(loaded):
    """Beside rows that do nothing, after other texts, and beside rows that end earlier."""
    prompts = [prompt(length) for length in (70, 1, 120, 17)]
    together = texts(loaded.engine, prompts, SAMPLED)
    assert [texts(loaded.engine, [ids], SAMPLED)[0] for ids in prompts] == together
    stop = together[1][5]  # ends the second row at least, in which it may come earlier still
    stopping = SAMPLED.__class__(**(SAMPLED.__dict__ | {"stop_id": stop}))
    for text, full in zip(texts(loaded.engine, prompts, stopping), together):
        assert text == (full[: full.index(stop)] if stop in full else full)


def test_caches_as_loop_variables():
    """Each kind comes back as it was; a layer without attention has none."""
    types = ["linear", "none", "local", "linear"]
    config = make_config(n_layer=4, attention_types=[[types, 1]])
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        dims = Dimensions.from_config(config, 3)
        caches = empty_caches(GPT(mesh, config, dims, mesh_layout("x:1", "")))
    kinds = {layer: type(cache) for layer, cache in caches.items()}
    assert kinds == {0: LinearCache, 2: KeyValueCache, 3: LinearCache}
    tensors = flatten(caches)
    assert len(tensors) == len(set(tensors)) == 3 + 2 + 3
    assert unflatten(tensors, caches) == caches
