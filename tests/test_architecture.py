"""The rules of the house (docs/layout.md), read off the source itself."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.names import DIMENSION_NAMES
from models.dimensions import Dimensions
from tests.support import make_config
from utils.mesh_tensorflow import mtf

ROOT = Path(__file__).resolve().parents[1]

# Who stands on whom: a room imports itself and rooms of lower rank, never its neighbours.
RANKS = {
    "configs": 0,
    "utils": 1,
    "data": 2,
    "models": 2,
    "update_rules": 3,
    "optimizers": 4,
    "inputs": 5,
    "model_fns": 5,
    "inspection": 6,
    "interop": 6,
    "serving": 6,
    "tracking": 6,
    "evaluation": 7,
    "commands": 8,
    "benchmarks": 9,
    "convert_checkpoint": 9,
    "evaluate": 9,
    "main": 9,
    "run_experiment": 9,
    "scripts": 9,
    "serve": 9,
}
OUTSIDE = {"conftest", "tests"}  # they may use everything, and nothing uses them
NO_SOURCE = {"datasets", "logs", "runs", "tools"}  # users' files, and programs of others

ENTRY_SCRIPTS = {
    "main.py",
    "run_experiment.py",
    "serve.py",
    "evaluate.py",
    "convert_checkpoint.py",
    "data/create_tfrecords.py",
    "data/create_tfrecords_beam.py",
    "data/train_tokenizer.py",
}
ENTRY_FOLDERS = {"benchmarks", "scripts"}
LONGEST_FILE = 420  # lines


def source_files(tests: bool = False) -> list[str]:
    """Python files by their path from the root."""
    files = [path.name for path in ROOT.glob("*.py")]
    for folder in ROOT.iterdir():
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in NO_SOURCE:
            files += [str(path.relative_to(ROOT)) for path in folder.rglob("*.py")]
    return sorted(file for file in files if tests or room(file) not in OUTSIDE)


def room(file: str) -> str:
    """Top-level name to which a file belongs."""
    return Path(file).parts[0].removesuffix(".py")


def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), file)


def imports(file: str) -> Iterator[str]:
    """Dotted names of all imported modules, those inside functions included."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield node.module
            # `from package import module` may name a module.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_below(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_every_room_has_its_place():
    assert {room(file) for file in source_files()} <= RANKS.keys()


def test_imports_go_downwards():
    """Through all rooms; models and data, inputs and model_fns do not know each other."""
    wrong = []
    for file in source_files():
        here = room(file)
        for module in imports(file):
            there = module.split(".")[0]
            if there in OUTSIDE:
                wrong.append(f"{file} imports {module}")
            if there in RANKS and there != here and RANKS[there] >= RANKS[here]:
                wrong.append(f"{file} imports {module}")
    assert not wrong


def test_the_test_sees_what_it_forbids():
    """The rooms are linked by as many imports as one can see."""
    linked = {
        (room(file), module.split(".")[0]) for file in source_files() for module in imports(file)
    }
    for pair in [
        ("main", "commands"),  # inside a function
        ("commands", "configs"),
        ("commands", "serving"),  # inside a function
        ("evaluation", "serving"),
        ("serving", "model_fns"),
        ("model_fns", "models"),
        ("model_fns", "optimizers"),
        ("optimizers", "update_rules"),
        ("inputs", "data"),
        ("models", "utils"),
        ("utils", "configs"),
    ]:
        assert pair in linked


@pytest.mark.parametrize("library", ["tensorflow", "mesh_tensorflow", "numpy"])
def test_configs_import_no_numeric_library(library):
    """So that --help and every config error answer at once."""
    users = [
        file
        for file in source_files()
        if room(file) == "configs" and any(is_below(name, library) for name in imports(file))
    ]
    assert not users


def test_mesh_tensorflow_is_imported_in_one_place():
    """The one that repairs it first."""
    users = {
        file
        for file in source_files(tests=True)
        if any(is_below(name, "mesh_tensorflow") for name in imports(file))
    }
    assert users == {"utils/mesh_tensorflow.py"}


@pytest.mark.parametrize("library", ["mesh_tensorflow.transformer", "tensorflow_datasets", "gin"])
def test_libraries_that_are_not_to_be_used(library):
    """They conflict with the pinned versions and are slow to load."""
    assert not [
        file
        for file in source_files(tests=True)
        if any(is_below(name, library) for name in imports(file))
    ]


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute expression, else the empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def uses_of(file: str, library: str) -> set[str]:
    """Full dotted names of what a file takes from ``library``."""
    names = {dotted(node) for node in ast.walk(tree(file)) if isinstance(node, ast.Attribute)}
    names = {name for name in names if name.startswith(f"{library}.")}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


