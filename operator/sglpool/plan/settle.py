"""Size, roll-out and evictions of one StatefulSet whose template is right: what to mark, to move and to end now.

A replica that has to go is marked first and taken when it may go (`plan.drain`). Who has to go follows from what is:
ordinals beyond the wanted number, then replicas that must leave their node, then those that the roll-out has reached.
Not here: creation, adoption and changes of the template (`plan.planner`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sglpool.plan.drain import CAUSE_SIZE, Leave, Moment, drained, mark_steps, may_go
from sglpool.plan.gate import GateState
from sglpool.plan.nodes import Eviction
from sglpool.plan.observed import ObservedPod, ObservedStatefulSet
from sglpool.plan.rollout import (
    Pace,
    in_any_order,
    next_of_any,
    next_partition,
    outdated_down,
    pods_to_replace,
    takes,
)
from sglpool.plan.steps import DeleteObject, Scale, Step

_REACHED = Leave(reason="the roll-out has reached it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One StatefulSet and what is wanted of it.

    Attributes:
        current: The StatefulSet.
        wanted: Wanted replicas.
        pods: Its own pods, by ordinal.
        at: Time and loads.
        max_unavailable: Most replicas that may be away at a time for our sake.
        refused: Whether the API server refuses its missing pods.
        elsewhere: Ready replicas of the pool's other types that stay.
        gate: How far the newest revision is, and what the user says about the roll-out.
        evictions: Replicas that have to leave their node, or to be replaced, by uid.
    """

    current: ObservedStatefulSet
    wanted: int
    pods: tuple[ObservedPod, ...]
    at: Moment
    max_unavailable: int
    refused: bool = False
    elsewhere: int = 0
    gate: GateState = field(default_factory=GateState)
    evictions: Mapping[str, Eviction] = field(default_factory=dict)

    @property
    def goes_back(self) -> bool:
        """Whether replicas have to return to the revision before, and there is one."""
        return self.gate.goes_back and self.current.current_revision != self.current.update_revision

    @property
    def surplus(self) -> dict[str, Leave]:
        """Why pods beyond the wanted number go, by uid."""
        words = "1 replica is wanted" if self.wanted == 1 else f"{self.wanted} replicas are wanted"
        return {pod.uid: Leave(reason=words, cause=CAUSE_SIZE) for pod in self.pods if pod.ordinal >= self.wanted}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """How a roll-out, or its return, goes on.

    Attributes:
        leaving: Ready pods that it has reached, with the reason, by uid.
        partition: The partition to set.
        on_delete: Whether it goes on in any order, without a partition.
        taken: In any order: ready pods that it has reached.
    """

    leaving: Mapping[str, Leave] = field(default_factory=dict)
    partition: int
    on_delete: bool = False
    taken: tuple[ObservedPod, ...] = ()


def size_now(case: Case) -> int:
    """The number of replicas to set now: never below an ordinal that may not go yet."""
    current, wanted = case.current, case.wanted
    if wanted >= current.replicas:
        return wanted
    staying = [p.ordinal for p in case.pods if wanted <= p.ordinal < current.replicas and not may_go(p, case.at)]
    return max([wanted, *(ordinal + 1 for ordinal in staying)])


def settle(case: Case) -> list[list[Step]]:
    """The steps that are due.

    Pods are replaced one call after the partition was moved, when its controller has seen it: deleted sooner, they
    could return on the old revision, or on the new one when they should go back.
    """
    size = size_now(case)
    evicted = _evicted(case)
    course = _go_back(case, size, evicted) if case.goes_back else _roll_out(case, size, evicted)
    leaving = {
        **_passed(case),
        **course.leaving,
        **case.surplus,
        **{p.uid: case.evictions[p.uid].leave for p in evicted},
    }
    at_once = [p for p in evicted if not _others_serve(case, [p])]
    marks: list[Step] = [*mark_steps([p for p in case.pods if p not in at_once], leaving, case.at)]
    scale = _scale(case, size, course)
    if scale is not None:
        return [[*marks, scale]]
    if not case.current.caught_up:
        return [marks]
    ends = {p: case.evictions[p.uid].reason for p in evicted if p in at_once or may_go(p, case.at)}
    ends |= _replaced(case, evicted, course)
    return [[*marks, *(_replace(pod, case, reason) for pod, reason in ends.items())]]


