"""The steps of a plan: each one change to the cluster, with the reason for it.

Steps are values; `controller.execute` knows how to do them. Not here: when a step is due (`plan.planner`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from sglpool.api.base import Manifest
from sglpool.plan.observed import ObservedPod


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStatefulSet:
    """Create a StatefulSet with zero replicas; a `Scale` of the next stage gives it its size.

    Without the zero the API server would default to one, and a GPU pod would start before it was wanted.
    """

    manifest: Manifest
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyTemplate:
    """Apply template and metadata. The partition must already protect the pods."""

    manifest: Manifest
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What goes with replicas that a step takes away, as far as it was read.

    Attributes:
        pods: Their names.
        conversations: Conversations that were still at home there.
        warm_tokens: Tokens of context that those have to compute again.
        requests: Requests that were still under way.
        unread: Ready replicas of which nobody knew what they did.
    """

    pods: tuple[str, ...]
    conversations: int
    warm_tokens: int
    requests: int
    unread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Set replicas and the manner of the roll-out, the fields of the scale manager.

    Attributes:
        name: Name of the StatefulSet.
        replicas: Its size.
        partition: Lowest ordinal that may run the new revision.
        reason: Why.
        on_delete: Whether pods get the new revision when they are made anew, in any order; without a partition.
        drained: What goes with the replicas that it takes away, None if it takes none.
    """

    name: str
    replicas: int
    partition: int
    reason: str
    on_delete: bool = False
    drained: Drained | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPod:
    """Set annotations of one incarnation of a pod; None removes one."""

    name: str
    uid: str
    annotations: Mapping[str, str | None]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordGate:
    """Write on a StatefulSet which revision is proven, and which has to be: an apply of its own manager."""

    name: str
    proven: str
    gated: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTemplate:
    """Put the template of an earlier revision back, under the hashes of the spec, so that it stays.

    Attributes:
        manifest: The StatefulSet as the spec has it.
        revision: The one to put back.
        failed: The one that failed.
        reason: Why.
    """

    manifest: Manifest
    revision: str
    failed: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartGate:
    """Create the Job of a gate, unless it is there."""

    manifest: Manifest
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsureChild:
    """Apply a child that is no StatefulSet."""

    manifest: Manifest
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObject:
    """Delete one object, only if it still has that uid.

    Attributes:
        kind: Pod, StatefulSet or Job.
        name: Its name.
        uid: Its uid.
        reason: Why.
        grace_period_s: Seconds for a pod to end; None leaves the pod its own.
        drained: What goes with a replica, None if nothing is known of it.
    """

    kind: str
    name: str
    uid: str
    reason: str
    grace_period_s: int | None = None
    drained: Drained | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteChild:
    """Delete a shared child by its name, if it is the pool's."""

    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptStatefulSet:
    """Give pods and revisions of a StatefulSet that the user handed over the pool's labels, so that they are seen."""

    name: str
    uid: str
    selector: Mapping[str, str]
    labels: Mapping[str, str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanStatefulSet:
    """Delete a StatefulSet whose immutable fields must change, and leave its pods running."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecreateStatefulSet:
    """Create a StatefulSet around orphaned pods, with the template that they run.

    With the new template instead, every pod that is recreated before the roll-out would get it.
    """

    manifest: Manifest
    replicas: int
    revision: str
    reason: str


Step = (
    CreateStatefulSet
    | ApplyTemplate
    | Scale
    | MarkPod
    | RecordGate
    | RestoreTemplate
    | StartGate
    | EnsureChild
    | DeleteObject
    | DeleteChild
    | AdoptStatefulSet
    | OrphanStatefulSet
    | RecreateStatefulSet
)


def common_revision(pods: Sequence[ObservedPod]) -> str:
    """The revision that most pods run; of equals the one of the lowest ordinal, which a roll-out reaches last."""
    counts = Counter(pod.revision for pod in sorted(pods, key=lambda p: p.ordinal))
    return counts.most_common(1)[0][0] if counts else ""


def old_template(*, desired: Manifest, revisions: Iterable[Manifest], revision: str) -> Manifest:
    """The desired StatefulSet with the pod template of an old ControllerRevision.

    The labels of the selector are added, since a StatefulSet must match its own template. The spec hash is removed,
    so that the next plan rolls the new template out in the ordinary way.

    Args:
        desired: The StatefulSet as rendered now.
        revisions: ControllerRevisions of the orphaned pods.
        revision: Name of the one that the pods run.

    Returns:
        The manifest to create; the desired one unchanged if that revision is gone.
    """
    data = next((r["data"] for r in revisions if r["metadata"]["name"] == revision), None)
    if data is None:
        return desired
    manifest = deepcopy(desired)
    template = deepcopy(data["spec"]["template"])
    template.pop("$patch", None)
    metadata = template.setdefault("metadata", {})
    metadata.pop("creationTimestamp", None)
    metadata["labels"] = {**(metadata.get("labels") or {}), **desired["spec"]["selector"]["matchLabels"]}
    manifest["spec"]["template"] = template
    manifest["metadata"]["annotations"] = {}
    return manifest
