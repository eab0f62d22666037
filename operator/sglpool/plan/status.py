"""The status of a pool, from its spec and what exists: conditions and counts.

Pure and idempotent: the same facts twice give the same status, to the letter. A condition is the first answer of an
ordered chain of checks. Not here: what it says of each GPU type (`plan.capacity`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.conditions import Condition, merge_conditions
from sglpool.api.pool import Pool
from sglpool.plan.autoscaling import Told, autoscaling_status, load_status, scaling_condition, scaling_summary
from sglpool.plan.capacity import gpu_statuses
from sglpool.plan.gate import rollout_hold
from sglpool.plan.nodes import node_problem, without_lost_tests
from sglpool.plan.observed import Observed, ObservedPod
from sglpool.plan.planner import template_outdated
from sglpool.plan.problems import Problem, pod_problem, schedule_problem
from sglpool.plan.rollout import rolling_out
from sglpool.plan.router import RouterState, router_state
from sglpool.render import endpoint
from sglpool.sizing.pools import SizedGPU

MAX_ILLS = 2
"""Unhealthy replicas that a message describes; the others are counted."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why the pool's change is not carried out: a reason of condition Stalled, and sentences for the user."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the chains look at.

    Attributes:
        pool: The pool.
        wanted: Wanted replicas.
        ready: How many of the wanted ones are ready; surplus replicas of one GPU type never stand in for another's.
        serving: Whether any replica is ready, wanted or not.
        surplus: Whether replicas beyond the wanted ones exist.
        rolling: Whether a wanted replica does not run what the spec says.
        blocker: Why the change is not carried out.
        feasible: Condition Feasible.
        problem: What is wrong with pods on their nodes.
        unscheduled: Why pods find no node.
        router: How the router does, None without one.
        told: What the autoscaler has to say, None while it has read nothing.
        unhealthy: What is wrong with replicas that are ready, one sentence each.
        hold: Why a roll-out does not go on, or not yet.
        nodes_known: Whether anything is known of nodes.
    """

    pool: Pool
    wanted: int
    ready: int
    serving: bool
    surplus: bool
    rolling: bool
    blocker: Blocker | None
    feasible: Condition
    problem: Problem | None
    unscheduled: Problem | None
    router: RouterState | None
    told: Told | None
    unhealthy: Sequence[str]
    hold: Problem | None
    nodes_known: bool

    @property
    def steady(self) -> bool:
        """Whether this generation was already reached once: what moves now is upkeep, not the user's change."""
        stored = {c["type"]: c for c in self.pool.status.get("conditions") or ()}
        reached = self.pool.status.get("observedGeneration") == self.pool.generation
        return reached and "Reconciling" not in stored and "Stalled" not in stored and "Scheduled" in stored


def make_status(
    pool: Pool,
    sized: Sequence[SizedGPU],
    observed: Observed,
    *,
    desired: Mapping[str, int],
    blockers: Sequence[Blocker],
    now_s: float,
    told: Told | None = None,
    unhealthy: Sequence[str] = (),
    kv_tokens: Mapping[str, int] = MappingProxyType({}),
) -> Manifest:
    """The status to store.

    Args:
        pool: With the status as stored, for transition times.
        sized: Sizes by GPU type.
        observed: What exists after the plan's steps.
        desired: Wanted replicas by GPU type.
        blockers: What went wrong while the steps were carried out.
        now_s: Unix time.
        told: What the autoscaler has to say, None while it has read nothing.
        unhealthy: What is wrong with replicas that are ready, one sentence each.
        kv_tokens: KV tokens that engines said they have, by uid of the pod.
    """
    own = [s for s in observed.statefulsets if s.owner_uid == pool.uid]
    uids = {s.uid for s in own}
    pods = tuple(sorted((p for p in observed.pods if p.owner_uid in uids), key=lambda p: (p.gpu_type, p.ordinal)))
    live = tuple(p for p in pods if not p.terminating)
    hold = rollout_hold(pool, without_lost_tests(observed, now_s=now_s))
    facts = _Facts(
        pool=pool,
        wanted=sum(desired.values()),
        ready=sum(p.ready and p.ordinal < desired.get(p.gpu_type, 0) for p in live),
        serving=any(p.ready for p in live),
        surplus=any(p.ordinal >= desired.get(p.gpu_type, 0) for p in pods),
        rolling=_rolling(pool, sized, observed),
        blocker=next(iter([*blockers, *_size_blockers(sized), *_refusals(observed), *_held(hold)]), None),
        feasible=_feasible(sized),
        problem=node_problem(pods, observed) or pod_problem(pool, live, now_s=now_s),
        unscheduled=schedule_problem(live),
        router=router_state(pool, sized, observed),
        told=told,
        unhealthy=unhealthy,
        hold=hold,
        nodes_known=observed.nodes is not None,
    )
    conditions = [c for chain in _CHAINS for c in (chain(facts),) if c is not None]
    status: Manifest = {
        "observedGeneration": pool.generation,
        "conditions": merge_conditions(
            old=pool.status.get("conditions") or (), new=conditions, generation=pool.generation, now_s=now_s
        ),
        "replicas": len(live),
        "readyReplicas": sum(p.ready for p in live),
        "selector": names.pool_selector(pool.name),
        "endpoint": endpoint(pool),
        "gpus": gpu_statuses(pool, sized, observed, desired=desired, kv_tokens=kv_tokens),
        "summary": {"ready": f"{facts.ready}/{facts.wanted}", "gpus": _gpu_summary(live)},
    }
    autoscaling = autoscaling_status(pool, facts.wanted, told, now_s=now_s)
    extras = {"autoscaling": autoscaling, "load": load_status(pool, told)}
    status |= {field: value for field, value in extras.items() if value is not None}
    updated = _updated(pool, sized, observed, desired) if facts.rolling else ""
    if words := scaling_summary(autoscaling, live, updated):
        status["summary"]["scaling"] = words
    return status


