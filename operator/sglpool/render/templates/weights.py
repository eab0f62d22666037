#!/usr/bin/env python3
"""Init container of the engine: fetches weights once per node, and proves that every file is whole.

A load of 600 GB that fails after 16 minutes on a truncated file is found here in a second, from the files'
headers. Hugging Face sources are downloaded into the node's cache under a lock, so replicas that share a node
download once; an interrupted download goes on where it stopped. Other sources are only verified.
Settings: config.json beside this file; HF_TOKEN from the environment.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglpool.render.templates import hub_download, weight_files
    from sglpool.render.templates import sglpool_engine as engine
else:  # in the pod the scripts lie side by side
    import hub_download
    import sglpool_engine as engine
    import weight_files

COMPLETE_MARKER = ".sglpool-complete"
MAX_SHOWN_PROBLEMS = 8


class Broken(Exception):
    """Weights that the engine must not load; the text has one sentence a line."""


def main() -> int:
    """Provide and verify every source; returns the exit code."""
    # PID 1 has no default action for SIGTERM; without this a deleted pod downloads on.
    signal.signal(signal.SIGTERM, stop)
    config = engine.load_config()
    try:
        for source in config["weights"]:
            if source["kind"] == "huggingFace":
                fetch(config, source)
            elif problems := verify(source):
                raise Broken(describe(source, problems))
        check_draft(config)
    except (Broken, hub_download.DownloadFailed) as error:
        for line in str(error).splitlines():
            engine.log(line)
        return 1
    except OSError as error:
        engine.log(f"cannot provide the weights: {error.strerror} ({error.filename}).")
        return 1
    return 0


def stop(*_: object) -> None:
    """SIGTERM: leave at once, as the next start resumes."""
    engine.log("SIGTERM: stopping here; a download goes on at the next start.")
    os._exit(128 + signal.SIGTERM)


def fetch(config: engine.Json, source: engine.Json) -> None:
    """Download a repository under the node's lock, verify it, and fetch broken files once more.

    Raises:
        DownloadFailed: no space, no access, no network.
        Broken: files that are still broken after the second download.
    """
    folder = Path(source["path"])
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / COMPLETE_MARKER
    with hub_download.node_lock(config["weights_policy"], folder):
        if not complete.exists():
            hub_download.download(config["weights_policy"], source)
        problems = verify(source)
        if problems:
            for problem in problems:
                engine.log(f"{source['role']}: {problem.sentence} Fetching it again.")
                if problem.file is not None:
                    problem.file.unlink(missing_ok=True)
            complete.unlink(missing_ok=True)
            hub_download.download(config["weights_policy"], source)
            problems = verify(source)
        if problems:
            raise Broken(describe(source, problems))
        engine.write_file(complete, f"{source['repo']} {source['revision']}\n")


def verify(source: engine.Json) -> list[weight_files.Problem]:
    """Check one source and report what was read."""
    started = time.monotonic()
    report = weight_files.check_folder(Path(source["path"]))
    for warning in report.warnings:
        engine.log(f"{source['role']}: {warning}")
    if not report.problems:
        engine.log(
            f"{source['role']}: {report.files} weight files with {report.size_bytes} bytes "
            f"({report.size_bytes / 1e9:.1f} GB) in {source['path']} are whole; "
            f"checked in {time.monotonic() - started:.1f} s."
        )
    return report.problems


def describe(source: engine.Json, problems: list[weight_files.Problem]) -> str:
    """All problems of a source, one sentence a line, with what to do."""
    lines = [f"{source['role']}: {problem.sentence}" for problem in problems[:MAX_SHOWN_PROBLEMS]]
    if len(problems) > MAX_SHOWN_PROBLEMS:
        lines.append(f"{source['role']}: and {len(problems) - MAX_SHOWN_PROBLEMS} more like these.")
    if source["kind"] == "huggingFace":
        lines.append(f"Fetching again did not help: look at {source['repo']} at {source['revision']} on the hub.")
    elif source["kind"] == "image":
        lines.append("The image was built from broken files: build it again and change its reference.")
    else:
        lines.append(f"Copy these files to {source['path']} again; the pod starts once they are whole.")
    return "\n".join(lines)


def check_draft(config: engine.Json) -> None:
    """Compare the target that a draft model records with the model it is about to serve.

    Raises:
        Broken: when both are known and they differ.
    """
    sources = {source["role"]: source for source in config["weights"]}
    model, draft = sources.get("model"), sources.get("draft")
    if not (model and draft):
        return
    recorded = weight_files.recorded_target(Path(draft["path"]))
    if recorded is None:
        engine.log(f"draft: its config.json names no target, so it is taken on trust for {model['path']}.")
        return
    names = [model["repo"], config["served_model_name"], weight_files.own_name(Path(model["path"]))]
    if any(name and weight_files.same_model(recorded, name) for name in names):
        return
    if model["repo"] and weight_files.is_repository(recorded):
        raise Broken(
            f"draft: {draft['path']}/config.json says it was trained for {recorded}, but the model is "
            f"{model['repo']}: choose the draft model made for it."
        )
    engine.log(f"draft: its config.json says it was trained for {recorded}; cannot tell whether this is it.")


if __name__ == "__main__":
    sys.exit(main())
