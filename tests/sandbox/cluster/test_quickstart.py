"""The quick start, walked word by word as far as it needs no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.walk import ROOT, walk

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
INSTEAD = {
    # It made what runs this test.
    "make bootstrap": "true",
    "sandbox up": "sandbox up --speed 200",
}


def test_a_newcomer_gets_to_the_end(tmp_path: Path) -> None:
    said = walk(PAGE, tmp_path, INSTEAD)
    assert "Running" in said.by("helm install")
    talk = said.by("router show")
    assert '"object":"chat.completion"' in talk
    assert "kimi-k2-6-coder-b200-0" in talk.partition("REPLICA")[2], "the router's table"
    assert "This would fit: tensorParallelSize 4." in said.by("tensorParallelSize")
