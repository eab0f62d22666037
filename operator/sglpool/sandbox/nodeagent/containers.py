"""One run of a container: its hooks, its probes and its end.

Not here: what comes before and after a run, such as a missing image or a restart (`restarts`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.nodeagent.backoff import Timings
from sglpool.sandbox.nodeagent.checks import Outcome, Target, check
from sglpool.sandbox.nodeagent.hooks import run_hook
from sglpool.sandbox.nodeagent.ports import Container, Exit, Runtime
from sglpool.sandbox.nodeagent.probes import ProbeKind, Prober, ProbeRules
from sglpool.sandbox.nodeagent.records import ContainerRecord, Running, Terminated
from sglpool.sandbox.nodeagent.reporter import Events
from sglpool.sandbox.nodeagent.stopping import Deadline, StopOrder, stop_container

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class PodShare:
    """What the containers of a pod have in common.

    Attributes:
        pod: The newest manifest.
        pod_ip: The pod's address.
        runtime: Starts containers.
        events: Where events go.
        timings: Delays and limits.
        utc_now: The wall clock, for what people read.
        changed: To be called when a record has changed.
        origin_s: When the pod came to the node, on the loop's clock.
    """

    pod: Manifest
    pod_ip: str
    runtime: Runtime
    events: Events
    timings: Timings
    utc_now: Callable[[], datetime]
    changed: Callable[[], None]
    origin_s: float

    def grace_s(self, probe: Manifest | None = None) -> float:
        """Grace period: of the deletion, else of the probe that asks for the end, else of the pod."""
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        candidates = (
            metadata.get("deletionGracePeriodSeconds"),
            (probe or {}).get("terminationGracePeriodSeconds"),
            spec.get("terminationGracePeriodSeconds"),
        )
        return float(next((grace for grace in candidates if grace is not None), self.timings.default_grace_s))


class ContainerRun:
    """A container from its start to its end."""

    def __init__(
        self,
        container: Container,
        spec: Manifest,
        record: ContainerRecord,
        share: PodShare,
        *,
        started: asyncio.Event,
    ) -> None:
        """Take over a container that has just started; `started` is set when its startup probe is passed."""
        self._started = started
        self._target = Target(container, spec, share.pod_ip)
        self._spec = spec
        self._record = record
        self._share = share
        self._exited: asyncio.Task[Exit] = asyncio.create_task(container.wait())
        self._order: StopOrder | None = None
        self._ordered = asyncio.Event()
        self._health: asyncio.Task[None] | None = None
        self._readiness: asyncio.Task[None] | None = None
        self._started_s = asyncio.get_running_loop().time()
        self.killed_by_probe = False
        """Whether its startup or liveness probe had it ended."""

    async def live(self) -> Terminated:
        """Return how it ended; the record follows what happens until then."""
        try:
            if await self._post_start():
                self._record.state = Running(self._target.container.started_at)
                if not self._order:
                    self._health = self._watched(self._look_after())
                self._share.changed()
            return await self._until_end()
        finally:
            self._record.started = self._record.probed_ready = False
            for task in (self._health, self._readiness):
                if task:
                    task.cancel()

    def stop(self, order: StopOrder, *, pod_ends: bool) -> None:
        """Have it ended; an order that is being carried out only comes nearer to its deadline."""
        if pod_ends and self._health:
            # A pod that goes away is not restarted, but it is still asked whether it takes requests.
            self._health.cancel()
        if self._order:
            self._order.deadline.shorten(order.deadline.left_s)
            return
        self._order = order
        self._ordered.set()

    def hurry(self, left_s: float) -> None:
        """Bring the deadline of the order forward, if there is one."""
        if self._order:
            self._order.deadline.shorten(left_s)

    def kill(self) -> None:
        """End all its processes now."""
        self._target.container.kill()

    async def killed(self, *, limit_s: float) -> None:
        """Return once it has ended, or after so long."""
        await asyncio.wait({self._exited}, timeout=limit_s)

    # Hooks and end

    async def _post_start(self) -> bool:
        """Run the postStart hook; only after it the container counts as running."""
        hook = (self._spec.get("lifecycle") or {}).get("postStart")
        if not hook:
            return True
        limit_s = self._share.timings.hook_limit_s
        run = asyncio.create_task(run_hook(hook, self._target, limit_s=limit_s))
        ordered = asyncio.create_task(self._ordered.wait())
        try:
            await asyncio.wait({run, ordered, self._exited}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                return False
            failure = run.result()
        finally:
            run.cancel()
            ordered.cancel()
        if failure:
            self._warn("FailedPostStartHook", f"PostStartHook failed: {failure}")
            self.stop(self._new_order("FailedPostStartHook", self._share.grace_s()), pod_ends=False)
        return not failure

    async def _until_end(self) -> Terminated:
        ordered = asyncio.create_task(self._ordered.wait())
        try:
            await asyncio.wait({ordered, self._exited}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ordered.cancel()
        if self._order and not self._exited.done():
            self._share.events.normal("Killing", self._order.message, self._record.name)
            await stop_container(self._order, self._target, self._exited, timings=self._share.timings, warn=self._warn)
        return self._ended()

    def _ended(self) -> Terminated:
        container = self._target.container
        if not self._exited.done():
            return Terminated(
                exit_code=137,
                reason="ContainerStatusUnknown",
                message="The container could not be located when the pod was terminated",
                started_at=container.started_at,
                finished_at=self._share.utc_now(),
                container_id=container.id,
            )
        end = self._exited.result()
        return Terminated(
            exit_code=end.code,
            reason=end.reason,
            started_at=end.started_at,
            finished_at=end.finished_at,
            signal=end.signal,
            message=end.message,
            container_id=container.id,
        )

    def _new_order(self, message: str, grace_s: float) -> StopOrder:
        return StopOrder(message=message, deadline=Deadline(grace_s), run_pre_stop=grace_s > 0)

    # Probes

    async def _look_after(self) -> None:
        """Startup probe to its success, then readiness and liveness."""
        if probe := self._spec.get("startupProbe"):
            await self._prober("startup", probe).results(self._on_startup)
        else:
            self._on_startup(True)
        if not self._record.started:
            return
        if probe := self._spec.get("readinessProbe"):
            self._readiness = self._watched(self._prober("readiness", probe).results(self._on_readiness, at_once=True))
        else:
            self._on_readiness(True)
        if probe := self._spec.get("livenessProbe"):
            await self._prober("liveness", probe).results(self._on_liveness)

    def _on_startup(self, passed: bool) -> bool:
        if passed:
            self._record.started = True
            self._started.set()
            self._share.changed()
        else:
            self._probe_kills("startup")
        return False

    def _on_readiness(self, ready: bool) -> bool:
        if self._record.probed_ready != ready:
            self._record.probed_ready = ready
            self._share.changed()
        return True

    def _on_liveness(self, alive: bool) -> bool:
        if not alive:
            self._probe_kills("liveness")
        return alive

    def _probe_kills(self, kind: ProbeKind) -> None:
        restarts = self._record.role == "sidecar" or self._share.pod["spec"].get("restartPolicy") != "Never"
        message = f"Container {self._record.name} failed {kind} probe{', will be restarted' if restarts else ''}"
        self.killed_by_probe = True
        grace_s = self._share.grace_s(self._spec[f"{kind}Probe"])
        self.stop(self._new_order(message, grace_s), pod_ends=False)

    def _prober(self, kind: ProbeKind, probe: Manifest) -> Prober:
        async def look(timeout_s: float) -> Outcome:
            return await check(probe, self._target, timeout_s=timeout_s)

        return Prober(
            kind,
            ProbeRules.of(probe),
            look,
            origin_s=self._share.origin_s,
            started_s=self._started_s,
            on_unhealthy=lambda message: self._warn("Unhealthy", message),
        )

    def _watched(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure, which is a fault of ours, is at least in the log."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._say_failure)
        return task

    def _say_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            _log.error("the probes of container %s stopped", self._record.name, exc_info=error)

    def _warn(self, reason: str, message: str) -> None:
        self._share.events.warn(reason, message, self._record.name)
