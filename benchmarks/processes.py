"""The processes of the operator's benchmark: a control plane without nodes, and the operator as a user starts it.

Not here: what is measured on them.
"""

import asyncio
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml
from benchmarks.pools import NAMESPACE

from sglpool.api import names
from sglpool.api.crd import build_crd
from sglpool.sandbox.cluster import Sandbox

START_LIMIT_S = 60.0
_SAMPLE_S = 0.5


@contextmanager
def control_plane(folder: Path) -> Iterator[Path]:
    """A control plane without nodes; yields a kubeconfig with a ServiceAccount's token, as in a cluster."""
    sandbox = Sandbox(folder)
    sandbox.up({"CPU": 0})
    try:
        api = sandbox.api
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", build_crd())
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        api.create(accounts, {"metadata": {"name": "bench"}})
        api.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                "metadata": {"name": "bench"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "bench", "namespace": NAMESPACE}],
            },
        )
        token = api.create(f"{accounts}/bench/token", {"spec": {"expirationSeconds": 86400}})["status"]["token"]
        config: dict[str, Any] = yaml.safe_load(sandbox.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        kubeconfig = folder / "kubeconfig-bench"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(yaml.safe_dump(config))
        _wait_for_crd(api)
        yield kubeconfig
        kubeconfig.unlink()
    finally:
        sandbox.down()


def _wait_for_crd(api: Any) -> None:
    deadline = time.perf_counter() + START_LIMIT_S
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"
    while True:
        conditions = (api.get(path).get("status") or {}).get("conditions") or ()
        if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            return
        if time.perf_counter() > deadline:
            raise RuntimeError("the CRD is not established")
        time.sleep(0.1)


class OperatorProcess:
    """The real operator, started as a user would, and looked at from outside."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._port = _free_port()
        self._log = log
        command = [sys.executable, "-m", "sglpool", "operator", "--kubeconfig", str(kubeconfig)]
        command += ["--bind", f"127.0.0.1:{self._port}"]
        self.started_s = time.perf_counter()
        with log.open("ab") as out:
            self._popen = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self._process = psutil.Process(self._popen.pid)
        self.rss_bytes: list[int] = []

    def peak_bytes(self) -> int:
        """The largest resident size so far, as the kernel remembers it."""
        status = Path(f"/proc/{self._popen.pid}/status").read_text()
        return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024

    def cpu_s(self) -> float:
        """CPU time used so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    async def sample(self) -> None:
        """Note the resident size twice a second, until cancelled."""
        while True:
            self.rss_bytes.append(self._process.memory_info().rss)
            await asyncio.sleep(_SAMPLE_S)

    async def caught_up(self, *, reconciles: int, limit_s: float = START_LIMIT_S) -> None:
        """Wait until it is ready, has done so many reconciles, and none is left in line or in work."""
        deadline = time.perf_counter() + limit_s
        while not await self._is_caught_up(reconciles):
            if self._popen.poll() is not None or time.perf_counter() > deadline:
                state = f"ended with {self._popen.returncode}" if self._popen.poll() is not None else "is not ready"
                raise RuntimeError(f"the operator {state}:\n{self._log.read_text()[-3000:]}")
            await asyncio.sleep(0.25)

    async def figures(self) -> dict[str, float]:
        """Its own metrics; series of one name are added up."""
        text = await asyncio.to_thread(_read, f"http://127.0.0.1:{self._port}/metrics")
        found: dict[str, float] = {}
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        for verb, value in re.findall(r'^sglpool_api_requests_total\{.*verb="([^"]+)".*\} (\S+)$', text, re.MULTILINE):
            found[f"requests:{verb}"] = found.get(f"requests:{verb}", 0.0) + float(value)
        return found

    def stop(self) -> float:
        """End it as Kubernetes would, and return the seconds that took."""
        begin_s = time.perf_counter()
        self._popen.terminate()
        try:
            self._popen.wait(30)
        finally:
            self._popen.kill()
        return time.perf_counter() - begin_s

    async def _is_caught_up(self, reconciles: int) -> bool:
        try:
            await asyncio.to_thread(_read, f"http://127.0.0.1:{self._port}/readyz")
        except OSError:
            return False
        figures = await self.figures()
        done = figures.get("sglpool_reconcile_seconds_count", 0)
        return done >= max(reconciles, figures.get("workqueue_adds_total", 0)) and not figures["workqueue_depth"]


@asynccontextmanager
async def running(kubeconfig: Path, log: Path) -> AsyncIterator[OperatorProcess]:
    """An operator for the length of the block, its memory sampled."""
    operator = OperatorProcess(kubeconfig, log)
    sampling = asyncio.create_task(operator.sample())
    try:
        yield operator
    finally:
        sampling.cancel()
        operator.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _read(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as response:
            text: str = response.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"{url}: {error.code}") from None
    return text
