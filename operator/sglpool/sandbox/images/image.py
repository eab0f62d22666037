"""What an image is, and the error of one that does not exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class UnknownImage(Exception):
    """No such image; the text is the sentence that a kubelet shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image.

    Attributes:
        name: the reference as it was asked for.
        path: a folder of executables, put first on PATH in the container; it is visible there under the same path.
        env: variables of the image; a pod's own win.
        binds: (source, target) folders that the executables need, to be mounted read-only.
        command: the entrypoint, for a pod that has no command.
    """

    name: str
    path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[tuple[Path, Path], ...] = ()
    command: tuple[str, ...] = ()
