"""Conditions: the closed table of types, statuses and reasons, and how a new list is merged into the old.

kstatus and the API conventions rule here: `Ready` sums up, `Reconciling` and `Stalled` are present only while True,
`lastTransitionTime` moves only when `status` flips, and messages hold no figure that ticks. Not here: when a
condition is true (`plan.conditions`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sglpool.api.base import Manifest

Status = Literal["True", "False", "Unknown"]

ABNORMAL = frozenset({"Reconciling", "Stalled"})
"""Types that are present only while True."""

PRESENT_ONLY: Mapping[str, str] = {
    "RouterReady": "where the pool has a router",
    "NodesReady": "where the operator cannot read nodes; where it can, a lost one shows in `Ready`",
    **dict.fromkeys(sorted(ABNORMAL), "while it is True"),
}
"""When types are there that are not always there."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One row of the table: what a reason of a condition means and what to do about it."""

    status: Status
    meaning: str


TABLE: Mapping[str, Mapping[str, Reason]] = {
    "Ready": {
        "Pending": Reason("Unknown", "The operator has not looked at this pool yet."),
        "AllReplicasReady": Reason("True", "Every wanted replica is ready on the current revision."),
        "Parked": Reason("True", "replicas is 0: nothing is wanted and nothing runs."),
        "ReplicasStarting": Reason("False", "Replicas load the model or warm up."),
        "RollingOut": Reason("False", "Replicas are being replaced by the current revision."),
        "GateRunning": Reason("False", "A new revision gets no traffic before it passes rollout.gate."),
        "GateFailed": Reason("False", "A new revision failed rollout.gate: its replica returns to the one before."),
        "RolloutPaused": Reason("False", "The roll-out is paused by annotation sglpool.io/rollout."),
        "RolloutAborted": Reason("False", "The roll-out is aborted: replicas run the revision before."),
        "RolloutUnknownWord": Reason("False", "Annotation sglpool.io/rollout says a word that means nothing."),
        "NodeLost": Reason("False", "A replica's node is gone or not ready: the replica comes back on another one."),
        "ImagePullFailed": Reason("False", "A replica's image cannot be pulled: correct engine.image."),
        "ContainerConfigError": Reason(
            "False", "A replica's container cannot be made, for example for want of a Secret."
        ),
        "CrashLoop": Reason("False", "A replica's container ends again and again: read its log."),
        "ProgressDeadlineExceeded": Reason("False", "A replica is not ready after engine.startupTimeout."),
        "InsufficientGPU": Reason("False", "Nodes of the type exist, but too few free GPUs on any one."),
        "InsufficientMemory": Reason("False", "Nodes have the GPUs free, but not the host memory or CPU."),
        "NoMatchingNodes": Reason("False", "No node of the type that the pods may run on."),
        "Unschedulable": Reason("False", "The scheduler found no node, for the reason in the message."),
        "PodsRefused": Reason("False", "The API server refuses the pods of a StatefulSet."),
        "PodSecurityRefused": Reason("False", "The namespace's Pod Security level refuses the pods."),
        "QuotaExceeded": Reason("False", "A ResourceQuota of the namespace refuses the pods."),
        "Infeasible": Reason("False", "The pool does not fit: condition Feasible says what would."),
        "UnknownProfile": Reason("False", "model.profile is not in the catalogue."),
        "UnknownGPUType": Reason("False", "A GPU type is not in the catalogue."),
        "NameConflict": Reason("False", "An object of that name belongs to somebody else."),
        "Forbidden": Reason("False", "The operator lacks a permission."),
        "InvalidSpec": Reason("False", "The API server refused an object that the spec asks for."),
        "RouterStarting": Reason("False", "Router pods start, or are being replaced."),
        "RouterStuck": Reason("False", "New router pods do not become ready; older ones still serve."),
        "RouterUnavailable": Reason("False", "The router has no ready pod."),
    },
    "Available": {
        "MinimumReplicasAvailable": Reason(
            "True", "At least one replica is ready. The message names those that are unhealthy all the same."
        ),
        "NoReplicaAvailable": Reason("False", "No replica is ready."),
        "RouterUnavailable": Reason("False", "Replicas are ready, but no router pod is."),
        "Parked": Reason("False", "replicas is 0."),
    },
    "Progressing": {
        "RollingOut": Reason("True", "Replicas are being replaced by the current revision."),
        "GateRunning": Reason("True", "A new revision is tested on one replica."),
        "RolloutPaused": Reason("False", "The roll-out is paused by annotation sglpool.io/rollout."),
        "RolloutAborted": Reason("False", "The roll-out is aborted: replicas run the revision before."),
        "ReplicasStarting": Reason("True", "Replicas load the model or warm up."),
        "ScalingDown": Reason("True", "Replicas beyond the wanted number are going away."),
        "RouterStarting": Reason("True", "Router pods start, or are being replaced."),
        "RouterStuck": Reason("False", "Router pods do not become ready: condition RouterReady says why."),
        "Complete": Reason("False", "Nothing is left to do."),
        "NodeLost": Reason("True", "A replica's node is gone or not ready: the replica comes back on another one."),
        "ImagePullFailed": Reason("False", "A replica's image cannot be pulled."),
        "ContainerConfigError": Reason(
            "False", "A replica's container cannot be made, for example for want of a Secret."
        ),
        "CrashLoop": Reason("False", "A replica's container ends again and again."),
        "ProgressDeadlineExceeded": Reason("False", "A replica is not ready after engine.startupTimeout."),
        "Unschedulable": Reason("False", "A replica waits for a node: condition Scheduled says why."),
        "PodsRefused": Reason("False", "The API server refuses the pods of a StatefulSet."),
        "Blocked": Reason("False", "The change is not carried out: condition Stalled says why."),
    },
    "Scheduled": {
        "AllPodsScheduled": Reason("True", "Every pod has a node."),
        "InsufficientGPU": Reason("False", "Nodes of the type exist, but too few free GPUs on any one."),
        "InsufficientMemory": Reason("False", "Nodes have the GPUs free, but not the host memory or CPU."),
        "NoMatchingNodes": Reason("False", "No node of the type that the pods may run on."),
        "Unschedulable": Reason("False", "The scheduler found no node, for the reason in the message."),
    },
    "Feasible": {
        "FitsHBM": Reason("True", "Weights, KV cache and host memory fit on every GPU type."),
        "WeightsExceedHBM": Reason("False", "The weights leave no GPU memory for KV cache."),
        "KVCapacityExceeded": Reason("False", "The KV cache cannot hold one full context, or the explicit target."),
        "HostMemoryExceeded": Reason("False", "HiCache needs more host memory than the node or the limit has."),
        "ContextExceedsModel": Reason("False", "model.contextLength is longer than the model was made for."),
        "HiCacheTooSmall": Reason("False", "kvCache.hiCache.size is under 1 GB a rank, which SGLang cannot express."),
        "GPUsPerNodeExceeded": Reason("False", "tensorParallelSize is more GPUs than one node of the type has."),
        "KVDtypeRefused": Reason("False", "The attention backend on this GPU does not take kvCache.dtype."),
        "UnknownProfile": Reason("Unknown", "model.profile is not in the catalogue."),
        "UnknownGPUType": Reason("Unknown", "A GPU type is not in the catalogue."),
    },
    "RouterReady": {
        "RouterAvailable": Reason("True", "A router pod is ready."),
        "RouterStarting": Reason("False", "The first router pods start."),
        "RouterUnavailable": Reason("False", "No router pod is ready."),
    },
    "NodesReady": {
        "NodesUnreadable": Reason(
            "Unknown", "Lost and cordoned nodes go unnoticed, and host memory is checked by the catalogue's figures."
        ),
    },
    "ScalingActive": {
        "Disabled": Reason("False", "The pool has fixed replicas."),
        "Pending": Reason("Unknown", "The load has not been read yet: the size is held, within its bounds."),
        "MetricsUnavailable": Reason(
            "False", "The routers' requests in flight cannot be read: the size is held, within its bounds."
        ),
        "ReplicasUnreadable": Reason("False", "Too few replicas can be read: the size is held, within its bounds."),
        "ClockJumped": Reason("False", "The operator's clock jumped: the size is held, within its bounds."),
        "InvalidTarget": Reason("False", "No replica can reach its target: correct the target or the bounds."),
        "ValidMetrics": Reason("True", "Load figures are fresh, the autoscaler may act."),
        "AtMaximum": Reason("True", "More replicas are needed than the bounds allow."),
        "NoRoom": Reason("True", "More replicas are needed, but no GPU type finds a node."),
        "StartsFail": Reason("True", "More replicas are needed, but they do not become ready."),
    },
    "Reconciling": {
        "RollingOut": Reason("True", "Replicas are being replaced by the current revision."),
        "GateRunning": Reason("True", "A new revision is tested on one replica."),
        "ReplicasStarting": Reason("True", "Replicas load the model or warm up after a change of the spec."),
        "ScalingDown": Reason("True", "Replicas beyond the wanted number are going away."),
        "RouterStarting": Reason("True", "Router pods start, or are being replaced, after a change of the spec."),
    },
    "Stalled": {
        "Infeasible": Reason("True", "The pool does not fit: condition Feasible says what would."),
        "UnknownProfile": Reason("True", "model.profile is not in the catalogue."),
        "UnknownGPUType": Reason("True", "A GPU type is not in the catalogue."),
        "NameConflict": Reason("True", "An object of that name belongs to somebody else: rename, or adopt it."),
        "Forbidden": Reason("True", "The operator lacks a permission: the message names verb and object."),
        "InvalidSpec": Reason("True", "The API server refused an object that the spec asks for."),
        "GateFailed": Reason("True", "A new revision failed rollout.gate: change the spec, or ask for another test."),
        "RolloutUnknownWord": Reason("True", "Annotation sglpool.io/rollout says a word that means nothing."),
        "PodSecurityRefused": Reason("True", "The namespace's Pod Security level refuses the pods."),
        "QuotaExceeded": Reason("True", "A ResourceQuota of the namespace refuses the pods."),
        "PodsRefused": Reason("True", "The API server refuses the pods of a StatefulSet."),
    },
}
"""Every condition type with every reason it can have. Docs are made from it; a test holds the planner to it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as decided now, without times.

    Attributes:
        type: A key of `TABLE`.
        reason: A key of that type's table; it also fixes the status.
        message: One or two sentences for the user.
    """

    type: str
    reason: str
    message: str

    @property
    def status(self) -> Status:
        """The status that belongs to the reason."""
        return TABLE[self.type][self.reason].status


def iso(now_s: float) -> str:
    """A timestamp as the API wants it: UTC, whole seconds."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge_conditions(
    *, old: Sequence[Manifest], new: Iterable[Condition], generation: int, now_s: float
) -> list[Manifest]:
    """The condition list to store, in the order of `new`.

    A condition whose status did not flip keeps its old transition time, so that writing the same facts twice gives
    the same list. Conditions that are not in `new` disappear.

    Args:
        old: `status.conditions` as stored.
        new: What holds now.
        generation: The generation that was looked at.
        now_s: Unix time for statuses that flipped.
    """
    stored = {c.get("type"): c for c in old}
    merged = []
    for condition in new:
        before = stored.get(condition.type)
        same = before is not None and before.get("status") == condition.status
        merged.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": before["lastTransitionTime"] if before and same else iso(now_s),
            }
        )
    return merged
