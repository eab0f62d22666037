"""A cluster without anything of ours, whose pods are processes: what a platform team begins with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sglpool.sandbox.cluster import Sandbox
from support.helm import Helm, helm_binary
from support.kubectl import Kubectl

SPEED = 60.0


@dataclass(frozen=True)
class EmptyCluster:
    """The cluster, and both helms for it."""

    sandbox: Sandbox
    kubectl: Kubectl

    def helm(self, major: int) -> Helm:
        """Helm 3 or Helm 4."""
        return Helm(helm_binary(major), self.sandbox.kubeconfig)

    def namespace(self, name: str, *, level: str = "restricted") -> str:
        """A namespace with a Pod Security level."""
        self.kubectl.create_namespace(name)
        self.kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={level}")
        return name


@pytest.fixture(scope="session")
def cluster(helm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmptyCluster]:
    """One node of eight B200s and one without GPUs."""
    sandbox = Sandbox(tmp_path_factory.mktemp("install") / "sandbox")
    sandbox.up({"B200": 1}, speed=SPEED)
    yield EmptyCluster(sandbox, Kubectl(binary=sandbox.kubectl, kubeconfig=sandbox.kubeconfig))
    sandbox.down()


@pytest.fixture(scope="session")
def helm() -> None:
    """Asked for by name, so that Helm 3 is there before the first test."""
