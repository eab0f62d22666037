"""Pods, StatefulSets and nodes of the model cluster: their state, and how the API server would show them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.engine import GPU_RESOURCE
from sglpool.plan.surroundings import ObservedNode

LOADING_TICKS = 2
NODE_GPUS = 8
FULL = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


@dataclass
class ModelPod:
    name: str
    uid: str
    owner: str
    gpu_type: str
    revision: str
    good: bool
    node: str = ""
    ready: bool = False
    loading: int = LOADING_TICKS
    terminating: bool = False
    wedged: bool = False
    restarts: int = 0
    annotations: dict[str, str] = field(default_factory=dict)
    busy: bool = False
    patience: int = 0
    idle_ticks: int = 0
    marked_s: float = 0.0

    @property
    def ordinal(self) -> int:
        return names.ordinal_of(self.name)

    @property
    def draining(self) -> bool:
        return self.annotations.get(names.ANNOTATION_DRAINING) == "true"

    @property
    def serves(self) -> bool:
        unproven = self.annotations.get(names.ANNOTATION_UNPROVEN) == "true"
        return self.ready and not self.terminating and not unproven

    def manifest(self) -> Manifest:
        condition = {"type": "Ready", "status": str(self.ready)}
        scheduled = {"type": "PodScheduled", "status": str(bool(self.node)), "message": "" if self.node else FULL}
        waiting = {"waiting": {"reason": "ErrImagePull"}} if self.node and not self.good else {}
        owners = [{"kind": "StatefulSet", "uid": self.owner, "controller": True}] if self.owner else []
        return {
            "metadata": {
                "name": self.name,
                "uid": self.uid,
                "labels": {names.LABEL_GPU: self.gpu_type, "controller-revision-hash": self.revision},
                "ownerReferences": owners,
                "annotations": dict(self.annotations),
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if self.terminating else {}),
            },
            "spec": {"nodeName": self.node, "containers": [{"resources": {"requests": {GPU_RESOURCE: 4}}}]},
            "status": {
                "podIP": "10.0.0.1" if self.node else "",
                "conditions": [condition, scheduled],
                "containerStatuses": [{"state": waiting, "restartCount": self.restarts}],
            },
        }


@dataclass
class ModelStatefulSet:
    name: str
    uid: str
    metadata: Manifest
    spec: Manifest
    template: Manifest
    replicas: int
    partition: int = 0
    on_delete: bool = False
    replicas_owners: set[str] = field(default_factory=set)
    generation: int = 1
    observed_generation: int = 0
    current_revision: str = ""
    update_revision: str = ""
    record: dict[str, str] = field(default_factory=dict)

    @property
    def gpu_type(self) -> str:
        return str(self.metadata["labels"][names.LABEL_GPU])

    def manifest(self) -> Manifest:
        return {
            "metadata": {
                **self.metadata,
                "annotations": {**self.metadata.get("annotations", {}), **self.record},
                "uid": self.uid,
                "generation": self.generation,
                "managedFields": [{"manager": owner} for owner in self.replicas_owners],
            },
            "spec": {
                **self.spec,
                "replicas": self.replicas,
                "updateStrategy": {"type": "OnDelete"}
                if self.on_delete
                else {"type": "RollingUpdate", "rollingUpdate": {"partition": self.partition}},
            },
            "status": {
                "observedGeneration": self.observed_generation,
                "currentRevision": self.current_revision,
                "updateRevision": self.update_revision,
            },
        }


@dataclass
class ModelNode:
    name: str
    since_s: float
    ready: bool = True
    cordoned: bool = False
    gone: bool = False
    gpus: int = NODE_GPUS
    gpus_since_s: float = 0.0

    def view(self) -> ObservedNode:
        return ObservedNode(
            name=self.name,
            ready=self.ready,
            since_s=self.since_s,
            deleted=self.gone,
            unschedulable=self.cordoned,
            gpus=self.gpus,
            gpus_since_s=self.gpus_since_s,
        )
