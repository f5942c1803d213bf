"""The dry run's numbers against formulas and against a graph that is really built."""

import functools
import math
import subprocess
import sys

import pytest
import tensorflow as tf

from configs.files import shipped_configs
from configs.load import load_config
from inspection.measure import measure
from inspection.processor_view import ProcessorView
from model_fns import build_training_graph
from models.kernels.operation import KernelOperation
from scripts.generate_docs import _CONFIG_USES, config_table, measured
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

# Small, and sizes all different; 2 and 4 divide what the layouts below split.
SMALL = [
    'attention_types=[[["global","local"],1]]',
    *("n_layer=2", "n_embd=24", "n_head=4", "n_ctx=16", "n_vocab=50260"),
    *("train_batch_size=12", "eval_batch_size=12", "local_attention_radius=5"),
]
LAYOUTS = [
    ("x:1", "batch:x"),
    ("x:4", "batch:x"),
    ("x:2,y:2", "batch:x,heads:y,intermediate_expanded:y,vocab:y"),
    ("x:2,y:2", "batch:x,embd:y"),
    ("x:2,y:2", "batch:x,memory_length:y,embd:y"),
    ("x:4,y:2", "batch:x,embed_sequence:y"),
]


def small(*overrides):
    return load_config("tiny", [*SMALL, *overrides])


@functools.cache
def measured_small(*overrides):
    return measure(small(*overrides))


def build(config, mesh):
    ids = [config.train_batch_size, config.n_ctx]
    inputs, labels = (tf.compat.v1.placeholder(tf.int32, ids) for _ in range(2))
    step = tf.compat.v1.placeholder(tf.int32, [])
    return build_training_graph(mesh, config, MeshLayout.from_config(config), inputs, labels, step)


def parameters(config):
    """Counted by hand: GPT-2 without biases of queries, keys and values."""
    width = config.n_embd
    norm = 2 * width
    attention = norm + 4 * width**2 + width
    feed_forward = norm + 8 * width**2 + 5 * width
    attending = sum(kind != "none" for kind in config.attention_layers)
    embeddings = (config.n_vocab + config.n_ctx) * width
    return embeddings + attending * attention + config.n_layer * feed_forward + norm


GPTJ_PARAMETERS = 6_050_882_784
"""Each once, as in Hugging Face's model; 6,053,381,344 were published, see docs/gptj.md."""


@pytest.mark.parametrize("name", shipped_configs())
def test_parameters_of_shipped_configs(name):
    run = measured(name)
    assert run.parameters == (GPTJ_PARAMETERS if name == "gptj_6B" else parameters(run.config))
    assert sum(variable.size for variable in run.slots) == 2 * run.parameters
    if run.config.optimizer_shard_axis is None:
        assert run.memory.gradients == run.weight_bytes


@pytest.mark.parametrize("name", [name for name in shipped_configs() if name.startswith("gpt3_")])
def test_the_gpt3_family_fits_a_tpu_core(name):
    """A quarter of 16 GB stays free for what the estimate leaves out."""
    assert measured(name).peak_bytes <= 12e9


def test_gpt2_small_is_published_size_less_biases_of_queries_keys_and_values():
    assert measured("gpt2_small").parameters == 124_439_808 - 12 * 3 * 768


def test_none_layers_have_no_attention():
    config = small('attention_types=[[["global","none"],1]]')
    assert measure(config).parameters == parameters(config)


