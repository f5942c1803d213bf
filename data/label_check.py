"""Whether records hold anything to learn: a model whose labels are all masked stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Optional

import numpy as np

from configs.names import CHUNKS
from configs.schema import Config
from data.records import read_labelled_records

if TYPE_CHECKING:
    from data.sources import Source

Record = tuple[str, np.ndarray, Optional[np.ndarray]]
"""Path of the file, ids [length], loss mask [length] or None."""

RECORDS_SEARCHED = 2000


def labelled_records(source: Source) -> Iterator[Record]:
    """The first records of a dataset, in reading order.

    Raises:
        ValueError: a file is damaged.
    """
    records = (
        (path, ids, mask) for path in source.files for ids, mask in read_labelled_records(path)
    )
    return islice(records, RECORDS_SEARCHED)


def _may_hold_label(
    ids: np.ndarray, mask: Optional[np.ndarray], source: Source, config: Config
) -> bool:
    if not config.causal:
        from data.masking import never_chosen

        read = config.n_ctx - (config.mlm_cls_token_id is not None)
        window = ids[:read] if source.mode == CHUNKS else ids
        return bool((~np.isin(window, never_chosen(config))).any())
    if mask is None or source.mode == "documents_random":  # the end of text behind it counts
        return True
    if mask[1 : config.n_ctx + 1].any():  # nothing predicts the first id of a window
        return True
    return source.mode != CHUNKS and len(mask) <= config.n_ctx


def label_problem(records: Iterable[Record], source: Source, config: Config) -> Optional[str]:
    """Says what is wrong if none of a dataset's records can hold a label.

    Args:
        records: the first of them; read until one can.
        source: the dataset.
        config: n_ctx, and how a masked model draws its labels.

    Returns:
        The problem or None. Where not all records were looked at, it may be none.
    """
    searched = 0
    for _, ids, mask in records:
        if _may_hold_label(ids, mask, source, config):
            return None
        searched += 1
    if not searched:
        return None
    remedy = (
        "Add data whose loss_mask is not 0 everywhere; with prompts longer than a window, raise "
        "n_ctx and the chunk_size"
        if config.causal
        else "Add data with other ids, or name fewer in mlm_mask_ignore_ids"
    )
    of_all = f"{searched:,} of " if searched < source.records else ""
    return (
        f"training and evaluation must predict at least one token of {source.id}; got none in "
        f"{of_all}{source.records:,} records. {remedy}."
    )
