"""Dataset configs, and the three ways in which `datasets` may list them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from pydantic import BaseModel, field_validator, model_validator

from configs.errors import choose_from, shown
from configs.fields import LARGEST_INT, STRICT, key
from configs.names import CHUNKS, DOCUMENT_MODE_ALIASES, DOCUMENT_MODES

GPT2_TOKENIZER = "gpt2"
GPT2_EOS_ID = 50256
_ENTRY_FORMS = (
    'write "id", ["id", stitch, mode, weight] or [train_glob, eval_glob, stitch, mode, weight]'
)


class DatasetConfig(BaseModel):
    """Dataset config: one file of `configs/dataset_configs`, or an object inside `datasets`."""

    model_config = STRICT

    id: Optional[str] = key(
        "Name in logs and metrics.",
        None,
        default_text="the name of the file, without `.json`",
        example="mine",
    )
    n_vocab: int = key(
        "Size of the vocabulary; every id is below it.",
        gt=0,
        le=LARGEST_INT,
        example=50257,
        unit="tokens",
    )
    path: str = key(
        "Glob of the training records, local or `gs://`.",
        min_length=1,
        example="datasets/mine/train_[0-9]*.tfrecords",
    )
    eval_path: Optional[str] = key(
        "Glob of the evaluation records; null = none.",
        None,
        example="datasets/mine/eval_[0-9]*.tfrecords",
    )
    tokenizer_is_pretrained: bool = key(
        "True for a tokenizer known by name (`gpt2` is embedded), false for a file.",
        True,
        needs=("tokenizer_path",),
    )
    tokenizer_path: str = key(
        "Name of the tokenizer, or its JSON file.",
        GPT2_TOKENIZER,
        example="datasets/mine/tokenizer.json",
        needs=("tokenizer_is_pretrained", "eos_id"),
    )
    eos_id: int = key(
        "Id that ends a document.",
        default_factory=lambda data: GPT2_EOS_ID,
        default_text="50256 with `gpt2`; required with another tokenizer",
        ge=0,
        le=LARGEST_INT,
        unit="token id",
        example=0,
    )
    padding_id: int = key(
        "Id of padding, if the records hold any: `--check_dataset` shows it, nothing is filled up.",
        default_factory=lambda data: data.get("eos_id", 0),
        default_text="`eos_id`",
        ge=0,
        le=LARGEST_INT,
        unit="token id",
        example=1,
    )
    lambada_tokens_path: Optional[str] = key(
        "LAMBADA's texts, for the task `lambada`: JSON lines with a `text` each, or GPT-Neo's JSON "
        "list of lists of token ids.",
        None,
        example="datasets/lambada_test.jsonl",
    )

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, data: Any) -> Any:
        """Reads null as "default" and asks for `eos_id` where no default is safe."""
        if not isinstance(data, Mapping):
            return data
        present = {
            name: value
            for name, value in data.items()
            if value is not None or name not in cls.model_fields
        }
        if present.get("eval_path") == "":
            del present["eval_path"]
        if "eos_id" not in present and present.get("tokenizer_path", GPT2_TOKENIZER) != "gpt2":
            raise ValueError(
                "must name eos_id, the id that ends a document in "
                f'{shown(present["tokenizer_path"])} (got null); add "eos_id"'
            )
        return present


def _from_dataset(name: str) -> Any:
    """Returns a default factory that reads one value of the entry's dataset config."""

    def default(data: dict[str, Any]) -> Any:
        dataset = data.get("dataset")
        return None if dataset is None else getattr(dataset, name)

    return default


