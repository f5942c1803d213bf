"""What the machine can do at best: matrix products and reading memory, as TensorFlow does them."""

from __future__ import annotations

from typing import Any

from benchmarks.worker import Run, serve

SIZE = 2048
READ_BYTES = 1 << 29
WORK = {"float32": 2.0 * SIZE**3, "bfloat16": 2.0 * SIZE**3, "read": float(READ_BYTES)}
"""FLOPs of a product, bytes of a sum."""


def build(task: dict[str, Any]) -> dict[str, Run]:
    """Products of [2048, 2048] matrices in both precisions, and a sum over half a gigabyte."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        runs = {}
        for name, dtype in (("float32", tf.float32), ("bfloat16", tf.bfloat16)):
            x = tf.compat.v1.get_variable(
                name, initializer=tf.cast(tf.random.normal([SIZE, SIZE]), dtype), use_resource=False
            )
            runs[name] = tf.linalg.matmul(x, x).op
        values = tf.compat.v1.get_variable(
            "read", initializer=tf.zeros([READ_BYTES // 4]), use_resource=False
        )
        runs["read"] = tf.reduce_sum(values).op
        session = tf.compat.v1.Session()
        session.run(tf.compat.v1.global_variables_initializer())
    return {name: lambda op=op: session.run(op) for name, op in runs.items()}  # type: ignore[misc]


if __name__ == "__main__":
    serve(build)
