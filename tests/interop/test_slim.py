"""Checkpoints of weights alone, and GPT-Neo's own ones as the source."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from configs.load import load_config
from tests.interop.support import assert_same, config_of, convert
from tests.support import Forward, read_checkpoint

FIXTURES = {
    "adam": ("A1_local_global", ("/adam_m", "/adam_v")),
    "untied": ("A2_rotary_untied", ("/adam_m", "/adam_v")),
    "adafactor": ("A6_microbatch_adafactor", ("_slot_m", "_slot_v")),
}


@pytest.fixture(scope="module", params=FIXTURES)
def model(request, fixtures_dir):
    """Folder of a run of GPT-Neo's own code, and what slots of its optimizer end in."""
    name, slots = FIXTURES[request.param]
    return fixtures_dir / name, slots


def test_everything_is_taken_over(model, tmp_path):
    """So that a run goes on from the copy as it would have from the original."""
    folder, slots = model
    convert(folder, tmp_path / "ours", "--to", "ours", "--step", 0)
    got = read_checkpoint(str(tmp_path / "ours" / "model.ckpt-0"))
    assert any(name.endswith(slots) for name in got)
    assert_same(got, read_checkpoint(str(folder / "model.ckpt-0")))
    before = load_config(str(folder / "config.json"))
    after = load_config(str(tmp_path / "ours" / "config.json"))
    changed = {"model_path", "datasets"}
    assert after.model_dump(exclude=changed) == before.model_dump(exclude=changed)
    assert after.model_path == str(tmp_path / "ours")
    tokenizer = tmp_path / "ours" / "tokenizer.json"
    assert after.dataset == before.dataset.model_copy(update={"tokenizer_path": str(tokenizer)})
    assert tokenizer.is_file()


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_weights_alone(name, model, tmp_path):
    folder, slots = model
    dtype = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16, "fp16": np.float16}[name]
    convert(folder, tmp_path / "slim", "--slim", "--dtype", name)
    expected = {
        key: array if key == "global_step" else array.astype(dtype)
        for key, array in read_checkpoint(str(folder / "model.ckpt-12")).items()
        if not key.endswith(slots)
    }
    assert_same(read_checkpoint(str(tmp_path / "slim" / "model.ckpt-12")), expected)
    sizes = [sum(path.stat().st_size for path in place.glob("model.ckpt-12.data*"))
             for place in (folder, tmp_path / "slim")]  # fmt: skip
    assert sizes[1] < 1.01 * sizes[0] * np.dtype(dtype).itemsize / 4 / 3


def test_slim_ones_compute(fixtures_dir, tmp_path):
    """The restored weights are those of the file; the same graph then reads another checkpoint."""
    folder = fixtures_dir / "A1_local_global"
    expected = np.load(folder / "expected.npz")
    tokens = expected["tokens"][:, :-1]
    convert(folder, tmp_path / "half", "--slim", "--dtype", "bf16")
    forward = Forward(config_of(tmp_path / "half"), str(tmp_path / "half" / "model.ckpt-12"))
    rounded = forward(tokens)["logits"]
    assert 1e-4 < np.abs(rounded - expected["logits"]).max() < 0.5
    # Rounding once more changes nothing: these are the weights of the file, all of them.
    convert(tmp_path / "half", tmp_path / "again", "--slim", "--dtype", "fp32")
    forward.load(str(tmp_path / "again" / "model.ckpt-12"))
    assert (forward(tokens)["logits"] == rounded).all()
    forward.load(str(folder / "model.ckpt-12"))
    assert np.abs(forward(tokens)["logits"] - expected["logits"]).max() < 1e-4
    forward.load(str(tmp_path / "half" / "model.ckpt-12"))
    assert (forward(tokens)["logits"] == rounded).all()
