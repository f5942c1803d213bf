"""What is wrong with a checkpoint of Mesh Transformer JAX is named before anything is written."""

import json
import zipfile

import numpy as np
import pytest

from interop.mtj_configs import DEFAULT_MODEL
from tests.interop import mtj
from tests.interop.support import convert, error_of
from tests.interop.test_mtj import SPARE, THEIR_CONFIG

WIDTH, LAYERS = THEIR_CONFIG["d_model"], THEIR_CONFIG["layers"]
VOCABULARY = 101 + SPARE


def blank_variables():
    """Weights of THEIR_CONFIG, all zero."""
    inner, head = 4 * WIDTH, "gpt2/wte_final_linear/conv1d_main/linear_out"
    shapes = {"gpt2/wte": (VOCABULARY, WIDTH), f"{head}/kernel": (WIDTH, VOCABULARY)}
    shapes[f"{head}/bias"] = (VOCABULARY,)
    for layer in range(LAYERS):
        scope, mlp = f"gpt2/h{layer}", f"gpt2/h{layer}/mlp/conv1d_main"
        shapes |= {f"{scope}/attn/{name}": (WIDTH, WIDTH) for name in "qkvo"}
        shapes |= {f"{mlp}/c_fc/kernel": (WIDTH, inner), f"{mlp}/c_fc/bias": (inner,)}
        shapes |= {f"{mlp}/c_proj/kernel": (inner, WIDTH), f"{mlp}/c_proj/bias": (WIDTH,)}
        shapes |= {f"{scope}/norm_1/{name}": (WIDTH,) for name in "gb"}
    shapes |= {f"gpt2/ln_f/{name}": (WIDTH,) for name in "gb"}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def run_folder(tmp_path):
    """A slim checkpoint in two shards; theirs.json beside it is its config."""
    (tmp_path / "theirs.json").write_text(json.dumps(THEIR_CONFIG))
    mtj.write_mtj(tmp_path / "run", blank_variables(), 2)
    return tmp_path / "run"


@pytest.fixture
def refusal(run_folder, tmp_path, capsys):
    """The line that the conversion is refused with; nothing is written then."""

    def line(*words, **keys):
        (tmp_path / "theirs.json").write_text(json.dumps(THEIR_CONFIG | keys))
        model = () if "--model" in words else ("--model", tmp_path / "theirs.json")
        text = error_of(capsys, run_folder, tmp_path / "ours", *model, *words)
        assert not (tmp_path / "ours").exists()
        return text

    return line


def test_missing_files(run_folder, refusal):
    shards = [run_folder / "step_7" / f"shard_{number}" for number in range(2)]
    (shards[1] / "3.npz").rename(run_folder / "kept")
    assert "must have the files 0.npz to 15.npz; got no shard_1/3.npz in" in refusal()
    (run_folder / "kept").rename(shards[1] / "3.npz")
    shards[0].rename(run_folder / "kept")
    assert "got no shard_0 beside shard_1 in" in refusal()
    (run_folder / "kept").rename(shards[0])
    shards[1].rename(run_folder / "kept")
    line = refusal()  # the config says it
    assert "must have the 2 shards that cores_per_replica in" in line
    line = refusal(cores_per_replica=None)  # the shapes say it
    assert "must have all of its 2 shards, since each has 52 of 104 rows of the embedding" in line
    assert "got 1 in" in line


def test_cut_and_damaged_files(run_folder, refusal, tmp_path, capsys):
    path = run_folder / "step_7" / "shard_1" / "2.npz"
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    line = refusal()
    assert f"{path} must be a whole npz file; got: File is not a zip file" in line
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.npy", b"none")
    assert f"{path} must be a whole npz file" in refusal()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("arr_0.npy", b"\x93NUMPY\x01\x00")
    assert f"{path} must be a whole npz file" in refusal()
    # A damage within the numbers is found by their checksum, when they are read.
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    line = error_of(capsys, run_folder, tmp_path / "ours", "--model", tmp_path / "theirs.json")
    assert f"{path} must be a whole npz file; got: Bad CRC-32" in line


