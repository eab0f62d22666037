"""From a pool and what exists to the steps that are due now.

Level-triggered: each call looks at everything and assumes nothing about the last one, so a crash between two steps
costs nothing. Not here: how a step is carried out, and what the user is told (`plan.status`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.plan.children import expected_children
from sglpool.plan.drain import Leave, Moment, ReplicaLoad, kept_replicas, next_deadline_s
from sglpool.plan.gate import Stage, gate_state, gate_steps, returns_to, stale_jobs
from sglpool.plan.nodes import Eviction, evictions, lost_pods, next_change_s, without_lost_tests
from sglpool.plan.observed import Observed, ObservedStatefulSet
from sglpool.plan.replicas import desired_replicas
from sglpool.plan.router import router_steps
from sglpool.plan.settle import Case, settle, size_now, surplus_marks
from sglpool.plan.steps import (
    AdoptStatefulSet,
    ApplyTemplate,
    CreateStatefulSet,
    DeleteObject,
    EnsureChild,
    OrphanStatefulSet,
    RecreateStatefulSet,
    RestoreTemplate,
    Scale,
    Step,
    common_revision,
)
from sglpool.render import has_router, launch_configmap, spec_hash, statefulset
from sglpool.sizing.pools import SizedGPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is due now.

    Attributes:
        stages: Steps of one stage may run side by side; a stage starts when the one before is done.
        desired: Wanted replicas by GPU type.
        look_again_s: Seconds until time alone may make more steps due, None when it cannot.
    """

    stages: tuple[tuple[Step, ...], ...]
    desired: dict[str, int]
    look_again_s: float | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(step for stage in self.stages for step in stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """What a plan looks at.

    Attributes:
        pool: The pool.
        observed: What exists.
        desired: Wanted replicas by GPU type.
        at: Time and loads.
        may_render: Whether the spec can be carried out.
        evictions: Replicas that have to leave their node, or to be replaced, by uid.
    """

    pool: Pool
    observed: Observed
    desired: Mapping[str, int]
    at: Moment
    may_render: bool
    evictions: Mapping[str, Eviction]

    def case(self, current: ObservedStatefulSet, wanted: int) -> Case:
        """A StatefulSet of ours and what is wanted of it."""
        # Its controller will adopt orphans of its names, and end those beyond its size.
        adopts = {f"{current.name}-{ordinal}" for ordinal in range(current.replicas)}
        pods = [
            pod
            for pod in self.observed.pods_of(current.gpu_type)
            if pod.owner_uid == current.uid or (not pod.owner_uid and pod.name in adopts)
        ]
        return Case(
            current=current,
            wanted=wanted,
            pods=tuple(pods),
            at=self.at,
            max_unavailable=self.pool.spec.rollout.max_unavailable,
            refused=current.name in self.observed.refusals,
            elsewhere=sum(self.serving(t) for t in self.desired if t != current.gpu_type),
            gate=gate_state(self.pool, current, self.observed),
            evictions=self.evictions,
        )

    def serving(self, gpu_type: str) -> int:
        """Ready replicas of a GPU type that are wanted and get traffic."""
        current = self.observed.own_statefulset(self.pool, gpu_type)
        return sum(
            pod.ready and pod.unproven != "true" and pod.ordinal < self.desired.get(gpu_type, 0)
            for pod in self.observed.pods_of(gpu_type)
            if current is not None and pod.owner_uid == current.uid
        )


def make_plan(
    pool: Pool,
    sized: Sequence[SizedGPU],
    observed: Observed,
    *,
    wanted: Mapping[str, int] | None = None,
    loads: Mapping[str, ReplicaLoad] | None = None,
    now_s: float = 0.0,
    unhealthy: Mapping[str, Leave] | None = None,
) -> Plan:
    """Decide the steps that bring a pool closer to its spec.

    A pool of which any GPU type is infeasible or unknown keeps what runs as it is: nothing is created, rolled out
    or removed, and replicas move between GPU types only as far as a changed total asks for it.

    Args:
        pool: The pool.
        sized: Sizes by GPU type.
        observed: What exists.
        wanted: Replicas by GPU type as the autoscaler decided; None for a fixed number, or to hold what is there.
        loads: What replicas have to do, by pod uid; None where nobody reads it: then nothing waits for conversations.
        now_s: Unix time.
        unhealthy: Why replicas have to be replaced although they are ready, by pod uid.
    """
    observed = without_lost_tests(observed, now_s=now_s)
    own = [s for s in observed.statefulsets if s.owner_uid == pool.uid]
    pods = {s.gpu_type: [p for p in observed.pods_of(s.gpu_type) if p.owner_uid == s.uid] for s in own}
    current = {s.gpu_type: kept_replicas(s.replicas, pods[s.gpu_type]) for s in own}
    may_render = all(s.feasible for s in sized)
    desired = desired_replicas(pool.spec, current, frozen=not may_render, decided=wanted)
    at = Moment(now_s=now_s, loads=loads, timeout_s=pool.spec.rollout.drain_timeout, routed=has_router(pool))
    leave = evictions(pool, observed, now_s=now_s)
    leave |= {
        uid: Eviction(reason=why.reason, even_last=True, cause=why.cause) for uid, why in (unhealthy or {}).items()
    }
    scene = _Scene(pool=pool, observed=observed, desired=desired, at=at, may_render=may_render, evictions=leave)
    stages: list[list[Step]] = [[*lost_pods(pool, observed, now_s=now_s)]]
    for one in sized:
        _side_by_side(stages, _plan_type(scene, one))
    _side_by_side(stages, _removed_types(scene))
    if may_render and observed.jobs:
        _side_by_side(stages, [stale_jobs(pool, [gate_state(pool, s, observed) for s in own], observed)])
    if may_render or current:
        _side_by_side(stages, [_children(pool, observed)])
        _side_by_side(stages, router_steps(pool, sized, observed))
    return Plan(
        stages=tuple(tuple(stage) for stage in stages if stage),
        desired=desired,
        look_again_s=_look_again_s(observed, at),
    )


def _look_again_s(observed: Observed, at: Moment) -> float | None:
    """When time alone may make steps due; a moment later, so that it has come."""
    waits = [next_change_s(observed, now_s=at.now_s)]
    if at.loads is not None:
        waits.append(next_deadline_s(observed.pods, at))
    due = min((wait for wait in waits if wait is not None), default=None)
    return None if due is None else due + 0.5


def _side_by_side(stages: list[list[Step]], more: Sequence[Sequence[Step]]) -> None:
    """Add the stages of one part to those of the others."""
    for index, stage in enumerate(more):
        if index == len(stages):
            stages.append([])
        stages[index].extend(stage)


def _plan_type(scene: _Scene, sized: SizedGPU) -> list[list[Step]]:
    """Stages for the StatefulSet of one GPU type."""
    pool, may_render = scene.pool, scene.may_render
    replicas = scene.desired[sized.entry.type]
    current = scene.observed.statefulset(names.statefulset_name(pool.name, sized.entry.type))
    if current is None:
        return _create(pool, sized, replicas, scene.observed) if may_render else []
    if current.owner_uid != pool.uid:
        return _take_over(pool, sized, current) if may_render else []
    case = scene.case(current, replicas)
    untried = bool(current.returned_from) and case.gate.stage is not Stage.RETURNED
    if may_render and (template_outdated(pool, sized, current) or untried):
        return _change_template(pool, sized, case)
    if may_render and (earlier := returns_to(current, case.gate)):
        return _restore_template(pool, sized, case, earlier)
    return _beside(settle(case), gate_steps(pool, current, case.gate, scene.observed))


def _beside(stages: list[list[Step]], steps: Sequence[Step]) -> list[list[Step]]:
    """The stages with more steps in the first one."""
    return [[*(stages[0] if stages else []), *steps], *stages[1:]]


def template_outdated(pool: Pool, sized: SizedGPU, current: ObservedStatefulSet) -> bool:
    """Whether the template must be applied: the spec changed, or the user asked for this version's rendering.

    A new sglpool version alone is no reason: it would restart every model.
    """
    if current.spec_hash != spec_hash(pool, sized):
        return True
    if not names.wants_latest_render(pool.annotations):
        return False
    rendered = statefulset(pool, sized)["metadata"]["annotations"]
    return bool(current.render_hash != rendered[names.ANNOTATION_RENDER_HASH])


def _create(pool: Pool, sized: SizedGPU, replicas: int, observed: Observed) -> list[list[Step]]:
    manifest = statefulset(pool, sized)
    name = manifest["metadata"]["name"]
    config = EnsureChild(manifest=launch_configmap(pool, sized), reason="scripts of the new revision")
    left = [p for p in observed.pods_of(sized.entry.type) if p.name == f"{name}-{p.ordinal}" and not p.terminating]
    if any(p.owner_uid for p in left):
        # Their StatefulSet is gone, so these are about to be orphaned or collected, and events will tell which.
        # Created now and empty, the new one would adopt the orphans and end them.
        return []
    if left:
        count = max(p.ordinal for p in left) + 1
        recreate = RecreateStatefulSet(
            manifest=manifest, replicas=count, revision=common_revision(left), reason="its pods have lost it"
        )
        return [[recreate, config], [Scale(name=name, replicas=count, partition=count, reason="hold every pod")]]
    stages: list[list[Step]] = [[CreateStatefulSet(manifest=manifest, reason="the pool names this GPU type"), config]]
    if replicas:
        stages.append([Scale(name=name, replicas=replicas, partition=0, reason="first size")])
    return stages


def _take_over(pool: Pool, sized: SizedGPU, current: ObservedStatefulSet) -> list[list[Step]]:
    """Adopt somebody else's StatefulSet if the user said so; else let the attempt to create ours find it."""
    if current.adoptable and not current.owner_uid:
        return _adopt(pool, sized, current)
    manifest = statefulset(pool, sized)
    return [[CreateStatefulSet(manifest=manifest, reason="the name is taken")]]


def _adopt(pool: Pool, sized: SizedGPU, current: ObservedStatefulSet) -> list[list[Step]]:
    """Take over a StatefulSet that the user handed over, without touching its pods."""
    manifest = statefulset(pool, sized)
    name = current.name
    stages: list[list[Step]] = [
        [
            AdoptStatefulSet(
                name=name,
                uid=current.uid,
                selector=current.selector,
                labels=manifest["metadata"]["labels"] | manifest["spec"]["selector"]["matchLabels"],
                reason="the user annotated it for adoption",
            )
        ]
    ]
    if _immutable_differs(manifest, current):
        return [*stages, [OrphanStatefulSet(name=name, uid=current.uid, reason="its immutable fields differ")]]
    hold = Scale(name=name, replicas=current.replicas, partition=current.replicas, reason="hold every pod")
    config = EnsureChild(manifest=launch_configmap(pool, sized), reason="scripts of the new revision")
    return [*stages, [hold, config], [ApplyTemplate(manifest=manifest, reason="adopted")]]


def _change_template(pool: Pool, sized: SizedGPU, case: Case) -> list[list[Step]]:
    """Protect every pod, then apply the template; the roll-out itself is later calls' work."""
    manifest, current = statefulset(pool, sized), case.current
    if _immutable_differs(manifest, current):
        return [[OrphanStatefulSet(name=current.name, uid=current.uid, reason="its immutable fields must change")]]
    keep = min(size_now(case), current.replicas)
    config = EnsureChild(manifest=launch_configmap(pool, sized), reason="scripts of the new revision")
    first: list[Step] = [config, *surplus_marks(case)]
    # The scale manager must own `replicas` before the template manager applies without it: a field that nobody
    # owns would fall back to 1.
    if (current.replicas, current.partition, current.on_delete) != (keep, keep, False) or not current.scale_owned:
        hold = "hold every pod on its revision"
        first.append(Scale(name=current.name, replicas=keep, partition=keep, reason=hold))
    return [first, [ApplyTemplate(manifest=manifest, reason="the spec changed")]]


def _restore_template(pool: Pool, sized: SizedGPU, case: Case, revision: str) -> list[list[Step]]:
    """Hold every pod, then put the template of the proven revision back; the ordinary roll-out does the rest."""
    current, reason = case.current, "the new revision failed its gate"
    back = RestoreTemplate(
        manifest=statefulset(pool, sized), revision=revision, failed=current.update_revision, reason=reason
    )
    if current.partition >= current.replicas and not current.on_delete:
        return [[back]]
    return [[Scale(name=current.name, replicas=current.replicas, partition=current.replicas, reason=reason)], [back]]


def _immutable_differs(manifest: Manifest, current: ObservedStatefulSet) -> bool:
    spec = manifest["spec"]
    return (current.service_name, dict(current.selector), current.pod_management_policy) != (
        spec["serviceName"],
        spec["selector"]["matchLabels"],
        spec["podManagementPolicy"],
    )


def _removed_types(scene: _Scene) -> list[list[Step]]:
    """Stages for types that left the spec: their StatefulSets are emptied and deleted, and so are pods without one.

    While the spec cannot be carried out they stay as they are.
    """
    pool, observed = scene.pool, scene.observed
    wanted = {names.statefulset_name(pool.name, gpu.type) for gpu in pool.spec.gpus}
    reason = "its GPU type left the spec"
    stages: list[list[Step]] = []
    for current in observed.statefulsets:
        if current.owner_uid != pool.uid or current.name in wanted:
            continue
        if not scene.may_render:
            _side_by_side(stages, settle(scene.case(current, current.replicas)))
        elif current.replicas == 0 or scene.at.loads is None:
            gone = DeleteObject(kind="StatefulSet", name=current.name, uid=current.uid, reason=reason)
            _side_by_side(stages, [[gone]])
        else:
            _side_by_side(stages, settle(scene.case(current, 0 if _successors_serve(scene) else current.replicas)))
    orphans: list[Step] = [
        DeleteObject(kind="Pod", name=p.name, uid=p.uid, reason=reason)
        for p in observed.pods
        if not (p.owner_uid or p.terminating)
        and (owner := names.statefulset_name(pool.name, p.gpu_type)) not in wanted
        and p.name == f"{owner}-{p.ordinal}"
    ]
    if scene.may_render:
        _side_by_side(stages, [orphans])
    return stages


def _successors_serve(scene: _Scene) -> bool:
    """Whether the types that stay do what they should, so that one that left the spec is no longer needed.

    An autoscaled pool goes by its lower bound: what it wants beyond that may never find a node.
    """
    autoscaling = scene.pool.spec.autoscaling
    needed = sum(scene.desired.values())
    if autoscaling is not None:
        needed = min(needed, autoscaling.min_replicas)
    return sum(scene.serving(gpu_type) for gpu_type in scene.desired) >= needed


def _children(pool: Pool, observed: Observed) -> list[Step]:
    return [
        EnsureChild(manifest=child, reason="missing or changed by hand")
        for child in expected_children(pool)
        if (child["kind"], child["metadata"]["name"]) not in observed.children
    ]
