"""What a command that makes records has to do besides making them.

Both data/create_tfrecords.py, on this machine, and data/create_tfrecords_beam.py, on many, turn
options into a plan, refuse what must not be replaced, and publish what was made: files, manifest,
dataset config.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from data.account import Account
from data.dataset_config import (
    dataset_config,
    dataset_config_path,
    previous_dataset_config,
    write_dataset_config,
)
from data.documents import find_files
from data.encoding import EncoderSpec
from data.manifest import Counts, Manifest, identify, manifest_path, write_manifest
from data.preparation import Plan
from data.record_writer import RecordWriter
from data.records import record_files, remove_files
from data.separator import parse_separator
from data.tokenizers import GPT2_NAME, Tokenizer
from utils.files import exists

_log = logging.getLogger("create_tfrecords")


class NoRecords(ValueError):
    """Nothing came out, and nothing would if the work went on."""


@dataclass(frozen=True)
class RecordJob:
    """One data set that is to be made.

    Attributes:
        options: checked options of the command line.
        plan: what is to be made.
        tokenizer: that makes the ids.
        config_path: of the dataset config to write, if any.
        previous_config: content of the one that is replaced.
    """

    options: argparse.Namespace
    plan: Plan
    tokenizer: Tokenizer
    config_path: Optional[Path]
    previous_config: dict[str, Any]

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> RecordJob:
        """Finds the input and loads the tokenizer.

        Args:
            options: checked options of the command line.

        Returns:
            The job.

        Raises:
            ValueError: an option does not fit what is there.
        """
        config_path, previous_config = None, {}
        if options.write_dataset_config is not None:  # refused before any work
            config_path = dataset_config_path(options.write_dataset_config or options.name)
            previous_config = previous_dataset_config(config_path, options.overwrite)
        plan, tokenizer = _make_plan(options)
        return cls(options, plan, tokenizer, config_path, previous_config)

    @property
    def record_options(self) -> dict[str, Any]:
        """The options that decide which records come out and have no place of their own."""
        plan = self.plan
        return {
            "text_key": plan.text_key,
            "minimum_size": plan.minimum_size,
            "min_unique_tokens": plan.min_unique_tokens,
            "seed": plan.seed,
            "repack_epochs": plan.epochs,
            "treat_eot_as_text": plan.spec.treat_eot_as_text,
            "normalize_with_ftfy": plan.spec.ftfy,
            "normalize_with_wikitext_detokenize": plan.spec.wikitext_detokenize,
        }

    def refuse_previous(self) -> None:
        """Refuses to replace records unless that was asked for.

        Raises:
            ValueError: there are records of this name.
        """
        folder, name = self.plan.output_dir, self.plan.name
        previous = record_files(folder, name)
        if previous and not self.options.overwrite:
            raise ValueError(
                f"output_dir must hold no records of the name {name!r}; got {len(previous)} "
                f"files in {folder}. Give another --name, or --overwrite to replace them."
            )

    def refuse_empty(self, account: Account) -> None:
        """Refuses to publish nothing.

        Args:
            account: of what was made.

        Raises:
            NoRecords: there is no record.
        """
        options = self.options
        if account.records:
            if account.tokens_masked == account.tokens_kept:
                raise NoRecords(
                    "records must hold tokens that a model is to learn; got "
                    f"{account.tokens_masked:,} tokens of prompts and none of completions, out of "
                    f"{options.input_dir}. Give shorter prompts, more data, or --mode documents."
                )
            return
        if account.records_repetitive:
            raise NoRecords(
                f"at least one record must have {options.min_unique_tokens} different ids; got "
                f"{account.records_repetitive} records with fewer, out of {options.input_dir}. "
                "Give a smaller --min_unique_tokens."
            )
        if options.mode == "chunks" and account.documents_kept:
            raise NoRecords(
                f"a chunk must be filled with {options.chunk_size + 1} tokens; "
                f"got {account.tokens_tail} tokens in all of {options.input_dir}. "
                "Give more text or a smaller --chunk_size."
            )
        raise NoRecords(
            f"at least one document must have {max(1, options.minimum_size)} tokens; got "
            f"{account.documents} documents, the longest of {account.longest_document} tokens, in "
            f"{options.input_dir}. Give more text or a smaller --minimum_size."
        )

    def publish(self, writer: RecordWriter, account: Account) -> None:
        """Gives the files their names, removes earlier ones, and writes the manifest last.

        The dataset config, if one is wanted, comes after it.

        Args:
            writer: that has the files.
            account: of what is in them.
        """
        plan = self.plan
        path = manifest_path(plan.output_dir, plan.name)
        if exists(path):  # it would speak of files that are not there any more
            remove_files([path])
        files = set(writer.close())
        remove_files(set(record_files(plan.output_dir, plan.name)) - files)
        write_manifest(self._manifest(writer.files, account), plan.output_dir)
        if self.config_path is None:
            return
        content = dataset_config(
            self.tokenizer,
            self.options.use_gpt2_tokenizer,
            eos_id=int(plan.separator[-1]),
            output_dir=plan.output_dir,
            name=plan.name,
            compressed=plan.compress,
        )
        write_dataset_config(self.config_path, content, self.previous_config)
        _log.info("dataset config: %s", self.config_path)

    def _manifest(self, files: dict[str, int], account: Account) -> Manifest:
        plan = self.plan
        return Manifest(
            name=plan.name,
            tokenizer=identify(self.tokenizer),
            mode=self.options.mode,
            chunk_size=self.options.chunk_size if plan.chunk_length is not None else None,
            separator=tuple(plan.separator.tolist()),
            options=self.record_options | {"skip_bad": self.options.skip_bad},
            counts=Counts(
                documents_read=account.documents,
                documents_kept=account.documents_kept,
                documents_dropped={
                    "too_small": account.documents_too_small,
                    "bad": account.documents_bad,
                },
                records=account.records,
                tokens_read=account.tokens_read,
                tokens_kept=account.tokens_kept,
                tokens_dropped={
                    "too_small": account.tokens_too_small,
                    "few_unique": account.tokens_repetitive,
                    "tail": account.tokens_tail,
                },
                text_bytes=account.text_bytes,
            ),
            files=files,
            loss_mask=account.tokens_masked > 0,
        )


def _make_plan(options: argparse.Namespace) -> tuple[Plan, Tokenizer]:
    paths, others = find_files(options.input_dir, options.suffix)
    if others:
        _log.info("%d files of other formats are left out; --suffix adds text files.", others)
    spec = EncoderSpec(
        tokenizer_path=options.encoder_path or GPT2_NAME,
        is_pretrained=options.use_gpt2_tokenizer,
        treat_eot_as_text=options.treat_eot_as_text,
        ftfy=options.ftfy,
        wikitext_detokenize=options.wikitext_detokenize,
    )
    tokenizer = spec.load()
    in_chunks = options.mode == "chunks"
    is_needed = in_chunks or options.write_dataset_config is not None
    if is_needed or options.separator is not None or tokenizer.eos_id is not None:
        separator = parse_separator(options.separator, tokenizer)
    else:
        separator = np.zeros(0, np.int32)
    plan = Plan(
        paths=paths,
        text_key=options.text_key,
        spec=spec,
        name=options.name,
        output_dir=options.output_dir,
        files_per=options.files_per,
        chunk_length=options.chunk_size + 1 if in_chunks else None,
        separator=separator,
        minimum_size=options.minimum_size,
        min_unique_tokens=options.min_unique_tokens,
        compress=options.compress,
        seed=options.seed,
        epochs=options.repack_epochs,
    )
    return plan, tokenizer
