"""Carry out a plan: each step as requests to the API server, failures as values.

A step that fails stops the stages after it, never its neighbours. What comes back from the server goes into the
store at once, so that the status written after the plan already knows it. Not here: deciding anything.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.controller.phrases import phrase
from sglpool.controller.store import PoolKey, Store
from sglpool.kube import Conflict, Forbidden, Invalid, KubeError, KubePort, NotFound, resource_for
from sglpool.kube.resources import (
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFULSETS,
)
from sglpool.plan import (
    AdoptStatefulSet,
    ApplyTemplate,
    CreateStatefulSet,
    DeleteChild,
    DeleteObject,
    EnsureChild,
    MarkPod,
    OrphanStatefulSet,
    Plan,
    RecordGate,
    RecreateStatefulSet,
    RestoreTemplate,
    Scale,
    StartGate,
    Step,
    old_template,
)
from sglpool.plan.children import contains, is_owned
from sglpool.plan.status import Blocker
from sglpool.render import gate_record, scale_manifest

_KINDS = {"Job": JOBS, "Pod": PODS, "StatefulSet": STATEFULSETS}
_CHILD_KINDS = {
    resource.kind: resource
    for resource in (
        DEPLOYMENTS,
        NETWORK_POLICIES,
        POD_DISRUPTION_BUDGETS,
        ROLE_BINDINGS,
        ROLES,
        SERVICE_ACCOUNTS,
        SERVICES,
    )
}


class NameConflict(Exception):
    """An object of a child's name belongs to somebody else."""

    def __init__(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        owner = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), None)
        belongs = f"belongs to {owner['kind']} {owner['name']}" if owner else "has no owner"
        super().__init__(
            f"{manifest['kind']} {metadata['name']} exists already and {belongs}. Delete or rename it, or, to hand "
            f'it over, annotate it with {names.ANNOTATION_ADOPT}="true".'
        )


class LookAgain(Exception):
    """What the plan rests on is out of date: plan again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a plan.

    Attributes:
        changes: One phrase per step that was carried out.
        done: Those steps.
        blockers: Failures that the user has to cure.
        transient: The first failure that may pass by itself, None without one.
        look_again: Whether to plan again at once.
    """

    changes: tuple[str, ...]
    blockers: tuple[Blocker, ...]
    transient: KubeError | None
    look_again: bool
    done: tuple[Step, ...] = field(default=(), compare=False)


