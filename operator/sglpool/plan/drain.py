"""When a replica may go: conversations leave first, and nobody is kept for ever.

A replica that has to go is marked on its pod, with a deadline; the router gives a marked one no new conversation and
lets the others leave at their own pauses. The marks are all that is remembered: whoever looks at pods and readings
comes to the same answer, an operator that has just started too. Where nothing but a former operator's memory said that
a replica has to go, the mark says it. Not here: which replicas have to go (`plan.planner`, `plan.rollout`,
`plan.nodes`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sglpool.api import names
from sglpool.plan.observed import ObservedPod
from sglpool.plan.steps import Drained, MarkPod

FRESH_S = 30.0
"""An older reading says nothing about whether a replica is idle: two ticks."""
IDLE_READS = 2
"""Readings in a row in which nothing was there, before a replica counts as idle."""
CAUSE_SIZE = "Size"
"""A smaller size is wanted. What the autoscaler decided stands nowhere else."""
CAUSE_FEW_GPUS = "FewGPUs"
"""Its node has lost a GPU. For how long that has been so stands nowhere else."""
CAUSE_UNHEALTHY = "Unhealthy"
"""Followed by what is wrong, and in which run of the engine. Figures of the past stand nowhere else."""
MAX_REASON = 400
"""Characters of a reason on a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Why a replica has to go.

    Attributes:
        reason: In words.
        cause: One of the causes above, empty where the cluster itself says why.
    """

    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """What a replica has to do, as its routers say, or its engine where there is no router.

    Attributes:
        uid: The pod's uid.
        idle_reads: Readings in a row, up to the newest, in which it was idle: nothing in flight at any router, the
            engine's own counts zero, and no conversation homed there seen for 60 s.
        in_flight: Requests under way.
        conversations: Conversations at home there.
        warm_tokens: Tokens of context that those would have to compute again elsewhere.
        age_s: Age of the newest reading, at the time for which the plan is made.
    """

    uid: str
    idle_reads: int
    in_flight: int
    conversations: int
    warm_tokens: int
    age_s: float

    @property
    def fresh(self) -> bool:
        """Whether it still says something."""
        return 0 <= self.age_s <= FRESH_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a plan rests on beside the objects: the time, and what replicas have to do.

    Attributes:
        now_s: Unix time.
        loads: By pod uid; None where nobody reads any: then replicas go without a wait.
        timeout_s: Longest wait for conversations to leave.
        routed: Whether readings come from routers. If those cannot be read, a wait is twice as long.
    """

    now_s: float
    loads: Mapping[str, ReplicaLoad] | None
    timeout_s: float
    routed: bool

    def load(self, pod: ObservedPod) -> ReplicaLoad | None:
        """The reading of a pod, if there is a fresh one."""
        found = self.loads.get(pod.uid) if self.loads is not None else None
        return found if found is not None and found.fresh else None


def may_go(pod: ObservedPod, at: Moment) -> bool:
    """Whether a replica that has to go can be taken away now.

    One that serves nobody can: not ready, without traffic because its revision is not proven, or gone. One that serves
    goes when it was idle on two reads, of which one came after the mark, or at its deadline.
    """
    if at.loads is None or pod.unproven == "true":
        return True
    load = at.load(pod)
    if not pod.ready:
        # A probe that failed for a moment ends no stream.
        busy = load is not None and load.in_flight > 0
        return pod.terminating or not busy or _is_late(pod, at, wait_s=0.0)
    deadline_s = valid_deadline_s(pod, at)
    if deadline_s is None:
        return False
    if load is None:
        return _is_late(pod, at, wait_s=at.timeout_s if at.routed else 0.0)
    read_since_mark = at.now_s - load.age_s >= deadline_s - at.timeout_s
    return (read_since_mark and load.idle_reads >= IDLE_READS) or at.now_s >= deadline_s


