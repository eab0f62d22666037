"""`sglpool router show`: what the routers of a pool know of its replicas, as a table or as JSON.

Reads each router pod's /state through the API server, else from the pod itself, else from a URL that the user gives.
Not here: how it is printed (`router_table`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

import aiohttp

from sglpool.api import names
from sglpool.cli.router_table import print_routers
from sglpool.kube import KubeClient, KubeConfigError, KubeError, NotFound
from sglpool.kube.resources import PODS, POOLS
from sglpool.routing.pickerconfig import STATE_PORT

PROXY_TIMEOUT_S = 10.0
DIRECT_TIMEOUT_S = 3.0

SHOWN, UNREADABLE, UNUSABLE = 0, 1, 2

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one router said, or why it said nothing.

    Attributes:
        router: Name of its pod, or the URL.
        state: Its state, None without an answer.
        problem: Why there is none.
    """

    router: str
    state: State | None
    problem: str = ""


class NothingToShow(Exception):
    """There is no router to ask; the words say why and what to do."""


def run_show(pool: str, *, namespace: str, kubeconfig: str | None, url: str | None, as_json: bool) -> int:
    """Show the routers of a pool.

    Returns:
        The exit code: 0 every router answered, 1 one did not, 2 there is none to ask.
    """
    try:
        answers = asyncio.run(_ask_url(url) if url else _ask_cluster(pool, namespace, kubeconfig))
    except (NothingToShow, KubeConfigError, KubeError) as error:
        print(f"sglpool router show: {error}", file=sys.stderr)
        return UNUSABLE
    for answer in answers:
        if answer.state is None:
            print(f"sglpool router show: {answer.router}: {answer.problem}", file=sys.stderr)
    states = [answer.state for answer in answers if answer.state is not None]
    if as_json:
        print(json.dumps(states, indent=2))
    elif states:
        print_routers(pool, states)
    return SHOWN if len(states) == len(answers) else UNREADABLE


async def _ask_url(url: str) -> list[Answer]:
    return [await _ask_directly(url, url.rstrip("/"))]


async def _ask_cluster(pool: str, namespace: str, kubeconfig: str | None) -> list[Answer]:
    async with KubeClient.connect(kubeconfig) as kube:
        await _must_exist(kube, pool, namespace)
        labels = names.component_selector(pool, names.COMPONENT_ROUTER)
        pods = await kube.list(PODS, namespace=namespace, labels=labels)
        if not pods:
            raise NothingToShow(
                f"pool {namespace}/{pool} has no router pod: see condition RouterReady in "
                f"`kubectl describe sglpool {pool} -n {namespace}`"
            )
        asked = [_ask_pod(kube, pod) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))]
        return list(await asyncio.gather(*asked))


async def _must_exist(kube: KubeClient, pool: str, namespace: str) -> None:
    try:
        await kube.get(POOLS, namespace=namespace, name=pool)
    except NotFound as error:
        raise NothingToShow(f"there is no pool {pool} in namespace {namespace}: name another one with -n") from error


async def _ask_pod(kube: KubeClient, pod: dict[str, Any]) -> Answer:
    """Through the API server; from the pod itself where that cannot reach it, as from inside the cluster."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    try:
        state = await kube.pod_json(
            namespace=namespace, pod=name, port=STATE_PORT, path="state", timeout_s=PROXY_TIMEOUT_S
        )
        return Answer(name, state)
    except KubeError as error:
        words = str(error)
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return Answer(name, None, "it has no address yet")
    direct = await _ask_directly(name, f"http://{_host(address)}:{STATE_PORT}")
    if direct.state is not None:
        return direct
    remedy = f"`kubectl port-forward -n {namespace} pod/{name} {STATE_PORT}`, then --url http://localhost:{STATE_PORT}"
    return Answer(name, None, f"{words}; a network policy may close its port: {remedy}")


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


async def _ask_directly(router: str, base: str) -> Answer:
    timeout = aiohttp.ClientTimeout(total=DIRECT_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{base}/state") as response:
            response.raise_for_status()
            state = json.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return Answer(router, None, f"no state from {base}/state: {str(error) or type(error).__name__}")
    if not isinstance(state, dict) or "replicas" not in state:
        return Answer(router, None, f"{base}/state is not the state of a router")
    return Answer(router, state)
