"""What the runtime needs from outside, and how it says that something cannot be done.

Not here: who implements it. The API server's side is in `api`, images are in `sglpool.sandbox.images`.
"""

from __future__ import annotations

from typing import Protocol

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError


class StartFailed(SandboxError):
    """A container could not be started.

    Attributes:
        reason: As a kubelet shows it: `ErrImagePull`, `CreateContainerConfigError`, `CreateContainerError` or
            `RunContainerError`.
        message: What was wrong, in a kubelet's words where it has some.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class VolumeFailed(SandboxError):
    """A volume cannot be provided (yet): the text of a `FailedMount` event."""


class Objects(Protocol):
    """The API objects that pods mount and read."""

    async def get_config_map(self, namespace: str, name: str) -> Manifest | None:
        """A ConfigMap; None when there is none."""
        ...

    async def get_secret(self, namespace: str, name: str) -> Manifest | None:
        """A Secret; None when there is none."""
        ...

    async def token(self, namespace: str, service_account: str, audience: str, expiry_s: int, pod: Manifest) -> str:
        """A token of a ServiceAccount, bound to the pod; an empty audience is the API server's own."""
        ...
