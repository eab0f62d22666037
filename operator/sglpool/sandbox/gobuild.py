"""The control plane built from the Go module proxy, the last resort of the resolver.

Kubernetes and etcd come from the module in `controlplane/`, which pins every dependency by hash;
kwok is installed as a module of its own. Go's build cache makes an interrupted build go on where it stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path

from sglpool.sandbox.errors import SandboxError, SourceUnavailable
from sglpool.sandbox.files import publish
from sglpool.sandbox.processes import signals_held
from sglpool.sandbox.versions import KUBERNETES, KWOK

GO_MINIMUM = (1, 26)
BUILD_LIMIT_S = 3600.0
_REPORT_EVERY_S = 15.0
_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
_BUILT_AS = {"etcd": "server"}  # Go names a program after the last part of its path


class GoBuild:
    """Source of binaries: `go build` and `go install`."""

    title = "a build from source"

    def __init__(self, *, work: Path) -> None:
        """Build under `work`, which must be on the file system of the cache."""
        self._work = work

    def provide(self, missing: Collection[str], *, into: Path, say: Callable[[str], None]) -> None:
        """Build every missing program that this source knows.

        Raises:
            SourceUnavailable: Go is absent or too old.
            SandboxError: The build failed.
        """
        built = [name for name in _PACKAGES if name in missing]
        if not built and "kwok" not in missing:
            return
        self._work.mkdir(parents=True, exist_ok=True)
        module = resources.files("sglpool.sandbox") / "controlplane"
        with resources.as_file(module) as folder, tempfile.TemporaryDirectory(dir=self._work) as out:
            go = _find_go(folder)
            if built:
                _run(
                    [go, "build", "-v", *_flags(), "-o", f"{out}/", *(_PACKAGES[name] for name in built)],
                    cwd=folder,
                    what=", ".join(built),
                    say=say,
                )
            for name in built:
                publish(Path(out) / _BUILT_AS.get(name, name), into / name)
            if "kwok" in missing:
                # `@version` reads no go.mod here, so kwok keeps its own pins.
                target = f"sigs.k8s.io/kwok/cmd/kwok@v{KWOK}"
                command = [go, "install", "-v", "-trimpath", "-ldflags", "-s -w", target]
                _run(command, cwd=folder, what="kwok", say=say, extra_env={"GOBIN": out})
                publish(Path(out) / "kwok", into / "kwok")


def _flags() -> list[str]:
    major, minor, _ = KUBERNETES.split(".")
    package = "k8s.io/component-base/version"
    # Without these the API server calls itself v0.0.0.
    stamps = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    linker = ["-s", "-w", *(f"-X {package}.{key}={value}" for key, value in stamps.items())]
    return ["-trimpath", "-ldflags", " ".join(linker)]


def _environment() -> dict[str, str]:
    # Distributions turn the toolchain download off; with it, any Go since 1.21 will do.
    return {"GOTOOLCHAIN": "auto", **os.environ}


def _find_go(module: Path) -> str:
    wanted = ".".join(map(str, GO_MINIMUM))
    go = shutil.which("go")
    if not go:
        raise SourceUnavailable(
            f"`go` is not on PATH; install Go {wanted} or newer, or point KUBEBUILDER_ASSETS at a folder with "
            "the binaries"
        )
    # Asked inside the module: an older `go` then answers for the newer toolchain that it would fetch.
    command = [go, "env", "GOVERSION"]
    found = subprocess.run(
        command, cwd=module, env=_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    version = found.stdout.strip().removeprefix("go")
    with contextlib.suppress(ValueError):
        if tuple(int(part) for part in version.split(".")[:2]) >= GO_MINIMUM:
            return go
    raise SourceUnavailable(f"{go} is Go {version or 'of an unknown version'}; {wanted} or newer is needed")


def _run(
    command: Sequence[str],
    *,
    cwd: Path,
    what: str,
    say: Callable[[str], None],
    extra_env: Mapping[str, str] | None = None,
) -> None:
    """Run a Go command, report its progress, and end it with us when we are interrupted."""
    started = reported = time.monotonic()
    say(f"{what}: building from source; the first time takes minutes, and may be interrupted")
    compiled = 0
    last: list[str] = []
    process: subprocess.Popen[str] | None = None
    limit: threading.Timer | None = None
    try:
        with signals_held():  # until the process is known, nobody could end it
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=_environment() | dict(extra_env or {}),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        limit = threading.Timer(BUILD_LIMIT_S, _kill_group, [process.pid])
        limit.daemon = True
        limit.start()
        for line in process.stderr or ():  # `-v` prints a line per package, and errors
            compiled += 1
            last = [*last[-9:], line.rstrip()]
            if (now := time.monotonic()) - reported > _REPORT_EVERY_S:
                reported = now
                say(f"{what}: {compiled} packages fetched or compiled after {now - started:.0f} s")
        process.wait()
    finally:
        if limit:
            limit.cancel()
        if process:
            if process.poll() is None:
                _kill_group(process.pid)
            process.communicate()
    if process.returncode != 0:
        raise SandboxError(f"{what}: `{' '.join(command[:2])}` failed:\n  " + "\n  ".join(last))
    say(f"{what}: built in {time.monotonic() - started:.0f} s")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
