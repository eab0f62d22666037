"""What nodes do to replicas: lost nodes, cordoned ones, and nodes that have lost a GPU.

A pod on a lost node is deleted, so that its StatefulSet makes it anew elsewhere; Kubernetes alone waits for minutes,
and for a pod that is already going, for ever. A replica that still serves leaves its node by the same drain as any
other. Nothing flaps: a node has to be away for a minute, and one that is back is as any other.
Not here: how many may leave at a time (`plan.settle`).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sglpool.api.pool import Pool
from sglpool.plan.drain import CAUSE_FEW_GPUS, Leave
from sglpool.plan.observed import Observed, ObservedPod
from sglpool.plan.problems import Problem, and_more
from sglpool.plan.steps import DeleteObject
from sglpool.plan.surroundings import ObservedNode

LOST_S = 60.0
"""A node is lost when it was not ready for so long; a restarted kubelet is back sooner."""
ENDING_S = 30.0
"""For a pod that is going anyway, half of that: it will not stay, whatever becomes of the node."""
OVERDUE_S = 5.0
"""Beyond a pod's grace: then its kubelet would have reported the end."""
SHORT_S = 60.0
"""GPUs have to be missing for so long: the device plugin starts after the kubelet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A replica that has to leave its node, or to be replaced where it is.

    Attributes:
        reason: Why, for Events and the log.
        node: The node that it leaves, empty if it is not for the node's sake.
        even_last: Whether it goes although no other replica serves.
        cause: What a mark says of it, for an operator that has just started.
    """

    reason: str
    node: str = ""
    even_last: bool = False
    cause: str = ""

    @property
    def leave(self) -> Leave:
        """What its mark says."""
        return Leave(reason=self.reason, cause=self.cause)


def lost_pods(pool: Pool, observed: Observed, *, now_s: float) -> list[DeleteObject]:
    """Pods to delete now, since their node will not run them any more."""
    own = {s.uid for s in observed.statefulsets if s.owner_uid == pool.uid}
    # One that is going may have lost its StatefulSet, and still holds a name that the next one needs.
    replicas = [pod for pod in observed.pods if pod.owner_uid in own or pod.terminating]
    pods = [*replicas, *(pod for pod in observed.router_pods if pod.owner_uid)]
    steps = []
    for pod in pods:
        why = _lost(pod, observed, now_s)
        if why:
            # No grace: nobody there would use it, and a replacement of that name has to wait for its end.
            steps.append(DeleteObject(kind="Pod", name=pod.name, uid=pod.uid, reason=why, grace_period_s=0))
    starved = [pod for pods in _starved(observed, own, now_s).values() for pod in pods if not pod.ready]
    return steps + [
        DeleteObject(kind="Pod", name=pod.name, uid=pod.uid, reason=_few_gpus(observed, pod)) for pod in starved
    ]


def node_problem(pods: Iterable[ObservedPod], observed: Observed) -> Problem | None:
    """What is wrong with nodes that replicas were lost with; None if nothing is, or nodes cannot be read."""
    lost = [
        (pod, node) for pod in pods if not pod.ready and (node := _node(pod, observed)) is not None and not node.ready
    ]
    if not lost:
        return None
    pod, node = lost[0]
    state = "is gone. Its" if node.deleted else f"is not ready. When it has not been for {LOST_S:.0f} s, its"
    words = f"{pod.name}: node {node.name} {state} replicas come back on other nodes{and_more(len(lost))}."
    return Problem("NodeLost", words)


def without_lost_tests(observed: Observed, *, now_s: float) -> Observed:
    """The same, with tests of gates that run on lost nodes as what they are: nobody will hear how they ended.

    Kubernetes waits for a word from such a node until the Job's time is up, and calls it failed then.
    """
    lost = {pod.owner_uid: why for pod in observed.gate_pods if (why := _lost(pod, observed, now_s))}
    if not lost:
        return observed
    jobs = (
        replace(job, state="Disrupted", message=lost[job.uid]) if job.state == "Running" and job.uid in lost else job
        for job in observed.jobs
    )
    return replace(observed, jobs=tuple(jobs))


