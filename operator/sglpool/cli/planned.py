"""One pool of a file after everything that needs no cluster: checked, sized, ready to print.

Not here: how it is printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.api.validate import Problem
from sglpool.catalog import Catalog, check_argv
from sglpool.plan.children import expected_children, expected_router_children
from sglpool.plan.replicas import desired_replicas
from sglpool.render import engine_argv, has_router, launch_configmap, router_configmap, scale_manifest, statefulset
from sglpool.sizing.pools import SizedGPU, size_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A document that is no valid pool.

    Attributes:
        source: Which document of which file.
        pool: metadata.name, None when there is none.
        problems: What is wrong.
    """

    source: str
    pool: str | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A valid pool, sized.

    Attributes:
        source: Which document of which file.
        pool: The pool.
        sized: Its GPU types in order of preference.
        desired: Wanted replicas by GPU type; with autoscaling those of the first minute.
        in_namespace: Whether the file names a namespace.
    """

    source: str
    pool: Pool
    sized: tuple[SizedGPU, ...]
    desired: Mapping[str, int]
    in_namespace: bool

    @classmethod
    def of(cls, pool: Pool, catalog: Catalog, *, source: str, in_namespace: bool) -> Self:
        """Size a pool with the catalogue's figures of nodes."""
        return cls(
            source=source,
            pool=pool,
            sized=size_pool(pool, catalog, node_memory_bytes={}, hicache_bytes={}),
            desired=desired_replicas(pool.spec, {}),
            in_namespace=in_namespace,
        )

    @property
    def feasible(self) -> bool:
        """Whether every GPU type fits; the operator starts nothing of a pool of which one does not."""
        return all(sized.feasible for sized in self.sized)

    def argv(self, sized: SizedGPU) -> tuple[str, ...]:
        """Arguments of `sglang serve`, empty when profile or GPU type is unknown."""
        return () if sized.fit is None else engine_argv(self.pool, sized)

    def argument_problems(self) -> list[str]:
        """What the engine's argument parser would refuse, each thing once."""
        problems = [problem for sized in self.sized for problem in check_argv(self.argv(sized))]
        return list(dict.fromkeys(problems))

    def manifests(self) -> tuple[Manifest, ...]:
        """Everything that the operator would apply, without owners."""
        found = list(expected_children(self.pool))
        if has_router(self.pool):
            found += [router_configmap(self.pool, self.sized), *expected_router_children(self.pool, self.sized)]
        for sized in self.sized:
            found += [launch_configmap(self.pool, sized), self._statefulset(sized)]
        return tuple(found if self.in_namespace else map(_without_namespace, found))

    def _statefulset(self, sized: SizedGPU) -> Manifest:
        manifest = statefulset(self.pool, sized)
        scale = scale_manifest(
            name=manifest["metadata"]["name"],
            namespace=self.pool.namespace,
            replicas=self.desired[sized.entry.type],
            partition=0,
        )
        return {**manifest, "spec": {**manifest["spec"], **scale["spec"]}}


def _without_namespace(manifest: Manifest) -> Manifest:
    """As the file says nothing about it, `kubectl apply -n` decides."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
    return {**manifest, "metadata": metadata}