# TensorFlow that computes nothing.
TYPES = {"tf.DType", "tf.Tensor", "tf.bfloat16", "tf.bool", "tf.float32", "tf.int32", "tf.uint32"}
# Raw TensorFlow in a model outside models/kernels, and why it may be there.
RAW_TENSORFLOW = {
    # Every function there is the body of one kernel.
    "models/activations.py": None,
    # Initial values: they run once, outside the model.
    "models/weights.py": {
        "tf.compat.v1.constant_initializer",
        "tf.compat.v1.ones_initializer",
        "tf.compat.v1.random_normal_initializer",
        "tf.compat.v1.truncated_normal_initializer",
        "tf.compat.v1.zeros_initializer",
    },
    # Bodies of the integer kernels that move the text on (one line each), and the two
    # preparations of fed values before they get names.
    "models/sampling.py": {
        "tf.cast",
        "tf.equal",
        "tf.gather",
        "tf.logical_and",
        "tf.minimum",
        "tf.newaxis",
        "tf.not_equal",
        "tf.pad",
        "tf.range",
        "tf.reduce_max",
        "tf.where",
        "tf.zeros_like",
    },
}


def test_raw_tensorflow_of_a_model_is_in_its_kernels():
    for file in source_files():
        if room(file) == "models" and not file.startswith("models/kernels/"):
            allowed = RAW_TENSORFLOW.get(file, set())
            if allowed is not None:
                assert uses_of(file, "tf") <= TYPES | allowed, file


def test_nothing_uses_slicewise_of_mesh_tensorflow():
    """Its gradient is wrong; see models/kernels/operation.py."""
    assert not [file for file in source_files() if "mtf.slicewise" in uses_of(file, "mtf")]


def test_only_one_module_spells_dimension_names():
    rooms = {"models", "model_fns", "optimizers", "update_rules", "serving", "evaluation"}
    wrong = [
        f"{file}:{node.lineno} {node.value}"
        for file in source_files()
        if room(file) in rooms and file != "models/dimensions.py"
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Constant) and node.value in DIMENSION_NAMES
    ]
    assert not wrong


def built_dims(config):
    """Name and size of each dimension that a model of ``config`` has, by attribute."""
    dims = Dimensions.from_config(config, batch_size=3)
    parts = [dims] if dims.mixture is None else [dims, dims.mixture]
    return {
        field.name: (value.name, value.size)
        for part in parts
        for field in dataclasses.fields(part)
        if isinstance(value := getattr(part, field.name), mtf.Dimension)
    }


def test_dimension_names_are_those_of_the_config():
    """They are what `layout` speaks of; some layers have more, which no layout may name."""
    plain, mixture = (
        {name for name, _ in built_dims(config).values()} & set(DIMENSION_NAMES)
        for config in (make_config(), make_config(moe_layers=[0]))
    )
    assert plain == set(DIMENSION_NAMES) - {"experts"}
    assert mixture == set(DIMENSION_NAMES)


def test_sizes_of_the_dimensions():
    config = make_config(n_head=5, n_embd=35, n_ctx=11, n_vocab=23)
    dims = Dimensions.from_config(config, batch_size=3)
    assert built_dims(config) == {
        "batch": ("batch", 3),
        "sequence": ("sequence", 11),
        "memory_length": ("memory_length", 11),
        "embed_sequence": ("embed_sequence", 11),
        "embd": ("embd", 35),
        "heads": ("heads", 5),
        "features_per_head": ("features_per_head", 7),
        "heads_and_features": ("heads", 35),
        "intermediate_expanded": ("intermediate_expanded", 140),
        "vocab": ("vocab", 23),
    }
    chunk = dims.with_sequence(4).with_cache(64)
    assert (chunk.sequence.name, chunk.sequence.size) == ("sequence", 4)
    # Written position by position, so that no layout may name it.
    assert chunk.memory_length.size == 64
    assert chunk.memory_length.name not in DIMENSION_NAMES


def process_uses(file: str) -> set[str]:
    """What a file does that belongs to an entry script."""
    found = uses_of(file, "sys") & {"sys.exit", "sys.argv", "sys.stdout"}
    for node in ast.walk(tree(file)):
        name = ""
        if isinstance(node, ast.Call):
            name = dotted(node.func)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            name = dotted(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        found |= {name} & {"print", "exit", "quit", "os._exit", "SystemExit"}
    return found


def test_only_entry_scripts_print_exit_and_read_the_command_line():
    for file in source_files():
        if file not in ENTRY_SCRIPTS and room(file) not in ENTRY_FOLDERS:
            assert process_uses(file) == set(), file


def test_top_level_names():
    for name in [
        "README.md",
        "configs",
        "data",
        "docs",
        "evaluation",
        "inputs.py",
        "inspection",
        "main.py",
        "model_fns.py",
        "models",
        "optimizers.py",
        "requirements.txt",
        "scripts",
        "serving",
        "tests",
        "update_rules",
        "utils",
    ]:
        assert (ROOT / name).exists(), name
    for drawer in ("misc.py", "helpers.py"):
        assert not [file for file in source_files() if Path(file).name == drawer]


def test_files_are_short():
    too_long = {}
    for file in source_files():
        lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
        if lines > LONGEST_FILE:
            too_long[file] = lines
    assert not too_long


def test_every_module_says_what_it_is_for():
    assert not [file for file in source_files() if not ast.get_docstring(tree(file))]
