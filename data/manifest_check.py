"""Whether records, by their manifests, are those that a config speaks of.

Records without a manifest are used unchecked: other programs make records too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

from configs.names import CHUNKS
from configs.schema import Config
from data.label_check import Record
from data.manifest import SUFFIX, Manifest, TokenizerIdentity, identify, read_manifest
from data.records import SUFFIX as RECORD_SUFFIX
from data.records import record_count
from data.tokenizers import load_tokenizer
from utils.files import names_in

_SHOWN = 3
_REMAKE = "make the records again"


@dataclass(frozen=True)
class FoundManifest:
    """A manifest that lists some of a dataset's record files.

    Attributes:
        path: of the manifest.
        manifest: its content.
        names: of all files in its folder, record files without what says how they are compressed.
    """

    path: str
    manifest: Manifest
    names: frozenset[str]

    @property
    def paths(self) -> list[str]:
        """Paths of the record files that it lists."""
        folder = os.path.dirname(self.path)
        return [os.path.join(folder, name) for name in self.manifest.files]


@dataclass(frozen=True)
class Findings:
    """What the manifests of a dataset say.

    Attributes:
        found: the manifests.
        problems: why the records must not be used with the config.
        warnings: what may be wrong.
    """

    found: tuple[FoundManifest, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def find_manifests(files: Sequence[str]) -> list[FoundManifest]:
    """Finds the manifests that list record files.

    Args:
        files: paths of record files, local or `gs://`.

    Returns:
        The manifests in the files' folders that list at least one of them.

    Raises:
        ValueError: a manifest that could be theirs cannot be read.
    """
    by_folder: dict[str, set[str]] = {}
    for file in files:
        folder, name = os.path.split(file)
        by_folder.setdefault(folder, set()).add(plain_path(name))
    found = []
    for folder, used in by_folder.items():
        names = frozenset(map(plain_path, names_in(folder or ".")))
        for name in sorted(name for name in names if name.endswith(SUFFIX)):
            start = f"{name[: -len(SUFFIX)]}_"
            if not any(file.startswith(start) for file in used):
                continue  # of another data set
            path = os.path.join(folder, name)
            manifest = read_manifest(path)
            if not used.isdisjoint(map(plain_path, manifest.files)):
                found.append(FoundManifest(path, manifest, names))
    return found


def plain_path(name: str) -> str:
    """A name or path without what says how the records are compressed, which may change later.

    Args:
        name: name or path of any file.

    Returns:
        The same if it is no record file, or none that is compressed.
    """
    start, suffix, _ = name.rpartition(RECORD_SUFFIX)
    return start + suffix if suffix else name


def _unlisted_files(files: Sequence[str], found: Sequence[FoundManifest]) -> list[str]:
    """Record files that no manifest lists, in a folder where others are listed."""
    folders = {os.path.dirname(item.path) for item in found}
    listed = {plain_path(path) for item in found for path in item.paths}
    return [
        file
        for file in files
        if os.path.dirname(file) in folders and plain_path(file) not in listed
    ]


def content_problem(
    found: Sequence[FoundManifest], records: Iterable[Record], dataset_id: str
) -> Optional[str]:
    """Says what is wrong if records are not what their manifest says.

    Args:
        found: manifests of the dataset.
        records: of the dataset; looked at until nothing is left that could be told of them.
        dataset_id: its name.

    Returns:
        The problem or None.
    """
    if not found:
        return None
    owners = {plain_path(path): item for item in found for path in item.paths}
    unmasked = {item.path: 0 for item in found if item.manifest.loss_mask}  # records seen so far
    for path, ids, mask in records:
        item = owners.get(plain_path(path))
        if item is None:
            continue
        size = item.manifest.chunk_size
        if size is not None and len(ids) != size + 1:
            got = f"chunk_size {size:,} and a record of {len(ids):,} ids"
            return _false_manifest(item, dataset_id, got, path)
        if mask is not None and not item.manifest.loss_mask:
            return _false_manifest(item, dataset_id, "no loss_mask and a record with one", path)
        if item.path in unmasked:
            unmasked[item.path] += 1
            if mask is not None:
                del unmasked[item.path]
        if not unmasked:
            return None
    for item in found:
        if unmasked.get(item.path, 0) >= item.manifest.counts.records:
            return _false_manifest(item, dataset_id, "loss_mask and no record with one", item.path)
    return None


def _false_manifest(found: FoundManifest, dataset_id: str, got: str, where: str) -> str:
    return (
        f"records of {dataset_id} must be as {found.path} says; got {got} in {where}. "
        f"{_REMAKE.capitalize()}, or remove the manifest to use them unchecked."
    )


class ManifestCheck:
    """Compares the manifests of a config's datasets with the config."""

    def __init__(self, config: Config) -> None:
        """Reads nothing yet.

        Args:
            config: its tokenizer, n_vocab and eos_id, which all its datasets share.
        """
        self._config = config

    @cached_property
    def _tokenizer(self) -> TokenizerIdentity | str | None:
        """The config's tokenizer, why it cannot be loaded, or None if it names none."""
        dataset = self._config.dataset
        if dataset is None:
            return None
        try:
            return identify(load_tokenizer(dataset.tokenizer_path, dataset.tokenizer_is_pretrained))
        except ValueError as error:
            return str(error)

    def look(self, dataset_id: str, files: Sequence[str], mode: str) -> Findings:
        """Looks for the manifests of a dataset, and compares.

        Args:
            dataset_id: name of the dataset.
            files: paths of its record files, local or `gs://`.
            mode: in which they are read.

        Returns:
            What was found; nothing for records without a manifest.

        Raises:
            ValueError: a manifest cannot be read.
        """
        found = find_manifests(files)
        tokenizer = self._tokenizer if found else None
        problems: list[str] = []
        for item in found:
            candidates = (
                _tokenizer_problem(dataset_id, item, tokenizer),
                _vocabulary_problem(dataset_id, item, self._config),
                _eos_problem(dataset_id, item, self._config),
                _mode_problem(dataset_id, item, mode),
                _missing_problem(dataset_id, item),
                _count_problem(item),
            )
            problems += [problem for problem in candidates if problem is not None]
        warnings = []
        if isinstance(tokenizer, str):
            warnings.append(
                f"Whether the tokenizer of {dataset_id} made its records is not known: {tokenizer}"
            )
        if len(found) > 1:
            names = ", ".join(item.manifest.name for item in found[:_SHOWN])
            warnings.append(
                f"The glob of {dataset_id} matches {len(found)} data sets: {names}"
                f"{', …' if len(found) > _SHOWN else ''}. If one of them is held out, write a "
                "narrower glob, such as name_[0-9]*.tfrecords."
            )
        if unlisted := _unlisted_files(files, found):
            warnings.append(
                f"{len(unlisted)} record file(s) of {dataset_id} are in no manifest, although "
                f"others are: {', '.join(unlisted[:_SHOWN])}. If they are left over from an "
                "earlier run, remove them."
            )
        return Findings(tuple(found), tuple(problems), tuple(warnings))


