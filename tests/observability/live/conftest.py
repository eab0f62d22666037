"""One sandbox, one pool with everything switched on, and a Prometheus that has seen it work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from observability.live import secrets
from observability.live.watched import ROOT, Watched, manifest
from sglpool.sandbox.cluster import Sandbox
from support.kubectl import Kubectl
from support.pool_on_cluster import ClusterPool
from support.prometheus_process import PrometheusProcess, prometheus_program
from support.store_process import StoreProcess

SPEED = 60.0
READY_S = 120.0


@pytest.fixture(scope="session")
def planted() -> dict[str, str]:
    """What must never be seen, by what it is; filled when the pool is made."""
    return {}


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory, planted: dict[str, str]) -> Iterator[Watched]:
    """Two Ready replicas behind two routers."""
    prometheus_program()
    folder = tmp_path_factory.mktemp("watched")
    sandbox = Sandbox(folder / "sandbox")
    with StoreProcess(password=secrets.STORE_PASSWORD) as store:
        sandbox.up({"B200": 2}, speed=SPEED, operator=True)
        try:
            kubectl = Kubectl(binary=sandbox.kubectl, kubeconfig=sandbox.kubeconfig)
            planted |= secrets.plant(kubectl, "default", folder / "certificate")
            pool = ClusterPool(kubectl, "default", manifest(store.url))
            pool.apply()
            pool.wait_ready(READY_S)
            yield Watched(sandbox, kubectl, pool)
        finally:
            sandbox.down()


@pytest.fixture(scope="session")
def prometheus(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusProcess]:
    """It scrapes the pool as the docs say, and has the alerts of the chart."""
    rules = sorted((ROOT / "charts/sglpool/rules").glob("*.yaml"))
    with PrometheusProcess(tmp_path_factory.mktemp("prometheus"), watched.jobs(), rules=rules) as prometheus:
        yield prometheus
