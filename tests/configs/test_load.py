"""Loading: files, names, overrides, datasets, and every problem in one answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from configs.effects import inert_keys
from configs.errors import ConfigError
from configs.load import load_config, parse_config
from configs.schema import Config

ROOT = Path(__file__).resolve().parents[2]

# A config and its dataset config as users of GPT-Neo have them.
ORIGINAL = {
    "n_head": 3,
    "n_vocab": 101,
    "embed_dropout": 0,
    "lr": 0.01,
    "lr_decay": "cosine",
    "warmup_steps": 3,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-08,
    "opt_name": "adam",
    "weight_decay": 0.1,
    "train_batch_size": 4,
    "attn_dropout": 0,
    "train_steps": 12,
    "eval_steps": 2,
    "predict_steps": 0,
    "res_dropout": 0,
    "eval_batch_size": 4,
    "predict_batch_size": 1,
    "iterations": 1,
    "n_embd": 24,
    "datasets": [["tiny_a", None, None, None]],
    "model_path": "runs/A1",
    "n_ctx": 20,
    "n_layer": 3,
    "scale_by_depth": True,
    "scale_by_in": False,
    "attention_types": [[["global", "local"], 1], [["global"], 1]],
    "mesh_shape": "x:1",
    "layout": "batch:x",
    "activation_function": "gelu",
    "recompute_grad": False,
    "gradient_clipping": 1.0,
    "precision": "float32",
    "local_attention_radius": 8,
}
DATASET = {
    "n_vocab": 101,
    "path": "fixdata/a/tiny_*.tfrecords",
    "eval_path": "fixdata/a/tiny_*.tfrecords",
    "tokenizer_is_pretrained": False,
    "tokenizer_path": "fixdata/a/tokenizer.json",
    "eos_id": 1,
    "padding_id": 0,
}


@pytest.fixture
def config_file(tmp_path):
    (tmp_path / "dataset_configs").mkdir()
    (tmp_path / "dataset_configs" / "tiny_a.json").write_text(json.dumps(DATASET))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ORIGINAL))
    return path


def problems(call, *arguments, **options):
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **options)
    return caught.value.problems


def test_an_original_config_loads_unchanged(config_file):
    config = load_config(str(config_file), steps_per_checkpoint=12)
    assert config.warnings == ()
    assert config.attention_layers == ("global", "local", "global")
    assert (config.head_dim, config.mesh_axes, config.mesh_size) == (8, (("x", 1),), 1)
    assert config.layout_rules == (("batch", "x"),)
    assert config.tied_embeddings
    assert (config.eos_id, config.padding_id, config.lr_decay_end) == (1, 0, 12)
    (source,) = config.sources
    assert (source.id, source.train_glob, source.eval_glob) == (
        "tiny_a",
        "fixdata/a/tiny_*.tfrecords",
        "fixdata/a/tiny_*.tfrecords",
    )
    assert (source.stitch, source.mode, source.weight) == (1, "chunks", 1.0)
    assert config.dataset is source.dataset
    assert config.dataset.tokenizer_path == "fixdata/a/tokenizer.json"


def test_a_dataset_config_may_lie_beside_the_config(config_file):
    folder = config_file.parent
    (folder / "dataset_configs" / "tiny_a.json").rename(folder / "tiny_a.json")
    assert load_config(str(config_file)).dataset.n_vocab == 101


@pytest.mark.parametrize("extra", [{}, {"weight_decay": 0.0, "lr_decay": None}])
def test_the_resolved_config_loads_again_from_any_folder(config_file, extra, tmp_path, monkeypatch):
    values = ORIGINAL | extra | {"decay_final_norm": True, "lr_decay_end": 9}
    values["datasets"] = [["tiny_a", 3, "documents_random", 0.5]]
    config_file.write_text(json.dumps(values))
    config = load_config(str(config_file))
    elsewhere = tmp_path / "run"
    elsewhere.mkdir()
    resolved = elsewhere / "config.json"
    resolved.write_text(json.dumps(config.to_json_dict()))
    monkeypatch.chdir(elsewhere)
    again = load_config(str(resolved))
    assert again == config
    assert again.warnings == config.warnings
    assert again.to_json_dict() == config.to_json_dict()
    left_out = set(Config.model_fields) - set(config.to_json_dict())
    assert left_out == set(inert_keys(config)) - config.model_fields_set


def test_aliases_and_both_spellings_at_once(config_file):
    values = dict(ORIGINAL)
    values["n_heads"] = values.pop("n_head")
    values["activation_fn"] = values.pop("activation_function")
    config_file.write_text(json.dumps(values))
    config = load_config(str(config_file), ["activation_fn=selu"])
    assert (config.n_head, config.activation_function) == (3, "selu")
    config_file.write_text(json.dumps(values | {"n_head": 3}))
    assert problems(load_config, str(config_file)) == [
        "n_heads: is another name of 'n_head', and both are given (got 3); keep 'n_head' only"
    ]


def test_overrides(config_file):
    overrides = [
        "lr=1e-3",
        "n_heads=4",
        "model_path=2024",
        'layout="batch:x"',
        "local_attention_radius=null",
        'attention_types=[[["global"], 3]]',
        "lr_decay=linear",
    ]
    config = load_config(str(config_file), overrides)
    assert (config.lr, config.n_head, config.model_path) == (0.001, 4, "2024")
    assert (config.layout, config.local_attention_radius) == ("batch:x", 256)
    assert (config.attention_layers, config.lr_decay) == (("global",) * 3, "linear")
    assert problems(load_config, str(config_file), ["lr", "n_hed=2", "lr_dcay=linear"]) == [
        '--set: must have the form key=value (got "lr"); write --set lr=0.001',
        "n_hed: is not a known key (got 2); did you mean 'n_head'?",
        "lr_dcay: is not a known key (got \"linear\"); did you mean 'lr_decay'?",
    ]


def test_iterations_default_fits_the_checkpoint_interval(config_file):
    values = {key: value for key, value in ORIGINAL.items() if key != "iterations"}
    config_file.write_text(json.dumps(values))
    assert load_config(str(config_file)).iterations == 500
    config = load_config(str(config_file), steps_per_checkpoint=7)
    assert config.iterations == 7
    # The flag of one run must not bind the next one that starts from the resolved config.
    assert "iterations" not in config.to_json_dict()
    assert problems(load_config, str(config_file), ["iterations=8"], steps_per_checkpoint=7) == [
        "iterations: must be at most --steps_per_checkpoint 7 (got 8); "
        "set it to 7 or save less often"
    ]


def test_all_problems_at_once(config_file):
    wrong = {
        "n_ctxx": 20,
        "n_embd": 25,
        "lr": "fast",
        "embed_dropout": 1,
        "scale_by_depth": "yes",
        "layout": "batch:x,heds:y",
        "rotary_emb": True,
        "axial_pos_emb": [4, 4],
        "activation_function": "gelo",
        "opt_name": "adma",
        "steps_per_checkpoint": 100,
    }
    values = ORIGINAL | wrong
    del values["n_layer"]
    config_file.write_text(json.dumps(values))
    found = problems(load_config, str(config_file))
    assert set(found) == {
        'n_layer: is required (got nothing); add it, for example "n_layer": 12',
        "n_ctxx: is not a known key (got 20); did you mean 'n_ctx'?",
        "n_embd: must be a multiple of n_head 3 (got 25); set it to 24 or 27, or change n_head",
        'lr: must be a number (got "fast"); write it without quotes',
        "embed_dropout: must be below 1.0 (got 1); change it",
        'scale_by_depth: must be true or false (got "yes"); write it without quotes',
        "layout: names an unknown dimension (got \"heds:y\"); did you mean 'heads'?",
        "layout: names mesh axis 'y', which mesh_shape x:1 does not have (got \"heds:y\"); "
        "use x, or add 'y' to mesh_shape",
        "axial_pos_emb: must be two sizes whose product is n_ctx 20, and theirs is 16 "
        "(got [4, 4]); change one of them or n_ctx",
        "axial_pos_emb: must not be combined with rotary_emb (got [4, 4]); remove one of the two",
        "activation_function: is not a known activation (got \"gelo\"); did you mean 'gelu'?",
        "opt_name: must be one of adam, adafactor (got \"adma\"); did you mean 'adam'?",
        "steps_per_checkpoint: is not a key of the config (got 100); "
        "remove it and pass --steps_per_checkpoint",
    }
    with pytest.raises(ConfigError, match=r"config\.json has 13 problems:\n  n_layer"):
        load_config(str(config_file))


def test_a_wrong_key_is_not_blamed_for_its_consequences(config_file):
    config_file.write_text(json.dumps(ORIGINAL | {"train_batch_size": "4", "n_vocab": None}))
    (config_file.parent / "dataset_configs" / "tiny_a.json").write_text(
        json.dumps(DATASET | {"n_vocab": "many", "pat": 1})
    )
    assert problems(load_config, str(config_file)) == [
        'train_batch_size: must be a whole number (got "4"); '
        "write it without quotes or decimal point",
        'datasets[0].n_vocab: must be a whole number (got "many"); '
        "write it without quotes or decimal point",
        "datasets[0].pat: is not a known key (got 1); did you mean 'path'?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"n_head": 3,\n "n_embd": 4\n "n_ctx": 8}',
            "is not valid JSON at line 3, column 2: Expecting ',' delimiter "
            '(got "\\"n_ctx\\": 8}"); correct it',
        ),
        ("", 'is not valid JSON at line 1, column 1: Expecting value (got "end of file")'),
        ("[1]", "must hold one JSON object (got [1]); put the keys in curly brackets"),
        ('{"lr": NaN}', "cannot be read (NaN is not a JSON number); correct it"),
    ],
)
def test_unreadable_json(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    (found,) = problems(load_config, str(path))
    assert found.startswith(f"{path}: {message}")


def test_a_config_of_hugging_face_is_one_problem(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_embd": 4, "vocab_size": 9}))
    (found,) = problems(load_config, str(path))
    assert found.startswith('model_type: is a key of Hugging Face\'s configs (got "gpt2"); ')
    assert "convert_checkpoint.py" in found


def test_duplicate_keys(config_file):
    text = json.dumps(ORIGINAL)
    config_file.write_text(text[:-1] + ', "n_head": 4}')
    assert problems(load_config, str(config_file)) == [
        "n_head: is given twice (got 3, then 4); keep one of them"
    ]


def test_missing_config_and_dataset_name_what_there_is(config_file):
    (found,) = problems(load_config, "tinny")
    assert found.startswith(
        '--model: must be a JSON file or the name of a shipped config (got "tinny"); '
        "did you mean 'tiny'? shipped configs: gpt2_small, "
    )
    (found,) = problems(load_config, str(config_file), ['datasets=["tiny_b"]'])
    assert found == (
        "datasets[0]: names no dataset config (got \"tiny_b\"); did you mean 'tiny_a'? "
        "known datasets: openwebtext, pile, stdlib, tiny_a"
    )


INLINE = DATASET | {"id": "mine"}


@pytest.mark.parametrize(
    ("entry", "input_fn", "expected"),
    [
        ("stdlib", "sequential_input", ("stdlib", 1, "chunks", 1.0)),
        (["stdlib", None, None, None], "generic_text", ("stdlib", 1, "documents_random", 1.0)),
        (["stdlib", 5, "documents_fixed", 2], "generic_text", ("stdlib", 5, "documents_fixed", 2)),
        (["stdlib", 5, "random_sample", 2], "generic_text", ("stdlib", 5, "documents_random", 2)),
        (["a_*", "b_*", None, None, None], "sequential_input", ("a_*", 1, "chunks", 1.0)),
        (
            ["a_*", "", 11, "documents_random", 1],
            "generic_text",
            ("a_*", 11, "documents_random", 1),
        ),
        (INLINE, "sequential_input", ("mine", 1, "chunks", 1.0)),
        ([INLINE, 2, None, 0.5], "generic_text", ("mine", 2, "documents_random", 0.5)),
    ],
)
def test_forms_of_dataset_entries(entry, input_fn, expected):
    values = ORIGINAL | {"datasets": [entry], "input_fn": input_fn, "n_vocab": 50257}
    config = parse_config(values | {"eval_steps": 0})
    (source,) = config.sources
    assert (source.id, source.stitch, source.mode, source.weight) == expected
    assert (source.dataset is None) == (source.id == "a_*")
    assert parse_config(config.to_json_dict()) == config


@pytest.mark.parametrize(
    ("entry", "input_fn", "message"),
    [
        (
            ["stdlib", 0, None, None],
            "sequential_input",
            "datasets[0].stitch: must be above 0 (got 0); change it",
        ),
        (
            ["stdlib", 1, "documents", None],
            "generic_text",
            'datasets[0].mode: is not a known mode (got "documents"); '
            "did you mean 'documents_fixed'?",
        ),
        (
            ["stdlib", 1, "chunks", None],
            "generic_text",
            "datasets[0]: must not have mode chunks under input_fn generic_text, which reads "
            'documents (got "chunks"); set "input_fn": "sequential_input"',
        ),
        (
            [1, 2],
            "sequential_input",
            'datasets[0]: must be one dataset (got [1, 2]); write "id", [id, stitch, mode, '
            "weight] or [train_glob, eval_glob, stitch, mode, weight]",
        ),
        (
            {"path": "x", "n_vocab": 101, "tokenizer_path": "own.json"},
            "sequential_input",
            'datasets[0]: must name eos_id, the id that ends a document in "own.json" '
            '(got null); add "eos_id"',
        ),
    ],
)
def test_wrong_dataset_entries(entry, input_fn, message):
    values = ORIGINAL | {"datasets": [entry], "input_fn": input_fn, "n_vocab": 50257}
    found = problems(parse_config, values | {"eval_steps": 0})
    assert found == [message.replace("[id, stitch", '["id", stitch')]


def test_unresolved_ids_are_refused_by_the_bare_model():
    with pytest.raises(ValueError, match="must be resolved first"):
        Config(**ORIGINAL)


def test_vocabulary_comes_from_the_dataset(config_file):
    config_file.write_text(json.dumps({k: v for k, v in ORIGINAL.items() if k != "n_vocab"}))
    assert load_config(str(config_file)).n_vocab == 101
    assert problems(load_config, str(config_file), ["datasets=[]", "eval_steps=0"]) == [
        "n_vocab: is required when no dataset config gives it (got nothing); "
        'add it, for example "n_vocab": 50304'
    ]


def test_loading_needs_no_tensorflow_and_no_numpy():
    code = (
        "import sys, configs.load, utils.command_line as c; configs.load.load_config('tiny');"
        "c.build_parser(); print([m for m in ('tensorflow', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
