"""A runtime and a reporter that are played, and a stage that has a pod's worker run on them in virtual time."""

from __future__ import annotations

import asyncio
import copy
import itertools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sglpool.sandbox.nodeagent.backoff import Timings
from sglpool.sandbox.nodeagent.worker import PodWorker

Manifest = dict[str, Any]
_EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
_BEGIN_S = 1000.0


def clock_s() -> float:
    """Seconds since the test began."""
    return round(asyncio.get_running_loop().time() - _BEGIN_S, 3)


def utc_now() -> datetime:
    return _EPOCH + timedelta(seconds=clock_s())


def stamp(after_s: float) -> str:
    """The moment `after_s` seconds into the test as the API writes it."""
    return (_EPOCH + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Exit:
    code: int
    signal: int
    reason: str
    message: str
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True)
class ExecResult:
    code: int | None
    output: str = ""


@dataclass
class Program:
    """What a container does when it is started.

    Attributes:
        fails: Raised instead of starting.
        ends_after_s: When it ends by itself, None for never.
        code: Its exit code then.
        reason: Reason of that end, by the code if empty.
        message: Its termination message.
        term_s: How long it takes to end after SIGTERM, None if it does not care.
        term_code: Its exit code then.
        answers: What commands in it do: takes the command and the seconds since its start.
    """

    fails: Exception | None = None
    ends_after_s: float | None = None
    code: int = 0
    reason: str = ""
    message: str = ""
    term_s: float | None = 0
    term_code: int = 143
    answers: Callable[[str, float], Awaitable[ExecResult]] | None = None


class FakeContainer:
    _ids = itertools.count(1)

    def __init__(self, name: str, image: str, program: Program) -> None:
        self.id = f"sandbox://{name}-{next(self._ids)}"
        self.image = image
        self.image_id = f"{image}@sha256:0"
        self.started_at = utc_now()
        self.pid = 1
        self.signals: list[tuple[float, int]] = []
        self.commands: list[tuple[float, str]] = []
        self._program = program
        self._started_s = clock_s()
        self._end: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        if program.ends_after_s is not None:
            self._end_after(program.ends_after_s, program.code, program.reason)

    @property
    def alive(self) -> bool:
        return not self._end.done()

    async def wait(self) -> Exit:
        return await asyncio.shield(self._end)

    def signal(self, number: int) -> None:
        self.signals.append((clock_s(), number))
        if number == signal.SIGTERM and self._program.term_s is not None:
            self._end_after(self._program.term_s, self._program.term_code, "")

    def kill(self) -> None:
        self.signals.append((clock_s(), signal.SIGKILL))
        self.end(137)

    async def exec(self, command: Sequence[str], *, timeout_s: float) -> ExecResult:
        line = " ".join(command)
        self.commands.append((clock_s(), line))
        if self._program.answers is None:
            return ExecResult(0)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._program.answers(line, clock_s() - self._started_s)
        except TimeoutError:
            return ExecResult(None)

    def end(self, code: int, reason: str = "") -> None:
        if self._end.done():
            return
        reason = reason or ("Error" if code else "Completed")
        self._end.set_result(Exit(code, 0, reason, self._program.message, self.started_at, utc_now()))

    def _end_after(self, wait_s: float, code: int, reason: str) -> None:
        asyncio.get_running_loop().call_later(wait_s, self.end, code, reason)


class FakeRuntime:
    """Plays programs by container name; of several the last one is played again and again."""

    def __init__(self, programs: dict[str, list[Program]]) -> None:
        self._programs = programs
        self.volume_errors: list[Exception] = []
        self.starts: list[tuple[float, str, int]] = []
        self.containers: dict[str, list[FakeContainer]] = {}
        self.prepared: list[float] = []
        self.removed: list[float] = []

    async def prepare(self, pod: Manifest, pod_ip: str) -> None:
        self.prepared.append(clock_s())
        if self.volume_errors:
            raise self.volume_errors.pop(0)

    async def start(self, pod: Manifest, container: Manifest, *, attempt: int, pod_ip: str) -> FakeContainer:
        name = container["name"]
        tries = sum(1 for _, other, _ in self.starts if other == name)
        self.starts.append((clock_s(), name, attempt))
        programs = self._programs.get(name, [Program()])
        program = programs[min(tries, len(programs) - 1)]
        if program.fails:
            raise program.fails
        started = FakeContainer(name, container["image"], program)
        self.containers.setdefault(name, []).append(started)
        return started

    def remove(self, pod: Manifest) -> None:
        self.removed.append(clock_s())

    def start_times(self, name: str) -> list[float]:
        return [at_s for at_s, other, _ in self.starts if other == name]


