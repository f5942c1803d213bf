"""Initial values of the weights of embeddings, dense layers and heads, by ``initializer``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from configs.schema import Config
from models.weights import Weights
from utils.mesh_tensorflow import mtf

GPT2_STDDEV = 0.02  # of embedding and dense layers; also of an output layer of its own
GPT2_POSITIONS_STDDEV = 0.01  # also GPT-Neo's
GPTJ_POSITIONS_STDDEV = 0.02

Stddev = Callable[[Config, int], float]
"""From the config and the number of inputs of a weight."""


def _by_inputs(config: Config, inputs: int) -> float:
    return inputs**-0.5


def _folding(config: Config, inputs: int) -> float:
    """Of queries whose scores are not divided by sqrt(head size), as in Mesh TensorFlow."""
    return (inputs * config.head_dim) ** -0.5


def _gpt2_dense(config: Config, inputs: int) -> float:
    return GPT2_STDDEV * (inputs**-0.5 if config.scale_by_in else 1.0)


def _gpt2_dense_out(config: Config, inputs: int) -> float:
    # GPT-2 paper, section 2.3.
    return _gpt2_dense(config, inputs) * (config.n_layer**-0.5 if config.scale_by_depth else 1.0)


def _gptj_out(config: Config, inputs: int) -> float:
    # Of both layers that write to the stream; the width of the stream counts, not the inputs.
    return 2.0 / config.n_layer * config.n_embd**-0.5


_GPT2: dict[str, Stddev] = {
    "embedding": lambda config, inputs: GPT2_STDDEV,
    "positions": lambda config, inputs: GPT2_POSITIONS_STDDEV,
    "folding query": _folding,
    "projection": _by_inputs,
    "attention output": _by_inputs,
    "dense": _gpt2_dense,
    "dense output": _gpt2_dense_out,
    "head": _gpt2_dense,
}
_GPTJ: dict[str, Stddev] = {
    "embedding": _by_inputs,
    "positions": lambda config, inputs: GPTJ_POSITIONS_STDDEV,
    "folding query": _folding,
    "projection": _by_inputs,
    "attention output": _gptj_out,
    "dense": _by_inputs,
    "dense output": _gptj_out,
    "head": _by_inputs,
}


def weight(
    weights: Weights, config: Config, part: str, name: str, dims: Sequence[mtf.Dimension]
) -> mtf.Tensor:
    """A variable [inputs, outputs] that starts as its part of the network does.

    Args:
        weights: of the model.
        config: initializer, n_layer, n_embd and, for ``gpt2``, scale_by_in and scale_by_depth.
        part: of the network; the keys of the tables above.
        name: of the variable.
        dims: inputs first; those of an embedding are its rows.

    Returns:
        The variable, drawn from a normal distribution, for ``gptj`` without what is beyond two
        standard deviations.

    Source: Radford et al. 2019 as GPT-Neo draws them; Mesh Transformer JAX (GPT-J).
    """
    inputs = dims[0].size
    if config.initializer == "gptj":
        return weights.truncated_normal(name, dims, _GPTJ[part](config, inputs))
    return weights.normal(name, dims, _GPT2[part](config, inputs))
