"""What main.py says before anything is computed: help, wrong flags and configs, inspection."""

import json
import subprocess
import sys

import pytest

import main
from configs.load import load_config
from tests.end_to_end.workshop import ROOT, STEPS

# Runs main.py and tells whether TensorFlow was needed for it.
PROBE = """
import sys
import main
try:
    code = main.main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print("tensorflow" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


def probe(folder, *words):
    """Exit code, stdout and stderr of main.py; fails if TensorFlow was imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *map(str, words)],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    *lines, imported = done.stderr.splitlines()
    assert imported == "False", done.stderr
    return done.returncode, done.stdout, "".join(f"{line}\n" for line in lines)


def one_line(result):
    """The error text of a run that was refused: exit code 2, one line, nothing on stdout."""
    assert result.code == 2, result.err
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("main.py: error: ")
    return result.err.strip().removeprefix("main.py: error: ")


# ---- without TensorFlow ------------------------------------------------------------------------


def test_help_needs_no_tensorflow(workshop):
    code, out, err = probe(workshop.folder, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: main.py ")
    for flag in ("--steps_per_checkpoint", "--prompt", "--set", "--dry_run"):
        assert flag in out


def test_config_errors_need_no_tensorflow_and_come_all_at_once(workshop):
    config = workshop.config("faulty", n_embd=15, lr_decy="cosine", layout="batch:z", lr=-1.0)
    code, out, err = probe(workshop.folder, "--model", config)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0] == f"main.py: error: {config} has 4 problems:"
    assert len(lines) == 5
    for key in ("n_embd: must be a multiple of n_head", "lr_decy: ", "layout: ", "lr: "):
        assert sum(line.strip().startswith(key) for line in lines) == 1, err
    assert "did you mean 'lr_decay'" in err
    assert "Traceback" not in err


def test_print_config_needs_no_tensorflow_and_loads_again(workshop):
    config = workshop.config("printed")
    words = ["--model", config, "--set", "lr=0.125", "--set", "mesh_shape=x:2,y:1"]
    code, out, err = probe(workshop.folder, *words, "--print_config")
    assert (code, err) == (0, "")
    copy = workshop.folder / "printed_copy.json"
    copy.write_text(out)
    loaded = load_config(str(copy))
    assert loaded == load_config(config, ["lr=0.125", "mesh_shape=x:2,y:1"])
    assert (loaded.lr, loaded.mesh_shape) == (0.125, "x:2,y:1")
    assert json.loads(out) == loaded.to_json_dict()


# ---- refusals ----------------------------------------------------------------------------------


def test_a_tpu_that_cannot_reach_the_run_is_refused(workshop, program, monkeypatch):
    monkeypatch.delenv("COLAB_TPU_ADDR", raising=False)
    message = one_line(program("--model", workshop.config("any"), "--tpu", "colab"))
    assert message.startswith("model_path must be in a bucket that the TPU's hosts reach; got ")
    assert not list(workshop.run_folder("any").glob("*"))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("lr", "--set: must have the form key=value"),
        ("=3", "--set: must have the form key=value"),
        ("n_head=3", "n_embd: must be a multiple of n_head 3"),
        ("learning_rate=1", "learning_rate: "),
        ("n_layer=two", "n_layer: "),
    ],
)
def test_wrong_overrides_are_refused(workshop, program, override, problem):
    config = workshop.config("any")
    result = program("--model", config, "--set", override)
    assert result.code == 2
    assert result.out == ""
    assert f"\n  {problem}" in result.err
    assert "Traceback" not in result.err


def test_an_unknown_model_is_refused(program):
    result = program("--model", "tinny")
    assert result.code == 2
    assert "did you mean 'tiny'?" in result.err


def test_debug_shows_a_traceback(workshop):
    result = workshop.run("--model", workshop.config("any"), "--set", "lr=-1", "--debug")
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith("Traceback (most recent call last):")
    assert "ConfigError" in result.err


def test_a_pod_config_on_one_device_names_the_way_out(program):
    assert one_line(program("--model", "gpt_neo_xl_256")) == (
        "mesh_shape must have as many processors as there are devices; got x:128,y:2 = 256 on 1 "
        "(the CPU). Add --fit_mesh to fit the mesh to the devices, name 256 with --gpu_ids, or "
        "look at the job with --dry_run."
    )


@pytest.mark.parametrize("words", [[], ["--eval"], ["--predict"]])
@pytest.mark.parametrize("devices", [["90"], ["90,91"], ["device:GPU:90", "device:GPU:91"]])
def test_a_gpu_that_is_not_there_is_an_error(trained, program, words, devices):
    config = ["--model", "trained.json", "--set", f"train_steps={STEPS + 1}"]
    message = one_line(program(*config, *words, "--gpu_ids", *devices))
    assert message.startswith("--gpu_ids must name devices that TensorFlow sees; got device:GPU:90")
    assert ("device:GPU:91 where it sees" in message) == (devices != ["90"])
    assert "leave the flag out to run on the CPU" in message


