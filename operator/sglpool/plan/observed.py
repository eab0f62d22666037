"""What the planner knows of the cluster: small, typed views of Kubernetes objects.

Only the fields that decisions rest on are kept, so that a thousand pools stay small in memory. Not here: reading
them from a cluster (`controller.store`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.engine import GPU_RESOURCE
from sglpool.api.pool import Pool
from sglpool.plan.surroundings import ObservedJob, ObservedNode

MAX_WORDS = 200
"""Characters that a condition quotes of a container's last message."""
_CLOSING_LINES = ("sglpool: the server ended", "sglpool: the server did not warm up", "Received sigquit")
"""Lines with which the launch script and SGLang say only that it is over."""

_ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of pods that run nothing any more; such a pod keeps its IP, which may be another's by now."""

RefusalKind = Literal["PodSecurityRefused", "QuotaExceeded", "PodsRefused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStatefulSet:
    """One StatefulSet.

    Attributes:
        name: metadata.name.
        uid: metadata.uid.
        gpu_type: Its GPU type label; empty if it has none.
        owner_uid: uid of its controller, empty without one.
        adoptable: Whether the user marked it for adoption.
        caught_up: Whether its controller has seen the current generation; before that its status lies.
        spec_hash: The edits-that-restart of the spec that its template was rendered from.
        render_hash: Hash of the rendered template.
        hicache_bytes: `hiCache.size: Auto` as resolved for it, None if not Auto.
        replicas: spec.replicas.
        partition: Ordinals from here on get the update revision.
        on_delete: Whether every ordinal gets the update revision when its pod is made anew, and not before; the
            partition is 0 then.
        scale_owned: Whether the scale manager owns spec.replicas.
        current_revision: status.currentRevision: what all replicas ran when the last roll-out ended.
        update_revision: status.updateRevision: the template as it is.
        proven: The revision that passed its gate, `none` while none has, empty where there never was a gate.
        gated: The revision that has to pass its gate, or has.
        returned_from: The revision that failed its gate, if the template before it was put back; else empty.
        service_name: spec.serviceName, immutable.
        selector: spec.selector.matchLabels, immutable.
        pod_management_policy: spec.podManagementPolicy, immutable.
    """

    name: str
    uid: str
    gpu_type: str
    owner_uid: str
    adoptable: bool
    caught_up: bool
    spec_hash: str
    render_hash: str
    hicache_bytes: int | None
    replicas: int
    partition: int
    scale_owned: bool
    current_revision: str
    update_revision: str
    service_name: str
    selector: Mapping[str, str]
    pod_management_policy: str
    on_delete: bool = False
    proven: str = ""
    gated: str = ""
    returned_from: str = ""

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "ObservedStatefulSet":
        """Read one from the API server's JSON."""
        metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
        annotations = metadata.get("annotations") or {}
        strategy = spec.get("updateStrategy") or {}
        pin = annotations.get(names.ANNOTATION_HICACHE_BYTES, "")
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            gpu_type=(metadata.get("labels") or {}).get(names.LABEL_GPU, ""),
            owner_uid=controller_uid(metadata),
            adoptable=annotations.get(names.ANNOTATION_ADOPT) == "true",
            caught_up=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
            spec_hash=annotations.get(names.ANNOTATION_SPEC_HASH, ""),
            render_hash=annotations.get(names.ANNOTATION_RENDER_HASH, ""),
            hicache_bytes=int(pin) if pin.isdecimal() else None,
            replicas=spec.get("replicas", 1),
            partition=(strategy.get("rollingUpdate") or {}).get("partition", 0),
            on_delete=strategy.get("type") == "OnDelete",
            scale_owned=any(m.get("manager") == names.MANAGER_SCALE for m in metadata.get("managedFields") or ()),
            current_revision=status.get("currentRevision", ""),
            update_revision=status.get("updateRevision", ""),
            service_name=spec.get("serviceName", ""),
            selector=(spec.get("selector") or {}).get("matchLabels") or {},
            pod_management_policy=spec.get("podManagementPolicy", "OrderedReady"),
            proven=annotations.get(names.ANNOTATION_PROVEN, ""),
            gated=annotations.get(names.ANNOTATION_GATED, ""),
            returned_from=annotations.get(names.ANNOTATION_RETURNED, ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """One pod of an engine, or of a router, which has no ordinal, GPU type and revision.

    Attributes:
        name: metadata.name.
        uid: metadata.uid.
        component: Its component label.
        ordinal: Its number in the StatefulSet.
        gpu_type: Its GPU type label.
        owner_uid: uid of its controller, empty for an orphan.
        revision: Its controller-revision-hash label.
        ready: Whether condition Ready is True and it is not going away.
        terminating: Whether a deletion timestamp is set.
        unready_since_s: Unix time since which it is not ready: its start on a node, or when it stopped being ready.
        node: Its node, empty while unscheduled.
        address: Its IP, empty before it has one and after it ended.
        gpus: GPUs that it requests.
        unschedulable: The scheduler's words, empty when scheduled or not looked at yet.
        waiting: Reason of the first container that waits for something other than its turn, with its image if that is
            what it waits for, else with the kubelet's words.
        restarts: Restarts of its containers, the largest.
        last_exit: Exit code of the last ended container, None if none ended.
        last_words: What that container said at its end, one line; empty when it left no message.
        oom_killed: Whether that container was killed for memory.
        draining: Whether it is marked to be emptied.
        drain_deadline_s: Unix time until which conversations have time to leave it, None without a readable one.
        drain_cause: Why it is marked, as far as nothing else says it; see `plan.drain`.
        drain_reason: The same in words, for whatever the cause is.
        unproven: `true` while its revision has not passed its gate, `false` since it has, else empty.
        ends_s: Unix time at which its grace is over; None unless it is terminating.
    """

    name: str
    uid: str
    component: str
    ordinal: int
    gpu_type: str
    owner_uid: str
    revision: str
    ready: bool
    terminating: bool
    unready_since_s: float
    node: str
    gpus: int
    unschedulable: str
    waiting: tuple[str, str]
    restarts: int
    last_exit: int | None
    last_words: str
    oom_killed: bool
    address: str = ""
    draining: bool = False
    drain_deadline_s: float | None = None
    drain_cause: str = ""
    drain_reason: str = ""
    unproven: str = ""
    ends_s: float | None = None

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "ObservedPod":
        """Read one from the API server's JSON."""
        metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        terminating = "deletionTimestamp" in metadata
        ended = [e for c in containers for e in (_ended(c),) if e is not None]
        scheduled = conditions.get("PodScheduled") or {}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            component=labels.get(names.LABEL_COMPONENT, ""),
            ordinal=names.ordinal_of(metadata["name"]),
            gpu_type=labels.get(names.LABEL_GPU, ""),
            owner_uid=controller_uid(metadata),
            revision=labels.get(names.LABEL_REVISION, ""),
            ready=(conditions.get("Ready") or {}).get("status") == "True" and not terminating,
            terminating=terminating,
            unready_since_s=_unready_since_s(metadata, conditions),
            node=spec.get("nodeName") or "",
            address="" if status.get("phase") in _ENDED else status.get("podIP") or "",
            gpus=_gpus(spec),
            unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
            waiting=_waiting(containers),
            restarts=max((c.get("restartCount", 0) for c in containers), default=0),
            last_exit=ended[-1].get("exitCode") if ended else None,
            last_words=_last_words(ended[-1].get("message", "")) if ended else "",
            oom_killed=any(e.get("reason") == "OOMKilled" for e in ended),
            draining=annotations.get(names.ANNOTATION_DRAINING) == "true",
            drain_deadline_s=_number(annotations.get(names.ANNOTATION_DRAIN_DEADLINE)),
            drain_cause=annotations.get(names.ANNOTATION_DRAIN_CAUSE, ""),
            drain_reason=annotations.get(names.ANNOTATION_DRAIN_REASON, ""),
            unproven=annotations.get(names.ANNOTATION_UNPROVEN, ""),
            ends_s=_unix_s(metadata["deletionTimestamp"]) if terminating else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDeployment:
    """One Deployment: a router, or the store of one.

    Attributes:
        name: metadata.name.
        uid: metadata.uid.
        owner_uid: uid of its controller, empty without one.
        spec_hash: What of the spec it was rendered from.
        render_hash: Hash of the rendered object.
        caught_up: Whether its controller has seen the current generation; before that its status lies.
        total: Pods that are not going away, of all revisions.
        updated: Those of the current one.
        ready: Ready pods, of all revisions.
        refused: Why the API server refuses its pods, empty if it does not.
        late: What its controller says when it took too long, else empty.
    """

    name: str
    uid: str
    owner_uid: str
    spec_hash: str
    render_hash: str
    caught_up: bool
    total: int
    updated: int
    ready: int
    refused: str
    late: str

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "ObservedDeployment":
        """Read one from the API server's JSON."""
        metadata, status = manifest["metadata"], manifest.get("status") or {}
        annotations = metadata.get("annotations") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        failure, progress = conditions.get("ReplicaFailure") or {}, conditions.get("Progressing") or {}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            owner_uid=controller_uid(metadata),
            spec_hash=annotations.get(names.ANNOTATION_SPEC_HASH, ""),
            render_hash=annotations.get(names.ANNOTATION_RENDER_HASH, ""),
            caught_up=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
            total=status.get("replicas", 0),
            updated=status.get("updatedReplicas", 0),
            ready=status.get("readyReplicas", 0),
            refused=failure.get("message", "") if failure.get("status") == "True" else "",
            late=progress.get("message", "") if progress.get("status") == "False" else "",
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Pods of a StatefulSet that the API server refuses, read from the StatefulSet's Events."""

    kind: RefusalKind
    message: str

    @classmethod
    def from_message(cls, message: str) -> "Refusal":
        """Classify the words of a FailedCreate Event."""
        if "violates PodSecurity" in message:
            return cls("PodSecurityRefused", message)
        if "exceeded quota" in message:
            return cls("QuotaExceeded", message)
        return cls("PodsRefused", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything of one pool that exists.

    Attributes:
        statefulsets: Its StatefulSets, and strangers that have one of its names.
        pods: Its engine pods.
        router_pods: The pods of its routers.
        deployments: Its Deployments, and strangers that carry its label.
        children: Kind and name of the shared children that exist, are the pool's and are as they should be.
        surplus: Kind and name of children that are the pool's and that its spec does not ask for.
        refusals: Why pods are missing, by StatefulSet, where known.
        jobs: Jobs of its gates.
        gate_pods: Pods of those.
        nodes: Nodes that its pods are on, by name; None where nodes cannot be read.
    """

    statefulsets: tuple[ObservedStatefulSet, ...] = ()
    pods: tuple[ObservedPod, ...] = ()
    router_pods: tuple[ObservedPod, ...] = ()
    deployments: tuple[ObservedDeployment, ...] = ()
    children: frozenset[tuple[str, str]] = frozenset()
    surplus: frozenset[tuple[str, str]] = frozenset()
    refusals: Mapping[str, Refusal]
    jobs: tuple[ObservedJob, ...] = ()
    gate_pods: tuple[ObservedPod, ...] = ()
    nodes: Mapping[str, ObservedNode] | None = None

    def statefulset(self, name: str) -> ObservedStatefulSet | None:
        """The StatefulSet of that name."""
        return next((s for s in self.statefulsets if s.name == name), None)

    def own_statefulset(self, pool: Pool, gpu_type: str) -> ObservedStatefulSet | None:
        """The pool's StatefulSet of a GPU type; a stranger of that name does not count."""
        found = self.statefulset(names.statefulset_name(pool.name, gpu_type))
        return found if found is not None and found.owner_uid == pool.uid else None

    def pods_of(self, gpu_type: str) -> tuple[ObservedPod, ...]:
        """The pods of one GPU type, by ordinal."""
        return tuple(sorted((p for p in self.pods if p.gpu_type == gpu_type), key=lambda p: p.ordinal))


def controller_uid(metadata: Manifest) -> str:
    """The uid of an object's controller, empty without one."""
    owners = metadata.get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def _unready_since_s(metadata: Manifest, conditions: Mapping[str, Manifest]) -> float:
    """The newest of creation, scheduling and the last change of Ready: waiting for a node is not starting."""
    changes = [(conditions.get(kind) or {}).get("lastTransitionTime") for kind in ("PodScheduled", "Ready")]
    return max(_unix_s(timestamp) for timestamp in (metadata.get("creationTimestamp"), *changes))


def _unix_s(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def _number(text: str | None) -> float | None:
    """A number as we write it into an annotation; whatever else stands there is none."""
    return float(text) if text is not None and len(text) <= 20 and text.isdecimal() else None


def _gpus(spec: Manifest) -> int:
    requests = [(c.get("resources") or {}).get("requests") or {} for c in spec.get("containers") or ()]
    return sum(int(r.get(GPU_RESOURCE, 0)) for r in requests)


def _ended(container: Manifest) -> Manifest | None:
    """How a container last failed, if it did."""
    for state in (container.get("state"), container.get("lastState")):
        ended: Manifest | None = (state or {}).get("terminated")
        if ended is not None and ended.get("exitCode", 0) != 0:
            return ended
    return None


def _last_words(message: str) -> str:
    """The line of a termination message that says most: the last one, unless it only tells that it is over."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_CLOSING_LINES)]
    words = next(reversed(telling or lines), "")
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}..."


def _waiting(containers: list[Manifest]) -> tuple[str, str]:
    """The first wait that is a problem; PodInitializing and ContainerCreating are a container's turn."""
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason not in {"", "PodInitializing", "ContainerCreating"}:
            words = container.get("image", "") if "Image" in reason else waiting.get("message", "")
            return reason, words
    return "", ""
