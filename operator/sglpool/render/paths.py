"""Paths inside the engine pod, each named once.

The manifests mount them, the scripts use them. Nothing here touches a file system.
"""

from __future__ import annotations

from pathlib import PurePosixPath

ETC_DIR = "/etc/sglpool"
"""Read-only settings."""

SCRIPTS_DIR = f"{ETC_DIR}/launch"
"""Where the ConfigMap of `sglpool.render.scripts.engine_files` is mounted, one file per key."""

RUN_DIR = "/run/sglpool"
"""A small memory emptyDir: markers and the state of one pod; it outlives a container, not the pod."""

CACHE_DIR = "/var/lib/sglpool"
"""The node-local cache: weights and compiled kernels, shared by the replicas of a node."""

WARM_MARKER = f"{RUN_DIR}/warm"
"""Written by the launcher once the warm-up requests have succeeded; the startup probe tests for it."""

DRAINING_MARKER = f"{RUN_DIR}/draining"
"""Written when the pod is asked to stop; liveness never fails while it exists."""

KILLING_MARKER = f"{RUN_DIR}/killing"
"""Written by the liveness script before the failure that makes the kubelet restart the engine."""


def model_cache_dir(*, repo: str, revision: str) -> str:
    """Folder of one Hugging Face repository at one commit in the node-local cache.

    Raises:
        ValueError: when repo or revision would leave the cache folder.
    """
    parts = PurePosixPath(repo, revision).parts
    if "/" in revision or any(part in ("/", "..") for part in parts) or not (repo and revision):
        raise ValueError(f"repository {repo!r} at revision {revision!r} does not name a folder of the cache")
    return str(PurePosixPath(CACHE_DIR, "models", repo, revision))
