"""Keys of `moe_params`: the mixture of experts."""

from collections.abc import Mapping
from typing import Any, Literal, Optional

from pydantic import BaseModel, field_validator, model_validator

from configs.errors import choose_from, shown
from configs.fields import LONGEST_WINDOW, MOST_FEATURES, STRICT, key
from configs.names import ACTIVATIONS


class MixtureKeys(BaseModel):
    """Keys of `moe_params`."""

    model_config = STRICT

    moe_num_experts: int = key(
        "Experts of one layer.", 16, ge=2, le=MOST_FEATURES, unit="experts", example=8
    )
    moe_hidden_size: int = key(
        "Hidden width of one expert.", 4096, gt=0, le=MOST_FEATURES, unit="features", example=3072
    )
    moe_activation: Optional[str] = key(
        "Activation of the experts; GPT-Neo's had `relu`, whatever else its config said.",
        None,
        default_text="`activation_function`",
        example="relu",
    )
    moe_dropout_rate: float = key(
        "Dropout of the experts' hidden layer, training only.",
        0.0,
        ge=0,
        lt=1,
        unit="probability",
        example=0.1,
    )
    moe_capacity_factor_train: float = key(
        "Tokens of one sequence that an expert takes in training, times experts over `n_ctx`; "
        "what is beyond goes past it. Evaluation and generation leave no token out.",
        1.25,
        gt=0,
        example=2.0,
    )
    moe_min_expert_capacity: int = key(
        "Tokens of one sequence that an expert takes at least, in training.",
        4,
        gt=0,
        le=LONGEST_WINDOW,
        unit="tokens",
        example=8,
    )
    moe_second_policy_train: Literal["all", "none", "threshold", "random"] = key(
        "When a token uses its second expert: always, never, if its gate is above "
        "`moe_second_threshold_train`, or with the probability of gate over threshold. Evaluation "
        "and generation do the same, but always use it under `random`.",
        "random",
        example="threshold",
    )
    moe_second_threshold_train: float = key(
        "Threshold of `moe_second_policy_train`, of a gate between 0 and 1/2.",
        0.2,
        ge=0,
        le=1,
        example=0.3,
    )
    moe_loss_coef: float = key("Weight of the load-balance loss.", 0.01, ge=0, example=0.001)
    moe_use_second_place_loss: bool = key(
        "The load-balance loss counts second experts too, at half weight.", False
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Reads null as "default"; an unknown key stays, to be refused."""
        if not isinstance(data, Mapping):
            return data
        return {
            name: value
            for name, value in data.items()
            if value is not None or name not in cls.model_fields
        }

    @field_validator("moe_activation")
    @classmethod
    def _known_activation(cls, name: Optional[str]) -> Optional[str]:
        if name is not None and name not in ACTIVATIONS:
            remedy = choose_from(name, ACTIVATIONS)
            raise ValueError(f"is not a known activation (got {shown(name)}); {remedy}")
        return name
