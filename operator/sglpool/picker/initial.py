"""The first files of Envoy, and the listener whenever API keys change: `sglpool picker --init`.

The listener holds the keys, so it lives in the pod's memory and never in a ConfigMap. The running picker calls this as
a process of its own, because Envoy's configuration brings more code along than the picker should carry for the one
time in months that a key changes. Not here: the listener's content (`render.envoy`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sglpool.picker.files import write_json, write_whole
from sglpool.routing.pickerconfig import CLUSTER_NAME, EDS_FILE, LDS_FILE, PickerConfig

DIGEST_FILE = ".api-keys"
"""Digest of the keys in the listener's file, so that the picker sees a change without reading Envoy's configuration."""
_ENDPOINTS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


def read_keys(folder: str | None) -> dict[str, str]:
    """API keys of a mounted Secret by client name. Empty ones do not count: they would let everyone in."""
    if folder is None:
        return {}
    keys = {}
    for path in sorted(Path(folder).iterdir()):
        # Kubernetes keeps its own links and folders there, all with names that begin with a dot.
        if not path.name.startswith(".") and path.is_file():
            value = path.read_text(encoding="utf-8").strip()
            if value:
                keys[path.name] = value
    return keys


def digest(keys: dict[str, str]) -> str:
    """One short word for a set of keys."""
    text = "\0".join(f"{name}\0{keys[name]}" for name in sorted(keys))
    return hashlib.sha256(text.encode()).hexdigest()


def write_initial(config: PickerConfig) -> None:
    """Write the listener, and an empty list of engines unless there is one already."""
    # Only here, and never in the picker that runs.
    from sglpool.render.envoy.listener import listener
    from sglpool.render.envoy.shape import RouterShape

    shared = Path(config.shared_dir)
    keys = read_keys(config.api_keys_dir)
    resource = listener(RouterShape.from_json(config.listener), keys)
    write_json(shared / LDS_FILE, resource, mode=0o640)
    write_whole(shared / DIGEST_FILE, digest(keys), mode=0o640)
    eds = shared / EDS_FILE
    if not eds.exists():
        assignment = {"@type": _ENDPOINTS, "cluster_name": CLUSTER_NAME}
        write_json(eds, {"resources": [assignment]})
