"""Memory of a simulated engine against the figures of a real one, and what ends a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglpool.catalog import GIB
from sglpool.sandbox.engine.capacity import RankDied, plan_capacity
from sglpool.sandbox.engine.modelfiles import WeightsError, read_weights
from sglpool.sandbox.engine.rules import resolve
from sglpool.sandbox.engine.spec import Capacity

from .startup_inputs import B200, GQA_CONFIG, machine, make_draft, make_model, parsed

# What a real 0.5.23 ran with on one H200.
READ = ("--attention-backend", "triton", "--disable-prefill-cuda-graph")


def capacity(
    tmp_path: Path, *words: str, model: dict[str, Any] | None = None, draft: bool = False, **changes: Any
) -> Capacity:
    folder = make_model(tmp_path / "model", **(model or {}))
    extra: tuple[str, ...] = ()
    if draft:
        path = make_draft(tmp_path / "draft")
        extra = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(path))
    here = machine(tmp_path, **changes)
    resolved = resolve(parsed(folder, *words, *extra), here)
    draft_weights = read_weights(resolved.draft.folder) if resolved.draft else None
    return plan_capacity(resolved, here, read_weights(folder), draft_weights)


@pytest.mark.parametrize(
    ("words", "tokens", "kv_gib", "available_gib"),
    [
        (("--mem-fraction-static", "0.5", "--max-running-requests", "8"), 1_383_441, 40.0754, 69.57),
        (("--mem-fraction-static", "0.7", "--disable-decode-cuda-graph"), 2_344_463, 67.9141, 39.23),
        (("--mem-fraction-static", "0.9", "--disable-decode-cuda-graph"), 3_305_484, 95.7528, 11.38),
        (
            ("--mem-fraction-static", "0.5", "--kv-cache-dtype", "fp8_e4m3", "--disable-decode-cuda-graph"),
            2_766_883,
            40.0754,
            67.07,
        ),
        ((), 3_339_120, 96.7272, 7.45),
    ],
)
def test_kv_capacity_is_that_of_a_real_h200(
    tmp_path: Path, words: tuple[str, ...], tokens: int, kv_gib: float, available_gib: float
) -> None:
    found = capacity(tmp_path, *READ, *words)
    assert found.token_capacity == pytest.approx(tokens, rel=0.005)
    assert found.kv_cache_gb == pytest.approx(kv_gib, rel=0.005)
    assert found.weight_gb == pytest.approx(29.451, rel=0.001)
    assert found.available_gpu_memory_gb == pytest.approx(available_gib, abs=0.35)


def test_two_ranks_hold_the_whole_latent_each(tmp_path: Path) -> None:
    words = (*READ, "--mem-fraction-static", "0.5", "--tp-size", "2", "--enable-hierarchical-cache")
    found = capacity(tmp_path, *words, "--hicache-size", "4", gpus=2)
    assert found.token_capacity == pytest.approx(1_876_141, rel=0.005)
    assert found.weight_gb == pytest.approx(14.81, rel=0.001)
    assert found.startup_available_gpu_memory_gb == pytest.approx(138.32, rel=0.001)
    assert found.kv_bytes_per_token == 31_104
    assert found.host_tokens == 128_601


@pytest.mark.parametrize(
    ("words", "host_tokens"),
    [
        (("--hicache-size", "8"), 257_202),
        (("--hicache-ratio", "2"), 120_001),
        ((), 120_001),
    ],
)
def test_the_host_pool_is_that_of_a_real_engine(tmp_path: Path, words: tuple[str, ...], host_tokens: int) -> None:
    found = capacity(tmp_path, *READ, "--enable-hierarchical-cache", "--max-total-tokens", "60000", *words)
    assert found.token_capacity == 60_000
    assert found.host_tokens == host_tokens


def test_the_host_pool_is_whole_pages_and_no_smaller_than_asked(tmp_path: Path) -> None:
    words = ("--enable-hierarchical-cache", "--hicache-size", "8", "--max-total-tokens", "60000")
    found = capacity(tmp_path, *words, **B200)
    assert found.page_size_tokens == 64
    assert found.host_tokens % 64 == 0
    assert 0 < found.host_tokens - 8e9 / 31_104 <= 64


@pytest.mark.parametrize(("memory_gb", "fits"), [(30, True), (20, False)])
def test_a_host_pool_must_leave_ten_gibibytes_of_memory(tmp_path: Path, memory_gb: int, fits: bool) -> None:
    words = (*READ, "--enable-hierarchical-cache", "--hicache-size", "8")
    if fits:
        assert capacity(tmp_path, *words, memory_bytes=memory_gb * 10**9).host_tokens == 257_202
        return
    with pytest.raises(RankDied, match="Not enough host memory available") as died:
        capacity(tmp_path, *words, memory_bytes=memory_gb * 10**9)
    assert (died.value.kind, died.value.phase) == ("ValueError", "pool")


def test_the_automatic_host_pool_shrinks_to_what_the_memory_allows(tmp_path: Path) -> None:
    words = (*READ, "--enable-hierarchical-cache")
    found = capacity(tmp_path, *words, memory_bytes=40 * 10**9)
    assert 0 < found.host_tokens < 2 * found.token_capacity
    assert found.host_gb < 40 - 10


def test_grouped_query_heads_are_shared_by_the_ranks(tmp_path: Path) -> None:
    sizes = {"config": GQA_CONFIG, "weight_bytes": 16 * GIB, "replicated_bytes": 0}
    one = capacity(tmp_path / "1", model=sizes)
    four = capacity(tmp_path / "4", "--tp-size", "4", model=sizes, gpus=4)
    assert one.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2
    assert four.kv_bytes_per_token * 4 == one.kv_bytes_per_token
    assert four.token_capacity > 4 * one.token_capacity


def test_a_draft_takes_weights_and_a_share_of_every_token(tmp_path: Path) -> None:
    plain = capacity(tmp_path / "plain")
    drafted = capacity(tmp_path / "drafted", draft=True)
    assert drafted.pool_bytes_per_token - drafted.kv_bytes_per_token == 6 * 2 * 8 * 128 * 2
    assert drafted.weight_gb == pytest.approx(plain.weight_gb + 2)
    assert drafted.token_capacity < plain.token_capacity
    assert drafted.max_running_requests == 48


@pytest.mark.parametrize(
    ("words", "changes", "kind", "phase"),
    [
        (("--tp-size", "2"), {"gpus": 1}, "torch.AcceleratorError", "init"),
        (("--tp-size", "2", "--dp-size", "2"), {"gpus": 2}, "torch.AcceleratorError", "init"),
        (("--mem-fraction-static", "0.2"), {}, "RuntimeError", "pool"),
        (("--mem-fraction-static", "0.999"), {}, "Exception", "graph"),
        ((), {"gpu_memory_mib": 24_000}, "torch.OutOfMemoryError", "load"),
    ],
)
def test_what_is_missing_ends_a_rank(
    tmp_path: Path, words: tuple[str, ...], changes: dict[str, Any], kind: str, phase: str
) -> None:
    with pytest.raises(RankDied) as died:
        capacity(tmp_path, *words, **changes)
    assert (died.value.kind, died.value.phase) == (kind, phase)


def test_too_little_memory_has_sglangs_sentence(tmp_path: Path) -> None:
    with pytest.raises(RankDied, match=r"^Not enough memory\. Please try to increase --mem-fraction-static\.$"):
        capacity(tmp_path, "--mem-fraction-static", "0.2")


def test_without_a_limit_the_engine_derives_one_and_pays_for_it(tmp_path: Path) -> None:
    derived = capacity(tmp_path / "derived", *READ)
    given = capacity(tmp_path / "given", *READ, "--max-running-requests", "8")
    assert derived.max_running_requests == 4096
    assert derived.request_table_gb == pytest.approx(2.5)
    assert given.request_table_gb == pytest.approx(0.005, rel=0.1)


def test_real_files_count_as_what_they_are(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    weights = read_weights(folder)
    assert (weights.checkpoint_bytes, weights.simulated) == (10, False)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "Cannot find any model weights"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x08\0"), "invalid JSON in header"),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1]),
            "file not fully covered",
        ),
        (
            lambda f: (f / "a.safetensors.index.json").write_text('{"weight_map": {"w": "b.safetensors"}}'),
            "No such file",
        ),
    ],
)
def test_broken_weights_are_found(tmp_path: Path, damage: Any, sentence: str) -> None:
    folder = make_model(tmp_path / "model")
    damage(folder)
    with pytest.raises(WeightsError) as broken:
        read_weights(folder)
    assert sentence in str(broken.value)
