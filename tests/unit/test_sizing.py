"""Sizing against published figures, known answers and what a real engine reported.

Not here: what does not fit (`test_sizing_refusals`).
"""

from dataclasses import replace

import pytest

from sglpool.catalog import GIB, model_from_geometry
from sglpool.sizing import AUTO, DraftRequest, HiCacheRequest, SizingRequest, napkin, size
from sglpool.sizing.hbm import free_before_load_bytes, kv_pool_bytes, kv_tokens, sharded_bytes
from sglpool.sizing.host import auto_hicache_bytes, guard_bytes, largest_rank_pool_bytes
from support.sized_sample import B200, CATALOG, DRAFT, GB, H200, KIMI, SAMPLE

# Published figures


@pytest.mark.parametrize(
    ("tensor_parallel_size", "replica_gb", "gpu_gb", "million_tokens"),
    [(1, -415, -415, 0), (2, -235, -117.5, 0), (4, 125, 31.25, 0.4447), (8, 845, 105.625, 1.5031)],
)
def test_the_napkin_table_of_kimi_k2_6_in_bf16(tensor_parallel_size, replica_gb, gpu_gb, million_tokens):
    """180 GB a GPU, 595 GB of weights. The table was printed with 3.0 M tokens at TP8: as if a latent divided."""
    figures = napkin(
        gpu_bytes=180 * GB, weight_bytes=595 * GB, tensor_parallel_size=tensor_parallel_size, bytes_per_token=70_272
    )
    assert figures.replica_bytes == replica_gb * GB
    assert figures.gpu_bytes == gpu_gb * GB
    assert figures.tokens / 1e6 == pytest.approx(million_tokens, abs=5e-5)


@pytest.mark.parametrize(
    ("percent", "draft", "expected"),
    [(85, DRAFT, 266_488), (90, DRAFT, 496_663), (85, None, 362_593), (90, None, 633_017)],
)
def test_known_answers_of_kimi_k2_6_at_tp4_on_b200(percent, draft, expected):
    fit = size(replace(SAMPLE, mem_fraction_percent=percent, draft=draft))
    assert fit.kv_tokens == expected
    assert fit.kv_bytes_per_token_per_gpu == (41_280 if draft else 35_136)


# What SGLang 0.5.23 reported on H200s: DeepSeek-V2-Lite's shape, 27 layers of MLA, 29.451 GiB of weights

LITE_WEIGHTS = round(29.451 * GIB)
LITE = model_from_geometry(
    name="lite", attention="MLA", layers=27, kv_lora_rank=512, rope_head_dim=64, weights_bytes=LITE_WEIGHTS
)
LITE_REQUEST = SizingRequest(
    gpu=H200,
    model=LITE,
    tensor_parallel_size=1,
    kv_dtype="bf16",
    mem_fraction_percent=50,
    context_tokens=163_840,
    max_running_requests=8,
    tokens_per_request=100_000,
)


@pytest.mark.parametrize(
    ("tensor_parallel_size", "dtype", "percent", "reported_tokens"),
    [
        (1, "bf16", 50, 1_383_441),
        (1, "bf16", 70, 2_344_463),
        (1, "bf16", 90, 3_305_484),
        (1, "fp8_e4m3", 50, 2_766_883),
        (2, "bf16", 50, 1_876_141),
    ],
)
def test_kv_tokens_are_what_an_h200_reported(tensor_parallel_size, dtype, percent, reported_tokens):
    fit = size(
        replace(
            LITE_REQUEST,
            tensor_parallel_size=tensor_parallel_size,
            kv_dtype=dtype,
            mem_fraction_percent=percent,
        )
    )
    assert fit.kv_tokens == pytest.approx(reported_tokens, rel=0.005)
    assert fit.kv_tokens_low <= reported_tokens <= fit.kv_tokens_high


def test_kv_tokens_are_what_an_h200_reported_at_the_engines_own_fraction():
    pool = kv_pool_bytes(
        free_bytes=free_before_load_bytes(H200, 1), mem_fraction_percent=90.7, weight_bytes=LITE_WEIGHTS
    )
    assert kv_tokens(pool, 31_104) == pytest.approx(3_339_120, rel=0.005)


@pytest.mark.parametrize(("tensor_parallel_size", "reported_gib"), [(1, 139.12), (2, 138.32)])
def test_free_memory_before_the_load_is_what_an_h200_reported(tensor_parallel_size, reported_gib):
    assert free_before_load_bytes(H200, tensor_parallel_size) / GIB == pytest.approx(reported_gib, rel=0.0005)


@pytest.mark.parametrize(("tensor_parallel_size", "reported_gib"), [(1, 40.08), (2, 54.35)])
def test_the_kv_pool_is_what_an_h200_reported(tensor_parallel_size, reported_gib):
    fit = size(replace(LITE_REQUEST, tensor_parallel_size=tensor_parallel_size))
    assert fit.kv_pool_bytes_per_gpu / GIB == pytest.approx(reported_gib, rel=0.005)


