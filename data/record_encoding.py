"""Token ids as the bytes of records, for many records at once.

The bytes are those of a serialized `tf.train.Example`. Building that message id by id takes
longer than finding the ids did.

A **masked** id, one that is read but is no label (of a prompt, say), is held as its complement
``~id``, which is negative. So one int32 array carries ids and mask through encoding, packing and
shuffling; only here they part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.records import FEATURE, MASK_FEATURE

_LENGTH_DELIMITED = 2  # wire type
_EXAMPLE_FEATURES = 1  # field numbers of tensorflow/core/example/{example,feature}.proto
_FEATURES_ENTRY = 1
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_FEATURE_INT64_LIST = 3
_INT64_LIST_VALUE = 1


def plain_ids(ids: np.ndarray) -> np.ndarray:
    """Takes the mask off.

    Args:
        ids: token ids, masked ones as their complement, int32.

    Returns:
        Token ids, of the same shape and type.
    """
    return np.where(ids < 0, ~ids, ids)


def encode_records(records: Sequence[np.ndarray] | np.ndarray) -> list[bytes]:
    """Makes the bytes of records.

    A record with masked ids has a second list, `loss_mask`: 1 where the id counts as a label, 0
    where it does not. A record without has none, which means that all ids count.

    Args:
        records: token ids of each record, [length], int32, masked ones as their complement; or
            all in one array, [records, length].

    Returns:
        A serialized `tf.train.Example` for each record.

    Source: https://protobuf.dev/programming-guides/encoding (varints, packed repeated fields).
    """
    if not len(records):
        return []
    signed = np.concatenate(records)
    masked = signed < 0
    has_masks = bool(masked.any())
    data, ends = _varints(plain_ids(signed) if has_masks else signed)
    encoded, start, start_byte = [], 0, 0
    for record in records:
        end = start + len(record)
        end_byte = int(ends[end - 1]) if end else 0
        entries = b""
        if has_masks and masked[start:end].any():
            entries = _entry(MASK_FEATURE, (~masked[start:end]).astype(np.uint8).tobytes())
        entries += _entry(FEATURE, data[start_byte:end_byte])
        encoded.append(_field(_EXAMPLE_FEATURES, entries))
        start, start_byte = end, end_byte
    return encoded


def _varints(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Numbers in 7 bits per byte, the lowest first, the eighth bit set in all but the last.

    Args:
        values: numbers, [length], int32, not negative.

    Returns:
        All bytes, and where each number ends in them, [length], int64.
    """
    widths = np.ones(len(values), np.uint8)
    largest = int(values.max(initial=0))
    for bits in range(7, 32, 7):
        if largest >> bits:
            widths += values >= 1 << bits
    ends = np.cumsum(widths, dtype=np.int64)
    starts = ends - widths
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    while len(starts):  # one byte of all numbers that still have one
        longer = values > 0x7F
        data[starts] = values & 0x7F | longer.view(np.uint8) << 7
        starts, values = starts[longer] + 1, values[longer] >> 7
    return data.tobytes(), ends


def _entry(name: str, packed: bytes) -> bytes:
    """One entry of the map from names to features."""
    values = _field(_INT64_LIST_VALUE, packed) if packed else b""
    feature = _field(_FEATURE_INT64_LIST, values)
    key = _field(_ENTRY_KEY, name.encode())
    return _field(_FEATURES_ENTRY, key + _field(_ENTRY_VALUE, feature))


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | _LENGTH_DELIMITED, *_length(len(content)))) + content


def _length(value: int) -> list[int]:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return [*parts, value]
