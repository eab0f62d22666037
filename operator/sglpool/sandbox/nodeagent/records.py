"""What is known of a pod's containers: their states, and how a record goes on from the status in the API server.

Plain data without a clock: who moves the states is in `containers`, what the API server gets to see in `podstatus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from sglpool.sandbox.apiserver import Manifest

Role = Literal["init", "sidecar", "main"]

UNKNOWN_EXIT_CODE = 255
"""What a runtime reports of containers that were gone when it came back."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running now, but to be."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Its first process runs."""

    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """Ended; as the API names the fields."""

    exit_code: int
    reason: str
    started_at: datetime
    finished_at: datetime
    signal: int = 0
    message: str = ""
    container_id: str = ""


State: TypeAlias = Waiting | Running | Terminated


@dataclass(slots=True, kw_only=True)
class ContainerRecord:
    """One container over all its runs.

    Attributes:
        name: Its name in the pod.
        role: Init container, init container that runs beside the others, or one of `spec.containers`.
        image: Image of the last run, before the first that of the manifest.
        state: As shown.
        last: How the run before ended, None before the first end.
        restarts: `restartCount`, the number of the present run.
        ran: Whether it ran at all, so that the next run is a restart.
        started: Whether it runs and its startup probe is passed.
        probed_ready: Whether it runs and its readiness probe is passed.
        image_id: `imageID`.
        container_id: `containerID` of the last run.
    """

    name: str
    role: Role
    image: str
    state: State
    last: Terminated | None = None
    restarts: int = 0
    ran: bool = False
    started: bool = False
    probed_ready: bool = False
    image_id: str = ""
    container_id: str = ""

    @property
    def ready(self) -> bool:
        """An init container is ready when it is through, any other while its readiness probe says so."""
        if self.role == "init":
            return isinstance(self.state, Terminated) and self.state.exit_code == 0
        return isinstance(self.state, Running) and self.started and self.probed_ready


def records_of(pod: Manifest, *, now: datetime) -> list[ContainerRecord]:
    """Records of all containers, init containers first, going on from the pod's status.

    Whatever runs there runs no longer: a record is made when an agent takes a pod over, and with the agent before it
    went its containers. What ended for good stays ended; the rest is to run again.
    """
    spec, status = pod["spec"], pod.get("status") or {}
    known = {
        entry["name"]: entry
        for entry in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    }
    policy = spec.get("restartPolicy", "Always")
    turn = Waiting("PodInitializing" if spec.get("initContainers") else "ContainerCreating")
    records = []
    for container, role in containers_of(spec):
        record = ContainerRecord(name=container["name"], role=role, image=container["image"], state=turn)
        if entry := known.get(record.name):
            _go_on(record, entry, policy=policy, now=now)
        records.append(record)
    return records


def containers_of(spec: Manifest) -> list[tuple[Manifest, Role]]:
    """All containers of a pod with their roles, in the order of their start."""
    containers: list[tuple[Manifest, Role]] = [
        (container, "sidecar" if container.get("restartPolicy") == "Always" else "init")
        for container in spec.get("initContainers") or ()
    ]
    return containers + [(container, "main") for container in spec["containers"]]


def _go_on(record: ContainerRecord, entry: Mapping[str, Any], *, policy: str, now: datetime) -> None:
    record.restarts = entry.get("restartCount", 0)
    record.ran = bool(entry.get("containerID"))
    record.image_id = entry.get("imageID", "")
    record.container_id = entry.get("containerID", "")
    ended = _ended(entry, now=now)
    if ended is None:
        return
    if entry.get("state", {}).get("waiting") is None and _for_good(record.role, ended, policy):
        record.state = ended
        last = entry.get("lastState", {}).get("terminated")
        record.last = _read(last) if last else None
    else:
        record.last = ended


def _for_good(role: Role, ended: Terminated, policy: str) -> bool:
    """Whether a container that ended does not run again although its pod starts anew."""
    if role == "sidecar":
        return False
    if policy == "Never":
        return True
    return role == "main" and policy == "OnFailure" and ended.exit_code == 0


def _ended(entry: Mapping[str, Any], *, now: datetime) -> Terminated | None:
    """How the last run ended; one that seems to run has ended with its agent."""
    state = entry.get("state") or {}
    if running := state.get("running"):
        return Terminated(
            exit_code=UNKNOWN_EXIT_CODE,
            reason="Unknown",
            started_at=_parse(running.get("startedAt")),
            finished_at=now,
            container_id=entry.get("containerID", ""),
        )
    ended = state.get("terminated") or (entry.get("lastState") or {}).get("terminated")
    return _read(ended) if ended else None


def _read(ended: Mapping[str, Any]) -> Terminated:
    return Terminated(
        exit_code=ended["exitCode"],
        reason=ended.get("reason", ""),
        started_at=_parse(ended.get("startedAt")),
        finished_at=_parse(ended.get("finishedAt")),
        signal=ended.get("signal", 0),
        message=ended.get("message", ""),
        container_id=ended.get("containerID", ""),
    )


def _parse(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
