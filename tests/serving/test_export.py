"""An exported model in a process that has TensorFlow and NumPy only, against the project's own."""

import argparse
import contextlib
import io
import json
import logging
import math
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tokenizers
from tensorflow.core.protobuf import saved_model_pb2

import main
from configs.load import load_config
from data.tokenizers import load_tokenizer
from model_fns import Placement
from serving.engine import Engine
from serving.requests import Sampling
from serving.signatures import ports_of
from tests.support import (
    Forward,
    make_config,
    mesh_layout,
    random_variables,
    write_checkpoint,
)
from utils.command_line import parse_arguments
from utils.errors import reason
from utils.garbage import no_garbage_collection

N_CTX, TOKENS, ROWS, BATCH, STEP = 70, 31, 34, 3, 7
PROMPTS = [[3, 7, 2], [5] * 66, [9]]  # one is longer than a chunk of the prefill
STOP = 19
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "seed": 5},
    "entmax": {"temperature": 2.0, "entmax": True, "seed": 6},
    "penalized": {"temperature": 0.0, "repetition_penalty": 1.8},
}


def sampling(name: str) -> Sampling:
    values = {"top_k": 0, "top_p": 1.0, "seed": 0, "max_new_tokens": None, "stop_id": STOP}
    return Sampling(**(values | SETTINGS[name]))


# What the client does behind the snippet of docs/export.md; it knows nothing of the project.
CLIENT = """
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np

folder, other_folder, requests_file, results_file = sys.argv[1:]
requests = json.loads(open(requests_file).read())
results = {"snippet": written, "most_likely": most_likely}


def generate(request, model=model):
    signature = model.signatures["generate"]
    _, types = signature.structured_input_signature
    fed = {name: tf.constant(value, types[name].dtype) for name, value in request.items()}
    return [output.numpy().tolist() for _, output in sorted(signature(**fed).items())]


results["ports"] = {
    name: [
        {key: [port.dtype.name, port.shape.as_list()] for key, port in ports.items()}
        for ports in (signature.structured_input_signature[1], signature.structured_outputs)
    ]
    for name, signature in model.signatures.items()
}
results["variables"] = [variable.name for variable in model.variables]
results["logits"] = model.signatures["logits"](tokens=tf.constant(requests["logits"]))[
    "logits"
].numpy().tolist()
named = requests["generate"]
results["generate"] = {name: generate(request) for name, request in named.items()}
results["rest"] = generate(requests["rest"])
with ThreadPoolExecutor(4) as pool:
    results["together"] = list(pool.map(generate, list(named.values()) * 3))

other = tf.saved_model.load(other_folder)
results["other"] = generate(named["greedy"], other)
results["after_other"] = generate(named["greedy"])

results["errors"] = []
for request in requests["wrong"]:
    try:
        generate(named["greedy"] | request)
        results["errors"].append("none")
    except tf.errors.InvalidArgumentError as error:
        results["errors"].append(str(error))

with tf.compat.v1.Session(graph=tf.Graph()) as session:
    meta = tf.compat.v1.saved_model.load(session, ["serve"], folder)
    signature = meta.signature_def["generate"]
    feed = {signature.inputs[name].name: value for name, value in named["sampled"].items()}
    fetches = [signature.outputs[name].name for name in ("lengths", "tokens")]
    results["session"] = [
        [output.tolist() for output in session.run(fetches, feed)] for _ in range(2)
    ]

results["modules"] = sorted(sys.modules)
with open(results_file, "w") as file:
    json.dump(results, file)
"""


