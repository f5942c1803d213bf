"""How one key of the schema is declared."""

from typing import Any

from pydantic import ConfigDict, Field

# Upper ends of integer keys: beyond them numbers overflow in TensorFlow or a graph cannot be
# built in reasonable time; no model or run that anybody has made comes near.
LARGEST_INT = 2**31 - 1  # steps, positions and token ids are int32
MOST_LAYERS = 1000  # a dry run of so many takes minutes
MOST_FEATURES = 2**20
MOST_SEQUENCES = 2**24
LONGEST_WINDOW = 2**27
MOST_PROCESSORS = 2**20
MOST_DATASETS = 1000

# Shared by every model of the config. No key name is reserved: `model_path` is one of ours.
# Validators are built when first used, since most models are only parts of another one.
STRICT = ConfigDict(
    extra="forbid",
    strict=True,
    frozen=True,
    allow_inf_nan=False,
    protected_namespaces=(),
    defer_build=True,
)


def key(
    description: str,
    default: Any = ...,
    *,
    unit: str = "",
    default_text: str = "",
    example: Any = None,
    needs: tuple[str, ...] = (),
    **options: Any,
) -> Any:
    """Declares one key.

    Args:
        description: One line of meaning, for the reference.
        default: The default; left out for a required key or with `default_factory`.
        unit: Unit of the value, for instance "tokens".
        default_text: How the reference names a default that is computed or that stands for
            something, for instance "`train_steps`".
        example: A valid value, another than the default, as JSON has it; a switch has its other
            state without saying so.
        needs: Keys whose examples must be there too for this one to have an effect.
        **options: Constraints and other options of `pydantic.Field`.

    Returns:
        The pydantic field.
    """
    if "default_factory" not in options:
        options["default"] = default
    if isinstance(default, bool):
        example = not default
    return Field(
        description=description,
        examples=None if example is None else [example],
        json_schema_extra={"unit": unit, "default_text": default_text, "needs": list(needs)},
        **options,
    )
