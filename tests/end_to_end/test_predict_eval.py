"""Evaluation and generation through the command line, alone and at the checkpoints of a run."""

import io
import json
import math
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from configs.load import load_config
from data.records import read_records
from data.tokenizers import load_tokenizer
from model_fns import Placement
from serving.engine import Engine
from serving.generation import Generation
from serving.prompts import read_prompt
from serving.requests import Sampling
from serving.samples import sample_texts
from tests.end_to_end.workshop import N_CTX, STEPS, STEPS_PER_CHECKPOINT, Result, once
from utils.mesh import MeshLayout

KEYS = {
    "bits per byte",
    "loss",
    "mean_logits",
    "perplexity",
    "global_step",
    "cross_entropy",
    "tokens",
    "bytes",
}
PROMPT, PROMPT_TOKENS = "the an", 4
END = "<|endoftext|>"
NEW_TOKENS = 6  # predict_max_steps of the config
ROOM = N_CTX - NEW_TOKENS


@pytest.fixture(scope="module")
def tokenizer(workshop):
    return Tokenizer.from_file(str(workshop.folder / "tokenizer.json"))


@pytest.fixture
def prompt_file(tmp_path):
    def write(content):
        path = tmp_path / "prompt.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def predict(program, *words):
    result = program("--model", "trained.json", "--predict", *words)
    assert result.code == 0, result.err
    return result


def decode(tokenizer, ids):
    return tokenizer.decode(list(ids), skip_special_tokens=False)


# ---- evaluation --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held_out(workshop, tokenizer):
    """Labels of the held-out records, and the bytes of the text that they stand for."""
    records = [
        record
        for file in sorted((workshop.folder / "records").glob("eval_*"))
        for record in read_records(str(file))
    ]
    assert len(records) == 10
    stream = [int(i) for record in records for i in record]
    # The records are one stream cut in pieces; the first id of each is never predicted.
    assert "Ã" not in {tokenizer.id_to_token(int(record[0])) for record in records}
    lead = sum(len(decode(tokenizer, [record[0]]).replace(END, "").encode()) for record in records)
    text = decode(tokenizer, stream).replace(END, "")
    assert "�" not in text
    assert "é" in text
    return np.array(records)[:, 1:], len(text.encode()) - lead


@pytest.fixture(scope="module")
def evaluated(trained, workshop):
    """Scores of the run ``trained``; evaluation printed them and nothing else."""

    def make():
        return workshop.run("--model", "trained.json", "--eval")

    result = Result(*once(workshop, "evaluated", make))
    assert result.code == 0, result.err
    assert result.out.count("\n") == 1
    return json.loads(result.out)


def test_scores_agree_with_each_other_and_with_the_text(evaluated, workshop, held_out):
    labels, byte_count = held_out
    assert evaluated.keys() == KEYS
    assert evaluated["global_step"] == STEPS
    assert evaluated["tokens"] == labels.size == 110
    assert evaluated["bytes"] == byte_count
    cross_entropy = evaluated["cross_entropy"]
    assert evaluated["perplexity"] == pytest.approx(math.exp(cross_entropy), rel=1e-12)
    bits = cross_entropy * labels.size / math.log(2)
    assert evaluated["bits per byte"] == pytest.approx(bits / byte_count, rel=1e-12)
    assert 0 < evaluated["loss"] - cross_entropy < 0.1  # z-loss, 1e-4 log² z
    # It has learned. How much hangs on the processor: its roundings grow over so many steps.
    assert cross_entropy < math.log(60) - 0.5
    file = workshop.run_folder("trained") / "eval_nosacred.jsonl"
    assert json.loads(file.read_text().splitlines()[0]) == evaluated


def test_scores_are_appended_under_the_id_of_the_run(evaluated, workshop, program):
    file = workshop.run_folder("trained") / "eval_17.jsonl"
    file.write_text("{}\n")
    result = program("--model", "trained.json", "--eval", "--sacred_id", "17")
    assert result.out != ""
    assert file.read_text() == "{}\n" + result.out
    assert json.loads(result.out) == evaluated


