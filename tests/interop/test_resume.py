"""A conversion that was interrupted goes on; one that is finished is left alone."""

import fcntl
import os
import shutil

import numpy as np
import pytest

from interop import hf_target, own_files
from interop.conversion import WORKSHOP
from tests.interop.support import (
    assert_same,
    convert,
    copy_model,
    error_of,
    run,
    save_weights,
    weights,
)
from tests.support import read_checkpoint


class KilledError(BaseException):
    """As a signal would end the process, past every handler."""


@pytest.fixture
def model(fixtures_dir, tmp_path):
    return copy_model(fixtures_dir, "gpt2", tmp_path / "model")


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of about a tensor each, both ways."""
    monkeypatch.setattr(own_files, "_GROUP_BYTES", 3000)


@pytest.fixture
def ours(model, small_parts, tmp_path):
    convert(model, tmp_path / "expected")
    return tmp_path / "expected"


def files(folder):
    """Content of all files but the card and config, which name the folder."""
    paths = [path for path in folder.iterdir() if path.is_file()]
    named = {"README.md", "config.json"}
    return {path.name: path.read_bytes() for path in paths if path.name not in named}


def killed_at(monkeypatch, owner, name, number):
    """Lets the method ``name`` end the process at its call ``number``."""
    method, calls = getattr(owner, name), []

    def dying(*arguments):
        calls.append(name)
        if len(calls) == number:
            raise KilledError
        return method(*arguments)

    monkeypatch.setattr(owner, name, dying)
    return calls


def count_calls(monkeypatch, owner, name):
    return killed_at(monkeypatch, owner, name, -1)


@pytest.mark.parametrize("number", [1, 2, 9])
def test_ours_goes_on_at_the_part(number, ours, model, tmp_path, monkeypatch):
    output = tmp_path / "output"
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        killed_at(patch, own_files.OwnTarget, "write", number)
        run(model, output)
    assert not (output / "checkpoint").exists()
    # What the kill has left behind: half a part, half a line.
    (output / WORKSHOP / f"part-{number - 1:05d}.data-00000-of-00001").write_bytes(b"half")
    with open(output / WORKSHOP / "journal.jsonl", "a") as file:
        file.write('{"part": "part-0')
    calls = count_calls(monkeypatch, own_files.OwnTarget, "write")
    convert(model, output)
    parts = len(list(ours.glob("model.ckpt-0.data-*")))
    assert parts > 15
    assert len(calls) == parts - (number - 1)
    assert files(output) == files(ours)
    assert not (output / WORKSHOP).exists()


def test_a_part_that_was_lost_is_written_again(ours, model, tmp_path, monkeypatch):
    output = tmp_path / "output"
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        killed_at(patch, own_files.OwnTarget, "finish", 1)
        run(model, output)
    lost = output / WORKSHOP / "part-00004.data-00000-of-00001"
    lost.write_bytes(lost.read_bytes()[:-4])
    calls = count_calls(monkeypatch, own_files.OwnTarget, "write")
    convert(model, output)
    assert len(calls) == 1
    assert files(output) == files(ours)


def test_a_merge_that_was_interrupted(ours, model, tmp_path, monkeypatch):
    """Some parts have moved, the index is half written."""
    output = tmp_path / "output"
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        killed_at(patch, own_files.OwnTarget, "finish", 1)
        run(model, output)
    for number, name in enumerate(sorted(path.name for path in ours.glob("*.data-*"))[:5]):
        os.replace(output / WORKSHOP / f"part-{number:05d}.data-00000-of-00001", output / name)
    (output / "model.ckpt-0.index").write_bytes(b"half")
    calls = count_calls(monkeypatch, own_files.OwnTarget, "write")
    convert(model, output)
    assert calls == []
    assert files(output) == files(ours)


def test_after_the_merge(ours, model, tmp_path, monkeypatch):
    output = tmp_path / "output"
    finish = own_files.OwnTarget.finish

    def dying(target, parts):
        finish(target, parts)
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(own_files.OwnTarget, "finish", dying)
        run(model, output)
    calls = count_calls(monkeypatch, own_files.OwnTarget, "write")
    convert(model, output)
    assert calls == []
    assert files(output) == files(ours)


@pytest.mark.parametrize(("method", "number", "left"), [("write", 3, 2), ("finish", 1, 0)])
def test_theirs_goes_on_at_the_shard(method, number, left, ours, model, tmp_path, monkeypatch):
    output, size = tmp_path / "output", ("--max_shard_size", "20KB")
    convert(ours, tmp_path / "theirs", *size)
    shards = len(list((tmp_path / "theirs").glob("*.safetensors")))
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        killed_at(patch, hf_target.HfTarget, method, number)
        run(ours, output, *size)
    if method == "finish":  # one shard has moved
        name = f"model-00001-of-{shards:05d}.safetensors"
        os.replace(output / WORKSHOP / name, output / name)
    else:
        (output / WORKSHOP / "model-00003.safetensors.partial").write_bytes(b"half")
    calls = count_calls(monkeypatch, hf_target.HfTarget, "write")
    convert(ours, output, *size)
    assert len(calls) == (shards - left if left else 0)
    assert files(output) == files(tmp_path / "theirs")
    assert_same(weights(output), weights(model))


@pytest.mark.parametrize("direction", ["ours", "theirs"])
def test_what_is_damaged_on_the_way_is_found(direction, ours, model, tmp_path, monkeypatch, capsys):
    """By reading it back; the same command then writes it again."""
    source, pattern, owner = {
        "ours": (model, "*.data-*", own_files.OwnTarget),
        "theirs": (ours, "*.safetensors", hf_target.HfTarget),
    }[direction]
    output, finish = tmp_path / "output", owner.finish

    def spoiling(target, parts):
        written = finish(target, parts)
        path = max(output.glob(pattern))
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(owner, "finish", spoiling)
        assert run(source, output) == 1
    assert "what was written must be what is read back; got another" in capsys.readouterr().err
    convert(source, output)
    if direction == "ours":
        assert files(output) == files(ours)
    else:
        assert_same(weights(output), weights(model))


def test_a_finished_conversion_is_left_alone(ours, model, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in ours.iterdir()}
    convert(model, ours)
    assert "is complete already; --overwrite converts again" in capsys.readouterr().out
    assert {path.name: path.stat().st_mtime_ns for path in ours.iterdir()} == before
    convert(model, ours, "--overwrite")
    after = {path.name: path.stat().st_mtime_ns for path in ours.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[name] > before[name] for name in after)


def test_a_finished_conversion_that_has_lost_a_file(ours, model, capsys):
    (ours / "model.ckpt-0.index").unlink()
    line = error_of(capsys, model, ours)
    assert f"got no model.ckpt-0.index in {ours}. Convert again with --overwrite." in line
    convert(model, ours, "--overwrite")
    read_checkpoint(str(ours / "model.ckpt-0"))


def test_another_model_or_other_options(ours, model, tmp_path, capsys):
    """The folder holds what it is said to hold, or is refused."""
    theirs = tmp_path / "theirs"
    convert(ours, theirs, "--max_shard_size", "20KB")
    line = error_of(capsys, ours, theirs, "--dtype", "bf16")
    assert "which holds one of other files or with other options" in line
    tensors = weights(model)
    tensors["transformer.ln_f.bias"] += np.float32(1)
    save_weights(model, tensors)
    assert "must hold this conversion or none" in error_of(capsys, model, ours)
    convert(model, ours, "--overwrite")
    # No shard of the former conversion is left behind, which would be taken for a part of it.
    convert(ours, theirs, "--overwrite")
    assert sorted(path.name for path in theirs.glob("model*")) == ["model.safetensors"]
    assert_same(weights(theirs), tensors)


def test_overwriting_spares_what_was_made_since(ours, model, capsys):
    (ours / "model.ckpt-50.index").write_bytes(b"trained")
    line = error_of(capsys, model, ours, "--overwrite")
    assert "got model.ckpt-50.index in" in line
    assert (ours / "model.ckpt-0.index").exists()


def test_one_process_at_a_time(model, tmp_path, capsys):
    workshop = tmp_path / "output" / WORKSHOP
    workshop.mkdir(parents=True)
    with open(workshop / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        line = error_of(capsys, model, tmp_path / "output")
    assert "must be written by one process at a time" in line
    convert(model, tmp_path / "output")


def test_a_disk_without_room(model, tmp_path, monkeypatch, capsys):
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    line = error_of(capsys, model, tmp_path / "output")
    assert "the disk must have room for the weights; got 10.0 kB free of 70.4 kB" in line
    assert not list((tmp_path / "output").glob("model*"))
