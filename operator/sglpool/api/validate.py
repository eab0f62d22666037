"""Validate a pool from a file as the API server would: strict fields, types and bounds, then the rules.

`sglpool plan` uses it without a cluster. Each problem is one sentence with field path, value and remedy. Not here:
checks that need the catalogue (`sizing`).
"""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sglpool.api import names, patterns
from sglpool.api.base import Manifest, Model
from sglpool.api.crd import NAME_RULES
from sglpool.api.pool import InferencePoolSpec, Pool, parse_pool

_TOP_LEVEL = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a pool: the field's path and a sentence."""

    path: str
    message: str

    def __str__(self) -> str:
        """Path and sentence, as one line."""
        return f"{self.path}: {self.message}"


class InvalidPool(ValueError):
    """A pool that the API server would refuse."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


def load_pool(manifest: object) -> Pool:
    """Parse a pool from a file, as strictly as the API server.

    Args:
        manifest: One document of the file, as JSON data.

    Raises:
        InvalidPool: With every problem found, not only the first.
    """
    if not isinstance(manifest, dict):
        raise InvalidPool(
            [Problem("", f"is {_kind_of(manifest)}, not an InferencePool: start with apiVersion and kind")]
        )
    if (manifest.get("apiVersion"), manifest.get("kind")) != (names.API_VERSION, names.KIND):
        raise InvalidPool([_foreign(manifest)])
    problems = list(_envelope_problems(manifest))
    if not isinstance(manifest.get("spec"), dict):
        problems.append(Problem("spec", "is required: say what the pool serves"))
    if problems:
        raise InvalidPool(problems)
    try:
        spec = InferencePoolSpec.model_validate_json(json.dumps(manifest["spec"]), strict=True)
    except ValidationError as error:
        raise InvalidPool([_problem(details) for details in error.errors()]) from error
    problems = list(_rule_problems("spec", spec))
    if problems:
        raise InvalidPool(problems)
    return parse_pool(manifest)


def _kind_of(value: object) -> str:
    return "a list" if isinstance(value, list) else f"{str(value)[:40]!r}"


def _foreign(manifest: Manifest) -> Problem:
    """A document of another kind, or an InferencePool of another group."""
    version, kind = manifest.get("apiVersion"), manifest.get("kind")
    if kind != names.KIND:
        what = f"is {kind}" if kind else "is missing"
        return Problem(
            "kind", f"{what}: only {names.KIND} of {names.API_VERSION} is read here, leave other objects out"
        )
    what = f"is {version}" if version else "is missing"
    return Problem("apiVersion", f"{what}: sglpool's {names.KIND} has apiVersion {names.API_VERSION}")


def _envelope_problems(manifest: Manifest) -> Iterator[Problem]:
    for key in sorted(manifest.keys() - _TOP_LEVEL):
        yield Problem(key, "is not a field of InferencePool: remove it")
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        yield Problem("metadata.name", "is required")
        return
    for rule in NAME_RULES:
        if rule.check is not None and not rule.check(name):
            yield Problem("metadata.name", f"is {name!r}: {rule.message}")


def _rule_problems(path: str, model: BaseModel) -> Iterator[Problem]:
    """Run the Python twins of the rules over a parsed model and everything under it."""
    if isinstance(model, Model):
        for rule in model.rules:
            if rule.check is not None and not rule.check(model):
                message = rule.explain(model) if rule.explain else rule.message
                yield Problem(path + (rule.field_path or ""), message)
    for field, info in type(model).model_fields.items():
        value = getattr(model, field)
        child = f"{path}.{info.alias or field}"
        if isinstance(value, BaseModel):
            yield from _rule_problems(child, value)
        elif isinstance(value, tuple):
            yield from _duplicates(child, value)
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _rule_problems(f"{child}[{index}]", item)


def _duplicates(path: str, items: Sequence[object]) -> Iterator[Problem]:
    """Entries of a list that is a map to the API server, of which two have one key."""
    seen: set[object] = set()
    for index, item in enumerate(items):
        if isinstance(item, Model) and item.list_map_key is not None:
            key = getattr(item, item.list_map_key)
            if key in seen:
                yield Problem(f"{path}[{index}]", f"{item.list_map_key} {key} stands twice: merge the two entries")
            seen.add(key)


def _problem(details: ErrorDetails) -> Problem:
    """A pydantic error as a sentence."""
    location = [part for part in details["loc"] if not _is_union_tag(part)]
    path = "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    value = details.get("input")
    match details["type"]:
        case "missing":
            return Problem(path, "is required")
        case "extra_forbidden":
            return Problem(path, f"is not a field here{_hint(location)}: remove it or correct its name")
        case "literal_error":
            return Problem(path, f"is {value!r}, and must be one of {details['ctx']['expected']}")
        case "string_pattern_mismatch" if details["ctx"]["pattern"] in patterns.WORDS:
            return Problem(path, f"is {value!r}, and must {patterns.WORDS[details['ctx']['pattern']]}")
        case "value_error":
            return Problem(path, str(details["ctx"]["error"]))
        case _:
            shown = f"is {value!r}: " if isinstance(value, str | int | float | bool) else ""
            return Problem(path, shown + details["msg"][0].lower() + details["msg"][1:])


def _is_union_tag(part: str | int) -> bool:
    """Pydantic puts the tried type of a union into the location; users do not know those words."""
    return isinstance(part, str) and (
        part in {"int", "str"} or part.startswith(("literal[", "constrained-", "function-"))
    )


def _hint(location: Sequence[str | int]) -> str:
    """The nearest known field name at that place."""
    model: type[BaseModel] | None = InferencePoolSpec
    for part in location[:-1]:
        if isinstance(part, int) or model is None:
            continue
        model = _child_model(model, part)
    if model is None:
        return ""
    known = [info.alias or field for field, info in model.model_fields.items()]
    word = str(location[-1])
    close = difflib.get_close_matches(word, known, n=1) or [name for name in known if name.startswith(word)]
    return f" (did you mean {close[0]}?)" if close else ""


def _child_model(model: type[BaseModel], alias: str) -> type[BaseModel] | None:
    for info in model.model_fields.values():
        if info.alias == alias:
            return next((c for c in _classes(info.annotation) if issubclass(c, BaseModel)), None)
    return None


def _classes(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _classes(argument)
