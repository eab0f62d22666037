"""The Kubernetes API as this project uses it: eight verbs on plain dicts.

`KubePort` is what reconcile, the lease and the events know, and what their tests fake. There is no cache and no
watch here: kopf watches, reconcile reads.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from sglpool.kube.resources import Manifest, Resource

Manifests: TypeAlias = list[Manifest]
Propagation: TypeAlias = Literal["Background", "Orphan", "Foreground"]

REQUEST_TIMEOUT_S = 30.0


class KubePort(Protocol):
    """What the project asks of a Kubernetes API. All calls raise `KubeError` subclasses and end within a timeout."""

    async def get(
        self, resource: Resource, *, namespace: str | None, name: str, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Manifest:
        """Read one object, live.

        Raises:
            NotFound: it is not there.
        """
        ...

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
        """Read all objects that match, page by page; each carries its `apiVersion` and `kind`.

        Args:
            resource: the resource type.
            namespace: one namespace; None for all of them and for cluster-scoped resources.
            labels: labels that must all be equal.
            label_selector: a selector in text form, in addition to `labels`.
            field_selector: a field selector in text form.
            from_cache: take what the API server's watch cache holds: cheaper, and a moment old.
            timeout_s: limit for each page.
        """
        ...

    def pages(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        label_selector: str | None = None,
        metadata_only: bool = False,
        page_size: int = 500,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> AsyncIterator["Manifests"]:
        """Read all objects that match, a page at a time, so that a large listing never stands in memory whole.

        Args:
            resource: the resource type.
            namespace: one namespace; None for all of them.
            label_selector: a selector in text form.
            metadata_only: leave spec and status with the server.
            page_size: objects per page.
            timeout_s: limit for each page.

        Raises:
            Transient: with code 410 when the listing took so long that its snapshot is gone: start over.
        """
        ...

    async def create(self, manifest: Manifest, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Manifest:
        """Create an object.

        Raises:
            Conflict: an object of that name is there already.
            Invalid: the server refuses the manifest, unknown fields included.
        """
        ...

    async def replace(self, manifest: Manifest, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Manifest:
        """Replace an object whole; with `metadata.resourceVersion` only if nobody changed it since.

        Raises:
            Conflict: it changed in between.
            NotFound: it is not there.
        """
        ...

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
        """Server-side apply: make the object carry these fields, and drop those this manager applied before.

        Args:
            manifest: exactly the fields that the manager wants to own.
            field_manager: who owns them.
            force: take fields over from other managers instead of failing with `Conflict`.
            only_create: fail with `Conflict` if the object is there already, and change nothing. Unlike a look
                before, this leaves no moment in which somebody else can create it.
            dry_run: only ask what would come out.
            timeout_s: limit for the call.

        Raises:
            Invalid: the server refuses the manifest, unknown fields included.
            NotFound: the namespace or the resource type is not there.
        """
        ...

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
        """JSON merge patch: maps are merged, lists replaced whole, `None` removes.

        Raises:
            Conflict: the patch names a `metadata.resourceVersion` that is no longer current.
            NotFound: the object is not there.
        """
        ...

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
        """Merge `status` into the status subresource, replacing lists whole.

        Args:
            resource: the resource type.
            namespace: the object's namespace.
            name: the object's name.
            status: the new status; `None` as a value removes a field.
            resource_version: patch only if the object still has this version.
            timeout_s: limit for the call.

        Raises:
            Conflict: the object has another version by now.
            NotFound: the object is not there.
        """
        ...

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
        """Delete an object; False if it was gone already.

        Args:
            resource: the resource type.
            namespace: the object's namespace.
            name: the object's name.
            uid: delete only this incarnation of the object.
            resource_version: delete only if nobody changed it since.
            propagation: what happens to the objects that it owns.
            grace_period_s: seconds for a pod to end; None keeps the pod's own.
            timeout_s: limit for the call.

        Raises:
            Conflict: the object has another uid or version.
        """
        ...
