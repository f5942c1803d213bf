"""Keys that decide what is read."""

from typing import Any, Literal

from pydantic import BaseModel, ValidationInfo, field_validator

from configs.datasets import GPT2_EOS_ID, DatasetSource, RawEntry
from configs.fields import LARGEST_INT, MOST_DATASETS, STRICT, key


def _from_dataset(name: str) -> Any:
    """Returns a default factory: the id of the first dataset config, else that of GPT-2."""

    def default(data: dict[str, Any]) -> int:
        datasets = (source.dataset for source in data.get("datasets", ()))
        dataset = next((dataset for dataset in datasets if dataset is not None), None)
        otherwise = data.get("eos_id", GPT2_EOS_ID)
        return int(otherwise if dataset is None else getattr(dataset, name))

    return default


class DataKeys(BaseModel):
    """Training and evaluation data."""

    model_config = STRICT

    input_fn: Literal["sequential_input", "generic_text"] = key(
        "`sequential_input` reads chunks one after another, `generic_text` stitches documents.",
        "sequential_input",
        example="generic_text",
    )
    datasets: tuple[DatasetSource, ...] = key(
        "`[[id, stitch, mode, weight], …]`, `[id, …]` or the older "
        "`[[train_glob, eval_glob, stitch, mode, weight], …]`; a dataset config may stand in "
        "place of its id.",
        (),
        max_length=MOST_DATASETS,
        example=[["pile", None, None, 0.8], ["stdlib", None, None, 0.2]],
    )
    shuffle_input_filenames: bool = key("Record files are read in a seeded random order.", True)
    eos_id: int = key(
        "Id that ends a document: put after each stitched one; generated text stops at it.",
        default_factory=_from_dataset("eos_id"),
        default_text="that of the dataset config; else 50256, or required where it is used if "
        "`n_vocab` is smaller",
        ge=0,
        le=LARGEST_INT,
        unit="token id",
        example=0,
    )
    padding_id: int = key(
        "Id of padding, if the records hold any: `--check_dataset` shows it, nothing is filled up.",
        default_factory=_from_dataset("padding_id"),
        default_text="that of the dataset config; `eos_id` without one",
        ge=0,
        le=LARGEST_INT,
        unit="token id",
        example=1,
    )

    @field_validator("datasets", mode="before")
    @classmethod
    def _read_entries(cls, entries: Any, info: ValidationInfo) -> Any:
        if not isinstance(entries, (list, tuple)):
            return entries
        input_fn = info.data.get("input_fn", "sequential_input")
        return tuple(
            entry if isinstance(entry, DatasetSource) else RawEntry(entry, input_fn)
            for entry in entries
        )