def _shown(tokenizer: TokenizerIdentity) -> str:
    return f"{tokenizer.name} ({tokenizer.size:,} ids, fingerprint {tokenizer.fingerprint[:8]})"


def _tokenizer_problem(
    dataset_id: str, found: FoundManifest, here: TokenizerIdentity | str | None
) -> Optional[str]:
    made_with = found.manifest.tokenizer
    if not isinstance(here, TokenizerIdentity) or here.fingerprint == made_with.fingerprint:
        return None
    return (
        f"tokenizer of {dataset_id} must be the one that made its records, {_shown(made_with)}, as "
        f"{found.path} says; got {_shown(here)}. Set tokenizer_path of the dataset config to that "
        f"one, or {_REMAKE} with this one."
    )


def _vocabulary_problem(dataset_id: str, found: FoundManifest, config: Config) -> Optional[str]:
    made_with = found.manifest.tokenizer
    if config.token_count >= made_with.size:
        return None
    got = f"{config.n_vocab:,}"
    if config.vocab_padding:
        got += f" minus vocab_padding {config.vocab_padding:,}"
    return (
        f"n_vocab must cover all {made_with.size:,} ids of {made_with.name}, which made the "
        f"records of {dataset_id}, as {found.path} says; got {got}. Set n_vocab to "
        f"{made_with.size + config.vocab_padding} or more."
    )


def _eos_problem(dataset_id: str, found: FoundManifest, config: Config) -> Optional[str]:
    eos_id = found.manifest.eos_id
    if eos_id is None or eos_id == config.eos_id:
        return None
    return (
        f"eos_id must be {eos_id}, which ends a document in the records of {dataset_id}, as "
        f"{found.path} says; got {config.eos_id}. Set eos_id of the dataset config to {eos_id}."
    )


def _mode_problem(dataset_id: str, found: FoundManifest, mode: str) -> Optional[str]:
    if mode != CHUNKS or found.manifest.mode == CHUNKS:
        return None
    return (
        f"records of {dataset_id} must be chunks for input_fn sequential_input; got whole "
        f"documents. Set input_fn to generic_text, or {_REMAKE} with --mode chunks."
    )


def _missing_problem(dataset_id: str, found: FoundManifest) -> Optional[str]:
    missing = [name for name in found.manifest.files if plain_path(name) not in found.names]
    if not missing:
        return None
    shown = []
    for name in missing[:_SHOWN]:
        start = name.rpartition("_")[0] + "_"
        others = sorted(other for other in found.names if other.startswith(start))
        shown.append(f"{name} (instead there is {', '.join(others)})" if others else name)
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return (
        f"record files of {dataset_id} must be all that {found.path} lists; got none named "
        f"{', '.join(shown)}{more}. Copy or rename what is missing, {_REMAKE}, or remove the "
        "manifest to use what is there."
    )


def _count_problem(found: FoundManifest) -> Optional[str]:
    wrong = [name for name, count in found.manifest.files.items() if record_count(name) != count]
    if not wrong:
        return None
    return (
        f"manifest {found.path} must list as many records as a file's name says; got "
        f"{found.manifest.files[wrong[0]]:,} for {wrong[0]}. {_REMAKE.capitalize()}."
    )
