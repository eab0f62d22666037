"""Finds and follows the logs that containers left: for `sglpool sandbox logs` and for `kubectl logs`.

Files only, so it works while the agent is away and after a pod is gone. Not here: how logs are written (`logs`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from sglpool.sandbox.nodeagent.files import Folders
from sglpool.sandbox.nodeagent.logs import is_complete

_POLL_S = 0.2
_CHUNK_BYTES = 65536


def log_files(root: Path, namespace: str, pod: str, container: str) -> list[Path]:
    """The logs of a container's runs, the newest last; of the newest pod, when several had the name.

    Args:
        root: The sandbox's folder.
        namespace: Namespace of the pod.
        pod: Name of the pod.
        container: Name of the container.
    """
    manifest = {"metadata": {"namespace": namespace, "name": pod, "uid": "*"}}
    pattern = Folders(root).logs(manifest, container).relative_to(root)
    folders = sorted(root.glob(str(pattern)), key=lambda folder: folder.stat().st_mtime)
    if not folders:
        return []
    runs = [path for path in folders[-1].glob("*.log") if path.stem.isdigit()]
    return sorted(runs, key=lambda path: int(path.stem))


class Follower:
    """Reads a log piece by piece: what is new at each call. A log that was emptied is read from its beginning."""

    def __init__(self, path: Path, *, tail_lines: int | None = None) -> None:
        """Begin at the start, or with the last lines."""
        self._path = path
        self._offset = 0 if tail_lines is None else _tail_offset(path, tail_lines)

    def read(self) -> bytes:
        """What has come since the last call; empty when nothing has."""
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if size < self._offset:
                self._offset = 0
            file.seek(self._offset)
            chunk = file.read(_CHUNK_BYTES)
        self._offset += len(chunk)
        return chunk


def follow(path: Path) -> Iterator[bytes]:
    """A log from its beginning until its container has ended, or its file is gone."""
    follower = Follower(path)
    with contextlib.suppress(FileNotFoundError):
        while True:
            # Asked first: what is written between the two is read then.
            complete = is_complete(path)
            if chunk := follower.read():
                yield chunk
            elif complete:
                return
            else:
                time.sleep(_POLL_S)


def _tail_offset(path: Path, lines: int) -> int:
    """Where the last lines of a file begin."""
    content = path.read_bytes()
    position = len(content)
    for _ in range(lines + (1 if content.endswith(b"\n") else 0)):
        position = content.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1
