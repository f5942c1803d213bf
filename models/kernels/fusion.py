"""Parts of kernels that XLA compiles to one loop over memory.

TensorFlow runs one operation after another on the CPU, and each reads and writes its tensors as a
whole: a GELU and its gradient go through memory some thirty times. Compiled, they go through it
once each. Matrix products stay outside, since oneDNN's are faster than XLA's on the CPU.

Only meshes of CPUs ask for it. A TPU's program is compiled as a whole anyway, and on GPUs XLA
needs tools of CUDA that an installation may lack.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import tensorflow as tf

MIN_ELEMENTS = 1 << 14
"""Below, starting a program costs more than it saves."""

_programs: weakref.WeakKeyDictionary[tf.Graph, dict[Hashable, Any]] = weakref.WeakKeyDictionary()
_asked_for = False


@contextlib.contextmanager
def fusing(mesh_impl: Any) -> Iterator[None]:
    """While kernels are laid out on a mesh: whether ``fused`` has an effect there."""
    global _asked_for
    before, _asked_for = _asked_for, getattr(mesh_impl, "fuses_kernels", False)
    try:
        yield
    finally:
        _asked_for = before


def fused(key: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a program that XLA compiles; in one graph, one for each ``key`` and shapes.

    Args:
        key: functions with the same key must be the same, so that the layers of a model share one
            program.
        function: of tf.Tensors, elementwise or with reductions; no matrix products.
    """

    def program(*inputs: tf.Tensor) -> Any:
        if not _asked_for or not any(_is_large(x) for x in inputs):
            return function(*inputs)
        known = _programs.setdefault(tf.compat.v1.get_default_graph(), {})
        full_key = (key, *((tuple(x.shape.as_list()), x.dtype) for x in inputs))
        if full_key not in known:
            specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
            compiled = tf.function(function, jit_compile=True, autograph=False)
            # Called through its concrete form: the call of a compiled tf.function leaves the
            # control-flow context of the loop that it is in.
            known[full_key] = compiled.get_concrete_function(*specs)
        return known[full_key](*inputs)

    return program


def _is_large(x: tf.Tensor) -> bool:
    return (x.shape.num_elements() or 0) >= MIN_ELEMENTS
