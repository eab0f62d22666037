"""A bare client of the API server: the floor that the operator is compared with, and the eyes of the benchmark.

It sends prepared bytes and reads nothing that it does not need. Not a Kubernetes client: no retries, no errors
but exceptions, no caches.
"""

import asyncio
import base64
import json
import re
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from sglpool.api import names
from sglpool.kube.resources import Resource

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_READS = {"GET", "LIST", "WATCH", "WATCHLIST"}
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class BareClient:
    """One session with the API server of a kubeconfig."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    @classmethod
    @asynccontextmanager
    async def connect(cls, kubeconfig: Path) -> AsyncIterator["BareClient"]:
        """Open a session with the kubeconfig's only user, by certificate or token."""
        config = yaml.safe_load(await asyncio.to_thread(kubeconfig.read_text))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        connector = aiohttp.TCPConnector(limit=0, ssl=_tls(cluster, user), keepalive_timeout=60)
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=None, sock_read=600)
        ) as session:
            yield cls(session, cluster["server"])

    async def apply(self, path: str, body: bytes, *, manager: str = "bench") -> bytes:
        """Server-side apply of an object's bytes."""
        query = f"?fieldManager={manager}&force=true&fieldValidation=Strict"
        return await self._send("PATCH", path + query, body=body, content_type=_APPLY)

    async def patch_status(self, path: str, body: bytes) -> bytes:
        """Merge patch of a status."""
        return await self._send("PATCH", f"{path}/status?fieldManager=sglpool", body=body, content_type=_MERGE)

    async def create(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """POST an object to its collection."""
        body = json.dumps(manifest).encode()
        answer: dict[str, Any] = json.loads(await self._send("POST", path, body=body))
        return answer

    async def get(self, path: str) -> bytes:
        """GET any path."""
        return await self._send("GET", path)

    async def writes(self) -> Counter[str]:
        """Requests so far that could change something, by resource, whoever sent them, as the API server counts."""
        counts: Counter[str] = Counter()
        for labels, value in _REQUESTS.findall((await self.get("/metrics")).decode()):
            label = dict(_LABEL.findall(labels))
            if label["verb"] not in _READS:
                counts[label["resource"]] += int(float(value))
        return counts

    @asynccontextmanager
    async def watch(
        self, resource: Resource, namespace: str, *, whole: bool = False
    ) -> AsyncIterator[AsyncIterable[bytes]]:
        """Lines of a watch of everything with a pool's label; it stands when the block begins.

        Args:
            resource: What is watched.
            namespace: Where.
            whole: Whether objects come with more than their metadata.
        """
        path = f"{resource.path(namespace)}?watch=true&labelSelector={names.LABEL_POOL}"
        accept = "application/json" if whole else _METADATA
        async with self._session.get(self._server + path, headers={"Accept": accept}) as response:
            response.raise_for_status()
            yield response.content

    async def _send(
        self, method: str, path: str, *, body: bytes | None = None, content_type: str = "application/json"
    ) -> bytes:
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self._server + path, data=body, headers=headers) as response:
            answer = await response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {answer[:500].decode(errors='replace')}")
        return answer


class Observer:
    """Sees when children become visible: one metadata-only watch per kind, as cheap as a watch can be."""

    def __init__(self, client: BareClient, resources: Iterable[Resource]) -> None:
        self._client = client
        self._resources = tuple(resources)
        self._seen_s: dict[str, dict[str, float]] = {}
        self._complete: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def watch(self, namespace: str) -> AsyncIterator["Observer"]:
        """Watch a namespace for the length of the block."""
        async with AsyncExitStack() as stack:
            tasks = []
            for resource in self._resources:
                lines = await stack.enter_async_context(self._client.watch(resource, namespace))
                tasks.append(asyncio.create_task(self._follow(resource, lines)))
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def seen_s(self, pool: str, resource: Resource) -> float:
        """When (`time.perf_counter`) the pool's first child of that type became visible."""
        return self._seen_s[pool][resource.kind]

    def last_s(self, pool: str) -> float:
        """When the pool's last child became visible."""
        return max(self._seen_s[pool].values())

    async def wait_for(self, pools: Iterable[str], *, limit_s: float) -> None:
        """Wait until every child of every one of these pools is visible."""
        async with asyncio.timeout(limit_s):
            for pool in pools:
                await self._event(pool).wait()

    async def _follow(self, resource: Resource, lines: AsyncIterable[bytes]) -> None:
        async for line in lines:
            seen_s, event = time.perf_counter(), json.loads(line)
            if event["type"] == "ADDED":
                pool = event["object"]["metadata"]["labels"][names.LABEL_POOL]
                kinds = self._seen_s.setdefault(pool, {})
                kinds.setdefault(resource.kind, seen_s)
                if len(kinds) == len(self._resources):
                    self._event(pool).set()

    def _event(self, pool: str) -> asyncio.Event:
        return self._complete.setdefault(pool, asyncio.Event())


def _tls(cluster: dict[str, str], user: dict[str, str]) -> ssl.SSLContext:
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if "client-key-data" in user:
        with tempfile.NamedTemporaryFile() as pem:
            pem.write(base64.b64decode(user["client-certificate-data"]))
            pem.write(base64.b64decode(user["client-key-data"]))
            pem.flush()
            tls.load_cert_chain(pem.name)
    return tls
