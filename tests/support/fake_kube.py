"""The API server as the executor sees it, in memory: enough of `KubePort` to look at what was asked for.

Applies merge; a uid in an applied manifest pins the object, as on a real server. What server-side apply does to
ownership is tested against a real one.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from sglpool.api.base import Manifest
from sglpool.kube import Conflict, Invalid, KubeError, NotFound, Resource, resource_for

Key = tuple[str, str]


class FakeKube:
    """Objects of one namespace by kind and name.

    Attributes:
        objects: What is there.
        calls: Writes in order: verb, kind, name.
        deletions: Preconditions and propagation of each delete, by kind and name.
        failures: Errors to raise instead of an answer, by verb, kind and name.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Manifest] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.managers: list[str] = []
        self.deletions: dict[Key, dict[str, Any]] = {}
        self.failures: dict[tuple[str, str, str], KubeError] = {}
        self._numbers = itertools.count(1)

    def put(self, manifest: Manifest, *, owner: str = "", owner_kind: str = "InferencePool") -> Manifest:
        """Something that exists already."""
        stored = copy.deepcopy(manifest)
        metadata = stored["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        metadata["resourceVersion"] = str(next(self._numbers))
        if owner:
            metadata["ownerReferences"] = [{"kind": owner_kind, "name": "kimi", "uid": owner, "controller": True}]
        self.objects[stored["kind"], metadata["name"]] = stored
        return stored

    async def get(self, resource: Resource, *, namespace: str, name: str) -> Manifest:
        found = self.objects.get((resource.kind, name))
        if found is None:
            raise NotFound("not found", verb="get", kind=resource.kind, namespace=namespace, name=name, code=404)
        return copy.deepcopy(found)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str,
        labels: Mapping[str, str] | None = None,
        field_selector: str | None = None,
    ) -> list[Manifest]:
        self._answer("list", resource.kind, "")
        wanted = (labels or {}).items()
        return [
            copy.deepcopy(o)
            for (kind, _), o in self.objects.items()
            if kind == resource.kind and wanted <= (o["metadata"].get("labels") or {}).items()
        ]

    async def apply(self, manifest: Manifest, *, field_manager: str, only_create: bool = False) -> Manifest:
        kind, name = resource_for(manifest).kind, manifest["metadata"]["name"]
        self._answer("apply", kind, name)
        existing, uid = self.objects.get((kind, name)), manifest["metadata"].get("uid")
        error = {"verb": "apply", "kind": kind, "name": name}
        if (only_create and existing) or (uid and existing is None):
            raise Conflict("already exists, or not this one", code=409, **error)
        if uid and existing and existing["metadata"]["uid"] != uid:
            raise Invalid(f'metadata.uid: Invalid value: "{uid}": field is immutable', code=422, **error)
        self.managers.append(field_manager)
        if existing is None:
            existing = {"metadata": {"uid": f"uid-{next(self._numbers)}", "generation": 1}}
            if kind == "StatefulSet":
                existing["spec"] = {"replicas": 1}
        merged = _merge(existing, manifest)
        merged["metadata"]["resourceVersion"] = str(next(self._numbers))
        if kind == "StatefulSet":
            merged["metadata"].setdefault("managedFields", []).append({"manager": field_manager})
        self.objects[kind, name] = merged
        return copy.deepcopy(merged)

    async def merge_patch(self, resource: Resource, *, namespace: str, name: str, patch: Manifest) -> Manifest:
        self._answer("patch", resource.kind, name)
        patched = _merge(self.objects[resource.kind, name], patch)
        patched["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.objects[resource.kind, name] = patched
        return copy.deepcopy(patched)

    async def delete(
        self,
        resource: Resource,
        *,
        namespace: str,
        name: str,
        uid: str,
        propagation: str = "Background",
        grace_period_s: int | None = None,
    ) -> bool:
        self._answer("delete", resource.kind, name)
        self.deletions[resource.kind, name] = {"uid": uid, "propagation": propagation}
        if grace_period_s is not None:
            self.deletions[resource.kind, name] |= {"grace_period_s": grace_period_s}
        existing = self.objects.get((resource.kind, name))
        if existing is None:
            return False
        if existing["metadata"]["uid"] != uid:
            raise Conflict("uid", verb="delete", kind=resource.kind, name=name, code=409)
        del self.objects[resource.kind, name]
        return True

    def _answer(self, verb: str, kind: str, name: str) -> None:
        if (verb, kind, name) in self.failures:
            raise self.failures[verb, kind, name]
        if verb != "list":
            self.calls.append((verb, kind, name))


def _merge(into: Manifest, changes: Manifest) -> Manifest:
    merged = copy.deepcopy(into)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else copy.deepcopy(value)
    return merged
