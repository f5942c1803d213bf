"""Greedy generation by a PyTorch contender."""

from __future__ import annotations

from typing import Any, Callable

from benchmarks.worker import Run, serve


def build(task: dict[str, Any]) -> dict[str, Run]:
    """``generate`` and ``first_token`` of ``task``: model, shape, precision, batch, prompt, new."""
    import torch

    torch.manual_seed(0)
    shape = task["shape"]
    prompts = torch.randint(0, shape["vocabulary"], (task["batch"], task["prompt"]))
    makers = {"transformers": _transformers, "torch-compiled": _compiled}
    dtype = getattr(torch, task["precision"])
    generate = makers[task["model"]](shape, dtype, task["prompt"] + task["new"])

    def run(new: int) -> int:
        with torch.inference_mode():
            return generate(prompts, new).shape[1] * task["batch"] - prompts.numel()

    return {"generate": lambda: run(task["new"]), "first_token": lambda: run(1)}


def _transformers(shape: dict[str, Any], dtype: Any, length: int) -> Callable[[Any, int], Any]:
    """``generate`` of transformers."""
    import torch

    from benchmarks.peers.transformers_gpt import causal_model

    model = causal_model(shape).to(dtype).eval()

    def generate(prompts: Any, new: int) -> Any:
        return model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=shape["vocabulary"] - 1,
        )

    return generate


def _compiled(shape: dict[str, Any], dtype: Any, length: int) -> Callable[[Any, int], Any]:
    """The plain GPT with a cache of the length that is needed, its step compiled."""
    import torch

    from benchmarks.peers.compiled_gpt import GPT

    model = GPT(shape).to(dtype).eval()
    step = torch.compile(model.decode)
    whole = torch.compile(model.decode)  # a shape of its own: that of the prompt

    def generate(prompts: Any, new: int) -> Any:
        cache = model.empty_cache(len(prompts), length)
        tokens = [prompts]
        positions, forward = torch.arange(prompts.shape[1]), whole
        for _ in range(new):
            logits = forward(tokens[-1], positions, cache)
            tokens.append(logits.argmax(-1, keepdim=True))
            positions, forward = positions[-1:] + 1, step
        return torch.cat(tokens, 1)

    return generate


if __name__ == "__main__":
    serve(build)
