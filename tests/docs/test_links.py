"""Links of pages that the site's generator does not read: those that people see first, and the chart's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "charts/sglpool/README.md"]


def links(text: str) -> Iterator[str]:
    """Targets within the repository, without their anchors."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith("#"):
            yield target.partition("#")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [target for target in links(text) if not (page.parent / target).exists()] == []


def test_there_are_links_to_look_at() -> None:
    assert len(set(links(PAGES[0].read_text(encoding="utf-8")))) > 20
    assert list(links("[a](b.md#c) [d](https://e) [f](#g)")) == ["b.md"]
