"""What asyncio lacks for child processes: ending whole groups, and pipes that are read up to a limit.

Not here: what the processes are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from io import FileIO
from pathlib import Path

_POLL_S = 0.005
_PATIENCE_S = 1.0


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """End a process that leads its own group, and all of the group.

    The leader comes last: bubblewrap and nsenter collect their child and then end by themselves. A dead child without
    its parent would wait for the machine's init to collect it, and its PID namespace with it.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while process.returncode is None and time.monotonic() < deadline_s and (followers := _followers(process.pid)):
        for pid in followers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(_POLL_S)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _PATIENCE_S)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _followers(leader: int) -> list[int]:
    """The living members of a process group, without its leader."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != leader:
            with contextlib.suppress(OSError):
                # The command name before the last bracket may hold anything.
                state, _, group = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:3]
                if int(group) == leader and state not in "ZX":
                    found.append(int(name))
    return found


def pipe() -> tuple[FileIO, FileIO]:
    """The reading and the writing end of a pipe; closing one twice does no harm."""
    read_end, write_end = os.pipe()
    return FileIO(read_end, "r"), FileIO(write_end, "w")


async def collect(source: FileIO, into: bytearray, limit: int) -> None:
    """Read a pipe to its end and keep the first `limit` bytes; closes it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), source
    )
    try:
        while chunk := await reader.read(4096):
            into += chunk[: max(0, limit - len(into))]
    finally:
        transport.close()
