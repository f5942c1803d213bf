"""The one import of Mesh TensorFlow, made to work beside TensorFlow 2.15.

Every other module takes ``mtf`` and ``placement_mesh_impl`` from here, so that the repair below
is in place before the library's first import, whatever is imported first.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops, tensor_conversion_registry

# mesh-tensorflow 0.1.21 registers its tensor conversion under the name that TensorFlow moved
# in 2.13; without it the import fails.
if not hasattr(ops, "register_tensor_conversion_function"):
    ops.register_tensor_conversion_function = (
        tensor_conversion_registry.register_tensor_conversion_function
    )

# Mesh TensorFlow and TPUEstimator build graphs with reference variables.
tf.compat.v1.disable_v2_behavior()

import mesh_tensorflow as mtf  # noqa: E402 - the two repairs above must come first
from mesh_tensorflow import placement_mesh_impl  # noqa: E402

__all__ = ["load_auto_mtf", "mtf", "placement_mesh_impl"]


def load_auto_mtf() -> Any:
    """Mesh TensorFlow's search for layouts; a function, since it needs a library of its own.

    Raises:
        RuntimeError: OR-Tools is not installed.
    """
    try:
        from mesh_tensorflow import auto_mtf
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ortools":
            raise
        raise RuntimeError(
            "OR-Tools must be installed to search for layouts; got none. Run "
            "pip install -r requirements.txt."
        ) from error
    return auto_mtf