def test_the_batch_does_not_change_the_scores(evaluated, program):
    words = ["--eval", "--set", "eval_batch_size=7"]
    scores = json.loads(program("--model", "trained.json", *words).out)
    for key in KEYS:
        assert scores[key] == pytest.approx(evaluated[key], rel=1e-6), key


def test_eval_steps_limits_the_batches(evaluated, program):
    words = ["--eval", "--set", "eval_steps=2", "--set", "eval_batch_size=3"]
    scores = json.loads(program("--model", "trained.json", *words).out)
    assert scores["tokens"] == 2 * 3 * N_CTX


def test_a_mesh_that_is_too_large_is_fitted_with_a_notice(evaluated, program):
    mesh = ["--set", "mesh_shape=x:2,y:2", "--set", "layout=batch:x,heads:y"]
    result = program("--model", "trained.json", "--eval", *mesh)
    assert result.code == 0
    assert json.loads(result.out) == evaluated
    assert (
        "mesh_shape x:2,y:2 = 4 processors does not fit 1 device(s); running on one" in result.err
    )


@pytest.mark.parametrize("mode", ["--eval", "--export", "--predict"])
def test_a_missing_checkpoint_is_named(workshop, program, mode):
    result = program("--model", workshop.config("never_trained"), mode)
    assert result.code == 2
    assert result.out == ""
    assert result.err == (
        "main.py: error: model_path must hold a checkpoint; got none in runs/never_trained. Train "
        "first, or correct model_path.\n"
    )


def test_other_layers_than_the_checkpoint_are_named(trained, workshop, program):
    words = ["--set", "n_layer=3", "--set", "attention_types=null"]
    result = program("--model", "trained.json", "--eval", *words)
    assert result.code == 2
    assert result.out == ""
    message = result.err.splitlines()[-1]
    assert message == (
        "main.py: error: the model must stay that of runs/trained/config.json, with which the "
        'weights were trained; got n_layer 3 (was 2), attention_types null (was [[["global", '
        '"local"], 1]]). Set it back, or use another model_path.'
    )


@pytest.mark.parametrize("mode", ["--eval", "--predict"])
def test_weights_of_equal_shapes_are_not_taken_for_another_model(trained, program, mode):
    words = ["--set", "n_head=7", "--set", "activation_function=relu"]
    result = program("--model", "trained.json", mode, *words)
    assert result.code == 2
    assert result.out == ""
    assert 'got n_head 7 (was 2), activation_function "relu" (was "gelu")' in result.err


# ---- generation --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def continue_prompt(trained, workshop):
    """Continues a prompt as --predict does, on a graph that is built once."""
    config = load_config(str(workshop.folder / "trained.json"))
    tokenizer = load_tokenizer(str(workshop.folder / "tokenizer.json"), is_pretrained=False)
    engine = Engine(config, Placement(MeshLayout.from_config(config), ("",)), 1, tokenizer)
    engine.load(str(workshop.run_folder("trained") / f"model.ckpt-{STEPS}"))

    def sample(prompt, **settings):
        return sample_texts(engine, prompt, Sampling.from_config(config, **settings), 1)

    yield sample
    engine.close()


def test_samples_go_to_stdout_and_logs_to_stderr(trained, workshop, prompt_file, tokenizer):
    command = ["--model", "trained.json", "--predict", "--prompt", prompt_file(PROMPT + "\n")]
    result = workshop.run(*command, "--set", "mesh_shape=x:2")
    assert result.code == 0
    assert result.out.startswith(PROMPT)
    assert result.out.endswith("\n")
    ids = tokenizer.encode(result.out[:-1]).ids
    assert PROMPT_TOKENS < len(ids) <= PROMPT_TOKENS + NEW_TOKENS
    assert "does not fit" in result.err
    assert "does not fit" not in result.out
    assert "Traceback" not in result.err