@pytest.mark.parametrize(
    ("tensor_parallel_size", "size_gb", "flag", "reported_tokens"), [(1, 8, 8, 257_202), (2, 8, 4, 128_601)]
)
def test_host_tokens_are_what_an_h200_reported(tensor_parallel_size, size_gb, flag, reported_tokens):
    hicache = HiCacheRequest(size_bytes=size_gb * GB)
    fit = size(replace(LITE_REQUEST, tensor_parallel_size=tensor_parallel_size, hicache=hicache))
    assert (fit.hicache_size_gb_per_rank, fit.host_kv_tokens) == (flag, reported_tokens)


# The rules


def test_fp8_halves_the_bytes_of_bf16():
    fp8, bf16 = (size(replace(SAMPLE, kv_dtype=dtype, draft=None)) for dtype in ("fp8_e4m3", "bf16"))
    assert fp8.kv_bytes_per_token_per_gpu * 2 == bf16.kv_bytes_per_token_per_gpu
    assert fp8.kv_tokens // 2 == bf16.kv_tokens


def test_doubling_the_ranks_of_an_mla_model_frees_weights_only():
    tp4, tp8 = (size(replace(SAMPLE, tensor_parallel_size=tp, draft=None)) for tp in (4, 8))
    freed = sharded_bytes(KIMI.checkpoint_bytes, 4) - sharded_bytes(KIMI.checkpoint_bytes, 8)
    assert tp8.kv_tokens - tp4.kv_tokens == pytest.approx(freed / 35_136, abs=1)


def test_a_draft_that_is_not_sharded_is_whole_on_every_gpu():
    sharded, whole = (size(replace(SAMPLE, draft=replace(DRAFT, sharded=flag))) for flag in (True, False))
    assert whole.draft_weight_bytes_per_gpu == DRAFT.checkpoint_bytes
    assert sharded.draft_weight_bytes_per_gpu == sharded_bytes(DRAFT.checkpoint_bytes, 4)
    assert whole.kv_tokens < sharded.kv_tokens


def test_the_models_own_draft_layer_costs_one_layer_of_kv_and_no_weights():
    v32 = CATALOG.model("deepseek-v3.2")
    request = replace(SAMPLE, model=v32, tensor_parallel_size=8, context_tokens=163_840, hicache=None)
    plain = size(replace(request, draft=None))
    drafted = size(replace(request, draft=DraftRequest.next_n(v32, "fp8_e4m3")))
    assert drafted.draft_weight_bytes_per_gpu == 0
    assert drafted.kv_bytes_per_token_per_gpu * 61 == plain.kv_bytes_per_token_per_gpu * 62


def test_the_request_table_is_counted_outside_the_fraction():
    assert size(SAMPLE).request_table_bytes == 12 * 262_144 * 4


@pytest.mark.parametrize(
    ("percent", "tokens_per_request", "limit", "explicit", "expected"),
    [
        (90, 100_000, 12, None, 4),  # 0.9 x 496,663 / 100,000
        (85, 100_000, 12, None, 2),
        (90, 111_749, 12, None, 4),  # 0.9 x 496,663 is 446,996.7: four of these and not one token more
        (90, 111_750, 12, None, 3),
        (90, 1_000_000, 12, None, 1),  # at least one
        (90, 1_000, 12, None, 12),  # at most the running limit
        (90, 100_000, 12, 3, 3),
    ],
)
def test_the_target_of_running_requests(percent, tokens_per_request, limit, explicit, expected):
    fit = size(
        replace(
            SAMPLE,
            mem_fraction_percent=percent,
            tokens_per_request=tokens_per_request,
            max_running_requests=limit,
            target_running_requests=explicit,
        )
    )
    assert fit.target_running_requests == expected
    assert fit.feasible


def test_the_error_band_comes_from_bytes_that_are_whole_on_every_rank():
    fit = size(SAMPLE)
    extra = KIMI.replicated_bytes_high * 3 // 4 + GIB // 2
    assert fit.kv_tokens - fit.kv_tokens_low == pytest.approx(extra / 41_280, abs=1)
    assert fit.kv_tokens_high == fit.kv_tokens


def test_one_rank_has_nothing_twice():
    model = replace(LITE, replicated_bytes_low=GIB, replicated_bytes_high=2 * GIB)
    assert size(replace(LITE_REQUEST, model=model)).kv_tokens_low == size(LITE_REQUEST).kv_tokens_low


def test_a_fit_whose_low_end_is_too_small_says_so():
    fit = size(replace(SAMPLE, mem_fraction_percent=85))
    assert fit.feasible
    assert f"low end, {fit.kv_tokens_low:,}, would not hold one conversation" in fit.message


