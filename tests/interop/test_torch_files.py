"""pytorch_model.bin, which models had before safetensors."""

import json
import os
import sys

import pytest

from tests.interop.support import FIXTURES, assert_same, convert, copy_model, error_of, weights
from tests.support import read_checkpoint

torch = pytest.importorskip("torch", reason="PyTorch has no release for this Python")


@pytest.fixture
def folder(fixtures_dir, tmp_path):
    """GPT-Neo with weights as PyTorch's tensors, which the tests save."""
    return copy_model(fixtures_dir, "gpt_neo", tmp_path / "model")


def tensors_of(folder):
    tensors = {name: torch.from_numpy(array) for name, array in weights(folder).items()}
    (folder / "model.safetensors").unlink()
    return tensors


def test_all_kinds_are_read_as_safetensors(folder, fixtures_dir, tmp_path, caplog):
    convert(fixtures_dir / FIXTURES["gpt_neo"], tmp_path / "expected")
    expected = read_checkpoint(str(tmp_path / "expected" / "model.ckpt-0"))
    tensors = tensors_of(folder)
    whole = folder / "pytorch_model.bin"

    torch.save(tensors, whole)
    convert(folder, tmp_path / "one")
    assert_same(read_checkpoint(str(tmp_path / "one" / "model.ckpt-0")), expected)

    torch.save(tensors, whole, _use_new_zipfile_serialization=False)
    convert(folder, tmp_path / "old")
    assert "was read whole into memory" in caplog.text
    assert_same(read_checkpoint(str(tmp_path / "old" / "model.ckpt-0")), expected)

    whole.unlink()
    files = {name: f"pytorch_model-0000{1 + n % 2}-of-00002.bin" for n, name in enumerate(tensors)}
    for file in set(files.values()):
        torch.save({name: x for name, x in tensors.items() if files[name] == file}, folder / file)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    convert(folder, tmp_path / "shards")
    assert_same(read_checkpoint(str(tmp_path / "shards" / "model.ckpt-0")), expected)


def test_bfloat16_and_float16(folder, tmp_path):
    tensors = {
        name: x.to(torch.bfloat16 if number % 2 else torch.float16)
        for number, (name, x) in enumerate(tensors_of(folder).items())
    }
    torch.save(tensors, folder / "pytorch_model.bin")
    convert(folder, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back")
    expected = {name: x.to(torch.float32).numpy() for name, x in tensors.items()}
    assert_same(weights(tmp_path / "back"), expected)


def test_damaged_files_and_other_contents(folder, tmp_path, capsys):
    path = folder / "pytorch_model.bin"
    torch.save(tensors_of(folder), path)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PK\3\4 and then nothing", b"hello" * 9):
        path.write_bytes(damaged)
        words = f"{path} must be a whole file of PyTorch; got {len(damaged):,} bytes that PyTorch"
        assert words in error_of(capsys, folder, tmp_path / "o")
    torch.save([torch.zeros(2)], path)
    assert f"{path} must hold tensors by name" in error_of(capsys, folder, tmp_path / "o")


class Code:
    """What a pickle calls when it is read by others."""

    def __reduce__(self):
        return os.mkdir, ("called",)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_not_run(zipped, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = folder / "pytorch_model.bin"
    (folder / "model.safetensors").unlink()
    torch.save({"a": Code()}, path, _use_new_zipfile_serialization=zipped)
    line = error_of(capsys, folder, tmp_path / "o")
    assert f"{path} must hold tensors alone; got a file with code, which is not run." in line
    assert not (tmp_path / "called").exists()


def test_without_pytorch(folder, tmp_path, capsys, monkeypatch):
    torch.save(tensors_of(folder), folder / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    line = error_of(capsys, folder, tmp_path / "ours")
    assert "got no module torch. Install it with: pip install torch==2.13.0" in line