def make_tokenizer(path: Path) -> tokenizers.Tokenizer:
    vocabulary = {f"t{number}": number for number in range(TOKENS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose checkpoint has slots, and its config, which is for 6 processors."""
    folder = tmp_path_factory.mktemp("run")
    make_tokenizer(folder / "words.json")
    dataset = {
        "n_vocab": TOKENS,
        "path": "none_*.tfrecords",
        "tokenizer_path": str(folder / "words.json"),
        "tokenizer_is_pretrained": False,
        "eos_id": STOP,
    }
    config = make_config(
        model_path=str(folder / "walker"),
        n_ctx=N_CTX,
        n_embd=12,
        n_vocab=ROWS,
        eos_id=STOP,
        padding_id=STOP,
        local_attention_radius=7,
        datasets=[dataset],
        predict_batch_size=BATCH,
        eval_batch_size=BATCH,
        mesh_shape="x:3,y:2",
        layout="batch:x,heads:y",
    )
    variables = random_variables(config, seed=12)
    usable = variables["gpt2/wte"][:TOKENS]
    usable -= usable.mean(1, keepdims=True)  # without a leaning, so that greedy texts vary
    slots = {f"{name}/adam_m": np.ones_like(value) for name, value in variables.items()}
    (folder / "walker").mkdir()
    checkpoint = write_checkpoint(folder / "walker", variables | slots, STEP)
    return SimpleNamespace(folder=folder, config=config, variables=variables, checkpoint=checkpoint)


def arguments(*words: str) -> argparse.Namespace:
    return parse_arguments(["--model", "walker", "--export", *words])


@pytest.fixture(scope="module")
def exported(run):
    """What ``main.py --export`` wrote, printed and logged."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("serving.export").addHandler(handler)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, no_garbage_collection():
            main.export(run.config, arguments())
    finally:
        logging.getLogger("serving.export").removeHandler(handler)
    folder = run.folder / "walker" / "export" / str(STEP)
    return SimpleNamespace(folder=folder, out=out.getvalue(), messages=messages)


@pytest.fixture(scope="module")
def docs(repo_root) -> str:
    return (repo_root / "docs" / "export.md").read_text(encoding="utf-8")


def request(settings: Sampling) -> dict:
    width = max(map(len, PROMPTS))
    return {
        "tokens": [ids + [1] * (width - len(ids)) for ids in PROMPTS],
        "lengths": [len(ids) for ids in PROMPTS],
        "max_new_tokens": [N_CTX],
        "stop_ids": [STOP] * BATCH,
        "seeds": [settings.seed] * BATCH,
        "temperature": [settings.temperature],
        "top_k": [settings.top_k],
        "top_p": [settings.top_p],
        "entmax": [settings.entmax],
        "repetition_penalty": [settings.repetition_penalty],
    }


WRONG = [
    ({"tokens": [[1]] * (BATCH + 1)}, f"tokens must be at most {BATCH} rows of {N_CTX}; got"),
    ({"tokens": [[1] * (N_CTX + 1)]}, f"tokens must be at most {BATCH} rows of {N_CTX}; got"),
    ({"tokens": [[1, ROWS]]}, f"tokens must lie in [0, {ROWS}); got"),
    ({"seeds": [1, 2]}, "seeds must have one value, or one per row of tokens; got"),
    ({"lengths": [3, 0, 1]}, "lengths must be at least 1 and at most the width of tokens; got"),
    ({"lengths": [3, 67, 1]}, "lengths must be at least 1 and at most the width of tokens; got"),
    ({"temperature": [math.nan]}, "temperature must be finite and at least 0; got"),
    ({"temperature": [0.5, -0.5, 0.5]}, "temperature must be finite and at least 0; got"),
    ({"temperature": [math.inf]}, "temperature must be finite and at least 0; got"),
    ({"top_p": [0.0]}, "top_p must be above 0 and at most 1; got"),
    ({"top_p": [math.nan]}, "top_p must be above 0 and at most 1; got"),
    ({"top_p": [1.5]}, "top_p must be above 0 and at most 1; got"),
    ({"top_k": [-1]}, "top_k must be at least 0; got"),
    ({"repetition_penalty": [0.0]}, "repetition_penalty must be finite and above 0; got"),
    ({"max_new_tokens": [-1]}, "max_new_tokens must be at least 0; got"),
]


@pytest.fixture(scope="module")
def client(run, exported, docs, tmp_path_factory) -> dict:
    """What a process found that runs the snippet of the docs and the code above."""
    folder = tmp_path_factory.mktemp("client")
    # The same graph with other weights: the variables of a SavedModel are a checkpoint.
    shutil.copytree(exported.folder, folder / "other")
    other = write_checkpoint(folder, random_variables(run.config, seed=13))
    for file in Path(other).parent.glob(f"{Path(other).name}.*"):
        shutil.copy(file, folder / "other" / "variables" / f"variables{file.suffix}")
    [rest] = re.findall(r"-d '(\{.*?\})'", docs, re.DOTALL)
    (folder / "requests.json").write_text(
        json.dumps(
            {
                "logits": [[3, 7, 2, 0], [9, 9, 1, 30]],
                "generate": {name: request(sampling(name)) for name in SETTINGS},
                "rest": json.loads(rest)["inputs"],
                "wrong": [change for change, _ in WRONG],
            }
        )
    )
    snippet = re.findall(r"```python\n(.*?)```", docs, re.DOTALL)[0]
    (folder / "client.py").write_text(snippet + CLIENT)
    paths = [exported.folder, folder / "other", folder / "requests.json", folder / "results.json"]
    process = subprocess.run(
        [sys.executable, "-I", "client.py", *map(str, paths)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    results = json.loads((folder / "results.json").read_text())
    assert process.stdout == f"{results['snippet']}\n"
    return results


@pytest.fixture(scope="module")
def own(run) -> dict:
    """Tokens and lengths that the project's engine gives for the same requests."""
    with no_garbage_collection():
        engine = Engine(run.config, Placement(mesh_layout("x:1", ""), ("",)), BATCH)
    engine.load(run.checkpoint)
    found = {}
    for name in SETTINGS:
        texts = [
            # One row at a time, since prompts of one call have the same seed here.
            done.prompt + done.continuation + [STOP] * done.stopped
            for [done] in engine.generate(PROMPTS, sampling(name))
        ]
        rows = [text + [0] * (N_CTX - len(text)) for text in texts]
        found[name] = [[len(text) for text in texts], rows]
    snippet = Sampling(0.8, 0, 0.9, 1, 20, None)
    [[done]] = engine.generate([[3, 7, 2]], snippet)
    found["snippet"] = done.prompt + done.continuation
    engine.close()
    return found


# ---- in another process --------------------------------------------------------------------------


def test_the_client_needs_nothing_of_the_project(client):
    roots = {name.split(".")[0] for name in client["modules"]}
    assert not roots & {"mesh_tensorflow", "models", "serving", "configs", "utils", "model_fns"}


def test_weights_are_variables_of_the_loaded_model(client, run):
    assert {name.removesuffix(":0") for name in client["variables"]} == run.variables.keys()


def test_signatures(client, run):
    ids, rows = ["int32", [None, None]], ["int32", [None]]
    settings = dict.fromkeys(("lengths", "max_new_tokens", "stop_ids", "seeds", "top_k"), rows)
    settings |= {
        "temperature": ["float32", [None]],
        "top_p": ["float32", [None]],
        "entmax": ["bool", [None]],
        "repetition_penalty": ["float32", [None]],
    }
    generate = [{"tokens": ids} | settings, {"tokens": ["int32", [None, N_CTX]], "lengths": rows}]
    assert client["ports"] == {
        "logits": [{"tokens": ids}, {"logits": ["float32", [None, None, ROWS]]}],
        "generate": generate,
        "serving_default": generate,
    }


def test_logits_of_short_windows_are_the_models(client, run):
    windows = np.full((BATCH, N_CTX), 5)
    given = np.array([[3, 7, 2, 0], [9, 9, 1, 30]])
    windows[:2, :4] = given
    expected = Forward(make_config_like(run.config, mesh_shape="x:1", layout=""), run.checkpoint)(
        windows
    )["logits"][:2, :4]
    got = np.array(client["logits"], np.float32)
    assert got.shape == (2, 4, ROWS)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert client["most_likely"] == expected[0, 2].argmax()


def make_config_like(config, **keys):
    return make_config(**(config.to_json_dict() | keys))


@pytest.mark.parametrize("name", SETTINGS)
def test_texts_are_the_engines(client, own, name):
    assert client["generate"][name] == own[name]


def test_the_requests_show_something(own):
    """Texts that stop before the longest prompt ends, texts that fill the window."""
    lengths = {length for name in SETTINGS for length in own[name][0]}
    assert max(lengths) == N_CTX
    assert min(lengths) < max(map(len, PROMPTS))
    assert len({json.dumps(own[name]) for name in SETTINGS}) == len(SETTINGS)


def test_the_examples_of_the_docs_work(client, own):
    assert client["snippet"] == own["snippet"]
    lengths, [tokens] = client["rest"]
    assert tokens[: lengths[0]] == own["snippet"]


def test_calls_do_not_touch_each_other(client):
    """In threads, where caches of their own are needed, and one after another."""
    assert client["together"] == list(client["generate"].values()) * 3
    assert client["session"] == [client["generate"]["sampled"]] * 2


def test_two_models_in_one_process(client):
    assert client["other"] != client["generate"]["greedy"]
    assert client["after_other"] == client["generate"]["greedy"]


def test_wrong_requests_are_refused(client):
    for error, (_, message) in zip(client["errors"], WRONG, strict=True):
        assert message in error


# ---- on disk -------------------------------------------------------------------------------------


def test_the_folder_is_printed_and_the_mesh_fitted_with_a_notice(exported):
    assert exported.out == f"{exported.folder}\n"
    assert exported.messages == [
        "mesh_shape x:3,y:2 = 6 processors does not fit 1 device(s); running on one"
    ]
    assert [path.name for path in exported.folder.parent.iterdir()] == [str(STEP)]


def test_weights_are_there_once_and_without_slots(run, exported):
    path = str(exported.folder / "variables" / "variables")
    reader = tf.train.load_checkpoint(path)
    assert reader.get_variable_to_shape_map().keys() == run.variables.keys()
    for name, value in run.variables.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)
    [data] = exported.folder.glob("variables/*.data*")
    assert data.stat().st_size == 4 * sum(value.size for value in run.variables.values())


def test_weights_are_read_once_per_call(run, exported):
    """Read within the loop over tokens, each would be copied for every token."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((exported.folder / "saved_model.pb").read_bytes())
    [graph] = [meta.graph_def for meta in model.meta_graphs]
    handles = {node.name for node in graph.node if node.op == "VarHandleOp"}
    assert handles == run.variables.keys()
    reads = [node.input[0] for node in graph.node if node.op == "ReadVariableOp"]
    assert sorted(reads) == sorted(handles)


def test_config_tokenizer_and_card_go_along(run, exported):
    extra = exported.folder / "assets.extra"
    assert {path.name for path in extra.iterdir()} == {"README.md", "config.json", "tokenizer.json"}
    assert load_config(str(extra / "config.json"), []) == run.config
    tokenizer = load_tokenizer(str(extra / "tokenizer.json"), is_pretrained=False)
    assert tokenizer.encode("t3 t7 t30") == [3, 7, 30]
    card = (extra / "README.md").read_text()
    parameters = sum(value.size for value in run.variables.values())
    assert card.startswith(f"# walker, step {STEP}\n\nA GPT of {parameters:,} parameters that ")
    assert f"at most {BATCH} row(s)" in card
    for name, ports in ports_of(run.config).items():
        assert f"## `{name}`: inputs" in card
        for group in ports:
            for key, port in group.items():
                assert f"| `{key}` | {port.dtype.name} | " in card


def test_the_docs_name_every_input(docs, run):
    for name, ports in ports_of(run.config).items():
        [row] = [line for line in docs.splitlines() if line.startswith(f"| `{name}` ")]
        for group in ports:
            assert all(f"`{key}`" in row for key in group)


def test_the_tokenizer_snippet_of_the_docs_runs(docs, exported, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["", str(exported.folder)])
    names = {"sys": sys, "written": [3, 7, 2]}
    exec(re.findall(r"```python\n(.*?)```", docs, re.DOTALL)[1], names)
    assert names["text"] == "t3 t7 t2"
    assert names["ids"] == [0, 0, 0]


# ---- refusals ------------------------------------------------------------------------------------


def test_a_version_is_not_overwritten(run, exported):
    with pytest.raises(ValueError) as caught:
        main.export(run.config, arguments())
    assert str(caught.value) == (
        f"an exported version must not be overwritten, a server may have it open; got "
        f"{exported.folder}, which exists. Delete it, or name another folder with --out."
    )


def test_out_must_be_a_folder(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^--out must be a folder; got the file .*/file\. Name"):
        main.export(run.config, arguments("--out", str(tmp_path / "file")))


def test_a_missing_checkpoint_is_named(run, tmp_path):
    config = make_config_like(run.config, model_path=str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"^model_path must hold a checkpoint; got none in "):
        main.export(config, arguments())


# ---- masked models -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A config of a masked model and its checkpoint."""
    folder = tmp_path_factory.mktemp("masked")
    config = make_config(
        model_path=str(folder), n_layer=1, attention_types=[[["global"], 1]],
        mlm_training=True, mlm_mask_id=3, eval_batch_size=2, n_vocab=50257,
    )  # fmt: skip
    return config, write_checkpoint(folder, random_variables(config, seed=4), STEP)


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing fails beyond ``size`` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_export_leaves_nothing(masked, tmp_path):
    config, _ = masked
    with largest_file(10**6), pytest.raises(tf.errors.OpError) as caught:
        main.export(config, arguments("--out", str(tmp_path / "versions")))
    assert "File too large" in reason(caught.value)
    assert list((tmp_path / "versions").iterdir()) == []


def test_a_masked_model_has_logits_of_whole_windows(masked, tmp_path):
    config, checkpoint = masked
    with contextlib.redirect_stdout(io.StringIO()):
        main.export(config, arguments("--out", str(tmp_path / "versions")))
    folder = str(tmp_path / "versions" / str(STEP))
    window = np.arange(20).reshape(2, 10)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], folder)
        assert meta.signature_def.keys() == {"logits", "serving_default"}
        signature = meta.signature_def["logits"]
        tokens, logits = signature.inputs["tokens"].name, signature.outputs["logits"].name
        got = session.run(logits, {tokens: window})
        with pytest.raises(ValueError, match="shape"):
            session.run(logits, {tokens: window[:, :5]})
    expected = Forward(config, checkpoint)(window)["logits"]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
