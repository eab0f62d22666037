"""Size, roll-out and evictions of one StatefulSet whose template is right: what to mark, to move and to end now.

A replica that has to go is marked first and taken when it may go (`plan.drain`). Who has to go follows from what is:
ordinals beyond the wanted number, then replicas that must leave their node, then those that the roll-out has reached.
Not here: creation, adoption and changes of the template (`plan.planner`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sglpool.plan.drain import Moment, drained, mark_steps, may_go
from sglpool.plan.gate import GateState
from sglpool.plan.observed import ObservedPod, ObservedStatefulSet
from sglpool.plan.rollout import Pace, next_partition, pods_to_replace, takes
from sglpool.plan.steps import DeleteObject, Scale, Step


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
    """

    current: ObservedStatefulSet
    wanted: int
    pods: tuple[ObservedPod, ...]
    at: Moment
    max_unavailable: int
    refused: bool = False
    elsewhere: int = 0
    gate: GateState = field(default_factory=GateState)

    @property
    def goes_back(self) -> bool:
        """Whether replicas have to return to the revision before, and there is one."""
        return self.gate.goes_back and self.current.current_revision != self.current.update_revision

    @property
    def surplus(self) -> dict[str, str]:
        """Why pods beyond the wanted number go, by uid."""
        return {pod.uid: f"{self.wanted} replicas are wanted" for pod in self.pods if pod.ordinal >= self.wanted}


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
    reached, partition = _go_back(case, size) if case.goes_back else _roll_out(case, size)
    leaving = {**reached, **case.surplus}
    marks: list[Step] = [*mark_steps(case.pods, leaving, case.at)]
    scale = _scale(case, size, partition)
    if scale is not None:
        return [[*marks, scale]]
    if not case.current.caught_up:
        return [marks]
    outdated = pods_to_replace(case.current, case.pods, max_unavailable=case.max_unavailable)
    reason = "the roll-out replaces it"
    if case.goes_back:
        outdated = (*outdated, *(p for p in _returning(case) if may_go(p, case.at) and not p.terminating))
        reason = "it returns to the revision before"
    return [[*marks, *(_replace(pod, case, reason) for pod in dict.fromkeys(outdated))]]


def _replace(pod: ObservedPod, case: Case, reason: str) -> DeleteObject:
    """Delete a pod, so that its StatefulSet makes it anew."""
    gone = drained([pod], case.at) if pod.ready else None
    return DeleteObject(kind="Pod", name=pod.name, uid=pod.uid, reason=reason, drained=gone)


def surplus_marks(case: Case) -> list[Step]:
    """Marks of the pods beyond the wanted number alone; every other mark stays as it is."""
    pods = [pod for pod in case.pods if pod.ordinal >= case.wanted]
    return [*mark_steps(pods, case.surplus, case.at)]


def _roll_out(case: Case, size: int) -> tuple[dict[str, str], int]:
    """Ready pods that the roll-out has reached, with the reason, and the partition to set now."""
    current = case.current
    partition = _held_partition(case, size)
    replicas = min(current.replicas, size)
    if case.gate.held or not current.caught_up or replicas == 0:
        return {}, partition
    shrunk = replace(current, replicas=replicas, partition=min(partition, replicas))
    pods = [pod for pod in case.pods if pod.ordinal < replicas]
    pace = Pace(max_unavailable=case.max_unavailable, refused=case.refused)
    if case.gate.closed:
        pace = replace(pace, max_unavailable=1, lowest=replicas - 1)
    far = next_partition(shrunk, pods, pace)
    if far >= replicas:
        return {}, partition
    reached = [pod for pod in takes(shrunk, pods, to=far) if pod.ordinal < case.wanted]
    if reached and not _others_serve(case, reached):
        # Nobody could take their conversations, and marked they would turn new ones away: waiting helps nobody.
        return {}, far
    waits = frozenset(pod.ordinal for pod in pods if pod.ready and not may_go(pod, case.at))
    near = next_partition(shrunk, pods, replace(pace, waits=waits))
    reason = "the roll-out has reached it"
    return {pod.uid: reason for pod in reached}, near if near < replicas else partition


def _held_partition(case: Case, size: int) -> int:
    """The partition without any progress; one that holds every replica of a gated roll-out holds added ones too."""
    current = case.current
    holds_all = current.partition >= current.replicas > 0 and (case.gate.closed or case.gate.held)
    return size if holds_all else min(current.partition, size)


def _go_back(case: Case, size: int) -> tuple[dict[str, str], int]:
    """Ready pods that have to leave the newest revision, with the reason, and the partition: it holds everything."""
    serving = [pod for pod in _returning(case) if pod.ready and pod.unproven != "true"]
    return {pod.uid: "it returns to the revision before" for pod in serving}, size


def _returning(case: Case) -> list[ObservedPod]:
    """Pods to end now, or to empty: all that serve nobody, and of the others no more than may be away."""
    current = case.current
    newest = [p for p in case.pods if p.revision == current.update_revision and p.ordinal < case.wanted]
    idle = [pod for pod in newest if not pod.ready or pod.unproven == "true"]
    serving = [pod for pod in reversed(newest) if pod not in idle]
    up = sum(pod.ready for pod in case.pods if pod.ordinal < case.wanted)
    room = case.max_unavailable - max(min(case.wanted, current.replicas) - up, 0)
    return [*idle, *serving[: max(room, 0)]]


def _others_serve(case: Case, reached: Sequence[ObservedPod]) -> bool:
    """Whether some replica serves beside those that a roll-out takes; one that is not wanted does until it is gone."""
    uids = {pod.uid for pod in reached}
    return bool(case.elsewhere) or any(p.ready and p.unproven != "true" and p.uid not in uids for p in case.pods)


def _scale(case: Case, size: int, partition: int) -> Scale | None:
    """The change of size and partition, None if there is none to make."""
    current = case.current
    if (current.replicas, current.partition) == (size, partition) and (current.scale_owned or size == 0):
        return None
    reason = f"{current.replicas} to {size} replicas"
    if current.replicas == size:
        reason = f"roll-out reaches ordinal {partition}" if partition else "roll-out reaches every ordinal"
    going = [p for p in case.pods if size <= p.ordinal < current.replicas and not p.terminating]
    return Scale(name=current.name, replicas=size, partition=partition, reason=reason, drained=drained(going, case.at))
