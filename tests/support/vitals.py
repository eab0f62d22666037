"""Engines as the judge of health hears them: a replica that works, minute by minute, and ways to be unwell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sglpool.plan import ObservedPod
from sglpool.plan.health import Health, HealthMemory, judge
from sglpool.plan.verdicts import Sample
from sglpool.signals import Endpoint
from support.observed import observed_pod

KV_TOKENS = 1_383_441
MINUTE_S = 60.0


@dataclass
class Engine:
    """One replica. It answers requests all the time, with speculation that works.

    Attributes:
        pod: Its pod.
        accept_length: Tokens that a verify step yields.
        verify_calls_per_s: Verify steps of requests that end.
        requests: Requests on it.
        stuck: Whether it computes nothing.
        kv_tokens: Its KV pool.
        readable: Whether it answers.
        exports: Whether it exports counters.
    """

    pod: ObservedPod
    accept_length: float = 3.5
    verify_calls_per_s: float = 10.0
    requests: int = 4
    stuck: bool = False
    kv_tokens: int = KV_TOKENS
    readable: bool = True
    exports: bool = True
    generated: float = 0.0
    verify_calls: float = 0.0
    computed: float = 0.0

    def live(self, for_s: float) -> None:
        """Let time pass."""
        if self.stuck or not self.requests:
            return
        self.verify_calls += self.verify_calls_per_s * for_s
        self.generated += self.verify_calls_per_s * self.accept_length * for_s
        self.computed += max(self.verify_calls_per_s * self.accept_length, 1.0) * for_s

    def restart(self, *, kv_tokens: int | None = None) -> None:
        """Begin anew, in the same pod."""
        self.pod = replace(self.pod, restarts=self.pod.restarts + 1)
        self.generated = self.verify_calls = self.computed = 0.0
        self.kv_tokens = kv_tokens or self.kv_tokens
        self.stuck = False

    def sample(self, at_s: float) -> Sample:
        return Sample(
            at_s=at_s,
            requests=self.requests,
            waiting_tokens=0,
            kv_total_tokens=self.kv_tokens,
            progress=(self.computed,) if self.exports else None,
            generated_tokens=self.generated if self.exports else None,
            verify_calls=self.verify_calls if self.exports else None,
        )


@dataclass
class Ward:
    """A pool of engines, and the judge who looks at them."""

    engines: list[Engine]
    speculative: bool = True
    memory: HealthMemory = field(default_factory=HealthMemory)
    health: Health = field(default_factory=Health)
    now_s: float = 1000.0

    @classmethod
    def of(cls, replicas: int = 3, *, speculative: bool = True) -> Ward:
        return cls([Engine(observed_pod(ordinal)) for ordinal in range(replicas)], speculative=speculative)

    def look(self) -> Health:
        """Judge now."""
        samples = {one.pod.uid: one.sample(self.now_s) for one in self.engines if one.readable}
        pods = [one.pod for one in self.engines]
        self.health, self.memory = judge(pods, samples, self.memory, self.now_s, speculative=self.speculative)
        return self.health

    def live(self, for_s: float, *, every_s: float = MINUTE_S, until: Callable[[Health], bool] | None = None) -> Health:
        """Let time pass, with looks; stops when one finds what is asked for."""
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += every_s
            for engine in self.engines:
                engine.live(every_s)
            found = self.look()
            if until is not None and until(found):
                return found
        return self.health

    def replace(self, number: int) -> Engine:
        """End a pod; its successor of the same name is ready, and well."""
        old = self.engines[number].pod
        self.engines[number] = Engine(replace(old, uid=f"{old.uid}+", restarts=0))
        return self.engines[number]


class FakeEngines:
    """Engines that the operator asks: those that a test puts here, by uid of the pod."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.asked: list[list[str]] = []
        self.takes_s = 0.0
        self.drafts = False

    async def read(
        self, engines: Sequence[Endpoint], clock_s: Callable[[], float], *, drafts: bool
    ) -> dict[str, Sample]:
        self.drafts = drafts
        self.asked.append([one.name for one in engines])
        await asyncio.sleep(self.takes_s)
        answering = [one.uid for one in engines if one.uid in self.engines]
        return {uid: self.engines[uid].sample(clock_s()) for uid in answering}
