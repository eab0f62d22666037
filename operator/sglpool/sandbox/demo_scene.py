"""What every chapter of the demo needs: the stage, the recording, the cluster, and a few questions about the pool.

Not here: the chapters (`demo_lifecycle`, `demo_load`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglpool.sandbox.apiserver import ApiServer
from sglpool.sandbox.demo_show import NAMESPACE, Show
from sglpool.sandbox.demo_stage import Stage
from sglpool.sandbox.pod_commands import pod_address, ready_pod
from sglpool.sandbox.traffic import Traffic

POOL = "kimi-k2-6-coder"
SPEED, START_SPEED = 40.0, 100.0
"""Of engines that serve, and of those that start."""
READY_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where a chapter plays.

    Attributes:
        stage: Where it is told.
        show: What is recorded meanwhile.
        api: The API server.
        folder: The sandbox's folder.
    """

    stage: Stage
    show: Show
    api: ApiServer
    folder: Path

    def address(self) -> str:
        """`host:port` of the pool's endpoint."""
        return pod_address(ready_pod(self.api, NAMESPACE, POOL))

    def model(self) -> str:
        """What the pool serves."""
        return self.stage.kubectl("get", f"sglpool/{POOL}", "-o=jsonpath={.spec.model.name}", hide=True)

    def agents(self) -> Traffic:
        """The demo's agents, who work from the first call on."""
        return self.show.traffic or self.show.begin(self.address(), self.model())

    def wait_ready(self) -> None:
        """Wait for the pool as a user would."""
        self.stage.kubectl("wait", f"sglpool/{POOL}", "--for=condition=Ready", f"--timeout={READY_S:.0f}s")

    def patch(self, patch: str, *, refused: bool = False) -> None:
        """Change the pool as a user would."""
        self.stage.kubectl("patch", "sglpool", POOL, "--type=merge", "-p", patch, refused=refused)

    def uids(self, pods: Iterable[str]) -> str:
        """Which lives these pods live."""
        return self.stage.kubectl("get", "pods", *pods, "-o", "jsonpath={.items[*].metadata.uid}", hide=True)


def relative(path: Path) -> str:
    """A path as a user would type it."""
    return os.path.relpath(path)
