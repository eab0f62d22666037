"""Startup, readiness and liveness probes of one run of a container, with the kubelet's rules.

A prober looks at every tick of its period. Ticks are counted from the pod's arrival at the node, not from the
container's start, and one that comes while a look is under way is made up for right after it. A result counts once it
came as often in a row as its threshold says. Not here: what the looks are (`checks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.checks import Outcome, Unsupported

ProbeKind = Literal["startup", "readiness", "liveness"]
_ATTEMPTS_ON_ERROR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRules:
    """The numbers of a probe."""

    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Manifest) -> ProbeRules:
        """Read them from the manifest, with the API's defaults."""
        return cls(
            initial_delay_s=probe.get("initialDelaySeconds") or 0,
            period_s=probe.get("periodSeconds") or 10,
            timeout_s=probe.get("timeoutSeconds") or 1,
            success_threshold=probe.get("successThreshold") or 1,
            failure_threshold=probe.get("failureThreshold") or 3,
        )


Look = Callable[[float], Awaitable[Outcome]]
"""Looks once, within so many seconds; raises Unsupported, OSError or SandboxError when it could not look at all."""


class Prober:
    """One probe of one run of a container."""

    def __init__(
        self,
        kind: ProbeKind,
        rules: ProbeRules,
        look: Look,
        *,
        origin_s: float,
        started_s: float,
        on_unhealthy: Callable[[str], None],
    ) -> None:
        """Set up; loop times.

        Args:
            kind: Which probe it is; the events name it.
            rules: Its numbers.
            look: What it does.
            origin_s: When its ticks began, which is the pod's arrival.
            started_s: When the container started.
            on_unhealthy: Gets the text of an Unhealthy event.
        """
        self._kind = kind
        self._rules = rules
        self._look = look
        self._origin_s = origin_s
        self._started_s = started_s
        self._on_unhealthy = on_unhealthy
        self._run = 0
        self._last: bool | None = None
        self._tick_number = self._ticks_until_now()

    async def results(self, found: Callable[[bool], bool], *, at_once: bool = False) -> None:
        """Look until told to stop.

        Args:
            found: Gets every result that counts, and says whether to go on.
            at_once: Look first without waiting for a tick.
        """
        if not at_once:
            await self._tick()
        while True:
            if self._now_s() - self._started_s >= self._rules.initial_delay_s:
                result = await self._counted()
                if result is not None and not found(result):
                    return
            await self._tick()

    async def _counted(self) -> bool | None:
        """Look once; None while the result does not count."""
        outcome = await self._try()
        if outcome is None:
            return None
        if not outcome.ok:
            self._on_unhealthy(f"{self._kind.capitalize()} probe failed: {outcome.output}")
        self._run = self._run + 1 if outcome.ok is self._last else 1
        self._last = outcome.ok
        threshold = self._rules.success_threshold if outcome.ok else self._rules.failure_threshold
        return outcome.ok if self._run >= threshold else None

    async def _try(self) -> Outcome | None:
        """Look, again when the look itself fails; None when it fails each time, which says nothing of the container."""
        problem: Exception | None = None
        for _ in range(_ATTEMPTS_ON_ERROR):
            try:
                return await self._look(self._rules.timeout_s)
            except Unsupported as error:
                problem = error
                break
            except (OSError, SandboxError) as error:
                problem = error
        self._on_unhealthy(f"{self._kind.capitalize()} probe errored: {problem}")
        return None

    async def _tick(self) -> None:
        """Wait for the next tick after the last one seen; at once when that was missed."""
        next_number = self._tick_number + 1
        wait_s = self._origin_s + next_number * self._rules.period_s - self._now_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        # All ticks that passed meanwhile are one; and the clock may wake us a hair before ours.
        self._tick_number = max(next_number, self._ticks_until_now())

    def _ticks_until_now(self) -> int:
        return int((self._now_s() - self._origin_s) / self._rules.period_s)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
