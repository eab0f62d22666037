"""What a pod's life needs from outside, as protocols: a runtime, and a way to the API server.

Not an implementation of either: the runtime is bubblewrap's, the reporter is the agent's, and tests bring their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError


class PodGone(SandboxError):
    """The API server no longer has this pod: it was removed, or another one has its name."""


class Exit(Protocol):
    """How a container ended."""

    @property
    def code(self) -> int:
        """Its exit code; 128 and the signal's number when a signal ended it."""

    @property
    def signal(self) -> int:
        """The signal if the runtime tells it apart, else 0."""

    @property
    def reason(self) -> str:
        """Completed, Error, OOMKilled or ContainerCannotRun."""

    @property
    def message(self) -> str:
        """Its termination message."""

    @property
    def started_at(self) -> datetime:
        """When it started, UTC."""

    @property
    def finished_at(self) -> datetime:
        """When it ended, UTC."""


class ExecResult(Protocol):
    """What a command in a container did."""

    @property
    def code(self) -> int | None:
        """Its exit code, None when its time was up first."""

    @property
    def output(self) -> str:
        """What it wrote, bounded."""


class Container(Protocol):
    """One run of a container."""

    @property
    def id(self) -> str:
        """Its `containerID`, other in every run."""

    @property
    def image(self) -> str:
        """Its image as the status shows it."""

    @property
    def image_id(self) -> str:
        """Its `imageID`."""

    @property
    def started_at(self) -> datetime:
        """When it started, UTC."""

    @property
    def pid(self) -> int:
        """Its first process, as the machine numbers it."""

    async def wait(self) -> Exit:
        """Return once it has ended; may be called again."""

    def signal(self, number: int) -> None:
        """Signal its first process; that it has ended is fine."""

    def kill(self) -> None:
        """End all its processes at once; that it has ended is fine."""

    async def exec(self, command: Sequence[str], *, timeout_s: float) -> ExecResult:
        """Run a command in it."""


class Runtime(Protocol):
    """Makes pods' folders and starts their containers."""

    async def prepare(self, pod: Manifest, pod_ip: str) -> None:
        """Make the pod's folders and volumes.

        Raises:
            VolumeFailed: One cannot be made yet.
        """

    async def start(self, pod: Manifest, container: Manifest, *, attempt: int, pod_ip: str) -> Container:
        """Start a container; `attempt` counts its restarts.

        Raises:
            StartFailed: It does not run.
        """

    def remove(self, pod: Manifest) -> None:
        """Remove the pod's folders, all but its logs."""


class Reporter(Protocol):
    """Tells the API server about a pod. All methods raise OSError, SandboxError or PodGone."""

    async def status(self, pod: Manifest, status: Manifest) -> None:
        """Patch the pod's status, with a strategic merge: its conditions are the kubelet's own, not all there are.

        Every condition holds reason and message, maybe empty, so that the merge clears old ones.
        """

    async def event(self, pod: Manifest, type_: str, reason: str, message: str, container: str = "") -> None:
        """Write an event about the pod, or about one of its containers."""

    async def deleted(self, pod: Manifest) -> None:
        """Remove the pod: DELETE without grace, and only this uid."""
