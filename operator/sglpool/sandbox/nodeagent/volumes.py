"""The volumes of a pod as folders of this machine, and where a container mounts them.

ConfigMaps, Secrets, tokens and the downward API are written anew at every `provide`, so a repeated call refreshes
them. A claim is a folder that outlives pods; whether the claim exists is the scheduler's business. Not here: the
mounting itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sglpool.api.quantity import parse_bytes
from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.contracts import Objects, StartFailed, VolumeFailed
from sglpool.sandbox.nodeagent.environment import (
    PROGRAMS,
    bytes_on_pod_address,
    data_of,
    expand,
    field_value,
    resource_value,
)
from sglpool.sandbox.nodeagent.files import DEFAULT_MODE, Folders, ProjectedFile, write_volume

SHARED_MEMORY = "/dev/shm"
DEFAULT_SHARED_MEMORY_BYTES = 64 * 2**20
"""What container runtimes give a container that mounts nothing there."""
_TOKEN_EXPIRY_S = 3600
_ROOT_CA = "kube-root-ca.crt"

Files = dict[str, ProjectedFile]


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of a container.

    Attributes:
        target: Path in the container.
        source: Path on this machine; None for memory of the container's own.
        size_bytes: Size of that memory.
        read_only: Whether the container may only read.
    """

    target: str
    source: Path | None
    size_bytes: int = 0
    read_only: bool = False


class Volumes:
    """Provides the volumes of pods."""

    def __init__(self, folders: Folders, objects: Objects) -> None:
        """Keep volumes in `folders`, with content from `objects`."""
        self._folders = folders
        self._objects = objects

    async def provide(self, pod: Manifest, pod_ip: str) -> None:
        """Make every volume of the pod, or refresh it.

        Raises:
            VolumeFailed: One cannot be provided; the text is that of a `FailedMount` event.
        """
        for volume in pod["spec"].get("volumes") or []:
            name = volume["name"]
            try:
                await self._provide(pod, volume, pod_ip)
            except SandboxError as error:
                raise VolumeFailed(f'MountVolume.SetUp failed for volume "{name}" : {error}') from None
            except OSError as error:
                raise VolumeFailed(
                    f'MountVolume.SetUp failed for volume "{name}" : {error.filename}: {error.strerror}'
                ) from None

    async def _provide(self, pod: Manifest, volume: Manifest, pod_ip: str) -> None:
        projections = _Projections(pod, self._objects, pod_ip)
        folder = self._folders.volume(pod, volume["name"])
        if "emptyDir" in volume:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
        elif "hostPath" in volume:
            check_host_path(self._host_path(pod, volume), volume["hostPath"])
        elif "persistentVolumeClaim" in volume:
            self._claim(pod, volume).mkdir(parents=True, exist_ok=True)
        elif "projected" in volume:
            source = volume["projected"]
            write_volume(folder, await projections.all_of(source.get("sources") or [], _mode(source)))
        elif kind := next((kind for kind in projections.kinds if kind in volume), None):
            source = volume[kind]
            write_volume(folder, await projections.one(kind, source, _mode(source)))
        else:
            kind = next((key for key in volume if key != "name"), "nothing")
            raise VolumeFailed(f"volumes of kind {kind} are not supported by the sandbox")

    def mounts(self, pod: Manifest, container: Manifest, variables: Mapping[str, str]) -> list[Mount]:
        """Where a container mounts what, outer paths first.

        Raises:
            StartFailed: A mount refers to a volume that the pod has not, or leads out of its volume.
        """
        by_name = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
        found = [Mount(SHARED_MEMORY, None, DEFAULT_SHARED_MEMORY_BYTES)]
        for mount in container.get("volumeMounts") or []:
            target = str(PurePosixPath("/", mount["mountPath"]))
            volume = by_name.get(mount["name"])
            if volume is None:
                raise StartFailed(
                    "CreateContainerConfigError",
                    f"container {container['name']}: volumeMounts: the pod has no volume {mount['name']!r}",
                )
            if target == SHARED_MEMORY:
                found = [other for other in found if other.target != SHARED_MEMORY]
            if target == SHARED_MEMORY and (volume.get("emptyDir") or {}).get("medium") == "Memory":
                found.append(Mount(target, None, _size_limit_bytes(volume)))
                continue
            source = self._source(pod, volume)
            sub_path = mount.get("subPath") or expand(mount.get("subPathExpr", ""), variables)
            read_only = bool(mount.get("readOnly")) or not _writable(volume)
            found.append(Mount(target, _inside(source, sub_path, container["name"]), read_only=read_only))
        return sorted(found, key=lambda mount: mount.target.count("/"))

    def _source(self, pod: Manifest, volume: Manifest) -> Path:
        if "hostPath" in volume:
            return self._host_path(pod, volume)
        if "persistentVolumeClaim" in volume:
            return self._claim(pod, volume)
        return self._folders.volume(pod, volume["name"])

    def _host_path(self, pod: Manifest, volume: Manifest) -> Path:
        root = self._folders.node_root(pod["spec"]["nodeName"])
        path: str = volume["hostPath"]["path"]
        return root / os.path.normpath(f"/{path}").lstrip("/")

    def _claim(self, pod: Manifest, volume: Manifest) -> Path:
        return self._folders.claim(pod["metadata"]["namespace"], volume["persistentVolumeClaim"]["claimName"])


