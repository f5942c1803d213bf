"""Tasks of lm-evaluation-harness: found by name, read from local files or the hub, scored.

The harness is a heavy library that only scores need; it is imported by the functions here.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional
from urllib.parse import urlsplit

from evaluation.results import TaskResult
from evaluation.task_files import local_data, shots_of, with_local_data

if TYPE_CHECKING:
    from evaluation.harness_model import HarnessModel

LOGGER = logging.getLogger(__name__)
INSTALL = "Install it with: pip install -r requirements-eval.txt"
BOOTSTRAP_SAMPLES = 1000  # for standard errors that have no formula
FEWSHOT_SEED = 1234  # the harness's

_TASK_LINE = re.compile(rb"^(?:task|group):[ \t]*[\"']?([\w.-]+)", re.MULTILINE)


def require_harness() -> None:
    """Imports the harness.

    Raises:
        ValueError: it is not installed.
    """
    # It asks the environment before it starts processes, which a process with TensorFlow's
    # threads must not do.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    # Its progress bars would go through ours, and its notices are for its own command line.
    for name in ("lm_eval", "datasets", "huggingface_hub", "httpx", "fsspec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        import datasets
        import lm_eval.evaluator  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"lm_eval must be installed to score tasks (Python 3.10 or 3.11); got: {error}. "
            f"{INSTALL}"
        ) from error
    datasets.disable_progress_bars()


class HarnessTasks:
    """Tasks that are ready to be scored.

    Args:
        names: of tasks, groups or tags of the harness, or of YAML files in ``folder``.
        folder: with data of tasks, and tasks of one's own; see ``evaluation/task_files.py``. None
            without one.
        num_fewshot: solved examples before each item; None for what the task says.
        limit: items of each task; None for all.

    Raises:
        ValueError: the harness is not installed, a task is unknown, or its data cannot be read.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Optional[str],
        num_fewshot: Optional[int] = None,
        limit: Optional[int] = None,
    ):
        require_harness()
        self._limit = limit
        with _quiet():
            self._loaded = _load(list(names), folder, num_fewshot)
            for name, task in self._loaded["tasks"].items():
                _set_fewshot(name, task, num_fewshot)

    def score(self, model: HarnessModel) -> list[TaskResult]:
        """Scores a model on every task; groups come after their tasks.

        Raises:
            ValueError: an item cannot be scored.
        """
        from lm_eval.evaluator import evaluate

        with _quiet():
            found = evaluate(
                lm=model,
                task_dict=self._loaded,
                limit=self._limit,
                bootstrap_iters=BOOTSTRAP_SAMPLES,
                log_samples=False,
            )
        scores = dict(found["results"]) | found.get("groups", {})
        return [
            TaskResult.from_harness(
                name,
                scores[name],
                items=found["n-samples"].get(name, {}).get("effective"),
                shots=found["n-shot"].get(name),
                version=found["versions"].get(name),
            )
            for name in scores
        ]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the harness prints: stdout is for results."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _load(names: list[str], folder: Optional[str], num_fewshot: Optional[int]) -> Any:
    """The harness's tasks and groups, with their data."""
    from lm_eval.tasks import TaskManager

    if folder is not None and not os.path.isdir(folder):
        raise ValueError(
            f"eval_tasks_path must be a folder; got {folder}. Make it, or leave it out to read "
            "tasks' data from the hub."
        )
    own = [folder] if folder is not None else []
    places, known = _places_of(names)
    manager = TaskManager(include_defaults=False, include_path=[*places, *own])
    unknown = [name for name in names if name not in manager.task_index]
    if unknown:
        _refuse_unknown(unknown, [*known, *manager.all_tasks])
    if set(names) & set(manager.all_groups):  # whose tasks may lie anywhere
        LOGGER.info("reading the list of all tasks, which takes about half a minute")
        manager = TaskManager(include_path=own)
    _go_offline_if_the_hub_is_not_there()
    if folder is not None:
        _use_local_data(manager.task_index, folder, num_fewshot)
    built: list[Any] = []
    for name in names:
        built += _built(manager, name, folder)
    loaded = manager.load(built)
    for name, task in loaded["tasks"].items():
        _check(name, task)
    return loaded


