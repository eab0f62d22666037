"""What should happen next to a pool, decided from what is: observed objects in, steps and a status out.

`make_plan` is the entry. Nothing here does I/O or knows the time; applying a plan is `controller.execute`.
"""

from sglpool.plan.drain import Leave, ReplicaLoad
from sglpool.plan.observed import Observed, ObservedDeployment, ObservedPod, ObservedStatefulSet, Refusal
from sglpool.plan.planner import Plan, make_plan
from sglpool.plan.steps import (
    AdoptStatefulSet,
    ApplyTemplate,
    CreateStatefulSet,
    DeleteChild,
    DeleteObject,
    Drained,
    EnsureChild,
    MarkPod,
    OrphanStatefulSet,
    RecordGate,
    RecreateStatefulSet,
    RestoreTemplate,
    Scale,
    StartGate,
    Step,
    old_template,
)

__all__ = [
    "AdoptStatefulSet",
    "ApplyTemplate",
    "CreateStatefulSet",
    "DeleteChild",
    "DeleteObject",
    "Drained",
    "EnsureChild",
    "Leave",
    "MarkPod",
    "Observed",
    "ObservedDeployment",
    "ObservedPod",
    "ObservedStatefulSet",
    "OrphanStatefulSet",
    "Plan",
    "RecordGate",
    "RecreateStatefulSet",
    "Refusal",
    "ReplicaLoad",
    "RestoreTemplate",
    "Scale",
    "StartGate",
    "Step",
    "make_plan",
    "old_template",
]
