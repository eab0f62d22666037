"""The shape of the source tree that imports rest on."""

from __future__ import annotations

import operator as stdlib_operator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "operator"
MODULES = sorted(SOURCE.rglob("*.py"))


def test_the_source_root_holds_one_package_and_nothing_else() -> None:
    """A loose module or an __init__.py there would shadow the standard library's `operator`."""
    assert [p.name for p in SOURCE.iterdir() if not p.name.startswith(".")] == ["sglpool"]
    assert "lib/python" in str(stdlib_operator.__file__)


@pytest.mark.parametrize("module", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_can_be_read_at_one_sitting(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= 400
