"""Leader election by a Lease, so that of several operators only one works.

The holder renews the Lease; the others watch it stand still for its whole duration before they take it. That is
judged by each process's own clock, so clocks may differ. Two leaders at a time are possible for a moment when a
process is frozen; whoever needs more must guard its writes with a resourceVersion.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sglpool.kube.errors import Conflict, KubeError, NotFound
from sglpool.kube.port import KubePort
from sglpool.kube.resources import LEASES, Manifest

_LOGGER = logging.getLogger(__name__)

_RELEASE_TIMEOUT_S = 5.0


class LeaseLost(Exception):
    """Somebody else holds the Lease, or it could not be renewed in time. The process should end."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How a Lease is kept, in seconds; the usual figures of Kubernetes controllers.

    Attributes:
        duration_s: how long a Lease must stand still before others may take it. Whole seconds.
        renew_deadline_s: a holder that could not renew for so long gives up; less than `duration_s`.
        retry_s: pause between attempts, plus up to 20% of jitter.
    """

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


class LeaderLease:
    """One contender for a Lease.

    Args:
        kube: the API server.
        namespace: namespace of the Lease.
        name: its name.
        identity: who we are, unique among the contenders.
        times: how to keep it.
    """

    def __init__(
        self,
        kube: KubePort,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times or LeaseTimes()
        self._held: Manifest | None = None
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0

    @property
    def is_leader(self) -> bool:
        """Whether the Lease was ours when we last heard of it."""
        return self._held is not None

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the Lease, do the work while holding it, release it at the end.

        Raises:
            LeaseLost: the Lease was lost; the work has been cancelled.
        """
        await self.acquire()
        working = asyncio.create_task(work(), name="leader-work")
        holding = asyncio.create_task(self.hold(), name="leader-lease")
        try:
            await asyncio.wait({working, holding}, return_when=asyncio.FIRST_COMPLETED)
            # The work's own error first: a lost Lease is then only a consequence.
            (working if working.done() else holding).result()
        finally:
            for task in (working, holding):
                task.cancel()
            await asyncio.gather(working, holding, return_exceptions=True)
            await self.release()

    async def acquire(self) -> None:
        """Wait until the Lease is ours. API errors are logged and tried again."""
        while not await self._try_acquire():
            await self._pause()
        _LOGGER.info("%s holds the lease %s/%s", self._identity, self._namespace, self._name)

    async def hold(self) -> None:
        """Renew the Lease until cancelled.

        Raises:
            LeaseLost: somebody else took it, or it could not be renewed before the deadline.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._times.renew_deadline_s
        while True:
            await self._pause()
            begin = loop.time()
            if begin >= deadline:
                self._held = None
                raise LeaseLost(
                    f"the lease {self._namespace}/{self._name} could not be renewed for "
                    f"{self._times.renew_deadline_s:g} s"
                )
            try:
                await self._renew(timeout_s=deadline - begin)
                deadline = begin + self._times.renew_deadline_s
            except KubeError as error:
                _LOGGER.warning("Lease not renewed: %s", error)

    async def release(self) -> None:
        """Give the Lease up, if it is ours, so that another takes over at once."""
        held, self._held = self._held, None
        if held is None:
            return
        spec = {**held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now_iso()}
        try:
            await self._kube.replace({**held, "spec": spec}, timeout_s=_RELEASE_TIMEOUT_S)
        except KubeError as error:
            _LOGGER.warning("Lease not released, others will wait for its end: %s", error)

    async def _try_acquire(self) -> bool:
        timeout_s = self._times.renew_deadline_s
        try:
            try:
                lease = await self._kube.get(LEASES, namespace=self._namespace, name=self._name, timeout_s=timeout_s)
            except NotFound:
                self._held = await self._kube.create(self._claim(None), timeout_s=timeout_s)
                return True
            if self._holder_of(lease) not in ("", self._identity) and not self._stood_still(lease):
                return False
            self._held = await self._kube.replace(self._claim(lease), timeout_s=timeout_s)
            return True
        except Conflict:
            return False  # another contender was faster
        except KubeError as error:
            _LOGGER.warning("Lease not acquired: %s", error)
            return False

    async def _renew(self, *, timeout_s: float) -> None:
        assert self._held is not None, "hold() before acquire()"
        try:
            self._held = await self._kube.replace(self._claim(self._held), timeout_s=timeout_s)
        except (Conflict, NotFound):
            # Taken, deleted, or only touched by somebody: the next renewal takes it from what stands there.
            try:
                lease = await self._kube.get(LEASES, namespace=self._namespace, name=self._name, timeout_s=timeout_s)
            except NotFound as error:
                self._held = None
                raise LeaseLost(f"the lease {self._namespace}/{self._name} was deleted") from error
            if self._holder_of(lease) != self._identity:
                self._held = None
                raise LeaseLost(
                    f"the lease {self._namespace}/{self._name} was taken by {self._holder_of(lease) or 'nobody'}"
                ) from None
            self._held = await self._kube.replace(self._claim(lease), timeout_s=timeout_s)

    def _claim(self, lease: Manifest | None) -> Manifest:
        """The Lease with us as its holder as of now, in place of `lease` as it was read."""
        now = _now_iso()
        spec = dict(lease.get("spec") or {}) if lease is not None else {}
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + (lease is not None)
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._times.duration_s,
            "renewTime": now,
        }
        if lease is not None:
            return {**lease, "spec": spec}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"namespace": self._namespace, "name": self._name},
            "spec": spec,
        }

    def _stood_still(self, lease: Manifest) -> bool:
        """Whether the Lease has not changed, by our own clock, for its whole duration."""
        spec, now = lease["spec"], asyncio.get_running_loop().time()
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at >= float(spec.get("leaseDurationSeconds") or self._times.duration_s)

    @staticmethod
    def _holder_of(lease: Manifest) -> str:
        return (lease.get("spec") or {}).get("holderIdentity") or ""

    async def _pause(self) -> None:
        await asyncio.sleep(self._times.retry_s * random.uniform(1.0, 1.2))


def _now_iso() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
