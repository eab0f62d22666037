"""A real picker beside a real Envoy: pods from a small API server, engines on loopback addresses of their own.

Everything lies in Envoy's folder and ends with the `with` blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sglpool.api import names
from sglpool.routing.pickerconfig import AUTHZ_SOCKET, EDS_FILE, PickerConfig
from support.envoy_peers import Answer, Engine, Peers, Seen, _Server
from support.envoy_process import EnvoyProcess
from support.waiting import wait_until

LONG_AGO = "2026-01-01T00:00:00Z"
SELECTOR = f"{names.LABEL_POOL}=p"
IDLE: Mapping[str, int] = {
    "num_running_reqs": 0,
    "num_waiting_reqs": 0,
    "num_waiting_uncached_tokens": 0,
    "num_used_tokens": 0,
    "max_total_num_tokens": 1_000_000,
    "total_prefill_uncached_tokens": 0,
    "total_prefill_busy_us": 0,
}


class PolledEngine(Engine):
    """An engine on an address of its own that also says what it has to do."""

    def __init__(self, peers: Peers, ip: str, port: int) -> None:
        super().__init__(peers)
        self.ip = ip
        self.port = port
        self.loads = dict(IDLE)
        self.deaf = False
        """Take polls and never answer them."""

    @property
    def address(self) -> str:
        """As in EDS."""
        return f"{self.ip}:{self.port}"

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, self.ip, self.port, limit=256 * 1024)

    async def _serve(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not seen.path.startswith("/v1/loads"):
            await super()._serve(seen, reader, writer)
        elif self.deaf:
            await reader.read()
            raise ConnectionResetError
        else:
            body = json.dumps({"version": "0.5.23", "loads": [self.loads]}).encode()
            await self._send(Answer(chunks=(body,)), reader, writer)


class PodApi(_Server):
    """The API server, as far as a picker sees it: list and watch of pods."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self.port = 0
        self.pods: dict[str, dict[str, Any]] = {}
        self._log: list[dict[str, Any]] = []

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def put(self, pod: dict[str, Any]) -> None:
        """Add or change a pod."""
        uid = pod["metadata"]["uid"]
        self._event("MODIFIED" if uid in self.pods else "ADDED", pod)
        self.pods[uid] = pod

    def delete(self, uid: str) -> None:
        """Remove a pod for good."""
        self._event("DELETED", self.pods.pop(uid))

    def _event(self, kind: str, pod: dict[str, Any]) -> None:
        pod["metadata"]["resourceVersion"] = str(len(self._log) + 1)
        self._log.append({"type": kind, "object": json.loads(json.dumps(pod))})

    async def _serve(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append(seen)
        query = parse_qs(urlsplit(seen.path).query)
        if "watch" in query:
            await self._watch(int(query["resourceVersion"][0]), writer)
            return
        listing = {"metadata": {"resourceVersion": str(len(self._log))}, "items": list(self.pods.values())}
        await self._send(Answer(chunks=(json.dumps(listing).encode(),)), reader, writer)

    async def _watch(self, at: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
        while not writer.transport.is_closing():
            for event in self._log[at:]:
                line = json.dumps(event).encode() + b"\n"
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            at = len(self._log)
            await writer.drain()
            await asyncio.sleep(0.01)
        raise ConnectionResetError


def engine_pod(uid: str, ip: str, *, annotations: Mapping[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    """An engine's pod, ready for long."""
    labels = {names.LABEL_POOL: "p", names.LABEL_COMPONENT: names.COMPONENT_ENGINE, names.LABEL_GPU: "B200"}
    return _pod(uid, ip, labels, annotations or {}, **changes)


def router_pod(uid: str, ip: str, **changes: Any) -> dict[str, Any]:
    """A router's pod."""
    return _pod(uid, ip, {names.LABEL_POOL: "p", names.LABEL_COMPONENT: names.COMPONENT_ROUTER}, {}, **changes)


def _pod(
    uid: str,
    ip: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    ready: bool = True,
    since: str = LONG_AGO,
    restarts: int = 0,
    terminating: bool = False,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": f"pod-{uid}",
        "uid": uid,
        "labels": dict(labels),
        "annotations": dict(annotations),
    }
    if terminating:
        metadata["deletionTimestamp"] = datetime.now(UTC).isoformat()
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
    return {
        "metadata": metadata,
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [condition],
            "containerStatuses": [{"name": names.ENGINE_CONTAINER, "restartCount": restarts}],
        },
    }


class PickerProcess:
    """One picker process in an Envoy's folder."""

    def __init__(self, envoy: EnvoyProcess, api: PodApi, *, uid: str, engine_port: int, **settings: Any) -> None:
        self.envoy = envoy
        self.uid = uid
        self._api = api
        self.config = PickerConfig(
            pool="p",
            pool_uid="pool-uid",
            namespace="ns",
            label_selector=SELECTOR,
            engine_port=engine_port,
            shared_dir=str(envoy.folder),
            listener=envoy.shape.to_json(),
            listen_host=settings.pop("ip", "127.0.0.1"),
            **{"state_port": free_port(), "max_concurrent_requests": 8, **settings},
        )
        self.path = envoy.folder / "picker.json"
        self.path.write_text(self.config.to_json())
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PickerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start, and wait until it answers Envoy."""
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        api = f"http://127.0.0.1:{self._api.port}"
        argv = [sys.executable, "-m", "sglpool", "picker", "--config", str(self.path), "--api-server", api]
        environment = {**os.environ, "POD_NAME": f"pod-{self.uid}", "POD_UID": self.uid}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        try:
            wait_until(self._answers, timeout_s=30, describe=self.log, interval_s=0.02)
        except BaseException:
            self.kill()
            raise

    @property
    def log_path(self) -> Path:
        """What it says."""
        return self.envoy.folder / f"picker-{self.uid}.log"

    def log(self) -> str:
        """What it has said."""
        return self.log_path.read_text()

    @property
    def socket(self) -> Path:
        """Where Envoy asks."""
        return self.envoy.folder / AUTHZ_SOCKET

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the picker ended with {self.process.returncode}:\n{self.log()}"
        return self.socket.exists()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=10)

    def stop(self) -> int:
        """End it as the kubelet does."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=20)

    def get(self, path: str) -> str:
        """Ask its own endpoint."""
        url = f"http://{self.config.listen_host}:{self.config.state_port}{path}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())

    def state(self) -> dict[str, Any]:
        """/state."""
        found: dict[str, Any] = json.loads(self.get("/state"))
        return found

    def replica(self, uid: str) -> dict[str, Any]:
        """One replica of /state."""
        (found,) = [replica for replica in self.state()["replicas"] if replica["uid"] == uid]
        return dict(found)

    def metric(self, name: str) -> float:
        """Value of one series; 0 when there is none."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def endpoints(self) -> dict[str, str]:
        """The endpoint file: health by address."""
        data = json.loads((self.envoy.folder / EDS_FILE).read_text())
        found = {}
        for entry in data["resources"][0]["endpoints"][0]["lb_endpoints"]:
            place = entry["endpoint"]["address"]["socket_address"]
            found[f"{place['address']}:{place['port_value']}"] = entry["health_status"]
        return found


def free_port(ip: str = "127.0.0.1") -> int:
    """A port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind((ip, 0))
        return int(probe.getsockname()[1])