class Executor:
    """Carries out plans.

    Args:
        kube: The API server.
        store: Where answers go.
    """

    def __init__(self, kube: KubePort, store: Store) -> None:
        self._kube = kube
        self._store = store

    async def run(self, pool: Pool, plan: Plan) -> Outcome:
        """Carry out a plan stage by stage; stop after the first stage in which something failed."""
        changes: list[str] = []
        done: list[Step] = []
        failures: list[BaseException] = []
        for stage in plan.stages:
            results = await asyncio.gather(*(self._step(pool, step) for step in stage), return_exceptions=True)
            changes += [result for result in results if isinstance(result, str) and result]
            done += [step for step, result in zip(stage, results, strict=True) if isinstance(result, str) and result]
            failures = [result for result in results if isinstance(result, BaseException)]
            if failures:
                break
        return _outcome(changes, done, failures)

    async def _step(self, pool: Pool, step: Step) -> str:
        """Do one step; a phrase for the log, empty when nothing had to be done."""
        match step:
            case CreateStatefulSet():
                await self._create(pool, step)
            case RecreateStatefulSet():
                await self._recreate(pool, step)
            case ApplyTemplate(manifest=manifest):
                await self._apply_to_known(pool, manifest, names.MANAGER_TEMPLATE)
            case Scale():
                await self._scale(pool, step)
            case RecordGate():
                await self._record_gate(pool, step)
            case AdoptStatefulSet():
                await self._adopt(pool, step)
            case OrphanStatefulSet(name=name, uid=uid):
                await self._orphan(pool, name=name, uid=uid)
            case RestoreTemplate():
                await self._restore(pool, step)
            case MarkPod() | StartGate() | EnsureChild() | DeleteObject() | DeleteChild():
                if not await self._change(pool, step):
                    return ""
        return phrase(step)

    async def _change(self, pool: Pool, step: MarkPod | StartGate | EnsureChild | DeleteObject | DeleteChild) -> bool:
        """Do a step that may turn out to be needless; whether it changed anything."""
        match step:
            case MarkPod():
                return await self._mark_pod(pool, step)
            case StartGate(manifest=manifest):
                return await self._start_gate(pool, manifest)
            case EnsureChild(manifest=manifest):
                return await self._ensure_child(pool, manifest)
            case DeleteObject() | DeleteChild():
                return await self._delete(pool, step)

    async def _create(self, pool: Pool, step: CreateStatefulSet) -> None:
        """Create with zero replicas, unless it is there after all: applying a zero to it would end every replica."""
        manifest = {**step.manifest, "spec": {**step.manifest["spec"], "replicas": 0}}
        await self._create_statefulset(pool, manifest)

    async def _recreate(self, pool: Pool, step: RecreateStatefulSet) -> None:
        """Create around orphans: with their number and a partition that holds them, from the first moment."""
        await self._must_be_free(pool, step.manifest)
        revisions = await self._revisions(pool, step.manifest)
        manifest = old_template(desired=step.manifest, revisions=revisions, revision=step.revision)
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": step.replicas}}
        spec = {**manifest["spec"], "replicas": step.replicas, "updateStrategy": strategy}
        await self._create_statefulset(pool, {**manifest, "spec": spec})

    async def _restore(self, pool: Pool, step: RestoreTemplate) -> None:
        """Apply the template of an earlier revision; where that is gone, what runs is left as it is."""
        revisions = await self._revisions(pool, step.manifest)
        old = old_template(desired=step.manifest, revisions=revisions, revision=step.revision)
        if old is step.manifest:
            return
        annotations = {**step.manifest["metadata"]["annotations"], names.ANNOTATION_RETURNED: step.failed}
        old["metadata"]["annotations"] = annotations
        await self._apply_to_known(pool, old, names.MANAGER_TEMPLATE)

    async def _revisions(self, pool: Pool, statefulset: Manifest) -> list[Manifest]:
        selector = statefulset["spec"]["selector"]["matchLabels"]
        return await self._kube.list(CONTROLLER_REVISIONS, namespace=pool.namespace, labels=selector)

    async def _create_statefulset(self, pool: Pool, manifest: Manifest) -> None:
        created = await self._create_if_free(manifest)
        if created is None:
            await self._must_be_free(pool, manifest)
            raise LookAgain  # it was there for a moment
        self._store.put_statefulset(created)

    async def _create_if_free(self, manifest: Manifest) -> Manifest | None:
        """Create an object in one step, None if one of that name exists: nothing can come between a look and a leap."""
        try:
            return await self._kube.apply(manifest, field_manager=names.MANAGER_TEMPLATE, only_create=True)
        except Conflict:
            return None

    async def _scale(self, pool: Pool, step: Scale) -> None:
        of = {"name": step.name, "namespace": pool.namespace}
        manifest = scale_manifest(**of, replicas=step.replicas, partition=step.partition, on_delete=step.on_delete)
        await self._apply_to_known(pool, manifest, names.MANAGER_SCALE)

    async def _record_gate(self, pool: Pool, step: RecordGate) -> None:
        """Write what is proven; the store learns of it by the watch, since that also puts the pool in line."""
        record = gate_record(name=step.name, namespace=pool.namespace, proven=step.proven, gated=step.gated)
        await self._apply_to_known(pool, record, names.MANAGER_GATE, remember=False)

    async def _start_gate(self, pool: Pool, manifest: Manifest) -> bool:
        """Create the Job of a gate; False if it is there already."""
        live = await self._create_if_free(manifest)
        if live is not None:
            self._store.put_job(live)
            return True
        existing = await self._find(pool, manifest)
        if existing is None:
            raise LookAgain  # it was there for a moment
        _refuse_stranger(existing, manifest, pool)
        self._store.put_job(existing)
        return False

    async def _mark_pod(self, pool: Pool, step: MarkPod) -> bool:
        """Annotate that incarnation of a pod; False if it is gone already."""
        patch = {"metadata": {"uid": step.uid, "annotations": dict(step.annotations)}}
        try:
            marked = await self._kube.merge_patch(PODS, namespace=pool.namespace, name=step.name, patch=patch)
        except (NotFound, Conflict):  # another one has its name by now
            return False
        except Invalid as error:
            if "metadata.uid" in error.message:
                return False
            raise
        self._store.put_pod(marked)
        return True

    async def _apply_to_known(self, pool: Pool, manifest: Manifest, manager: str, *, remember: bool = True) -> None:
        """Apply to the StatefulSet that was planned for, by its uid.

        Without the uid, an apply to one that was deleted meanwhile would create it, with the API's default of one
        replica.
        """
        uid = self._store.statefulset_uid(_key(pool), manifest["metadata"]["name"])
        if uid is None:
            raise LookAgain
        pinned = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
        try:
            applied = await self._kube.apply(pinned, field_manager=manager)
        except Invalid as error:
            if "metadata.uid" in error.message:  # another one has its name by now
                raise LookAgain from error
            raise
        if remember:
            self._store.put_statefulset(applied, _key(pool))

    async def _must_be_free(self, pool: Pool, manifest: Manifest) -> None:
        """Refuse to create a StatefulSet over one that exists, which may be news, a stranger, or on its way out."""
        existing = await self._find(pool, manifest)
        if existing is not None:
            _refuse_stranger(existing, manifest, pool)
            self._store.put_statefulset(existing, _key(pool))
            raise LookAgain

    async def _delete(self, pool: Pool, step: DeleteObject | DeleteChild) -> bool:
        """Delete that incarnation, or that child; False if it is gone already."""
        if isinstance(step, DeleteChild):
            return await self._delete_child(pool, step)
        try:
            return await self._kube.delete(
                _KINDS[step.kind],
                namespace=pool.namespace,
                name=step.name,
                uid=step.uid,
                grace_period_s=step.grace_period_s,
            )
        except Conflict:
            return False

    async def _ensure_child(self, pool: Pool, manifest: Manifest) -> bool:
        """Apply a child if it is missing or differs; never take one that is somebody else's."""
        changed = True
        live = await self._create_if_free(manifest)
        if live is None:
            existing = await self._find(pool, manifest)
            if existing is None:
                raise LookAgain  # it was there for a moment
            _refuse_stranger(existing, manifest, pool)
            live = existing
            changed = not contains(existing, manifest)
            if changed:
                live = await self._kube.apply(manifest, field_manager=names.MANAGER_TEMPLATE)
        if manifest["kind"] == "Deployment":
            self._store.put_deployment(live)
        self._store.add_child(_key(pool), manifest["kind"], manifest["metadata"]["name"])
        return changed

    async def _delete_child(self, pool: Pool, step: DeleteChild) -> bool:
        """Delete a child of that name if it is the pool's; False if it is gone already, or a stranger's."""
        resource, key = _CHILD_KINDS[step.kind], _key(pool)
        deleted = False
        try:
            existing = await self._kube.get(resource, namespace=pool.namespace, name=step.name)
            if is_owned(existing, pool):
                uid = existing["metadata"]["uid"]
                deleted = await self._kube.delete(resource, namespace=pool.namespace, name=step.name, uid=uid)
                self._store.bury(key, name=step.name, uid=uid)
        except NotFound:
            pass
        except Conflict as error:  # another one has its name by now
            raise LookAgain from error
        self._store.drop_child(key, step.kind, step.name)
        return deleted

    async def _adopt(self, pool: Pool, step: AdoptStatefulSet) -> None:
        """Label pods and revisions of a StatefulSet that was handed over, so that watch and successor see them."""
        for resource in (PODS, CONTROLLER_REVISIONS):
            for item in await self._kube.list(resource, namespace=pool.namespace, labels=step.selector):
                owners = item["metadata"].get("ownerReferences") or ()
                if not any(owner["uid"] == step.uid for owner in owners):
                    continue
                labelled = await self._kube.merge_patch(
                    resource,
                    namespace=pool.namespace,
                    name=item["metadata"]["name"],
                    patch={"metadata": {"labels": dict(step.labels)}},
                )
                if resource is PODS:
                    self._store.put_pod(labelled)

    async def _orphan(self, pool: Pool, *, name: str, uid: str) -> None:
        await self._kube.delete(STATEFULSETS, namespace=pool.namespace, name=name, uid=uid, propagation="Orphan")
        # One that was adopted does not carry our labels: no watch will tell that it is gone.
        self._store.bury(_key(pool), name=name, uid=uid)

    async def _find(self, pool: Pool, manifest: Manifest) -> Manifest | None:
        try:
            return await self._kube.get(
                resource_for(manifest), namespace=pool.namespace, name=manifest["metadata"]["name"]
            )
        except NotFound:
            return None


