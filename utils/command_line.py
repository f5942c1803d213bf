"""The command line of main.py: its flags, and every rule between them."""

import argparse
import difflib
import json
import re
from collections.abc import Sequence
from typing import Optional

from utils.cluster_flags import add_cluster_flags, cluster_conflict
from utils.flags import ExitingParser, at_least
from utils.sampling_flags import PREDICT_ONLY, add_sampling_flags

DEFAULT_STEPS_PER_CHECKPOINT = 5000

# Flag -> mode; without any of them a run trains.
_MODE_FLAGS: dict[str, str] = {
    "predict": "predict",
    "eval": "eval",
    "export": "export",
    "check_dataset": "check_dataset",
    "dry_run": "dry_run",
    "print_config": "print_config",
    "auto_layout": "auto_layout",
    "auto_layout_and_mesh_shape": "auto_layout",
}

# Modes that use no mesh, or choose one themselves.
_WITHOUT_FIT_MESH = ("--check_dataset", "--auto_layout_and_mesh_shape")

# Flags that existed in relatives or earlier versions, and what to write in place of them.
_RENAMED: dict[str, str] = {
    "--dry": "--dry_run",
    "--run_mode": "--predict",
    "--config": "--model",
    "--gpus": "--gpu_ids",
    "--checkpoint_steps": "--steps_per_checkpoint",
    "--overwrite": "--new",
    "--output": "--out",
}

_DEVICE = re.compile(r"/?(?:device:)?(?:(?P<kind>GPU|CPU):)?(?P<index>\d{1,6})", re.IGNORECASE)

_FLAG = re.compile(r"--?[A-Za-z][\w-]*")


def parse_gpu_ids(values: Sequence[str]) -> tuple[str, ...]:
    """Reads device names in any of their usual forms.

    `0,1`, `0 1`, `GPU:0 GPU:1` and `device:GPU:0 device:GPU:1` mean the same.
    `device:CPU:0 device:CPU:1` names virtual CPU devices.

    Args:
        values: The words after `--gpu_ids`.

    Returns:
        Full names without duplicates, for instance ("device:GPU:0", "device:GPU:1").

    Raises:
        ValueError: If there is no device, a word names none, one is named twice or GPUs and
            CPUs are mixed.
    """
    words = [word for value in values for word in value.replace(",", " ").split()]
    if not words:
        raise ValueError("--gpu_ids must name at least one device; got none. Write --gpu_ids 0.")
    names: list[str] = []
    for word in words:
        match = _DEVICE.fullmatch(word)
        if match is None:
            raise ValueError(
                f"--gpu_ids must be device numbers or names; got {word!r}. "
                "Write 0 1, or device:GPU:0 device:GPU:1."
            )
        names.append(f"device:{(match['kind'] or 'GPU').upper()}:{int(match['index'])}")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--gpu_ids must name each device once; got {name} twice. Remove one.")
    if len({name.split(":")[1] for name in names}) > 1:
        raise ValueError(
            f"--gpu_ids must be all GPUs or all CPUs; got {' '.join(names)}. Choose one kind."
        )
    return tuple(names)


def build_parser(
    prog: str = "main.py",
    description: str = "Train, evaluate, sample from, export or inspect a GPT-style model.",
) -> argparse.ArgumentParser:
    """Returns the parser of main.py; `parse_arguments` also checks the flags together."""
    parser = ExitingParser(
        prog=prog,
        description=description,
        allow_abbrev=False,
    )
    _add_run_flags(parser.add_argument_group("run"))
    add_cluster_flags(parser.add_argument_group("several machines"), at_least)
    _add_mode_flags(parser.add_argument_group("what to do, in place of training (one of them)"))
    add_sampling_flags(parser.add_argument_group("sampling, with --predict"))
    return parser


