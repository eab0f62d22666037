"""A container over all its runs: start it, wait where that fails, restart it as its pod's policy says.

Not here: a single run (`containers`), and in which order the containers of a pod come and go (`worker`).
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.backoff import Doubling, RestartBackoff, words
from sglpool.sandbox.nodeagent.containers import ContainerRun, PodShare
from sglpool.sandbox.nodeagent.contracts import StartFailed
from sglpool.sandbox.nodeagent.records import ContainerRecord, Terminated, Waiting
from sglpool.sandbox.nodeagent.stopping import StopOrder

_PULL_REASONS = ("ErrImagePull", "ImagePullBackOff")
_START_ERROR_CODE = 128


class ContainerLoop:
    """One container of a pod, from its turn to its end for good."""

    def __init__(self, spec: Manifest, record: ContainerRecord, share: PodShare) -> None:
        """Run the container of `spec`, keep `record` true."""
        self.record = record
        self._spec = spec
        self._share = share
        self._restarts = RestartBackoff(share.timings)
        self._pulls = Doubling(share.timings.pull_initial_s, share.timings.restart_max_s)
        self._run: ContainerRun | None = None
        self._order: StopOrder | None = None
        self._ended = False
        self._begun = False
        self._stopped = asyncio.Event()
        self.started = asyncio.Event()
        """Set once it has passed its startup probe for the first time."""
        self.over = asyncio.Event()
        """Set when it has ended for good."""

    async def run(self) -> None:
        """Run it until it has ended for good, by itself or by `stop`."""
        self._begun = True
        try:
            while not (self._ended or self._order):
                if run := await self._start():
                    self._ended = not await self._once(run)
        finally:
            self.over.set()

    async def _once(self, run: ContainerRun) -> bool:
        """Go through one run and the wait after it; False if it was the last one."""
        self._run = run
        if self._order:
            run.stop(self._order, pod_ends=True)
        ended = await run.live()
        self._run = None
        return await self._goes_on(ended, killed_by_probe=run.killed_by_probe)

    def stop(self, order: StopOrder) -> None:
        """End it for good."""
        self._order = order
        self._stopped.set()
        if not self._begun:
            self.over.set()
        if self._run:
            self._run.stop(order, pod_ends=True)

    def hurry(self, left_s: float) -> None:
        """Bring the deadline of an order forward, if there is one."""
        if self._run:
            self._run.hurry(left_s)

    def kill(self) -> None:
        """End whatever runs of it now; say nothing."""
        if self._run:
            self._run.kill()

    async def killed(self, *, limit_s: float) -> None:
        """Return once what ran of it has ended, or after so long."""
        if self._run:
            await self._run.killed(limit_s=limit_s)

    # Start

    async def _start(self) -> ContainerRun | None:
        """Start it once; None after a failure, when it is time to try again."""
        record, share = self.record, self._share
        attempt = record.restarts + 1 if record.ran else record.restarts
        try:
            container = await share.runtime.start(share.pod, self._spec, attempt=attempt, pod_ip=share.pod_ip)
        except StartFailed as failure:
            await self._start_failed(failure, attempt)
            return None
        except (OSError, SandboxError) as error:
            await self._start_failed(StartFailed("CreateContainerError", str(error)), attempt)
            return None
        self._note_start(attempt)
        record.image, record.image_id, record.container_id = container.image, container.image_id, container.id
        self._pulls.reset()
        events, name = share.events, record.name
        events.normal("Pulled", f'Container image "{self._spec["image"]}" already present on machine', name)
        events.normal("Created", f"Created container: {name}", name)
        events.normal("Started", f"Started container {name}", name)
        return ContainerRun(container, self._spec, record, share, started=self.started)

    def _note_start(self, attempt: int) -> None:
        if isinstance(self.record.state, Terminated):
            self.record.last = self.record.state
        self.record.restarts = attempt
        self.record.ran = True

    async def _start_failed(self, failure: StartFailed, attempt: int) -> None:
        if failure.reason in _PULL_REASONS:
            await self._pull_failed(failure)
            return
        self._share.events.warn("Failed", f"Error: {failure.message}", self.record.name)
        if failure.reason == "RunContainerError":
            await self._could_not_run(failure, attempt)
            return
        self._wait(failure.reason, failure.message)
        await self._pause(self._share.timings.create_retry_s)

    async def _pull_failed(self, failure: StartFailed) -> None:
        image, name, events = self._spec["image"], self.record.name, self._share.events
        shown_s = self._share.timings.pull_error_shown_s
        wait_s = self._pulls.next_s()
        events.normal("Pulling", f'Pulling image "{image}"', name)
        events.warn("Failed", f'Failed to pull image "{image}": {failure.message}', name)
        events.warn("Failed", "Error: ErrImagePull", name)
        self._wait("ErrImagePull", failure.message)
        if await self._pause(min(shown_s, wait_s)):
            return
        events.normal("BackOff", f'Back-off pulling image "{image}"', name)
        events.warn("Failed", "Error: ImagePullBackOff", name)
        self._wait("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {failure.message}')
        await self._pause(wait_s - min(shown_s, wait_s))

    async def _could_not_run(self, failure: StartFailed, attempt: int) -> None:
        """Made, but its program does not start: to the restart rules it has run and ended."""
        self._note_start(attempt)
        ended = Terminated(
            exit_code=_START_ERROR_CODE,
            reason="StartError",
            message=failure.message,
            started_at=datetime.fromtimestamp(0, UTC),
            finished_at=self._share.utc_now(),
        )
        self._ended = not await self._goes_on(ended, shown=Waiting(failure.reason, failure.message))

    # Restart

    async def _goes_on(self, ended: Terminated, *, killed_by_probe: bool = False, shown: Waiting | None = None) -> bool:
        """Note an end and wait until it is time to run again; False if it is not to run again."""
        record, loop = self.record, asyncio.get_running_loop()
        before, record.state = record.last, ended
        if self._order or not self._restarts_after(ended):
            self._share.changed()
            return False
        wait_s = self._restarts.wait_s(loop.time(), killed_by_probe=killed_by_probe)
        if shown:
            record.state, record.last = shown, ended
        self._share.changed()
        if wait_s:
            record.last = ended
            self._crash_loop(wait_s)
        if await self._pause(wait_s):
            # It does not wait for a next run any longer.
            record.state, record.last = ended, before
            self._share.changed()
            return False
        return True

    def _crash_loop(self, wait_s: float) -> None:
        metadata, name = self._share.pod["metadata"], self.record.name
        where = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
        self._share.events.warn("BackOff", f"Back-off restarting failed container {name} in pod {where}", name)
        message = f"back-off {words(wait_s)} restarting failed container={name} pod={where}"
        self._wait("CrashLoopBackOff", message)

    def _restarts_after(self, ended: Terminated) -> bool:
        if self.record.role == "sidecar":
            return True
        policy = self._share.pod["spec"].get("restartPolicy", "Always")
        if self.record.role == "init" and policy == "Always":
            policy = "OnFailure"
        return policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)

    def _wait(self, reason: str, message: str) -> None:
        self.record.state = Waiting(reason, message)
        self._share.changed()

    async def _pause(self, wait_s: float) -> bool:
        """Wait; True when it is to end for good meanwhile."""
        if not wait_s:
            return self._stopped.is_set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._stopped.wait()
        return self._stopped.is_set()
