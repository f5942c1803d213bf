"""evaluate.py on a small model: tasks of the harness with items in local files, and of our own."""

import importlib.util
import json
import logging
import math
import sys

import pytest

from configs.load import parse_config
from evaluation.checkpoint_reports import CheckpointReports
from tests.evaluation.harness_support import convert_model, our_model, requests
from tests.interop.support import config_of
from tests.support import read_checkpoint, write_checkpoint

pytest.importorskip("lm_eval", reason="lm-evaluation-harness has no release for this Python")

LAMBADA = ["the woman of the town an the two", "of an the hat an a the", "an the of an ten"]
PIQA = [
    {"goal": "the hat", "sol1": "of the an", "sol2": "an", "label": 1},
    {"goal": "an", "sol1": "tea", "sol2": "the tea of an", "label": 0},
]
WIKITEXT = [{"page": "the of an the " * 9}, {"page": "one two"}]
WRITING = [{"question": "the an", "answer": "x"}, {"question": "of the two", "answer": "y"}]
OWN_TASK = """
task: own_writing
dataset_path: own
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["th"], max_gen_toks: 5}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


def write_lines(path, items):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


@pytest.fixture(scope="module")
def folder(fixtures_dir, tmp_path_factory):
    """With a converted model in ``ours`` and tasks in ``tasks``."""
    folder = tmp_path_factory.mktemp("tasks")
    convert_model(fixtures_dir, "gpt2", folder)
    tasks = folder / "tasks"
    write_lines(tasks / "lambada_openai" / "test.jsonl", [{"text": text} for text in LAMBADA])
    write_lines(tasks / "piqa" / "validation.jsonl", PIQA)
    write_lines(tasks / "wikitext" / "test-00000-of-00001.json", WIKITEXT)
    write_lines(tasks / "own_writing" / "test.jsonl", WRITING)
    (tasks / "own_writing.yaml").write_text(OWN_TASK)
    return folder


@pytest.fixture(scope="module")
def evaluate(repo_root):
    """The program; the library of its name may have been imported before."""
    spec = importlib.util.spec_from_file_location("evaluate_script", repo_root / "evaluate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture
def run(evaluate, folder, capsys, tmp_path, monkeypatch):
    """Runs evaluate.py on the model; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*words):
        capsys.readouterr()
        model = folder / "ours" / "config.json"
        code = evaluate(["--model", str(model), *map(str, words)])
        for handler in set(root.handlers) - set(handlers):
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def error_of(run):
    """The one line that refuses words."""

    def error_of(*words):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        line = err.splitlines()[-1]
        assert line.startswith("evaluate.py: error: ")
        return line.removeprefix("evaluate.py: error: ")

    return error_of


def tasks_of(folder):
    return ("--set", f"eval_tasks_path={folder / 'tasks'}")


