"""The page of the API is the CRD, in other clothes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglpool.api.crd import build_crd
from support.golden import check_committed

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
Schema = dict[str, Any]

HEAD = """\
# API reference

`inferencepools.sglpool.io`, version `v1alpha1`, short name `sglpool`. Made from the CRD, which is made from the models
in `operator/sglpool/api`; `kubectl explain sglpool.spec` says the same. A field that is not marked as required may be
left out. What the rules of a section refuse, `kubectl apply` refuses with the same words.
"""


def schema() -> Schema:
    (version,) = build_crd()["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]
    return found


def inner(field: Schema) -> Schema | None:
    """The object behind a field, a list of objects or a map of them."""
    for candidate in (field, field.get("items", {}), field.get("additionalProperties", {})):
        if isinstance(candidate, dict) and candidate.get("properties"):
            return candidate
    return None


def kind(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in field:
        return "one of " + ", ".join(f"`{word}`" for word in field["enum"])
    if field["type"] == "array":
        return f"list of {kind(field['items'])}s" if not inner(field) else "list of objects"
    if field["type"] == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map of {kind(field['additionalProperties'])}s"
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f"{field['type']}, {low:,} to {high:,}"
    return str(field["type"]) + (f", at least {low:,}" if low is not None else "")


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def rows(path: str, holder: Schema) -> Iterator[str]:
    for name, field in holder["properties"].items():
        shown = f"[`{name}`](#{anchor(f'{path}.{name}')})" if inner(field) else f"`{name}`"
        default = field.get("default")
        extra = " Required." if name in holder.get("required", []) else ""
        if default is not None and not isinstance(default, (dict, list)):
            extra = f" Default `{str(default).lower() if isinstance(default, bool) else default}`."
        yield f"| {shown} | {kind(field)} | {cell(field.get('description', ''))}{extra} |"


def anchor(path: str) -> str:
    return path.replace(".", "").replace("[]", "").lower()


def section(path: str, holder: Schema) -> Iterator[str]:
    yield from (f"## {path}", "")
    if holder.get("description"):
        yield from (cell(holder["description"]), "")
    yield from ("| field | type | meaning |", "|---|---|---|", *rows(path, holder), "")
    rules = holder.get("x-kubernetes-validations", [])
    if rules:
        yield from ("Refused:", "", *(f"* {cell(rule['message'])}" for rule in rules), "")
    for name, field in holder["properties"].items():
        child = inner(field)
        if child:
            yield from section(f"{path}.{name}" + ("[]" if field["type"] == "array" else ""), child)


def page() -> str:
    lines = [HEAD]
    for part in ("spec", "status"):
        lines += section(part, schema()["properties"][part])
    return "\n".join(lines)


def test_the_page_is_current(regenerate: bool) -> None:
    check_committed(PAGE, page(), regenerate=regenerate)
