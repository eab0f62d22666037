"""helm as a function: the pinned Helm 4 of the control-plane binaries, and a Helm 3, which many clusters still use.

Helm 3 comes like every other binary: from the cache, its release, or a build from the Go module proxy.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sglpool.sandbox import binaries, gobuild
from sglpool.sandbox.downloads import ReleaseDownloads
from sglpool.sandbox.files import publish
from sglpool.sandbox.versions import HELM, Release, architecture

CHART = Path(__file__).parents[2] / "charts/sglpool"
HELM3 = "3.22.0"
KUBERNETES_MINIMUM = "1.32.0"
_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Helm:
    """One helm.

    Attributes:
        binary: The program.
        kubeconfig: Of a cluster; None to render and lint only.
    """

    binary: Path
    kubeconfig: Path | None = None

    def __call__(self, *arguments: str | Path) -> str:
        """Run it and return what it printed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"helm {' '.join(map(str, arguments))}: {done.stderr.strip()}"
        return done.stdout

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run it and return everything, for calls that are meant to be refused."""
        with tempfile.TemporaryDirectory() as home:
            # No plugin, repository or proxy of the user's may change what it does.
            own = {f"HELM_{name}_HOME": home for name in ("CACHE", "CONFIG", "DATA")}
            environ = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | own
            environ["KUBECONFIG"] = str(self.kubeconfig or Path(home) / "none")
            return subprocess.run(
                [self.binary, *arguments], env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )

    def template(self, *options: str, namespace: str = "sglpool-system") -> list[dict[str, Any]]:
        """The objects that the chart becomes."""
        text = self("template", "sglpool", CHART, "-n", namespace, "--kube-version", KUBERNETES_MINIMUM, *options)
        return [document for document in yaml.safe_load_all(text) if document]


class _Helm3Build:
    """Source of binaries: `go install` of Helm 3."""

    title = "a build from source"

    def __init__(self, work: Path) -> None:
        self._work = work

    def provide(self, missing: Collection[str], *, into: Path, say: Callable[[str], None]) -> None:
        """Build it."""
        self._work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._work) as out:
            target = f"helm.sh/helm/v3/cmd/helm@v{HELM3}"
            linker = f"-s -w -X helm.sh/helm/v3/internal/version.version=v{HELM3}"
            command = [gobuild._find_go(Path(out)), "install", "-v", "-trimpath", "-ldflags", linker, target]
            gobuild._run(command, cwd=Path(out), what="helm 3", say=say, extra_env={"GOBIN": out, "CGO_ENABLED": "0"})
            publish(Path(out) / "helm", into / "helm3")


def helm_binary(major: int, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """The program of Helm 3 or Helm 4."""
    if major == 4:
        assert HELM.startswith("4.")
        return binaries.ensure(["helm"], say=say)["helm"]
    root = binaries.cache_root(os.environ) / "helm"
    arch = architecture()
    url = f"https://get.helm.sh/helm-v{HELM3}-linux-{arch}.tar.gz"
    release = Release(url=url, checksum_url=f"{url}.sha256sum", member=f"linux-{arch}/helm")
    resolver = binaries.Resolver(
        folder=root / f"helm-{HELM3}_{arch}",
        assets=None,
        sources=[ReleaseDownloads({"helm3": release}, work=root / "work"), _Helm3Build(root / "work")],
    )
    return resolver.ensure(["helm3"], say=say)["helm3"]