@dataclass
class FakeReporter:
    """Keeps what is reported; raises the errors it is given first."""

    statuses: list[tuple[float, Manifest]] = field(default_factory=list)
    events: list[tuple[float, str, str, str]] = field(default_factory=list)
    deletions: list[float] = field(default_factory=list)
    status_errors: list[Exception] = field(default_factory=list)
    delete_errors: list[Exception] = field(default_factory=list)
    takes_s: float = 0
    busy: int = 0
    most_busy: int = 0

    async def status(self, pod: Manifest, status: Manifest) -> None:
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            if self.takes_s:
                await asyncio.sleep(self.takes_s)
            if self.status_errors:
                raise self.status_errors.pop(0)
            self.statuses.append((clock_s(), copy.deepcopy(status)))
        finally:
            self.busy -= 1

    async def event(self, pod: Manifest, type_: str, reason: str, message: str, container: str = "") -> None:
        self.events.append((clock_s(), type_, reason, message))

    async def deleted(self, pod: Manifest) -> None:
        if self.delete_errors:
            raise self.delete_errors.pop(0)
        self.deletions.append(clock_s())

    def reasons(self) -> list[str]:
        return [reason for _, _, reason, _ in self.events]

    def messages(self, reason: str) -> list[str]:
        return [message for _, _, other, message in self.events if other == reason]


class Stage:
    """One worker with its runtime and reporter."""

    def __init__(
        self, pod: Manifest, programs: dict[str, list[Program]] | None = None, *, restarted: bool = False
    ) -> None:
        self.pod = pod
        self.runtime = FakeRuntime(programs or {})
        self.reporter = FakeReporter()
        self.worker = PodWorker(
            pod,
            runtime=self.runtime,
            reporter=self.reporter,
            pod_ip="127.1.0.5",
            host_ip="127.1.0.1",
            restarted=restarted,
            timings=Timings(),
            utc_now=utc_now,
        )
        self.task: asyncio.Task[None] = asyncio.create_task(self.worker.run())

    async def at(self, moment_s: float) -> None:
        """Go to a moment of the test, a little after everything that is due then."""
        await asyncio.sleep(moment_s - clock_s() + 0.001)

    def delete(self, grace_s: float = 30) -> None:
        """The API server marks the pod for deletion, as it is there by now."""
        self.pod = copy.deepcopy(self.pod)
        self.pod["metadata"] |= {"deletionTimestamp": stamp(clock_s() + grace_s), "deletionGracePeriodSeconds": grace_s}
        self.worker.update(self.pod)

    async def end(self, grace_s: float = 30) -> None:
        """Delete the pod and wait for the worker's end."""
        self.delete(grace_s)
        await self.task

    @property
    def status(self) -> Manifest:
        return self.reporter.statuses[-1][1]

    def condition(self, type_: str) -> Manifest:
        return next(c for c in self.status["conditions"] if c["type"] == type_)

    def container(self, name: str = "main", *, run: int = -1) -> FakeContainer:
        return self.runtime.containers[name][run]

    def shown(self, name: str = "main") -> Manifest:
        """The container's status as last reported."""
        status = self.status
        entries = [*status.get("initContainerStatuses", ()), *status["containerStatuses"]]
        return next(entry for entry in entries if entry["name"] == name)


@asynccontextmanager
async def on_stage(
    pod: Manifest, programs: dict[str, list[Program]] | None = None, *, restarted: bool = False
) -> AsyncIterator[Stage]:
    """A stage that is cleared at the end; a worker that failed fails the test."""
    stage = Stage(pod, programs, restarted=restarted)
    try:
        yield stage
    finally:
        if not stage.task.done():
            stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
    if not stage.task.cancelled():
        stage.task.result()


def pod(
    *,
    main: Manifest | None = None,
    mains: Sequence[str] = ("main",),
    inits: Sequence[Manifest] = (),
    policy: str = "Always",
    status: Manifest | None = None,
    **spec: Any,
) -> Manifest:
    """A pod as the API server has it after it was bound to a node."""
    containers = [{"name": name, "image": f"example/{name}:1"} | (main or {}) for name in mains]
    init_containers = [{"image": f"example/{init['name']}:1"} | init for init in inits]
    body: Manifest = {"nodeName": "b200-0", "restartPolicy": policy, "containers": containers}
    if init_containers:
        body["initContainers"] = init_containers
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "default", "uid": "u-1", "generation": 1},
        "spec": body | spec,
        "status": status or {"phase": "Pending", "qosClass": "BestEffort"},
    }


async def says(code: int | None, output: str = "", *, after_s: float = 0) -> ExecResult:
    """An answer of a command."""
    if after_s:
        await asyncio.sleep(after_s)
    return ExecResult(code, output)