def test_tasks(run, folder, tmp_path):
    out = tmp_path / "scores.json"
    names = ["lambada_openai,piqa", "wikitext", "own_writing"]
    code, text, _ = run("--tasks", *names, "--batch_size", 3, "--out", out, *tasks_of(folder))
    assert code == 0
    found = json.loads(out.read_text())
    assert (found["step"], found["limit"]) == (0, None)
    tasks = found["tasks"]
    assert {name: task["items"] for name, task in tasks.items()} == {
        "lambada_openai": 3,
        "piqa": 2,
        "wikitext": 2,
        "own_writing": 2,
    }
    ours = our_model(folder / "ours")
    pairs = [(before, f" {word}") for before, _, word in (x.rpartition(" ") for x in LAMBADA)]
    scores = ours.loglikelihood(requests("loglikelihood", pairs))
    lambada = tasks["lambada_openai"]
    expected = math.exp(-sum(score for score, _ in scores) / 3)
    assert lambada["scores"]["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert lambada["scores"]["acc"] == sum(greedy for _, greedy in scores) / 3
    assert set(lambada["standard_errors"]) == {"perplexity", "acc"}
    pages = [(item["page"],) for item in WIKITEXT]
    nats = -sum(ours.loglikelihood_rolling(requests("loglikelihood_rolling", pages)))
    length = sum(len(page) for (page,) in pages)
    wikitext = tasks["wikitext"]["scores"]
    assert wikitext["bits_per_byte"] == pytest.approx(nats / length / math.log(2), rel=1e-3)
    assert tasks["own_writing"]["scores"] == {"exact_match": 0.0}
    assert tasks["piqa"]["metrics"]["acc_norm"] == "accuracy, length-normalised"
    lines = text.splitlines()
    assert lines[0] == "| Task | Metric | Value | ± | Items | Shots |"
    assert any(line.startswith("| lambada_openai | perplexity per last word | ") for line in lines)
    heads = ("Wikitext PPL per word", "LAMBADA (OpenAI) PPL per word", "LAMBADA (OpenAI) acc")
    assert lines[-3] == f"| Model | {' | '.join(heads)} | PIQA acc | PIQA acc_norm |"
    assert lines[-1].startswith("| ours, step 0 | ")


def dataset(folder, path):
    return {
        "id": "own",
        "path": "none_*",
        "n_vocab": 97,
        "eos_id": 96,
        "tokenizer_is_pretrained": False,
        "tokenizer_path": str(folder / "ours" / "tokenizer.json"),
        "lambada_tokens_path": str(path),
    }


@pytest.mark.parametrize("kind", ["texts", "ids"])
def test_lambada_built_in(run, folder, tmp_path, kind):
    """It scores as the harness's task on the same texts, and tells which variant it is."""
    path = tmp_path / "lambada"
    if kind == "texts":
        write_lines(path, [{"text": text} for text in LAMBADA])
    else:
        tokenizer = our_model(folder / "ours")._tokenizer
        path.write_text(json.dumps(tokenizer.encode_batch(LAMBADA)))
    out = tmp_path / "scores.json"
    datasets = json.dumps([dataset(folder, path)])
    words = ["--set", f"datasets={datasets}", *tasks_of(folder), "--out", out, "--limit", 2]
    code, _, err = run("--tasks", "lambada", "lambada_openai", *words)
    assert code == 0, err
    tasks = json.loads(out.read_text())["tasks"]
    own, theirs = tasks["lambada_standard"], tasks["lambada_openai"]  # there are no capitals
    assert own["items"] == theirs["items"] == 2
    for metric in ("acc", "perplexity"):
        assert own["scores"][metric] == pytest.approx(theirs["scores"][metric], rel=1e-5)
    assert own["standard_errors"]["acc"] == pytest.approx(theirs["standard_errors"]["acc"])
    assert 1 < own["scores"]["token_perplexity"] < own["scores"]["perplexity"]


def test_lambada_with_capitals_is_openais(error_of, folder, tmp_path):
    write_lines(tmp_path / "l", [{"text": "The hat"}])
    datasets = json.dumps([dataset(folder, tmp_path / "l")])
    words = ["--set", f"datasets={datasets}", *tasks_of(folder)]
    line = error_of("--tasks", "lambada", "lambada_openai", *words)
    assert line.startswith("eval_tasks must name each task once; got lambada, which is lambada_op")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "must be a file; got "),
        ("[[1, 2", "must be JSON lines with a text each, or a JSON list of lists of token ids; "),
        ("[[1, 500]]", "got [500]"),
        ('{"words": "an"}', "KeyError: 'text'"),
        ('{"text": "an"}', "must have at least two words; got 'an' in "),
        ("", "must have at least two words; got none in "),
    ],
)
def test_damaged_lambada(error_of, folder, tmp_path, content, words):
    path = tmp_path / "l"
    if content is not None:
        path.write_text(content)
    datasets = json.dumps([dataset(folder, path)])
    assert words in error_of("--tasks", "lambada", "--set", f"datasets={datasets}")


def test_at_checkpoints(folder, tmp_path):
    """Each checkpoint adds a line to the scores of the run; the tracker reads them."""
    config = config_of(folder / "ours")
    weights = read_checkpoint(str(folder / "ours" / "model.ckpt-0"))
    other = {name: value * 1.5 for name, value in weights.items() if name != "global_step"}
    del weights["global_step"]
    write_lines(tmp_path / "lambada", [{"text": text} for text in LAMBADA])
    keys = {
        "datasets": [dataset(folder, tmp_path / "lambada")],
        "model_path": str(tmp_path / "run"),
        "eval_tasks": ["lambada", "piqa"],
        "eval_tasks_path": str(folder / "tasks"),
    }
    values = config.to_json_dict() | keys
    reports = CheckpointReports(parse_config(values), (), "7", "unused")
    for step, arrays in ((5, weights), (10, other), (15, weights)):
        (tmp_path / "run").mkdir(exist_ok=True)
        reports.report(write_checkpoint(tmp_path / "run", arrays, step))
    lines = [json.loads(x) for x in (tmp_path / "run" / "eval_7.jsonl").read_text().splitlines()]
    assert [line.pop("global_step") for line in lines] == [5, 10, 15]
    assert lines[0] == lines[2]
    names = {"lambada_standard/acc", "lambada_standard/perplexity", "piqa/acc", "piqa/acc_norm"}
    assert lines[0].keys() == names | {"lambada_standard/token_perplexity"}
    assert lines[0]["lambada_standard/perplexity"] != lines[1]["lambada_standard/perplexity"]


