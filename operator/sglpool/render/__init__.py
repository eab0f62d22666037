"""From a sized pool to manifests and engine arguments.

Pure functions: the same pool gives the same bytes. What depends on the cluster (sizes, partitions, what exists
already) is decided in `plan`.
"""

from sglpool.render.argv import engine_argv
from sglpool.render.children import shared_children
from sglpool.render.configmap import launch_configmap
from sglpool.render.gate import gate_job, gate_job_name, gate_record
from sglpool.render.hashes import children_hash, content_hash, spec_hash
from sglpool.render.router import endpoint, has_router, router_children, router_configmap, router_hash
from sglpool.render.statefulset import scale_manifest, statefulset

__all__ = [
    "children_hash",
    "content_hash",
    "endpoint",
    "engine_argv",
    "gate_job",
    "gate_job_name",
    "gate_record",
    "has_router",
    "launch_configmap",
    "router_children",
    "router_configmap",
    "router_hash",
    "scale_manifest",
    "shared_children",
    "spec_hash",
    "statefulset",
]