def _key(pool: Pool) -> PoolKey:
    return pool.namespace, pool.name


def _refuse_stranger(existing: Manifest, wanted: Manifest, pool: Pool) -> None:
    """Let only the pool's own objects pass, and those that the user handed over.

    Raises:
        NameConflict: It is somebody else's.
        LookAgain: It belongs to a former pool of this name, and will be collected.
    """
    if is_owned(existing, pool):
        return
    metadata = existing["metadata"]
    owner = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), None)
    if owner and (owner["kind"], owner["name"]) == (names.KIND, pool.name):
        raise LookAgain
    if owner or (metadata.get("annotations") or {}).get(names.ANNOTATION_ADOPT) != "true":
        raise NameConflict({"kind": wanted["kind"], **existing})


def _outcome(changes: Sequence[str], done: Sequence[Step], failures: Sequence[BaseException]) -> Outcome:
    """Sort failures into what the user must cure, what passes, and bugs, which are raised."""
    blockers = []
    transient: KubeError | None = None
    look_again = False
    for failure in failures:
        match failure:
            case NameConflict():
                blockers.append(Blocker("NameConflict", str(failure)))
            case Forbidden() if failure.namespace_terminating:
                pass  # everything here goes away, the pool too
            case Forbidden():
                blockers.append(Blocker("Forbidden", str(failure)))
            case Invalid():
                blockers.append(Blocker("InvalidSpec", str(failure)))
            case LookAgain():
                look_again = True
            case KubeError():
                transient = transient or failure
                look_again |= isinstance(failure, NotFound)  # what a step refers to, as a Role that was just made
            case _:
                raise failure
    return Outcome(
        changes=tuple(changes),
        done=tuple(done),
        blockers=tuple(blockers),
        transient=transient,
        look_again=look_again,
    )
