"""What serve.py does: a loaded model behind a socket."""

from __future__ import annotations

import argparse
import logging
import os
from typing import TYPE_CHECKING, Optional

from commands.shared import placement_of, trained_checkpoint
from configs.schema import Config

if TYPE_CHECKING:
    from serving.engine import Engine

LOGGER = logging.getLogger(__name__)


def serve(config: Config, arguments: argparse.Namespace) -> None:
    """Serves the newest checkpoint until the process is asked to end.

    Raises:
        ValueError: flags, config or checkpoint are unusable.
    """
    from configs.masking_rules import require_causal
    from serving.server.listening import bind, is_loopback, run, url_of
    from utils.run_folder import check_trained

    require_causal(config)
    key = read_key(arguments.api_key_file)
    check_trained(config)
    with bind(arguments.host, arguments.port) as bound:  # a port that is taken is told at once
        if key is None and not is_loopback(bound):
            LOGGER.warning(
                "everybody who reaches %s can use the model; --api_key_file asks for a key",
                url_of(bound),
            )

        from serving.server.app import make_app
        from serving.server.service import Limits, Service

        engine = _loaded_engine(config, arguments)
        try:
            name = os.path.basename(os.path.normpath(config.model_path))
            limits = Limits(arguments.most_bytes, arguments.most_seconds)
            app = make_app(Service(engine, name, limits), key)
            greeting = f"serving {name}, step {engine.step}, at {url_of(bound)}"
            run(app, bound, arguments.most_seconds, greeting)
        finally:
            engine.close()
    LOGGER.info("everything is finished")


def read_key(path: Optional[str]) -> Optional[str]:
    """The key of ``--api_key_file``, without the space around it.

    Raises:
        ValueError: there is none in the file.
    """
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            key = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--api_key_file must be a readable text file; got {path} ({error}). Name another one."
        ) from error
    if not key or len(key.split()) > 1 or not key.isascii():
        raise ValueError(
            f"--api_key_file must hold one key of ASCII characters without space; got {path}, "
            "which does not. Write one into it."
        )
    return key


def _loaded_engine(config: Config, arguments: argparse.Namespace) -> Engine:
    """The engine with its weights, after it has run every graph once: the first run is slow."""
    from models.dimensions import WHOLE_IN_GENERATION
    from serving.engine import Engine
    from serving.requests import Sampling
    from serving.samples import tokenizer_of
    from utils.devices import place_inference

    tokenizer = tokenizer_of(config)
    checkpoint = trained_checkpoint(config)
    texts = arguments.texts or config.predict_batch_size
    fit = place_inference(
        config, arguments.gpu_ids, texts, "--texts", WHOLE_IN_GENERATION, arguments.tpu
    )
    engine = Engine(config, placement_of(fit), texts, tokenizer, arguments.most_waiting)
    engine.load(checkpoint)
    scored = 0 if engine.gives_scores else None
    sampling = Sampling.from_config(config, max_new_tokens=1, logprobs=scored)
    lengths = {1, 2, max(config.n_ctx - 1, 1)}  # nothing to feed, a small chunk, all chunks
    engine.generate([[config.eos_id] * length for length in sorted(lengths)], sampling)
    return engine
