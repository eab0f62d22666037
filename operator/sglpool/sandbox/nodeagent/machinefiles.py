"""The folder /run/sandbox of a container: which machine it runs on, and which faults are ordered.

Only the sandbox's own programs read it; no manifest mentions it. Not here: what is in it (the agent decides), nor
who orders faults (the command line writes `faults.json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sglpool.sandbox.apiserver import Manifest
from sglpool.sandbox.nodeagent.files import Folders, write_file

MOUNT_PATH = "/run/sandbox"


def write_machine(folders: Folders, pod: Manifest, machine: Mapping[str, object]) -> Path:
    """Write `machine.json`; ordered faults stay. Returns the folder to mount."""
    folder = folders.machine(pod)
    write_file(folder / "machine.json", json.dumps(machine, indent=1).encode() + b"\n")
    return folder
