"""The pods of the pool, through the API server: one list, then every change, for ever.

Made for a pod: address, token and CA come from what Kubernetes mounts, and the token is read anew for every request,
because it is replaced every hour. Not the operator's client, which brings the whole generated API along.
Not here: what a pod means to the router (`pods`, `fleet`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import aiohttp

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_LIMIT_S = 10.0
PAGE = 500
_WATCH_S = 240
"""The server ends a watch after this long; a new one goes on where it ended."""
_SILENCE_S = _WATCH_S + 30.0
_RETRY_S = 0.2
_RETRY_MAX_S = 5.0
MAX_EVENT_BYTES = 8 * 2**20

Pod = Mapping[str, Any]
EventType = Literal["SYNC", "ADDED", "MODIFIED", "DELETED"]

_LOG = logging.getLogger("sglpool.picker")


class WatchError(Exception):
    """The API server refused, or did not answer: what was asked, and what came back."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """The whole list after a (re)start (`SYNC`), else one pod and what happened to it."""

    type: EventType
    pods: list[Pod]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where the API server is, and who we are.

    Attributes:
        address: Base URL.
        token_file: File with the bearer token; None: none is sent.
        ca_file: CA of the server's certificate; None: the system's.
    """

    address: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def of_pod(cls, environment: Mapping[str, str], folder: Path = ACCOUNT_DIR) -> Account:
        """The ServiceAccount of the pod that this runs in.

        Raises:
            WatchError: This is no pod of a cluster.
        """
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise WatchError("KUBERNETES_SERVICE_HOST is not set: the picker runs in a pod, or with --api-server")
        bracketed = f"[{host}]" if ":" in host else host
        return cls(address=f"https://{bracketed}:{port}", token_file=folder / "token", ca_file=folder / "ca.crt")


class PodWatch:
    """Pods of one namespace and selector. Use as an async context manager."""

    def __init__(self, account: Account, namespace: str, selector: str, on_restart: Callable[[], None]) -> None:
        """Prepare; nothing is asked yet.

        Args:
            account: Where and who.
            namespace: The pool's.
            selector: Label selector of the pods.
            on_restart: Called whenever the watch has lost its place, for metrics.
        """
        self._account = account
        self._path = f"{account.address}/api/v1/namespaces/{namespace}/pods"
        self._selector = {"labelSelector": selector}
        self._on_restart = on_restart
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> PodWatch:
        """Open the connections."""
        tls: ssl.SSLContext | bool = True
        if self._account.ca_file is not None:
            tls = ssl.create_default_context(cafile=str(self._account.ca_file))
        # The API server is inside the cluster: never through a proxy.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=4), trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close them."""
        if self._session is not None:
            await self._session.close()

    async def events(self) -> AsyncIterator[PodEvent]:
        """Every pod, then every change; lists again whenever the watch has lost its place."""
        retry_s = _RETRY_S
        while True:
            try:
                pods, version = await self._list()
                yield PodEvent("SYNC", pods)
                retry_s = _RETRY_S
                async for event in self._changes(version):
                    yield event
            except (WatchError, OSError, aiohttp.ClientError, TimeoutError, ValueError, KeyError) as problem:
                # Replicas that are known go on being served meanwhile.
                _LOG.warning("watch of pods: %s; trying again", str(problem) or type(problem).__name__)
                await asyncio.sleep(retry_s * random.uniform(0.5, 1.5))
                retry_s = min(retry_s * 2, _RETRY_MAX_S)
            self._on_restart()

    async def _list(self) -> tuple[list[Pod], str]:
        pods: list[Pod] = []
        query = {**self._selector, "limit": str(PAGE)}
        while True:
            limit = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
            async with self._open().get(self._url(query), headers=await self._headers(), timeout=limit) as response:
                content = await response.read()
                if response.status != 200:
                    raise WatchError(f"GET pods: {response.status} {_message(content)}")
            page = json.loads(content)
            pods += page.get("items") or []
            following = page["metadata"].get("continue")
            if not following:
                return pods, page["metadata"]["resourceVersion"]
            query["continue"] = following

    async def _changes(self, version: str) -> AsyncIterator[PodEvent]:
        """Changes since a version, over as many watches as it takes; returns when the version is too old."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_LIMIT_S, sock_read=_SILENCE_S)
        while True:
            query = {
                **self._selector,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(_WATCH_S),
                "resourceVersion": version,
            }
            async with self._open().get(self._url(query), headers=await self._headers(), timeout=limit) as response:
                if response.status == 410:
                    return
                if response.status != 200:
                    raise WatchError(f"watch pods: {response.status} {_message(await response.read())}")
                async for line in _lines(response.content):
                    change = json.loads(line)
                    if change["type"] == "ERROR":
                        return
                    version = change["object"]["metadata"]["resourceVersion"]
                    if change["type"] != "BOOKMARK":
                        yield PodEvent(change["type"], [change["object"]])

    def _url(self, query: Mapping[str, str]) -> str:
        return f"{self._path}?{urlencode(query)}"

    async def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._account.token_file is not None:
            token = await asyncio.to_thread(self._account.token_file.read_text)
            headers["Authorization"] = f"Bearer {token.strip()}"
        return headers

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("PodWatch is used outside its context")
        return self._session


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of up to `MAX_EVENT_BYTES`: a pod may be larger than the reader's own limit for a line."""
    pending = b""
    async for chunk in content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        if len(pending) > MAX_EVENT_BYTES:
            raise WatchError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for line in lines:
            if line:
                yield line


def _message(content: bytes) -> str:
    """The API server's own words in a Status, or the beginning of whatever came."""
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")