def test_leaves_of_another_config(run_folder, refusal):
    line = refusal(layers=4)
    assert "must have the 47 leaves of the config's weights and step, or 141 with its" in line
    assert "optimizer; got 37 in" in line
    line = refusal(d_model=64)
    assert "embedding_shard/linear/w [52, 32] in place of [52, 64]" in line
    assert line.count(" in place of ") == 5  # and the number of all of them
    assert "35 of another shape: " in line
    assert len(line) < 800
    line = refusal("--model", DEFAULT_MODEL)
    assert "must have the 287 leaves of the config's weights and step, or 861 with its" in line


def test_sizes_that_shards_cannot_divide(run_folder, refusal):
    """With 103 rows each of two shards would seem to have 51, as those of 102 have."""
    line = refusal(n_vocab=VOCABULARY - 1)
    assert "n_vocab, d_model must be multiples of the 2 shards in" in line
    assert "got n_vocab 103. Name the config" in line


def test_shapes_of_weights_are_compared_before_those_of_moments(run_folder, refusal):
    blank = blank_variables()
    mtj.write_mtj(run_folder, blank, 2, step=8, moments=(blank, blank))
    line = refusal(d_model=64)
    assert " of another shape: " in line
    assert "mu " not in line


def test_shards_of_several_checkpoints(run_folder, refusal):
    path = run_folder / "step_7" / "shard_1" / "15.npz"
    arrays = list(np.load(path).values())
    np.savez(path, *arrays, arrays[-1])
    assert "all shards must have as many leaves; got 37 in shard_0 and 38 in shard_1" in refusal()
    np.savez(path, *arrays[:-1], np.float32(7))
    line = refusal()
    assert "a count of updates must be a whole number; got float32 [] at position 36" in line
    arrays[0] = arrays[0][..., :-1]
    np.savez(path, *arrays)
    assert "1 of another shape: projection_shard/" in refusal()


WRONG_KEYS = [
    ({"seq": None}, "must say layers, d_model, n_heads, n_vocab, seq, norm, pe; got no seq."),
    ({"norm": "layernorm-desync"}, "norm must be one of layernorm, layernorm-nobias, rmsnorm"),
    ({"norm": "scalenorm-bias"}, "got \"scalenorm-bias\" in"),
    ({"pe": "sinus"}, "pe must be one of rotary, t5, fixed to be converted; got \"sinus\""),
    ({"pe_rotary_dims": 18}, "rotary_dim"),
    ({"n_heads": 5}, "n_embd: must be a multiple of n_head 5"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "words"), WRONG_KEYS)
def test_configs_of_theirs(keys, words, refusal):
    assert words in refusal(**keys)


def test_configs_of_ours_that_it_has_not(refusal):
    line = refusal("--model", "gpt3_small_125M")
    assert "the config of a model that it has; got " in line
    assert "parallel_residual false" in line


def test_steps(run_folder, refusal):
    assert "--step must be that of a checkpoint in" in refusal("--step", 8)
    (run_folder / "meta.json").write_text(json.dumps({"step": 9, "checkpoints": [9]}))
    line = refusal()
    assert "the step in" in line
    assert "got 9, and there is only 7. Name another one with --step." in line


def test_a_folder_of_another_step(run_folder, tmp_path, caplog):
    (run_folder / "step_7").rename(run_folder / "step_8")
    convert(run_folder, tmp_path / "ours", "--model", tmp_path / "theirs.json")
    assert "is called the step 8, and its state says that the weights have seen 7 up" in caplog.text


def test_an_optimizer_that_the_config_has_not(run_folder, refusal, tmp_path):
    blank = blank_variables()
    mtj.write_mtj(run_folder, blank, 2, step=8, moments=(blank, blank))
    config = {
        "model_path": "runs/a", "n_vocab": VOCABULARY, "n_embd": WIDTH, "n_head": 2, "n_ctx": 32,
        "n_layer": LAYERS, "parallel_residual": True, "attention_bias": "none",
        "scaled_attention": True, "rotary_emb": True, "rotary_interleaved": True,
        "no_weight_tie": True, "final_norm": True, "opt_name": "adafactor", "train_steps": 3,
        "train_batch_size": 2,
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(config))
    line = refusal("--model", tmp_path / "run.json")
    assert "opt_name must be adam to take Adam's moments; got adafactor." in line
