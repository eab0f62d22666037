"""The life of one pod on its node: volumes, init containers, containers, its deadline, its deletion.

Not here: a container's own life (`restarts`, `containers`), what the API server gets to see (`podstatus`,
`reporter`), and which pods there are (`agent`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.backoff import Doubling, Timings
from sglpool.sandbox.nodeagent.containers import PodShare
from sglpool.sandbox.nodeagent.podstatus import FINISHED, PodFacts, pod_status
from sglpool.sandbox.nodeagent.ports import Reporter, Runtime
from sglpool.sandbox.nodeagent.records import Terminated, containers_of, records_of
from sglpool.sandbox.nodeagent.reporter import Events, StatusReports, persist
from sglpool.sandbox.nodeagent.restarts import ContainerLoop
from sglpool.sandbox.nodeagent.stopping import Deadline, StopOrder

_log = logging.getLogger(__name__)
_EVENTS_LIMIT_S = 5.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


class PodWorker:
    """One pod. Make it where the event loop runs, then await `run`."""

    def __init__(
        self,
        pod: Manifest,
        *,
        runtime: Runtime,
        reporter: Reporter,
        pod_ip: str,
        host_ip: str,
        restarted: bool,
        timings: Timings | None = None,
        utc_now: Callable[[], datetime] = _utc_now,
    ) -> None:
        """Take a pod on.

        Args:
            pod: Its manifest. What its status says of restarts and times goes on from there.
            runtime: Starts its containers.
            reporter: Tells the API server.
            pod_ip: Its address.
            host_ip: Its node's address.
            restarted: Whether it ran before, under an agent or a node that is no more; its containers went with that.
            timings: Delays and limits.
            utc_now: The wall clock.
        """
        self._timings = timings or Timings()
        self._utc_now = utc_now
        self._runtime = runtime
        self._reporter = reporter
        self._restarted = restarted
        self._events = Events(pod, reporter)
        self._reports = StatusReports(pod, reporter, self._timings)
        self._share = PodShare(
            pod=pod,
            pod_ip=pod_ip,
            runtime=runtime,
            events=self._events,
            timings=self._timings,
            utc_now=utc_now,
            changed=self._report,
            origin_s=asyncio.get_running_loop().time(),
        )
        self._status: Manifest = pod.get("status") or {}
        self._was_finished = self._status.get("phase") in FINISHED
        start = self._status.get("startTime")
        start_time = datetime.fromisoformat(start) if start else utc_now()
        self._facts = PodFacts(pod_ip=pod_ip, host_ip=host_ip, start_time=start_time)
        specs = containers_of(pod["spec"])
        self._records = records_of(pod, now=utc_now())
        self._loops = [
            ContainerLoop(spec, record, self._share) for (spec, _), record in zip(specs, self._records, strict=True)
        ]
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._deleting = asyncio.Event()
        self._deadline: Deadline | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def update(self, pod: Manifest) -> None:
        """See the newest manifest: a deletion, a shorter grace period, a readiness gate that opened."""
        self._share.pod = pod
        self._set_alarm()
        if "deletionTimestamp" in pod["metadata"]:
            self._deleting.set()
            self._stopping.set()
            if self._deadline:
                self._hurry(self._share.grace_s())
        if self._group:
            self._report()
            if _is_ready(self._status) and not _is_ready(pod.get("status") or {}):
                # Written over, as the node lifecycle controller does with pods of a node that was not heard of.
                self._reports.repeat()

    async def run(self) -> None:
        """Live the pod's life until it is deleted. Cancelled, it ends like a power cut: killed, without a word."""
        try:
            async with asyncio.TaskGroup() as self._group:
                background = [self._spawn(self._reports.run()), self._spawn(self._events.run())]
                try:
                    self.update(self._share.pod)
                    await self._live()
                except BaseException:
                    for loop in self._loops:
                        loop.kill()
                    raise
                for task in background:
                    task.cancel()
        finally:
            if self._alarm:
                self._alarm.cancel()
            await asyncio.gather(*(loop.killed(limit_s=self._timings.kill_limit_s) for loop in self._loops))

    # The whole life

    async def _live(self) -> None:
        if not self._was_finished:
            if self._restarted and not self._deleting.is_set():
                self._events.normal("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
            await self._run_until_over()
            self._facts = replace(self._facts, over=True)
            self._report()
            await self._reports.settled()
        self._remove_folders()
        await _first(self._deleting.wait(), self._reports.gone.wait())
        await self._events.drained(limit_s=_EVENTS_LIMIT_S)
        if not self._reports.gone.is_set():
            name = f"deletion of pod {self._share.pod['metadata']['name']}"
            await persist(lambda: self._reporter.deleted(self._share.pod), name, self._timings)

    async def _run_until_over(self) -> None:
        """Return once nothing of the pod runs any more, and nothing will."""
        if self._has_run_its_course():
            return
        containers = self._spawn(self._run_containers())
        await _first(self._stopping.wait(), self._reports.gone.wait(), containers)
        if not containers.done():
            self._stopping.set()
            self._stop(self._loops)
        await containers

    def _has_run_its_course(self) -> bool:
        """Whether a pod that an agent before this one ran has nothing left to do."""
        ended = [isinstance(record.state, Terminated) for record in self._records if record.role != "sidecar"]
        if self._share.pod["spec"].get("restartPolicy") == "Never" and any(ended):
            return True
        return all(isinstance(record.state, Terminated) for record in self._records if record.role == "main")

    async def _run_containers(self) -> None:
        """Init containers one after the other, then all others together; sidecars run beside them."""
        if not await self._prepare():
            return
        refresh = self._spawn(self._refresh_volumes())
        sidecars: list[ContainerLoop] = []
        try:
            if await self._initialize(sidecars):
                mains = [loop for loop in self._loops if loop.record.role == "main"]
                waiting = [self._spawn(loop.run()) for loop in mains if not isinstance(loop.record.state, Terminated)]
                if waiting:
                    await asyncio.gather(*waiting)
        finally:
            refresh.cancel()
        if sidecars:
            if not self._stopping.is_set():
                self._stop(sidecars)
            for sidecar in sidecars:
                await sidecar.over.wait()

    async def _initialize(self, sidecars: list[ContainerLoop]) -> bool:
        """Run the init containers; False when the pod ends with that."""
        for loop in self._loops:
            if loop.record.role == "main" or self._stopping.is_set():
                continue
            task = self._spawn(loop.run())
            if loop.record.role == "sidecar":
                sidecars.append(loop)
                await _first(loop.started.wait(), loop.over.wait())
                continue
            await task
            if not loop.record.ready:
                return False
        return not self._stopping.is_set()

    # Volumes

    async def _prepare(self) -> bool:
        """Make the pod's volumes, however long they take to come; False when the pod is to end before."""
        waits = Doubling(self._timings.volume_initial_s, self._timings.volume_max_s)
        while not self._stopping.is_set():
            try:
                await self._runtime.prepare(self._share.pod, self._share.pod_ip)
            except (SandboxError, OSError) as error:
                self._events.warn("FailedMount", str(error))
                await _first(self._stopping.wait(), asyncio.sleep(waits.next_s()))
            else:
                self._facts = replace(self._facts, prepared=True)
                self._report()
                return True
        return False

    async def _refresh_volumes(self) -> None:
        while True:
            await asyncio.sleep(self._timings.volume_refresh_s)
            try:
                await self._runtime.prepare(self._share.pod, self._share.pod_ip)
            except (SandboxError, OSError) as error:
                self._events.warn("FailedMount", str(error))

    def _remove_folders(self) -> None:
        try:
            self._runtime.remove(self._share.pod)
        except OSError as error:
            _log.warning("folders of pod %s are left over: %s", self._share.pod["metadata"]["name"], error)

    # End

    def _stop(self, loops: list[ContainerLoop]) -> None:
        """Have containers ended within the grace period, sidecars after all others and in reverse order."""
        grace_s = self._share.grace_s()
        self._deadline = Deadline(grace_s)
        for index, loop in enumerate(loops):
            before = [other.over for other in loops[index + 1 :] if _outlives(loop, other)]
            loop.stop(
                StopOrder(
                    message=f"Stopping container {loop.record.name}",
                    deadline=self._deadline,
                    run_pre_stop=grace_s > 0,
                    turn=_all(before) if before else None,
                )
            )

    def _hurry(self, left_s: float) -> None:
        for loop in self._loops:
            loop.hurry(left_s)

    def _set_alarm(self) -> None:
        """Have the pod ended when its activeDeadlineSeconds are over."""
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None
        limit_s = self._share.pod["spec"].get("activeDeadlineSeconds")
        if limit_s is not None and not (self._stopping.is_set() or self._was_finished):
            active_s = (self._utc_now() - self._facts.start_time).total_seconds()
            self._alarm = asyncio.get_running_loop().call_later(max(0, limit_s - active_s), self._deadline_passed)

    def _deadline_passed(self) -> None:
        if self._stopping.is_set() or self._facts.over:
            return
        message = "Pod was active on the node longer than the specified deadline"
        self._events.normal("DeadlineExceeded", message)
        self._facts = replace(self._facts, failed_reason="DeadlineExceeded", failed_message=message)
        self._stopping.set()

    # Bookkeeping

    def _report(self) -> None:
        if self._was_finished:
            return
        self._status = pod_status(
            self._share.pod, self._records, self._facts, previous=self._status, now=self._utc_now()
        )
        self._reports.offer(self._status)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None
        return self._group.create_task(work)


def _outlives(loop: ContainerLoop, other: ContainerLoop) -> bool:
    """Whether a container ends after one that comes later in the pod: only sidecars wait, for all but init ones."""
    return loop.record.role == "sidecar" and other.record.role != "init"


def _all(events: list[asyncio.Event]) -> Callable[[], Coroutine[Any, Any, object]]:
    async def wait() -> None:
        for event in events:
            await event.wait()

    return wait


async def _first(*waits: Coroutine[Any, Any, object] | asyncio.Task[None]) -> None:
    """Return once one of them is done, and cancel the coroutines among the others."""
    own = [asyncio.ensure_future(wait) for wait in waits if asyncio.iscoroutine(wait)]
    given = [wait for wait in waits if isinstance(wait, asyncio.Task)]
    try:
        await asyncio.wait([*own, *given], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()


def _is_ready(status: Manifest) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
