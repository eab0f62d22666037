"""Steps in words, as the log shows them. Not here: what users read, which are conditions and Events."""

from sglpool.plan import (
    AdoptStatefulSet,
    ApplyTemplate,
    CreateStatefulSet,
    DeleteChild,
    DeleteObject,
    EnsureChild,
    MarkPod,
    OrphanStatefulSet,
    RecordGate,
    RecreateStatefulSet,
    RestoreTemplate,
    Scale,
    StartGate,
    Step,
)


def phrase(step: Step) -> str:
    """A step as the log shows it."""
    match step:
        case CreateStatefulSet(manifest=m) | RecreateStatefulSet(manifest=m) | ApplyTemplate(manifest=m):
            what = f"{type(step).__name__} {m['metadata']['name']}"
        case EnsureChild(manifest=m):
            what = f"Apply {m['kind']} {m['metadata']['name']}"
        case DeleteObject(kind=kind, name=name) | DeleteChild(kind=kind, name=name):
            what = f"Delete {kind} {name}"
        case StartGate(manifest=m):
            what = f"Start Job {m['metadata']['name']}"
        case RecordGate(name=name, proven=proven, gated=gated):
            what = f"Record on {name} that {proven} is proven and {gated} under the gate"
        case Scale(name=name, replicas=replicas, partition=partition):
            what = f"Scale {name} to {replicas}, partition {partition}"
        case MarkPod(name=name, annotations=annotations):
            said = ", ".join(
                f"{key}={value}" if value is not None else f"no {key}" for key, value in annotations.items()
            )
            what = f"Mark {name} {said}"
        case RestoreTemplate(manifest=m, revision=revision):
            what = f"Put the template of {revision} back on {m['metadata']['name']}"
        case AdoptStatefulSet(name=name) | OrphanStatefulSet(name=name):
            what = f"{type(step).__name__} {name}"
    return f"{what} ({step.reason})"