def _passed(case: Case) -> dict[str, Leave]:
    """Pods that the partition has passed and that still run what they ran: they are about to be replaced."""
    current = case.current
    if case.goes_back or current.on_delete:
        return {}
    passed = (p for p in case.pods if current.partition <= p.ordinal < case.wanted)
    return {pod.uid: _REACHED for pod in passed if pod.draining and pod.revision != current.update_revision}


def _replaced(case: Case, evicted: Sequence[ObservedPod], course: _Course) -> dict[ObservedPod, str]:
    """Pods that the roll-out, or its return, ends now, with the reason."""
    outdated = pods_to_replace(case.current, case.pods, max_unavailable=case.max_unavailable)
    if course.on_delete:
        empty = (pod for pod in course.taken if may_go(pod, case.at) or pod.uid not in course.leaving)
        outdated = (*outdated_down(case.current, case.pods), *empty)
    ends = dict.fromkeys(outdated, "the roll-out replaces it")
    if case.goes_back:
        back = [p for p in _returning(case, evicted) if may_go(p, case.at) and not p.terminating]
        ends |= dict.fromkeys(back, "it returns to the revision before")
    return ends


def _evicted(case: Case) -> list[ObservedPod]:
    """Replicas that leave for an eviction now: of one node at a time, and no more than may be away."""
    wanted = [pod for pod in case.pods if pod.ordinal < case.wanted]
    room = case.max_unavailable - (min(case.wanted, case.current.replicas) - sum(map(_serves, wanted)))
    asked = [p for p in wanted if p.ready and p.uid in case.evictions]
    asked = [p for p in asked if case.evictions[p.uid].even_last or _others_serve(case, [p])]
    if not asked or room <= 0:
        return []
    asked.sort(key=lambda p: (not p.draining, case.evictions[p.uid].node, -p.ordinal))
    node = case.evictions[asked[0].uid].node
    return [pod for pod in asked if case.evictions[pod.uid].node == node][:room]


def _replace(pod: ObservedPod, case: Case, reason: str) -> DeleteObject:
    """Delete a pod, so that its StatefulSet makes it anew."""
    gone = drained([pod], case.at) if pod.ready else None
    return DeleteObject(kind="Pod", name=pod.name, uid=pod.uid, reason=reason, drained=gone)


def surplus_marks(case: Case) -> list[Step]:
    """Marks for the sake of a smaller size alone; every other mark stays as it is."""
    pods = [pod for pod in case.pods if pod.ordinal >= case.wanted or pod.drain_cause == CAUSE_SIZE]
    return [*mark_steps(pods, case.surplus, case.at)]


def _roll_out(case: Case, size: int, evicted: Sequence[ObservedPod]) -> _Course:
    """How far the roll-out goes now."""
    current = case.current
    replicas = min(current.replicas, size)
    if not (case.gate.held or current.caught_up):
        # What it says of revisions is not to be trusted for a moment: nothing is begun, and nothing taken back.
        partition = 0 if current.on_delete else _held_partition(case, size)
        return _Course(leaving=_begun(case, evicted), partition=partition, on_delete=current.on_delete)
    partition = _held_partition(case, size)
    if case.gate.held or replicas == 0:
        return _Course(partition=partition)
    shrunk = replace(current, replicas=replicas, partition=min(partition, replicas))
    pods = [pod for pod in case.pods if pod.ordinal < replicas]
    away = frozenset(pod.ordinal for pod in evicted)
    pace = Pace(max_unavailable=case.max_unavailable, refused=case.refused, away=away)
    if not case.gate.closed and in_any_order(shrunk, pods, max_unavailable=case.max_unavailable):
        return _in_any_order(case, shrunk, pods, pace)
    if case.gate.closed:
        pace = replace(pace, max_unavailable=1, lowest=replicas - 1)
    far = next_partition(shrunk, pods, pace)
    if far >= replicas:
        return _Course(partition=partition)
    reached = [pod for pod in takes(shrunk, pods, to=far) if pod.ordinal < case.wanted]
    if reached and not _others_serve(case, reached):
        # Nobody could take their conversations, and marked they would turn new ones away: waiting helps nobody.
        return _Course(partition=far)
    waits = frozenset(pod.ordinal for pod in pods if pod.ready and not may_go(pod, case.at))
    near = next_partition(shrunk, pods, replace(pace, waits=waits))
    return _Course(
        leaving=dict.fromkeys((p.uid for p in reached), _REACHED), partition=near if near < replicas else partition
    )


