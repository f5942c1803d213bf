"""What flags and data paths must be, as far as it can be told before TensorFlow is imported."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Optional

from configs.errors import shown
from configs.schema import Config
from utils.files import is_remote, missing_folders

_WEIGHT_BYTES = 4  # float32, whatever the precision of activations
_RUN_ID = re.compile(r"[^/\x00-\x1f\x7f]{1,100}")
_PATTERN = re.compile(r"[*?\[\\]")
_READ_DIFFERENTLY = re.compile(r"[\[\\]")  # by TensorFlow's globs and by fnmatch


def check_run_id(run_id: Optional[str]) -> None:
    """Refuses an id that cannot be part of a file name.

    Raises:
        ValueError: that.
    """
    if run_id is not None and not _RUN_ID.fullmatch(run_id):
        raise ValueError(
            "--sacred_id must be 1 to 100 characters without / or control characters, since it "
            f"becomes part of file names; got {shown(run_id)}. Change it."
        )


def check_output_file(path: Optional[str]) -> None:
    """Refuses a file that could not be written, before anything is computed for it.

    Raises:
        ValueError: that.
    """
    if path is None:
        return
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ValueError(f"--out must be in a folder that exists; got {path}. Make it.")
    if not path or os.path.isdir(path):
        raise ValueError(
            f"--out must name a file; got {f'the folder {path}' if path else 'an empty name'}. "
            "Add the name of a file."
        )
    if not _can_be_written(path):
        raise ValueError(
            f"--out must be a file that can be written; got {path}. Change its permissions, or "
            "name another file."
        )


def _can_be_written(path: str) -> bool:
    """Tries it where there is no file, since permissions do not tell of every file system."""
    if os.path.exists(path):
        return os.access(path, os.W_OK)
    try:
        with open(path, "xb"):
            pass
        os.remove(path)
    except OSError:
        return False
    return True


def check_output_folder(path: Optional[str], default: str) -> None:
    """Refuses a folder that could not be made or written, and leaves nothing behind.

    Args:
        path: of ``--out``; None without the flag.
        default: the folder that is taken then, within model_path.

    Raises:
        ValueError: that.
    """
    folder = path or default
    if is_remote(folder):
        return
    made = missing_folders(folder)
    try:
        os.makedirs(folder, exist_ok=True)
        writable, why = os.access(folder, os.W_OK), "permission denied"
    except FileExistsError:
        return  # a file: the export says so
    except OSError as error:
        writable, why = False, str(error.strerror).lower()
    for name in filter(os.path.isdir, made):
        os.rmdir(name)
    if not writable:
        subject = "--out" if path else "model_path"
        raise ValueError(
            f"{subject} must be a folder that can be made and written; got {folder} ({why}). "
            "Change its permissions, or name another folder with --out."
        )


def check_weights_fit(config: Config) -> None:
    """Refuses a model whose weights alone are larger than the memory of this machine.

    Counted are the matrices that every such model has, so that no model is refused that fits.

    Raises:
        ValueError: that.
    """
    square = config.n_embd**2
    attention = 4 * square * sum(kind != "none" for kind in config.attention_layers)
    feed_forward = 8 * square * (config.n_layer - len(set(config.moe_layers)))
    need = _WEIGHT_BYTES * (config.n_vocab * config.n_embd + attention + feed_forward)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if need > there:
        raise ValueError(
            "the weights of a model must fit into the memory of the machine; got at least "
            f"{need / 1e9:,.1f} GB with n_embd {config.n_embd}, n_layer {config.n_layer} and "
            f"n_vocab {config.n_vocab}, and {there / 1e9:,.1f} GB of memory. Lower them, or run "
            "on several machines; --dry_run tells what a job needs."
        )


def check_evaluation_files(config: Config) -> None:
    """Refuses to evaluate without records, as far as local globs tell; the reader sees the rest.

    Raises:
        ValueError: no dataset has an eval_path, or one matches no file.
    """
    sources = [source for source in config.sources if source.eval_glob]
    if not sources:
        raise ValueError(
            "datasets must name at least one dataset with an eval_path; got none. Add one to the "
            "config."
        )
    for source in sources:
        if not _may_match(str(source.eval_glob)):
            raise ValueError(
                f"dataset {source.id} must match at least one record file; got none for "
                f"{source.eval_glob}. Make records with data/create_tfrecords.py or correct the "
                "dataset config's eval_path."
            )


def _may_match(pattern: str) -> bool:
    """Whether TensorFlow may find a file for a glob."""
    folder, name = os.path.split(pattern)
    if is_remote(pattern) or _PATTERN.search(folder):
        return True
    names = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    return bool(names if _READ_DIFFERENTLY.search(name) else fnmatch.filter(names, name))
