"""Why pods are missing: the API server's refusals, which appear nowhere but in Events of the StatefulSet.

Events are read only while replicas have been missing for a few seconds, one small listing per StatefulSet. Not
here: pods that exist and are in trouble (`plan.problems`).
"""

from collections.abc import Callable

from sglpool.api.pool import Pool
from sglpool.controller.store import PoolKey
from sglpool.kube import KubeError, KubePort
from sglpool.kube.resources import EVENTS
from sglpool.plan import Observed, ObservedStatefulSet, Refusal

PATIENCE_S = 5.0
"""How long a StatefulSet's controller may take to create a pod before its Events are read."""


class RefusalReader:
    """Reads refusals, and remembers since when pods are missing.

    Args:
        kube: The API server.
        clock: Monotonic seconds.
    """

    def __init__(self, kube: KubePort, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        self._missing_since: dict[PoolKey, float] = {}
        self._known: dict[PoolKey, dict[str, Refusal]] = {}

    def known(self, key: PoolKey) -> dict[str, Refusal]:
        """Refusals of a pool as read last; empty while no pods are missing."""
        return self._known.get(key, {})

    async def read(self, pool: Pool, observed: Observed) -> tuple[dict[str, Refusal], float | None]:
        """Refusals by StatefulSet, and when to look again in seconds if pods are missing."""
        key = (pool.namespace, pool.name)
        missing = [s for s in observed.statefulsets if s.owner_uid == pool.uid and _misses_pods(s, observed)]
        if not missing:
            self.forget(key)
            return {}, None
        now = self._clock()
        since = self._missing_since.setdefault(key, now)
        if now - since < PATIENCE_S:
            return {}, PATIENCE_S - (now - since) + 0.1
        found = {s.name: refusal for s in missing if (refusal := await self._refusal(pool, s)) is not None}
        self._known[key] = found
        return found, 2 * PATIENCE_S

    def forget(self, key: PoolKey) -> None:
        """Forget a pool that misses nothing or is gone."""
        self._missing_since.pop(key, None)
        self._known.pop(key, None)

    async def _refusal(self, pool: Pool, statefulset: ObservedStatefulSet) -> Refusal | None:
        selector = f"involvedObject.uid={statefulset.uid},reason=FailedCreate"
        try:
            events = await self._kube.list(EVENTS, namespace=pool.namespace, field_selector=selector)
        except KubeError:
            # Without the right to read Events the pods are still reported as missing.
            return None
        if not events:
            return None
        latest = max(events, key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "")
        return Refusal.from_message(_server_words(latest.get("message", "")))


def _misses_pods(statefulset: ObservedStatefulSet, observed: Observed) -> bool:
    pods = sum(p.owner_uid == statefulset.uid for p in observed.pods)
    return statefulset.caught_up and pods < statefulset.replicas


def _server_words(message: str) -> str:
    """The API server's part of a FailedCreate message, without the pod's name, which changes between retries."""
    return message.partition(" error: ")[2] or message
