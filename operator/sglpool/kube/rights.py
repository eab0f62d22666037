"""What the operator must be allowed to do, and how to ask the API server whether it is.

The chart grants exactly this, docs/permissions.md explains it, and a test holds the three together. Not here: what is
done about a right that is missing (`controller.rights`).
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sglpool.kube.port import KubePort
from sglpool.kube.resources import (
    CONFIGMAPS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    POOLS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFULSETS,
    Manifest,
    Resource,
)

LEASE_NAME = "sglpool-operator"
_QUESTIONS_AT_A_TIME = 8

Need = Literal["essential", "needed", "unasked"]


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource.

    Attributes:
        resource: The resource type.
        verb: As in a Role.
        need: `essential`: nothing works without it. `needed`: some day something does not. `unasked`: only some
            clusters want it.
        subresource: Such as `status`.
        namespace: Where; None for everywhere.
        name: Of which object; empty for all.
    """

    resource: Resource
    verb: str
    need: Need = "needed"
    subresource: str = ""
    namespace: str | None = None
    name: str = ""

    @property
    def path(self) -> str:
        """The resource as a Role spells it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def __str__(self) -> str:
        group = f".{self.resource.group}" if self.resource.group else ""
        name, _, sub = self.path.partition("/")
        what = f"{name}{group}{f'/{sub}' if sub else ''}{f' {self.name}' if self.name else ''}"
        if not self.resource.namespaced:
            return f"{self.verb} {what}"
        return f"{self.verb} {what} in {f'namespace {self.namespace}' if self.namespace else 'all namespaces'}"

    def question(self) -> Manifest:
        """The access review that asks for it; it stores nothing."""
        asked = {
            "verb": self.verb,
            "group": self.resource.group,
            "resource": self.resource.plural,
            "subresource": self.subresource,
            "namespace": self.namespace,
            "name": self.name,
        }
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
        }


_WATCHED = ("list", "watch")
_CHILD = ("get", "list", "create", "patch", "delete")
_VERBS: tuple[tuple[Resource, tuple[str, ...]], ...] = (
    (POOLS, ("get", *_WATCHED)),
    (STATEFULSETS, (*_CHILD, "watch")),
    (DEPLOYMENTS, (*_CHILD, "watch")),
    (CONTROLLER_REVISIONS, ("list", "patch")),
    (JOBS, (*_CHILD, "watch")),
    (PODS, ("get", *_WATCHED, "patch", "delete")),
    *((resource, _CHILD) for resource in (SERVICES, SERVICE_ACCOUNTS, CONFIGMAPS)),
    *((resource, _CHILD) for resource in (POD_DISRUPTION_BUDGETS, NETWORK_POLICIES, ROLES, ROLE_BINDINGS)),
    (EVENTS, ("list", "create")),
)
# Read before the first plan, or never planned at all.
_READ_ONLY_LATER = frozenset({CONTROLLER_REVISIONS, EVENTS})

NAMESPACED: tuple[Right, ...] = (
    *(
        Right(
            resource,
            verb,
            "essential" if resource is POOLS or (verb in _WATCHED and resource not in _READ_ONLY_LATER) else "needed",
        )
        for resource, verbs in _VERBS
        for verb in verbs
    ),
    Right(POOLS, "patch", subresource="status"),
    # Of clusters whose API server lets nobody block a deletion that they could not prevent, OpenShift among them.
    Right(POOLS, "update", "unasked", subresource="finalizers"),
)
"""In every namespace whose pools are served."""

OF_NODES = tuple(Right(NODES, verb) for verb in _WATCHED)
"""May be left out: then nothing is known of nodes."""


def of_lease(namespace: str) -> tuple[Right, ...]:
    """For leader election."""
    return (
        Right(LEASES, "create", "essential", namespace=namespace),
        *(Right(LEASES, verb, "essential", namespace=namespace, name=LEASE_NAME) for verb in ("get", "update")),
    )


def in_namespaces(namespaces: Sequence[str] | None) -> Iterator[Right]:
    """The rights that are needed to serve these namespaces, None for all."""
    for right in NAMESPACED:
        for namespace in namespaces or (None,):
            yield Right(right.resource, right.verb, right.need, right.subresource, namespace)


async def missing(kube: KubePort, rights: Iterable[Right]) -> tuple[Right, ...]:
    """Those of the rights that this account does not have.

    Raises:
        KubeError: The API server does not say.
    """
    room = asyncio.Semaphore(_QUESTIONS_AT_A_TIME)

    async def lacks(right: Right) -> bool:
        async with room:
            answer = await kube.create(right.question())
        return not (answer.get("status") or {}).get("allowed")

    asked = [right for right in rights if right.need != "unasked"]
    answers = await asyncio.gather(*(lacks(right) for right in asked))
    return tuple(right for right, lacking in zip(asked, answers, strict=True) if lacking)