def test_variables_are_those_of_a_built_graph():
    config = small()
    with tf.Graph().as_default():
        build(config, mtf.Mesh(mtf.Graph(), "mesh"))
        built = {v.op.name: v.shape.num_elements() for v in tf.compat.v1.global_variables()}
        trained = {v.op.name for v in tf.compat.v1.trainable_variables()}
    run = measure(config)
    assert {variable.name: variable.size for variable in run.variables} == built
    assert {variable.name for variable in run.weights} == trained


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_slices_under_a_layout(mesh_shape, layout):
    run = measured_small(f"mesh_shape={mesh_shape}", f"layout={layout}")
    config = run.config
    sizes, rules = dict(config.mesh_axes), dict(config.layout_rules)
    for variable in run.variables:
        pieces = math.prod(sizes[rules[name]] for name, _ in variable.dims if name in rules)
        assert variable.slice_size * pieces == variable.size, variable.name
        assert variable.slice_bytes == 4 * variable.slice_size
        assert dict(variable.split) == {n: rules[n] for n, _ in variable.dims if n in rules}
    assert run.memory.gradients == run.weight_bytes
    assert run.slot_bytes == 2 * run.weight_bytes
    whole = 0 if config.mesh_size == 1 else 3 * 4 * run.parameters
    assert run.master_bytes == whole


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_arithmetic_does_not_depend_on_the_layout(mesh_shape, layout):
    run = measured_small(f"mesh_shape={mesh_shape}", f"layout={layout}")
    config, flops = run.config, run.flops
    width, window = config.n_embd, config.n_ctx
    weights = 12 * config.n_layer * width**2 + config.n_vocab * width
    attention = 2 * config.n_layer * window * width
    tokens = config.train_batch_size * window
    assert flops.forward == 2 * tokens * (weights + attention)
    assert flops.backward == pytest.approx(2 * flops.forward, rel=1e-3)
    total = flops.forward + flops.backward
    # embd:y splits the weights, so the scores alone are computed twice; with embed_sequence:y
    # the two halves of the mesh do all the same.
    repeated = {"batch:x,embed_sequence:y": 2.0}.get(layout, 1.0)
    if layout != "batch:x,embd:y":
        got = flops.per_processor * config.mesh_size
        assert got == pytest.approx(repeated * total, rel=1e-3)
    else:
        assert total < flops.per_processor * config.mesh_size < 1.1 * total


def test_kernels_do_the_products_that_they_declare():
    config = small("mesh_shape=x:1", "layout=batch:x")
    with tf.Graph().as_default():
        graph = mtf.Graph()
        build(config, mtf.Mesh(graph, "mesh"))
        view = ProcessorView(graph, MeshLayout.from_config(config))
        kernels = [op for op in graph.operations if isinstance(op, KernelOperation)]
        for kernel in kernels:
            counted = sum(node.flops for node in view.trace(kernel).nodes)
            assert counted == 2 * kernel.multiply_adds, kernel.name


def test_activations_grow_with_the_batch_and_shrink_with_its_split():
    def activations(batch, mesh):
        sizes = (f"train_batch_size={batch}", f"eval_batch_size={batch}")
        return measure(small(*sizes, f"mesh_shape=x:{mesh}")).memory.activations

    one, two, three = (activations(batch, 1) for batch in (12, 24, 36))
    assert three - two == pytest.approx(two - one, rel=1e-3)
    assert two > one
    assert activations(24, 2) == pytest.approx(one, rel=1e-3)


def test_what_one_layer_keeps_for_its_gradient():
    """Each further layer adds the same, at least its softmax and feed-forward activation."""

    def peak(layers):
        types = f'attention_types=[[["global"],{layers}]]'
        return measure(small(f"n_layer={layers}", types, "weight_decay=0")).memory

    few, more, most = (peak(layers) for layers in (2, 3, 4))
    config = small()
    per_layer = more.peak - few.peak
    softmax = config.train_batch_size * config.n_head * config.n_ctx**2
    hidden = config.train_batch_size * config.n_ctx * 4 * config.n_embd
    slots = 3 * 4 * 13 * config.n_embd**2  # may be read at the start of the step
    assert most.peak - more.peak == per_layer
    assert 4 * (softmax + hidden) < per_layer < 4 * (4 * softmax + 12 * hidden) + slots


def test_a_dimension_that_a_kernel_needs_whole_is_refused():
    config = small("mesh_shape=x:2", "layout=batch:x")
    object.__setattr__(config, "layout", "features_per_head:x")
    with pytest.raises(ValueError, match=r"dimension features_per_head of attention must not be"):
        measure(config)


def test_the_13b_report_fits_into_a_gigabyte(repo_root):
    probe = (
        "import resource, subprocess, sys; "
        "subprocess.run([sys.executable, *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = ["main.py", "--model", "gpt3_13B", "--dry_run"]
    done = subprocess.run(
        [sys.executable, "-c", probe, *command],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 1_000_000  # kB


def test_every_shipped_config_says_what_it_is_for():
    assert set(_CONFIG_USES) == set(shipped_configs())


def test_the_table_of_configs_is_fresh(repo_root):
    written = (repo_root / "docs" / "configs.md").read_text(encoding="utf-8")
    assert written == config_table(), "docs/configs.md is stale; run scripts/generate_docs.py"
