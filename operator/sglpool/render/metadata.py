"""Metadata of child objects: names, labels, owner.

Children carry an allow-list of labels of our own. Nothing is copied from the pool's metadata: labels and annotations
of Argo CD, Helm or kubectl on a child would make those tools adopt or prune it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool


def child_metadata(
    pool: Pool,
    *,
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """`metadata` of an object that goes when the pool goes.

    A pool from a file has no uid yet; its children are printed without an owner.
    """
    metadata: Manifest = {"name": name, "namespace": pool.namespace, "labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if pool.uid:
        metadata["ownerReferences"] = [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": pool.name,
                "uid": pool.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return metadata


def engine_labels(pool: Pool, gpu_type: str | None = None) -> dict[str, str]:
    """Labels of engine objects: of all, or of those of one GPU type."""
    labels = names.child_labels(pool.name, "engine")
    return labels if gpu_type is None else labels | {names.LABEL_GPU: gpu_type}
