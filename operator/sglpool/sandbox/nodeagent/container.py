"""One running container: a bubblewrap process, the command as PID 1 of its own namespaces, and what can be done to it.

PID 1 dies with bubblewrap, bubblewrap dies with the thread that started it (the agent's main thread), and everything
else in the PID namespace dies with PID 1, programs started by `exec` included: nothing outlives the agent, however
it ends. Not here: what the container sees (`bubblewrap`), and when it is started or stopped (the pod's worker).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fcntl
import json
import os
import re
import secrets
import select
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from sglpool.sandbox.nodeagent import logs, memory
from sglpool.sandbox.nodeagent.contracts import StartFailed
from sglpool.sandbox.nodeagent.subprocesses import collect, kill_group, pipe

EXEC_OUTPUT_BYTES = 10 * 1024
"""As a kubelet keeps of a probe's output."""
NOT_RUNNING = 128
"""Exit code of an `exec` into a container that has ended."""
_START_LIMIT_S = 30.0
_POLL_S = 0.002
_POLL_MAX_S = 0.05
# After its program has ended, output that others still hold back is not waited for any longer.
_LEFTOVER_S = 1.0
_INFO_BYTES = 4096
_NAMESPACES = {"mnt": "--mount", "pid": "--pid", "ipc": "--ipc", "uts": "--uts"}
_NS_GET_USERNS = 0xB701
_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended.

    Attributes:
        code: Exit code of PID 1; 128 + n when signal n ended it.
        signal: 0: like the usual runtimes, the code alone says it.
        reason: `Completed`, `Error` or `OOMKilled`.
        message: Its termination message.
        started_at: When it started.
        finished_at: When it had ended.
    """

    code: int
    signal: int
    reason: str
    message: str
    started_at: datetime.datetime
    finished_at: datetime.datetime


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a program did that was started inside a container.

    Attributes:
        code: Its exit code; None when it was killed because its time was up.
        output: The beginning of its standard output and standard error.
    """

    code: int | None
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What one run of a container is made of.

    Attributes:
        name: Name of the container.
        image: Reference of its image.
        image_id: Identity of its image.
        bubblewrap: The program.
        options: Its options.
        command: What runs as PID 1.
        variables: The container's environment, for `exec`.
        working_dir: The container's working directory, for `exec`.
        user_namespace: Whether it has one of its own, which `exec` enters too.
        log: Where standard output and standard error go.
        log_descriptor: The log, open for writing; closed by the launch.
        termination_log: File behind the termination message.
        message_from_log: Whether the log serves as message after an error.
        memory_limit_bytes: Where it is killed as out of memory; None without a limit.
    """

    name: str
    image: str
    image_id: str
    bubblewrap: str
    options: Sequence[str]
    command: Sequence[str]
    variables: Mapping[str, str]
    working_dir: str
    user_namespace: bool
    log: Path
    log_descriptor: int
    termination_log: Path
    message_from_log: bool
    memory_limit_bytes: int | None


class Container:
    """A container that was started. It is over once `wait` returns.

    Attributes:
        id: Its identity, as in the pod's status.
        image: Reference of its image.
        image_id: Identity of its image.
        started_at: When it started.
        pid: Its PID 1, as this machine counts.
    """

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process, pid: int, census: memory.Census) -> None:
        """Take over a process that runs; `pid` is its PID 1."""
        self.id = f"sandbox://{secrets.token_hex(32)}"
        self.image = launch.image
        self.image_id = launch.image_id
        self.started_at = _now()
        self.pid = pid
        self._launch = launch
        self._process = process
        self._census = census
        self._out_of_memory = False
        # A pid may be used again once its process is gone; a pidfd never means another process.
        self._pidfd = os.pidfd_open(pid)
        self._ending = asyncio.create_task(self._end(), name=f"container {launch.name}")

    async def wait(self) -> Exit:
        """Wait for its end; any number of callers may, at any time."""
        return await asyncio.shield(self._ending)

    def signal(self, number: int) -> None:
        """Send a signal to PID 1; as in every container, one that it does not handle is lost."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL PID 1, and with it everything in the container."""
        self.signal(signal.SIGKILL)

    async def exec(self, command: Sequence[str], *, timeout_s: float) -> ExecResult:
        """Run a program inside the container, with its environment, and wait for it."""
        with self._namespaces() as descriptors:
            if not descriptors:
                return ExecResult(NOT_RUNNING, f"container {self._launch.name} is not running")
            enter = [f"{option}=/proc/self/fd/{number}" for option, number in descriptors.items()]
            if "--user" in descriptors:
                enter.append("--preserve-credentials")
            nsenter = shutil.which("nsenter") or "/usr/bin/nsenter"
            argv = [nsenter, *enter, f"--wdns={self._launch.working_dir}", "--", *command]
            try:
                return await self._exec(argv, list(descriptors.values()), timeout_s)
            except OSError as error:
                return ExecResult(126, f"cannot start {nsenter}: {error.strerror}")

    async def _exec(self, argv: Sequence[str], descriptors: Sequence[int], timeout_s: float) -> ExecResult:
        output = bytearray()
        read_end, write_end = pipe()
        with read_end, write_end:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env=dict(self._launch.variables),
                pass_fds=descriptors,
                start_new_session=True,
            )
            write_end.close()
            reading = asyncio.create_task(collect(read_end, output, EXEC_OUTPUT_BYTES))
            try:
                code: int | None = await asyncio.wait_for(process.wait(), timeout_s)
                await asyncio.wait({reading}, timeout=_LEFTOVER_S)
            except TimeoutError:
                code = None
            finally:
                await kill_group(process)
                reading.cancel()
                await asyncio.wait({reading})
        text = output.decode(errors="replace")
        if code is None:
            return ExecResult(None, text)
        if code in (126, 127) and (failure := re.match(r"nsenter: failed to execute (.*): ([^:]*)\s*\Z", text)):
            text = exec_failure(failure.group(1), failure.group(2).strip())
        return ExecResult(code if code >= 0 else 128 - code, text)

    @contextlib.contextmanager
    def _namespaces(self) -> Iterator[dict[str, int]]:
        """Descriptors of the container's namespaces by option of nsenter; none when it has ended."""
        opened: dict[str, int] = {}
        try:
            with contextlib.suppress(OSError):
                for name, option in _NAMESPACES.items():
                    opened[option] = os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
                if os.geteuid() != 0:
                    # Only who enters the user namespace that owns the mounts may enter those.
                    opened["--user"] = fcntl.ioctl(opened["--mount"], _NS_GET_USERNS)
                elif self._launch.user_namespace:
                    opened["--user"] = os.open(f"/proc/{self.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            # Only now is it sure that the pid meant this container all along.
            complete = len(opened) >= len(_NAMESPACES) and not self.has_ended()
            yield opened if complete else {}
        finally:
            for descriptor in opened.values():
                os.close(descriptor)

    def has_ended(self) -> bool:
        """Whether PID 1 has ended, even if `wait` does not know yet."""
        return self._pidfd < 0 or bool(select.select([self._pidfd], [], [], 0)[0])

    async def _end(self) -> Exit:
        watch = asyncio.create_task(self._watch())
        try:
            code = await self._process.wait()
        finally:
            watch.cancel()
            await asyncio.wait({watch})
            os.close(self._pidfd)
            self._pidfd = -1
            logs.complete_log(self._launch.log)
        # Negative when bubblewrap itself was killed, and PID 1 with it.
        code = code if code >= 0 else 128 - code
        if self._out_of_memory:
            code, reason = _KILLED, "OOMKilled"
        else:
            reason = "Error" if code else "Completed"
        message = logs.termination_message(
            self._launch.termination_log, self._launch.log, from_log=self._launch.message_from_log and code != 0
        )
        return Exit(code, 0, reason, message, self.started_at, _now())

    async def _watch(self) -> None:
        """Hold its log and its memory within their limits."""
        namespace = memory.pid_namespace(self.pid)
        limit = self._launch.memory_limit_bytes
        while True:
            await asyncio.sleep(memory.POLL_S)
            logs.limit_log(self._launch.log)
            if limit is not None and namespace and self._census.over_limit(namespace, limit):
                self._out_of_memory = True
                self.kill()


async def launch_container(launch: Launch, census: memory.Census) -> Container:
    """Start a container and wait until its command runs. Call it from the main thread.

    Raises:
        StartFailed: The container cannot be set up, or there is no such program in it.
    """
    info, info_end = pipe()
    go_end, go = pipe()
    with info, info_end, go_end, go:
        try:
            process = await _spawn(launch, info_end, go_end)
        except OSError as error:
            raise StartFailed("RunContainerError", f"cannot start {launch.bubblewrap}: {error.strerror}") from None
        finally:
            os.close(launch.log_descriptor)
        info_end.close()
        go_end.close()
        try:
            return await asyncio.wait_for(_started(launch, process, info, go, census), _START_LIMIT_S)
        except TimeoutError:
            await kill_group(process)
            raise StartFailed(
                "RunContainerError", f"container {launch.name} did not start within {_START_LIMIT_S:.0f} s"
            ) from None
        except BaseException:
            await kill_group(process)
            raise


async def _spawn(launch: Launch, info: FileIO, go: FileIO) -> asyncio.subprocess.Process:
    """Start bubblewrap, which says on `info` who its PID 1 is, and waits on `go` before it goes on."""
    descriptors = {"--info-fd": info.fileno(), "--block-fd": go.fileno(), "--args": os.memfd_create("bubblewrap")}
    try:
        # Not in the command line: there everybody on this machine could read the variables.
        os.write(descriptors["--args"], b"".join(os.fsencode(word) + b"\0" for word in launch.options))
        os.lseek(descriptors["--args"], 0, os.SEEK_SET)
        numbers = [word for option, number in descriptors.items() for word in (option, str(number))]
        return await asyncio.create_subprocess_exec(
            launch.bubblewrap,
            *numbers,
            "--",
            *launch.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=launch.log_descriptor,
            stderr=launch.log_descriptor,
            env={},
            pass_fds=tuple(descriptors.values()),
            start_new_session=True,
        )
    finally:
        os.close(descriptors["--args"])


async def _started(
    launch: Launch, process: asyncio.subprocess.Process, info: FileIO, go: FileIO, census: memory.Census
) -> Container:
    """The container, once bubblewrap has made way for its command."""
    collected = bytearray()
    await collect(info, collected, _INFO_BYTES)
    try:
        pid = int(json.loads(collected)["child-pid"])
        container = Container(launch, process, pid, census)
    except (ValueError, KeyError, ProcessLookupError):
        # Nothing was set up at all.
        await process.wait()
        raise _failure(launch) from None
    # Only now, so that the pid cannot be another process's by the time it is looked at.
    with contextlib.suppress(BrokenPipeError):
        go.write(b"\n")
    try:
        executed = await _executed(launch, pid)
    except BaseException:
        container.kill()
        raise
    if not executed:
        # A short command that is over already, or bubblewrap, which then has said why.
        await container.wait()
        if logs.first_line(launch.log).startswith("bwrap: "):
            raise _failure(launch)
    return container


async def _executed(launch: Launch, pid: int) -> bool:
    """Wait until PID 1 is no longer bubblewrap; False when it has ended before that was seen."""
    bubblewrap = os.stat(launch.bubblewrap)
    delay_s = _POLL_S
    while True:
        try:
            if not os.path.samestat(os.stat(f"/proc/{pid}/exe"), bubblewrap):
                return True
        except PermissionError:
            # Between two users, bubblewrap hides what it is from an agent without rights.
            pass
        except OSError:
            return False
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 1.5, _POLL_MAX_S)


def _failure(launch: Launch) -> StartFailed:
    """Why bubblewrap ended before the command ran; its sentence is no log of the container."""
    sentence = logs.first_line(launch.log).removeprefix("bwrap: ")
    with contextlib.suppress(OSError):
        os.truncate(launch.log, 0)
    match = re.fullmatch(r"execvp (.*): ([^:]*)", sentence)
    what = exec_failure(match.group(1), match.group(2)) if match else sentence or "bubblewrap ended without a word"
    return StartFailed("RunContainerError", f"failed to start container {launch.name}: {what}")


def exec_failure(program: str, reason: str) -> str:
    """A runtime's sentence about a program that cannot be executed."""
    if reason == "No such file or directory":
        if "/" not in program:
            return f'exec: "{program}": executable file not found in $PATH'
        return f'exec: "{program}": stat {program}: no such file or directory'
    return f'exec: "{program}": {reason[:1].lower()}{reason[1:]}'


def _now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.UTC)
