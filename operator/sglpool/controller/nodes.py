"""What the watch has told us about nodes, and for how long they have been as they are.

Kubernetes says since when a node is not ready, not since when it has lost a GPU, nor that it is gone: that is noted
here, and forgotten with the process, which only makes us slower. Not here: what follows (`plan.nodes`).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sglpool.api.base import Manifest
from sglpool.plan.surroundings import ObservedNode

MAX_GONE = 1000
"""Nodes that are remembered as gone: as many as can have pods left."""


class NodeStore:
    """Views of all nodes.

    Args:
        wall_clock_s: Unix time.
    """

    def __init__(self, wall_clock_s: Callable[[], float] = time.time) -> None:
        self._wall_clock_s = wall_clock_s
        self._nodes: dict[str, ObservedNode] = {}
        self._gone: dict[str, ObservedNode] = {}
        self._unknown_since_s: dict[str, float] = {}
        self.readable = False
        self.watched = False
        """Whether changes are told at once: by listings alone, a node that is back would be lost for minutes."""

    def put(self, manifest: Manifest) -> bool:
        """Remember a node as it is now; whether that changed anything the planner looks at."""
        view, now_s = ObservedNode.from_manifest(manifest), self._wall_clock_s()
        before = self._nodes.get(view.name)
        same_gpus = before is not None and before.gpus == view.gpus
        view = replace(view, gpus_since_s=before.gpus_since_s if before and same_gpus else now_s)
        self._nodes[view.name] = view
        self._gone.pop(view.name, None)
        return before != view

    def forget(self, name: str) -> None:
        """Remember that a node was deleted."""
        if self._nodes.pop(name, None) is not None:
            self._gone[name] = ObservedNode(name=name, ready=False, since_s=self._wall_clock_s(), deleted=True)
            while len(self._gone) > MAX_GONE:
                del self._gone[next(iter(self._gone))]

    def replace(self, names: Iterable[str] | None) -> None:
        """Take over a full listing, of which every node was put: those that it does not hold are gone.

        Args:
            names: Nodes of the listing; None if nodes cannot be read.
        """
        self.readable = names is not None
        listed = set(names or ())
        for name in self._nodes.keys() - listed:
            self.forget(name)
        self._unknown_since_s.clear()

    def of(self, names: Iterable[str]) -> Mapping[str, ObservedNode] | None:
        """Those nodes as they are; None where nodes cannot be read or watched.

        One that nobody has seen is not ready from now on: it may be news that the watch has not told yet.
        """
        if not (self.readable and self.watched):
            return None
        return {name: self._nodes.get(name) or self._gone.get(name) or self._unknown(name) for name in names}

    def _unknown(self, name: str) -> ObservedNode:
        since_s = self._unknown_since_s.setdefault(name, self._wall_clock_s())
        return ObservedNode(name=name, ready=False, since_s=since_s)
