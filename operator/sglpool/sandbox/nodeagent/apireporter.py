"""What pod workers report, written to the API server: statuses, Events, the final delete."""

from __future__ import annotations

import datetime
import uuid
from urllib.parse import quote

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.nodeagent.api import AgentApi

_REPLACED = ("podIPs", "hostIPs")
_TAKEN_BACK = ("message", "reason")
_COMPONENT = "sandbox-node-agent"


class ApiReporter:
    """Implements the workers' `Reporter`. Every call raises `SandboxError` when it could not be done."""

    def __init__(self, api: AgentApi) -> None:
        """Write through `api`."""
        self._api = api

    async def status(self, pod: Manifest, status: Manifest) -> None:
        """Replace what the node says of a pod: its status, but not the scheduler's conditions.

        Raises:
            RequestRefused: With status 404 or 409 when the pod is gone, or another one has its name.
        """
        # Conditions are merged by type, so that the scheduler's stay. Addresses would be merged too: after a reboot
        # the pod had both. What is no longer said has to be taken back.
        lists = {key: [{"$patch": "replace"}, *status[key]] for key in _REPLACED if key in status}
        patch = {**dict.fromkeys(_TAKEN_BACK), **status, **lists}
        # The uid in a patch is a precondition: 409 when a new pod has the name.
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": patch}
        await self._api.patch(f"{_path(pod)}/status", body, strategic=True)

    async def event(self, pod: Manifest, type_: str, reason: str, message: str, container: str = "") -> None:
        """Record an Event about a pod, or about one of its containers."""
        now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = pod["metadata"]
        reference = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        }
        if container:
            reference["fieldPath"] = f"spec.containers{{{container}}}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": metadata["namespace"]},
            "involvedObject": reference,
            "type": type_,
            "reason": reason,
            "message": message[:1024],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": _COMPONENT, "host": pod["spec"].get("nodeName", "")},
            "reportingComponent": _COMPONENT,
        }
        await self._api.create(f"/api/v1/namespaces/{metadata['namespace']}/events", event)

    async def deleted(self, pod: Manifest) -> None:
        """Everything of the pod has ended: take its object away."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": pod["metadata"]["uid"]},
        }
        await self._api.delete(_path(pod), options)


def _path(pod: Manifest) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{quote(metadata['name'])}"
