"""A real Envoy as a process, with the configuration that `render.envoy` gives, in a folder of its own.

Ports are the kernel's choice; whatever else the router shares lies in the folder. Envoy ends with the `with` block.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sglpool.render.envoy import bootstrap, listener
from sglpool.render.envoy.shape import RouterShape
from sglpool.routing import pickerconfig as names
from support.waiting import wait_until

START_LIMIT_S = 30.0
PATIENCE_S = 5.0
"""How long a request waits for the picker, where a test is not about that: a busy machine must not decide who picks."""
BINARY = Path(sys.prefix, "bin", "envoy")


def shape(**changes: Any) -> RouterShape:
    """A small pool's router on loopback."""
    base = RouterShape(
        pool="p",
        max_replicas=4,
        max_concurrent_requests=8,
        picker_timeout_s=PATIENCE_S,
        listen_host="127.0.0.1",
        http_port=0,
        health_port=0,
    )
    return replace(base, **changes)


def endpoint(address: str, health: str = "HEALTHY") -> dict[str, Any]:
    """One engine in EDS."""
    host, _, port = address.rpartition(":")
    place = {"socket_address": {"address": host, "port_value": int(port)}}
    return {"endpoint": {"address": place}, "health_status": health}


def eds(endpoints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Content of the EDS file."""
    kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    return {
        "resources": [
            {"@type": kind, "cluster_name": names.CLUSTER_NAME, "endpoints": [{"lb_endpoints": list(endpoints)}]}
        ]
    }


@dataclass
class Reply:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    took_s: float = field(default=0.0, compare=False)

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float = 10.0) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class EnvoyProcess:
    """One Envoy; `with EnvoyProcess(...) as envoy:` starts it and waits until it listens."""

    def __init__(
        self,
        *,
        engines: Sequence[str] = (),
        api_keys: Mapping[str, str] | None = None,
        concurrency: int = 1,
        tls_dir: Path | None = None,
        health: Mapping[str, str] | None = None,
        await_engines: bool = True,
        **changes: Any,
    ) -> None:
        # A short path: a unix socket's name has 107 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix="envoy-"))
        self.shape = shape(
            shared_dir=str(self.folder),
            config_dir=str(self.folder),
            tls_dir=str(tls_dir) if tls_dir else None,
            api_keys=api_keys is not None,
            **changes,
        )
        self._concurrency = concurrency
        self._await = list(engines) if await_engines else []
        self._tls = tls_dir is not None
        self.process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        for name, text in bootstrap.files(self.shape).items():
            (self.folder / name).write_text(text)
        self.write_engines([endpoint(address, (health or {}).get(address, "HEALTHY")) for address in engines])
        self.write_listener(api_keys or {})

    def __enter__(self) -> EnvoyProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # The process.

    def start(self) -> None:
        """Start, and wait for both listeners and the first health checks."""
        argv = [str(BINARY), *bootstrap.arguments(self.shape, concurrency=self._concurrency), "--log-level", "warn"]
        with (self.folder / "envoy.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self._listens, timeout_s=START_LIMIT_S, describe=self.log, interval_s=0.02)
        for address in self._await:
            self.wait_host(address, "healthy")

    def stop(self) -> None:
        """End it at once."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(timeout=10)

    def log(self) -> str:
        """What Envoy has said."""
        return (self.folder / "envoy.log").read_text()

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"Envoy ended with {self.process.returncode}:\n{self.log()}"
        try:
            found = json.loads(self.admin("GET", "/listeners?format=json"))
        except OSError:
            return False
        for status in found.get("listener_statuses", []):
            self._ports[status["name"]] = status["local_address"]["socket_address"]["port_value"]
        return {"serving", "health"} <= self._ports.keys()

    # Files that the picker would write.

    def _write(self, name: str, data: object) -> None:
        draft = self.folder / f"{name}.new"
        draft.write_text(json.dumps(data))
        draft.replace(self.folder / name)

    def write_engines(self, endpoints: Sequence[Mapping[str, Any]]) -> None:
        """Replace the EDS file."""
        self._write(names.EDS_FILE, eds(endpoints))

    def write_listener(self, api_keys: Mapping[str, str]) -> None:
        """Replace the LDS file."""
        self._write(names.LDS_FILE, listener.listener(self.shape, api_keys))

    def access_log(self) -> list[dict[str, str]]:
        """Every entry so far, by the names of its fields and of what the answer said."""
        path = self.folder / names.ACCESS_LOG
        lines = path.read_text().splitlines() if path.exists() else []
        keys = [name for name, _ in names.ACCESS_LOG_FIELDS]
        entries = [dict(zip(keys, line.split("\t"), strict=True)) for line in lines]
        nothing = ",".join("-" for _ in names.ANSWER_FIELDS)
        for entry in entries:
            said = entry.pop("answer")
            values = (nothing if said == "-" else said).split(",")
            entry.update(zip(names.ANSWER_FIELDS, values, strict=True))
        return entries

    def wait_logged(self, count: int = 1) -> list[dict[str, str]]:
        """The access log, once it has so many entries."""
        return wait_until(
            lambda: entries if len(entries := self.access_log()) >= count else [],
            timeout_s=10,
            describe=lambda: f"{count} entries in the access log: {self.access_log()}",
            interval_s=0.01,
        )

    # Its admin.

    def admin(self, method: str, path: str) -> str:
        """Ask Envoy's admin."""
        connection = UnixConnection(str(self.folder / names.ADMIN_SOCKET))
        try:
            connection.request(method, path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def stat(self, name: str) -> int:
        """One counter or gauge; 0 when there is none."""
        for line in self.admin("GET", f"/stats?filter=^{name}$").splitlines():
            return int(line.rpartition(": ")[2])
        return 0

    def hosts(self) -> dict[str, dict[str, Any]]:
        """Every engine that Envoy knows, by address."""
        clusters = json.loads(self.admin("GET", "/clusters?format=json"))["cluster_statuses"]
        (own,) = [cluster for cluster in clusters if cluster["name"] == names.CLUSTER_NAME]
        found = {}
        for host in own.get("host_statuses", []):
            place = host["address"]["socket_address"]
            found[f"{place['address']}:{place['port_value']}"] = host
        return found

    def wait_host(self, address: str, state: str) -> None:
        """Wait until an engine is `healthy`, `failed` (its check) or `gone`."""
        wait_until(
            lambda: self._host_state(address) == state,
            timeout_s=15,
            describe=lambda: f"{address} {state}: {self.hosts()}",
            interval_s=0.02,
        )

    def _host_state(self, address: str) -> str:
        host = self.hosts().get(address)
        if host is None:
            return "gone"
        status = host["health_status"]
        checked = not status.get("failed_active_health_check") and not status.get("pending_active_hc")
        return "healthy" if checked else "failed"

    # Clients.

    @property
    def port(self) -> int:
        """Port of the serving API."""
        return self._ports["serving"]

    @property
    def health_port(self) -> int:
        """Port of /healthz and /readyz."""
        return self._ports["health"]

    def connect(self, timeout_s: float = 30.0, *, port: int | None = None) -> http.client.HTTPConnection:
        """A connection of a client."""
        if self._tls and port is None:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=timeout_s)

    def request(
        self,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        port: int | None = None,
    ) -> Reply:
        """One exchange on a connection of its own; a body that is not bytes is sent as JSON."""
        connection = self.connect(timeout_s, port=port)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            started_s = time.monotonic()
            connection.request(method, path, data, dict(headers or {}))
            return self.read(connection.getresponse(), started_s)
        finally:
            connection.close()

    @staticmethod
    def read(response: http.client.HTTPResponse, started_s: float = 0.0) -> Reply:
        """The whole of a response."""
        body = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, headers, body, time.monotonic() - started_s)
