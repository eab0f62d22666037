"""What the tests on a real control plane share: the CRD, and one operator for the session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglpool.sandbox.nodes import node_manifest
from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, NodeMaker, PoolMaker, small_pool
from support.waiting import wait_until


@pytest.fixture(scope="session")
def crd(kubectl: Kubectl) -> None:
    """The CRD, as `sglpool crd` prints it, established."""
    text = subprocess.run(
        [sys.executable, "-m", "sglpool", "crd"], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    kubectl("apply", "--server-side", "-f", "-", input=text)
    # Not `kubectl wait`: it fails on a CRD that has no condition at all yet.
    wait_until(
        lambda: kubectl.run("get", "sglpool").returncode == 0, timeout_s=30, describe="InferencePools are served"
    )


@pytest.fixture(scope="session")
def operator(crd: None, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The operator, running. Tests that stop it start it again."""
    process = OperatorProcess(kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def add_nodes(kubectl: Kubectl, namespace: str) -> Iterator[NodeMaker]:
    """Add fake nodes for this test alone: their label is the namespace."""
    added: list[str] = []

    def add(*names: str) -> dict[str, Any]:
        added.extend(names)
        for name in names:
            manifest = node_manifest(name)
            manifest["metadata"]["labels"]["test"] = namespace
            kubectl("apply", "--server-side", "-f", "-", input=json.dumps(manifest))
        return {"nodeSelector": {"test": namespace}}

    yield add
    kubectl("delete", "node", "--ignore-not-found", *added)


@pytest.fixture
def make_pool(kubectl: Kubectl, namespace: str, operator: OperatorProcess) -> PoolMaker:
    """Create small pools in the test's namespace."""

    def make(name: str = "p", **spec: object) -> ClusterPool:
        pool = ClusterPool(kubectl, namespace, small_pool(name, **spec))
        pool.apply()
        return pool

    return make
