"""One training step of a PyTorch contender: loss, gradients, clipping, AdamW."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.worker import Run, serve

MODELS = {
    "transformers": "benchmarks.peers.transformers_gpt",
    "torch-compiled": "benchmarks.peers.compiled_gpt",
}


def build(task: dict[str, Any]) -> dict[str, Run]:
    """The step of ``task``: model, shape, precision."""
    import torch

    torch.manual_seed(0)
    shape = task["shape"]
    model, parameters = importlib.import_module(MODELS[task["model"]]).build_model(shape)
    optimizer = torch.optim.AdamW(
        parameters,
        lr=1e-4,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        fused=True if task["model"] == "torch-compiled" else None,
    )
    ids = torch.randint(0, shape["vocabulary"], (shape["batch"], shape["context"] + 1))

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=task["precision"] == "bfloat16"):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return {"step": step}


if __name__ == "__main__":
    serve(build)
