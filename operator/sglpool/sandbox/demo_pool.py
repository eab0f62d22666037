"""The pool of the demo: the sample, but autoscaled, and made smaller so that one machine can play it.

Not here: the sample itself, which is a file that users copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sglpool.api.validate import InvalidPool, load_pool
from sglpool.sandbox.errors import SandboxError

FEWEST, MOST = 2, 4
FIRST_TYPE_MOST = 3
TARGET = 3
"""Running requests of a replica; so few that the two cores of a small machine can play four of them."""
DRAIN_TIMEOUT = "10s"
"""As long as the longest answers of the demo's agents: no request is cut."""

Manifest = dict[str, Any]


def demo_pool(sample: Path) -> Manifest:
    """The sample with the demo's sizes.

    Raises:
        SandboxError: The file does not hold an InferencePool that the API server would take.
    """
    try:
        manifest = yaml.safe_load(sample.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SandboxError(f"cannot read {sample}: {error}") from error
    try:
        load_pool(manifest)
    except InvalidPool as error:
        raise SandboxError(f"{sample}: {error}") from error
    return shrink(manifest)


def shrink(manifest: Manifest) -> Manifest:
    """The same pool with the demo's sizes."""
    spec = {**manifest["spec"], "rollout": {"drainTimeout": DRAIN_TIMEOUT}}
    spec.pop("replicas", None)
    spec["autoscaling"] = {"minReplicas": FEWEST, "maxReplicas": MOST}
    first, *others = spec["gpus"]
    spec["gpus"] = [
        {**first, "maxReplicas": FIRST_TYPE_MOST, "targetRunningRequests": TARGET},
        *({**gpu, "targetRunningRequests": TARGET} for gpu in others),
    ]
    return {**manifest, "spec": spec}
