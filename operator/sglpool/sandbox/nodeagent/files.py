"""Where the files of pods lie, and how they are written so that a container never sees half a file.

Everything is under `<sandbox>/agent`: `pods/<uid>` goes with the pod, `logs` stays, `nodes/<node>/root` is what a
node's hostPath volumes see, `claims` are the persistent volumes. Not here: what the files say.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglpool.sandbox.apiserver import Manifest

DEFAULT_MODE = 0o644
_DATA_LINK = "..data"


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    """One file of a ConfigMap, Secret, downward API or projected volume."""

    content: bytes
    mode: int = DEFAULT_MODE


@dataclass(frozen=True, slots=True)
class Folders:
    """The node agent's folders under the folder of a sandbox."""

    root: Path

    @property
    def agent(self) -> Path:
        """Everything of the node agent."""
        return self.root / "agent"

    def pod(self, pod: Manifest) -> Path:
        """What goes when the pod goes."""
        return self.agent / "pods" / str(pod["metadata"]["uid"])

    def volume(self, pod: Manifest, name: str) -> Path:
        """A volume that belongs to the pod alone."""
        return self.pod(pod) / "volumes" / name

    def container(self, pod: Manifest, name: str, attempt: int) -> Path:
        """The files of one run of a container."""
        return self.pod(pod) / "containers" / name / str(attempt)

    def machine(self, pod: Manifest) -> Path:
        """What the pod's containers see as /run/sandbox."""
        return self.pod(pod) / "machine"

    def logs(self, pod: Manifest, container: str) -> Path:
        """The logs of a container, one file for each of its runs."""
        metadata = pod["metadata"]
        return self.agent / "logs" / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}" / container

    def node_root(self, node: str) -> Path:
        """A node's own file system, as hostPath volumes see it."""
        return self.agent / "nodes" / node / "root"

    def claim(self, namespace: str, name: str) -> Path:
        """The content of a PersistentVolumeClaim."""
        return self.agent / "claims" / namespace / name

    def faults(self, pod: Manifest) -> Path:
        """The file that orders faults of the pod's simulated engine."""
        return self.machine(pod) / "faults.json"


def faults_path(root: Path, pod: Manifest) -> Path:
    """The file that orders faults of a pod's simulated engine; `root` is the sandbox's folder."""
    return Folders(root).faults(pod)


def write_file(path: Path, content: bytes, mode: int = DEFAULT_MODE) -> None:
    """Write a file so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        part.write_bytes(content)
        part.chmod(mode)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_volume(folder: Path, files: Mapping[str, ProjectedFile]) -> None:
    """Replace the content of a projected volume in one step, as a kubelet does.

    The files lie in a folder of their own; `..data` points at it, and every name points through `..data`. So a
    container that holds the volume mounted sees either all old files or all new ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if _current(folder) == dict(files):
        return
    fresh = folder / f"..{uuid.uuid4().hex}"
    try:
        for name, file in files.items():
            write_file(fresh / name, file.content, file.mode)
        fresh.mkdir(exist_ok=True)
        before = os.readlink(folder / _DATA_LINK) if (folder / _DATA_LINK).is_symlink() else ""
        _point(folder / _DATA_LINK, fresh.name)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    tops = {name.partition("/")[0] for name in files}
    for top in tops:
        if not (folder / top).is_symlink():
            _point(folder / top, f"{_DATA_LINK}/{top}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if before:
        shutil.rmtree(folder / before, ignore_errors=True)


def _current(folder: Path) -> dict[str, ProjectedFile] | None:
    data = folder / _DATA_LINK
    if not data.is_symlink():
        return None
    with contextlib.suppress(OSError):
        return {
            str(path.relative_to(data)): ProjectedFile(path.read_bytes(), path.stat().st_mode & 0o777)
            for path in data.rglob("*")
            if path.is_file()
        }
    return None


def _point(link: Path, target: str) -> None:
    part = link.with_name(f"..{uuid.uuid4().hex}.link")
    part.symlink_to(target)
    part.replace(link)


def remove_tree(folder: Path) -> None:
    """Remove a folder and everything in it; fine when there is none, or when something resists."""
    shutil.rmtree(folder, ignore_errors=True)
