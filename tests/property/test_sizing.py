"""Properties of sizing over the whole catalogue and made-up models."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sglpool.catalog import GIB, ModelProfile, load_catalog, model_from_geometry
from sglpool.sizing import AUTO, DraftRequest, HiCacheRequest, Reason, SizingRequest, size

GB = 10**9
CATALOG = load_catalog()
DRAFT = CATALOG.model("kimi-k2.6-nvfp4").drafts[0]


@st.composite
def models(draw: st.DrawFn) -> ModelProfile:
    if draw(st.booleans()):
        return draw(st.sampled_from(CATALOG.models))
    layers = draw(st.integers(1, 128))
    weights_bytes = draw(st.integers(2 * GIB, 2_000 * GB))
    if draw(st.booleans()):
        return model_from_geometry(
            name="made-up",
            attention="MLA",
            layers=layers,
            kv_lora_rank=512,
            rope_head_dim=64,
            weights_bytes=weights_bytes,
        )
    kv_heads = draw(st.sampled_from([1, 2, 4, 6, 8, 16]))
    return model_from_geometry(
        name="made-up", attention="GQA", layers=layers, kv_heads=kv_heads, head_dim=128, weights_bytes=weights_bytes
    )


@st.composite
def requests(draw: st.DrawFn) -> SizingRequest:
    sizes = st.integers(1, 4_000 * GB) | st.just(AUTO)
    return SizingRequest(
        gpu=draw(st.sampled_from(CATALOG.gpus)),
        model=draw(models()),
        tensor_parallel_size=draw(st.sampled_from([1, 2, 4, 8])),
        kv_dtype=draw(st.sampled_from(["fp8_e4m3", "bf16", "fp8_e5m2", "bfloat16"])),
        mem_fraction_percent=draw(st.integers(30, 95)),
        draft=draw(st.none() | st.just(DraftRequest.of(DRAFT))),
        context_tokens=draw(st.integers(1_024, 1_048_576)),
        max_running_requests=draw(st.integers(1, 64)),
        tokens_per_request=draw(st.integers(1_000, 500_000)),
        target_running_requests=draw(st.none() | st.integers(1, 64)),
        hicache=draw(st.none() | sizes.map(lambda size_bytes: HiCacheRequest(size_bytes=size_bytes))),
        node_memory_bytes=draw(st.none() | st.integers(16 * GB, 4_200 * GB)),
        memory_limit_bytes=draw(st.none() | st.integers(8 * GB, 4_200 * GB)),
    )


@st.composite
def modest_requests(draw: st.DrawFn) -> SizingRequest:
    """Requests of which most are feasible."""
    request = draw(requests())
    return replace(
        request,
        model=CATALOG.model("gpt-oss-120b"),
        kv_dtype="bf16",
        mem_fraction_percent=draw(st.integers(80, 95)),
        draft=None,
        context_tokens=draw(st.integers(1_024, 131_072)),
        target_running_requests=draw(st.none() | st.integers(1, 4)),
        tokens_per_request=draw(st.integers(1_000, 100_000)),
        hicache=draw(st.none() | st.just(HiCacheRequest(size_bytes=AUTO))),
        node_memory_bytes=draw(st.none() | st.integers(1_000 * GB, 4_200 * GB)),
        memory_limit_bytes=None,
    )


@given(requests(), st.integers(0, 20))
def test_a_larger_fraction_never_holds_fewer_tokens(request_, more):
    larger = replace(request_, mem_fraction_percent=request_.mem_fraction_percent + more)
    assert size(larger).kv_tokens >= size(request_).kv_tokens


@given(requests())
def test_more_ranks_never_hold_fewer_tokens(request_):
    """Of any model whose half outweighs what NCCL takes; smaller ones gain nothing from a second GPU."""
    assume(request_.tensor_parallel_size < 8)
    more = replace(request_, tensor_parallel_size=request_.tensor_parallel_size * 2)
    assert size(more).kv_tokens >= size(request_).kv_tokens


@given(modest_requests())
def test_a_feasible_replica_holds_a_conversation_and_its_explicit_target(request_):
    fit = size(request_)
    assume(fit.feasible)
    assert fit.kv_tokens >= request_.context_tokens
    assert fit.conversations_at_context >= 1
    if request_.target_running_requests is not None:
        assert request_.target_running_requests * request_.tokens_per_request <= fit.kv_tokens
    assert fit.host_memory_request_bytes * fit.replicas_per_node <= fit.node_memory_bytes


@given(requests())
def test_the_host_pools_of_all_ranks_never_exceed_the_size_that_was_asked_for(request_):
    fit = size(request_)
    ranks = request_.tensor_parallel_size
    assert fit.hicache_size_gb_per_rank * GB * ranks <= fit.hicache_total_bytes + ranks
    assert fit.hicache_total_bytes <= fit.hicache_size_bytes
    if request_.hicache is None:
        assert fit.hicache_total_bytes == 0


@given(requests())
def test_auto_never_asks_a_node_for_more_than_it_has(request_):
    automatic = replace(request_, hicache=HiCacheRequest(size_bytes=AUTO), memory_limit_bytes=None)
    assert size(automatic).reason is not Reason.HOST_MEMORY_EXCEEDED


@given(requests())
def test_the_error_band_holds_the_result(request_):
    fit = size(request_)
    assert 0 <= fit.kv_tokens_low <= fit.kv_tokens <= fit.kv_tokens_high


@given(requests())
def test_the_target_is_at_least_one_and_a_derived_one_at_most_the_running_limit(request_):
    fit = size(request_)
    assert fit.target_running_requests >= 1
    if request_.target_running_requests is None:
        assert fit.target_running_requests <= request_.max_running_requests


@settings(max_examples=50, deadline=None)
@given(requests())
def test_whatever_does_not_fit_is_told_why_and_what_really_would(request_):
    fit = size(request_, other_gpus=CATALOG.gpus)
    assume(not fit.feasible)
    assert fit.reason is not Reason.FITS_HBM
    assert fit.message.endswith(".")
    for remedy in fit.remedies:
        assert remedy.text in fit.message
        assert remedy.request != request_
        assert size(remedy.request).feasible


@given(requests())
def test_the_tables_add_up(request_):
    fit = size(request_)
    *parts, pool = fit.hbm_lines
    assert sum(line.bytes for line in parts) == pool.bytes == fit.kv_pool_bytes_per_gpu
    host = {line.label: line.bytes for line in fit.host_lines}
    summed = host.get("HiCache pools", 0) + host["engine processes"] + host["/dev/shm"]
    assert summed == host["memory request"] == fit.host_memory_request_bytes