def evictions(pool: Pool, observed: Observed, *, now_s: float) -> dict[str, Eviction]:
    """Ready replicas that have to leave their node, by uid."""
    own = {s.uid for s in observed.statefulsets if s.owner_uid == pool.uid}
    found = {}
    for pod in observed.pods:
        node = _node(pod, observed)
        if node is not None and node.ready and node.unschedulable and pod.ready and pod.owner_uid in own:
            found[pod.uid] = Eviction(reason=f"node {node.name} is cordoned", node=node.name)
    for pods in _starved(observed, own, now_s).values():
        for pod in pods:
            if pod.ready:
                why = _few_gpus(observed, pod)
                found[pod.uid] = Eviction(reason=why, node=pod.node, even_last=True, cause=CAUSE_FEW_GPUS)
    return found


def next_change_s(observed: Observed, *, now_s: float) -> float | None:
    """Seconds until time alone makes a pod one of a lost node, None when it cannot."""
    pods = (*observed.pods, *observed.router_pods, *observed.gate_pods)
    moments = [m for pod in pods for m in _moments(pod, observed)]
    return min((moment - now_s for moment in moments if moment > now_s), default=None)


def _moments(pod: ObservedPod, observed: Observed) -> Iterator[float]:
    node = _node(pod, observed)
    if node is None:
        return
    if not node.ready:
        yield node.since_s + (ENDING_S if pod.terminating else LOST_S)
        if pod.ends_s is not None:
            yield pod.ends_s + OVERDUE_S
    elif node.gpus is not None:
        yield node.gpus_since_s + SHORT_S


def _node(pod: ObservedPod, observed: Observed) -> ObservedNode | None:
    return observed.nodes.get(pod.node) if observed.nodes is not None and pod.node else None


def _lost(pod: ObservedPod, observed: Observed, now_s: float) -> str:
    """Why a pod's node will not run it any more, empty if it may."""
    node = _node(pod, observed)
    if node is None or node.ready:
        return ""
    if node.deleted:
        return f"node {node.name} is gone"
    away_s = now_s - node.since_s
    if not pod.terminating:
        return f"node {node.name} has not been ready for {LOST_S:.0f} s" if away_s >= LOST_S else ""
    overdue = pod.ends_s is not None and now_s >= pod.ends_s + OVERDUE_S
    return f"node {node.name} is not ready and does not end it" if overdue or away_s >= ENDING_S else ""


def _starved(observed: Observed, own: set[str], now_s: float) -> dict[str, list[ObservedPod]]:
    """Replicas that are too many for the GPUs of their node, by node."""
    by_node: dict[str, list[ObservedPod]] = defaultdict(list)
    for pod in observed.pods:
        if pod.owner_uid in own and pod.node and not pod.terminating:
            by_node[pod.node].append(pod)
    return {name: _too_many(pods, observed, now_s) for name, pods in by_node.items()}


def _too_many(pods: Iterable[ObservedPod], observed: Observed, now_s: float) -> list[ObservedPod]:
    """Of the pods of one node those that have to go: who is not ready first, then from the highest ordinal."""
    pods = sorted(pods, key=lambda pod: (pod.ready, -pod.ordinal))
    node = _node(pods[0], observed)
    if node is None or not node.ready or node.gpus is None:
        return []
    # Since when is known only since this operator started; the mark of a former one says that it was long enough.
    known = any(pod.draining and pod.drain_cause == CAUSE_FEW_GPUS for pod in pods)
    if now_s < node.gpus_since_s + SHORT_S and not known:
        return []
    needed, chosen = sum(pod.gpus for pod in pods), []
    for pod in pods:
        if needed <= node.gpus:
            break
        needed -= pod.gpus
        chosen.append(pod)
    return chosen


def _few_gpus(observed: Observed, pod: ObservedPod) -> str:
    node = _node(pod, observed)
    needed = sum(p.gpus for p in observed.pods if p.node == pod.node and not p.terminating)
    has = node.gpus if node is not None else 0
    return f"node {pod.node} has {has} of the {needed} GPUs that its replicas need"
