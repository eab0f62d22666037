"""Nodes: what the scheduler sees of an 8-GPU machine; and how to stop, start and delete one.

Who keeps a node is written on it: the node agent, whose pods are processes on this machine, or kwok, whose pods are
fake. The agent's node is stopped by an annotation that cuts its power. kwok's is stopped by taking its lease away, as
if its kubelet had died. Either way the controller manager marks it NotReady when the grace period is over.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sglpool.sandbox.apiserver import ApiServer, Manifest
from sglpool.sandbox.errors import SandboxError

KWOK_ANNOTATION = "kwok.x-k8s.io/node"
AGENT_ANNOTATION = "sandbox.sglpool.io/agent"
"""On a node that the node agent keeps."""
SPEED_ANNOTATION = "sandbox.sglpool.io/speed"
"""Model seconds per second of wall time for what runs on the node."""
START_SPEED_ANNOTATION = "sandbox.sglpool.io/start-speed"
"""The same for the starts of engines, where it differs."""
POWER_ANNOTATION = "sandbox.sglpool.io/power"
POWER_OFF = "off"
GPUS_PER_NODE = 8
GPU_RESOURCE = "nvidia.com/gpu"
CPU_NODE = "CPU"
LOST_HOLDER = "sandbox-lost-node"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODES = "/api/v1/nodes"
_TEN_YEARS_S = 10 * 365 * 86400
_LARGEST_SUBNET = 254


@dataclass(frozen=True, slots=True)
class NodeType:
    """What a kind of node offers to pods.

    Attributes:
        product: Value of the GPU operator's label `nvidia.com/gpu.product`, empty without GPUs.
        instance_type: Value of `node.kubernetes.io/instance-type`.
        cpu: Allocatable cores.
        memory: Allocatable memory, a Kubernetes quantity.
        subnet: Second byte of its pods' addresses, 10.<subnet>.<node>.0/24.
    """

    product: str
    instance_type: str
    cpu: int
    memory: str
    subnet: int


NODE_TYPES: Mapping[str, NodeType] = {
    "B200": NodeType("NVIDIA-B200", "fake-8xb200", cpu=192, memory="2Ti", subnet=200),
    "B300": NodeType("NVIDIA-B300-SXM6-AC", "fake-8xb300", cpu=192, memory="4Ti", subnet=201),
    "H200": NodeType("NVIDIA-H200", "fake-8xh200", cpu=192, memory="2Ti", subnet=202),
    CPU_NODE: NodeType("", "fake-cpu", cpu=64, memory="256Gi", subnet=203),
}


def parse_nodes(text: str) -> dict[str, int]:
    """Read `B200=4,B300=2`.

    Raises:
        SandboxError: An unknown type, or a count that is not a number from 0 to 254.
    """
    nodes: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\w+)=(\d+)", item)
        if not match or match[1].upper() not in NODE_TYPES or int(match[2]) > _LARGEST_SUBNET:
            raise SandboxError(
                f"--nodes {text}: {item!r} is not TYPE=COUNT with a type of {', '.join(NODE_TYPES)} "
                f"and a count up to {_LARGEST_SUBNET}, as in B200=4,B300=2"
            )
        nodes[match[1].upper()] = int(match[2])
    return nodes


def node_names(nodes: Mapping[str, int]) -> list[str]:
    """The names of all nodes of a sandbox: `b200-0`, `b200-1` and so on."""
    return [f"{kind.lower()}-{index}" for kind, count in nodes.items() for index in range(count)]


def node_manifest(name: str, *, speed: float | None = None, start_speed: float | None = None) -> Manifest:
    """A Node whose type and number are read from its name, such as `b200-0`.

    Args:
        name: Type and number.
        speed: The clock of the node agent, which then keeps the node; None leaves it to kwok.
        start_speed: That of engines that start; None for the same.

    Raises:
        SandboxError: The name does not say a known type and a number.
    """
    kind, _, number = name.rpartition("-")
    node_type = NODE_TYPES.get(kind.upper())
    if node_type is None or not number.isdigit() or int(number) > _LARGEST_SUBNET:
        raise SandboxError(f"node {name!r}: a name is a type and a number, such as b200-0")
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": node_type.instance_type,
    }
    resources = {
        "cpu": str(node_type.cpu),
        "memory": node_type.memory,
        "ephemeral-storage": "4Ti",
        "pods": "110",
    }
    keeper = {KWOK_ANNOTATION: "fake"}
    if speed is not None:
        keeper = {AGENT_ANNOTATION: "true", SPEED_ANNOTATION: f"{speed:g}"}
        if start_speed is not None:
            keeper[START_SPEED_ANNOTATION] = f"{start_speed:g}"
    pod_cidr = f"10.{node_type.subnet}.{number}.0/24"
    spec: Manifest = {"podCIDR": pod_cidr, "podCIDRs": [pod_cidr]}
    if node_type.product:
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": node_type.product,
            "nvidia.com/gpu.count": str(GPUS_PER_NODE),
        }
        resources[GPU_RESOURCE] = str(GPUS_PER_NODE)
        spec["taints"] = [{"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": keeper},
        "spec": spec,
        "status": {"allocatable": resources, "capacity": resources},
    }


def add_node(api: ApiServer, name: str, *, speed: float | None = None, start_speed: float | None = None) -> None:
    """Create a node; its keeper makes it Ready within a second or two. The speeds are those of `node_manifest`."""
    api.create(NODES, node_manifest(name, speed=speed, start_speed=start_speed))


def delete_node(api: ApiServer, name: str) -> None:
    """Delete the Node object, as when a machine leaves the cluster; its pods are collected.

    Raises:
        SandboxError: There is no such node.
    """
    api.get(f"{NODES}/{name}")
    api.delete(f"{NODES}/{name}")


def cordon_node(api: ApiServer, name: str, *, unschedulable: bool = True) -> None:
    """Keep new pods off a node, or let them on again."""
    api.patch(f"{NODES}/{name}", {"spec": {"unschedulable": unschedulable}})


def stop_node(api: ApiServer, name: str) -> None:
    """Cut a node's power: its processes are gone at once, and it is NotReady after the grace period."""
    if not _kept_by_agent(api, name):
        # A last renewal: the controller manager insists that the lease it last saw renewed is still the live one.
        lease = {
            "holderIdentity": LOST_HOLDER,
            "leaseDurationSeconds": _TEN_YEARS_S,
            "renewTime": micro_time(datetime.datetime.now(tz=datetime.UTC)),
        }
        api.patch(f"{NODE_LEASES}/{name}", {"spec": lease})
        return
    api.patch(f"{NODES}/{name}", {"metadata": {"annotations": {POWER_ANNOTATION: POWER_OFF}}})