def _places_of(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Folders of the harness that speak of ``names``, and the names of all of its tasks.

    Reading all tasks takes the harness half a minute; looking for a word in their files does not.
    """
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    words = [re.compile(rb"(?<![\w.-])" + re.escape(n.encode()) + rb"(?![\w.-])") for n in names]
    places, known = set(), set()
    for folder, _, files in os.walk(root):
        for name in files:
            if not name.endswith("yaml"):
                continue
            content = Path(folder, name).read_bytes()
            known |= {task.decode() for task in _TASK_LINE.findall(content)}
            if any(word.search(content) for word in words):
                places.add(str(root / Path(folder).relative_to(root).parts[0]))
    return sorted(places), sorted(known)


def _refuse_unknown(names: Sequence[str], known: Sequence[str]) -> None:
    lines = []
    for name in names:
        near = difflib.get_close_matches(name, known, n=3)
        lines.append(name + (f" (did you mean {' or '.join(near)}?)" if near else ""))
    raise ValueError(
        f"tasks must be names that lm-evaluation-harness or eval_tasks_path knows; got "
        f"{', '.join(lines)}. Correct the name, or put the task's YAML file into eval_tasks_path."
    )


def _go_offline_if_the_hub_is_not_there() -> None:
    """Without a network the libraries of the hub would try for half a minute for each data set."""
    import datasets
    from huggingface_hub import constants

    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True


def _use_local_data(index: dict[str, Any], folder: str, num_fewshot: Optional[int]) -> None:
    """Makes tasks of the harness's index read their data from files, as far as there are any."""
    from lm_eval.tasks._yaml_loader import load_yaml

    for name in sorted(os.listdir(folder)):
        entry = index.get(name)
        if entry is None or not entry.yaml_path:
            continue
        data = local_data(folder, name)
        if data is not None:
            settings = with_local_data(
                name, load_yaml(entry.yaml_path, resolve_func=True), data, num_fewshot
            )
            index[name] = replace(entry, yaml_path=None, cfg=settings)


def _built(manager: Any, name: str, folder: Optional[str]) -> list[Any]:
    """The harness's objects of a task, a group or a tag."""
    entry = manager.task_index[name]
    members = sorted(entry.tags) if entry.kind.name == "TAG" else [name]
    built = []
    for member in members:
        try:
            loaded = manager.load([member])
        except OSError as error:  # those of the hub's libraries are among them
            raise _no_data(member, manager.task_index[member].cfg, folder, error) from error
        except Exception as error:  # of what the task's file does with items that it does not fit
            raise ValueError(
                f"task {member} must fit its data; got: {type(error).__name__}: {_line(error)}. "
                "Mend the task's file or its data."
            ) from error
        built += list(loaded.get("groups", {}).values()) or list(loaded["tasks"].values())
    return built


def _line(error: BaseException) -> str:
    """The first line of what an error says; readers of data files put a general one on top."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


def _no_data(
    name: str, task: Optional[dict[str, Any]], folder: Optional[str], error: Exception
) -> ValueError:
    """The error of a task whose data are neither here nor on the hub."""
    settings = task or {}
    split = settings.get("test_split") or settings.get("validation_split")
    source = settings.get("dataset_path")
    if split and source:
        what, place = f"the split {split} of {source}", os.path.join(name, f"{split}.jsonl")
    else:  # a group, or a task that makes its data itself
        what, place = "the data of its tasks", os.path.join("<task>", "<split>.jsonl")
    flag = "" if folder is not None else ", and name FOLDER as eval_tasks_path"
    return ValueError(
        f"task {name} must have readable data; got: {_line(error)}. Put {what} into "
        f"{os.path.join(folder or 'FOLDER', place)} (or .json, .parquet, .csv){flag}; or load it "
        "once with a network, and bring the hub's cache (HF_HOME) along."
    )


def _check(name: str, task: Any) -> None:
    """Refuses a task that could not be scored, before anything is."""
    multimodal = getattr(task, "MULTIMODAL", False)
    if multimodal or getattr(task, "UNSAFE_CODE", False):
        what = "images or sound" if multimodal else "running code that the model writes"
        raise ValueError(f"task {name} must need text only; got one with {what}. Leave it out.")
    # Others it would take from a library that has the name of evaluate.py.
    metrics = {} if task.config.process_results else getattr(task, "_metric_fn_list", {})
    unknown = [metric for metric, function in metrics.items() if function is None]
    if unknown:
        raise ValueError(
            f"metrics of task {name} must be lm-evaluation-harness's own; got "
            f"{', '.join(unknown)}. Leave the task out."
        )
    if not len(task.eval_docs):
        raise ValueError(f"task {name} must have at least one item; got none. Mend its data.")


def _set_fewshot(name: str, task: Any, num_fewshot: Optional[int]) -> None:
    shots = shots_of(task.get_config("num_fewshot"), num_fewshot)
    # One more than that, since the item itself may be among them.
    if shots and len(examples := list(task.fewshot_docs() or ())) <= shots:
        raise ValueError(
            f"num_fewshot must be below the number of examples of task {name}, {len(examples)}; "
            f"got {shots}. Lower it, or add examples."
        )
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)
