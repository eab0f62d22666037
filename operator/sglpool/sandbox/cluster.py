"""A sandbox: one control plane in one folder, from its first process to the last file it leaves.

`up` returns when everything is Ready; the processes then live on their own until `down`. The folder is the
whole state: whoever has it can ask for the status or end it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sglpool.api.crd import build_crd
from sglpool.sandbox import binaries
from sglpool.sandbox.apiserver import ApiServer, RequestRefused
from sglpool.sandbox.certificates import certificates_in, create_certificates, write_kubeconfig
from sglpool.sandbox.controlplane import (
    AGENT_READY,
    NODE_AGENT,
    Layout,
    control_plane,
    free_ports,
    operator_process,
)
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.files import write_file
from sglpool.sandbox.nodes import CPU_NODE, NodeState, add_node, node_names, node_states
from sglpool.sandbox.processes import Process, ProcessTable

SETTLE_LIMIT_S = 90.0
"""For nodes to become Ready and the first ServiceAccount to appear, after every process serves."""
_POLL_S = 0.1
_STATE = "sandbox.json"
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferencepools.sglpool.io"
_POOLS = "/apis/sglpool.io/v1alpha1/inferencepools"
_OURS = ("run", "logs", "pki", "etcd", "apiserver", "controller-manager", "scheduler", "stages.yaml", "agent")


def quiet(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Status:
    """What `sandbox status` reports.

    Attributes:
        processes: Process id by name, 0 for one that has ended.
        versions: Version by program, as the binaries report it.
        server: Address of the API server.
        nodes: Every node, empty when the API server does not answer.
    """

    processes: Mapping[str, int]
    versions: Mapping[str, str]
    server: str
    nodes: list[NodeState]

    @property
    def running(self) -> bool:
        """Whether every process runs."""
        return bool(self.processes) and all(self.processes.values())


class Sandbox:
    """The control plane in `folder`, running or not."""

    def __init__(self, folder: Path) -> None:
        """Refer to a sandbox; nothing is read or started."""
        self.folder = folder.absolute()
        self._processes = ProcessTable(self.folder)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def kubectl(self) -> Path:
        """The kubectl that fits this control plane."""
        return Path(self._state()["binaries"]["kubectl"])

    @property
    def speed(self) -> float | None:
        """How many times faster than life its engines run; None when its pods are fake."""
        speed: float | None = self._state()["speed"]
        return speed

    @property
    def api(self) -> ApiServer:
        """Plain requests to the API server."""
        return ApiServer(self.kubeconfig)

    def up(
        self,
        nodes: Mapping[str, int],
        *,
        speed: float | None = None,
        start_speed: float | None = None,
        operator: bool = False,
        say: Callable[[str], None] = quiet,
    ) -> None:
        """Start everything and wait until it is Ready; on any failure or interrupt, leave nothing behind.

        Args:
            nodes: Number of nodes by type; a CPU node is added unless `CPU` is named.
            speed: Pods are processes on this machine, whose engines run so many times faster than life. None leaves
                the nodes to kwok, whose pods are fake.
            start_speed: How many times faster than life engines start, where that differs.
            operator: Install the CRD and run the operator too.
            say: Receives progress, a line at a time.

        Raises:
            SandboxError: The folder is taken, a binary cannot be had, or a process does not come up.
        """
        programs = binaries.ensure(say=say)
        self._claim_folder()
        try:
            self._start(programs, {**nodes, CPU_NODE: nodes.get(CPU_NODE, 1)}, speed, start_speed, say)
            if operator:
                say("starting the operator")
                self._start_operator()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End every process and remove every file of the sandbox; fine when there is none.

        Raises:
            SandboxError: A process cannot be ended.
        """
        if not (self.folder / _STATE).exists():
            return
        created = self._state().get("createdFolder", False)
        self._processes.stop_all()
        for name in _OURS:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.kubeconfig.unlink(missing_ok=True)
        (self.folder / _STATE).unlink()
        if created and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def status(self) -> Status:
        """What runs.

        Raises:
            SandboxError: There is no sandbox in the folder.
        """
        state = self._state()
        alive = {
            name: self._processes.pid(name) if self._processes.alive(name) else 0 for name in self._processes.names()
        }
        try:
            nodes = node_states(self.api)
        except SandboxError:
            nodes = []
        return Status(processes=alive, versions=state.get("versions", {}), server=state.get("server", ""), nodes=nodes)

    def _claim_folder(self) -> None:
        created = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with (self.folder / _STATE).open("x") as file:
                json.dump({"createdFolder": created}, file)
        except FileExistsError:
            raise SandboxError(
                f"there is a sandbox in {self.folder} already; end it with `sglpool sandbox down --dir "
                f"{self.folder}`, or choose another --dir"
            ) from None

    def restart(self, names: Sequence[str] = (), *, say: Callable[[str], None] = quiet) -> None:
        """Start processes of the sandbox again, also after this machine itself was restarted.

        Args:
            names: Which ones, ended or not; without names, all that have ended.
            say: Receives progress, a line at a time.

        Raises:
            SandboxError: There is no sandbox or no such process, or one does not come up.
        """
        processes = self._all_processes()
        known = [process.name for process in processes]
        if unknown := [name for name in names if name not in known]:
            raise SandboxError(f"there is no process {', '.join(unknown)} in the sandbox; it has {', '.join(known)}")
        for process in processes:
            if process.name in names or not (names or self._processes.alive(process.name)):
                say(f"starting {process.name}")
                self._processes.stop(process.name)
                if process.name == NODE_AGENT:
                    # One that was killed leaves it behind.
                    (self.folder / AGENT_READY).unlink(missing_ok=True)
                self._processes.start(process)
                self._processes.wait_ready(process)

    def _all_processes(self) -> list[Process]:
        """Every process that was started, in the order of their start."""
        state = self._state()
        if "binaries" not in state:
            raise SandboxError(
                f"the sandbox in {self.folder} was never complete; end it with `sglpool sandbox down --dir "
                f"{self.folder}` and start a new one"
            )
        layout = Layout(
            root=self.folder,
            binaries={name: Path(path) for name, path in state["binaries"].items()},
            ports=state["ports"],
            certificates=certificates_in(self.folder / "pki"),
        )
        processes = control_plane(layout, agent=state["speed"] is not None)
        if state.get("operator"):
            processes.append(self._operator_process(port=layout.ports["operator"]))
        return processes

    def _operator_process(self, *, port: int) -> Process:
        return operator_process(self.folder, port=port, speed=max(1.0, self.speed or 1.0))

    def _start_operator(self) -> None:
        """Install the CRD and run the operator as one more process of this sandbox."""
        self.api.apply(_CRD, build_crd())
        _wait_until(lambda: self._lacks(_POOLS), limit_s=SETTLE_LIMIT_S)
        self._write_state(self._state() | {"operator": True})
        process = self._operator_process(port=self._state()["ports"]["operator"])
        self._processes.start(process)
        self._processes.wait_ready(process)

    def _lacks(self, path: str) -> str:
        try:
            self.api.get(path)
        except RequestRefused as error:
            return f"{path}: {error}"
        return ""

    def _start(
        self,
        programs: Mapping[str, Path],
        nodes: Mapping[str, int],
        speed: float | None,
        start_speed: float | None,
        say: Callable[[str], None],
    ) -> None:
        layout = Layout(
            root=self.folder,
            binaries=programs,
            ports=free_ports(),
            certificates=create_certificates(self.folder / "pki"),
        )
        write_kubeconfig(layout.kubeconfig, server=layout.server, certificates=layout.certificates)
        (self.folder / "stages.yaml").write_text(stage_documents())
        etcd, api_server, *others = control_plane(layout, agent=speed is not None)
        for process in (etcd, api_server):
            say(f"starting {process.name}")
            self._processes.start(process)
            self._processes.wait_ready(process)
        say(f"starting {', '.join(process.name for process in others)}")
        for process in others:
            self._processes.start(process)
        api = self.api
        for name in node_names(nodes):
            add_node(api, name, speed=speed, start_speed=start_speed)
        self._record(layout, nodes, speed)
        for process in others:
            self._processes.wait_ready(process)
        say("waiting for the nodes")
        _wait_until(lambda: _unsettled(api, expected=sum(nodes.values())), limit_s=SETTLE_LIMIT_S)

    def _record(self, layout: Layout, nodes: Mapping[str, int], speed: float | None) -> None:
        state = self._state() | {
            "server": layout.server,
            "kubeconfig": str(layout.kubeconfig),
            "ports": dict(layout.ports),
            "binaries": {name: str(path) for name, path in layout.binaries.items()},
            "versions": {name: binaries.version_of(name, path) for name, path in layout.binaries.items()},
            "nodes": dict(nodes),
            "speed": speed,
        }
        self._write_state(state)

    def _write_state(self, state: Mapping[str, Any]) -> None:
        write_file(self.folder / _STATE, json.dumps(state, indent=2).encode() + b"\n")

    def _state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.folder / _STATE).read_text())
        except FileNotFoundError:
            raise SandboxError(f"there is no sandbox in {self.folder}; start one with `sglpool sandbox up`") from None
        return state


def stage_documents() -> str:
    """The behaviour of fake nodes and pods as one kwok configuration."""
    folder = resources.files("sglpool.sandbox") / "stages"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return "\n---\n".join((folder / name).read_text() for name in names)


def _wait_until(lacks: Callable[[], str], *, limit_s: float) -> None:
    """Poll until nothing is lacking."""
    deadline = time.monotonic() + limit_s
    while waiting_for := lacks():
        if time.monotonic() > deadline:
            raise SandboxError(f"after {limit_s:.0f} s still waiting for {waiting_for}")
        time.sleep(_POLL_S)


def _unsettled(api: ApiServer, *, expected: int) -> str:
    states = node_states(api)
    usable = [node for node in states if node.ready and node.schedulable]
    if len(usable) < expected:
        return f"nodes: {len(usable)} of {expected} usable"
    try:
        api.get("/api/v1/namespaces/default/serviceaccounts/default")
    except RequestRefused:
        return "the default ServiceAccount"
    return ""
