"""`KubePort` over HTTP: each verb becomes one request on plain dicts.

Not here: credentials, retries and deadlines (`transport.py`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlencode

from sglpool.api.names import MANAGER_TEMPLATE
from sglpool.kube.errors import KubeError, NotFound
from sglpool.kube.port import REQUEST_TIMEOUT_S, KubePort, Propagation
from sglpool.kube.resources import PODS, Manifest, Resource, resource_for
from sglpool.kube.transport import Request, RequestHook, Transport, open_transport

_PAGE_SIZE = 500
# The body is JSON, which is YAML; the server knows server-side apply by this media type alone.
_APPLY_PATCH = "application/apply-patch+yaml"

# The version of no object: etcd counts all writes from 1, and the first object gets 2. An apply that names it can
# create an object, for then there is no version to compare, but never change one.
_NO_VERSION = "1"

# Objects without spec and status, for listings that only ask what exists.
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_OWN_WRITE = {"fieldManager": MANAGER_TEMPLATE, "fieldValidation": "Strict"}

# Inside the class the name `list` is a method.
_Manifests: TypeAlias = list[Manifest]


class KubeClient(KubePort):
    """`KubePort` over HTTP. Open one per process with `connect`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        on_request: RequestHook | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> AsyncIterator["KubeClient"]:
        """A client with credentials from a kubeconfig or from the pod: `async with KubeClient.connect() as kube`.

        Args:
            kubeconfig: path; None takes the pod's ServiceAccount when in a pod, else `$KUBECONFIG`, else
                `~/.kube/config`.
            on_request: called after every HTTP attempt with verb, resource, status (0: no answer) and seconds.
            sleep: what waits between retries; a test's way to see the pauses.

        Raises:
            KubeConfigError: no usable credentials.
        """
        async with open_transport(kubeconfig, on_request=on_request, sleep=sleep) as transport:
            yield cls(transport)

    async def get(
        self, resource: Resource, *, namespace: str | None, name: str, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Manifest:
        """See `KubePort.get`."""
        return await self._send("get", "GET", resource, namespace, name, repeatable=True, timeout_s=timeout_s)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        labels: Mapping[str, str] | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        from_cache: bool = False,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> list[Manifest]:
        """See `KubePort.list`."""
        query = _list_query(labels, label_selector, field_selector)
        if from_cache:
            # Always whole: the cache knows no pages.
            return (await self._page(resource, namespace, {**query, "resourceVersion": "0"}, timeout_s))[0]
        try:
            return [item async for page in self._pages(resource, namespace, query, timeout_s) for item in page]
        except KubeError as error:
            if error.code != 410:
                raise
            # The list outlived its snapshot. Read it again in one piece, which cannot expire.
            return (await self._page(resource, namespace, query, timeout_s))[0]

    async def pages(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        label_selector: str | None = None,
        metadata_only: bool = False,
        page_size: int = _PAGE_SIZE,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> AsyncIterator[_Manifests]:
        """See `KubePort.pages`."""
        query = _list_query(None, label_selector, None)
        async for page in self._pages(
            resource, namespace, query, timeout_s, page_size=page_size, metadata_only=metadata_only
        ):
            yield page

    async def _pages(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        timeout_s: float,
        *,
        page_size: int = _PAGE_SIZE,
        metadata_only: bool = False,
    ) -> AsyncIterator[_Manifests]:
        page_query = {**query, "limit": str(page_size)}
        while True:
            page, token = await self._page(resource, namespace, page_query, timeout_s, metadata_only=metadata_only)
            yield page
            if not token:
                return
            page_query["continue"] = token

    async def create(self, manifest: Manifest, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Manifest:
        """See `KubePort.create`."""
        return await self._write("create", "POST", manifest, timeout_s=timeout_s)

    async def replace(self, manifest: Manifest, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Manifest:
        """See `KubePort.replace`."""
        return await self._write("replace", "PUT", manifest, timeout_s=timeout_s)

    async def apply(
        self,
        manifest: Manifest,
        *,
        field_manager: str,
        force: bool = True,
        only_create: bool = False,
        dry_run: bool = False,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Manifest:
        """See `KubePort.apply`."""
        query = {"fieldManager": field_manager, "fieldValidation": "Strict"}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        if only_create:
            manifest = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": _NO_VERSION}}
        return await self._write(
            "apply",
            "PATCH",
            manifest,
            query=query,
            content_type=_APPLY_PATCH,
            repeatable=True,
            timeout_s=timeout_s,
        )

    async def merge_patch(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any],
        subresource: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Manifest:
        """See `KubePort.merge_patch`."""
        return await self._send(
            "patch the status of" if subresource == "status" else "patch",
            "PATCH",
            resource,
            namespace,
            name,
            subresource=subresource,
            query=_OWN_WRITE,
            body=patch,
            content_type="application/merge-patch+json",
            timeout_s=timeout_s,
        )

    async def patch_status(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        name: str,
        status: Mapping[str, Any],
        resource_version: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Manifest:
        """See `KubePort.patch_status`."""
        patch: Manifest = {"status": status}
        if resource_version is not None:
            patch["metadata"] = {"resourceVersion": resource_version}
        return await self.merge_patch(
            resource, namespace=namespace, name=name, patch=patch, subresource="status", timeout_s=timeout_s
        )

    async def delete(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        name: str,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation = "Background",
        grace_period_s: int | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> bool:
        """See `KubePort.delete`."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {key: value for key, value in preconditions.items() if value is not None},
        }
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        try:
            await self._send("delete", "DELETE", resource, namespace, name, body=options, timeout_s=timeout_s)
        except NotFound:
            return False
        return True

    async def pod_json(self, *, namespace: str, pod: str, port: int, path: str, timeout_s: float) -> Manifest:
        """GET JSON from a pod through the API server's proxy.

        Args:
            namespace: the pod's namespace.
            pod: its name.
            port: the port that answers.
            path: URL path without its first slash.
            timeout_s: limit for the call.

        Raises:
            KubeError: the API server refuses, or cannot reach the pod.
        """
        where = f"proxy/{path}"
        return await self._send(
            "reach", "GET", PODS, namespace, f"{pod}:{port}", subresource=where, timeout_s=timeout_s
        )

    async def openapi(self, resource: Resource, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Manifest:
        """The OpenAPI document of a resource's group and version, as the API server serves it.

        Raises:
            NotFound: it does not have one, or not yet.
        """
        path = f"/openapi/v3/apis/{resource.api_version}"
        answer: Manifest = await self._transport.send(
            Request(verb="describe", method="GET", resource=resource, path=path, repeatable=True, timeout_s=timeout_s)
        )
        return answer

    async def _page(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        timeout_s: float,
        *,
        metadata_only: bool = False,
    ) -> tuple[_Manifests, str]:
        """One page of a list and the token of the next, empty at the end."""
        answer = await self._send(
            "list",
            "GET",
            resource,
            namespace,
            None,
            query=query,
            accept=_METADATA_LIST if metadata_only else "application/json",
            repeatable=True,
            timeout_s=timeout_s,
        )
        items: _Manifests = answer.get("items") or []
        for item in items:
            # The items of built-in lists come without their type.
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return items, answer.get("metadata", {}).get("continue") or ""

    async def _write(
        self,
        verb: str,
        method: str,
        manifest: Manifest,
        *,
        query: Mapping[str, str] = _OWN_WRITE,
        content_type: str = "application/json",
        repeatable: bool = False,
        timeout_s: float,
    ) -> Manifest:
        """Send a whole manifest to the place that its type, namespace and name give."""
        resource, metadata = resource_for(manifest), manifest.get("metadata") or {}
        namespace = metadata.get("namespace")
        if resource.namespaced and not namespace:
            raise ValueError(f"{resource.kind} {metadata.get('name')!r}: metadata.namespace is missing")
        return await self._send(
            verb,
            method,
            resource,
            namespace,
            metadata.get("name", ""),
            query=query,
            body=manifest,
            content_type=content_type,
            repeatable=repeatable,
            timeout_s=timeout_s,
        )

    async def _send(
        self,
        verb: str,
        method: str,
        resource: Resource,
        namespace: str | None,
        name: str | None,
        *,
        subresource: str | None = None,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        repeatable: bool = False,
        timeout_s: float,
    ) -> Manifest:
        path = resource.path(namespace, None if method == "POST" else name, subresource)
        answer: Manifest = await self._transport.send(
            Request(
                verb=verb,
                method=method,
                resource=resource,
                namespace=namespace or "",
                name=name or "",
                path=f"{path}?{urlencode(query)}" if query else path,
                body=body,
                content_type=content_type,
                accept=accept,
                repeatable=repeatable,
                timeout_s=timeout_s,
            )
        )
        return answer


def _list_query(
    labels: Mapping[str, str] | None, label_selector: str | None, field_selector: str | None
) -> dict[str, str]:
    query: dict[str, str] = {}
    selectors = [f"{key}={value}" for key, value in (labels or {}).items()]
    if label_selector:
        selectors.append(label_selector)
    if selectors:
        query["labelSelector"] = ",".join(selectors)
    if field_selector:
        query["fieldSelector"] = field_selector
    return query
