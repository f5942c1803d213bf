"""Keys that decide how a run goes: schedule, optimizer, losses, steps, sampling."""

from typing import Annotated, Any, Literal, Optional

from pydantic import BaseModel, Field, field_validator

from configs.errors import shown
from configs.fields import LARGEST_INT, MOST_SEQUENCES, STRICT, key

_TENTH_OF_VOCABULARY = -2
TokenId = Annotated[int, Field(ge=0, le=LARGEST_INT)]


class RunKeys(BaseModel):
    """Where a run lives and how long it goes."""

    model_config = STRICT

    model_path: str = key(
        "Folder of the run, local or `gs://`: checkpoints, summaries, resolved config.",
        min_length=1,
        example="runs/my_run",
    )
    init_from: Optional[str] = key(
        "Fine-tuning: folder or checkpoint whose weights a run begins with, as `--init_from`; null "
        "= random ones.",
        None,
        min_length=1,
        example="runs/base",
    )
    fresh_opt: bool = key(
        "Whether the optimizer begins anew and not with what `init_from` holds of it, as "
        "`--fresh_opt`.",
        False,
        needs=("init_from",),
    )
    train_steps: int = key("Updates in all.", gt=0, le=LARGEST_INT, example=100000, unit="steps")
    train_batch_size: int = key(
        "Global batch of one update.", gt=0, le=MOST_SEQUENCES, example=256, unit="sequences"
    )
    eval_batch_size: int = key(
        "Global batch of evaluation.",
        default_factory=lambda data: data.get("train_batch_size", 1),
        default_text="`train_batch_size`",
        gt=0,
        le=MOST_SEQUENCES,
        unit="sequences",
        example=64,
    )
    predict_batch_size: int = key(
        "Global batch of generation.", 1, gt=0, le=MOST_SEQUENCES, unit="sequences", example=8
    )
    eval_steps: int = key(
        "Batches evaluated after every checkpoint; 0 = no evaluation.",
        0,
        ge=0,
        le=LARGEST_INT,
        unit="batches",
        example=10,
        needs=("datasets",),
    )
    predict_steps: int = key(
        "Batches of samples written after every checkpoint; 0 = none.",
        0,
        ge=0,
        le=LARGEST_INT,
        unit="batches",
        example=1,
    )
    eval_tasks: tuple[str, ...] = key(
        "Tasks of lm-evaluation-harness scored after every checkpoint and by `evaluate.py`; "
        "`lambada` is that of `lambada_tokens_path`.",
        (),
        max_length=1000,
        example=["lambada_openai", "piqa"],
    )
    eval_tasks_path: Optional[str] = key(
        "Folder with tasks' data, `<task>/<split>.jsonl` (or .json, .parquet, .csv), and with YAML "
        "files of tasks of your own; null = data from the hub.",
        None,
        min_length=1,
        example="datasets/tasks",
        needs=("eval_tasks",),
    )
    eval_tasks_limit: Optional[int] = key(
        "Items scored of each task; null = all.",
        None,
        gt=0,
        le=LARGEST_INT,
        unit="items",
        example=500,
        needs=("eval_tasks",),
    )
    iterations: int = key(
        "Steps per device loop; at most `--steps_per_checkpoint`.",
        500,
        gt=0,
        le=LARGEST_INT,
        unit="steps",
        default_text="500, or `--steps_per_checkpoint` if that is less",
        example=100,
    )
    log_every_steps: int = key(
        "Interval of log lines and metrics.", 10, gt=0, le=LARGEST_INT, unit="steps", example=100
    )
    max_to_keep: int = key(
        "Newest checkpoints that are kept.", 5, gt=0, le=LARGEST_INT, unit="checkpoints", example=20
    )
    seed: int = key(
        "Seed of initial weights, data order and dropout.", 0, ge=0, le=LARGEST_INT, example=7
    )


