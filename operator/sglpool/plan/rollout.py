"""The partition of a roll-out: which ordinals may run the new template now.

A StatefulSet gives the update revision to ordinals from the partition upwards. Raised to `replicas` before the
template changes, it holds everything; lowered step by step, it bounds what a bad template can harm.
"""

from collections.abc import Sequence

from sglpool.plan.observed import ObservedPod, ObservedStatefulSet


def next_partition(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod], *, max_unavailable: int) -> int:
    """The partition to set now.

    Every ordinal that is not ready counts against `max_unavailable`, whatever it runs, except those that the next
    step would replace anyway: a pod that is down already costs nothing to replace, and must never block its cure.

    Args:
        statefulset: Its status must be caught up.
        pods: Its pods.
        max_unavailable: Most replicas that may be unavailable at a time.

    Returns:
        The current partition when the roll-out has to wait, 0 when it is through.
    """
    replicas = statefulset.replicas
    partition = min(statefulset.partition, replicas)
    by_ordinal = {pod.ordinal: pod for pod in pods if pod.owner_uid == statefulset.uid}
    ready = {ordinal for ordinal, pod in by_ordinal.items() if pod.ready}
    done = {ordinal for ordinal in ready if by_ordinal[ordinal].revision == statefulset.update_revision}
    budget = max_unavailable - sum(ordinal not in done for ordinal in range(partition, replicas))
    budget -= sum(ordinal not in ready for ordinal in range(partition))
    while partition > 0:
        candidate = partition - 1
        if candidate not in ready:
            # It is counted already, and becomes no less available by being replaced.
            partition = candidate
            continue
        if candidate not in done:
            if budget < 1:
                break
            budget -= 1
        partition = candidate
    return partition


def stuck_pods(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod]) -> tuple[ObservedPod, ...]:
    """Pods that are not ready and do not run what their ordinal should.

    Either their revision was abandoned, or the roll-out has passed them. The StatefulSet's controller replaces them
    one by one and waits for each; deleted, they all return at once on the right revision.
    """
    wanted = {statefulset.current_revision, statefulset.update_revision}
    return tuple(
        pod
        for pod in pods
        if pod.owner_uid == statefulset.uid
        and not (pod.ready or pod.terminating)
        and pod.revision != statefulset.update_revision
        and (pod.revision not in wanted or pod.ordinal >= statefulset.partition)
    )


def rolling_out(statefulset: ObservedStatefulSet, pods: Sequence[ObservedPod]) -> bool:
    """Whether some replica does not run the template yet."""
    return statefulset.partition > 0 or any(
        pod.revision != statefulset.update_revision
        for pod in pods
        if pod.owner_uid == statefulset.uid and pod.ordinal < statefulset.replicas
    )
