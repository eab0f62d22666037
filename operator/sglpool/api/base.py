"""The pieces that API models are built from: strictness, CEL rules with their Python twins, bounded types.

A rule is written once and used twice: the API server runs its CEL, `sglpool plan` runs its twin, and one set of
bad inputs is tried on both. Not here: any particular field.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from sglpool.api import patterns
from sglpool.api.quantity import DURATION_PATTERN, QUANTITY_PATTERN, parse_bytes, parse_duration_s

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One validation rule of an API type.

    Attributes:
        cel: The expression for the API server; `self` is the object that carries the rule. None where the schema
            carries the rule in another place.
        message: Field, rule and remedy in one sentence.
        check: The same rule in Python over the parsed model; None for rules that compare with the old object,
            which a file alone cannot break.
        field_path: Where to point at, relative to the object that carries the rule, for example `.size`.
        explain: Builds a message that names the offender, where a fixed one would not.
    """

    cel: str | None
    message: str
    check: Callable[[Any], bool] | None
    field_path: str | None = None
    explain: Callable[[Any], str] | None = None


class Model(BaseModel):
    """Base of all API types: camelCase outside, frozen, unknown fields refused.

    Objects read back from the API server are parsed with `extra="ignore"`, so that a newer CRD never crashes an
    older operator.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    rules: ClassVar[tuple[Rule, ...]] = ()
    list_map_key: ClassVar[str | None] = None
    """Key of `x-kubernetes-list-type: map`, for types that stand in lists."""


def _duration(value: object) -> object:
    if isinstance(value, int):
        raise ValueError(f"{value} has no unit: write a duration, for example 90s, 15m or 1h30m")
    return parse_duration_s(value) if isinstance(value, str) else value


def _quantity(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _quantity_or_auto(value: object) -> object:
    return value if value == "Auto" else _quantity(value)


DurationS = Annotated[
    int,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "minLength": 2, "maxLength": 24}),
]
"""Seconds; written as a Go duration."""

Bytes = Annotated[
    int,
    BeforeValidator(_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, "maxLength": 24}),
]
"""Bytes; written as a quantity."""

BytesOrAuto = Annotated[
    int | Literal["Auto"],
    BeforeValidator(_quantity_or_auto),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN.replace("^", "^(Auto|").replace("$", ")$"),
            "maxLength": 24,
        }
    ),
]
"""Bytes, or `Auto`."""

Percent = Annotated[int, Field(ge=1, le=100)]
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=patterns.OBJECT_NAME)]
"""Name of another object in the pool's namespace."""
FilePath = Annotated[str, Field(min_length=1, max_length=512, pattern=patterns.ABSOLUTE_PATH)]
"""An absolute path."""
Text = Annotated[str, Field(min_length=1, max_length=512)]


def duration(default: str, description: str) -> Any:
    """A duration field with a default, which the CRD shows as the user would write it."""
    return Field(default=parse_duration_s(default), description=description, json_schema_extra={"default": default})


def quantity(default: str, description: str) -> Any:
    """A quantity field with a default, which the CRD shows as the user would write it."""
    return Field(default=parse_bytes(default), description=description, json_schema_extra={"default": default})


class SecretKey(Model):
    """One key of a Secret in the pool's namespace."""

    name: Name = Field(description="Name of a Secret in the pool's namespace.")
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=patterns.SECRET_KEY)] = Field(
        description="Key inside that Secret."
    )


class SecretName(Model):
    """A whole Secret in the pool's namespace."""

    name: Name = Field(description="Name of a Secret in the pool's namespace.")


def exactly_one(*names: str) -> str:
    """CEL that is true when exactly one of the named fields is set."""
    return f"[{', '.join(f'has(self.{n})' for n in names)}].filter(x, x).size() == 1"


def count_set(*values: object) -> int:
    """How many of the values are set; the twin of `exactly_one`."""
    return sum(value is not None for value in values)
