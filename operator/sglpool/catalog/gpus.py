"""GPU types: memory, node labels and what their attention kernels accept.

A type is data (`data/gpus/*.toml`, or added by the chart). Node affinity has no prefix match, so the label
values are whole and exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sglpool.catalog.layouts import AttentionKind

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUType:
    """One GPU type of the catalogue.

    Attributes:
        name: what `spec.gpus[].type` says.
        memory_mib: the total as nvidia-smi reports it, MiB.
        architecture: the compute architecture, as in compiled-kernel caches (`sm_100`).
        node_label_key: the node label that tells the product.
        node_label_values: every exact value of that label for this type.
        gpus_per_node: GPUs of one node; a replica never spans nodes.
        node_memory_bytes: host memory that pods of a node can have, assumed when nodes cannot be read.
        context_bytes: what the driver and the CUDA context take of each GPU before the load.
        nccl_bytes: what NCCL takes of each GPU before the load when tp > 1.
        default_mem_fraction_percent: `--mem-fraction-static` in percent, unless a model says otherwise.
        kv_dtypes: the KV dtypes that the attention kernels accept, per attention kind.
        measured: True if the memory constants were read on such a GPU, False if they are estimates.
        source: where the numbers come from.
    """

    name: str
    memory_mib: int
    architecture: str
    node_label_key: str
    node_label_values: tuple[str, ...]
    gpus_per_node: int
    node_memory_bytes: int
    context_bytes: int
    nccl_bytes: int
    default_mem_fraction_percent: int
    kv_dtypes: Mapping[AttentionKind, tuple[str, ...]]
    measured: bool
    source: str

    @property
    def memory_bytes(self) -> int:
        """The GPU's memory in bytes."""
        return self.memory_mib * MIB

    def accepts(self, kind: AttentionKind, dtype: str) -> bool:
        """Whether a KV cache of this attention kind may have this dtype on this GPU."""
        return dtype in self.kv_dtypes.get(kind, ())
