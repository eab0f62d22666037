"""The command line of bubblewrap for one container: its file system, its namespaces, its rights.

Pure: it decides words, it starts nothing. The network is the machine's own, as pods differ by their loopback
addresses. CPU and memory are not limited here (`memory` watches the latter), and seccomp profiles are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.nodeagent.volumes import Mount

_TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What programs of /usr need from the machine's /etc; everything else of it stays out.
_ETC = ("alternatives", "ssl", "ca-certificates", "pki", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
# What a container may do unless it drops it: the set of the usual runtimes.
_DEFAULT_CAPABILITIES = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
# By number, for the mask in /proc/self/status.
_CAPABILITY_NAMES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What a container gets.

    Attributes:
        hostname: Its host name.
        variables: Its whole environment.
        binds: Read-only folders and files of the machine, each with its place.
        mounts: Its volumes, outer paths first.
        termination_log: File behind its termination message, with its place.
        working_dir: Where it starts; made when missing.
        read_only_root: Whether only its volumes can be written.
        capabilities: What it may do; None to leave that alone, as an agent without rights has none to give.
        user: User and group ids; None for those of an agent that is root.
    """

    hostname: str
    variables: Mapping[str, str]
    binds: Sequence[tuple[Path, Path]]
    mounts: Sequence[Mount]
    termination_log: tuple[Path, str]
    working_dir: str
    read_only_root: bool
    capabilities: Collection[str] | None
    user: tuple[int, int] | None


def options(box: Box) -> list[str]:
    """All options of bubblewrap except its file descriptors."""
    words = ["--unshare-pid", "--as-pid-1", "--die-with-parent", "--unshare-ipc", "--unshare-uts"]
    words += ["--hostname", box.hostname, "--clearenv"]
    if box.user:
        words += ["--unshare-user", "--uid", str(box.user[0]), "--gid", str(box.user[1])]
    for name, value in box.variables.items():
        words += ["--setenv", name, value]
    words += _machine(box.read_only_root)
    for source, target in box.binds:
        words += [*_parents(target), "--ro-bind", str(source), str(target)]
    for mount in box.mounts:
        words += [*_parents(Path(mount.target)), *_mount(mount)]
    words += ["--bind", str(box.termination_log[0]), box.termination_log[1]]
    words += ["--dir", box.working_dir, "--chdir", box.working_dir]
    if box.read_only_root:
        words += ["--remount-ro", "/"]
    if box.capabilities is not None:
        words += ["--cap-drop", "ALL"]
        for name in sorted(box.capabilities):
            words += ["--cap-add", f"CAP_{name}"]
    return words


def _machine(read_only_root: bool) -> list[str]:
    """The parts of this machine that every container sees."""
    words = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--ro-bind-try", "/sys", "/sys"]
    for name in _TOP_FOLDERS:
        path = f"/{name}"
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    words += ["--perms", "0755", "--dir", "/etc"]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    words += ["--dir", "/root", "--dir", "/run", "--dir", "/var/tmp"]
    # A real image whose root is read-only has no writable /tmp either.
    return [*words, "--dir", "/tmp"] if read_only_root else [*words, "--perms", "1777", "--tmpfs", "/tmp"]


def _parents(target: Path) -> list[str]:
    """The folders above a mount, for everybody to read: bubblewrap's own are for their owner alone."""
    folders = [str(parent) for parent in reversed(target.parents) if str(parent) != "/"]
    return [word for folder in folders for word in ("--perms", "0755", "--dir", folder)]


def _mount(mount: Mount) -> list[str]:
    if mount.source is None:
        return ["--perms", "1777", "--size", str(mount.size_bytes), "--tmpfs", mount.target]
    return ["--ro-bind" if mount.read_only else "--bind", str(mount.source), mount.target]


def capabilities_of(security: Manifest) -> frozenset[str] | None:
    """What a container may do by its securityContext, as far as the agent itself may; None to leave that alone."""
    if os.geteuid() != 0:
        return None
    if security.get("runAsUser"):
        # Programs of other users start without any, whatever is added.
        return frozenset()
    own = _own_capabilities()
    if security.get("privileged"):
        return own
    changes: Mapping[str, Sequence[str]] = security.get("capabilities") or {}
    dropped = {name.removeprefix("CAP_") for name in changes.get("drop") or []}
    added = {name.removeprefix("CAP_") for name in changes.get("add") or []}
    kept = frozenset() if "ALL" in dropped else _DEFAULT_CAPABILITIES - dropped
    return own & (own if "ALL" in added else kept | added)


def _own_capabilities() -> frozenset[str]:
    status = Path("/proc/self/status").read_text()
    mask = int(status.partition("CapEff:")[2].split()[0], 16)
    return frozenset(name for number, name in enumerate(_CAPABILITY_NAMES) if mask >> number & 1)
