"""A pod's status as a kubelet writes it, from the records of its containers. Pure functions.

Of the conditions only the kubelet's own are written; those of readiness gates are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.nodeagent.records import ContainerRecord, Running, State, Terminated, Waiting

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What a status says beside its containers.

    Attributes:
        pod_ip: The pod's address, from the moment it has one.
        host_ip: The node's address.
        start_time: When the agent took the pod on.
        prepared: Whether volumes and address are there, so that containers can start.
        over: Whether nothing of the pod will run any more: the phase is then a final one.
        failed_reason: Why the whole pod was ended early, such as DeadlineExceeded; empty if it was not.
        failed_message: The same as a sentence.
    """

    pod_ip: str
    host_ip: str
    start_time: datetime
    prepared: bool = False
    over: bool = False
    failed_reason: str = ""
    failed_message: str = ""


def pod_status(
    pod: Manifest, records: Sequence[ContainerRecord], facts: PodFacts, *, previous: Manifest, now: datetime
) -> Manifest:
    """The whole status.

    Args:
        pod: The newest manifest; conditions of readiness gates are read from its status.
        records: All containers in the order of the manifest.
        facts: The rest.
        previous: The status before, for transition times.
        now: Time of the conditions that change.
    """
    phase = pod_phase(pod, records, facts, previous=previous)
    status: Manifest = {
        "phase": phase,
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "startTime": rfc3339(facts.start_time),
        "qosClass": (pod.get("status") or {}).get("qosClass") or qos_class(pod["spec"]),
        "conditions": _conditions(pod, records, phase, prepared=facts.prepared, previous=previous, now=now),
        "containerStatuses": [_container_status(record) for record in records if record.role == "main"],
    }
    if generation := pod["metadata"].get("generation"):
        status["observedGeneration"] = generation
    if facts.prepared:
        status |= {"podIP": facts.pod_ip, "podIPs": [{"ip": facts.pod_ip}]}
    if any(record.role != "main" for record in records):
        status["initContainerStatuses"] = [_container_status(record) for record in records if record.role != "main"]
    if facts.over and facts.failed_reason:
        status |= {"reason": facts.failed_reason, "message": facts.failed_message}
    return status


def pod_phase(pod: Manifest, records: Sequence[ContainerRecord], facts: PodFacts, *, previous: Manifest) -> str:
    """The phase; a final one stays."""
    if (before := str(previous.get("phase", ""))) in FINISHED:
        return before
    mains = [record for record in records if record.role == "main"]
    if facts.over:
        succeeded = not facts.failed_reason and all(_exit_code(record.state) == 0 for record in mains)
        return "Succeeded" if succeeded else "Failed"
    if pod["spec"].get("restartPolicy") == "Never" and any(
        record.role == "init" and _exit_code(record.state) not in (0, None) for record in records
    ):
        return "Failed"
    pending = [record for record in records if record.role == "init" and _not_yet_run(record)]
    if not _any_main_began(records):
        pending += [record for record in records if record.role == "sidecar" and not record.started]
    if pending or any(isinstance(record.state, Waiting) and record.last is None for record in mains):
        return "Pending"
    # Everything has run: it runs, or it waits for its next run.
    return "Running"


def _not_yet_run(init: ContainerRecord) -> bool:
    """Whether an init container runs or has never run; one that waits for its next run says nothing of the phase."""
    return isinstance(init.state, Running) or (isinstance(init.state, Waiting) and init.last is None)


def _any_main_began(records: Sequence[ContainerRecord]) -> bool:
    return any(record.role == "main" and not isinstance(record.state, Waiting) for record in records)


def _through(record: ContainerRecord) -> bool:
    """Whether an init container lets the next one begin."""
    return record.started if record.role == "sidecar" else record.ready


def _exit_code(state: State) -> int | None:
    return state.exit_code if isinstance(state, Terminated) else None


