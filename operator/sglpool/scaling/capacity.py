"""What a pool's replicas can carry, ready and starting, and which of them do not count.

A replica that starts counts as one that serves, but only for twice its cold start; one that finds no node counts for
five minutes. Not here: what the load asks for (`demand`), and what to change (`moves`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sglpool.scaling.types import Memory, Policy, StartingReplica, TypePolicy, TypeState

FAILED_AFTER_COLD_STARTS = 2.0
FASTEST_START_S = 60.0
"""Quicker starts are taken for this: twice of a few seconds would be no patience with an image that is pulled."""
HOMELESS_AFTER_S = 300.0
FEWEST_FAILED, FAILED_SHARE = 2, 0.25
"""A type fails when so many of its starts, and such a share of those that ended, failed: one bad node is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The replicas of one GPU type, counted.

    Attributes:
        policy: what the user wants of it.
        now: replicas wanted last, or those of its StatefulSet before the first decision.
        ready: ready pods.
        coming: replicas that are starting, or whose pods are yet to be made, and count as if they served.
        failed: replicas that have been starting for too long.
        homeless: replicas that the scheduler has found no node for, for too long.
        idle_top: how many of the highest ordinals are failed or homeless: giving them up costs nothing.
        cold_start_s: how long a start takes.
    """

    policy: TypePolicy
    now: int
    ready: int
    coming: int
    failed: int
    homeless: int
    idle_top: int
    cold_start_s: float

    @property
    def type(self) -> str:
        """The GPU type."""
        return self.policy.type

    @property
    def target(self) -> int:
        """Requests that one replica should carry."""
        return self.policy.target_running_requests

    @property
    def counted(self) -> int:
        """Replicas that count as capacity. What drains away for good is above `now` and does not."""
        return min(self.now, self.ready + self.coming)

    @property
    def failing(self) -> bool:
        """Whether so many starts fail that another would fail too."""
        return self.failed >= max(FEWEST_FAILED, FAILED_SHARE * (self.ready + self.failed))

    @property
    def stuck(self) -> bool:
        """Whether another replica of this type would not get ready, for now."""
        return self.homeless > 0 or self.failing

    @property
    def open(self) -> bool:
        """Whether another replica may be started."""
        return self.policy.usable and not self.stuck


def groups(policy: Policy, states: Mapping[str, TypeState], memory: Memory, now_s: float) -> tuple[Group, ...]:
    """Count the replicas of every GPU type of the policy, in its order."""
    return tuple(_group(policy, one, states.get(one.type), memory, now_s) for one in policy.types)


def _group(policy: Policy, one: TypePolicy, state: TypeState | None, memory: Memory, now_s: float) -> Group:
    state = state or TypeState(type=one.type, replicas=0, ready=0)
    now = memory.wanted.get(one.type, state.replicas)
    cold_s = cold_start_s(policy, memory.starts.get(one.type, ()))
    failed_after_s = FAILED_AFTER_COLD_STARTS * cold_s
    homeless = {each.ordinal for each in state.starting if _homeless(each, now_s)}
    failed = {each.ordinal for each in state.starting if now_s - each.since_s > failed_after_s} - homeless
    podless = podless_replicas(state, now)
    if podless and now_s - memory.podless_since_s.get(one.type, now_s) > failed_after_s:
        failed_pods, podless = podless, 0
    else:
        failed_pods = 0
    return Group(
        policy=one,
        now=now,
        ready=state.ready,
        coming=len(state.starting) - len(homeless) - len(failed) + podless,
        failed=len(failed) + failed_pods,
        homeless=len(homeless),
        idle_top=_top(state.replicas, homeless | failed) if now >= state.replicas else 0,
        cold_start_s=cold_s,
    )


def podless_replicas(state: TypeState, wanted: int) -> int:
    """Replicas that are wanted but have no pod yet: the StatefulSet, or its pods, are about to follow."""
    return max(0, wanted - state.ready - len(state.starting))


def cold_start_s(policy: Policy, starts: Sequence[float]) -> float:
    """The median of the last starts, or the policy's guess, within the engine's own bound."""
    seen_s = max(FASTEST_START_S, median(starts)) if starts else policy.cold_start_s
    return min(seen_s, policy.startup_timeout_s)


def slowest_start_s(found: Iterable[Group]) -> float:
    """The cold start that windows go by: the longest among the types in use, else the preferred type's."""
    every = tuple(found)
    return max((one.cold_start_s for one in every if one.now), default=every[0].cold_start_s)


def capacity(found: Iterable[Group]) -> float:
    """Requests that all replicas that count should carry."""
    return float(sum(one.counted * one.target for one in found))


def ready_capacity(found: Iterable[Group]) -> float:
    """Requests that the ready replicas should carry."""
    return float(sum(one.ready * one.target for one in found))


def _homeless(replica: StartingReplica, now_s: float) -> bool:
    since_s = replica.unschedulable_since_s
    return since_s is not None and now_s - since_s >= HOMELESS_AFTER_S


def _top(replicas: int, idle: set[int]) -> int:
    count = 0
    while replicas - 1 - count in idle:
        count += 1
    return count
