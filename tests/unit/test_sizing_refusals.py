"""What does not fit, and what would: the sentence names the figures, and every remedy in it really fits."""

from dataclasses import replace

import pytest

from sglpool.catalog import GIB
from sglpool.sizing import AUTO, HiCacheRequest, Reason, size
from support.sized_sample import B200, CATALOG, DRAFT, GB, KIMI, SAMPLE


def infeasible(reason, other_gpus=(), **changes):
    """Size a changed sample, and prove that it is refused and that each remedy it names really fits."""
    fit = size(replace(SAMPLE, **changes), other_gpus=other_gpus)
    assert not fit.feasible
    assert fit.reason is reason
    for remedy in fit.remedies:
        assert remedy.text in fit.message
        assert size(remedy.request).feasible
    return fit


def test_weights_that_do_not_fit_are_told_the_size_that_does():
    fit = infeasible(Reason.WEIGHTS_EXCEED_HBM, tensor_parallel_size=1)
    assert fit.kv_pool_bytes_per_gpu < 0
    assert "needs 602.1 GB of weights a GPU" in fit.message
    assert "This would fit: tensorParallelSize 4." in fit.message


def test_a_larger_gpu_is_named_where_it_fits():
    v32 = CATALOG.model("deepseek-v3.2")
    fit = infeasible(Reason.WEIGHTS_EXCEED_HBM, model=v32, draft=None, context_tokens=163_840, other_gpus=CATALOG.gpus)
    assert "tensorParallelSize 8; or GPU type B300" in fit.message


def test_a_context_that_does_not_fit_is_told_fraction_dtype_and_context():
    fit = infeasible(Reason.KV_CAPACITY_EXCEEDED, kv_dtype="bf16", draft=None, mem_fraction_percent=85)
    assert "fewer than one conversation of contextLength 262,144" in fit.message
    texts = [remedy.text for remedy in fit.remedies]
    assert texts[0].startswith("memFractionStaticPercent 8")
    assert "kvCache.dtype fp8_e4m3 instead of bf16" in texts
    assert "tensorParallelSize 8" in texts
    assert any(text.startswith("model.contextLength ") for text in texts)


def test_the_fraction_that_is_suggested_is_the_lowest_that_fits():
    fit = infeasible(Reason.KV_CAPACITY_EXCEEDED, kv_dtype="bf16", draft=None, mem_fraction_percent=85)
    suggested = fit.remedies[0].request
    assert not size(replace(suggested, mem_fraction_percent=suggested.mem_fraction_percent - 1)).feasible


def test_an_explicit_target_that_does_not_fit_is_told_the_one_that_does():
    fit = infeasible(Reason.KV_CAPACITY_EXCEEDED, target_running_requests=6)
    assert "targetRunningRequests 6 of 100,000 tokens each need 600,000" in fit.message
    assert fit.remedies[0].text == "targetRunningRequests 4"


def test_a_derived_target_never_makes_a_replica_infeasible():
    assert size(replace(SAMPLE, tokens_per_request=10_000_000)).feasible


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "fp8", "fp8_e5m2", "mxfp8", "nvfp4"])
def test_a_kv_dtype_that_the_gpu_refuses_is_told_the_ones_it_takes(dtype):
    fit = infeasible(Reason.KV_DTYPE_REFUSED, kv_dtype=dtype)
    assert f"kvCache.dtype {dtype} is refused by the MLA attention kernels of B200" in fit.message
    assert "which take fp8_e4m3 or bf16" in fit.message
    assert [remedy.request.kv_dtype for remedy in fit.remedies] == ["fp8_e4m3", "bf16"]
    assert (fit.kv_tokens, fit.hicache_size_gb_per_rank) == (0, 0)


def test_a_draft_kv_dtype_that_the_gpu_refuses_names_its_own_field():
    fit = infeasible(Reason.KV_DTYPE_REFUSED, draft=replace(DRAFT, kv_dtype="fp8_e5m2"))
    assert "speculative.draftKVCacheDtype fp8_e5m2 is refused by the GQA" in fit.message


