"""The node agent's way to the API server: a few verbs, and a watch that never gives up.

The product's own client has no watch (kopf watches there) and brings the whole generated client along; a kubelet
needs little more than the paths of pods, nodes and leases. Paths are written out where they are used.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

import aiohttp

from sglpool.sandbox.apiserver import ApiServer, Manifest, RequestRefused, error_message
from sglpool.sandbox.errors import SandboxError

REQUEST_LIMIT_S = 10.0
_WATCH_S = 240
"""The server ends a watch after this long; a new one goes on where it ended."""
_SILENCE_S = _WATCH_S + 30.0
_RETRY_S = 0.2
_RETRY_MAX_S = 5.0

EventType = Literal["SYNC", "ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change, or the whole list after a (re)start of the watch.

    Attributes:
        type: `SYNC` for a whole list, else what happened to one object.
        objects: All objects for `SYNC`, else the one that changed.
    """

    type: EventType
    objects: list[Manifest]


class AgentApi:
    """Requests to the API server of a kubeconfig. Use as an async context manager."""

    def __init__(self, server: ApiServer) -> None:
        """Take address and credentials from a plain client of the same kubeconfig."""
        self.address = server.address
        self._tls = server.tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AgentApi:
        """Open the connections."""
        # Watches and requests side by side; loopback never goes through a proxy.
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=64)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        if self._session:
            await self._session.close()

    async def get(self, path: str) -> Manifest:
        """Read one object or list."""
        return await self._json("GET", path)

    async def create(self, path: str, body: Manifest) -> Manifest:
        """POST an object to its collection, or to a subresource such as `token`."""
        return await self._json("POST", path, body=body)

    async def replace(self, path: str, body: Manifest) -> Manifest:
        """PUT an object; its resourceVersion, where given, must still be the newest."""
        return await self._json("PUT", path, body=body)

    async def patch(self, path: str, body: Manifest, *, strategic: bool = False) -> Manifest:
        """Merge-patch one object; a strategic patch merges lists such as conditions by their keys."""
        kind = "strategic-merge-patch" if strategic else "merge-patch"
        return await self._json("PATCH", path, body=body, content_type=f"application/{kind}+json")

    async def delete(self, path: str, options: Manifest | None = None) -> None:
        """Delete one object; that it is gone, or is another one by now, is fine."""
        try:
            await self._json("DELETE", path, body=options)
        except RequestRefused as error:
            if error.status not in (404, 409):
                raise

    async def watch(self, path: str, *, field_selector: str = "") -> AsyncIterator[WatchEvent]:
        """Every object of a collection, then every change, for ever; lists again whenever it lost its place."""
        retry_s = _RETRY_S
        selector = {"fieldSelector": field_selector} if field_selector else {}
        while True:
            try:
                listing = await self.get(f"{path}?{urlencode(selector)}")
                yield WatchEvent("SYNC", listing.get("items") or [])
                retry_s = _RETRY_S
                async for event in self._changes(path, selector, listing["metadata"]["resourceVersion"]):
                    yield event
            except (SandboxError, OSError, aiohttp.ClientError, TimeoutError, ValueError):
                # The server restarts, or is not up yet: what runs here goes on running meanwhile.
                await asyncio.sleep(retry_s * random.uniform(0.5, 1.5))
                retry_s = min(retry_s * 2, _RETRY_MAX_S)

    async def _changes(self, path: str, selector: Mapping[str, str], version: str) -> AsyncIterator[WatchEvent]:
        """Changes since a version, over as many watches as it takes; returns when the version is too old."""
        while True:
            query = {
                **selector,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(_WATCH_S),
                "resourceVersion": version,
            }
            limit = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_LIMIT_S, sock_read=_SILENCE_S)
            async with self._open().get(f"{self.address}{path}?{urlencode(query)}", timeout=limit) as response:
                if response.status != 200:
                    return
                async for line in _lines(response.content):
                    change = json.loads(line)
                    if change["type"] == "ERROR":
                        return
                    version = change["object"]["metadata"]["resourceVersion"]
                    if change["type"] != "BOOKMARK":
                        yield WatchEvent(change["type"], [change["object"]])

    async def _json(
        self, method: str, path: str, *, body: Manifest | None = None, content_type: str = "application/json"
    ) -> Manifest:
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.dumps(body).encode()
        limit = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
        try:
            async with self._open().request(
                method, self.address + path, data=data, headers=headers, timeout=limit
            ) as response:
                content = await response.read()
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise SandboxError(f"{self.address} does not answer: {error or type(error).__name__}") from error
        if response.status >= 400:
            raise RequestRefused(f"{method} {path}: {error_message(content)}", response.status)
        answer: Manifest = json.loads(content)
        return answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("AgentApi is used outside its context")
        return self._session


class PodObjects:
    """What pods mount and read, fetched when a container starts."""

    def __init__(self, api: AgentApi) -> None:
        """Read through `api`."""
        self._api = api

    async def get_config_map(self, namespace: str, name: str) -> Manifest | None:
        """A ConfigMap; None when there is none."""
        return await self._find(namespace, "configmaps", name)

    async def get_secret(self, namespace: str, name: str) -> Manifest | None:
        """A Secret; None when there is none."""
        return await self._find(namespace, "secrets", name)

    async def token(self, namespace: str, service_account: str, audience: str, expiry_s: int, pod: Manifest) -> str:
        """A token of a ServiceAccount, bound to the pod, as a projected volume holds it."""
        metadata = pod["metadata"]
        spec: dict[str, Any] = {
            "expirationSeconds": expiry_s,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        }
        if audience:
            spec["audiences"] = [audience]
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{quote(service_account)}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await self._api.create(path, body)
        token: str = answer["status"]["token"]
        return token

    async def _find(self, namespace: str, kind: str, name: str) -> Manifest | None:
        try:
            return await self._api.get(f"/api/v1/namespaces/{namespace}/{kind}/{quote(name)}")
        except RequestRefused as error:
            if error.status == 404:
                return None
            raise


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: a pod may be larger than the reader's own limit for a line."""
    pending = b""
    async for chunk in content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
