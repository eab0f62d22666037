"""A stand-in for the hub's client: the calls that download a repository, served from the sandbox's own hub.

There is no network and no waiting. A file that is there in full is not written again; one that is there in part is
completed, as the real client goes on with a broken-off download.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from sglpool.sandbox.images import hub

__version__ = "0.0.0+simulated"


@dataclass(frozen=True)
class Response:
    """The answer that an error carries."""

    status_code: int


class HfHubHTTPError(Exception):
    """The hub refused; `response.status_code` says how."""

    def __init__(self, message: str, response: Response) -> None:
        super().__init__(message)
        self.response = response


class RepositoryNotFoundError(HfHubHTTPError):
    """No such repository, or no such revision of it."""


@dataclass(frozen=True)
class RepoSibling:
    """One file of a repository."""

    rfilename: str
    size: int | None


@dataclass(frozen=True)
class ModelInfo:
    """A repository, with its files."""

    id: str
    siblings: list[RepoSibling]


class HfApi:
    """The calls about repositories."""

    def model_info(self, repo_id: str, *, revision: str | None = None, files_metadata: bool = False) -> ModelInfo:
        """The files of a repository; sizes only when asked for.

        Raises:
            RepositoryNotFoundError: there is none.
        """
        files = _files(repo_id, revision)
        siblings = [RepoSibling(name, len(content) if files_metadata else None) for name, content in files.items()]
        return ModelInfo(id=repo_id, siblings=siblings)


def snapshot_download(
    repo_id: str,
    *,
    revision: str | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    ignore_patterns: Sequence[str] | None = None,
) -> str:
    """Write a repository's files into a folder; returns the folder.

    Raises:
        RepositoryNotFoundError: there is none.
        OSError: a file cannot be written.
    """
    files = _files(repo_id, revision)
    folder = Path(local_dir) if local_dir is not None else _cache_folder(repo_id)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if any(fnmatch(name, pattern) for pattern in ignore_patterns or ()):
            continue
        target = folder / name
        if not (target.is_file() and target.stat().st_size == len(content)):
            draft = target.with_name(f"{name}.incomplete")
            draft.write_bytes(content)
            draft.replace(target)
    return str(folder)


def _files(repo_id: str, revision: str | None) -> dict[str, bytes]:
    try:
        return dict(hub.repository(repo_id, revision))
    except hub.RepositoryNotFound as error:
        raise RepositoryNotFoundError(f"404 Client Error. {error}", Response(404)) from error


def _cache_folder(repo_id: str) -> Path:
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(home, "hub", f"models--{repo_id.replace('/', '--')}", "snapshots", "simulated")
