"""How far a roll-out may go now: the partition, and the pods to replace.

A StatefulSet gives the update revision to ordinals from the partition upwards. Raised to `replicas` before the
template changes, it holds everything; lowered step by step, it bounds what a bad template can harm. A partition goes
from the highest ordinal down, and neighbours in that order mostly share a node: where several may be away at a time,
a revision of which one replica is ready goes on in any order, one replica of a node at a time. Not here: when a
template is applied (`plan.planner`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglpool.plan.observed import ObservedPod, ObservedStatefulSet
from sglpool.plan.problems import in_trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a roll-out may go.

    Attributes:
        max_unavailable: Most replicas that it takes away at a time.
        refused: Whether the API server refuses missing pods, so that they do not come by themselves.
        lowest: Ordinals below this one are held whatever happens.
        waits: Ordinals that are ready and may not go yet.
        away: Ordinals that are ready and go for another reason: they count as down.
    """

    max_unavailable: int
    refused: bool = False
    lowest: int = 0
    waits: frozenset[int] = frozenset()
    away: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Ordinals:
    """Ordinals by state; one that is in none of the sets is down, and expected to come up by itself.

    Attributes:
        ready: Ready, whatever they run.
        done: Ready on the update revision.
        lost: Down, and not coming up by themselves: the roll-out may be their cure, so it never waits for them.
        tried: Down on the update revision: it is no cure for them.
        begun: Ready, and being emptied.
        nodes: Node of each that has one.
    """

    ready: frozenset[int]
    done: frozenset[int]
    lost: frozenset[int]
    tried: frozenset[int]
    begun: frozenset[int]
    nodes: Mapping[int, str]

    def in_flight(self, partition: int, replicas: int) -> int:
        """Ordinals that the roll-out has reached, wherever the partition is, and that are not through."""
        reached = sum(ordinal not in self.done for ordinal in range(partition, replicas))
        return reached + sum(ordinal < partition for ordinal in self.tried)

    def coming(self, partition: int) -> int:
        """Ordinals below the partition that are down on former revisions and coming up."""
        away = self.ready | self.lost | self.tried
        return sum(ordinal not in away for ordinal in range(partition))

    def homeless(self, ordinal: int) -> bool:
        """Whether it has no node yet, and is expected to get one."""
        return ordinal not in self.nodes and ordinal not in self.lost

    def shares_a_node(self, candidate: int, partition: int, replicas: int) -> bool:
        """Whether a neighbour on the candidate's node is away too, while there are replicas with another node to take.

        With all of them on one node, waiting would save nothing. One that is about to get a node may get that one.
        """
        reached = [ordinal for ordinal in range(partition, replicas) if ordinal not in self.done]
        # Whoever waits for this very roll-out to be cured holds nobody up.
        down = reached + [
            o for o in range(partition) if o not in self.ready and (o in self.tried or o not in self.lost)
        ]
        if any(self.homeless(ordinal) for ordinal in down):
            return True
        nodes = {self.nodes[ordinal] for ordinal in down if ordinal in self.nodes}
        mine = self.nodes.get(candidate)
        others = {self.nodes.get(ordinal) for ordinal in range(partition) if ordinal not in self.done}
        return mine is not None and mine in nodes and bool(others - nodes)


def next_partition(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod], pace: Pace) -> int:
    """The partition to set now.

    Until one replica is ready on the new revision, at most `max_unavailable` get it, even where pods are down
    already: a bad template must not collect the pods that fail for other reasons. Once one is ready, the revision
    is proven, and whatever is down gets it at once. A ready replica is taken only while the others are up or lost.

    Args:
        statefulset: Its status must be caught up.
        pods: Its pods.
        pace: How fast it may go.

    Returns:
        The current partition when the roll-out has to wait, 0 when it is through.
    """
    replicas = statefulset.replicas
    partition = min(statefulset.partition, replicas)
    ordinals = _sort(statefulset, pods, refused=pace.refused, away=pace.away)
    while partition > pace.lowest:
        candidate = partition - 1
        if candidate not in ordinals.done:
            in_flight = ordinals.in_flight(partition, replicas)
            proven_cure = candidate not in ordinals.ready and bool(ordinals.done)
            waits_for = in_flight + (ordinals.coming(partition) if candidate in ordinals.ready else 0)
            if candidate in pace.waits or (not proven_cure and waits_for >= pace.max_unavailable):
                break
            waiting = candidate in ordinals.ready and candidate not in ordinals.begun
            if waiting and ordinals.shares_a_node(candidate, partition, replicas):
                break
        partition = candidate
    return partition


