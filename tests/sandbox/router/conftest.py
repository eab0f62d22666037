"""Two pools behind routers in a sandbox with the node agent: one to hurt, one with keys and tight limits.

Tests of this folder share both, and leave them as they were: what they cut, they wait for. Every test under a fault
reports how many streams broke and how many conversations lost their home; the figures are listed at the end.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from sandbox.cluster.conftest import AgentCluster
from sandbox.router.costs import Cost
from sandbox.router.routed_pool import READY_S, RoutedPool, make_pools
from sglpool.sandbox.cluster import Sandbox
from support.kubectl import Kubectl
from support.store_process import StoreProcess
from support.waiting import wait_until

SPEED, START_SPEED = 40.0, 400.0
"""Slow enough for streams that outlive a test of a minute; starts are nothing to wait for."""

_REPORT: list[Cost] = []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what each fault has cost."""
    if _REPORT:
        terminalreporter.section("cost of faults")
        for cost in _REPORT:
            terminalreporter.write_line(str(cost))


@pytest.fixture
def cost(request: pytest.FixtureRequest) -> Iterator[Cost]:
    """What the test's fault costs, for the list at the end."""
    found = Cost(request.node.name.removeprefix("test_"))
    yield found
    _REPORT.append(found)


@pytest.fixture(scope="session")
def routed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentCluster]:
    """Six nodes of eight B200s and one without GPUs, for routers."""
    sandbox = Sandbox(tmp_path_factory.mktemp("router") / "sandbox")
    sandbox.up({"B200": 6}, speed=SPEED, start_speed=START_SPEED, operator=True)
    yield AgentCluster(sandbox, Kubectl(binary=sandbox.kubectl, kubeconfig=sandbox.kubeconfig))
    sandbox.down()


@pytest.fixture(scope="session")
def _pools(routed_cluster: AgentCluster) -> Iterator[dict[str, RoutedPool]]:
    """Both pools, begun together."""
    namespace = routed_cluster.namespace()
    pools = make_pools(routed_cluster, namespace)
    for pool in pools.values():
        pool.pool.apply()
    yield pools
    routed_cluster.empty(namespace)


@pytest.fixture
def routed(_pools: dict[str, RoutedPool]) -> RoutedPool:
    """Four Ready replicas of Kimi behind a router, and conversations that are warm on them."""
    pool = _pools["main"]
    pool.wait_ready()
    pool.warm()
    return pool


@pytest.fixture
def settled(_pools: dict[str, RoutedPool]) -> RoutedPool:
    """The same, where one replica may be on its way back: nobody waits for it before the next fault."""
    pool = _pools["main"]
    wait_until(lambda: _is_settled(pool), timeout_s=READY_S, describe="settled replicas", interval_s=0.5)
    pool.warm()
    return pool


def _is_settled(pool: RoutedPool) -> bool:
    with contextlib.suppress(OSError, ValueError, LookupError):
        routers = pool.routers()
        return len(routers) == pool.pool.get()["spec"]["router"]["replicas"] and all(
            router.picks() and router.has_store() and router.usable() >= 3 for router in routers
        )
    return False


@pytest.fixture
def closed(_pools: dict[str, RoutedPool]) -> RoutedPool:
    """One replica behind a router that wants a key, takes two requests and bodies up to 1 MiB."""
    pool = _pools["closed"]
    pool.wait_ready()
    return pool


@pytest.fixture(scope="session")
def store() -> Iterator[StoreProcess]:
    """A Valkey of the user's. It outlives the test that brings it in: the routers keep it."""
    with StoreProcess() as store:
        yield store


@pytest.fixture
def stopped() -> Iterator[Callable[[psutil.Process], None]]:
    """Freeze processes; they go on when the test has ended."""
    frozen: list[psutil.Process] = []

    def stop(process: psutil.Process) -> None:
        process.send_signal(signal.SIGSTOP)
        frozen.append(process)

    yield stop
    for process in frozen:
        if process.is_running():
            process.send_signal(signal.SIGCONT)