def valid_deadline_s(pod: ObservedPod, at: Moment) -> float | None:
    """The deadline of a marked pod; None without one, or one further away than a whole wait.

    Those come from a clock that was set back, from a shorter `rollout.drainTimeout`, or from somebody's hand.
    """
    deadline_s = pod.drain_deadline_s if pod.draining else None
    return None if deadline_s is None or deadline_s > at.now_s + at.timeout_s + 1.0 else deadline_s


def _is_late(pod: ObservedPod, at: Moment, *, wait_s: float) -> bool:
    deadline_s = valid_deadline_s(pod, at)
    return deadline_s is not None and at.now_s >= deadline_s + wait_s


def kept_replicas(replicas: int, pods: Iterable[ObservedPod]) -> int:
    """The size that was wanted last: without the highest replicas that are being emptied for a smaller one.

    Args:
        replicas: Size of a StatefulSet.
        pods: Its pods.
    """
    emptied = {pod.ordinal for pod in pods if pod.draining and pod.drain_cause == CAUSE_SIZE}
    while replicas - 1 in emptied:
        replicas -= 1
    return replicas


def mark_steps(pods: Iterable[ObservedPod], leaving: Mapping[str, Leave], at: Moment) -> list[MarkPod]:
    """Marks to set and to remove, so that exactly those that have to go carry one.

    Args:
        pods: Pods of one StatefulSet.
        leaving: Why each pod has to go, by uid.
        at: The moment.
    """
    steps = []
    for pod in pods:
        if pod.terminating:
            continue
        if pod.uid in leaving and at.loads is not None:
            why = leaving[pod.uid]
            if valid_deadline_s(pod, at) is None:
                steps.append(_mark(pod, round(at.now_s + at.timeout_s), why))
            elif pod.drain_cause != why.cause:
                steps.append(MarkPod(name=pod.name, uid=pod.uid, annotations=_why(why), reason=why.reason))
        elif pod.draining:
            steps.append(_unmark(pod))
    return steps


def _mark(pod: ObservedPod, deadline_s: int, why: Leave) -> MarkPod:
    annotations = {
        names.ANNOTATION_DRAINING: "true",
        names.ANNOTATION_DRAIN_DEADLINE: str(deadline_s),
        **_why(why),
    }
    return MarkPod(name=pod.name, uid=pod.uid, annotations=annotations, reason=why.reason)


def _why(why: Leave) -> dict[str, str | None]:
    return {
        names.ANNOTATION_DRAIN_REASON: why.reason[:MAX_REASON],
        names.ANNOTATION_DRAIN_CAUSE: why.cause or None,
    }


def _unmark(pod: ObservedPod) -> MarkPod:
    annotations = dict.fromkeys(
        (
            names.ANNOTATION_DRAINING,
            names.ANNOTATION_DRAIN_DEADLINE,
            names.ANNOTATION_DRAIN_REASON,
            names.ANNOTATION_DRAIN_CAUSE,
        )
    )
    return MarkPod(name=pod.name, uid=pod.uid, annotations=annotations, reason="it is wanted again")


def drained(pods: Sequence[ObservedPod], at: Moment) -> Drained | None:
    """What goes with replicas that are taken away now, for whoever tells the user; None if nobody reads any."""
    if at.loads is None or not pods:
        return None
    loads = [at.load(pod) for pod in pods if pod.ready]
    read = [load for load in loads if load is not None]
    return Drained(
        pods=tuple(pod.name for pod in pods),
        conversations=sum(load.conversations for load in read),
        warm_tokens=sum(load.warm_tokens for load in read),
        requests=sum(load.in_flight for load in read),
        unread=len(loads) - len(read),
    )


def next_deadline_s(pods: Iterable[ObservedPod], at: Moment) -> float | None:
    """Seconds until time alone lets a marked pod go; None when no mark is there."""
    ends = [
        end
        for pod in pods
        if pod.ready and (deadline_s := valid_deadline_s(pod, at)) is not None
        for end in (deadline_s, deadline_s + at.timeout_s)
    ]
    return min((end - at.now_s for end in ends if end > at.now_s), default=None)
