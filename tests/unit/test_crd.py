"""The CRD: committed files are current, and every field explains itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglpool.api.crd import build_crd
from sglpool.cli.crd import chart_text, crd_text

ROOT = Path(__file__).parents[2]
SCHEMA = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property under a schema with its path."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}".lstrip("."), child
        yield from fields(child, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")


FIELDS = {path: child for part in ("spec", "status") for path, child in fields(SCHEMA["properties"][part], part)}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("crds/sglpool.io_inferencepools.yaml", crd_text()),
        ("charts/sglpool/templates/crds/inferencepools.yaml", chart_text()),
    ],
    ids=["crds", "chart"],
)
def test_the_committed_file_is_current(file: str, text: str) -> None:
    assert (ROOT / file).read_text(encoding="utf-8") == text, "run `make crd`"


def test_the_chart_holds_the_same_crd() -> None:
    plain = re.sub(r"^ *\{\{.*\}\}\n", "", chart_text(), flags=re.MULTILINE)
    templated = yaml.safe_load(plain)

    assert templated["metadata"].pop("annotations") == {
        "helm.sh/resource-policy": "keep",
        "argocd.argoproj.io/sync-options": "Delete=false,Prune=false",
    }
    assert templated == yaml.safe_load(crd_text())


def test_every_field_has_a_sentence() -> None:
    thin = [path for path, field in FIELDS.items() if len(field.get("description", "").split()) < 3]
    assert thin == []


UNITS = ("byte", "second", "token", "percent", "duration", "GB")


def test_sizes_times_and_tokens_name_their_unit() -> None:
    def silent(field: dict[str, Any]) -> bool:
        return not any(unit.lower() in field["description"].lower() for unit in UNITS)

    sized = {
        p: f for p, f in FIELDS.items() if re.search(r"(?i)(timeout|bytes|tokens|weights|length|percent|limit)$", p)
    }
    maps = {"spec.template.resources.limits", "spec.router.resources.limits"}
    assert len(sized) > 15
    assert [path for path, field in sized.items() if path not in maps and silent(field)] == []


def test_every_list_and_text_is_bounded() -> None:
    unbounded = [
        path
        for path, field in FIELDS.items()
        if path.startswith("spec")
        and (
            (field.get("type") == "array" and "maxItems" not in field)
            or (field.get("type") == "string" and not {"maxLength", "enum"} & field.keys())
            or ("additionalProperties" in field and "maxProperties" not in field)
        )
    ]
    assert unbounded == []