def test_wrong_words(error_of, folder):
    assert error_of().startswith("tasks must be named; got none. Add --tasks lambada_openai")
    assert "--limit" in error_of("--tasks", "piqa", "--limit", 0)
    assert "must be a whole number of at least 1; got '0'" in error_of("--tasks", "a", "--limit=0")
    assert "--batch_size" in error_of("--tasks", "piqa", "--batch_size", "many")
    line = error_of("--tasks", "piqa", "lambda_openai", *tasks_of(folder))
    assert line.startswith("tasks must be names that lm-evaluation-harness or eval_tasks_path know")
    assert "got lambda_openai (did you mean lambada_openai" in line
    line = error_of("--tasks", "piqa", "--set", "eval_tasks_path=nowhere")
    assert line.startswith("eval_tasks_path must be a folder; got nowhere.")


def test_data_that_are_not_there(error_of, folder, tmp_path, monkeypatch):
    """The error tells what to download, and where to put it."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    line = error_of("--tasks", "winogrande", *tasks_of(folder))
    assert line.startswith("task winogrande must have readable data; got: ")
    place = folder / "tasks" / "winogrande" / "validation.jsonl"
    assert f"Put the split validation of allenai/winogrande into {place} (or .json" in line
    tasks = tmp_path / "tasks"
    write_lines(tasks / "lambada_openai" / "train.jsonl", [{"text": "an the"}])
    words = ["--set", f"eval_tasks_path={tasks}"]
    line = error_of("--tasks", "lambada_openai", *words)
    assert "must hold its items, the split test; got train. Add test.jsonl" in line
    line = error_of("--tasks", "piqa", "--num_fewshot", 2, *tasks_of(folder))
    assert "must hold solved examples, the split train; got validation. Add train.jsonl" in line
    (tasks / "lambada_openai" / "test.csv").write_text("text\nan the\n")
    assert "must be of one kind; got csv, json." in error_of("--tasks", "lambada_openai", *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (json.dumps(PIQA[0] | {"sol2": "an" * 99}), "must fit into the window of 32 tokens; got "),
        (json.dumps({"goal": "an"}), "task piqa must fit its data; got: "),
        (
            '{"goal": ',
            "JSON parse error: Invalid value. in row 0. Mend the task's file or its data",
        ),
        ("", "data files of task piqa must have at least one item; got none in "),
    ],
)
def test_items_that_cannot_be_scored(error_of, tmp_path, line, words):
    path = tmp_path / "tasks" / "piqa" / "validation.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert words in error_of("--tasks", "piqa", "--set", f"eval_tasks_path={tmp_path / 'tasks'}")


def test_solved_examples(run, error_of, folder, tmp_path):
    tasks = tmp_path / "tasks"
    write_lines(tasks / "piqa" / "validation.jsonl", PIQA)
    write_lines(tasks / "piqa" / "train.jsonl", PIQA)
    words = ["--tasks", "piqa", "--set", f"eval_tasks_path={tasks}"]
    line = error_of(*words, "--num_fewshot", 2)
    assert line.startswith(
        "num_fewshot must be below the number of examples of task piqa, 2; got 2"
    )
    code, out, _ = run(*words, "--num_fewshot", 1)
    assert code == 0
    assert out.splitlines()[2].endswith(" | 2 | 1 |")


def test_a_metric_of_another_library(error_of, tmp_path):
    """Which has the name of evaluate.py."""
    tasks = tmp_path / "tasks"
    write_lines(tasks / "own_writing" / "test.jsonl", WRITING)
    (tasks / "own_writing.yaml").write_text(OWN_TASK.replace("exact_match", "meteor"))
    line = error_of("--tasks", "own_writing", "--set", f"eval_tasks_path={tasks}")
    assert line.startswith("metrics of task own_writing must be lm-evaluation-harness's own; got m")


def test_without_the_harness(error_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.evaluator", None)
    monkeypatch.delattr("lm_eval.evaluator", raising=False)
    line = error_of("--tasks", "piqa")
    assert line.startswith("lm_eval must be installed to score tasks (Python 3.10 or 3.11); got: ")
    assert line.endswith("Install it with: pip install -r requirements-eval.txt")
