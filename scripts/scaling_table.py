"""Prints the table of docs/scaling.md: dry runs of large models on 8 to 2,048 processors.

Usage: python scripts/scaling_table.py [SIZE ...]      (about half a minute per row)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from configs.load import parse_config  # noqa: E402
from configs.schema import Config  # noqa: E402
from inspection.measure import DryRun, measure  # noqa: E402

FLOPS_PER_SECOND = 60e12  # of one TPU v3 core in bfloat16, rounded
BYTES_PER_SECOND = 70e9  # that one core sends, rounded


class Size(NamedTuple):
    """A model: layers, width, heads, and the smallest global batch that is looked at."""

    layers: int
    width: int
    heads: int
    batch: int


SIZES = {
    "1.3B": Size(24, 2048, 16, 512),
    "6B": Size(28, 4096, 16, 512),
    "20B": Size(44, 6144, 64, 512),
    "200B": Size(96, 13312, 128, 1024),
}
# (model, processors, of them along the model's axis)
ROWS = (
    ("1.3B", 8, 1),
    ("1.3B", 32, 1),
    ("1.3B", 256, 1),
    ("6B", 8, 8),
    ("6B", 32, 8),
    ("6B", 256, 8),
    ("20B", 32, 32),
    ("20B", 256, 32),
    ("20B", 2048, 32),
    ("200B", 2048, 128),
)


def scaling_config(name: str, processors: int, model_axis: int) -> Config:
    """A training run with everything on that saves memory."""
    size = SIZES[name]
    model_dims = ",heads:y,intermediate_expanded:y,vocab:y" if model_axis > 1 else ""
    return parse_config(
        {
            "model_path": f"runs/{name}",
            "train_steps": 1000,
            "train_batch_size": max(size.batch, processors // model_axis),
            "n_layer": size.layers,
            "n_embd": size.width,
            "n_head": size.heads,
            "n_ctx": 2048,
            "n_vocab": 50432,
            "mesh_shape": f"x:{processors // model_axis},y:{model_axis}",
            "layout": f"batch:x{model_dims}",
            "precision": "bfloat16",
            "recompute_grad": True,
            "tokens_per_mb_per_replica": 2048,
            "optimizer_shard_axis": "x",
            "gradient_clipping": 1.0,
        }
    )


def row(name: str, processors: int, run: DryRun) -> str:
    """One line of the table."""
    sent = {"x": 0, "y": 0}
    for item in run.communication:
        sent["y" if "y" in item.axes else "x"] += item.sent_bytes
    compute = run.flops.per_processor / FLOPS_PER_SECOND
    waiting = sum(sent.values()) / BYTES_PER_SECOND
    cells = [
        name,
        f"{processors:,}",
        f"`{run.config.mesh_shape}`",
        f"{run.config.microbatches}",
        *(f"{size / 1e9:.1f}" for size in (run.weight_bytes, run.slot_bytes, run.peak_bytes)),
        *(f"{sent[axis] / 1e9:,.0f}" for axis in "xy"),
        f"{compute:.1f}",
        f"{waiting:.1f}",
        f"{compute / (compute + waiting):.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints one line per row."""
    wanted = sys.argv[1:] or list(SIZES)
    for name, processors, model_axis in ROWS:
        if name in wanted:
            run = measure(scaling_config(name, processors, model_axis))
            print(row(name, processors, run), flush=True)


if __name__ == "__main__":
    main()
