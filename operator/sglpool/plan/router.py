"""The router of a pool: which steps it needs, and how it does.

Its children are applied together when the user's choice changed or one of them is missing; an upgraded operator alone
changes none. Not here: what the user is told (`plan.status`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.plan.children import expected_router_children
from sglpool.plan.observed import Observed, ObservedDeployment, ObservedPod
from sglpool.plan.problems import router_pod_problem
from sglpool.plan.steps import DeleteChild, EnsureChild, Step
from sglpool.render import has_router, router_configmap, router_hash
from sglpool.sizing.pools import SizedGPU

_LATE_REMEDY = (
    "Look at `kubectl describe pod` of a router: the Secrets that router.auth, router.tls and router.sessionStore name "
    "must exist."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterState:
    """How a pool's router does.

    Attributes:
        wanted: Wanted router pods.
        ready: Ready ones, of whatever revision.
        moving: Whether it is on its way to what the spec says.
        trouble: Why that will hardly end by itself, empty when nothing is known to be wrong.
    """

    wanted: int
    ready: int
    moving: bool
    trouble: str


def router_steps(pool: Pool, sized: Sequence[SizedGPU], observed: Observed) -> list[list[Step]]:
    """Stages for the router: what surrounds its pods, then its Deployments, which a failure before holds back.

    The router of a pool that cannot be carried out stays as it is, but for what is missing.
    """
    frozen = not all(one.feasible for one in sized)
    desired = expected_router_children(pool, sized)
    outdated = any(
        _outdated(pool, child, observed, frozen=frozen) for child in desired if child["kind"] == "Deployment"
    )
    reason = "the router is new, or its settings changed" if outdated else "missing or changed by hand"
    due = [child for child in desired if outdated or _key(child) not in observed.children]
    around: list[Step] = [EnsureChild(manifest=c, reason=reason) for c in due if c["kind"] != "Deployment"]
    deployments: list[Step] = [EnsureChild(manifest=c, reason=reason) for c in due if c["kind"] == "Deployment"]
    if deployments:
        around.append(EnsureChild(manifest=router_configmap(pool, sized), reason="settings of the router"))
    return [[*_unwanted(pool, desired, observed), *around], deployments]


def router_state(pool: Pool, sized: Sequence[SizedGPU], observed: Observed) -> RouterState | None:
    """How the router does; None for a pool that is to have none."""
    if not has_router(pool):
        return None
    wanted = pool.spec.router.replicas
    current = _own(pool, names.router_name(pool.name), observed)
    if current is None:
        return RouterState(wanted=wanted, ready=0, moving=True, trouble="")
    replaced = current.updated < wanted or current.total > current.updated
    outdated = all(one.feasible for one in sized) and current.spec_hash != router_hash(pool, sized)
    return RouterState(
        wanted=wanted,
        ready=current.ready,
        moving=outdated or replaced or not current.caught_up,
        trouble=_trouble(current, observed.router_pods),
    )


def _outdated(pool: Pool, desired: Manifest, observed: Observed, *, frozen: bool) -> bool:
    """Whether a Deployment must be applied: it is not there, the user's choice changed, or asked for this version's."""
    current = _own(pool, desired["metadata"]["name"], observed)
    if current is None:
        return True
    if frozen:
        return False
    annotations: Mapping[str, str] = desired["metadata"]["annotations"]
    if current.spec_hash != annotations[names.ANNOTATION_SPEC_HASH]:
        return True
    latest = names.wants_latest_render(pool.annotations)
    return latest and current.render_hash != annotations[names.ANNOTATION_RENDER_HASH]


def _own(pool: Pool, name: str, observed: Observed) -> ObservedDeployment | None:
    """The pool's Deployment of that name; a stranger of that name does not count."""
    return next((d for d in observed.deployments if d.name == name and d.owner_uid == pool.uid), None)


def _unwanted(pool: Pool, desired: Sequence[Manifest], observed: Observed) -> list[Step]:
    """Children of a router, or of its store, that the spec no longer asks for."""
    deployed = {("Deployment", d.name) for d in observed.deployments if d.owner_uid == pool.uid}
    wanted = {_key(child) for child in desired}
    return [
        DeleteChild(kind=kind, name=name, reason="the spec no longer asks for it")
        for kind, name in sorted((observed.children | observed.surplus | deployed) - wanted)
        if names.is_router_child(pool.name, kind, name)
    ]


def _trouble(current: ObservedDeployment, pods: Sequence[ObservedPod]) -> str:
    """The first known cause: refused pods, pods in trouble, or that it takes too long."""
    if current.refused:
        return f"The API server refuses router pods: {current.refused}"
    found = router_pod_problem(pods)
    return found or (f"{current.late} {_LATE_REMEDY}" if current.late else "")


def _key(child: Manifest) -> tuple[str, str]:
    return child["kind"], child["metadata"]["name"]
