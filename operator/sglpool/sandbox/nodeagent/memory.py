"""Memory limits of containers, by looking at their processes twice a second: there are no cgroups here.

The sum of resident sizes is cheap and never too small; only when it passes the limit the exact share of each process
is read (pages that processes share count once). Memory volumes do not count. A container that takes more than its
limit and gives it back between two looks goes unseen. Not here: the killing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from sglpool.api.quantity import parse_bytes
from sglpool.sandbox.apiserver import Manifest

POLL_S = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def limit_bytes(container: Manifest) -> int | None:
    """`resources.limits.memory` of a container; None without a limit."""
    limits: Mapping[str, str] = (container.get("resources") or {}).get("limits") or {}
    return parse_bytes(limits["memory"]) if "memory" in limits else None


class Census:
    """Which processes live in which PID namespace; one look at /proc serves all containers."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._read_at_s = float("-inf")
        self._members: dict[str, list[int]] = {}

    def members(self, namespace: str) -> list[int]:
        """Processes of a PID namespace (the text behind /proc/PID/ns/pid), at most half a poll old."""
        now_s = time.monotonic()
        if now_s - self._read_at_s > POLL_S / 2:
            self._members = _by_namespace()
            self._read_at_s = now_s
        return self._members.get(namespace, [])

    def over_limit(self, namespace: str, limit: int) -> bool:
        """Whether the processes of a namespace use more than `limit` bytes together."""
        pids = self.members(namespace)
        return sum(map(resident_bytes, pids)) > limit and sum(map(proportional_bytes, pids)) > limit


def pid_namespace(pid: int) -> str:
    """The PID namespace of a process; an empty text when it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, shared pages in full; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def proportional_bytes(pid: int) -> int:
    """Its share of memory: a page that n processes use counts 1/n for each; 0 when it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(rollup.partition("\nPss:")[2].split()[0]) * 1024 if "\nPss:" in rollup else 0


def _by_namespace() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (namespace := pid_namespace(int(name))):
            found.setdefault(namespace, []).append(int(name))
    return found
