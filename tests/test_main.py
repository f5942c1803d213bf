"""What main.py hands to a command, and what it says of an error; nothing is run."""

import json

import pytest

import main
from tests.support import make_config


@pytest.fixture
def seven(tmp_path, monkeypatch):
    """A config whose mesh does not divide its batch, in a folder without a log."""
    monkeypatch.setattr("utils.run_log.set_up_logging", lambda *unused: None)
    path = tmp_path / "seven.json"
    path.write_text(json.dumps(make_config().to_json_dict() | {"mesh_shape": "x:7"}))
    return str(path)


@pytest.mark.parametrize(
    ("flags", "mesh_shape"),
    [
        (["--eval"], "x:7"),
        (["--predict"], "x:7"),
        (["--export"], "x:7"),
        (["--fit_mesh"], "x:1"),
        (["--fit_mesh", "--eval"], "x:1"),
    ],
)
def test_a_mesh_that_will_be_fitted_is_not_judged_before(seven, monkeypatch, flags, mesh_shape):
    seen = []
    for mode in ("train", "eval", "predict", "export"):
        monkeypatch.setitem(main.MODES, mode, lambda config, arguments: seen.append(config))
    assert main.main(["--model", seven, *flags]) == 0
    assert [config.mesh_shape for config in seen] == [mesh_shape]


@pytest.mark.parametrize("flags", [[], ["--dry_run"], ["--print_config"]])
def test_a_mesh_that_is_used_as_it_is_is_judged(seven, capsys, flags):
    assert main.main(["--model", seven, *flags]) == 2
    assert "train_batch_size: must be a multiple of 7" in capsys.readouterr().err


FROM_A_WORKER = """From /job:worker/replica:0/task:0:
a.tfrecords; No such file or directory
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FROM_A_WORKER, "a.tfrecords; No such file or directory (on worker 1)"),
        ("a.tfrecords; No such file or directory", "a.tfrecords; No such file or directory"),
    ],
)
def test_an_error_of_another_host_names_it(seven, monkeypatch, capsys, error, line):
    def fail(*unused):
        raise RuntimeError(error)

    monkeypatch.setitem(main.MODES, "eval", fail)
    assert main.main(["--model", seven, "--eval"]) == 1
    assert capsys.readouterr().err == f"main.py: error: {line}\n"
