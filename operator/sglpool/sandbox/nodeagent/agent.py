"""The node agent: a small kubelet for the sandbox's nodes, whose pods are processes on this machine.

It watches nodes and pods, and has one worker for each pod that is bound to a powered node of its own. When it dies its
containers die with it, as on machines that lose power; a new agent brings the pods back, as after a reboot. Not here:
how a pod lives (`worker`) and how a container runs (`runtime`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.addresses import Addresses
from sglpool.sandbox.nodeagent.api import AgentApi, PodObjects, WatchEvent
from sglpool.sandbox.nodeagent.apireporter import ApiReporter
from sglpool.sandbox.nodeagent.logserver import LogServer
from sglpool.sandbox.nodeagent.machines import Machine, NodeKeeper, read_machine
from sglpool.sandbox.nodeagent.runtime import Runtime
from sglpool.sandbox.nodeagent.worker import PodWorker
from sglpool.sandbox.nodes import NODES

_log = logging.getLogger(__name__)
_PODS = "/api/v1/pods"
_FINISHED = ("Succeeded", "Failed")
_KILL_LIMIT_S = 10.0
_RESTART_S = 10.0


@dataclass(slots=True)
class _Pod:
    """A pod with its worker."""

    node: str
    worker: PodWorker
    task: asyncio.Task[None]


@dataclass(slots=True)
class _Node:
    """A node with its keeper and the keeper's task, None while it is off."""

    machine: Machine
    keeper: NodeKeeper | None = None
    task: asyncio.Task[None] | None = None
    # Pods that ran before the node lost power, or before this agent: they start again instead of anew.
    rebooted: set[str] = field(default_factory=set)


