#!/usr/bin/env python3
"""Downloads one Hugging Face repository into the node's cache, one pod at a time.

Used by weights.py. Not here: whether the files are whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from sglpool.render.templates import sglpool_engine as engine
else:  # in the pod the scripts lie side by side
    import sglpool_engine as engine

MAX_BACKOFF_S = 300
# Answers of the hub that asking again does not change.
PERMANENT = {
    401: "the hub refused the token: check the Secret behind HF_TOKEN",
    403: "the hub refused access: accept the model's licence, or check the Secret behind HF_TOKEN",
    404: "the hub does not know it: check repository and revision (a private one needs HF_TOKEN)",
}


class DownloadFailed(Exception):
    """The download cannot go on; the text is the sentence for the log."""


@contextlib.contextmanager
def node_lock(policy: engine.Json, folder: Path) -> Iterator[None]:
    """Hold the lock of one folder; the kernel frees it when its holder dies.

    Raises:
        DownloadFailed: when another pod holds it longer than the limit.
    """
    path = folder.with_name(f"{folder.name}.lock")
    started = next_report = time.monotonic()
    with open(path, "a+", encoding="utf-8") as lock:
        while not try_lock(lock):
            now = time.monotonic()
            if now - started > policy["lock_timeout_s"]:
                raise DownloadFailed(
                    f"waited {now - started:.0f} s for {path}, held by {holder(lock)}: look at what that pod "
                    "does. Its download goes on where it stopped if the pod is deleted."
                )
            if now >= next_report:
                engine.log(f"waiting for {holder(lock)}, which downloads to {folder}.")
                next_report = now + policy["report_every_s"]
            time.sleep(policy["lock_poll_s"])
        lock.truncate(0)
        lock.write(f"{os.environ.get('HOSTNAME', 'a pod')} (since {time.strftime('%FT%TZ', time.gmtime())})")
        lock.flush()
        yield


def try_lock(lock: TextIO) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(lock: TextIO) -> str:
    """Who wrote its name into the lock file last."""
    lock.seek(0)
    return lock.read().strip() or "another pod"


def download(policy: engine.Json, source: engine.Json) -> None:
    """Download what is missing of a repository, with retries.

    Raises:
        DownloadFailed: when it cannot succeed, or has failed too often.
    """
    name = f"{source['repo']} at {source['revision']}"
    started = time.monotonic()
    attempts = policy["download_attempts"]
    for attempt in range(1, attempts + 1):
        reason = try_download(policy, source)
        if reason is None:
            engine.log(f"{source['role']}: downloaded {name} in {time.monotonic() - started:.0f} s.")
            return
        if attempt < attempts:
            backoff_s = min(policy["backoff_s"] * 2 ** (attempt - 1), MAX_BACKOFF_S)
            engine.log(f"{source['role']}: the download broke off: {reason}. Going on in {backoff_s:g} s.")
            time.sleep(backoff_s)
    raise DownloadFailed(f"the download of {name} failed {attempts} times; the last time: {reason}.")


def try_download(policy: engine.Json, source: engine.Json) -> str | None:
    """One attempt; None when done, a reason when trying again may help.

    Raises:
        DownloadFailed: when trying again cannot help.
    """
    hub = load_hub()
    try:
        require_space(missing_bytes(hub, policy, source), source)
        engine.log(f"{source['role']}: downloading {source['repo']} to {source['path']}.")
        with progress_lines(policy, source):
            hub.snapshot_download(
                repo_id=source["repo"],
                revision=source["revision"],
                local_dir=source["path"],
                ignore_patterns=list(policy["ignore"]),
            )
    except DownloadFailed:
        raise
    except Exception as error:  # the hub's client and what is under it raise many kinds
        if out_of_space(error):
            left = shutil.disk_usage(source["path"]).free
            raise DownloadFailed(
                f"the disk of {source['path']} is full ({left} bytes free) before the download of "
                f"{source['repo']} was complete: free space there, or use a larger disk."
            ) from error
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in PERMANENT:
            raise DownloadFailed(
                f"cannot download {source['repo']} at {source['revision']}: {PERMANENT[status]}."
            ) from error
        return (" ".join(str(error).split())[:300] or type(error).__name__).rstrip(".")
    return None


def load_hub() -> Any:
    """The hub's client, which SGLang's image brings along.

    Raises:
        DownloadFailed: when the image lacks it.
    """
    # Bars are for terminals; the client reads this when it is imported.
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise DownloadFailed("this image has no huggingface_hub: use SGLang's own, or a volume.") from None


def missing_bytes(hub: Any, policy: engine.Json, source: engine.Json) -> int | None:
    """Bytes still to download; None when neither the hub nor the catalogue knows the size."""
    folder = Path(source["path"])
    info = hub.HfApi().model_info(source["repo"], revision=source["revision"], files_metadata=True)
    sizes: dict[str, int] = {
        item.rfilename: item.size
        for item in info.siblings or []
        if item.size is not None and not any(fnmatch(item.rfilename, pattern) for pattern in policy["ignore"])
    }
    if sizes:
        missing = sum(size for name, size in sizes.items() if file_size(folder / name) != size)
        # A broken-off download lies beside its target and goes on from there.
        return max(0, missing - used_bytes(folder, "*.incomplete"))
    expected_bytes: int | None = source["expected_bytes"]
    return None if expected_bytes is None else max(0, expected_bytes - used_bytes(folder, "*"))


def require_space(missing: int | None, source: engine.Json) -> None:
    """Refuse a download that cannot fit.

    Raises:
        DownloadFailed: naming the path and the bytes that are missing.
    """
    if missing is None:
        return
    free = shutil.disk_usage(source["path"]).free
    if missing > free:
        raise DownloadFailed(
            f"the disk of {source['path']} lacks {missing - free} bytes: {missing} bytes of {source['repo']} "
            f"are still to download, {free} are free. Free space there, or use a larger disk."
        )


def file_size(path: Path) -> int:
    """Size of a file in bytes; -1 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def used_bytes(folder: Path, pattern: str) -> int:
    """Bytes on disk of the files below a folder; files that vanish meanwhile count as nothing."""
    used = 0
    for path in folder.rglob(pattern):
        with contextlib.suppress(OSError):
            used += path.stat().st_blocks * 512
    return used


@contextlib.contextmanager
def progress_lines(policy: engine.Json, source: engine.Json) -> Iterator[None]:
    """A line in the log now and then for as long as the block runs."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(policy["report_every_s"]):
            done_gb = used_bytes(Path(source["path"]), "*") / 1e9
            engine.log(f"{source['role']}: {done_gb:.1f} GB on disk in {source['path']}.")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def out_of_space(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, is a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
