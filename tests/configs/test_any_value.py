"""Whatever a config holds, the answer is a config or readable lines, and it is quick."""

import json
import math
import time
import typing

import pytest
from annotated_types import Interval, Le, Lt
from pydantic.fields import FieldInfo

from configs.datasets import DatasetConfig, DatasetSource
from configs.errors import ConfigError
from configs.load import load_config, parse_config
from configs.schema import Config
from tests.configs.rules_support import DATASET, VALID

DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]

VALUES = [
    *(None, True, False, 0, -1, 2, 10**12, -(10**30), 10**5000, 1.0, -1.5, 1e308, 1e-320),
    *(math.nan, math.inf, "", "x", "a\nb", "a\0b", "\ud800", "é😀", "\x1b[31m", "²"),
    *("x" * 100_000, "x:1", "x:²", "x:" + "9" * 5000, "x:1," * 1000, "batch:\x1b", "~nobody/x"),
    *([], [[]], [1], ["x"], [1] * 100_000, ["x"] * 2000, [[["global"], 10**12]], [[[], 3]]),
    *([[["a\nb"], 3]], [[["global"] * 1000, 1000]], [10**30, 1], DEEP),
    *({}, {"": 1}, {"a\nb": 1}, {"n_vocab": "x"}, DATASET, [DATASET, 1, "chunks", 1.0]),
]

LONGEST_LINE = 5000
LONGEST_SECONDS = 0.5


def answer(values, overrides=()):
    """Gives "config", or the problem lines; fails unless it is one of them, readable and quick."""
    start = time.process_time()
    try:
        config = parse_config(values, overrides)
    except ConfigError as error:
        lines, config = error.problems, None
        assert lines
    else:
        lines = list(config.warnings)
    assert time.process_time() - start < LONGEST_SECONDS
    assert len(lines) <= 120
    for line in lines:
        assert line.isprintable(), line
        assert len(line) <= LONGEST_LINE
    if config is None:
        return lines
    assert parse_config(json.loads(json.dumps(config.to_json_dict()).encode())) == config
    return "config"


@pytest.mark.parametrize("key", [*Config.model_fields, "unknown"])
def test_any_value_of_a_key(key):
    answers = [answer(VALID | {key: value}) for value in VALUES]
    assert any(lines != "config" for lines in answers)


@pytest.mark.parametrize("key", [*DatasetConfig.model_fields, "unknown"])
def test_any_value_of_a_key_of_a_dataset(key):
    for value in VALUES:
        answer(VALID | {"datasets": [DATASET | {key: value}]})


@pytest.mark.parametrize("input_fn", ["sequential_input", "generic_text"])
def test_any_value_in_an_entry_of_datasets(input_fn):
    for form in ([DATASET, 1, "documents_random", 1.0], ["a", "b", 1, "documents_random", 1.0]):
        for place in range(len(form)):
            for value in VALUES:
                entry = [*form[:place], value, *form[place + 1 :]]
                answer(VALID | {"datasets": [entry], "input_fn": input_fn})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {f"unknown{number}": 1 for number in range(100_000)},
        VALID | {f"unknown{number}": 1 for number in range(500)},
        VALID | {"datasets": [DATASET] * 100_000},
        VALID | {"datasets": [DATASET | {f"unknown{number}": 1 for number in range(5000)}]},
        VALID | {"datasets": ["stdlib"] * 2000},
        *(VALID | {value: 1} for value in VALUES if isinstance(value, str)),
    ],
    ids=lambda values: str(len(values)),
)
def test_any_keys(values):
    assert answer(values) != "config"


