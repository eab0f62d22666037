"""Replicas that are taken away or lost are counted as what they were. Last of this folder: it costs a node."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from observability.live.watched import Watched
from support.pool_on_cluster import ClusterPool, small_pool
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

READY_S = 120.0


@pytest.fixture
def plain(watched: Watched) -> Iterator[ClusterPool]:
    """Two small replicas without a router, which have all the time to become empty."""
    spec = {"replicas": 2, "router": {"enabled": False}, "engine": {"warmup": {"promptTokens": 2000}}}
    pool = ClusterPool(watched.kubectl, "default", small_pool("plain", rollout={"drainTimeout": "10m"}, **spec))
    pool.apply()
    pool.wait_ready(READY_S)
    yield pool
    watched.kubectl("delete", "sglpool", "plain", "--wait=false")


def counted(watched: Watched, name: str, *labels: str) -> float:
    """Sum of the series of pool `plain` that carry these labels, as the operator shows them."""
    with urllib.request.urlopen(f"http://{watched.operator_address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = ('pool="plain"', *labels)
    found = [line for line in lines if line.startswith(f"{name}{{") and all(label in line for label in wanted)]
    assert found, (name, labels)
    return sum(float(line.rpartition(" ")[2]) for line in found)


def test_an_emptied_replica_and_one_lost_with_its_node_are_counted_apart(watched: Watched, plain: ClusterPool):
    removed = "sglpool_pool_removed_replicas_total"
    assert (counted(watched, removed), counted(watched, "sglpool_pool_lost_replicas_total")) == (0.0, 0.0)

    plain.apply(replicas=1)
    wait_until(lambda: len(plain.pods()) == 1, timeout_s=90, describe="one replica is left", interval_s=0.5)
    assert counted(watched, "sglpool_pool_drains_total") == 1.0
    assert counted(watched, removed, 'end="empty"') == 1.0
    assert counted(watched, removed, 'end="late"') == 0.0
    assert counted(watched, "sglpool_pool_cut_requests_total") == 0.0

    (pod,) = plain.pods().values()
    node = pod["spec"]["nodeName"]
    assert re.fullmatch(r"b200-\d", node)
    command = [sys.executable, "-m", "sglpool", "sandbox", "node", "delete", node]
    subprocess.run([*command, "--dir", str(watched.sandbox.folder)], check=True, timeout=60, capture_output=True)
    wait_until(
        lambda: counted(watched, "sglpool_pool_lost_replicas_total", 'gpu="B200"') == 1.0,
        timeout_s=90,
        describe="the lost replica is counted",
        interval_s=0.5,
    )
    assert counted(watched, removed) == 1.0, "it was not taken away"
