"""One replica kind to render: a pool and one of its GPU types, with everything known.

Sizing may answer "unknown profile" or "unknown GPU type"; such a type has no manifests. This module is where that
possibility ends, so that the rest of rendering never asks. Not here: any part of a manifest.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglpool.api.pool import Pool
from sglpool.catalog import DraftProfile, GPUType, ModelProfile
from sglpool.sizing.pools import SizedGPU
from sglpool.sizing.types import Fit, SizingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A pool's replicas of one GPU type, ready to render.

    Attributes:
        pool: The pool.
        gpu: The GPU type.
        model: The model.
        draft: The catalogue's draft for the pool's algorithm, None without one.
        request: What was sized: defaults resolved.
        fit: The result: HiCache per rank, host memory, `/dev/shm`.
    """

    pool: Pool
    gpu: GPUType
    model: ModelProfile
    draft: DraftProfile | None
    request: SizingRequest
    fit: Fit

    @property
    def gpus_per_pod(self) -> int:
        """GPUs of one pod, all ranks of the replica."""
        return self.request.tensor_parallel_size


def replica_of(pool: Pool, sized: SizedGPU) -> Replica:
    """The replica kind of one sized entry; an infeasible one can be rendered too, to be looked at.

    Raises:
        ValueError: The profile or the GPU type is not in the catalogue, so nothing can be rendered.
    """
    if sized.gpu is None or sized.model is None or sized.request is None or sized.fit is None:
        raise ValueError(f"{pool.key}: {sized.entry.type} cannot be rendered ({sized.reason}: {sized.message})")
    return Replica(pool=pool, gpu=sized.gpu, model=sized.model, draft=sized.draft, request=sized.request, fit=sized.fit)
