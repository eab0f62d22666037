"""An installation: from `helm install` to a ready operator, and from an operator's cold start to every pool reconciled.

The first on a sandbox whose pods are processes, so that the operator really starts in its pod; images are there. Beside
it a chart with a pod that is ready as soon as it runs: what Helm, scheduler and node take by themselves. The second on
a control plane without nodes, whose pools another operator has brought up before.
"""

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bare import BareClient, Observer
from benchmarks.common import RESULTS, Row, percentile, say, show, write_results
from benchmarks.operator import create_all, foreign_writes, quiet
from benchmarks.pools import CHILDREN, NAMESPACE, prepare
from benchmarks.processes import control_plane, running

from sglpool.sandbox import binaries
from sglpool.sandbox.cluster import Sandbox

CHART = Path(__file__).parents[1] / "charts/sglpool"
INSTALL_LIMIT_S = 120
CREATORS = 8

_BARE_CHART = {
    "Chart.yaml": "apiVersion: v2\nname: bare\nversion: 0.1.0\n",
    "templates/deployment.yaml": """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: bare, labels: {app: bare}}
spec:
  selector: {matchLabels: {app: bare}}
  template:
    metadata: {labels: {app: bare}}
    spec:
      containers: [{name: bare, image: busybox, command: [sleep, "600"]}]
""",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decides.

    Attributes:
        installs: How often each chart is installed.
        pools: Pools that a cold start finds.
        starts: Cold starts.
    """

    installs: int
    pools: int
    starts: int


# --- helm install ---


def install_times(folder: Path, settings: Settings) -> tuple[list[float], list[float]]:
    """Seconds of `helm install --wait`: of ours, and of a pod that does nothing."""
    helm = binaries.ensure(["helm"], say=say)["helm"]
    bare = folder / "bare"
    for name, text in _BARE_CHART.items():
        path = bare / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sandbox = Sandbox(folder / "sandbox")
    sandbox.up({"CPU": 1}, speed=1.0)
    try:
        ours, floor = [], []
        for _ in range(settings.installs):  # in turn, so that whatever else the machine does meets both
            ours.append(_install(helm, sandbox.kubeconfig, "sglpool", CHART))
            floor.append(_install(helm, sandbox.kubeconfig, "bare", bare))
    finally:
        sandbox.down()
    return ours, floor


def _install(helm: Path, kubeconfig: Path, name: str, chart: Path) -> float:
    environ = {"PATH": os.environ["PATH"], "HOME": str(kubeconfig.parent), "KUBECONFIG": str(kubeconfig)}
    place = ["-n", f"{name}-system"]

    def run(*words: str | Path) -> None:
        subprocess.run([helm, *words], env=environ, check=True, capture_output=True, timeout=INSTALL_LIMIT_S + 10)

    begin_s = time.perf_counter()
    run("install", name, chart, *place, "--create-namespace", "--wait", "--timeout", f"{INSTALL_LIMIT_S}s")
    took_s = time.perf_counter() - begin_s
    run("uninstall", name, *place, "--wait", "--timeout", f"{INSTALL_LIMIT_S}s")
    say(f"{name}: {took_s:.1f} s")
    return took_s


# --- a cold start ---


async def cold_starts(kubeconfig: Path, log: Path, settings: Settings) -> tuple[list[float], int]:
    """Seconds from each start until every pool was reconciled, and all writes meanwhile."""
    pools = prepare([f"pool-{i:04d}" for i in range(settings.pools)])
    async with BareClient.connect(kubeconfig) as client:
        async with running(kubeconfig, log) as operator, Observer(client, CHILDREN).watch(NAMESPACE) as observer:
            await operator.caught_up(reconciles=0)
            await asyncio.gather(*(create_all(client, pools[i::CREATORS], None) for i in range(CREATORS)))
            await observer.wait_for([pool.name for pool in pools], limit_s=600)
            await operator.caught_up(reconciles=settings.pools, limit_s=120)
            await quiet(client)
        times_s = []
        before = await client.writes()
        for _ in range(settings.starts):
            async with running(kubeconfig, log) as operator:
                await operator.caught_up(reconciles=settings.pools, limit_s=120)
                times_s.append(time.perf_counter() - operator.started_s)
                await quiet(client)
            say(f"a start: {times_s[-1]:.1f} s")
        return times_s, foreign_writes(before, await client.writes())


# --- the run ---


def measure(settings: Settings) -> list[Row]:
    """Bring everything up, measure, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="sglpool-bench-") as folder:
        say("installing")
        installs, floor = install_times(Path(folder), settings)
        say(f"{settings.pools} pools")
        with control_plane(Path(folder) / "operator") as kubeconfig:
            starts, writes = asyncio.run(cold_starts(kubeconfig, Path(folder) / "operator.log", settings))
    peer = "a chart whose pod is ready as soon as it runs"
    return [
        Row(
            figure=f"helm install to operator ready, images there, median of {settings.installs}",
            value=percentile(installs, 50),
            unit="s",
            goal=10,
            peer=peer,
            peer_value=percentile(floor, 50),
        ),
        Row(figure="the same, longest", value=max(installs), unit="s", goal=10, peer=peer, peer_value=max(floor)),
        Row(
            figure=f"cold start with {settings.pools} pools to every pool reconciled, longest of {settings.starts}",
            value=max(starts),
            unit="s",
            goal=20,
        ),
        Row(figure="writes by anybody but Leases in these starts", value=writes, unit="writes", goal=0),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.install", description=__doc__)
    parser.add_argument("--installs", type=int, default=7, help="installations (default 7)")
    parser.add_argument("--pools", type=int, default=500, help="pools of a cold start (default 500)")
    parser.add_argument("--starts", type=int, default=3, help="cold starts (default 3)")
    parser.add_argument("--quick", action="store_true", help="2 installs, 50 pools: a smoke test, not a figure")
    parser.add_argument("--out", type=Path, help="file of results (default benchmarks/results/install.json)")
    options = parser.parse_args(arguments)
    settings = Settings(installs=options.installs, pools=options.pools, starts=options.starts)
    if options.quick:
        settings = Settings(installs=2, pools=50, starts=1)
    found = measure(settings)
    show("An installation of sglpool on one machine with its cluster", found)
    if options.out or not options.quick:
        values = {"installs": settings.installs, "pools": settings.pools, "starts": settings.starts}
        write_results(options.out or RESULTS / "install.json", benchmark="install", settings=values, rows=found)


if __name__ == "__main__":
    main()