class Agent:
    """All nodes and pods of one sandbox."""

    def __init__(self, api: AgentApi, folder: Path, addresses: Addresses, logs: LogServer) -> None:
        """Keep the agent's nodes of `api`'s cluster; files lie under `folder`."""
        self._api = api
        self._logs = logs
        self._addresses = addresses
        self._reporter = ApiReporter(api)
        self._runtime = Runtime(folder, PodObjects(api), machine=self._describe, api_server=api.address)
        self._nodes: dict[str, _Node] = {}
        self._pods: dict[str, _Pod] = {}
        self._manifests: dict[str, Manifest] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Keep nodes and pods until cancelled; then every container is gone."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(NODES, self._on_node_event))
                # No field selector: a pod without a node is of no interest, but few, and a selector saves nothing.
                tasks.create_task(self._follow(_PODS, self._on_pod_event))
        finally:
            for name in list(self._nodes):
                self._power_off(name)
            if self._closing:
                await asyncio.wait(self._closing, timeout=_KILL_LIMIT_S)

    async def _follow(self, path: str, handle: Callable[[WatchEvent], Awaitable[None]]) -> None:
        async for event in self._api.watch(path):
            await handle(event)

    # Nodes

    async def _on_node_event(self, event: WatchEvent) -> None:
        if event.type == "SYNC":
            present = {node["metadata"]["name"] for node in event.objects}
            for name in set(self._nodes) - present:
                self._forget_node(name)
        for node in event.objects:
            if event.type == "DELETED":
                self._forget_node(node["metadata"]["name"])
            else:
                self._see_node(node)

    def _see_node(self, node: Manifest) -> None:
        machine = read_machine(node)
        if machine is None:
            return
        known = self._nodes.get(machine.name)
        if known and known.machine.uid != machine.uid:
            self._forget_node(machine.name)
            known = None
        if known is None:
            known = self._nodes[machine.name] = _Node(machine)
        known.machine = machine
        if not machine.powered:
            self._power_off(machine.name)
        elif known.keeper is None:
            self._power_on(known)
        elif not machine.ready:
            # Marked NotReady while we live, for example because this machine slept: say that it is back.
            self._close(asyncio.create_task(known.keeper.report_ready()))

    def _power_on(self, node: _Node) -> None:
        _log.info("node %s: on", node.machine.name)
        address = self._addresses.of_node(node.machine.name)
        node.keeper = NodeKeeper(self._api, node.machine, address, self._logs)
        node.task = asyncio.create_task(node.keeper.run())
        for uid, pod in self._manifests.items():
            if _node_of(pod) == node.machine.name and uid not in self._pods:
                self._start(node, pod)

    def _power_off(self, name: str) -> None:
        """As a power cut: nothing is reported, neither by the node nor by its pods."""
        node = self._nodes[name]
        if node.task is None:
            return
        _log.info("node %s: off", name)
        node.task.cancel()
        node.keeper = node.task = None
        for uid, pod in list(self._pods.items()):
            if pod.node == name:
                node.rebooted.add(uid)
                self._stop(uid)

    def _forget_node(self, name: str) -> None:
        if name in self._nodes:
            self._power_off(name)
            del self._nodes[name]
            self._addresses.forget_node(name)

    # Pods

    async def _on_pod_event(self, event: WatchEvent) -> None:
        if event.type == "SYNC":
            present = {pod["metadata"]["uid"] for pod in event.objects}
            for uid in set(self._manifests) - present:
                self._pod_gone(uid)
        for pod in event.objects:
            if event.type == "DELETED":
                self._pod_gone(pod["metadata"]["uid"])
            elif _node_of(pod):
                self._see_pod(pod)

    def _see_pod(self, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        self._manifests[uid] = pod
        running = self._pods.get(uid)
        if running:
            running.worker.update(pod)
            return
        node = self._nodes.get(_node_of(pod))
        if node and node.keeper:
            self._start(node, pod)

    def _start(self, node: _Node, pod: Manifest) -> None:
        uid, finished = pod["metadata"]["uid"], pod["status"].get("phase") in _FINISHED
        if finished and "deletionTimestamp" not in pod["metadata"]:
            return
        try:
            address = self._addresses.take(node.machine.name, uid)
        except SandboxError as error:
            _log.error("pod %s: %s", _key(pod), error)
            return
        # What has run before, under another agent or before a power cut, is a reboot to its containers.
        restarted = uid in node.rebooted or bool(pod["status"].get("containerStatuses"))
        node.rebooted.discard(uid)
        worker = PodWorker(
            pod,
            runtime=self._runtime,
            reporter=self._reporter,
            pod_ip=address,
            host_ip=self._addresses.of_node(node.machine.name),
            restarted=restarted,
        )
        task = asyncio.create_task(self._work(worker, pod))
        self._pods[uid] = _Pod(node.machine.name, worker, task)

    async def _work(self, worker: PodWorker, pod: Manifest) -> None:
        """Run a pod to its end; a fault of ours in one pod must not take the others along."""
        uid = pod["metadata"]["uid"]
        failed = False
        try:
            await worker.run()
        except Exception:
            _log.exception("pod %s: its worker failed; it starts again in %g s", _key(pod), _RESTART_S)
            failed = True
        finally:
            self._addresses.release(uid)
            if (running := self._pods.get(uid)) and running.worker is worker:
                del self._pods[uid]
        if failed:
            await asyncio.sleep(_RESTART_S)
            if uid in self._manifests and uid not in self._pods:
                self._see_pod(self._manifests[uid])

    def _stop(self, uid: str) -> asyncio.Task[None]:
        """Kill a pod's containers without a word; `_closing` knows the task until they are gone."""
        task = self._pods.pop(uid).task
        task.cancel()
        self._close(task)
        return task

    def _pod_gone(self, uid: str) -> None:
        """The object is gone: whatever still runs of it is killed, and its folders go."""
        for node in self._nodes.values():
            node.rebooted.discard(uid)
        ending = self._stop(uid) if uid in self._pods else None
        if pod := self._manifests.pop(uid, None):
            self._close(asyncio.create_task(self._clean(pod, ending)))

    async def _clean(self, pod: Manifest, ending: asyncio.Task[None] | None) -> None:
        """Remove a pod's folders once its worker has ended."""
        if ending:
            await asyncio.wait({ending}, timeout=_KILL_LIMIT_S)
        with contextlib.suppress(OSError):
            self._runtime.remove(pod)

    def _close(self, task: asyncio.Task[None]) -> None:
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _describe(self, pod: Manifest) -> dict[str, object]:
        return self._nodes[_node_of(pod)].machine.describe(pod)


def _node_of(pod: Manifest) -> str:
    name: str = pod["spec"].get("nodeName", "")
    return name


def _key(pod: Manifest) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