def test_a_gpu_type_without_kernels_for_an_attention_says_so():
    gpu = replace(B200, kv_dtypes={})
    fit = infeasible(Reason.KV_DTYPE_REFUSED, gpu=gpu, draft=None)
    assert "knows no KV dtype for MLA attention on B200" in fit.message


def test_a_context_longer_than_the_models_own_is_refused():
    fit = infeasible(Reason.CONTEXT_EXCEEDS_MODEL, context_tokens=300_000)
    assert "contextLength 300,000 is more than the 262,144 that kimi-k2.6-nvfp4 was made for" in fit.message
    assert fit.remedies[0].text == "model.contextLength 262144"


def test_a_replica_never_spans_nodes():
    small = replace(B200, name="GB200", gpus_per_node=4)
    fit = infeasible(Reason.GPUS_PER_NODE_EXCEEDED, gpu=small, tensor_parallel_size=8, other_gpus=CATALOG.gpus)
    assert "tensorParallelSize 8 needs that many GPUs on one node, but a GB200 node has 4" in fit.message
    assert fit.remedies[0].text == "tensorParallelSize 4"


def test_all_replicas_of_a_node_must_fit_its_memory():
    fit = infeasible(Reason.HOST_MEMORY_EXCEEDED, hicache=HiCacheRequest(size_bytes=1_100 * GB))
    assert "2 replicas share a node" in fit.message
    assert fit.remedies[0].text == "kvCache.hiCache.size 994G"
    alone = replace(SAMPLE, tensor_parallel_size=8, hicache=HiCacheRequest(size_bytes=1_100 * GB))
    assert size(alone).feasible


def test_a_node_that_was_seen_counts_instead_of_the_catalogues():
    fit = infeasible(Reason.HOST_MEMORY_EXCEEDED, node_memory_bytes=1_000 * GB)
    assert "pods of a B200 node have 1,000.0 GB" in fit.message


def test_a_memory_limit_below_the_guard_is_told_the_guard_and_a_size():
    fit = infeasible(Reason.HOST_MEMORY_EXCEEDED, memory_limit_bytes=600 * GB)
    assert "it uses 505.0 GB" in fit.message
    assert "passes only from 875.3 GB" in fit.message
    texts = [remedy.text for remedy in fit.remedies]
    assert texts == [
        "kvCache.hiCache.size 322G",
        "a memory limit of 876G or more",
        "no memory limit",
        "no kvCache.hiCache",
    ]


def test_a_memory_limit_below_the_request_is_refused_without_hicache_too():
    fit = infeasible(Reason.HOST_MEMORY_EXCEEDED, hicache=None, memory_limit_bytes=16 * GB)
    assert fit.remedies[0].text == "a memory limit of 26G or more"


def test_a_size_without_a_unit_is_told_that_it_is_bytes():
    fit = infeasible(Reason.HICACHE_TOO_SMALL, hicache=HiCacheRequest(size_bytes=480))
    assert "kvCache.hiCache.size 480 bytes is under 1 GB of KV for each of the 4 ranks" in fit.message
    assert fit.remedies[0].text == "kvCache.hiCache.size 5G or more"


def test_auto_on_a_node_without_memory_to_spare_is_refused():
    fit = infeasible(Reason.HICACHE_TOO_SMALL, hicache=HiCacheRequest(size_bytes=AUTO), node_memory_bytes=100 * GIB)
    assert "Auto comes to 0.0 GB on a node with 107.4 GB" in fit.message


def test_two_problems_are_answered_with_two_changes():
    fit = infeasible(
        Reason.WEIGHTS_EXCEED_HBM,
        tensor_parallel_size=2,
        hicache=HiCacheRequest(size_bytes=1_100 * GB),
        node_memory_bytes=1_000 * GB,
    )
    assert any(" with kvCache.hiCache.size " in remedy.text for remedy in fit.remedies)


def test_a_model_that_fits_nowhere_is_told_so():
    fit = infeasible(
        Reason.WEIGHTS_EXCEED_HBM,
        model=replace(KIMI, checkpoint_bytes=4_000 * GB),
        other_gpus=CATALOG.gpus,
        tensor_parallel_size=8,
    )
    assert fit.remedies == ()
    assert "take a smaller checkpoint" in fit.message
