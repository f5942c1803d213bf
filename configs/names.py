"""The closed vocabularies of the config: what a name in a JSON file may be."""

# The language of `layout` in users' configs; frozen.
DIMENSION_NAMES: tuple[str, ...] = (
    "batch",
    "sequence",
    "memory_length",
    "embd",
    "heads",
    "features_per_head",
    "vocab",
    "intermediate_expanded",
    "embed_sequence",
    "experts",
)

# A kernel needs whole heads.
LAYOUT_DIMENSIONS: tuple[str, ...] = tuple(
    name for name in DIMENSION_NAMES if name != "features_per_head"
)

ATTENTION_TYPES: tuple[str, ...] = ("global", "local", "linear", "none")

ACTIVATIONS: tuple[str, ...] = (
    "gelu",
    "gelu_exact",
    "relu",
    "relu6",
    "squared_relu",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "silu",
    "swish",
    "mish",
    "sigmoid",
    "tanh",
    "softplus",
    "softsign",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "hardshrink",
    "softshrink",
    "tanhshrink",
    "log_sigmoid",
    "sin",
    "cos",
    "sinc",
    "exp",
    "gaussian",
    "arctan",
    "arcsinh",
    "bent_identity",
    "elish",
    "elliotsig",
    "cosid",
    "tanhexp",
    "lisht",
    "phish",
    "serf",
    "cube",
    "square",
    "identity",
    "abs",
)

# How documents become windows of n_ctx + 1 ids; "chunks" records are windows already.
CHUNKS = "chunks"
DOCUMENT_MODES: tuple[str, ...] = ("documents_fixed", "documents_random")
DOCUMENT_MODE_ALIASES: dict[str, str] = {"random_sample": "documents_random"}

# Older or alternative spelling -> key of the schema.
KEY_ALIASES: dict[str, str] = {
    "n_heads": "n_head",
    "n_layers": "n_layer",
    "activation_fn": "activation_function",
    # Mesh Transformer JAX's.
    "layers": "n_layer",
    "d_model": "n_embd",
    "seq": "n_ctx",
    "pe_rotary_dims": "rotary_dim",
    "total_steps": "train_steps",
}

# Keys that look right but live elsewhere, with what to do instead.
MOVED_KEYS: dict[str, str] = {
    "steps_per_checkpoint": "remove it and pass --steps_per_checkpoint",
    "dataset_ids": "list the ids under 'datasets'",
    "dataset_configs": "list the dataset ids, or the objects themselves, under 'datasets'",
    "causal": "remove it: a model is causal unless 'mlm_training' is true",
    "moe_gating": "remove it: a token goes to its two best experts",
    "moe_group_size": "remove it: a group is one sequence",
    "moe_capacity_factor_eval": "remove it: evaluation leaves no token out",
    "moe_second_policy_eval": "remove it: evaluation follows 'moe_second_policy_train'",
    "moe_second_threshold_eval": "remove it: evaluation follows 'moe_second_threshold_train'",
    # Mesh Transformer JAX's, whose network is that of configs/gptj_6B.json.
    "pe": (
        "rotary: write 'rotary_emb', 'rotary_interleaved' and 'rotary_dim' as configs/gptj_6B.json "
        "does, whose other keys make GPT-J's network too; fixed: remove it; t5: write "
        "'relative_position_bias'"
    ),
    "d_head": "remove it: the head size is n_embd / n_head",
    "cores_per_replica": "write a mesh axis of that size in 'mesh_shape' and split 'heads', "
    "'vocab' and 'intermediate_expanded' over it in 'layout'",
    "tpu_size": "make the axes of 'mesh_shape' multiply to it",
    "per_replica_batch": "write 'train_batch_size', the sequences of one update on all processors",
    "gradient_accumulation_steps": "write 'train_batch_size' for the whole update and "
    "'tokens_per_mb_per_replica' for one microbatch",
    "val_batch_multiplier": "write 'eval_batch_size'",
    "bucket": "write bucket and folder as one in 'model_path', gs://bucket/folder",
    "model_dir": "write bucket and folder as one in 'model_path', gs://bucket/folder",
    "train_set": "write a dataset config with the pattern of its files as 'path' and list it under "
    "'datasets'",
    "val_set": "write the pattern of the files as 'eval_path' of the dataset config",
    "val_batches": "write 'eval_steps'",
    "val_every": "remove it: evaluation follows each checkpoint, see --steps_per_checkpoint",
    "ckpt_every": "remove it and pass --steps_per_checkpoint",
    "keep_every": "remove it: 'max_to_keep' says how many checkpoints are kept",
    "eval_harness_tasks": "list them under 'eval_tasks'",
    "name": "remove it: a run has the name of its folder, 'model_path'",
    "wandb_project": "remove it: metrics go to the run's folder",
    "comment": "remove it",
    "gen_length": "write 'predict_max_steps'",
    "early_cast": "remove it: weights are float32; 'precision' is that of activations",
    "early_collect": "remove it: weights stay where 'layout' puts them",
    "bf16_optimizer": "remove it: optimizer slots are float32",
    "eval_only": "remove it: --eval reads no optimizer slots",
}

# Tensors of the model by their dimensions. Two dimensions of one tensor cannot be split over
# the same mesh axis. Where `batch` and `experts` share an axis, what the experts work on has an
# unsplit batch, so no tensor here holds both.
MODEL_TENSORS: tuple[tuple[str, ...], ...] = (
    ("batch", "sequence", "embd"),
    ("batch", "sequence", "heads", "features_per_head"),
    ("batch", "memory_length", "heads", "features_per_head"),
    ("batch", "heads", "sequence", "memory_length"),
    ("embd", "heads", "features_per_head"),
    ("embd", "intermediate_expanded"),
    ("batch", "sequence", "intermediate_expanded"),
    ("vocab", "embd"),
    ("batch", "sequence", "vocab"),
    ("embed_sequence", "embd"),
    ("sequence", "embed_sequence"),
    ("experts", "embd", "intermediate_expanded"),
)

# Matrices that every model has. A weight holds heads and their features as one dimension `heads`.
MODEL_WEIGHTS: tuple[tuple[str, str], ...] = (
    ("vocab", "embd"),
    ("embd", "heads"),
    ("embd", "intermediate_expanded"),
)
