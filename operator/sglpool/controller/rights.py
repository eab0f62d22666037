"""Whether this account may do what the operator does: asked at the start, and again after a refusal.

Without an essential right it waits, and says what for: granting it is enough. What else is missing shows as a warning
and a metric at once, and later as a condition of the pools that need it. Not here: which rights (`kube.rights`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from sglpool.kube import KubeError, KubePort
from sglpool.kube.rights import OF_NODES, Right, in_namespaces, missing, of_lease

_LOG = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0
"""A right is granted by a person who then waits for us."""
LOOK_S = 60.0


class Rights:
    """Knows which rights are missing.

    Args:
        kube: The API server.
        namespaces: Namespaces that are served; None for all.
        lease_namespace: Where the Lease is; None without leader election.
        refusals: How many requests were refused so far.
        show: Is told what is missing, for the metrics.
    """

    def __init__(
        self,
        kube: KubePort,
        *,
        namespaces: Sequence[str] | None,
        lease_namespace: str | None,
        refusals: Callable[[], int],
        show: Callable[[Sequence[Right]], None],
    ) -> None:
        self._kube = kube
        self._needed = (*in_namespaces(namespaces), *(of_lease(lease_namespace) if lease_namespace else ()))
        self._refusals = refusals
        self._refused = 0
        self._show = show
        self._missing: tuple[Right, ...] = ()

    @property
    def waits_for(self) -> str:
        """The essential rights that are missing, as a sentence; empty if there are none."""
        essential = [right for right in self._missing if right.need == "essential"]
        return sentence(essential) if essential else ""

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when all essential rights are there, or nobody says, or at the stop."""
        pause_s = FIRST_PAUSE_S
        while await self.look() and self.waits_for and not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def run_for_ever(self, *, period_s: float = LOOK_S) -> None:
        """Look again while something is missing, and after a refusal."""
        while True:
            await asyncio.sleep(period_s)
            if self._missing or self._refusals() != self._refused:
                await self.look()

    async def look(self) -> bool:
        """Ask, and say what has changed; whether there was an answer."""
        self._refused = self._refusals()
        try:
            found = await missing(self._kube, self._needed)
        except KubeError as error:
            _LOG.warning("nobody says what this account may do: %s", error)
            return False
        if lost := [right for right in found if right not in self._missing]:
            _LOG.error("%s", sentence(lost))
        if self._missing and not found:
            _LOG.info("this account may do all that the operator needs")
        self._missing = found
        self._show(found)
        return True

    async def may_watch_nodes(self) -> bool:
        """Whether nodes may be listed and watched, which an installation may leave out."""
        try:
            return not await missing(self._kube, OF_NODES)
        except KubeError as error:
            _LOG.info("nobody says whether nodes may be watched, so they are not: %s", error)
            return False


def sentence(rights: Sequence[Right]) -> str:
    """That these rights are missing, and what to do."""
    return (
        f"this account may not {', '.join(map(str, rights))}: grant it, by the chart's roles or those of "
        "docs/permissions.md"
    )