def test_missing_records_are_named_before_anything_is_built(workshop, program):
    dataset = json.loads((workshop.folder / "base.json").read_text())["datasets"][0][0]
    dataset |= {"path": "nowhere/train_*.tfrecords"}
    config = workshop.config("no_records", datasets=[[dataset, None, None, None]])
    assert one_line(program("--model", config)) == (
        "dataset tiny must match at least one record file; got none for "
        "nowhere/train_*.tfrecords. Make records with data/create_tfrecords.py or correct the "
        "dataset config's path."
    )
    assert not workshop.run_folder("no_records").exists()


def test_fewer_records_than_a_batch_are_refused(workshop, program):
    config = workshop.config("large_batch", train_batch_size=24)
    assert "got 24 with 23 sequence(s)" in one_line(program("--model", config))


# ---- inspection --------------------------------------------------------------------------------


def test_check_dataset_prints_a_report(workshop, program):
    result = program("--model", workshop.config("checked"), "--check_dataset")
    assert result.code == 0, result.err
    for shown in ("tiny", "23", "60"):
        assert shown in result.out
    assert not workshop.run_folder("checked").exists()


def test_check_dataset_fails_when_the_report_has_errors(workshop, program):
    result = program("--model", workshop.config("other_window", n_ctx=12), "--check_dataset")
    assert result.code == 2
    assert "ERROR" in result.out
    assert "datasets must be free of errors; got" in result.err


def test_predict_into_a_missing_folder_is_refused_at_once(workshop, program):
    words = ["--model", workshop.config("nowhere"), "--predict", "--out", "absent/samples.txt"]
    result = program(*words)
    assert result.code == 2
    assert "--out must be in a folder that exists; got absent/samples.txt" in result.err


def test_new_deletes_nothing_when_the_rest_is_refused(workshop, program):
    folder = workshop.run_folder("not_deleted")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((workshop.folder / "base.json").read_text())
    words = ["--new", "--yes", "--prompt", "absent"]
    result = program("--model", workshop.config("not_deleted"), *words)
    assert result.code == 2
    assert (folder / "config.json").exists()


def test_ctrl_c_before_training_is_no_traceback(workshop, monkeypatch, capsys):
    def interrupted(*unused):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "run", interrupted)
    assert main.main(["--model", workshop.config("halted")]) == 130
    assert capsys.readouterr().err == "main.py: interrupted\n"


def test_auto_layout_prints_what_a_config_may_have(workshop, program):
    keys = {"train_batch_size": 32, "eval_batch_size": 8, "mesh_shape": "x:2"}
    config = workshop.config("laid_out", layout="heads:x", **keys)
    result = program("--model", config, "--auto_layout")
    assert result.code == 0, result.err
    printed = json.loads("{" + result.out.partition("\n\n")[0] + "}")
    assert printed == {"layout": "batch:x"}
    assert load_config(workshop.config("pasted", **keys | printed)).warnings == ()
    # On one processor there is nothing to search; the devices decide.
    result = program("--model", config, "--auto_layout_and_mesh_shape", "--gpu_ids", "CPU:0")
    assert result.out.startswith('"mesh_shape": "x:1",\n"layout": "heads:x"\n')
    assert not workshop.run_folder("laid_out").exists()


def test_fit_mesh_with_print_config(workshop):
    words = ["--model", "gpt_neo_xl_256", "--fit_mesh", "--print_config"]
    code, out, err = probe(workshop.folder, *words)
    assert code == 0
    assert json.loads(out)["mesh_shape"] == "x:1,y:1"
    assert err == (
        "mesh_shape x:128,y:2 = 256 processors becomes x:1,y:1 on 1 device, the only mesh that "
        "the config allows\n"
    )


def test_fit_mesh_without_a_mesh_that_fits(program):
    message = one_line(program("--model", "gpt_neo_xl_256", "--fit_mesh", "--gpu_ids", "0,1,2"))
    assert message.startswith(
        "--fit_mesh must find sizes for the axes of mesh_shape x:128,y:2 on 3"
    )
    assert message.endswith("Name 2 device(s) with --gpu_ids, or change layout.")


def test_dry_run_prints_a_report(workshop, program):
    result = program("--model", workshop.config("planned"), "--dry_run")
    assert result.code == 0, result.err
    assert "gpt2/wte" in result.out
    assert not workshop.run_folder("planned").exists()
