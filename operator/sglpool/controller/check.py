"""Whether an installation works, as far as its own account can tell: `helm test` runs it.

It reads and asks, and changes nothing. Not here: the operator itself (`app`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from sglpool.api import names
from sglpool.controller.crd import missing_fields, schema_in
from sglpool.controller.crd import sentence as outdated
from sglpool.controller.rights import sentence
from sglpool.kube import KubeClient, KubeError, KubePort, NotFound
from sglpool.kube.resources import PODS, POOLS
from sglpool.kube.rights import OF_NODES, in_namespaces, missing, of_lease

ANSWER_LIMIT_S = 5.0
MOST_PODS = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        fine: Whether it is as it should be.
        text: What was found, and what to do if it is not fine.
    """

    fine: bool
    text: str


async def check(
    kube: KubeClient, *, namespaces: Sequence[str] | None, leader_election: bool, own_namespace: str, port: int
) -> list[Finding]:
    """Look at everything.

    Args:
        kube: The API server, with the operator's account.
        namespaces: Namespaces that are served; None for all.
        leader_election: Whether a Lease is needed.
        own_namespace: Where the operator runs.
        port: Its HTTP port.

    Raises:
        KubeError: The API server cannot be asked.
    """
    return [
        await _crd(kube, namespaces[0] if namespaces else None),
        await _rights(kube, namespaces, own_namespace if leader_election else None),
        await _nodes(kube),
        *await _operators(kube, own_namespace, port),
    ]


async def _crd(kube: KubeClient, namespace: str | None) -> Finding:
    try:
        await kube.list(POOLS, namespace=namespace, field_selector="metadata.name=-")
        schema = schema_in(await kube.openapi(POOLS))
        if schema is not None and (lacking := missing_fields(schema)):
            return Finding(False, outdated(lacking))
    except NotFound:
        return Finding(False, "inferencepools.sglpool.io is not served: install the CRD (crds.install of the chart)")
    except KubeError as error:
        return Finding(False, str(error))
    return Finding(True, f"{names.PLURAL}.{names.GROUP} is served")


async def _rights(kube: KubePort, namespaces: Sequence[str] | None, lease_namespace: str | None) -> Finding:
    needed = [*in_namespaces(namespaces), *(of_lease(lease_namespace) if lease_namespace else ())]
    lacking = await missing(kube, needed)
    return Finding(False, sentence(lacking)) if lacking else Finding(True, f"this account has its {len(needed)} rights")


async def _nodes(kube: KubePort) -> Finding:
    if await missing(kube, OF_NODES):
        return Finding(
            True, "nodes may not be read: their memory is taken from the catalogue, lost ones are not replaced"
        )
    return Finding(True, "nodes may be read")


async def _operators(kube: KubePort, namespace: str, port: int) -> list[Finding]:
    """Each pod of the operator, by its own word."""
    try:
        pods = await kube.list(PODS, namespace=namespace, labels=names.OPERATOR_LABELS)
    except KubeError as error:
        return [Finding(False, str(error))]
    here = [
        pod for pod in pods if (pod.get("status") or {}).get("podIP") and "deletionTimestamp" not in pod["metadata"]
    ]
    if not here:
        return [Finding(False, f"no pod of the operator has an address in namespace {namespace}")]
    timeout = aiohttp.ClientTimeout(total=ANSWER_LIMIT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        asked = (_operator(session, pod["metadata"]["name"], pod["status"]["podIP"], port) for pod in here[:MOST_PODS])
        return list(await asyncio.gather(*asked))


async def _operator(session: aiohttp.ClientSession, pod: str, address: str, port: int) -> Finding:
    host = f"[{address}]" if ":" in address else address
    try:
        async with session.get(f"http://{host}:{port}/readyz") as answer:
            text = " ".join((await answer.text())[:500].split())
            return Finding(
                answer.status == 200, f"pod {pod} is {'ready' if answer.status == 200 else 'not ready'}: {text}"
            )
    except (aiohttp.ClientError, TimeoutError) as error:
        words = str(error) or f"no answer within {ANSWER_LIMIT_S:g} s"
        return Finding(False, f"pod {pod} cannot be reached at {host}:{port}: {words}")
