"""The routers that are compared: Envoy alone, SMG's real binary, and ours as rendered, each pinned to one core.

Not here: the engines behind them (`router_peers`), and the stand-in for the API server (`router_pods`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from benchmarks.router_peers import BenchmarkError, cores, pinned

START_LIMIT_S = 60.0
SMG_VERSION = "1.13.0"
ENVOY = Path(sys.prefix, "bin", "envoy")
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where routers' folders are: a pod's are in memory, too. None: wherever temporary files are."""
_POLL_S = 0.05
_LOG_BYTES = 3000


@dataclass(frozen=True, slots=True)
class Router:
    """A router that serves.

    Attributes:
        address: `ip:port` of its endpoint.
        folder: Its files.
        processes: Its processes by name.
        state: URL of the picker's own endpoint; empty where there is no picker.
    """

    address: str
    folder: Path
    processes: Mapping[str, psutil.Process]
    state: str = ""

    def cpu_s(self) -> tuple[float, ...]:
        """CPU time so far, user and system, of each process in order."""
        return tuple(_cpu_s(process) for process in self.processes.values())

    def pids(self) -> list[int]:
        """Numbers of its processes."""
        return [process.pid for process in self.processes.values()]

    def rss_bytes(self) -> dict[str, int]:
        """Resident size of each process."""
        return {name: process.memory_info().rss for name, process in self.processes.items()}


Variant = Callable[[Path, Sequence[str]], "Any"]
"""A context manager: folder and engines in, a `Router` out."""


@contextmanager
def envoy_alone(folder: Path, engines: Sequence[str]) -> Iterator[Router]:
    """Envoy that does nothing but pass requests on, in turns: the floor."""
    port = free_port()
    (folder / "envoy.json").write_text(json.dumps(_plain_envoy(port, engines)))
    command = [
        str(ENVOY),
        "-c",
        str(folder / "envoy.json"),
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "-l",
        "warn",
    ]
    with started("envoy", command, folder) as envoy:
        await_answer(f"http://127.0.0.1:{port}/v1/models", envoy, folder / "envoy.log")
        yield Router(f"127.0.0.1:{port}", folder, {"envoy": envoy})


def _plain_envoy(port: int, engines: Sequence[str]) -> dict[str, Any]:
    api = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{api}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "serving",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{api}.http.router.v3.Router"}}
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {"name": "serving", "address": _address("127.0.0.1", port), "filter_chains": [chain]}
    endpoints = [{"endpoint": {"address": _address(*engine.split(":"))}} for engine in engines]
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(host: str, port: int | str) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": int(port)}}


@contextmanager
def smg_sticky(folder: Path, engines: Sequence[str], *, venv: Path) -> Iterator[Router]:
    """SMG as one would run it for agents: sticky sessions over the least load, loads polled every second."""
    port = free_port()
    command = [str(venv / "bin" / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *(f"http://{engine}" for engine in engines)]
    command += ["--policy", "least_load", "--sticky-sessions", "--routing-key-headers", "x-smg-routing-key"]
    command += ["--load-monitor-interval", "1", "--prometheus-host", "127.0.0.1"]
    command += ["--prometheus-port", str(free_port()), "--log-level", "warn"]
    with started("smg", command, folder) as smg:
        await_answer(f"http://127.0.0.1:{port}/readiness", smg, folder / "smg.log")
        yield Router(f"127.0.0.1:{port}", folder, {"smg": smg})


def smg_venv(cache: Path) -> Path:
    """SMG in an environment of its own, made on first use; never in ours."""
    venv = cache / f"smg-{SMG_VERSION}"
    if not (venv / "bin" / "smg").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"smg=={SMG_VERSION}"], check=True)
    return venv


# --- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def started(
    name: str, command: Sequence[str], folder: Path, *, env: Mapping[str, str] | None = None
) -> Iterator[psutil.Process]:
    """A process on the router's core for the length of the block; what it says is in NAME.log."""
    argv = pinned(cores()[0], command)
    with (folder / f"{name}.log").open("ab") as log:
        popen = subprocess.Popen(
            argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
        )
    try:
        yield psutil.Process(popen.pid)
    finally:
        popen.terminate()
        try:
            popen.wait(2)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait(10)


def await_answer(url: str, process: psutil.Process, log: Path) -> None:
    """Wait until the URL answers 200, and fail with the process's own words if it ends or takes too long."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline_s = time.perf_counter() + START_LIMIT_S
    while True:
        try:
            with opener.open(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass
        ended = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        if ended or time.perf_counter() > deadline_s:
            raise BenchmarkError(f"{url} does not answer:\n{log.read_text()[-_LOG_BYTES:]}")
        time.sleep(_POLL_S)


def await_socket(path: Path) -> None:
    """Wait until there is such a unix socket."""
    deadline_s = time.perf_counter() + START_LIMIT_S
    while not path.exists():
        if time.perf_counter() > deadline_s:
            raise BenchmarkError(f"nobody listens at {path}")
        time.sleep(_POLL_S)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _cpu_s(process: psutil.Process) -> float:
    """What its threads have run for, to the nanosecond: the usual times come in hundredths of a second."""
    try:
        threads = [thread / "schedstat" for thread in Path(f"/proc/{process.pid}/task").iterdir()]
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    except (OSError, IndexError):
        times = process.cpu_times()
        return float(times.user + times.system)