def _add_run_flags(group: argparse._ArgumentGroup) -> None:
    """Flags of every run."""
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="shipped config or JSON file (default: none, it is required)",
    )
    group.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace one key of the config, repeatable (default: none)",
    )
    group.add_argument(
        "--steps_per_checkpoint",
        type=at_least(1),
        default=DEFAULT_STEPS_PER_CHECKPOINT,
        metavar="N",
        help=f"steps between checkpoints (default: {DEFAULT_STEPS_PER_CHECKPOINT})",
    )
    group.add_argument(
        "--tpu",
        metavar="NAME",
        help="TPU to run on: its name, grpc://HOST:PORT, local on a TPU VM, or colab (default: "
        "none, no TPU)",
    )
    group.add_argument(
        "--gpu_ids",
        nargs="+",
        metavar="ID",
        help="devices: 0 1, or device:GPU:0 device:GPU:1, or device:CPU:0 for virtual CPU "
        "devices (default: none, the CPU)",
    )
    group.add_argument(
        "--fit_mesh",
        action="store_true",
        help="choose the sizes of the mesh axes for the devices at hand (default: off)",
    )
    group.add_argument(
        "--sacred_id", metavar="ID", help="id of the tracked run (default: none, not tracked)"
    )
    group.add_argument(
        "--init_from",
        metavar="PATH",
        help="fine-tune: begin at step 0 with the weights of this run, checkpoint, or folder of "
        "Hugging Face or Mesh Transformer JAX (default: none, random weights)",
    )
    group.add_argument(
        "--fresh_opt",
        action="store_true",
        help="with --init_from: begin with a new optimizer (default: off, with the stored one)",
    )
    group.add_argument(
        "--new",
        action="store_true",
        help="delete the run and train from scratch, asks first (default: off, resume)",
    )
    group.add_argument(
        "--yes", action="store_true", help="answer yes to the question of --new (default: off)"
    )
    group.add_argument(
        "--debug", action="store_true", help="show a traceback with an error (default: off)"
    )


def _add_mode_flags(group: argparse._ArgumentGroup) -> None:
    """Flags that do something else than train."""
    texts = {
        "predict": "continue a prompt",
        "eval": "evaluate the newest checkpoint",
        "export": "write the newest checkpoint as a SavedModel, for TensorFlow Serving",
        "check_dataset": "show decoded samples, token ids and record counts",
        "dry_run": "report parameters, memory and layout without executing anything",
        "print_config": "print the resolved config as JSON",
        "auto_layout": "print the layout of the mesh that needs the least memory",
        "auto_layout_and_mesh_shape": "print the mesh shape and layout that need the least memory, "
        "for the devices of --gpu_ids or as many processors as the config's mesh has",
    }
    for name, text in texts.items():
        group.add_argument(f"--{name}", action="store_true", help=f"{text} (default: off)")


def parse_arguments(
    argv: Sequence[str], parser: Optional[argparse.ArgumentParser] = None
) -> argparse.Namespace:
    """Parses and checks the command line of main.py.

    Args:
        argv: The words after the program name.
        parser: That of `build_parser`, with further flags; without any if None.

    Returns:
        The values of all flags. In addition `mode` is one of train, eval, predict, export,
        check_dataset, dry_run, print_config, auto_layout; `gpu_ids` is a tuple of full device
        names, empty if not given; `overrides` is the list of `--set` texts. Sampling flags that
        are not given are None.

    Raises:
        SystemExit: With code 2 and one line on stderr if the flags are not usable; with code 0
            after `--help`.
    """
    parser = parser or build_parser()
    words = list(argv)
    message = _unknown_flags(parser, words)
    if message:
        parser.error(message)
    namespace, extra = parser.parse_known_args(words)
    if extra:
        parser.error(f"every value must follow its flag; got {' '.join(extra)}. Remove it.")
    message = _conflict(namespace)
    if message:
        parser.error(message)
    try:
        namespace.gpu_ids = parse_gpu_ids(namespace.gpu_ids) if namespace.gpu_ids else ()
    except ValueError as error:
        parser.error(str(error))
    chosen = [mode for flag, mode in _MODE_FLAGS.items() if getattr(namespace, flag)]
    namespace.mode = chosen[0] if chosen else "train"
    return namespace


