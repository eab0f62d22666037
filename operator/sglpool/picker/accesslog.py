"""Envoy's access log, read as it grows: how a request ended gives its slot back.

A file in the pod's memory rather than Envoy's gRPC log service: measured against it, a line costs a split instead of a
protobuf message, nothing of gRPC's 33 MB is loaded, lines that are written while the picker is away wait for it, and
a picker that hangs blocks nobody. (A FIFO would: with a reader that hangs, Envoy could not even end.) Lines come some
tens of milliseconds after the end of a request. The file is renamed when it is large, and Envoy opens a new one: no
line is lost.
Not here: what a line changes (`ledger`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from sglpool.picker.admin import AdminError, AdminGone
from sglpool.picker.ledger import Entry
from sglpool.picker.metrics import Metrics
from sglpool.routing.pickerconfig import ACCESS_LOG_FIELDS, ANSWER_FIELDS

PERIOD_S = 0.05
ROTATE_BYTES = 4 * 2**20
READ_BYTES = 256 * 1024
LINES_AT_ONCE = 8
"""Lines taken at a stretch: some tenths of a millisecond. Envoy writes dozens together, and a pick waits for none."""
SHARE_AT_ONCE = 4
"""Of a backlog so large a part goes at a stretch: between two stretches there may be dozens of picks, whose slots only
these lines give back."""
MAX_LINE_BYTES = 16 * 1024
SETTLE_S = 1.0
"""So long the old file is read after Envoy was told to open a new one, if nobody writes to that."""
RETRY_S = 5.0

_LOG = logging.getLogger("sglpool.picker")
_INDEX = {name: at for at, (name, _) in enumerate(ACCESS_LOG_FIELDS)}
_PICK, _UPSTREAM, _STATUS, _FLAGS = _INDEX["pick"], _INDEX["upstream"], _INDEX["status"], _INDEX["flags"]
_ATTEMPTS, _ANSWER = _INDEX["attempts"], _INDEX["answer"]
_SILENT = ["-"] * len(ANSWER_FIELDS)
_GONE_FLAGS = ("DC", "DPE")
"""Envoy's response flags for a client that left or broke the protocol."""


def parse_line(line: str) -> Entry | None:
    """Read a line; None for a request that no pick placed.

    Raises:
        ValueError: It is no line of the format.
    """
    parts = line.split("\t")
    if len(parts) != len(ACCESS_LOG_FIELDS):
        raise ValueError(f"{len(parts)} fields instead of {len(ACCESS_LOG_FIELDS)}")
    if parts[_PICK] == "-":
        return None
    upstream, flags, said = parts[_UPSTREAM], parts[_FLAGS], parts[_ANSWER]
    # Envoy quotes a text of its metadata in some versions.
    answer = _SILENT if said == "-" else said.strip('"').split(",")
    if len(answer) != len(_SILENT):
        raise ValueError(f"{len(answer)} fields of an answer instead of {len(_SILENT)}")
    finish, prompt, cached, completion, refused = answer
    status = int(parts[_STATUS])
    gone = flags != "-" and any(flag in flags.split(",") for flag in _GONE_FLAGS)
    return Entry(
        pick_id=parts[_PICK],
        upstream=None if upstream == "-" else upstream,
        status=status,
        flags=flags,
        attempts=_number(parts[_ATTEMPTS]) or 0,
        finish="abort" if gone else "unknown" if finish == "-" else finish,
        prompt_tokens=_number(prompt),
        cached_tokens=_number(cached),
        completion_tokens=_number(completion),
        # An engine's own 503; Envoy's has no upstream, or a flag.
        refused=refused == "true" or (status == 503 and upstream != "-" and flags == "-"),
    )


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


class AccessLog:
    """Reads the log and keeps it small."""

    def __init__(
        self,
        path: Path,
        on_entry: Callable[[Entry], None],
        reopen: Callable[[], Awaitable[None]],
        metrics: Metrics,
    ) -> None:
        """Prepare.

        Args:
            path: The file that Envoy writes.
            on_entry: Called for every line of a pick.
            reopen: Has Envoy open the file anew.
            metrics: Counts lines.
        """
        self._path = path
        self._old = path.with_name(path.name + ".old")
        self._on_entry = on_entry
        self._reopen = reopen
        self._metrics = metrics
        self._descriptor: int | None = None
        self._is_old = False
        self._reopened_s: float | None = None
        self._has_successor = False
        self._try_at_s = 0.0
        self._lines: deque[bytes] = deque()
        self._pending = b""

    async def run(self) -> None:
        """Read for ever."""
        try:
            while True:
                if not self.read_some():
                    await self._between()
                    await asyncio.sleep(PERIOD_S)
                else:
                    await asyncio.sleep(0)
        finally:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read_some(self) -> bool:
        """Take some lines.

        Returns:
            Whether there were any.
        """
        if not self._lines and not self._read():
            return False
        count = min(len(self._lines), max(LINES_AT_ONCE, len(self._lines) // SHARE_AT_ONCE))
        self._metrics.log_lines.inc(count)
        for _ in range(count):
            self._line(self._lines.popleft())
        return True

    def _read(self) -> bool:
        """Read what the file has more, up to a limit."""
        if self._descriptor is None and not self._open():
            return False
        assert self._descriptor is not None
        data = os.read(self._descriptor, READ_BYTES)
        if not data:
            return False
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._lines.extend(lines)
        if len(self._pending) > MAX_LINE_BYTES:
            self._metrics.bad_log_lines.inc()
            self._pending = b""
        return True

    def _line(self, line: bytes) -> None:
        try:
            entry = parse_line(line.decode("utf-8", "replace"))
        except ValueError:
            self._metrics.bad_log_lines.inc()
            return
        if entry is None:
            self._metrics.unplaced.inc()
        else:
            self._on_entry(entry)

    def _open(self) -> bool:
        """Open what a picker before this one was reading when it ended, else the file itself."""
        for path, is_old in ((self._old, True), (self._path, False)):
            with contextlib.suppress(FileNotFoundError):
                self._descriptor = os.open(path, os.O_RDONLY)
                self._is_old, self._reopened_s, self._pending = is_old, None, b""
                self._has_successor = False
                return True
        return False

    async def _between(self) -> None:
        """At the end of the file: rename it when it is large, leave it when it is the old one."""
        if self._descriptor is None:
            return
        now_s = asyncio.get_running_loop().time()
        if not self._is_old:
            if os.fstat(self._descriptor).st_size < ROTATE_BYTES:
                return
            self._path.rename(self._old)
            self._is_old = True
        if self._reopened_s is None:
            await self._ask_for_new(now_s)
        elif self._has_successor or now_s - self._reopened_s > SETTLE_S:
            self.close()
            self._old.unlink(missing_ok=True)
        else:
            # What Envoy writes to the new file it writes after the last of the old one; read that once more, then go.
            with contextlib.suppress(FileNotFoundError):
                self._has_successor = self._path.stat().st_size > 0

    async def _ask_for_new(self, now_s: float) -> None:
        if now_s < self._try_at_s:
            return
        try:
            await self._reopen()
        except AdminGone:
            # Envoy is not running: whoever comes opens a new file by itself.
            pass
        except AdminError as problem:
            self._try_at_s = now_s + RETRY_S
            _LOG.warning("access log: %s; trying again", problem)
            return
        self._reopened_s = now_s