def _begun(case: Case, evicted: Sequence[ObservedPod]) -> dict[str, Leave]:
    """Pods that are being emptied for the roll-out already, no more than may be away."""
    wanted = [pod for pod in case.pods if pod.ordinal < min(case.wanted, case.current.replicas)]
    room = case.max_unavailable - len(evicted) - sum(not pod.ready for pod in wanted)
    begun = [pod for pod in reversed(wanted) if pod.ready and pod.draining and not pod.drain_cause]
    return {pod.uid: _REACHED for pod in begun[: max(room, 0)] if pod not in evicted}


def _in_any_order(case: Case, shrunk: ObservedStatefulSet, pods: Sequence[ObservedPod], pace: Pace) -> _Course:
    wanted = replace(shrunk, replicas=min(shrunk.replicas, case.wanted))
    taken = next_of_any(wanted, pods, pace)
    leaving = dict.fromkeys((pod.uid for pod in taken), _REACHED) if _others_serve(case, taken) else {}
    return _Course(leaving=leaving, partition=0, on_delete=True, taken=taken)


def _held_partition(case: Case, size: int) -> int:
    """The partition without any progress; one that holds every replica of a gated roll-out holds added ones too."""
    current = case.current
    if current.on_delete:
        # In order again: whoever is below the highest that is to be updated keeps what it runs.
        old = [p.ordinal for p in case.pods if p.revision != current.update_revision and p.ordinal < size]
        return max(old, default=-1) + 1
    holds_all = current.partition >= current.replicas > 0 and (case.gate.closed or case.gate.held)
    return size if holds_all else min(current.partition, size)


def _go_back(case: Case, size: int, evicted: Sequence[ObservedPod]) -> _Course:
    """Who has to leave the newest revision; the partition holds everything."""
    serving = [pod for pod in _returning(case, evicted) if _serves(pod)]
    why = Leave(reason="it returns to the revision before")
    return _Course(leaving={pod.uid: why for pod in serving}, partition=size)


def _returning(case: Case, evicted: Sequence[ObservedPod]) -> list[ObservedPod]:
    """Pods to end now, or to empty: all that serve nobody, and of the others no more than may be away."""
    current = case.current
    newest = [p for p in case.pods if p.revision == current.update_revision and p.ordinal < case.wanted]
    idle = [pod for pod in newest if not _serves(pod)]
    serving = [pod for pod in reversed(newest) if pod not in idle]
    up = sum(_serves(pod) and pod not in evicted for pod in case.pods if pod.ordinal < case.wanted)
    room = case.max_unavailable - max(min(case.wanted, current.replicas) - up, 0)
    return [*idle, *serving[: max(room, 0)]]


def _serves(pod: ObservedPod) -> bool:
    """Whether it gets traffic: one of a revision that is not proven is ready and serves nobody."""
    return pod.ready and pod.unproven != "true"


def _others_serve(case: Case, going: Sequence[ObservedPod]) -> bool:
    """Whether some replica serves beside those; one that is not wanted does until it is gone."""
    uids = {pod.uid for pod in going}
    return bool(case.elsewhere) or any(_serves(p) and p.uid not in uids for p in case.pods)


def _scale(case: Case, size: int, course: _Course) -> Scale | None:
    """The change of size and partition, None if there is none to make."""
    current, partition = case.current, course.partition
    is_so = (current.replicas, current.partition, current.on_delete) == (size, partition, course.on_delete)
    if is_so and (current.scale_owned or size == 0):
        return None
    reason = f"{current.replicas} to {size} replicas"
    if current.replicas == size:
        reason = f"roll-out reaches ordinal {partition}" if partition else "roll-out reaches every ordinal"
        reason = "roll-out goes on in any order" if course.on_delete else reason
    going = [p for p in case.pods if size <= p.ordinal < current.replicas and not p.terminating]
    return Scale(
        name=current.name,
        replicas=size,
        partition=partition,
        on_delete=course.on_delete,
        reason=reason,
        drained=drained(going, case.at),
    )
