"""The nodes that this agent owns: their Ready condition, their leases, their power.

A Node object says everything: the agent's annotation makes it ours, the power annotation switches it off, the speed
annotation is the clock of what runs on it. A node that is off renews nothing and reports nothing, as a machine
without power. Not here: what runs on the nodes.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import platform
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sglpool import __version__
from sglpool.api.quantity import parse_bytes
from sglpool.catalog import GPUType, load_catalog
from sglpool.sandbox.apiserver import Manifest, RequestRefused
from sglpool.sandbox.controlplane import NODE_LEASE_S
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.addresses import KUBELET_PORT
from sglpool.sandbox.nodeagent.api import AgentApi
from sglpool.sandbox.nodeagent.logserver import LogServer
from sglpool.sandbox.nodes import (
    AGENT_ANNOTATION,
    GPU_RESOURCE,
    NODE_LEASES,
    NODES,
    POWER_ANNOTATION,
    POWER_OFF,
    SPEED_ANNOTATION,
    START_SPEED_ANNOTATION,
    micro_time,
)

RENEW_S = NODE_LEASE_S / 4
"""As a kubelet: a quarter of the lease's duration."""
_RETRY_S = 1.0
_log = logging.getLogger(__name__)
_PRODUCT_LABEL = "nvidia.com/gpu.product"
_VERSION = f"v{__version__}-sandbox"
_BOOT_ID = str(uuid.uuid4())
"""Another one for every agent: to its nodes, a new agent is a reboot."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node as its pods see it.

    Attributes:
        name: Node name.
        uid: Identity of the Node object: a node deleted and made anew is another machine.
        powered: False when it was switched off.
        speed: Model seconds per second of wall time.
        start_speed: The same while an engine starts, None where it does not differ.
        gpu: Its GPU type; None on a CPU node.
        gpus: GPUs that it has.
        memory_bytes: Memory that its pods may have together; None when its Node object does not say.
        ready: Whether the Node object says Ready.
    """

    name: str
    uid: str
    powered: bool
    speed: float
    start_speed: float | None
    gpu: GPUType | None
    gpus: int
    memory_bytes: int | None
    ready: bool

    def describe(self, pod: Manifest) -> dict[str, object]:
        """What a container of the pod finds in its `machine.json`: the node's hardware as far as it may use it."""
        metadata = pod["metadata"]
        limits = _limits(pod)
        return {
            "node": self.name,
            "accelerator": f"NVIDIA {self.gpu.name}" if self.gpu else "",
            "gpu_type": self.gpu.name if self.gpu else "",
            "gpu_memory_mib": self.gpu.memory_mib if self.gpu else 0,
            "gpus": min(self.gpus, sum(int(limit.get(GPU_RESOURCE, 0)) for limit in limits)),
            "memory_bytes": _memory_limit_bytes(limits) or self.memory_bytes,
            "speed": self.speed,
            "start_speed": self.start_speed,
            "pod": f"{metadata['namespace']}/{metadata['name']}",
        }


def _limits(pod: Manifest) -> list[Manifest]:
    return [(container.get("resources") or {}).get("limits") or {} for container in pod["spec"]["containers"]]


def _memory_limit_bytes(limits: list[Manifest]) -> int | None:
    """What a pod's containers may take together, those with GPUs where there are any; None when one has no limit."""
    counted = [limit for limit in limits if GPU_RESOURCE in limit] or limits
    if not all("memory" in limit for limit in counted):
        return None
    return sum(parse_bytes(limit["memory"]) for limit in counted)


def read_machine(node: Manifest) -> Machine | None:
    """The machine behind a Node object; None when another keeper owns it."""
    annotations = node["metadata"].get("annotations", {})
    if AGENT_ANNOTATION not in annotations:
        return None
    product = node["metadata"].get("labels", {}).get(_PRODUCT_LABEL, "")
    gpu = next((gpu for gpu in load_catalog().gpus if product in gpu.node_label_values), None)
    start_speed = annotations.get(START_SPEED_ANNOTATION)
    status = node.get("status", {})
    allocatable, conditions = status.get("allocatable", {}), status.get("conditions", [])
    return Machine(
        name=node["metadata"]["name"],
        uid=node["metadata"]["uid"],
        powered=annotations.get(POWER_ANNOTATION) != POWER_OFF,
        speed=float(annotations.get(SPEED_ANNOTATION, "1")),
        start_speed=None if start_speed is None else float(start_speed),
        gpu=gpu,
        gpus=int(allocatable.get(GPU_RESOURCE, 0)),
        memory_bytes=parse_bytes(allocatable["memory"]) if "memory" in allocatable else None,
        ready=any(item["type"] == "Ready" and item["status"] == "True" for item in conditions),
    )


class NodeKeeper:
    """Says for one powered node that it is alive, and serves its logs, until cancelled."""

    def __init__(self, api: AgentApi, machine: Machine, address: str, logs: LogServer) -> None:
        """Keep `machine`, whose logs are served under `address`."""
        self._api = api
        self._machine = machine
        self._address = address
        self._logs = logs

    async def run(self) -> None:
        """Report Ready, then renew the lease; an API server that is away is asked again."""
        async with self._logs.listening(self._address):
            await self._until_done(self.report_ready)
            while True:
                await self._until_done(self._renew)
                await asyncio.sleep(RENEW_S)

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await step()
            except SandboxError as error:
                _log.warning("node %s: %s", self._machine.name, error)
            await asyncio.sleep(_RETRY_S)

    async def report_ready(self) -> None:
        """Write the node's address and conditions.

        Raises:
            SandboxError: The API server refused, or is away.
        """
        now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
        conditions = [
            {"type": kind, "status": "False", "reason": f"KubeletHasNo{kind}", "message": f"no {kind}"}
            for kind in pressures
        ]
        conditions.append({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the agent runs"})
        status = {
            "conditions": [{**item, "lastHeartbeatTime": now, "lastTransitionTime": now} for item in conditions],
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._machine.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "nodeInfo": self._info(),
        }
        await self._api.patch(f"{NODES}/{self._machine.name}/status", {"status": status}, strategic=True)

    def _info(self) -> Manifest:
        """What `kubectl get nodes -o wide` shows; all fields are required."""
        return {
            "machineID": self._machine.uid,
            "systemUUID": self._machine.uid,
            "bootID": _BOOT_ID,
            "kernelVersion": platform.release(),
            "osImage": "sglpool sandbox",
            "operatingSystem": "linux",
            "architecture": "amd64",
            "containerRuntimeVersion": f"sandbox://{__version__}",
            "kubeletVersion": _VERSION,
            "kubeProxyVersion": "",
        }

    async def _renew(self) -> None:
        name = self._machine.name
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": NODE_LEASE_S,
            "renewTime": micro_time(datetime.datetime.now(tz=datetime.UTC)),
        }
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": self._machine.uid}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]},
            "spec": spec,
        }
        try:
            await self._api.patch(f"{NODE_LEASES}/{name}", {"spec": spec})
        except RequestRefused as error:
            if error.status != 404:
                raise
            await self._api.create(NODE_LEASES, lease)