class OptimizerKeys(BaseModel):
    """Optimizer and learning rate."""

    model_config = STRICT

    opt_name: Literal["adam", "adafactor"] = key("Optimizer.", "adam", example="adafactor")
    lr: float = key("Peak learning rate.", 1e-4, gt=0, example=6e-4)
    warmup_steps: int = key(
        "Linear rise of the learning rate from 0.",
        0,
        ge=0,
        le=LARGEST_INT,
        unit="steps",
        example=3000,
    )
    lr_decay: Optional[Literal["cosine", "linear"]] = key(
        "Shape of the decay to 10 % of `lr`; null = constant.", None, example="cosine"
    )
    lr_decay_end: int = key(
        "Step at which the decay has ended, counted from step 0.",
        default_factory=lambda data: data.get("train_steps", 1),
        default_text="`train_steps`",
        gt=0,
        le=LARGEST_INT,
        unit="steps",
        example=90000,
        needs=("lr_decay",),
    )
    anneal_steps: Optional[int] = key(
        "GPT-J's schedule in place of `lr_decay`: half a cosine from `lr`, where the warm-up ends, "
        "to `end_lr`; so many steps long, and flat after them.",
        None,
        gt=0,
        le=LARGEST_INT,
        unit="steps",
        example=90000,
        needs=("end_lr",),
    )
    end_lr: Optional[float] = key(
        "Learning rate after `anneal_steps`.",
        None,
        ge=0,
        example=1e-5,
        needs=("anneal_steps",),
    )
    beta1: float = key(
        "Decay of the first moment; 0 saves Adafactor the memory for it.",
        0.9,
        ge=0,
        lt=1,
        example=0.95,
    )
    beta2: float = key("Decay of Adam's second moment.", 0.999, ge=0, lt=1, example=0.95)
    epsilon: float = key(
        "Adam's term added to the root of the second moment.", 1e-8, gt=0, example=1e-6
    )
    adam_bias_correction: bool = key(
        "Adam's moments are divided by what their decays sum up to so far, as in the paper and in "
        "GPT-J; GPT-Neo leaves them small in the first steps.",
        False,
    )
    earlier_updates: int = key(
        "Updates that the optimizer of `init_from` had made before step 0 of this run, which bias "
        "correction and Adafactor count; found by itself, and written to the run's `config.json`.",
        0,
        ge=0,
        le=LARGEST_INT,
        unit="updates",
        example=1000,
        needs=("init_from",),
    )
    ada_epsilon1: float = key(
        "Adafactor's term added to squared gradients.",
        1e-30,
        gt=0,
        example=1e-20,
        needs=("opt_name",),
    )
    ada_epsilon2: float = key(
        "Adafactor's least scale of a variable.", 1e-3, gt=0, example=1e-2, needs=("opt_name",)
    )
    ada_decay_rate: Optional[float] = key(
        "Decay of Adafactor's second moment; GPT-Neo took `weight_decay` for it.",
        None,
        ge=0,
        lt=1,
        default_text="1 - (step + 1)^-0.8",
        example=0.99,
        needs=("opt_name",),
    )
    weight_decay: float = key(
        "Decoupled decay, times the learning rate; spares variables named `norm` or `bias`.",
        0.0,
        ge=0,
        example=0.1,
    )
    decay_final_norm: bool = key(
        "Whether weight decay reaches the final norm (`ln_f`), as in GPT-Neo.",
        True,
        needs=("weight_decay",),
    )
    gradient_clipping: Optional[float] = key(
        "Largest global norm of the gradients; null = no clipping.", None, gt=0, example=1.0
    )
    optimizer_shard_axis: Optional[str] = key(
        "Mesh axis over which optimizer slots are split beside `layout`, best that of the batch "
        "(ZeRO stage 1); null = as the weights.",
        None,
        min_length=1,
        example="x",
        needs=("mesh_shape",),
    )
    noise_scale_alpha: Optional[float] = key(
        "Adds the gradient noise scale to the metrics: a batch of about `noise_scale` sequences "
        "wastes neither steps nor tokens. Averages take this share of each new step; needs two "
        "microbatches, after each of which the mesh then adds up its gradients.",
        None,
        gt=0,
        le=1,
        unit="share",
        example=0.01,
        needs=("tokens_per_mb_per_replica",),
    )
    log_grads: bool = key("Summaries of the norm of every variable's gradient.", False)


