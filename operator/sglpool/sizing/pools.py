"""From a pool to its sizes: one `SizedGPU` per GPU type, with everything the renderer and the planner need.

This is where the user's spec meets the catalogue. A name that the catalogue does not hold is a value here, not an
exception: it becomes a condition, and nothing that runs is touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sglpool.api.model import Geometry
from sglpool.api.pool import GPU, Pool
from sglpool.api.quantity import parse_bytes
from sglpool.catalog import (
    Catalog,
    DraftProfile,
    GPUType,
    GQALayout,
    KVLayout,
    ModelProfile,
    UnknownGPUType,
    UnknownProfile,
    model_from_geometry,
)
from sglpool.sizing.fit import size
from sglpool.sizing.types import AUTO, DraftRequest, Fit, HiCacheRequest, SizingRequest

DEFAULT_DRAFT_KV_DTYPE = "bf16"
DEFAULT_DRAFT_WEIGHTS_BYTES = 7_000_000_000
"""Weights of a draft that neither the catalogue nor the user describes: the largest published one, rounded up."""

UNKNOWN_DRAFT_LAYOUT: KVLayout = GQALayout(layers=6, kv_heads=8, head_dim=128)
"""KV of a draft that the catalogue does not describe: that of the largest published one (Kimi K2.6's, 6 layers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedGPU:
    """The replicas of one GPU type of a pool, sized.

    Attributes:
        entry: The user's entry of `spec.gpus`.
        gpu: The GPU type, None when unknown.
        model: The model, None when unknown.
        draft: The catalogue's draft for the algorithm, None without one.
        request: What was sized, None when something is unknown.
        fit: The result, None when something is unknown.
        reason: A reason of condition Feasible.
        message: Its message.
    """

    entry: GPU
    gpu: GPUType | None
    model: ModelProfile | None
    draft: DraftProfile | None
    request: SizingRequest | None
    fit: Fit | None
    reason: str
    message: str

    @property
    def feasible(self) -> bool:
        """Whether replicas of this type may be started."""
        return self.fit is not None and self.fit.feasible


def size_pool(
    pool: Pool,
    catalog: Catalog,
    *,
    node_memory_bytes: Mapping[str, int],
    hicache_bytes: Mapping[str, int],
) -> tuple[SizedGPU, ...]:
    """Size every GPU type of a pool, in the order of `spec.gpus`.

    Args:
        pool: The pool.
        catalog: Known models and GPU types.
        node_memory_bytes: Allocatable memory of the smallest node by GPU type, where nodes could be read.
        hicache_bytes: `hiCache.size: Auto` as resolved before, by GPU type: it stays as it was.
    """
    try:
        model = pool_model(pool, catalog)
    except UnknownProfile as error:
        return tuple(_unknown(entry, "UnknownProfile", f"spec.model.profile: {error}") for entry in pool.spec.gpus)
    return tuple(
        _size_type(
            pool,
            f"spec.gpus[{index}].type",
            entry,
            model,
            catalog,
            node_memory_bytes=node_memory_bytes.get(entry.type),
            hicache_bytes=hicache_bytes.get(entry.type),
        )
        for index, entry in enumerate(pool.spec.gpus)
    )


def _size_type(
    pool: Pool,
    path: str,
    entry: GPU,
    model: ModelProfile,
    catalog: Catalog,
    *,
    node_memory_bytes: int | None,
    hicache_bytes: int | None,
) -> SizedGPU:
    try:
        gpu = catalog.gpu(entry.type)
    except UnknownGPUType as error:
        return _unknown(entry, "UnknownGPUType", f"{path}: {error}")
    request = sizing_request(pool, entry, gpu, model, node_memory_bytes=node_memory_bytes, hicache_bytes=hicache_bytes)
    fit = size(request, other_gpus=catalog.gpus)
    return SizedGPU(
        entry=entry,
        gpu=gpu,
        model=model,
        draft=_draft_profile(pool, model),
        request=request,
        fit=fit,
        reason=str(fit.reason),
        message=f"{entry.type}: {fit.message}",
    )


def pool_model(pool: Pool, catalog: Catalog) -> ModelProfile:
    """The model of a pool: a catalogue entry, or one made from inline geometry.

    Raises:
        UnknownProfile: The catalogue has no such profile.
    """
    spec = pool.spec.model
    if spec.geometry is None:
        return catalog.model(spec.profile or "")
    return _from_geometry(spec.name, spec.geometry)


def context_tokens(pool: Pool, model: ModelProfile) -> int:
    """`--context-length` of the pool: the user's, else the model's own."""
    return pool.spec.model.context_length or model.max_context_tokens


def max_running_requests(pool: Pool, model: ModelProfile) -> int:
    """`--max-running-requests` of the pool: the user's, else the catalogue's."""
    return pool.spec.engine.max_running_requests or model.max_running_requests


def sizing_request(
    pool: Pool,
    entry: GPU,
    gpu: GPUType,
    model: ModelProfile,
    *,
    node_memory_bytes: int | None,
    hicache_bytes: int | None,
) -> SizingRequest:
    """What sizing is asked for one GPU type of a pool."""
    spec = pool.spec
    return SizingRequest(
        gpu=gpu,
        model=model,
        tensor_parallel_size=spec.tensor_parallel_size,
        kv_dtype=spec.kv_cache.dtype,
        mem_fraction_percent=entry.mem_fraction_static_percent or model.mem_fraction_percent(gpu),
        draft=_draft_request(pool, model),
        context_tokens=context_tokens(pool, model),
        max_running_requests=max_running_requests(pool, model),
        tokens_per_request=spec.load.tokens_per_request,
        target_running_requests=entry.target_running_requests,
        hicache=_hicache_request(pool, hicache_bytes),
        node_memory_bytes=node_memory_bytes,
        memory_limit_bytes=_memory_limit_bytes(pool),
    )


def _hicache_request(pool: Pool, pinned_bytes: int | None) -> HiCacheRequest | None:
    hicache = pool.spec.kv_cache.hi_cache
    if hicache is None:
        return None
    if hicache.size == "Auto":
        return HiCacheRequest(size_bytes=pinned_bytes or AUTO)
    return HiCacheRequest(size_bytes=hicache.size)


def _memory_limit_bytes(pool: Pool) -> int | None:
    limit = pool.spec.template.resources.limits.get("memory")
    return None if limit is None else parse_bytes(limit)


def _from_geometry(name: str, geometry: Geometry) -> ModelProfile:
    return model_from_geometry(
        name=name,
        attention=geometry.attention,
        layers=geometry.layers,
        weights_bytes=geometry.weights,
        kv_lora_rank=geometry.kv_lora_rank,
        rope_head_dim=geometry.rope_head_dim,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        max_context_tokens=geometry.max_context_length,
        vision=geometry.vision,
        quantization=geometry.quantization,
        reasoning_parser=geometry.reasoning_parser,
        tool_call_parser=geometry.tool_call_parser,
        trust_remote_code=geometry.trust_remote_code,
    )


def _draft_profile(pool: Pool, model: ModelProfile) -> DraftProfile | None:
    speculative = pool.spec.speculative
    return None if speculative is None else model.draft(speculative.algorithm)


def _draft_request(pool: Pool, model: ModelProfile) -> DraftRequest | None:
    speculative = pool.spec.speculative
    if speculative is None:
        return None
    if speculative.algorithm == "NEXTN":
        return DraftRequest.next_n(model, speculative.draft_kv_cache_dtype or pool.spec.kv_cache.dtype)
    profile = model.draft(speculative.algorithm)
    weights = speculative.draft_model.weights if speculative.draft_model else None
    if profile is None:
        return DraftRequest(
            checkpoint_bytes=weights or DEFAULT_DRAFT_WEIGHTS_BYTES,
            sharded=True,
            layout=UNKNOWN_DRAFT_LAYOUT,
            kv_dtype=speculative.draft_kv_cache_dtype or DEFAULT_DRAFT_KV_DTYPE,
        )
    draft = DraftRequest.of(profile, speculative.draft_kv_cache_dtype)
    return draft if weights is None else replace(draft, checkpoint_bytes=weights)


def _unknown(entry: GPU, reason: str, message: str) -> SizedGPU:
    return SizedGPU(
        entry=entry, gpu=None, model=None, draft=None, request=None, fit=None, reason=reason, message=message
    )
