"""Peak memory does not depend on the size of the model, only on its largest tensor."""

import json
import subprocess
import sys

import numpy as np
import pytest

from configs.load import load_config
from interop.hf_configs import hf_architecture, to_hf_values
from interop.hf_target import HfTarget
from interop.tensors import DTYPES, TensorSpec
from tests.support import make_config

WIDTH, VOCABULARY, LAYERS = 1448, 5792, 4
LARGEST = 4 * WIDTH * VOCABULARY  # 32 MB, as the kernels of the feed-forward layers
MOST = 3 * LARGEST  # beside a constant
PROGRAM = """
import resource, sys
import tensorflow, ml_dtypes, safetensors, tokenizers
import interop.from_hf, interop.to_hf, interop.own_files
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
    constant = 60 * 2**20  # groups of small tensors, buffers of files
    assert peak_of(repo_root, large_model, tmp_path / "ours") < MOST + constant
    assert load_config(str(tmp_path / "ours" / "config.json")).n_embd == WIDTH
    assert peak_of(repo_root, tmp_path / "ours", tmp_path / "theirs") < MOST + constant
    assert (tmp_path / "theirs" / "model.safetensors").stat().st_size == size
