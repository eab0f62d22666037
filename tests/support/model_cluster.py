"""A small model of what Kubernetes does to StatefulSets, for properties of the planner.

It follows the source of the StatefulSet controller with parallel pod management: which revision an ordinal gets,
when the controller replaces a pod, when `currentRevision` advances, what server-side apply does to `replicas` and
who owns it, the API's default of one replica. Pods are scheduled while GPUs last and become ready unless their image
is a bad one. A Deployment replaces all its pods within a tick. A ready pod has as much to do as a test says, until it
has been marked as draining for its `patience`. It answers no requests: tests of requests use a real API server.

What we do to pods is judged here: none that serves is ended before it is idle or its time is up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.plan import (
    ApplyTemplate,
    CreateStatefulSet,
    DeleteChild,
    DeleteObject,
    EnsureChild,
    MarkPod,
    Observed,
    ObservedDeployment,
    ObservedPod,
    ObservedStatefulSet,
    OrphanStatefulSet,
    Plan,
    RecordGate,
    RecreateStatefulSet,
    ReplicaLoad,
    RestoreTemplate,
    Scale,
    StartGate,
    Step,
    old_template,
)
from sglpool.plan.surroundings import ObservedJob
from sglpool.render import content_hash
from support.model_misfortunes import Misfortunes
from support.model_objects import LOADING_TICKS, ModelNode, ModelPod, ModelStatefulSet

TEMPLATE, SCALE = names.MANAGER_TEMPLATE, names.MANAGER_SCALE
TICK_S = 60.0
DRAIN_S = 300.0
"""`rollout.drainTimeout` of the pools here."""


class ModelCluster(Misfortunes):
    """StatefulSets and pods of one pool.

    Args:
        capacity: Replicas that fit, by GPU type.
        waits_for_all: Whether the controller waits for every pod before it replaces one (as with the feature gate
            MaxUnavailableStatefulSet), or only for those that it has passed.
    """

    def __init__(self, capacity: dict[str, int], *, waits_for_all: bool) -> None:
        self.capacity = capacity
        self.waits_for_all = waits_for_all
        self.statefulsets: dict[str, ModelStatefulSet] = {}
        self.pods: dict[str, ModelPod] = {}
        self.children: set[tuple[str, str]] = set()
        self.deployments: dict[str, Manifest] = {}
        self.revisions: dict[str, Manifest] = {}
        self.jobs: dict[str, Manifest] = {}
        self.nodes: dict[str, ModelNode] = {}
        self.now_s = 1_700_000_000.0
        self.readable = True
        """Whether routers, or the engines of a pool without one, tell what replicas do."""
        self.routed = False
        self.drains = True
        """Whether anybody reads that at all."""
        self.max_unavailable = 1
        self.taken: set[str] = set()
        """Names of pods that a roll-out took away while they were ready, until they are ready again."""
        self._uids = (f"uid-{number}" for number in itertools.count())

    def observe(self) -> Observed:
        return Observed(
            statefulsets=tuple(ObservedStatefulSet.from_manifest(s.manifest()) for s in self.statefulsets.values()),
            pods=tuple(ObservedPod.from_manifest(p.manifest()) for p in self.pods.values()),
            deployments=tuple(map(ObservedDeployment.from_manifest, self.deployments.values())),
            children=frozenset(self.children),
            refusals={},
            jobs=tuple(map(ObservedJob.from_manifest, self.jobs.values())),
            nodes={name: node.view() for name, node in self.nodes.items()},
        )

    def loads(self) -> dict[str, ReplicaLoad] | None:
        """What each ready pod does, as it was read a moment ago."""
        if not self.drains:
            return None
        return {
            pod.uid: ReplicaLoad(
                uid=pod.uid,
                idle_reads=pod.idle_ticks,
                in_flight=int(pod.busy),
                conversations=3 * pod.busy,
                warm_tokens=300_000 * pod.busy,
                age_s=0.0,
            )
            for pod in self.pods.values()
            if pod.ready and self.readable
        }

    def carry_out(self, pool: Pool, plan: Plan, *, steps: int | None = None) -> None:
        """Apply a plan, or only its first steps, as when the operator dies in the middle."""
        self.max_unavailable = pool.spec.rollout.max_unavailable
        for step in plan.steps[:steps]:
            before = {s.name: s.replicas for s in self.statefulsets.values()}
            self._apply(step)
            self._replicas_are_kept(before, plan)
        if steps is None:
            self._few_are_away(plan)

    def _few_are_away(self, plan: Plan) -> None:
        """Of the wanted replicas, those that we took or are about to take are few."""
        for current in self.statefulsets.values():
            wanted = min(plan.desired.get(current.gpu_type, 0), current.replicas)
            own = [p for p in self._named(current.name) if p.ordinal < wanted]
            draining = {p.name for p in own if p.draining and p.ready and not p.terminating}
            taken = {n for n in self.taken if n.rpartition("-")[0] == current.name and names.ordinal_of(n) < wanted}
            assert len(draining | taken) <= max(self.max_unavailable, len(taken)), f"{draining | taken} are away"

    def _may_be_ended(self, pod: ModelPod) -> bool:
        """Whether it serves nobody, or had its time to drain."""
        if not (self.drains and pod.serves):
            return True
        if not pod.draining:
            return False
        late_s = pod.marked_s + DRAIN_S * (2 if self.routed and not self.readable else 1)
        return (self.readable and pod.idle_ticks >= 2) or self.now_s >= late_s

    def ready(self, gpu_type: str | None = None) -> int:
        return sum(p.ready and not p.terminating for p in self.pods.values() if gpu_type in {None, p.gpu_type})

    # What our steps do.

    def _apply(self, step: Step) -> None:
        match step:
            case EnsureChild(manifest=manifest):
                self._ensure(manifest)
            case DeleteChild(kind=kind, name=name):
                self.children.discard((kind, name))
                self.deployments.pop(name, None)
            case CreateStatefulSet(manifest=manifest):
                self._create(manifest, replicas=0, partition=0)
            case RecreateStatefulSet(manifest=manifest, replicas=replicas, revision=revision):
                data = [{"metadata": {"name": n}, "data": {"spec": {"template": t}}} for n, t in self.revisions.items()]
                old = old_template(desired=manifest, revisions=data, revision=revision)
                self._create(old, replicas=replicas, partition=replicas)
            case ApplyTemplate(manifest=manifest):
                self._apply_template(manifest)
            case Scale(name=name, replicas=replicas, partition=partition, on_delete=on_delete):
                for pod in self._named(name):
                    assert pod.ordinal < replicas or self._may_be_ended(pod), f"{pod} is cut off"
                self._scale(self.statefulsets[name], replicas, partition, on_delete=on_delete)
            case MarkPod() | RestoreTemplate() | RecordGate() | StartGate() | DeleteObject(kind="Job"):
                self._apply_gate(step)
            case DeleteObject(kind="Pod", name=name, uid=uid, grace_period_s=grace_s):
                self._delete_pod(name, uid, at_once=grace_s == 0)
            case DeleteObject(name=name, uid=uid):
                assert self.statefulsets[name].uid == uid
                assert all(self._may_be_ended(pod) for pod in self._named(name) if pod.owner == uid)
                self.delete(name)
            case OrphanStatefulSet(name=name):
                self.orphan(name)
            case _:
                raise AssertionError(f"the model knows no {step}")

    def _apply_gate(self, step: Step) -> None:
        match step:
            case MarkPod(name=name, uid=uid, annotations=annotations):
                self._mark(name, uid, annotations)
            case RestoreTemplate(manifest=manifest, revision=revision, failed=failed):
                data = [{"metadata": {"name": n}, "data": {"spec": {"template": t}}} for n, t in self.revisions.items()]
                old = old_template(desired=manifest, revisions=data, revision=revision)
                annotations = {**manifest["metadata"]["annotations"], names.ANNOTATION_RETURNED: failed}
                self._apply_template({**old, "metadata": {**old["metadata"], "annotations": annotations}})
            case RecordGate(name=name, proven=proven, gated=gated):
                record = {names.ANNOTATION_PROVEN: proven, names.ANNOTATION_GATED: gated}
                self.statefulsets[name].record = record
            case StartGate(manifest=manifest):
                self._start_gate(manifest)
            case DeleteObject(kind="Job", name=name):
                self.jobs.pop(name, None)

    def _ensure(self, manifest: Manifest) -> None:
        """Applied. The controller of a Deployment has not looked yet, and its pods are those of before."""
        self.children.add((manifest["kind"], manifest["metadata"]["name"]))
        if manifest["kind"] != "Deployment":
            return
        before = self.deployments.get(manifest["metadata"]["name"], {"metadata": {"generation": 0}, "status": {}})
        metadata = {**manifest["metadata"], "uid": "d", "generation": before["metadata"]["generation"] + 1}
        self.deployments[metadata["name"]] = {**manifest, "metadata": metadata, "status": before["status"]}

    def _start_gate(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        assert metadata["name"] not in self.jobs
        tested = next(p for p in self.pods.values() if p.uid == metadata["annotations"][names.ANNOTATION_GATE_POD])
        assert tested.ready
        assert tested.annotations.get(names.ANNOTATION_UNPROVEN) == "true"
        self.jobs[metadata["name"]] = {**manifest, "metadata": {**metadata, "uid": next(self._uids)}, "status": {}}

    def _test(self, job: Manifest) -> None:
        """A gate's Job fails for want of its replica, or because of what that runs."""
        uid = job["metadata"]["annotations"][names.ANNOTATION_GATE_POD]
        pod = next((p for p in self.pods.values() if p.uid == uid and p.ready), None)
        passed = pod is not None and "fails" not in self._image(pod.revision)
        job["status"] = {"conditions": [{"type": "Complete" if passed else "Failed", "status": "True"}]}

    def _image(self, revision: str) -> str:
        return str(self.revisions[revision]["spec"]["containers"][0]["image"])

    def _mark(self, name: str, uid: str, annotations: Mapping[str, str | None]) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            return
        if not pod.draining:
            pod.marked_s = self.now_s
        for key, value in annotations.items():
            pod.annotations.pop(key, None)
            if value is not None:
                pod.annotations[key] = value

    def _delete_pod(self, name: str, uid: str, *, at_once: bool) -> None:
        pod = self.pods.get(name)
        if pod and at_once:
            assert not self.nodes[pod.node].ready
            del self.pods[name]
        elif pod and pod.uid == uid and pod.owner:
            self._replace(pod)
        elif pod and pod.uid == uid:
            pod.terminating = True

    def _create(self, manifest: Manifest, *, replicas: int, partition: int) -> None:
        name = manifest["metadata"]["name"]
        assert name not in self.statefulsets, "created over an existing one"
        alive = [p for p in self._named(name) if not p.terminating]
        assert len(alive) <= replicas, f"{name} would adopt {len(alive)} pods and end them"
        self.statefulsets[name] = ModelStatefulSet(
            name=name,
            uid=next(self._uids),
            metadata=manifest["metadata"],
            spec={k: v for k, v in manifest["spec"].items() if k != "template"},
            template=manifest["spec"]["template"],
            replicas=replicas,
            partition=partition,
            replicas_owners={TEMPLATE},
        )

    def _apply_template(self, manifest: Manifest) -> None:
        """Without `replicas`: a field that nobody else owns falls back to the API's default."""
        current = self.statefulsets[manifest["metadata"]["name"]]
        assert not current.on_delete, "whoever is made anew would get it"
        exposed = [p.name for p in self._named(current.name) if p.ready and p.ordinal >= current.partition]
        assert not [n for n in exposed if names.ordinal_of(n) < current.replicas], f"unprotected: {exposed}"
        if current.replicas_owners == {TEMPLATE}:
            current.replicas = 1
        current.replicas_owners.discard(TEMPLATE)
        current.metadata = manifest["metadata"]
        current.generation += current.template != manifest["spec"]["template"]
        current.template = manifest["spec"]["template"]

    def _scale(self, current: ModelStatefulSet, replicas: int, partition: int, *, on_delete: bool) -> None:
        if current.replicas != replicas:
            current.replicas_owners.clear()
        current.replicas_owners.add(SCALE)
        before = current.replicas, current.partition, current.on_delete
        current.generation += before != (replicas, partition, on_delete)
        assert not (on_delete and partition), "an API server refuses both"
        current.replicas, current.partition, current.on_delete = replicas, partition, on_delete

    def _replicas_are_kept(self, before: dict[str, int], plan: Plan) -> None:
        for current in self.statefulsets.values():
            sizes = (before.get(current.name, current.replicas), plan.desired.get(current.gpu_type, 0))
            assert min(sizes) <= current.replicas <= max(sizes), f"{current.name}: {current.replicas}, not of {sizes}"

    # What users and bad luck do.

    def delete(self, name: str) -> None:
        uid = self.statefulsets.pop(name).uid
        for pod in self.pods.values():
            pod.terminating |= pod.owner == uid

    def orphan(self, name: str) -> None:
        uid = self.statefulsets.pop(name).uid
        for pod in self.pods.values():
            pod.owner = "" if pod.owner == uid else pod.owner

    # What Kubernetes does.

    def tick(self) -> None:
        """One round of the StatefulSet controller, the scheduler and the kubelets."""
        self.now_s += TICK_S
        for job in self.jobs.values():
            if not job["status"]:
                self._test(job)
        for current in list(self.statefulsets.values()):
            self._control(current)
        for deployment in self.deployments.values():
            count = deployment["spec"]["replicas"]
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                **dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), count),
            }
        for pod in self.pods.values():
            taken = sum(bool(p.node) for p in self.pods.values() if p.gpu_type == pod.gpu_type)
            if not pod.node and not pod.terminating and taken < self.capacity.get(pod.gpu_type, 0):
                pod.node = self._place(pod.gpu_type)
        for pod in list(self.pods.values()):
            self._run(pod)
        self._forget_taken()

    def _place(self, gpu_type: str) -> str:
        """The first node that takes one more replica; there is always another."""
        for number in itertools.count():
            name = f"{gpu_type}-{number}"
            node = self.nodes.setdefault(name, ModelNode(name, since_s=self.now_s))
            used = 4 * sum(pod.node == name for pod in self.pods.values())
            if node.ready and not node.cordoned and used + 4 <= node.gpus:
                return name
        raise AssertionError

    def _control(self, current: ModelStatefulSet) -> None:
        current.observed_generation = current.generation
        current.update_revision = f"{current.name}-{content_hash(current.template)}"
        self.revisions[current.update_revision] = current.template
        current.current_revision = current.current_revision or current.update_revision
        for pod in self._named(current.name):
            if not pod.owner and not pod.terminating:
                pod.owner = current.uid
        for ordinal in range(current.replicas):
            if f"{current.name}-{ordinal}" not in self.pods:
                self._start(current, ordinal)
        own = sorted((p for p in self._named(current.name) if p.owner == current.uid), key=lambda p: p.ordinal)
        for pod in own:
            pod.terminating |= pod.ordinal >= current.replicas
        replicas = [p for p in own if p.ordinal < current.replicas]
        self._update(current, replicas)
        updated = [p for p in replicas if p.revision == current.update_revision and not p.terminating]
        if len(own) == len([p for p in updated if p.ready]) == current.replicas:
            current.current_revision = current.update_revision

    def _start(self, current: ModelStatefulSet, ordinal: int) -> None:
        old = ordinal < current.partition and not current.on_delete
        revision = current.current_revision if old else current.update_revision
        image = self._image(revision)
        name = f"{current.name}-{ordinal}"
        self.pods[name] = ModelPod(
            name=name,
            uid=next(self._uids),
            owner=current.uid,
            gpu_type=current.gpu_type,
            revision=revision,
            good="bad" not in image,
        )

    def _update(self, current: ModelStatefulSet, replicas: list[ModelPod]) -> None:
        if current.on_delete or (self.waits_for_all and not all(p.ready and not p.terminating for p in replicas)):
            return
        for pod in reversed(replicas):
            if pod.ordinal < current.partition:
                return
            if pod.revision != current.update_revision and not pod.terminating:
                self._replace(pod)
                return
            if pod.terminating or not pod.ready:
                return

    def _replace(self, pod: ModelPod) -> None:
        """End a pod for the sake of a roll-out."""
        if pod.terminating:
            return
        pod.terminating = True
        if pod.ready:
            assert self._may_be_ended(pod) or not self._others_serve(pod), f"{pod} is cut off"
            self._forget_taken()
            self.taken.add(pod.name)
            statefulset = pod.name.rpartition("-")[0]
            together = {n for n in self.taken if n.rpartition("-")[0] == statefulset}
            assert len(together) <= self.max_unavailable, f"a roll-out took {together} at a time"

    def _run(self, pod: ModelPod) -> None:
        if pod.node and not self.nodes[pod.node].ready:
            pod.ready, pod.loading = False, LOADING_TICKS
        elif pod.terminating:
            del self.pods[pod.name]
        elif pod.wedged:
            pod.restarts += 1
        elif pod.node and pod.good and not pod.ready:
            pod.loading -= 1
            pod.ready = pod.loading <= 0
        if pod.ready and not pod.terminating:
            self.taken.discard(pod.name)
            pod.patience -= pod.draining
            pod.busy = pod.busy and not (pod.draining and pod.patience < 0)
            pod.idle_ticks = 0 if pod.busy else pod.idle_ticks + 1

    def _others_serve(self, pod: ModelPod) -> bool:
        return any(p.serves and not p.draining and p is not pod for p in self.pods.values())

    def _forget_taken(self) -> None:
        """Count no more what nobody wants, nor what a roll-out does not wait for."""
        self.taken = {
            name
            for name in self.taken
            if self._wanted(name) and not (name in self.pods and self._lost(self.pods[name]))
        }

    def _lost(self, pod: ModelPod) -> bool:
        """Whether it finds no node, or is broken on a former revision: a roll-out may be its cure."""
        current = self.statefulsets[pod.name.rpartition("-")[0]]
        return not pod.node or (pod.revision != current.update_revision and not pod.good)

    def _wanted(self, pod_name: str) -> bool:
        current = self.statefulsets.get(pod_name.rpartition("-")[0])
        return current is not None and names.ordinal_of(pod_name) < current.replicas

    def _named(self, statefulset: str) -> Iterator[ModelPod]:
        return (p for p in list(self.pods.values()) if p.name.rpartition("-")[0] == statefulset)
