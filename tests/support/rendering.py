"""Rendered parts of the Kimi pool with changes, for tests of single behaviours."""

from __future__ import annotations

from sglpool import render
from sglpool.api.base import Manifest
from support import pools


def statefulset(changes: pools.Json | None = None, *, gpu: int = 0) -> Manifest:
    pool = pools.pool(changes)
    return render.statefulset(pool, pools.size(pool)[gpu])


def pod_spec(changes: pools.Json | None = None, *, gpu: int = 0) -> Manifest:
    return statefulset(changes, gpu=gpu)["spec"]["template"]["spec"]


def engine(changes: pools.Json | None = None, *, gpu: int = 0) -> Manifest:
    return pod_spec(changes, gpu=gpu)["containers"][0]


def volumes(changes: pools.Json | None = None) -> dict[str, Manifest]:
    return {volume["name"]: volume for volume in pod_spec(changes)["volumes"]}


def environment(container: Manifest) -> dict[str, Manifest]:
    return {variable["name"]: variable for variable in container.get("env", [])}


def all_manifests(changes: pools.Json | None = None, *, metadata: pools.Json | None = None) -> list[Manifest]:
    pool = pools.pool(changes, metadata=metadata)
    sized = pools.size(pool)
    per_type = [make(pool, s) for s in sized for make in (render.launch_configmap, render.statefulset)]
    return [*render.shared_children(pool), *per_type]
