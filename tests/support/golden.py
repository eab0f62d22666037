"""Committed files that what is made now is compared with, byte for byte; `--regenerate` writes them anew."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

AGAIN = "the same test with --regenerate writes it"


class _Dumper(yaml.SafeDumper):
    """Block style for texts of several lines, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(manifests: Iterable[dict[str, Any]]) -> str:
    """Manifests as people read them."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=120)


def check_committed(path: Path, now: str, *, regenerate: bool) -> None:
    """See to it that a file says what is made now, or write it."""
    if regenerate:
        path.parent.mkdir(exist_ok=True)
        path.write_text(now, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing: {AGAIN}"
    before = path.read_text(encoding="utf-8")
    diff = difflib.unified_diff(before.splitlines(), now.splitlines(), "committed", "made now", lineterm="", n=4)
    assert before == now, f"if this is wanted: {AGAIN}\n" + "\n".join(diff)