def test_a_file_and_standard_input_and_out_give_the_same_text(
    trained, program, prompt_file, tmp_path, monkeypatch
):
    from_file = predict(program, "--prompt", prompt_file(PROMPT)).out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{PROMPT}\n".encode())))
    written = predict(program, "--prompt", "-", "--out", tmp_path / "samples.txt")
    assert written.out == ""
    assert (tmp_path / "samples.txt").read_text() == from_file
    assert from_file.startswith(PROMPT)


def test_samples_are_numbered_and_repeat_with_their_seed(trained, program, prompt_file):
    words = ["--prompt", prompt_file(PROMPT), "--temperature", "1", "--num_samples", "3"]
    texts = [predict(program, *words, "--seed", seed).out for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    parts = texts[0].split("=" * 20)
    assert [part.strip() for part in parts[1::2]] == ["sample 1", "sample 2", "sample 3"]
    samples = [part.strip("\n") for part in parts[2::2]]
    assert all(sample.startswith(PROMPT) for sample in samples)
    assert len(set(samples)) > 1


def test_flags_win_over_the_config(trained, program, prompt_file, tokenizer):
    words = ["--prompt", prompt_file(PROMPT), "--max_new_tokens", "1"]
    greedy = predict(program, *words, "--temperature", "0", "--seed", "1").out
    assert predict(program, *words, "--top_k", "1", "--seed", "3").out == greedy
    assert len(tokenizer.encode(greedy[:-1]).ids) <= PROMPT_TOKENS + 1


def test_entmax_sampling_draws_other_tokens(trained, program, prompt_file):
    words = ["--prompt", prompt_file(PROMPT), "--num_samples", "8", "--temperature", "2"]
    plain, entmax = (predict(program, *words, *more).out for more in ([], ["--entmax_sampling"]))
    assert entmax.count("= sample ") == plain.count("= sample ") == 8
    assert entmax != plain


def test_stop_strings_and_the_penalty(trained, program, prompt_file):
    words = ["--prompt", prompt_file(PROMPT), "--temperature", "0"]
    whole = predict(program, *words).out[:-1]
    written = whole.removeprefix(PROMPT)
    stop = written[2:5]
    cut = PROMPT + written[: written.index(stop)]
    escaped = stop.replace("\\", "\\\\").replace("\n", "\\n")
    assert predict(program, *words, "--stop", escaped).out == cut + "\n"
    # Several samples are written when all are there, in the same way.
    several = predict(program, *words, "--stop", escaped, "--num_samples", "2").out
    assert several.count(cut + "\n") == 2
    assert predict(program, *words, "--stop", "never written").out == whole + "\n"
    assert predict(program, *words, "--repetition_penalty", "5").out != whole + "\n"
    by_key = predict(program, *words, "--set", "repetition_penalty=5.0").out
    assert by_key == predict(program, *words, "--repetition_penalty", "5").out


class Terminal(io.BytesIO):
    """Standard input at which someone sits, who types what it was made of."""

    buffer = property(lambda self: self)

    def isatty(self):
        return True


def test_prompts_that_are_typed(trained, program, prompt_file, monkeypatch):
    words = ["--temperature", "0", "--max_new_tokens", "5"]
    answers = {
        text: predict(program, "--prompt", prompt_file(text), *words).out.removeprefix(text)
        for text in (PROMPT, "Gé")
    }
    first, second = answers.values()
    for end in ("\nnot read\n", ""):  # an empty line, and Ctrl-D
        typed = Terminal(f"{PROMPT}\nGé\n{end}".encode())
        monkeypatch.setattr(sys, "stdin", typed)
        shown = predict(program, "--prompt", "-", *words).out
        assert shown == f"> {first}> {second}> "
        assert typed.read().decode() == end[1:]
    # Neither a line that cannot be read nor Ctrl-C ends the session.
    monkeypatch.setattr(sys, "stdin", Terminal(b"\xff\nG\xc3\xa9\n"))
    result = program("--model", "trained.json", "--predict", "--prompt", "-", *words)
    assert (result.code, result.out) == (0, f"> > {second}> ")
    assert "the line must be UTF-8; got b'\\xff' (" in result.err
    events = Generation.__iter__

    def interrupted(generation):
        monkeypatch.setattr(Generation, "__iter__", events)
        yield next(iter(generation))
        raise KeyboardInterrupt

    monkeypatch.setattr(Generation, "__iter__", interrupted)
    monkeypatch.setattr(sys, "stdin", Terminal(f"{PROMPT}\nGé\n".encode()))
    shown = predict(program, "--prompt", "-", *words).out
    assert shown.endswith(f"\n> {second}> ")
    assert not shown.startswith(f"> {first}")


@pytest.mark.parametrize(
    ("content", "start"),
    [
        (f"an{END}the", f"an{END}the"),
        (END, END),
        ("", ""),
        ("\n", ""),
        ("a\n\n", "a\n"),
        ("a\x00b", "ab"),  # a byte that this vocabulary does not have
        ("Gé", "Gé"),
    ],
    ids=["end of text inside", "end of text", "empty", "newline", "newlines", "zero", "accent"],
)
def test_no_prompt_breaks_generation(continue_prompt, prompt_file, content, start):
    prompt = read_prompt(str(prompt_file(content)))
    texts = [continue_prompt(prompt, seed=seed)[0] for seed in range(5)]
    assert all(text.startswith(start) for text in texts)
    assert max(texts, key=len) != start  # a text may end at once, not each of them
    if not content.strip():
        # What was not in the prompt is not in the sample.
        assert not any(text.startswith(END) for text in texts)


def test_a_huge_prompt_keeps_its_tail(continue_prompt, program, prompt_file, tokenizer):
    text = "the night train was standing at a little station. " * 20_000 + "an old man"
    ids = tokenizer.encode(text).ids
    assert len(ids) > 500_000
    result = predict(program, "--prompt", prompt_file(text), "--seed", "5")
    assert f"prompt of {len(ids)} tokens is longer than the {ROOM} that" in result.err
    tail = decode(tokenizer, ids[-ROOM:])
    assert result.out.startswith(tail)
    # The tail alone gives the same text: nothing before it counts.
    assert continue_prompt(tail, seed=5) == [result.out[:-1]]


def test_no_room_for_new_tokens_is_an_error(trained, program, prompt_file):
    words = ["--prompt", prompt_file(PROMPT), "--max_new_tokens", N_CTX]
    result = program("--model", "trained.json", "--predict", *words)
    assert result.code == 2
    assert f"max_new_tokens must be below n_ctx = {N_CTX}" in result.err


@pytest.mark.parametrize("content", [b"\xff\xfe\x00t\x00h", None])
def test_an_unreadable_prompt_is_named(trained, program, prompt_file, tmp_path, content):
    path = tmp_path / "nowhere.txt" if content is None else prompt_file(content)
    result = program("--model", "trained.json", "--predict", "--prompt", path)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith(
        f"main.py: error: --prompt must be a readable UTF-8 text file; got {path} ("
    )
    assert result.err.count("\n") == 1


def test_an_out_file_that_cannot_be_written_is_named(trained, program, prompt_file, tmp_path):
    words = ["--prompt", prompt_file(PROMPT), "--out", tmp_path / "no" / "folder.txt"]
    result = program("--model", "trained.json", "--predict", *words)
    assert result.code in (1, 2)
    assert str(tmp_path / "no" / "folder.txt") in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


# ---- at the checkpoints of a run ---------------------------------------------------------------

REPORTED_STEPS = 2 * STEPS_PER_CHECKPOINT


@pytest.fixture(scope="module")
def reported(workshop):
    """The first steps of ``trained`` with evaluation, a task and samples at every checkpoint."""

    def make():
        texts = ["the night train was standing at the little", "an old man ran after her hat"]
        lines = [json.dumps({"text": text}) for text in texts]
        (workshop.folder / "lambada.jsonl").write_text("\n".join(lines))
        [[dataset, *rest]] = json.loads((workshop.folder / "base.json").read_text())["datasets"]
        config = workshop.config(
            "reported",
            datasets=[[dataset | {"lambada_tokens_path": "lambada.jsonl"}, *rest]],
            eval_tasks=["lambada"],
            train_steps=REPORTED_STEPS,
            eval_steps=2,
            eval_batch_size=3,
            predict_steps=2,
            predict_batch_size=2,
            mesh_shape="x:1,y:1",
        )
        (workshop.folder / "report_prompt.txt").write_text(PROMPT + "\n")
        words = ["--steps_per_checkpoint", STEPS_PER_CHECKPOINT, "--sacred_id", "5"]
        return workshop.run("--model", config, *words, "--prompt", "report_prompt.txt")

    result = Result(*once(workshop, "reported", make))
    assert result.code == 0, result.err
    return result


def test_a_run_with_reports_builds_its_graph_once(reported):
    assert reported.out == ""
    assert reported.err.count("building the training graph") == 1
    assert reported.err.splitlines()[-1].endswith(
        f"done: runs/reported/model.ckpt-{REPORTED_STEPS}"
    )


def scores_of(workshop):
    """(those on held-out records, those of tasks) of the run ``reported``."""
    text = (workshop.run_folder("reported") / "eval_5.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if "loss" in line], [x for x in lines if "loss" not in x]


def test_each_checkpoint_is_scored_on_the_task(reported, workshop):
    _, lines = scores_of(workshop)
    assert [line["global_step"] for line in lines] == [0, STEPS_PER_CHECKPOINT, REPORTED_STEPS]
    names = [f"lambada_standard/{name}" for name in ("acc", "perplexity", "token_perplexity")]
    assert all(line.keys() == {*names, "global_step"} for line in lines)
    assert lines[0][names[2]] > lines[1][names[2]]
    assert reported.err.count("tasks {") == 3


def test_each_checkpoint_is_evaluated_once(reported, workshop):
    lines, _ = scores_of(workshop)
    assert [line["global_step"] for line in lines] == [0, STEPS_PER_CHECKPOINT, REPORTED_STEPS]
    for line in lines:
        assert line.keys() == KEYS
        assert line["tokens"] == 2 * 3 * N_CTX
    assert lines[0]["cross_entropy"] > lines[1]["cross_entropy"] > lines[2]["cross_entropy"] - 0.5
    assert reported.err.count("evaluation {") == 3


def test_reports_are_those_of_eval_alone(reported, workshop, program):
    result = program("--model", "reported.json", "--eval", "--sacred_id", "alone")
    lines, _ = scores_of(workshop)
    assert json.loads(result.out) == lines[-1]


def test_each_checkpoint_writes_samples(reported, workshop):
    files = sorted(file.name for file in workshop.run_folder("reported").glob("predictions_*"))
    steps = (0, REPORTED_STEPS, STEPS_PER_CHECKPOINT)
    assert files == [f"predictions_5_{step}.txt" for step in steps]
    texts = [(workshop.run_folder("reported") / name).read_text() for name in files]
    assert len(set(texts)) == 3
    for text in texts:
        assert text.count(" sample ") == 4  # predict_steps * predict_batch_size
        assert text.count(f"\n{PROMPT}") == 4


def test_reports_do_not_change_the_training(reported, trained, workshop):
    left = workshop.variables("reported")
    right = workshop.variables("trained", REPORTED_STEPS)
    assert left.keys() == right.keys()
    assert not [name for name in left if not np.array_equal(left[name], right[name])]
    lines = workshop.metrics("reported")
    losses = {line["step"]: line["loss"] for line in workshop.metrics("trained")}
    assert lines[-1]["step"] == REPORTED_STEPS
    assert [line["loss"] for line in lines] == [losses[line["step"]] for line in lines]