def start_node(api: ApiServer, name: str) -> None:
    """Bring a stopped node back; what was bound to it starts again, as after a reboot."""
    if not _kept_by_agent(api, name):
        # kwok takes an expired lease again within its renewal period.
        long_ago = micro_time(datetime.datetime.fromtimestamp(0, tz=datetime.UTC))
        api.patch(f"{NODE_LEASES}/{name}", {"spec": {"leaseDurationSeconds": 1, "renewTime": long_ago}})
        return
    api.patch(f"{NODES}/{name}", {"metadata": {"annotations": {POWER_ANNOTATION: None}}})


def _kept_by_agent(api: ApiServer, name: str) -> bool:
    return AGENT_ANNOTATION in api.get(f"{NODES}/{name}")["metadata"].get("annotations", {})


def micro_time(moment: datetime.datetime) -> str:
    """A time as leases hold it."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node as `sandbox nodes` shows it.

    Attributes:
        name: Node name.
        product: GPU product label, empty on a CPU node.
        ready: Whether it is Ready.
        schedulable: False when cordoned or still tainted as not ready.
        gpus: Allocatable GPUs.
        gpus_requested: GPUs of the pods bound to it that have not ended.
        speed: The clock of a node whose pods are processes; None where they are fake.
    """

    name: str
    product: str
    ready: bool
    schedulable: bool
    gpus: int
    gpus_requested: int
    speed: float | None


def node_states(api: ApiServer) -> list[NodeState]:
    """Every node with its condition and the GPUs taken on it."""
    requested: dict[str, int] = {}
    for pod in api.get("/api/v1/pods")["items"]:
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            node = pod["spec"].get("nodeName", "")
            requested[node] = requested.get(node, 0) + _gpus_of(pod)
    return [_state(node, requested) for node in api.get(NODES)["items"]]


def _state(node: Manifest, requested: Mapping[str, int]) -> NodeState:
    name = node["metadata"]["name"]
    conditions = {item["type"]: item["status"] for item in node["status"].get("conditions", [])}
    taints = [taint["key"] for taint in node["spec"].get("taints", [])]
    blocked = node["spec"].get("unschedulable", False) or any(key.startswith("node.k") for key in taints)
    speed = node["metadata"].get("annotations", {}).get(SPEED_ANNOTATION)
    return NodeState(
        name=name,
        product=node["metadata"].get("labels", {}).get("nvidia.com/gpu.product", ""),
        ready=conditions.get("Ready") == "True",
        schedulable=not blocked,
        gpus=int(node["status"].get("allocatable", {}).get(GPU_RESOURCE, 0)),
        gpus_requested=requested.get(name, 0),
        speed=float(speed) if speed else None,
    )


def _gpus_of(pod: Manifest) -> int:
    containers = pod["spec"].get("containers", [])
    return sum(int(c.get("resources", {}).get("requests", {}).get(GPU_RESOURCE, 0)) for c in containers)