def qos_class(spec: Manifest) -> str:
    """How the pod's requests and limits rank it when memory is short."""
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    resources = [container.get("resources") or {} for container in containers]
    asked = [
        {
            kind: {k: v for k, v in (r.get(kind) or {}).items() if k in ("cpu", "memory")}
            for kind in ("requests", "limits")
        }
        for r in resources
    ]
    if not any(a["requests"] or a["limits"] for a in asked):
        return "BestEffort"
    guaranteed = all(len(a["limits"]) == 2 and (a["requests"] or a["limits"]) == a["limits"] for a in asked)
    return "Guaranteed" if guaranteed else "Burstable"


# Conditions


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One condition without its times."""

    status: bool
    reason: str = ""
    message: str = ""


def _conditions(
    pod: Manifest,
    records: Sequence[ContainerRecord],
    phase: str,
    *,
    prepared: bool,
    previous: Manifest,
    now: datetime,
) -> list[Manifest]:
    containers_ready = _containers_ready(records, phase)
    verdicts = {
        "PodReadyToStartContainers": _Verdict(prepared and phase not in FINISHED),
        "Initialized": _initialized(records, phase),
        "Ready": _pod_ready(pod, containers_ready),
        "ContainersReady": containers_ready,
        "PodScheduled": _Verdict(True),
    }
    before = {condition["type"]: condition for condition in previous.get("conditions") or ()}
    conditions = []
    for type_, verdict in verdicts.items():
        status = "True" if verdict.status else "False"
        old = before.get(type_) or {}
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        conditions.append(
            {
                "type": type_,
                "status": status,
                "reason": verdict.reason,
                "message": verdict.message,
                "lastTransitionTime": since or rfc3339(now),
            }
        )
    return conditions


def _initialized(records: Sequence[ContainerRecord], phase: str) -> _Verdict:
    incomplete = [record.name for record in records if record.role != "main" and not _through(record)]
    if phase == "Succeeded":
        return _Verdict(True, "PodCompleted")
    if not incomplete or _any_main_began(records):
        return _Verdict(True)
    return _Verdict(False, "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]")


def _containers_ready(records: Sequence[ContainerRecord], phase: str) -> _Verdict:
    if phase == "Succeeded":
        return _Verdict(False, "PodCompleted")
    if phase == "Failed":
        return _Verdict(False, "PodFailed")
    unready = [record.name for record in records if record.role != "init" and not record.ready]
    if unready:
        return _Verdict(False, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    return _Verdict(True)


def _pod_ready(pod: Manifest, containers_ready: _Verdict) -> _Verdict:
    if not containers_ready.status:
        return containers_ready
    present = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or ()}
    closed = []
    for gate in pod["spec"].get("readinessGates") or ():
        type_ = gate["conditionType"]
        if type_ not in present:
            closed.append(f'corresponding condition of pod readiness gate "{type_}" does not exist.')
        elif present[type_] != "True":
            closed.append(f'the status of pod readiness gate "{type_}" is not "True", but {present[type_]}')
    return _Verdict(False, "ReadinessGatesNotReady", ", ".join(closed)) if closed else _Verdict(True)


# Containers


def _container_status(record: ContainerRecord) -> Manifest:
    status: Manifest = {
        "name": record.name,
        "image": record.image,
        "imageID": record.image_id,
        "ready": record.ready,
        "restartCount": record.restarts,
        "started": isinstance(record.state, Running) and record.started,
        "state": _state(record.state),
        "lastState": _state(record.last) if record.last else {},
    }
    if record.container_id:
        status["containerID"] = record.container_id
    return status


def _state(state: State) -> Manifest:
    if isinstance(state, Waiting):
        return {"waiting": {"reason": state.reason} | ({"message": state.message} if state.message else {})}
    if isinstance(state, Running):
        return {"running": {"startedAt": rfc3339(state.started_at)}}
    ended: Manifest = {
        "exitCode": state.exit_code,
        "reason": state.reason,
        "startedAt": rfc3339(state.started_at),
        "finishedAt": rfc3339(state.finished_at),
    }
    optional = {"signal": state.signal, "message": state.message, "containerID": state.container_id}
    return {"terminated": ended | {key: value for key, value in optional.items() if value}}


def rfc3339(moment: datetime) -> str:
    """A moment as the API writes it, in whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