class LossKeys(BaseModel):
    """Training loss."""

    model_config = STRICT

    z_loss: float = key(
        "Weight of the squared log of the softmax denominator.", 1e-4, ge=0, example=0.0
    )
    entmax_loss: bool = key(
        "Entmax (1.3) loss in place of softmax cross entropy; see `--entmax_sampling`.", False
    )
    mlm_training: bool = key(
        "Masked language modelling: hidden tokens are predicted from both sides, nothing is "
        "generated.",
        False,
        needs=("mlm_mask_id",),
    )
    mlm_mask_id: Optional[int] = key(
        "Id of the mask token.",
        None,
        ge=0,
        le=LARGEST_INT,
        unit="token id",
        example=50257,
        needs=("mlm_training",),
    )
    mlm_cls_token_id: Optional[int] = key(
        "Id put first in every sequence, in place of its last; null = none.",
        None,
        ge=0,
        le=LARGEST_INT,
        unit="token id",
        example=50258,
        needs=("mlm_training",),
    )
    mlm_mask_prob: float = key(
        "Share of tokens that are predicted, special and ignored ones left out.",
        0.15,
        gt=0,
        le=1,
        unit="probability",
        example=0.3,
        needs=("mlm_training",),
    )
    mlm_same_token_prob: float = key(
        "Share of those that keep their token.",
        0.10,
        ge=0,
        le=1,
        unit="probability",
        example=0.0,
        needs=("mlm_training",),
    )
    mlm_random_token_prob: float = key(
        "Share of those that get a random token.",
        0.10,
        ge=0,
        le=1,
        unit="probability",
        example=0.0,
        needs=("mlm_training",),
    )
    mlm_mask_ignore_ids: tuple[TokenId, ...] = key(
        "Ids that are never masked, besides `padding_id`, `mlm_mask_id`, `mlm_cls_token_id`.",
        (),
        unit="token ids",
        example=[0, 50256],
        needs=("mlm_training",),
    )


class SamplingKeys(BaseModel):
    """Generation; the flags of the same names win over these keys."""

    model_config = STRICT

    predict_max_steps: Optional[int] = key(
        "New tokens per sample; null = up to the end of the window.",
        None,
        gt=0,
        le=LARGEST_INT,
        unit="tokens",
        example=200,
    )
    temperature: float = key(
        "Divisor of the logits; 0 = most likely token.", 0.9, ge=0, example=0.7
    )
    top_k: Optional[int] = key(
        "Sample among the k most likely tokens; null = all, -2 = a tenth of the vocabulary.",
        None,
        ge=_TENTH_OF_VOCABULARY,
        le=LARGEST_INT,
        unit="tokens",
        example=40,
    )
    top_p: float = key(
        "Nucleus sampling: least total probability of the tokens sampled among; 1 = all.",
        1.0,
        gt=0,
        le=1,
        unit="probability",
        example=0.95,
    )
    repetition_penalty: float = key(
        "Divides positive logits of tokens that the text already has, and multiplies negative "
        "ones; 1 = off.",
        1.0,
        gt=0,
        example=1.2,
    )
    remove_partial_sequences: bool = key("Leave the prompt out of the samples.", False)

    @field_validator("top_k")
    @classmethod
    def _top_k_counts(cls, value: Any) -> Any:
        if value in (-1, 0):
            raise ValueError(
                f"must be at least 1, or -2 for a tenth of the vocabulary (got {shown(value)}); "
                f"set it to null to sample among all tokens"
            )
        return value
