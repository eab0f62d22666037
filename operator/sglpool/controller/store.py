"""What the watches have told us: small views of StatefulSets, Deployments, pods and Jobs, by pool.

The operator's informer cache, with one guarantee that kopf's own indexes lack: a full listing replaces it, so an
object whose deletion was missed lives here no longer than until the next resync. Not here: pools, which every
reconcile reads live.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.controller.nodes import NodeStore
from sglpool.plan import Observed, ObservedDeployment, ObservedPod, ObservedStatefulSet, Refusal
from sglpool.plan.surroundings import ObservedJob

PoolKey = tuple[str, str]
"""Namespace and name of a pool."""

_ROUTER_COMPONENTS = frozenset({names.COMPONENT_ROUTER, names.COMPONENT_STORE})
_OTHER_COMPONENTS = _ROUTER_COMPONENTS | {names.COMPONENT_GATE}

View = ObservedStatefulSet | ObservedDeployment | ObservedPod | ObservedJob


@dataclass(slots=True)
class _Entry:
    view: View
    version: int
    seq: int


@dataclass(slots=True)
class _PoolEntries:
    statefulsets: dict[str, _Entry] = field(default_factory=dict)
    deployments: dict[str, _Entry] = field(default_factory=dict)
    pods: dict[str, _Entry] = field(default_factory=dict)
    jobs: dict[str, _Entry] = field(default_factory=dict)
    children: frozenset[tuple[str, str]] = frozenset()
    surplus: frozenset[tuple[str, str]] = frozenset()

    def kinds(self) -> tuple[dict[str, _Entry], ...]:
        """What is watched, kind by kind."""
        return self.statefulsets, self.deployments, self.pods, self.jobs


def pool_key(manifest: Manifest) -> PoolKey | None:
    """The pool that an object's label names, if it has one."""
    metadata = manifest["metadata"]
    pool = (metadata.get("labels") or {}).get(names.LABEL_POOL)
    return (metadata.get("namespace", ""), pool) if pool else None