def check_host_path(path: Path, source: Manifest) -> None:
    """Make or check a path of the node, by the type of the hostPath.

    Raises:
        VolumeFailed: The path is not of that type.
    """
    kind = source.get("type") or ""
    if kind in ("DirectoryOrCreate", "") and not path.exists():
        path.mkdir(parents=True)
    if kind == "FileOrCreate" and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o644)
    checks: dict[str, tuple[str, Callable[[], bool]]] = {
        "DirectoryOrCreate": ("directory", path.is_dir),
        "Directory": ("directory", path.is_dir),
        "FileOrCreate": ("file", path.is_file),
        "File": ("file", path.is_file),
        "Socket": ("socket file", path.is_socket),
        "CharDevice": ("character device", path.is_char_device),
        "BlockDevice": ("block device", path.is_block_device),
    }
    if kind in checks and not checks[kind][1]():
        raise VolumeFailed(f"hostPath type check failed: {source['path']} is not a {checks[kind][0]}")


class _Projections:
    """Reads the files of projected volumes for one pod."""

    kinds = ("configMap", "secret", "downwardAPI", "serviceAccountToken")

    def __init__(self, pod: Manifest, objects: Objects, pod_ip: str) -> None:
        self._pod = pod
        self._objects = objects
        self._pod_ip = pod_ip
        self._namespace: str = pod["metadata"]["namespace"]

    async def all_of(self, sources: list[Manifest], mode: int) -> Files:
        """The files of all sources of a `projected` volume; later ones win."""
        files: Files = {}
        for source in sources:
            kind = next((kind for kind in self.kinds if kind in source), None)
            if kind is None:
                raise VolumeFailed(f"projected sources of kind {next(iter(source))} are not supported by the sandbox")
            files |= await self.one(kind, source[kind], mode)
        return files

    async def one(self, kind: str, source: Manifest, mode: int) -> Files:
        """The files of one source."""
        if kind == "serviceAccountToken":
            return await self._token(source)
        if kind == "downwardAPI":
            return {item["path"]: self._field(item, mode) for item in source.get("items") or []}
        return await self._keys(kind, source, mode)

    async def _token(self, source: Manifest) -> Files:
        account = self._pod["spec"].get("serviceAccountName", "default")
        expiry_s = int(source.get("expirationSeconds") or _TOKEN_EXPIRY_S)
        token = await self._objects.token(self._namespace, account, source.get("audience", ""), expiry_s, self._pod)
        return {source["path"]: ProjectedFile(token.encode(), 0o600)}

    def _field(self, item: Manifest, mode: int) -> ProjectedFile:
        if "resourceFieldRef" in item:
            reference = item["resourceFieldRef"]
            name = reference["containerName"]
            containers = self._pod["spec"]["containers"]
            container = next((one for one in containers if one["name"] == name), None)
            if container is None:
                raise VolumeFailed(f"downwardAPI: the pod has no container {name!r}")
            text = resource_value(container, reference)
        else:
            text = field_value(self._pod, item["fieldRef"]["fieldPath"], self._pod_ip)
        return ProjectedFile(text.encode(), int(item.get("mode") or mode))

    async def _keys(self, kind: str, source: Manifest, mode: int) -> Files:
        secret = kind == "secret"
        # A secret volume has its own word for the name; a projected one has not.
        name = source.get("secretName") or source.get("name")
        get = self._objects.get_secret if secret else self._objects.get_config_map
        found = await get(self._namespace, str(name))
        if found is None:
            if source.get("optional"):
                return {}
            raise VolumeFailed(f'{kind.lower()} "{name}" not found')
        data = data_of(found, secret=secret)
        # The cluster's own certificate is no server's setting.
        if not secret and name != _ROOT_CA:
            data = {
                key: content if key.endswith(PROGRAMS) else bytes_on_pod_address(content, self._pod_ip)
                for key, content in data.items()
            }
        items = source.get("items")
        if not items:
            return {key: ProjectedFile(content, mode) for key, content in data.items()}
        word = "secret" if secret else "config"
        files: Files = {}
        for item in items:
            if item["key"] in data:
                files[_relative(item["path"])] = ProjectedFile(data[item["key"]], int(item.get("mode") or mode))
            elif not source.get("optional"):
                raise VolumeFailed(f"references non-existent {word} key: {item['key']}")
        return files


def _mode(source: Manifest) -> int:
    mode = source.get("defaultMode")
    return DEFAULT_MODE if mode is None else int(mode)


def _relative(path: str) -> str:
    if path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise VolumeFailed(f"invalid path {path!r}: it must stay inside the volume")
    return path


def _size_limit_bytes(volume: Manifest) -> int:
    limit = volume["emptyDir"].get("sizeLimit")
    # A memory volume without a limit may use the whole machine.
    return parse_bytes(limit) if limit else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _writable(volume: Manifest) -> bool:
    claim = volume.get("persistentVolumeClaim") or {}
    projected = any(kind in volume for kind in ("configMap", "secret", "downwardAPI", "projected"))
    return not projected and not claim.get("readOnly")


def _inside(volume: Path, sub_path: str, container: str) -> Path:
    """A path inside a volume, made when missing; symbolic links must not lead out of it."""
    path = volume / sub_path
    if sub_path.startswith("/") or ".." in PurePosixPath(sub_path).parts:
        raise StartFailed(
            "CreateContainerConfigError", f"container {container}: subPath {sub_path!r} leaves its volume"
        )
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(volume)):
        raise StartFailed(
            "CreateContainerConfigError", f"container {container}: subPath {sub_path!r} leaves its volume"
        )
    if not real.exists():
        try:
            real.mkdir(parents=True)
        except OSError as error:
            raise StartFailed(
                "CreateContainerConfigError",
                f'failed to prepare subPath for volumeMount "{sub_path}": {error.strerror}',
            ) from None
    return real