def in_any_order(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod], *, max_unavailable: int) -> bool:
    """Whether the roll-out goes on in any order: several may be away, one is ready, and there is a choice.

    Args:
        statefulset: Its status must be caught up.
        pods: Its pods.
        max_unavailable: Most replicas that it takes away at a time.
    """
    own = [pod for pod in pods if pod.owner_uid == statefulset.uid and pod.ordinal < statefulset.replicas]
    old = [pod for pod in own if pod.revision != statefulset.update_revision]
    proven = any(pod.ready for pod in own if pod not in old)
    return proven and max_unavailable > 1 and len(old) >= (1 if statefulset.on_delete else 2)


def next_of_any(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod], pace: Pace) -> tuple[ObservedPod, ...]:
    """Ready pods of former revisions to take now, in any order, those that are being emptied first.

    Of one node one at a time, while there are others to take; with all that are left on nodes of which one is away
    already, waiting would save nothing. One that is about to get a node may get any.

    Args:
        statefulset: Its status must be caught up.
        pods: Its pods.
        pace: How fast it may go.
    """
    ordinals = _sort(statefulset, pods, refused=pace.refused, away=pace.away)
    own = {pod.ordinal: pod for pod in pods if pod.owner_uid == statefulset.uid}
    # A lost one that is to be updated does not count: the roll-out is its cure.
    cured = (ordinals.lost & own.keys()) - ordinals.tried
    away = [o for o in range(statefulset.replicas) if o not in ordinals.ready and o not in cured]
    room, nodes = pace.max_unavailable - len(away), {own[o].node for o in away if o in own and own[o].node}
    left = [own[o] for o in ordinals.ready - ordinals.done if o < statefulset.replicas]
    if any(ordinals.homeless(o) for o in away):
        left = [pod for pod in left if pod.draining]
    left.sort(key=lambda pod: (not pod.draining, -pod.ordinal))
    taken: list[ObservedPod] = []
    while left and len(taken) < room:
        pod = next((each for each in left if each.node not in nodes), left[0])
        left.remove(pod)
        taken.append(pod)
        nodes.add(pod.node)
    return tuple(taken)


def outdated_down(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod]) -> tuple[ObservedPod, ...]:
    """Pods of former revisions that are down: where a revision is proven, making them anew may be their cure."""
    return tuple(
        pod
        for pod in pods
        if pod.owner_uid == statefulset.uid
        and pod.ordinal < statefulset.replicas
        and pod.revision != statefulset.update_revision
        and not (pod.ready or pod.terminating)
    )


def takes(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod], *, to: int) -> tuple[ObservedPod, ...]:
    """Ready pods that a partition lowered so far would replace."""
    return tuple(
        pod
        for pod in pods
        if pod.owner_uid == statefulset.uid
        and pod.ready
        and to <= pod.ordinal < min(statefulset.partition, statefulset.replicas)
        and pod.revision != statefulset.update_revision
    )


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
    ordinals = _sort(statefulset, pods)
    unavailable = sum(ordinal not in ordinals.ready for ordinal in range(statefulset.partition, statefulset.replicas))
    room = max(max_unavailable - unavailable - ordinals.coming(statefulset.partition), 0)
    ready = sorted((pod for pod in passed if pod.ready), key=lambda pod: -pod.ordinal)
    return (*down, *ready[:room])


def _sort(
    statefulset: ObservedStatefulSet,
    pods: Sequence[ObservedPod],
    *,
    refused: bool = False,
    away: frozenset[int] = frozenset(),
) -> _Ordinals:
    own = {pod.ordinal: pod for pod in pods if pod.owner_uid == statefulset.uid}
    ready = {ordinal for ordinal, pod in own.items() if pod.ready} - away
    known = {statefulset.current_revision, statefulset.update_revision}
    # One on an abandoned revision is replaced, and comes back on the one that worked before.
    lost = {o for o, pod in own.items() if in_trouble(pod) and (o >= statefulset.partition or pod.revision in known)}
    if refused:
        lost |= set(range(statefulset.replicas)) - own.keys()
    return _Ordinals(
        ready=frozenset(ready),
        done=frozenset(o for o in ready if own[o].revision == statefulset.update_revision),
        lost=frozenset(lost),
        tried=frozenset(o for o in own.keys() - ready if own[o].revision == statefulset.update_revision),
        begun=frozenset(o for o in ready if own[o].draining),
        nodes={ordinal: pod.node for ordinal, pod in own.items() if pod.node},
    )


def rolling_out(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod]) -> bool:
    """Whether some replica does not run the template yet, or does and has not been ready on it."""
    return (
        statefulset.current_revision != statefulset.update_revision
        or statefulset.partition > 0
        or statefulset.on_delete
        or any(
            pod.revision != statefulset.update_revision
            for pod in pods
            if pod.owner_uid == statefulset.uid and pod.ordinal < statefulset.replicas
        )
    )
