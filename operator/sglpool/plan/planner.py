"""From a pool and what exists to the steps that are due now.

Level-triggered: each call looks at everything and assumes nothing about the last one, so a crash between two steps
costs nothing. Not here: how a step is carried out, and what the user is told (`plan.status`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.plan.children import expected_children
from sglpool.plan.observed import Observed, ObservedStatefulSet
from sglpool.plan.replicas import desired_replicas
from sglpool.plan.rollout import next_partition, pods_to_replace
from sglpool.plan.router import router_steps
from sglpool.plan.steps import (
    AdoptStatefulSet,
    ApplyTemplate,
    CreateStatefulSet,
    DeleteObject,
    EnsureChild,
    OrphanStatefulSet,
    RecreateStatefulSet,
    Scale,
    Step,
    common_revision,
)
from sglpool.render import launch_configmap, spec_hash, statefulset
from sglpool.sizing.pools import SizedGPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is due now.

    Attributes:
        stages: Steps of one stage may run side by side; a stage starts when the one before is done.
        desired: Wanted replicas by GPU type.
    """

    stages: tuple[tuple[Step, ...], ...]
    desired: dict[str, int]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(step for stage in self.stages for step in stage)


def make_plan(pool: Pool, sized: Sequence[SizedGPU], observed: Observed) -> Plan:
    """Decide the steps that bring a pool closer to its spec.

    A pool of which any GPU type is infeasible or unknown keeps what runs as it is: nothing is created, rolled out
    or removed, and replicas move between GPU types only as far as a changed total asks for it.
    """
    current = {s.gpu_type: s.replicas for s in observed.statefulsets if s.owner_uid == pool.uid}
    may_render = all(s.feasible for s in sized)
    desired = desired_replicas(pool.spec, current, frozen=not may_render)
    stages: list[list[Step]] = []
    for one in sized:
        _side_by_side(stages, _plan_type(pool, one, desired[one.entry.type], observed, may_render=may_render))
    if may_render:
        _side_by_side(stages, [_removed_types(pool, observed)])
    if may_render or current:
        _side_by_side(stages, [_children(pool, observed)])
        _side_by_side(stages, router_steps(pool, sized, observed))
    return Plan(stages=tuple(tuple(stage) for stage in stages if stage), desired=desired)


def _side_by_side(stages: list[list[Step]], more: Sequence[Sequence[Step]]) -> None:
    """Add the stages of one part to those of the others."""
    for index, stage in enumerate(more):
        if index == len(stages):
            stages.append([])
        stages[index].extend(stage)


def _plan_type(pool: Pool, sized: SizedGPU, replicas: int, observed: Observed, *, may_render: bool) -> list[list[Step]]:
    """Stages for the StatefulSet of one GPU type."""
    name = names.statefulset_name(pool.name, sized.entry.type)
    current = observed.statefulset(name)
    if current is None:
        return _create(pool, sized, replicas, observed) if may_render else []
    if current.owner_uid != pool.uid:
        return _take_over(pool, sized, current) if may_render else []
    if may_render and template_outdated(pool, sized, current):
        return _change_template(pool, sized, current, replicas)
    return _settle(pool, current, replicas, observed)


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


def _change_template(pool: Pool, sized: SizedGPU, current: ObservedStatefulSet, replicas: int) -> list[list[Step]]:
    """Protect every pod, then apply the template; the roll-out itself is later calls' work."""
    manifest = statefulset(pool, sized)
    if _immutable_differs(manifest, current):
        return [[OrphanStatefulSet(name=current.name, uid=current.uid, reason="its immutable fields must change")]]
    keep = min(replicas, current.replicas)
    first: list[Step] = [EnsureChild(manifest=launch_configmap(pool, sized), reason="scripts of the new revision")]
    # The scale manager must own `replicas` before the template manager applies without it: a field that nobody
    # owns would fall back to 1.
    if (current.replicas, current.partition) != (keep, keep) or not current.scale_owned:
        hold = "hold every pod on its revision"
        first.append(Scale(name=current.name, replicas=keep, partition=keep, reason=hold))
    return [first, [ApplyTemplate(manifest=manifest, reason="the spec changed")]]


def _immutable_differs(manifest: Manifest, current: ObservedStatefulSet) -> bool:
    spec = manifest["spec"]
    return (current.service_name, dict(current.selector), current.pod_management_policy) != (
        spec["serviceName"],
        spec["selector"]["matchLabels"],
        spec["podManagementPolicy"],
    )


def _settle(pool: Pool, current: ObservedStatefulSet, replicas: int, observed: Observed) -> list[list[Step]]:
    """Size and roll-out of a StatefulSet whose template is right.

    Pods are replaced one call after the partition was moved, when its controller has seen it: deleted sooner, they
    could return on the old revision.
    """
    pods = observed.pods_of(current.gpu_type)
    most = pool.spec.rollout.max_unavailable
    partition = min(current.partition, replicas)
    if current.caught_up and current.replicas > 0:
        shrunk = replace(current, replicas=min(current.replicas, replicas), partition=partition)
        refused = current.name in observed.refusals
        partition = next_partition(shrunk, pods, max_unavailable=most, refused=refused)
    owned = current.scale_owned or replicas == 0
    if (current.replicas, current.partition) != (replicas, partition) or not owned:
        reason = f"{current.replicas} to {replicas} replicas"
        if current.replicas == replicas:
            reason = f"roll-out reaches ordinal {partition}" if partition else "roll-out reaches every ordinal"
        return [[Scale(name=current.name, replicas=replicas, partition=partition, reason=reason)]]
    if not current.caught_up:
        return []
    reason = "the roll-out replaces it"
    outdated = pods_to_replace(current, pods, max_unavailable=most)
    return [[DeleteObject(kind="Pod", name=pod.name, uid=pod.uid, reason=reason) for pod in outdated]]


def _removed_types(pool: Pool, observed: Observed) -> list[Step]:
    """StatefulSets of types that left the spec, and pods that such a one left behind when it was orphaned."""
    wanted = {names.statefulset_name(pool.name, gpu.type) for gpu in pool.spec.gpus}
    reason = "its GPU type left the spec"
    statefulsets = [
        DeleteObject(kind="StatefulSet", name=s.name, uid=s.uid, reason=reason)
        for s in observed.statefulsets
        if s.owner_uid == pool.uid and s.name not in wanted
    ]
    orphans = [
        DeleteObject(kind="Pod", name=p.name, uid=p.uid, reason=reason)
        for p in observed.pods
        if not (p.owner_uid or p.terminating)
        and (owner := names.statefulset_name(pool.name, p.gpu_type)) not in wanted
        and p.name == f"{owner}-{p.ordinal}"
    ]
    return [*statefulsets, *orphans]


def _children(pool: Pool, observed: Observed) -> list[Step]:
    return [
        EnsureChild(manifest=child, reason="missing or changed by hand")
        for child in expected_children(pool)
        if (child["kind"], child["metadata"]["name"]) not in observed.children
    ]
