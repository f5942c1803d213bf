"""What runs on TPU cores is compiled by XLA: here XLA compiles it for the CPU, to equal numbers."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from model_fns import Placement, build_training_graph
from models.sampling import FEATURES, generate
from serving.engine import Engine
from serving.requests import Sampling
from tests.support import (
    assert_all_close,
    cpus,
    make_config,
    random_batches,
    random_variables,
    write_checkpoint,
)
from utils.garbage import no_garbage_collection
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

EVERYTHING_USUAL = {
    "relative_position_bias": True,
    "embed_dropout": 0.1,
    "attn_dropout": 0.1,
    "res_dropout": 0.1,
    "z_loss": 1e-2,
    "gradient_clipping": 0.5,
    "tokens_per_mb_per_replica": 20,
    "recompute_grad": True,
}
OPTIONS = {
    "n_embd": 12,
    "rotary_emb": True,
    "mlp_glu": True,
    "scalenorm": True,
    "num_mem_kv": 3,
    "no_weight_tie": True,
    "attention_types": [[["linear", "global"], 1]],
    "opt_name": "adafactor",
}
MIXTURE = {
    "axial_pos_emb": [2, 5],
    "macaron": True,
    "rezero": True,
    "entmax_loss": True,
    "moe_layers": [1],
    "moe_params": {"moe_num_experts": 2, "moe_hidden_size": 14},
}


def run(program, inputs, xla):
    """Values of the tensors that ``program(*inputs)`` returns, and of the weights afterwards."""
    scopes = tf.compat.v1
    arrays = [np.asarray(x) for x in inputs]
    with (
        no_garbage_collection(),
        tf.Graph().as_default(),
        scopes.variable_scope("", use_resource=True),
    ):
        placeholders = [scopes.placeholder(x.dtype, x.shape) for x in arrays]
        fetches = (
            tf.xla.experimental.compile(program, placeholders) if xla else program(*placeholders)
        )
        with scopes.Session() as session:
            session.run(scopes.global_variables_initializer())
            values = session.run(fetches, dict(zip(placeholders, arrays)))
            return values, session.run(scopes.trainable_variables())


def lowered(layout, graph, mesh):
    return mtf.Lowering(graph, {mesh: layout.placement([""])}, autostack=False)


def training_step(config, xla):
    layout = replace(MeshLayout.from_config(config), compiled=xla)

    def program(inputs, labels):
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        step = tf.constant(3)
        built = build_training_graph(mesh, config, layout, inputs, labels, step)
        lowering = lowered(layout, graph, mesh)
        updates = [lowering.lowered_operation(one) for one in built.updates.operations]
        fetched = [built.loss, built.updates.gradient_norm]
        with tf.control_dependencies(updates):
            return [tf.identity(lowering.export_to_tf_tensor(one)) for one in fetched]

    batch = [x.astype(np.int32) for x in random_batches(config, 1)[0]]
    values, weights = run(program, batch, xla)
    return [*map(np.asarray, values), *weights]


@pytest.mark.parametrize(
    "keys", [EVERYTHING_USUAL, OPTIONS, MIXTURE], ids=["usual", "options", "mixture"]
)
def test_a_training_step(keys):
    config = make_config(**keys)
    assert_all_close(training_step(config, xla=True), training_step(config, xla=False), 2e-5)


def generated(config, rows, compiled, xla):
    layout = replace(MeshLayout.from_config(config), compiled=compiled)

    def program(*values):
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        texts = generate(mesh, config, layout, dict(zip(rows, values)))
        lowering = lowered(layout, graph, mesh)
        return [lowering.export_to_tf_tensor(tensor) for tensor in texts]

    (tokens, lengths), _ = run(program, rows.values(), xla)
    return [text[:length].tolist() for text, length in zip(tokens, lengths)]


def test_generation():
    """A prompt that fills more than a chunk, local, global and linear layers, memory slots."""
    config = make_config(
        n_ctx=80,
        n_layer=3,
        attention_types=[[["global", "local", "linear"], 1]],
        num_mem_kv=2,
        relative_position_bias=True,
    )
    prompts = np.random.default_rng(0).integers(0, config.n_vocab, [3, config.n_ctx])
    values = {
        "tokens": prompts,
        "lengths": [1, 4, 70],
        "ends": [40, 80, 80],
        "stop_ids": [-1, 3, -1],
        "seeds": [1, 2, 3],
        "temperature": [0.0, 1.0, 0.7],
        "top_k": [0, 5, 0],
        "top_p": [1.0, 1.0, 0.9],
        "entmax": [False, False, True],
        "repetition_penalty": [1.0, 1.7, 1.0],
    }
    rows = {n: np.asarray(values[n], dtype.as_numpy_dtype) for n, dtype in FEATURES.items()}
    expected = generated(config, rows, compiled=False, xla=False)
    assert len(expected[0]) == 40
    assert len(expected[2]) == 80
    assert generated(config, rows, compiled=True, xla=True) == expected


def test_a_cache_that_is_not_written_in_place_holds_the_same_on_a_mesh(tmp_path):
    keys = {"n_layer": 1, "attention_types": [[["global"], 1]]}
    config = make_config(mesh_shape="x:2,y:2", layout="batch:x,heads:y", **keys)
    checkpoint = write_checkpoint(tmp_path, random_variables(config, 3))
    sampling = Sampling.from_config(config, temperature=0.8, seed=2)
    layout = MeshLayout.from_config(config)
    texts = []
    for compiled in (False, True):
        placement = Placement(replace(layout, compiled=compiled), cpus(4))
        engine = Engine(config, placement, 4)
        engine.load(checkpoint)
        texts.append(engine.generate([[4, 5, 6], [7]], sampling, samples=2))
        engine.close()
    assert texts[0] == texts[1]


def test_halves_of_numbers_are_exact():
    """Mesh TensorFlow's all-to-all would round float32 to bfloat16 (utils/tpu_mesh.py)."""
    numbers = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    numbers[0, :3] = [1e-40, np.inf, -0.0]

    def program(x):
        halves = tf.transpose(tf.bitcast(x, tf.bfloat16), [1, 0, 2])
        return [tf.bitcast(halves, tf.float32)]

    ([moved], _) = run(program, [numbers], xla=True)
    np.testing.assert_array_equal(moved.T.copy().view(np.uint32), numbers.view(np.uint32))
