"""docs/finetuning.md and its notebook: the commands are the same, and the notebook runs."""

import json
import re
import shlex

import nbformat
import pytest
from nbclient import NotebookClient

from configs.load import load_config
from inspection.dry_run import dry_run_report
from tests.project_copy import copy_project
from utils.command_line import parse_arguments

PLACES = {" $DEVICES": "", "$RUNS": "runs", "$DATA": "datasets"}
MAGIC = "%%bash -eo pipefail\n"


@pytest.fixture(scope="module")
def page(repo_root):
    return (repo_root / "docs" / "finetuning.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def notebook(repo_root):
    return nbformat.read(repo_root / "docs" / "finetuning.ipynb", as_version=4)


@pytest.fixture(scope="module")
def project(repo_root, notebook, tmp_path_factory):
    """A copy of the project in which the notebook has run."""
    folder = copy_project(repo_root, tmp_path_factory.mktemp("finetuning") / "project")
    done = nbformat.from_dict(notebook)
    resources = {"metadata": {"path": str(folder / "docs")}}
    NotebookClient(done, timeout=300, kernel_name="python3", resources=resources).execute()
    (folder / "output.txt").write_text(
        "".join(
            output.get("text", "")
            for cell in done.cells
            for output in cell.get("outputs", ())
            if output.output_type == "stream"
        )
    )
    return folder


def test_the_notebook_has_the_commands_of_the_page(page, notebook):
    blocks = re.findall(r"```bash\n(.*?)\n```", page, re.DOTALL)
    cells = [cell.source for cell in notebook.cells if cell.source.startswith("%%bash")]
    assert len(blocks) > 6
    assert all(cell.startswith(MAGIC) for cell in cells)
    for short, long in PLACES.items():
        cells = [cell.replace(short, long) for cell in cells]
    assert [cell.removeprefix(MAGIC) for cell in cells] == blocks


def test_the_notebook_is_kept_without_output(notebook):
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count is None and cell.outputs == [] for cell in cells)


def test_the_run_has_the_suggested_keys_and_its_base(project):
    config = json.loads((project / "runs/mine/config.json").read_text())
    assert (config["init_from"], config["fresh_opt"]) == ("runs/base", True)
    sequences = len_of_records(project, "train")
    assert config["train_steps"] == -(-sequences // 16)
    assert config["warmup_steps"] + config["anneal_steps"] == config["train_steps"]
    assert f"{sequences:,} training sequences" in (project / "output.txt").read_text()


def len_of_records(project, name):
    [file] = (project / "datasets/mine").glob(f"{name}_*.tfrecords")
    return int(file.stem.rsplit("_", 1)[1])


def test_the_run_begins_with_what_the_base_knows_and_gets_better(project):
    lines = (project / "runs/mine/eval_nosacred.jsonl").read_text().splitlines()
    first, *_, last = [json.loads(line) for line in lines]
    assert first["global_step"] == 0
    assert first["loss"] < 6.75  # a model that knows nothing: the logarithm of 1,000 is 6.91
    assert last["loss"] < first["loss"] - 0.2


def test_a_text_and_a_model_for_transformers_come_out(project):
    assert "\nThe model" in (project / "output.txt").read_text()
    exported = json.loads((project / "runs/mine_hf/config.json").read_text())
    assert (exported["model_type"], exported["vocab_size"]) == ("gpt_neo", 1000)
    assert (project / "runs/mine_hf/model.safetensors").stat().st_size > 600_000
    assert "prose (train)" in (project / "runs/mine_hf/README.md").read_text()


def on_paper(page):
    """Words of every command about GPT-J, and what the page says that they print."""
    text = page[page.index("## GPT-J 6B on a v3-8") :]
    blocks = "\n".join(re.findall(r"```console\n(.*?)\n```", text, re.DOTALL))
    lines = blocks.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line[2:].split(">")[0]) for line in lines if line.startswith("$")]
    return commands, [line for line in lines if line.strip(" …") and line[0] != "$"]


def test_the_numbers_of_gptj_are_those_of_the_dry_run(page):
    commands, printed = on_paper(page)
    [words] = [words for words in commands if "--print_config" in words]
    arguments = parse_arguments(words[2:])
    overrides = [text for text in arguments.overrides if not text.startswith("datasets=")]
    report = dry_run_report(load_config(arguments.model, overrides)).splitlines()
    assert len(printed) > 9
    assert [line for line in printed if line not in report] == []


def test_the_commands_about_gptj_are_accepted(page):
    commands, _ = on_paper(page)
    accepted = [parse_arguments(words[2:]) for words in commands if words[1] == "main.py"]
    assert {arguments.mode for arguments in accepted} == {
        "print_config",
        "dry_run",
        "train",
        "predict",
    }
