"""The models that are measured, by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Optional


@dataclass(frozen=True)
class Shape:
    """A GPT and the work of one training step.

    Attributes:
        layers: blocks.
        width: features of the residual stream.
        heads: attention heads.
        context: tokens of a sequence.
        batch: sequences of a step.
        vocabulary: tokens.
        window: keys that a query sees, itself included; None for all earlier ones.
    """

    layers: int
    width: int
    heads: int
    context: int
    batch: int
    vocabulary: int
    window: Optional[int] = None

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.context

    @property
    def step_flops(self) -> float:
        """Floating-point operations of one training step's matrix products.

        Twice the multiply-adds, three products for each of the forward pass; attention counted
        for the keys that are seen.
        """
        weights = 12 * self.layers * self.width**2 + self.vocabulary * self.width
        seen = min(self.window or self.context, self.context)
        mean_keys = seen - seen * (seen - 1) / (2 * self.context)
        attention = 2 * self.layers * self.width * mean_keys
        return 6.0 * self.tokens * (weights + attention)

    def config(self, precision: str) -> dict[str, Any]:
        """The model config of this project."""
        kind = "global" if self.window is None else "local"
        return {
            "model_path": "runs/benchmark",
            "n_layer": self.layers,
            "n_embd": self.width,
            "n_head": self.heads,
            "n_ctx": self.context,
            "n_vocab": self.vocabulary,
            "eos_id": self.vocabulary - 1,
            "attention_types": [[[kind], self.layers]],
            "local_attention_radius": self.window,
            "train_batch_size": self.batch,
            "train_steps": 1000,
            "lr": 1e-4,
            "weight_decay": 0.1,
            "beta2": 0.95,
            "gradient_clipping": 1.0,
            "precision": precision,
            "mesh_shape": "x:1",
            "layout": "batch:x",
        }

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


TRAINING = {
    "medium": Shape(8, 512, 8, 512, 8, 50257),
    "small": Shape(4, 128, 4, 256, 8, 4096),
    "long": Shape(8, 512, 8, 2048, 1, 50257, window=256),
    "tiny": Shape(1, 16, 2, 16, 2, 64),  # for tests
}
GENERATION = {
    "125M": Shape(12, 768, 12, 2048, 1, 50257),
    "tiny": Shape(2, 16, 2, 64, 1, 64),  # for tests
}
SERVING = {
    "125M": GENERATION["125M"],
    "tiny": Shape(2, 64, 2, 512, 1, 50257),  # what the server itself costs
}