def _rolling(pool: Pool, sized: Sequence[SizedGPU], observed: Observed) -> bool:
    """Whether some existing replica does not run what the spec says."""
    may_render = all(s.feasible for s in sized)
    for one in sized:
        current = observed.own_statefulset(pool, one.entry.type)
        if current is None:
            continue
        if may_render and template_outdated(pool, one, current):
            return True
        if current.replicas and rolling_out(current, observed.pods_of(one.entry.type)):
            return True
    return False


def _updated(pool: Pool, sized: Sequence[SizedGPU], observed: Observed, desired: Mapping[str, int]) -> str:
    """How many of the wanted replicas are ready on the newest revision; empty while that is not written yet."""
    done = 0
    for one in sized:
        current = observed.own_statefulset(pool, one.entry.type)
        if current is None:
            continue
        if not one.feasible or template_outdated(pool, one, current) or not current.caught_up:
            return ""
        pods = (pod for pod in observed.pods_of(one.entry.type) if pod.owner_uid == current.uid)
        wanted = desired.get(one.entry.type, 0)
        done += sum(pod.ready and pod.revision == current.update_revision and pod.ordinal < wanted for pod in pods)
    return f"{done}/{sum(desired.values())}"


def _size_blockers(sized: Sequence[SizedGPU]) -> list[Blocker]:
    return [Blocker(one.reason if one.fit is None else "Infeasible", one.message) for one in sized if not one.feasible]


def _refusals(observed: Observed) -> list[Blocker]:
    return [Blocker(r.kind, f"StatefulSet {name}: {r.message}") for name, r in sorted(observed.refusals.items())]


def _held(hold: Problem | None) -> list[Blocker]:
    """A roll-out that does not go on by itself: somebody has to do something."""
    return [Blocker(hold.reason, hold.message)] if hold is not None and hold.reason in _STUCK else []


_STUCK = frozenset({"GateFailed", "RolloutUnknownWord"})


def _feasible(sized: Sequence[SizedGPU]) -> Condition:
    worst = next((s for s in sized if not s.feasible), None)
    if worst is not None:
        return Condition("Feasible", worst.reason, worst.message)
    return Condition("Feasible", "FitsHBM", " ".join(s.message for s in sized))


def _counts(facts: _Facts) -> str:
    return f"{facts.ready} of {facts.wanted} replicas are ready"


def _ready(facts: _Facts) -> Condition:
    """The summary: the first thing that stands between the spec and its fulfilment."""
    if facts.blocker:
        return Condition("Ready", facts.blocker.reason, facts.blocker.message)
    for problem in (facts.problem, facts.unscheduled):
        if problem:
            return Condition("Ready", problem.reason, problem.message)
    if facts.router and _router_down(facts, facts.router):
        return Condition("Ready", "RouterUnavailable", _router_words(facts.router))
    if facts.hold:
        return Condition("Ready", facts.hold.reason, facts.hold.message)
    if facts.rolling:
        return Condition("Ready", "RollingOut", f"{_counts(facts)}; replicas are being replaced one after another.")
    if facts.ready < facts.wanted:
        return Condition("Ready", "ReplicasStarting", f"{_counts(facts)}; the others load the model or warm up.")
    if facts.router and facts.router.moving and facts.router.trouble:
        return Condition("Ready", "RouterStuck", _router_words(facts.router))
    if facts.router and _router_moves(facts.router):
        return Condition("Ready", "RouterStarting", _router_words(facts.router))
    if facts.wanted == 0:
        return Condition("Ready", "Parked", "No replica is wanted: replicas is 0.")
    return Condition("Ready", "AllReplicasReady", f"{_counts(facts)}.")