# Host memory


def test_hicache_of_the_sample_becomes_102_gb_a_rank():
    fit = size(SAMPLE)
    assert fit.hicache_size_gb_per_rank == 102
    # The draft's pool has as many slots and is not in the flag: 102 x 41,280 / 35,136 on each of four ranks.
    assert fit.hicache_total_bytes == pytest.approx(4 * 102e9 * 41_280 / 35_136, abs=4)
    assert fit.host_kv_tokens == -(-102 * GB // 35_136)


def test_without_a_draft_the_whole_size_goes_to_the_target():
    fit = size(replace(SAMPLE, draft=None))
    assert (fit.hicache_size_gb_per_rank, fit.hicache_total_bytes) == (120, 480 * GB)


@pytest.mark.parametrize(
    ("tensor_parallel_size", "overhead_gib", "shm_gib"), [(1, 4.0, 4), (2, 5.3, 16), (4, 7.9, 16), (8, 13.1, 16)]
)
def test_the_memory_request_is_pools_processes_and_shm(tensor_parallel_size, overhead_gib, shm_gib):
    fit = size(
        replace(LITE_REQUEST, tensor_parallel_size=tensor_parallel_size, hicache=HiCacheRequest(size_bytes=80 * GB))
    )
    assert fit.host_overhead_bytes / GIB == pytest.approx(overhead_gib)
    assert fit.shm_bytes == shm_gib * GIB
    assert fit.host_memory_request_bytes == 80 * GB + fit.host_overhead_bytes + fit.shm_bytes


def test_the_guard_counts_the_pools_of_other_ranks_twice():
    assert guard_bytes(used_bytes=0, rank_pool_bytes=120 * GB, tensor_parallel_size=4) == 10 * GIB + 840 * GB
    assert largest_rank_pool_bytes(limit_bytes=10 * GIB + 840 * GB, used_bytes=0, tensor_parallel_size=4) == 120 * GB


def test_the_guard_of_the_sample_is_far_above_its_request():
    fit = size(SAMPLE)
    rank = fit.hicache_total_bytes // 4
    used = fit.host_overhead_bytes + fit.shm_bytes
    assert fit.host_memory_guard_bytes == used + 10 * GIB + 7 * rank
    assert fit.host_memory_guard_bytes > 1.7 * fit.host_memory_request_bytes


def test_without_hicache_there_is_no_guard():
    fit = size(replace(SAMPLE, hicache=None))
    assert fit.host_kv_tokens == fit.hicache_size_gb_per_rank == fit.hicache_total_bytes == 0
    assert fit.host_memory_guard_bytes == fit.host_memory_request_bytes


def test_auto_takes_what_a_node_can_spare():
    node = 2000 * GIB
    expected = (node * 9 // 10 - 64 * GIB) // 2 - round(7.9 * GIB) - 16 * GIB
    size_bytes = auto_hicache_bytes(node_memory_bytes=node, gpus_per_node=8, tensor_parallel_size=4)
    assert size_bytes == pytest.approx(expected, abs=4)
    fit = size(replace(SAMPLE, hicache=HiCacheRequest(size_bytes=AUTO), node_memory_bytes=node))
    assert fit.hicache_size_bytes == size_bytes
    assert fit.feasible


def test_auto_uses_the_catalogues_node_when_none_was_seen():
    fit = size(replace(SAMPLE, hicache=HiCacheRequest(size_bytes=AUTO)))
    assert fit.node_memory_bytes == B200.node_memory_bytes
    assert fit.hicache_size_bytes == auto_hicache_bytes(
        node_memory_bytes=B200.node_memory_bytes, gpus_per_node=8, tensor_parallel_size=4
    )


# The tables


def test_the_table_of_a_gpu_adds_up_to_the_kv_pool():
    *parts, pool = size(SAMPLE).hbm_lines
    assert pool.label == "KV pool"
    assert sum(line.bytes for line in parts) == pool.bytes
    assert "496,663 tokens of 41,280 B" in pool.note
    assert [line.label for line in parts] == [
        "GPU memory",
        "CUDA context",
        "NCCL",
        "graphs and activations",
        "weights",
        "draft weights",
    ]


def test_the_table_of_the_host_adds_up_to_the_request():
    lines = {line.label: line for line in size(SAMPLE).host_lines}
    parts = ("HiCache pools", "engine processes", "/dev/shm")
    assert sum(lines[label].bytes for label in parts) == lines["memory request"].bytes
    assert "4 x --hicache-size 102" in lines["HiCache pools"].note
    assert "2 x 505.0 GB must fit" in lines["memory of a node"].note


def test_one_gpu_has_no_nccl_line():
    assert "NCCL" not in [line.label for line in size(LITE_REQUEST).hbm_lines]
