"""One router pod as tests see it: its processes, its picker's endpoint and its Envoy's admin.

Not here: the pool that it serves (`routed_pool`).
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sandbox.cluster.engines import processes_of
from sglpool.routing.pickerconfig import ADMIN_SOCKET, AUTHZ_SOCKET, CLUSTER_NAME, HOMES_FILE, SHARED_DIR
from support.envoy_process import UnixConnection
from support.streaming import send

Json = dict[str, Any]


@dataclass(frozen=True)
class RouterPod:
    """One router pod: how to reach it and its processes."""

    manifest: Json

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def ip(self) -> str:
        return str(self.manifest["status"]["podIP"])

    @property
    def address(self) -> str:
        """Of the serving API."""
        return f"{self.ip}:8000"

    @property
    def ready_since(self) -> str:
        """When it became ready, and how often its containers have been started anew; empty while it is not ready."""
        status = self.manifest["status"]
        restarts = [container["restartCount"] for container in status["containerStatuses"]]
        since = [
            each["lastTransitionTime"]
            for each in status["conditions"]
            if (each["type"], each["status"]) == ("Ready", "True")
        ]
        return f"{since[0]}, restarts {restarts}" if since else ""

    @property
    def shared(self) -> Path:
        """The folder that Envoy and picker share, as Envoy sees it."""
        return Path(f"/proc/{self.envoy().pid}/root{SHARED_DIR}")

    def supervisor(self) -> psutil.Process:
        """PID 1 of the picker's container."""
        return min(self._processes("picker"), key=lambda process: process.create_time())

    def picker(self) -> psutil.Process:
        """The picker itself: the child of its supervisor."""
        supervisor = self.supervisor()
        return next(process for process in self._processes("picker") if process.ppid() == supervisor.pid)

    def envoy(self) -> psutil.Process:
        return self._processes("envoy")[0]

    def _processes(self, word: str) -> list[psutil.Process]:
        metadata = self.manifest["metadata"]
        found = [
            process
            for process in processes_of(metadata["namespace"], metadata["name"])
            if any(part == word or part.endswith(f"/{word}") for part in _command(process))
        ]
        if not found:
            raise LookupError(f"router pod {self.name} runs no {word}")
        return found

    def state(self) -> Json:
        """What its picker knows."""
        state: Json = send(f"{self.ip}:9000", "/state", timeout_s=5).json()
        return state

    def replica(self, pod: str) -> Json:
        """The same of one replica, {} while it is unknown."""
        return next((replica for replica in self.state()["replicas"] if replica["pod"] == pod), {})

    def usable(self) -> int:
        """Replicas that may take new conversations."""
        return sum(1 for each in self.state()["replicas"] if each["healthy"] and not each["draining"])

    def in_flight(self) -> int:
        """Requests that have a slot."""
        return int(self.state()["in_flight"])

    def decisions(self) -> dict[str, float]:
        """Picks by the rule that decided."""
        text = send(f"{self.ip}:9000", "/metrics", timeout_s=2).body.decode()
        found = re.findall(r'^sglpool_router_decisions_total{rule="(\w+)"} (\S+)$', text, re.MULTILINE)
        return {rule: float(count) for rule, count in found}

    def picks(self) -> bool:
        """Whether its picker is there to be asked: a socket that a dead one left behind takes nobody."""
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError, LookupError):
            probe.settimeout(1)
            probe.connect(str(self.shared / AUTHZ_SOCKET))
            return True
        return False

    def has_store(self) -> bool:
        """Whether it shares homes; true where it has nobody to share them with."""
        store = self.state()["store"]
        return bool(store["available"]) or not store["configured"]

    def homes(self) -> dict[str, str]:
        """Replica by session, both as the picker names them."""
        return _homes(send(f"{self.ip}:9000", "/homes", timeout_s=5).body)

    def homes_on_file(self) -> dict[str, str]:
        """The same as its last snapshot says."""
        path = self.shared / HOMES_FILE
        return _homes(path.read_bytes()) if path.exists() else {}

    def hosts(self) -> dict[str, bool]:
        """Replicas that Envoy knows by address, and whether its own choice may take them."""
        connection = UnixConnection(str(self.shared / ADMIN_SOCKET))
        try:
            connection.request("GET", "/clusters?format=json")
            clusters = json.loads(connection.getresponse().read())["cluster_statuses"]
        finally:
            connection.close()
        hosts = next((each.get("host_statuses", []) for each in clusters if each["name"] == CLUSTER_NAME), [])
        return {_address(host): _is_healthy(host["health_status"]) for host in hosts}


def _command(process: psutil.Process) -> list[str]:
    """The first words of its command line; none when it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()[:4]
    return []


def _homes(lines: bytes) -> dict[str, str]:
    records = map(json.loads, lines.splitlines()[1:])
    return {record["session"]: record["home"] for record in records if record.get("home")}


def _address(host: Json) -> str:
    place = host["address"]["socket_address"]
    return f"{place['address']}:{place['port_value']}"


def _is_healthy(health: Json) -> bool:
    return health.get("eds_health_status") == "HEALTHY" and not health.get("failed_active_health_check")
