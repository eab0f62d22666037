"""Small file helpers shared by the sandbox: atomic publishing and a lock between processes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sglpool.sandbox.errors import SandboxError

_POLL_S = 0.2


def publish(source: Path, target: Path) -> None:
    """Make `source` an executable at `target` in one step: no reader ever sees half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source.chmod(0o755)
    os.replace(source, target)


@contextmanager
def exclusive(path: Path, *, limit_s: float, say: Callable[[str], None], waiting_for: str) -> Iterator[None]:
    """Hold the lock file `path`; it is freed by the kernel even when the holder dies.

    Raises:
        SandboxError: Another process held it for longer than `limit_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        deadline = time.monotonic() + limit_s
        told = False
        while not _try_lock(handle.fileno()):
            if not told:
                say(f"another process holds {path}: waiting for {waiting_for}")
                told = True
            if time.monotonic() > deadline:
                raise SandboxError(f"waited {limit_s:.0f} s for {waiting_for}; {path} is still locked")
            time.sleep(_POLL_S)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