class Store:
    """Views of the children of every pool."""

    def __init__(self) -> None:
        self.nodes = NodeStore()
        """What is known of nodes, which belong to no pool."""
        self._pools: dict[PoolKey, _PoolEntries] = {}
        self._seq = 0
        self._buried: dict[str, int] = {}

    def mark(self) -> int:
        """The moment before a full listing starts; what arrives later is newer than the listing."""
        return self._seq

    def put_statefulset(self, manifest: Manifest, key: PoolKey | None = None) -> bool:
        """Remember a StatefulSet as it is now; whether that changed anything the planner looks at.

        Args:
            manifest: The object.
            key: The pool that it concerns, if its labels do not say so.
        """
        key = key or pool_key(manifest)
        if key is None or manifest["metadata"]["uid"] in self._buried:
            return False
        return self._put(self._entries(key).statefulsets, manifest, ObservedStatefulSet.from_manifest)

    def put_deployment(self, manifest: Manifest) -> bool:
        """Remember a Deployment as it is now; whether that changed anything the planner looks at."""
        key = pool_key(manifest)
        if key is None or manifest["metadata"]["uid"] in self._buried:
            return False
        return self._put(self._entries(key).deployments, manifest, ObservedDeployment.from_manifest)

    def put_pod(self, manifest: Manifest) -> bool:
        """Remember a pod as it is now; whether that changed anything the planner looks at."""
        key = pool_key(manifest)
        if key is None or manifest["metadata"]["uid"] in self._buried:
            return False
        return self._put(self._entries(key).pods, manifest, ObservedPod.from_manifest)

    def put_job(self, manifest: Manifest) -> bool:
        """Remember a Job of a gate as it is now; whether that changed anything the planner looks at."""
        key = pool_key(manifest)
        if key is None or manifest["metadata"]["uid"] in self._buried:
            return False
        return self._put(self._entries(key).jobs, manifest, ObservedJob.from_manifest)

    def forget(self, manifest: Manifest) -> None:
        """Forget an object that was deleted."""
        key = pool_key(manifest)
        if key is not None:
            self.bury(key, name=manifest["metadata"]["name"], uid=manifest["metadata"]["uid"])

    def bury(self, key: PoolKey, *, name: str, uid: str) -> None:
        """Forget an object of a pool, and take no older news of it."""
        self._seq += 1
        self._buried[uid] = self._seq
        entries = self._pools.get(key)
        for views in entries.kinds() if entries else ():
            entry = views.get(name)
            if entry is not None and entry.view.uid == uid:
                del views[name]
        self._tidy(key)

    def forget_pool(self, key: PoolKey) -> None:
        """Forget the shared children of a pool that is gone; its StatefulSets and pods report their own end."""
        if key in self._pools:
            self._pools[key].children = self._pools[key].surplus = frozenset()
            self._tidy(key)

    def replace(self, listing: "Store", *, mark: int) -> None:
        """Take over a full listing: what it does not hold is gone, except what was seen after `mark`.

        Args:
            listing: A store filled from the listing.
            mark: `mark()` from before the listing began.
        """
        for key in {*self._pools, *listing._pools}:
            mine = self._entries(key)
            fresh = listing._pools.get(key) or _PoolEntries()
            self._merge(mine.statefulsets, fresh.statefulsets, mark)
            self._merge(mine.deployments, fresh.deployments, mark)
            self._merge(mine.pods, fresh.pods, mark)
            self._merge(mine.jobs, fresh.jobs, mark)
            self._tidy(key)
        self._buried = {uid: seq for uid, seq in self._buried.items() if seq > mark}

    def _merge(self, mine: dict[str, _Entry], fresh: dict[str, _Entry], mark: int) -> None:
        for name in [n for n, e in mine.items() if e.seq <= mark and n not in fresh]:
            del mine[name]
        for name, entry in fresh.items():
            before = mine.get(name)
            newer_known = before is not None and (before.version >= entry.version or before.seq > mark)
            if not newer_known and self._buried.get(entry.view.uid, 0) <= mark:
                self._seq += 1
                mine[name] = _Entry(entry.view, entry.version, self._seq)

    def replace_children(
        self,
        children: Mapping[PoolKey, Iterable[tuple[str, str]]],
        surplus: Mapping[PoolKey, Iterable[tuple[str, str]]],
    ) -> None:
        """Take over which shared children are as they should be, and which nobody asks for, as kind and name."""
        for key in {*self._pools, *children, *surplus}:
            entries = self._entries(key)
            entries.children = frozenset(children.get(key, ()))
            entries.surplus = frozenset(surplus.get(key, ()))
            self._tidy(key)

    def add_child(self, key: PoolKey, kind: str, name: str) -> None:
        """Remember that a shared child was applied."""
        entries = self._entries(key)
        entries.children |= {(kind, name)}

    def drop_child(self, key: PoolKey, kind: str, name: str) -> None:
        """Remember that a shared child is gone."""
        entries = self._entries(key)
        entries.children -= {(kind, name)}
        entries.surplus -= {(kind, name)}
        self._tidy(key)

    def keys(self) -> list[PoolKey]:
        """Pools that have children."""
        return [*self._pools]

    def keys_on(self, node: str) -> list[PoolKey]:
        """Pools that have a pod on a node."""
        return [
            key
            for key, entries in self._pools.items()
            if any(isinstance(e.view, ObservedPod) and e.view.node == node for e in entries.pods.values())
        ]

    def statefulset_uid(self, key: PoolKey, name: str) -> str | None:
        """The uid of the StatefulSet of that name, None if there is none."""
        entries = self._pools.get(key)
        entry = entries.statefulsets.get(name) if entries else None
        return entry.view.uid if entry else None

    def observed(self, key: PoolKey, refusals: dict[str, Refusal]) -> Observed:
        """Everything known of one pool's children."""
        entries = self._pools.get(key) or _PoolEntries()
        pods = [e.view for e in entries.pods.values() if isinstance(e.view, ObservedPod)]
        return Observed(
            statefulsets=tuple(
                e.view for e in entries.statefulsets.values() if isinstance(e.view, ObservedStatefulSet)
            ),
            pods=tuple(pod for pod in pods if pod.component not in _OTHER_COMPONENTS),
            router_pods=tuple(pod for pod in pods if pod.component in _ROUTER_COMPONENTS),
            deployments=tuple(e.view for e in entries.deployments.values() if isinstance(e.view, ObservedDeployment)),
            children=entries.children,
            surplus=entries.surplus,
            refusals=refusals,
            jobs=tuple(e.view for e in entries.jobs.values() if isinstance(e.view, ObservedJob)),
            gate_pods=tuple(pod for pod in pods if pod.component == names.COMPONENT_GATE),
            nodes=self.nodes.of({pod.node for pod in pods if pod.node}),
        )

    def _entries(self, key: PoolKey) -> _PoolEntries:
        return self._pools.setdefault(key, _PoolEntries())

    def _put(self, views: dict[str, _Entry], manifest: Manifest, view_of: Callable[[Manifest], View]) -> bool:
        metadata = manifest["metadata"]
        name, version = metadata["name"], int(metadata["resourceVersion"])
        before = views.get(name)
        # Versions count on over incarnations: late news of a former object of this name is old news.
        if before is not None and before.version >= version:
            return False
        view = view_of(manifest)
        self._seq += 1
        views[name] = _Entry(view, version, self._seq)
        return before is None or before.view != view

    def _tidy(self, key: PoolKey) -> None:
        entries = self._pools.get(key)
        if entries and not (any(entries.kinds()) or entries.children or entries.surplus):
            del self._pools[key]
