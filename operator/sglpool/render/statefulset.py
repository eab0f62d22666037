"""The StatefulSet of one GPU type, and the apply that alone moves its size and partition.

Two field managers share the object: one owns everything here but replicas and partition, the other nothing but those
two. Not here: when either is applied (`plan`).
"""

from __future__ import annotations

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.render.argv import engine_argv
from sglpool.render.configmap import launch_configmap
from sglpool.render.hashes import content_hash, spec_hash
from sglpool.render.metadata import child_metadata, engine_labels
from sglpool.render.pods import pod_template
from sglpool.render.replica import Replica, replica_of
from sglpool.sizing.pools import SizedGPU


def statefulset(pool: Pool, sized: SizedGPU) -> Manifest:
    """The StatefulSet of one GPU type, without replicas and partition.

    Raises:
        ValueError: The profile or the GPU type is not in the catalogue.
    """
    replica = replica_of(pool, sized)
    template = pod_template(
        replica,
        argv=engine_argv(pool, sized),
        configmap_name=launch_configmap(pool, sized)["metadata"]["name"],
    )
    annotations = {
        names.ANNOTATION_SPEC_HASH: spec_hash(pool, sized),
        names.ANNOTATION_RENDER_HASH: content_hash(template),
        **_pinned_hicache(replica),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": child_metadata(
            pool,
            name=names.statefulset_name(pool.name, replica.gpu.name),
            labels=engine_labels(pool, replica.gpu.name),
            annotations=annotations,
        ),
        "spec": {
            "serviceName": names.engine_name(pool.name),
            # Replicas know nothing of each other: none waits for another.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": names.engine_selector(pool.name, replica.gpu.name)},
            "template": template,
        },
    }


def scale_manifest(*, name: str, namespace: str, replicas: int, partition: int, on_delete: bool = False) -> Manifest:
    """What the field manager `sglpool-scale` applies to a StatefulSet: its size, and who gets the new revision when.

    Args:
        name: Name of the StatefulSet.
        namespace: Its namespace.
        replicas: Wanted pods.
        partition: Lowest ordinal that may run the new revision.
        on_delete: Whether every ordinal may, but only when its pod is made anew: then there is no partition.
    """
    in_order = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "updateStrategy": {"type": "OnDelete"} if on_delete else in_order,
        },
    }


def _pinned_hicache(replica: Replica) -> dict[str, str]:
    """`hiCache.size: Auto` as resolved: later renderings take it from here, whatever nodes look like then."""
    hicache = replica.pool.spec.kv_cache.hi_cache
    if hicache is None or hicache.size != "Auto":
        return {}
    return {names.ANNOTATION_HICACHE_BYTES: str(replica.fit.hicache_size_bytes)}
