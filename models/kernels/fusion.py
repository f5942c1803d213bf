"""Kernels that XLA compiles to one loop over memory.

TensorFlow runs one operation after another on the CPU, and each reads and writes its tensors as a
whole: a GELU and its gradient go through memory some thirty times. Compiled, they go through it
once each. Matrix products stay outside, since oneDNN's are faster than XLA's on the CPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import tensorflow as tf

_compiled: weakref.WeakKeyDictionary[tf.Graph, dict[Hashable, Any]] = weakref.WeakKeyDictionary()


def fused(key: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a program that XLA compiles; in one graph, one for each ``key``.

    Args:
        key: functions with the same key must be the same, so that the layers of a model share one
            program.
        function: of tf.Tensors, elementwise or with reductions; no matrix products.
    """
    programs = _compiled.setdefault(tf.compat.v1.get_default_graph(), {})

    def program(*inputs: tf.Tensor) -> Any:
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
        full_key = (key, *((tuple(x.shape.as_list()), x.dtype) for x in inputs))
        if full_key not in programs:
            compiled = tf.function(function, jit_compile=True, autograph=False)
            # Called through its concrete form: the call of a compiled tf.function leaves the
            # control-flow context of the loop that it is in.
            programs[full_key] = compiled.get_concrete_function(*specs)
        return programs[full_key](*inputs)

    return program