class DatasetSource(BaseModel):
    """One resolved entry of `datasets`.

    Attributes:
        dataset: The dataset config; None for the older form, which has none.
        train_glob: Glob of the training records.
        eval_glob: Glob of the evaluation records, or None.
        id: Name in logs and metrics.
        stitch: Documents joined before a window is cut out of them.
        mode: "chunks", "documents_fixed" (the first window) or "documents_random" (any window).
        weight: Share of this dataset in the mix, relative to the others.
        ignored_mode: The mode that the file gives and that `sequential_input` overrules.
    """

    model_config = STRICT

    dataset: Optional[DatasetConfig] = None
    train_glob: str = key(
        "Glob of the training records.", default_factory=_from_dataset("path"), min_length=1
    )
    eval_glob: Optional[str] = key(
        "Glob of the evaluation records.", default_factory=_from_dataset("eval_path")
    )
    id: str = key(
        "Name in logs and metrics.",
        default_factory=lambda data: (
            _from_dataset("id")(data) or data.get("train_glob") or "dataset"
        ),
    )
    stitch: int = key(
        "Documents joined before a window is cut.", 1, gt=0, le=LARGEST_INT, unit="documents"
    )
    mode: str = DOCUMENT_MODES[1]
    weight: float = key("Relative share in the mix.", 1.0, gt=0)
    ignored_mode: Optional[str] = None

    @model_validator(mode="before")
    @classmethod
    def _read_entry(cls, data: Any) -> Any:
        return _source_values(data.entry, data.input_fn) if isinstance(data, RawEntry) else data

    @field_validator("mode", "ignored_mode")
    @classmethod
    def _known_mode(cls, mode: Optional[str]) -> Optional[str]:
        known = (CHUNKS, *DOCUMENT_MODES)
        if mode is not None and mode not in known:
            remedy = choose_from(mode, known)
            raise ValueError(f"is not a known mode (got {shown(mode)}); {remedy}")
        return mode


@dataclass(frozen=True)
class RawEntry:
    """An entry of `datasets` as written, with what its meaning depends on.

    Attributes:
        entry: The entry, in any form.
        input_fn: The input function, which decides between chunks and documents.
    """

    entry: Any
    input_fn: str


def entry_parts(entry: Any) -> tuple[Any, Any, Any, Any]:
    """Splits an entry of the two current forms.

    Args:
        entry: An id or inline dataset config, alone or at the head of a list.

    Returns:
        (id or inline dataset config, stitch, mode, weight), None where the entry is silent.

    Raises:
        ValueError: If the entry has neither form.
    """
    parts = list(entry) if isinstance(entry, (list, tuple)) else [entry]
    if not 1 <= len(parts) <= 4 or not isinstance(parts[0], (str, Mapping, DatasetConfig)):
        raise ValueError(f"must be one dataset (got {shown(entry)}); {_ENTRY_FORMS}")
    head, stitch, mode, weight = parts + [None] * (4 - len(parts))
    return head, stitch, mode, weight


def is_older_form(entry: Any) -> bool:
    """Returns whether an entry is `[train_glob, eval_glob, stitch, mode, weight]`."""
    return isinstance(entry, (list, tuple)) and len(entry) == 5


def _source_values(entry: Any, input_fn: str) -> dict[str, Any]:
    """Turns one entry into the values of a `DatasetSource`, not validated yet.

    Raises:
        ValueError: If the entry has no known form or its mode does not fit `input_fn`.
    """
    if is_older_form(entry):
        train_glob, eval_glob, stitch, mode, weight = entry
        values: dict[str, Any] = {
            "train_glob": train_glob,
            "eval_glob": None if eval_glob == "" else eval_glob,
        }
    else:
        head, stitch, mode, weight = entry_parts(entry)
        if isinstance(head, str):
            raise ValueError(
                f"must be resolved first (got {shown(head)}); load it with load_config, or put "
                f"the dataset config itself in place of its id"
            )
        values = {"dataset": head}
    optional = {"stitch": stitch, "weight": weight} | _modes(mode, input_fn)
    return values | {name: value for name, value in optional.items() if value is not None}


def _modes(mode: Any, input_fn: str) -> dict[str, Any]:
    """Returns the mode in force, and the one that `sequential_input` overrules."""
    mode = DOCUMENT_MODE_ALIASES.get(mode, mode) if isinstance(mode, str) else mode
    if input_fn == "sequential_input":
        return {"mode": CHUNKS, "ignored_mode": None if mode == CHUNKS else mode}
    if mode == CHUNKS:
        raise ValueError(
            "must not have mode chunks under input_fn generic_text, which reads documents "
            f'(got {shown(mode)}); set "input_fn": "sequential_input"'
        )
    return {"mode": mode}


def entry_from_source(source: DatasetSource) -> list[Any]:
    """Returns the entry of `datasets`, JSON values only, that gives this source again."""
    options = [source.stitch, source.ignored_mode or source.mode, source.weight]
    if source.dataset is None:
        return [source.train_glob, source.eval_glob, *options]
    inline = source.dataset.model_dump().items()
    return [{name: value for name, value in inline if value is not None}, *options]
