"""The container runtime of the node agent: pods as folders and containers as processes under bubblewrap.

It provides what a pod's manifest asks for and starts its containers; when and how often is the worker's business.
What it does not do: limit CPU, follow seccomp or AppArmor profiles, give pods a network of their own. Time, users and
rights are real. Nothing that it starts outlives the agent.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.images import Image, UnknownImage, resolve
from sglpool.sandbox.nodeagent import bubblewrap, logs, machinefiles, memory
from sglpool.sandbox.nodeagent.container import Container, ExecResult, Exit, Launch, launch_container
from sglpool.sandbox.nodeagent.contracts import Objects, StartFailed, VolumeFailed
from sglpool.sandbox.nodeagent.environment import command_line, hostname, variables_of
from sglpool.sandbox.nodeagent.files import Folders, faults_path, remove_tree, write_file
from sglpool.sandbox.nodeagent.volumes import Volumes

__all__ = ["Container", "ExecResult", "Exit", "Runtime", "StartFailed", "VolumeFailed", "faults_path"]

_ETC_FILES = ("passwd", "group", "nsswitch.conf", "hostname", "hosts", "resolv.conf")
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"


class Runtime:
    """Runs the containers of one sandbox's pods."""

    def __init__(
        self,
        root: Path,
        objects: Objects,
        *,
        machine: Callable[[Manifest], Mapping[str, object]],
        api_server: str,
        images: Callable[[str], Image] = resolve,
    ) -> None:
        """Keep everything under `root`.

        Args:
            root: The sandbox's folder.
            objects: Reads what pods mount and refer to.
            machine: Describes the machine of a pod, for its `machine.json`.
            api_server: Address of the API server, for programs in pods.
            images: Finds an image by its reference.

        Raises:
            SandboxError: bubblewrap or nsenter is not installed.
        """
        self._folders = Folders(root.absolute())
        self._objects = objects
        self._machine = machine
        self._api_server = api_server
        self._images = images
        self._volumes = Volumes(self._folders, objects)
        self._census = memory.Census()
        self._bubblewrap = _program("bwrap", "bubblewrap")
        _program("nsenter", "util-linux")

    async def prepare(self, pod: Manifest, pod_ip: str) -> None:
        """Provide the pod's folders and volumes; called again, it refreshes what ConfigMaps and the like say.

        Raises:
            VolumeFailed: A volume cannot be provided (yet); the text is that of a `FailedMount` event.
        """
        try:
            self._write_etc(pod, pod_ip)
            machinefiles.write_machine(self._folders, pod, self._machine(pod))
        except OSError as error:
            raise VolumeFailed(f"cannot write the pod's folder: {error.filename}: {error.strerror}") from None
        await self._volumes.provide(pod, pod_ip)

    async def start(self, pod: Manifest, container: Manifest, *, attempt: int, pod_ip: str) -> Container:
        """Start a container of a prepared pod; returns once its command runs. Call it from the main thread.

        Args:
            pod: The pod.
            container: One of its containers or init containers.
            attempt: 0 at first, one more for every restart; names the log.
            pod_ip: The pod's address.

        Raises:
            StartFailed: It cannot be started; the reason is the one a kubelet shows.
        """
        image = self._image(container)
        try:
            variables = await variables_of(
                pod, container, objects=self._objects, image=image, pod_ip=pod_ip, api_server=self._api_server
            )
        except StartFailed:
            raise
        except SandboxError as error:
            raise StartFailed("CreateContainerConfigError", str(error)) from None
        security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
        user = _user(container["name"], security)
        command = command_line(container, image, variables, pod_ip)
        mounts = self._volumes.mounts(pod, container, variables)
        try:
            folder = self._folders.container(pod, container["name"], attempt)
            remove_tree(folder.with_name(str(attempt - logs.KEPT_ATTEMPTS)))
            termination_log = folder / "termination-log"
            write_file(termination_log, b"", 0o666)
            log, log_descriptor = logs.open_log(self._folders.logs(pod, container["name"]), attempt)
        except OSError as error:
            raise StartFailed("CreateContainerError", f"{error.filename}: {error.strerror}") from None
        working_dir = container.get("workingDir") or "/"
        box = bubblewrap.Box(
            hostname=hostname(pod),
            variables=variables,
            binds=[*image.binds, (image.path, image.path), *self._own_binds(pod)],
            mounts=mounts,
            termination_log=(termination_log, container.get("terminationMessagePath") or "/dev/termination-log"),
            working_dir=working_dir,
            read_only_root=bool(security.get("readOnlyRootFilesystem")),
            capabilities=bubblewrap.capabilities_of(security),
            user=user,
        )
        launch = Launch(
            name=container["name"],
            image=container["image"],
            image_id=f"{image.name.partition('@')[0]}@sha256:{hashlib.sha256(image.name.encode()).hexdigest()}",
            bubblewrap=self._bubblewrap,
            options=bubblewrap.options(box),
            command=command,
            variables=variables,
            working_dir=working_dir,
            user_namespace=user is not None,
            log=log,
            log_descriptor=log_descriptor,
            termination_log=termination_log,
            message_from_log=container.get("terminationMessagePolicy") == "FallbackToLogsOnError",
            memory_limit_bytes=memory.limit_bytes(container),
        )
        return await launch_container(launch, self._census)

    def remove(self, pod: Manifest) -> None:
        """Remove the folders of a pod that has ended; its logs stay."""
        remove_tree(self._folders.pod(pod))

    def log_path(self, pod: Manifest, container: str, attempt: int | None = None) -> Path:
        """The log of one run of a container, of the newest without `attempt`; it need not exist."""
        name = logs.CURRENT_LINK if attempt is None else f"{attempt}.log"
        return self._folders.logs(pod, container) / name

    def _image(self, container: Manifest) -> Image:
        try:
            return self._images(container["image"])
        except UnknownImage as error:
            raise StartFailed("ErrImagePull", str(error)) from None
        except (OSError, SandboxError) as error:
            raise StartFailed("ErrImagePull", f"{container['image']}: {error}") from None

    def _own_binds(self, pod: Manifest) -> list[tuple[Path, Path]]:
        etc = self._folders.pod(pod) / "etc"
        binds = [(etc / name, Path("/etc", name)) for name in _ETC_FILES]
        return [*binds, (self._folders.machine(pod), Path(machinefiles.MOUNT_PATH))]

    def _write_etc(self, pod: Manifest, pod_ip: str) -> None:
        name = hostname(pod)
        try:
            resolver = Path("/etc/resolv.conf").read_bytes()
        except OSError:
            resolver = b""
        aliases = pod["spec"].get("hostAliases") or []
        hosts = [
            "# Managed by the sandbox's node agent.",
            "127.0.0.1\tlocalhost",
            f"{pod_ip}\t{name}",
            *(f"{alias['ip']}\t{' '.join(alias.get('hostnames') or [])}" for alias in aliases),
        ]
        contents = (
            _PASSWD.encode(),
            _GROUP.encode(),
            _NSSWITCH.encode(),
            f"{name}\n".encode(),
            "\n".join([*hosts, ""]).encode(),
            resolver,
        )
        for file, content in zip(_ETC_FILES, contents, strict=True):
            write_file(self._folders.pod(pod) / "etc" / file, content)


def _program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SandboxError(f"pods need the program {name}: install the package {package}")
    return path


def _user(container: str, security: Manifest) -> tuple[int, int] | None:
    """User and group of a container; None for root as root.

    Either way the container's user owns what the agent owns: it is another name for the agent's own user, so files in
    volumes never belong to somebody else.

    Raises:
        StartFailed: It must not run as root, and says root.
    """
    user = security.get("runAsUser")
    if security.get("runAsNonRoot") and user == 0:
        raise StartFailed(
            "CreateContainerConfigError", f"container's runAsUser breaks non-root policy (container: {container})"
        )
    if not user and os.geteuid() == 0:
        return None
    return int(user or 0), int(security.get("runAsGroup") or 0)