def base_keys(arguments: argparse.Namespace) -> list[str]:
    """The keys of the config that --init_from and --fresh_opt set, as those of ``--set``."""
    keys = []
    if arguments.init_from is not None:
        keys.append(f"init_from={json.dumps(arguments.init_from)}")
    if arguments.fresh_opt:
        keys.append("fresh_opt=true")
    return keys


def _unknown_flags(parser: argparse.ArgumentParser, words: Sequence[str]) -> Optional[str]:
    """Returns the message about words that look like flags and are none, or None."""
    known = sorted(parser._option_string_actions)
    messages = []
    for word in words:
        flag = word.partition("=")[0]
        if not _FLAG.fullmatch(flag) or flag in known:
            continue
        spelled = flag.lstrip("-").replace("-", "_").lower()
        names = [name[2:] for name in known if name.startswith("--")]  # all share the dashes
        near = difflib.get_close_matches(spelled, names, n=1)
        meant = _RENAMED.get(flag) or (f"--{near[0]}" if near else None)
        remedy = f"Did you mean {meant}?" if meant else "See --help for all flags."
        messages.append(f"{flag} is not a flag of {parser.prog}. {remedy}")
    return " ".join(messages) or None


def _conflict(namespace: argparse.Namespace) -> Optional[str]:
    """Returns the message about flags that exclude each other, or None."""
    if not namespace.model:
        return "--model must be given; got none. Name a shipped config or a JSON file."
    if namespace.tpu is not None and not namespace.tpu.strip():
        return (
            "--tpu must name a TPU; got an empty name. Write its name, grpc://HOST:PORT, local or "
            "colab, or leave it out."
        )
    if namespace.tpu and namespace.gpu_ids:
        return "--tpu must not be combined with --gpu_ids; got both. Remove one of them."
    modes = [f"--{flag}" for flag in _MODE_FLAGS if getattr(namespace, flag)]
    if len(modes) > 1:
        got = " and ".join(modes)
        return f"the mode of a run must be one; got {got}. Keep one of them."
    if not namespace.predict:
        # A run that trains continues the prompt at its checkpoints, if predict_steps is set.
        allowed = ("out",) if namespace.export else () if modes else ("prompt",)
        given = [
            f"--{flag}"
            for flag in PREDICT_ONLY
            if _is_given(namespace, flag) and flag not in allowed
        ]
        if given == ["--out"]:
            return "--out is for --predict and --export only; got neither. Add one of them."
        if given:
            verb = "is" if len(given) == 1 else "are"
            return f"{', '.join(given)} {verb} for --predict only; got no --predict. Add it."
    if namespace.export and (namespace.gpu_ids or namespace.tpu):
        flag = "--gpu_ids" if namespace.gpu_ids else "--tpu"
        return (
            f"{flag} must not be combined with --export, since a SavedModel names no devices; "
            "got both. Remove one of them."
        )
    if namespace.fit_mesh and modes and modes[0] in _WITHOUT_FIT_MESH:
        return f"--fit_mesh must not be combined with {modes[0]}; got both. Remove one of them."
    if namespace.new and modes:
        return f"--new must not be combined with {modes[0]}; got both. Remove one of them."
    for flag in ("--init_from", "--fresh_opt"):
        if modes and _is_given(namespace, flag.removeprefix("--")):
            return f"{flag} is for training only; got {modes[0]} as well. Remove one of them."
    if namespace.yes and not namespace.new:
        return "--yes must come with --new; got it alone. Remove it or add --new."
    return cluster_conflict(namespace, modes[0] if modes else None)


def _is_given(namespace: argparse.Namespace, flag: str) -> bool:
    value = getattr(namespace, flag)
    return value is not None and value is not False