def _available(facts: _Facts) -> Condition:
    if facts.serving and facts.router and not facts.router.ready:
        return Condition("Available", "RouterUnavailable", _router_words(facts.router))
    if facts.serving:
        return Condition("Available", "MinimumReplicasAvailable", f"At least one replica is ready.{_ills(facts)}")
    if facts.wanted == 0:
        return Condition("Available", "Parked", "No replica is wanted: replicas is 0.")
    return Condition("Available", "NoReplicaAvailable", "No replica is ready.")


def _ills(facts: _Facts) -> str:
    """What is wrong with ready replicas, for the end of a message."""
    more = len(facts.unhealthy) - MAX_ILLS
    words = [*facts.unhealthy[:MAX_ILLS], *([f"{more} more are unhealthy."] if more > 0 else [])]
    return "".join(f" {sentence}" for sentence in words)


def _moving(facts: _Facts) -> tuple[str, str] | None:
    """What is going on, as reason and message; None when nothing is."""
    if facts.hold and facts.hold.reason == "GateRunning":
        return "GateRunning", facts.hold.message
    if facts.rolling and not facts.hold:
        return "RollingOut", "Replicas are being replaced by the current revision."
    if facts.ready < facts.wanted:
        return "ReplicasStarting", "Replicas load the model or warm up."
    if facts.surplus:
        return "ScalingDown", "Replicas beyond the wanted number are going away."
    if facts.router and _router_moves(facts.router):
        return "RouterStarting", "Router pods start, or are being replaced."
    return None


def _router_moves(router: RouterState) -> bool:
    """Whether the router is not yet what the spec says, or not there at all."""
    return router.moving or not router.ready


def _router_down(facts: _Facts, router: RouterState) -> bool:
    """Whether clients get no answer for want of a router, other than in a pool's first minute."""
    return not router.ready and bool(router.trouble or facts.steady)


def _router_words(router: RouterState) -> str:
    counts = f"{router.ready} of {router.wanted} router pods are ready"
    return f"{counts}. {router.trouble}" if router.trouble else f"{counts}."


def _progressing(facts: _Facts) -> Condition:
    if facts.blocker:
        return Condition("Progressing", "Blocked", facts.blocker.message)
    if facts.problem:
        return Condition("Progressing", facts.problem.reason, facts.problem.message)
    if facts.unscheduled:
        return Condition("Progressing", "Unschedulable", facts.unscheduled.message)
    if facts.router and facts.router.trouble and _router_moves(facts.router):
        return Condition("Progressing", "RouterStuck", facts.router.trouble)
    moving = _moving(facts)
    if moving is None and facts.hold:
        return Condition("Progressing", facts.hold.reason, facts.hold.message)
    if moving is None:
        return Condition("Progressing", "Complete", "Nothing is left to do.")
    return Condition("Progressing", *moving)


def _scheduled(facts: _Facts) -> Condition:
    if facts.unscheduled:
        return Condition("Scheduled", facts.unscheduled.reason, facts.unscheduled.message)
    return Condition("Scheduled", "AllPodsScheduled", "Every pod has a node.")


def _router_ready(facts: _Facts) -> Condition | None:
    if facts.router is None:
        return None
    words = _router_words(facts.router)
    if facts.router.ready:
        return Condition("RouterReady", "RouterAvailable", words)
    return Condition(
        "RouterReady", "RouterUnavailable" if _router_down(facts, facts.router) else "RouterStarting", words
    )


def _nodes_ready(facts: _Facts) -> Condition | None:
    """What is not done without the right to read nodes; every pool says so, since nothing else shows it."""
    if facts.nodes_known:
        return None
    return Condition(
        "NodesReady",
        "NodesUnreadable",
        "The operator cannot list and watch nodes: replicas of a lost node come back only when Kubernetes gives them "
        "up, cordoned nodes are not emptied, and host memory is checked by the catalogue's figures. Set rbac.nodes in "
        "the chart to change that.",
    )


def _reconciling(facts: _Facts) -> Condition | None:
    moving = _moving(facts)
    if facts.blocker or moving is None or (facts.steady and moving[0] not in {"RollingOut", "GateRunning"}):
        return None
    return Condition("Reconciling", *moving)


def _stalled(facts: _Facts) -> Condition | None:
    if facts.blocker is None:
        return None
    return Condition("Stalled", facts.blocker.reason, facts.blocker.message)


_CHAINS = (
    _ready,
    _available,
    _progressing,
    _scheduled,
    lambda facts: facts.feasible,
    _router_ready,
    _nodes_ready,
    lambda facts: scaling_condition(facts.pool, facts.told),
    _reconciling,
    _stalled,
)


def _gpu_summary(pods: Sequence[ObservedPod]) -> str:
    """GPUs that pods hold, for example `8 B200 + 4 B300`; `0` when none do."""
    counts: dict[str, int] = {}
    for pod in pods:
        if pod.node:
            counts[pod.gpu_type] = counts.get(pod.gpu_type, 0) + pod.gpus
    return " + ".join(f"{count} {gpu_type}" for gpu_type, count in counts.items()) or "0"
