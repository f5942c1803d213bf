"""Peak memory does not depend on the size of the model, only on its largest tensor."""

import json
import subprocess
import sys

import numpy as np
import pytest

from configs.load import load_config
from interop import mtj_configs, mtj_files, mtj_leaves
from interop.hf_configs import hf_architecture, to_hf_values
from interop.hf_target import HfTarget
from interop.tensors import DTYPES, TensorSpec
from tests.interop.test_mtj import THEIR_CONFIG
from tests.support import make_config

WIDTH, VOCABULARY, LAYERS = 1448, 5792, 4
LARGEST = 4 * WIDTH * VOCABULARY  # 32 MB, as the kernels of the feed-forward layers
MOST = 3 * LARGEST  # beside a constant
CONSTANT = 60 * 2**20  # groups of small tensors, buffers of files
PROGRAM = """
import resource, sys
import tensorflow, ml_dtypes, safetensors, tokenizers
import interop.from_hf, interop.from_mtj, interop.to_hf, interop.own_files
import convert_checkpoint
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with tensorflow.Graph().as_default(), tensorflow.compat.v1.Session() as session:
    session.run(tensorflow.zeros([2]))  # what a session takes, once
before = peak()
assert convert_checkpoint.main(sys.argv[1:]) == 0
print(peak() - before)
"""


class Blanks:
    """A source of tensors of one value each, so that nothing large is kept."""

    def __init__(self, specs):
        self.specs = specs

    def read(self, name):
        return np.full(self.specs[name].shape, 0.5, self.specs[name].dtype)


@pytest.fixture(scope="module")
def large_model(tmp_path_factory):
    """A GPT-Neo of 9 tensors of 32 MB and 16 of 8 MB, in one file of 0.4 GB."""
    folder = tmp_path_factory.mktemp("large")
    config = make_config(
        n_layer=LAYERS,
        n_embd=WIDTH,
        n_vocab=VOCABULARY,
        attention_types=[[["global", "local"], LAYERS // 2]],
    )
    links = hf_architecture(config).links(config)
    specs = {
        link.theirs: TensorSpec(link.their_shape, DTYPES["fp32"])
        for link in links
        if link.theirs is not None
    }
    target = HfTarget(str(folder), str(folder), most_bytes=2**40)
    [part] = target.parts(specs)
    target.write(part, Blanks(specs))
    (folder / "config.json").write_text(json.dumps(to_hf_values(config, "float32")))
    return folder


def peak_of(repo_root, *words):
    """Bytes by which the peak of a process has grown while it converted."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.splitlines()[-1])


def test_there_and_back(large_model, repo_root, tmp_path):
    size = (large_model / "model.safetensors").stat().st_size
    assert size > 11 * LARGEST
    assert peak_of(repo_root, large_model, tmp_path / "ours") < MOST + CONSTANT
    assert load_config(str(tmp_path / "ours" / "config.json")).n_embd == WIDTH
    assert peak_of(repo_root, tmp_path / "ours", tmp_path / "theirs") < MOST + CONSTANT
    assert (tmp_path / "theirs" / "model.safetensors").stat().st_size == size


def test_from_mesh_transformer_jax(repo_root, tmp_path):
    """Two shards with an optimizer, three times the weights: zeros, which compress to nothing."""
    values = THEIR_CONFIG | {"layers": 1, "d_model": WIDTH, "n_heads": 8, "n_vocab": VOCABULARY}
    (tmp_path / "model.json").write_text(json.dumps(values))
    leaves = mtj_leaves.leaves(mtj_configs.mtj_config(str(tmp_path / "model.json"))[0])
    count = np.zeros((), np.int32)
    for shard in range(2):
        arrays = [np.broadcast_to(np.float32(0), leaf.piece(2)) for leaf in leaves]
        state = [count, *arrays, *arrays, count, *arrays, count]
        folder = tmp_path / "run" / "step_0" / f"shard_{shard}"
        folder.mkdir(parents=True)
        for number, part in enumerate(np.array_split(np.arange(len(state)), mtj_files.PIECES)):
            np.savez_compressed(folder / f"{number}.npz", *(state[place] for place in part))
    peak = peak_of(
        repo_root, tmp_path / "run", tmp_path / "ours", "--model", tmp_path / "model.json"
    )
    size = sum(path.stat().st_size for path in (tmp_path / "ours").glob("*.data*"))
    assert size > 14 * LARGEST
    assert peak < MOST + CONSTANT
