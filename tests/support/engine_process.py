"""A simulated engine as a process: its machine folder, its simulated weights, and an HTTP client for it.

The model has the shape of DeepSeek-V2-Lite (27 layers, latent 512 + 64), which a token's KV of 31104 bytes follows
from; with `vision` it takes images too. A process is killed at the end of its `with` block.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.waiting import wait_until

START_LIMIT_S = 60.0
SERVED_NAME = "m"
CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "max_position_embeddings": 163840,
    "vocab_size": 102400,
}
"""Flags as in the readings of a real engine: no kernels of a certain GPU, a pool of known size."""
BASE_ARGS = (
    *("--load-format", "dummy", "--attention-backend", "triton", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--enable-metrics", "--enable-cache-report", "--disable-prefill-cuda-graph"),
    *("--mem-fraction-static", "0.5"),
)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def write_model(folder: Path, *, vision: bool = False, weight_bytes: int = 2 * 10**9) -> Path:
    """A folder with a configuration and one small file that stands for all weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | ({"vision_config": {"hidden_size": 64}} if vision else {})
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"__metadata__": {"simulated_bytes": str(weight_bytes)}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


class Answer:
    """A response."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, took_s: float) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.took_s = took_s

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class EventStream:
    """A response of server-sent events, read as they come."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.headers = dict(response.getheaders())

    def raw(self) -> Iterator[tuple[str, str]]:
        """(event, data) of each event; hangs up after the last one."""
        name = ""
        while line := self._response.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                yield name, text[6:]
                name = ""
        self._response.close()
        self._connection.close()

    def events(self) -> Iterator[Any]:
        """Data of each event as JSON; the end mark as the text [DONE]."""
        for _, data in self.raw():
            yield data if data == "[DONE]" else json.loads(data)

    def close(self) -> None:
        """Hang up."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._response.close()
        self._connection.close()


class EngineProcess:
    """One engine; `with EngineProcess(tmp_path, ...) as engine:` starts it."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        speed: float = 50.0,
        gpus: int = 1,
        vision: bool = False,
        env: Mapping[str, str] | None = None,
        base_args: Sequence[str] = BASE_ARGS,
        machine: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.machine_dir = folder / "machine"
        self.machine_dir.mkdir(parents=True, exist_ok=True)
        described = {
            "node": "h200-0",
            "accelerator": "NVIDIA H200",
            "gpu_type": "H200",
            "gpus": gpus,
            "gpu_memory_mib": 143771,
            "speed": speed,
            "pod": "default/test",
        } | dict(machine or {})
        (self.machine_dir / "machine.json").write_text(json.dumps(described))
        model = write_model(folder / "model", vision=vision)
        own = ["--model-path", str(model), "--served-model-name", SERVED_NAME, "--port", str(self.port)]
        self.argv = [sys.executable, "-m", "sglpool.sandbox.engine", "--machine", str(self.machine_dir), "--"]
        self.argv += [*own, *base_args, *args]
        self._env = {**os.environ, **(env or {})}
        self.log_path = folder / "engine.log"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EngineProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # The process.

    def start(self) -> None:
        """Start; the port opens when the load is done."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log, env=self._env, stdin=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(timeout=10)

    def wait_exit(self, timeout_s: float = 30.0) -> int:
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(timeout=timeout_s)

    def log(self) -> str:
        """What it has written."""
        return self.log_path.read_text()

    def fault(self, **faults: Any) -> None:
        """Set the machine's faults; none heals it."""
        part = self.machine_dir / "faults.part"
        part.write_text(json.dumps(faults))
        part.replace(self.machine_dir / "faults.json")

    # Waiting.

    def connects(self) -> bool:
        """Whether the kernel takes a connection."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
        except OSError:
            return False
        return True

    def wait_open(self) -> None:
        """Wait for the port."""
        wait_until(self._open_or_dead, timeout_s=START_LIMIT_S, describe=self.log, interval_s=0.02)

    def _open_or_dead(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the engine ended with {self.process.returncode}:\n{self.log()}"
        return self.connects()

    def wait_ready(self) -> EngineProcess:
        """Wait for /ready."""
        self.wait_open()
        wait_until(
            lambda: self.get("/ready").status == 200, timeout_s=START_LIMIT_S, describe=self.log, interval_s=0.02
        )
        return self

    # HTTP.

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> Answer:
        """One exchange; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            started_s = time.monotonic()
            connection.request(method, path, _encoded(body), _headers(body, headers))
            response = connection.getresponse()
            data = response.read()
            return Answer(response.status, dict(response.getheaders()), data, time.monotonic() - started_s)
        finally:
            connection.close()

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> Answer:
        """GET."""
        return self.request("GET", path, headers=headers, timeout_s=timeout_s)

    def post(
        self, path: str, body: object, *, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0
    ) -> Answer:
        """POST."""
        return self.request("POST", path, body, headers=headers, timeout_s=timeout_s)

    def stream(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 30.0) -> EventStream:
        """POST with stream set; returns once the head has come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        payload = {**body, "stream": True}
        connection.request("POST", path, _encoded(payload), _headers(payload, None))
        return EventStream(connection, connection.getresponse())

    def load(self) -> dict[str, Any]:
        """The one rank's entry of /v1/loads."""
        loads: list[dict[str, Any]] = self.get("/v1/loads").json()["loads"]
        return loads[0]

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name and labels as written."""
        lines = self.get("/metrics").body.decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def metric(self, name: str) -> float:
        """Sum of all series of a name; 0 when there is none."""
        return sum(value for key, value in self.metrics().items() if key == name or key.startswith(f"{name}{{"))


def _encoded(body: object) -> bytes | None:
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


def _headers(body: object, headers: Mapping[str, str] | None) -> dict[str, str]:
    return ({} if body is None else {"Content-Type": "application/json"}) | dict(headers or {})
