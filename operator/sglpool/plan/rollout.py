"""How far a roll-out may go now: the partition, and the pods to replace.

A StatefulSet gives the update revision to ordinals from the partition upwards. Raised to `replicas` before the
template changes, it holds everything; lowered step by step, it bounds what a bad template can harm. Not here: when
a template is applied (`plan.planner`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sglpool.plan.observed import ObservedPod, ObservedStatefulSet
from sglpool.plan.problems import in_trouble


@dataclass(frozen=True, slots=True)
class _Ordinals:
    """Ordinals by state; one that is in none of the sets is down, and expected to come up by itself.

    Attributes:
        ready: Ready, whatever they run.
        done: Ready on the update revision.
        lost: Down, and not coming up by themselves: the roll-out may be their cure, so it never waits for them.
    """

    ready: frozenset[int]
    done: frozenset[int]
    lost: frozenset[int]

    def in_flight(self, partition: int, replicas: int) -> int:
        """Ordinals that the roll-out has reached and that are not through."""
        return sum(ordinal not in self.done for ordinal in range(partition, replicas))

    def coming(self, partition: int) -> int:
        """Ordinals below the partition that are down and coming up."""
        return sum(ordinal not in self.ready and ordinal not in self.lost for ordinal in range(partition))


def next_partition(
    statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod], *, max_unavailable: int, refused: bool = False
) -> int:
    """The partition to set now.

    Until one replica is ready on the new revision, at most `max_unavailable` get it, even where pods are down
    already: a bad template must not collect the pods that fail for other reasons. Once one is ready, the revision
    is proven, and whatever is down gets it at once. A ready replica is taken only while the others are up or lost.

    Args:
        statefulset: Its status must be caught up.
        pods: Its pods.
        max_unavailable: Most replicas that a roll-out takes away at a time.
        refused: Whether the API server refuses its missing pods, so that they do not come by themselves.

    Returns:
        The current partition when the roll-out has to wait, 0 when it is through.
    """
    replicas = statefulset.replicas
    partition = min(statefulset.partition, replicas)
    ordinals = _sort(statefulset, pods, refused=refused)
    while partition > 0:
        candidate = partition - 1
        if candidate not in ordinals.done:
            in_flight = ordinals.in_flight(partition, replicas)
            proven_cure = candidate not in ordinals.ready and bool(ordinals.done)
            waits_for = in_flight + (ordinals.coming(partition) if candidate in ordinals.ready else 0)
            if not proven_cure and waits_for >= max_unavailable:
                break
        partition = candidate
    return partition


def pods_to_replace(
    statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod], *, max_unavailable: int
) -> tuple[ObservedPod, ...]:
    """Pods to delete now, so that they return on the revision of their ordinal.

    The StatefulSet's controller would replace what the partition has passed too, but one pod at a time whatever
    `max_unavailable` says, and not while another one is Pending. Below the partition only a pod that is down on an
    abandoned revision is replaced: it returns on the one that worked before.

    Args:
        statefulset: Its status must be caught up.
        pods: Its pods.
        max_unavailable: Most replicas that may be down when a ready one is taken.
    """
    known = {statefulset.current_revision, statefulset.update_revision}
    own = [
        pod
        for pod in pods
        if pod.owner_uid == statefulset.uid
        and pod.ordinal < statefulset.replicas
        and pod.revision != statefulset.update_revision
        and not pod.terminating
    ]
    passed = [pod for pod in own if pod.ordinal >= statefulset.partition]
    down = [pod for pod in own if not pod.ready and (pod in passed or pod.revision not in known)]
    ordinals = _sort(statefulset, pods, refused=False)
    unavailable = sum(ordinal not in ordinals.ready for ordinal in range(statefulset.partition, statefulset.replicas))
    room = max(max_unavailable - unavailable - ordinals.coming(statefulset.partition), 0)
    ready = sorted((pod for pod in passed if pod.ready), key=lambda pod: -pod.ordinal)
    return (*down, *ready[:room])


def _sort(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod], *, refused: bool) -> _Ordinals:
    own = {pod.ordinal: pod for pod in pods if pod.owner_uid == statefulset.uid}
    ready = {ordinal for ordinal, pod in own.items() if pod.ready}
    lost = {ordinal for ordinal, pod in own.items() if in_trouble(pod)}
    if refused:
        lost |= set(range(statefulset.replicas)) - own.keys()
    return _Ordinals(
        ready=frozenset(ready),
        done=frozenset(o for o in ready if own[o].revision == statefulset.update_revision),
        lost=frozenset(lost),
    )


def rolling_out(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod]) -> bool:
    """Whether some replica does not run the template yet."""
    return statefulset.partition > 0 or any(
        pod.revision != statefulset.update_revision
        for pod in pods
        if pod.owner_uid == statefulset.uid and pod.ordinal < statefulset.replicas
    )
