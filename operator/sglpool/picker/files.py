"""Files that Envoy watches: written beside and renamed, so that nobody ever reads half of one.

Envoy ends when one is missing at its start, so an init step writes the first ones (`initial`). Not here: contents.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file in one step.

    Args:
        path: The file.
        text: All of its content.
        mode: Its permissions, from the first byte on.
    """
    draft = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def write_json(path: Path, data: Any, *, mode: int = 0o644) -> bool:
    """Replace a JSON file if its content differs.

    Returns:
        Whether it was written: Envoy takes every rename for a change.
    """
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text:
            return False
    write_whole(path, text, mode=mode)
    return True
