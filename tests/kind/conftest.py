"""The same kubeconfig fixture on kind: pytest-kind's cluster, with our fake GPU nodes on it.

kind's own nodes are cordoned, so that pods of the tests run on fake nodes as they do in the sandbox. Nothing
is downloaded by pytest-kind: kind is taken from PATH, kubectl from our resolver.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglpool.sandbox import binaries
from sglpool.sandbox.apiserver import ApiServer
from sglpool.sandbox.cluster import stage_documents
from sglpool.sandbox.controlplane import free_ports, kwok
from sglpool.sandbox.nodes import add_node, cordon_node, node_names, node_states
from sglpool.sandbox.processes import ProcessTable
from support.waiting import wait_until

NODES = {"B200": 4, "B300": 2, "CPU": 1}


def missing_for_kind() -> str:
    """What keeps kind from running here, empty when nothing does."""
    answers = []
    for engine in ("docker", "podman"):
        if not shutil.which(engine):
            answers.append(f"{engine} is not installed")
            continue
        asked = subprocess.run([engine, "info"], capture_output=True, text=True, timeout=60, check=False)
        if asked.returncode == 0:
            return "" if shutil.which("kind") else "kind is not on PATH"
        answers.append(f"`{engine} info` says: {(asked.stderr.strip().splitlines() or ['nothing'])[-1]}")
    return f"no container engine: {'; '.join(answers)}"


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kind cluster with fake GPU nodes, for the whole session."""
    if reason := missing_for_kind():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("kind")
    found = binaries.ensure(["kubectl", "kwok"], say=lambda _: None)
    options = request.config.option
    options.kind_bin = options.kind_bin or shutil.which("kind")
    options.kind_kubectl_bin = options.kind_kubectl_bin or str(found["kubectl"])
    options.kubeconfig = options.kubeconfig or str(folder / "kubeconfig")
    cluster = request.getfixturevalue("kind_cluster")
    path = Path(cluster.kubeconfig_path)
    (folder / "stages.yaml").write_text(stage_documents())
    player = kwok(binary=found["kwok"], kubeconfig=path, stages=folder / "stages.yaml", port=free_ports()["kwok"])
    table = ProcessTable(folder)
    table.start(player)
    try:
        table.wait_ready(player)
        _add_fake_nodes(ApiServer(path))
        yield path
    finally:
        table.stop_all()


def _add_fake_nodes(api: ApiServer) -> None:
    own = {state.name for state in node_states(api)}
    wanted = set(node_names(NODES))
    for name in own - wanted:
        cordon_node(api, name)
    for name in wanted - own:
        add_node(api, name)

    def usable() -> set[str]:
        return {state.name for state in node_states(api) if state.ready and state.schedulable}

    wait_until(lambda: wanted <= usable(), timeout_s=60, describe="the fake nodes are usable")