@pytest.mark.parametrize("value", [value for value in VALUES if isinstance(value, str)])
def test_any_key_of_set(value):
    assert answer(VALID, [value]) != "config"
    assert answer(VALID, [f"{value}=1"]) != "config"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NaN", "cannot be read, NaN is not a JSON number"),
        ("1e999", "must be a finite number"),
        ("9" * 5000, "cannot be read, a number must have at most 1,000 digits; got 5,000"),
        ("[" * 100_000, "cannot be read, must be nested at most 20 levels deep; got more"),
        ("[" * 30 + "]" * 30, "must be nested at most 20 levels deep (got "),
        ('{"a": 1, "a": 2}', ""),
    ],
)
def test_any_value_of_set(text, expected):
    lines = answer(VALID, [f"lr={text}"])
    assert lines[0].startswith(f"lr: {expected}" if expected else "a: is given twice (got 1, then")
    assert len(lines) <= 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 100_000, "cannot be read (must be nested at most 20 levels deep; got more)"),
        ('{"a":' * 100_000, "cannot be read (must be nested at most 20 levels deep; got more)"),
        (f'{{"lr": {"9" * 5000}}}', "cannot be read (a number must have at most 1,000 digits;"),
    ],
)
def test_json_without_end(tmp_path, text, expected):
    path = tmp_path / "bad.json"
    path.write_text(text)
    for call, prefix in (
        (lambda: load_config(str(path)), ""),
        (lambda: load_config("tiny", [f'datasets=["{path}"]']), "datasets[0]: "),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        (line,) = caught.value.problems
        assert line.startswith(f"{prefix}{path}: {expected}")


def test_a_dataset_file_is_checked_like_a_config(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(DATASET | {"path": json.loads("[" * 50 + "]" * 50)}))
    with pytest.raises(ConfigError, match=r"\n  datasets\[0\]: must be nested at most 20 levels"):
        load_config("tiny", [f'datasets=["{path}"]'])


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800", "~nobody/x", "", "."])
def test_any_name_of_a_file(name):
    with pytest.raises(ConfigError, match="must be a JSON file or the name of a shipped config"):
        load_config(name)


def integer_bounds(annotation, metadata):
    """One list of constraints for each integer inside a type."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *more = typing.get_args(annotation)
        metadata = [part for item in more for part in getattr(item, "metadata", [item])]
    if annotation is int:
        yield metadata
    for part in typing.get_args(annotation):
        if part is not annotation and not isinstance(part, str):
            yield from integer_bounds(part, metadata)


def test_every_integer_has_an_upper_bound():
    seen = 0
    for model in (Config, DatasetConfig, DatasetSource):
        for name, field in model.model_fields.items():
            assert isinstance(field, FieldInfo)
            for constraints in integer_bounds(field.annotation, field.metadata):
                seen += 1
                assert any(isinstance(item, (Le, Lt, Interval)) for item in constraints), name
    assert seen >= 35


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"attention_types": [[["global", "local"], 10**12]]},
            "attention_types[0][1]: must be at most 1000 (got 1000000000000); change it",
        ),
        (
            {"attention_types": [[["global"], 1000]] * 1000},
            "attention_types: must expand to n_layer = 3 layers and expands to 1000000 (got ",
        ),
        ({"n_layer": 10**9}, "n_layer: must be at most 1000 (got 1000000000); change it"),
        ({"n_embd": 10**30}, f"n_embd: must be at most 1048576 (got {10**30}); change it"),
        ({"n_ctx": 10**12}, "n_ctx: must be at most 134217728 (got 1000000000000); change it"),
        (
            {"train_batch_size": 10**30},
            f"train_batch_size: must be at most 16777216 (got {10**30}); change it",
        ),
        (
            {"mesh_shape": "x:1024,y:1025", "layout": ""},
            'mesh_shape: must have at most 1,048,576 processors in all (got "x:1024,y:1025"); '
            "lower the sizes",
        ),
        (
            {"train_batch_size": 2**24, "n_ctx": 2**27, "eval_batch_size": 1},
            "train_batch_size: times n_ctx 134217728 times n_head times n_ctx 671088640 must be "
            "at most 2^60 (got 16777216); lower one of them",
        ),
        (
            {"datasets": [[DATASET, 1, 5, 1.0]]},
            "datasets[0].mode: must be a string (got 5); put it in double quotes",
        ),
        (
            {"datasets": [["a", 0, 1, None, 1.0]], "eos_id": 1, "padding_id": 0},
            "datasets[0].eval_glob: must be a string (got 0); put it in double quotes",
        ),
        (
            {"datasets": [[DATASET, 1, "chunk", 1.0]]},
            "datasets[0].mode: is not a known mode (got \"chunk\"); did you mean 'chunks'?",
        ),
    ],
)
def test_absurd_values_are_one_line(changes, expected):
    (line,) = answer(VALID | changes)
    assert line.startswith(expected)
