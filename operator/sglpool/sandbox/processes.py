"""Starts and stops detached processes by pidfile: no daemon supervises them, no recycled pid is ever killed.

A process gets its own session (so a Ctrl-C at the terminal is ours to handle), a log file and a pidfile that
also holds its start time. Linux only: identity is read from /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglpool.sandbox.errors import SandboxError

STOP_LIMIT_S = 10.0
"""After SIGTERM a process has this long before SIGKILL."""
_KILL_LIMIT_S = 5.0
_POLL_S = 0.05
_QUOTED_LINES = 15


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a sandbox.

    Attributes:
        name: Names its pidfile and its log.
        argv: Program and arguments.
        env: The whole environment.
        ready: Returns an empty string once it serves, else what it is still waiting for.
        ready_limit_s: How long that may take.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    ready: Callable[[], str]
    ready_limit_s: float


class ProcessTable:
    """The processes of one sandbox, kept as pidfiles in `run/` and logs in `logs/`."""

    def __init__(self, root: Path) -> None:
        """Use the folders `run` and `logs` under `root`."""
        self._run = root / "run"
        self._logs = root / "logs"

    def start(self, process: Process) -> None:
        """Start a process; its pidfile exists before any interrupt can be served."""
        self._run.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = str(self._logs / f"{process.name}.log")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with signals_held():
            pid = os.posix_spawn(
                process.argv[0],
                list(process.argv),
                dict(process.env),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o644),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
            )
            record = {"pid": pid, "startTicks": _start_ticks(pid), "startedAt": time.time_ns()}
            (self._run / f"{process.name}.pid").write_text(json.dumps(record))

    def wait_ready(self, process: Process) -> None:
        """Poll until the process serves.

        Raises:
            SandboxError: It exited, or its limit passed; the message quotes the end of its log.
        """
        deadline = time.monotonic() + process.ready_limit_s
        while waiting_for := process.ready():
            if not self.alive(process.name):
                raise SandboxError(f"{process.name} exited while starting.\n{self.log_tail(process.name)}")
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"{process.name} is not ready after {process.ready_limit_s:.0f} s: {waiting_for}.\n"
                    f"{self.log_tail(process.name)}"
                )
            time.sleep(_POLL_S)

    def names(self) -> list[str]:
        """Every process that has a pidfile, in the order of their start."""
        records = [(self._record(path.stem)["startedAt"], path.stem) for path in self._run.glob("*.pid")]
        return [name for _, name in sorted(records)]

    def pid(self, name: str) -> int:
        """The process id as recorded; it may have ended since."""
        return self._record(name)["pid"]

    def alive(self, name: str) -> bool:
        """Whether the recorded process, and not another one under its pid, still runs."""
        record = self._record(name)
        return bool(record["pid"]) and _start_ticks(record["pid"]) == record["startTicks"] != 0

    def log_tail(self, name: str) -> str:
        """The last lines of a process's log, with its path."""
        path = self._logs / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n".join([f"The end of {path}:", *(f"  {line}" for line in lines[-_QUOTED_LINES:])])

    def stop(self, name: str) -> None:
        """End one process, politely and then not, and forget it.

        Raises:
            SandboxError: It is still there after SIGKILL.
        """
        for number, limit_s in ((signal.SIGTERM, STOP_LIMIT_S), (signal.SIGKILL, _KILL_LIMIT_S)):
            if not self.alive(name):
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid(name), number)
            deadline = time.monotonic() + limit_s
            while self.alive(name) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        if self.alive(name):
            raise SandboxError(f"{name} (pid {self.pid(name)}) does not end, not even on SIGKILL")
        (self._run / f"{name}.pid").unlink(missing_ok=True)

    def stop_all(self) -> None:
        """End every process in the reverse order of their start."""
        for name in reversed(self.names()):
            self.stop(name)

    def _record(self, name: str) -> dict[str, int]:
        try:
            record: dict[str, int] = json.loads((self._run / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return {"pid": 0, "startTicks": 0, "startedAt": 0}
        return record


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Put off interrupts: between a start and its pidfile nobody would know of the process."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 when it has ended. Reaps it if it is our child."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat.rpartition(")")[2].split()  # the command name before it may hold spaces
    state, start_ticks = fields[0], fields[19]
    return 0 if state in "ZX" else int(start_ticks)
