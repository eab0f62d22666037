"""How many tokens a real SGLang held, by flags (readings 5, 6 and 10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglpool.sandbox.engine import argv
from sglpool.sandbox.engine.capacity import plan_capacity
from sglpool.sandbox.engine.machine import Machine
from sglpool.sandbox.engine.modelfiles import Weights
from sglpool.sandbox.engine.rules import resolve
from sglpool.sandbox.engine.spec import Capacity
from support.engine_process import write_model

GIB = 2**30
WEIGHTS_BYTES = round(29.451 * GIB)
WHOLE_BYTES = round(0.169 * GIB)
"""What is whole on every rank: 29.45 GiB on one GPU were 14.81 GiB on each of two."""
FLAGS = "--attention-backend triton --disable-prefill-cuda-graph --kv-cache-dtype"


def capacity(folder: Path, flags: str, *, gpus: int = 1) -> Capacity:
    """What the H200 with the DeepSeek-V2-Lite shape holds."""
    model = write_model(folder / "model")
    machine = Machine(
        folder=folder,
        node="h200-0",
        accelerator="NVIDIA H200",
        gpu_type="H200",
        gpus=gpus,
        gpu_memory_mib=143_771,
        speed=1.0,
    )
    args: dict[str, Any] = argv.parse(["--model-path", str(model), *flags.split()])
    weights = Weights(files=1, checkpoint_bytes=WEIGHTS_BYTES, replicated_bytes=WHOLE_BYTES, simulated=True)
    return plan_capacity(resolve(args, machine), machine, weights, None)


@pytest.mark.parametrize(
    ("flags", "tokens", "kv_gb"),
    [
        (f"{FLAGS} auto --mem-fraction-static 0.5 --max-running-requests 8", 1_383_441, 40.0754),
        (f"{FLAGS} auto --mem-fraction-static 0.7", 2_344_463, 67.9141),
        (f"{FLAGS} auto --mem-fraction-static 0.9", 3_305_484, 95.7528),
        (f"{FLAGS} fp8_e4m3 --mem-fraction-static 0.5", 2_766_883, 40.0754),
        (f"{FLAGS} auto", 3_339_120, 96.7272),
    ],
)
def test_pool_by_fraction_and_dtype(tmp_path: Path, flags: str, tokens: int, kv_gb: float) -> None:
    found = capacity(tmp_path, flags)
    assert found.token_capacity == pytest.approx(tokens, rel=0.005)
    assert found.kv_cache_gb == pytest.approx(kv_gb, rel=0.005)
    assert found.weight_gb == pytest.approx(29.451, abs=0.01)


def test_bytes_per_token_are_exact_and_fp8_halves_them(tmp_path: Path) -> None:
    assert capacity(tmp_path / "a", f"{FLAGS} auto --mem-fraction-static 0.5").pool_bytes_per_token == 31_104
    assert capacity(tmp_path / "b", f"{FLAGS} fp8_e4m3 --mem-fraction-static 0.5").pool_bytes_per_token == 15_552


def test_the_request_table_lies_outside_the_fraction(tmp_path: Path) -> None:
    small = capacity(tmp_path / "a", f"{FLAGS} auto --mem-fraction-static 0.7 --max-running-requests 8")
    derived = capacity(tmp_path / "b", f"{FLAGS} auto --mem-fraction-static 0.7")
    assert derived.max_running_requests == 4096
    assert derived.request_table_gb == pytest.approx(2.5, rel=0.01)
    assert small.request_table_gb < 0.01
    assert small.token_capacity == derived.token_capacity


def test_two_ranks_free_weights_and_do_not_double_the_tokens(tmp_path: Path) -> None:
    found = capacity(tmp_path, f"{FLAGS} auto --mem-fraction-static 0.5 --max-running-requests 8 --tp-size 2", gpus=2)
    assert found.weight_gb == pytest.approx(14.81, abs=0.02)
    assert found.token_capacity == pytest.approx(1_876_141, rel=0.005)
    assert found.pool_bytes_per_token == 31_104


@pytest.mark.parametrize(("size_gb", "tp", "tokens"), [(8, 1, 257_202), (4, 2, 128_601)])
def test_hicache_size_is_decimal_and_per_rank(tmp_path: Path, size_gb: int, tp: int, tokens: int) -> None:
    flags = (
        f"{FLAGS} auto --mem-fraction-static 0.5 --tp-size {tp} --enable-hierarchical-cache --hicache-size {size_gb}"
    )
    found = capacity(tmp_path, flags, gpus=tp)
    assert found.host_tokens == pytest.approx(tokens, abs=1)
    assert found.host_gb == pytest.approx(size_gb, rel=0.001)


def test_hicache_without_a_size_holds_twice_the_pool(tmp_path: Path) -> None:
    flags = f"{FLAGS} auto --mem-fraction-static 0.5 --enable-hierarchical-cache --max-total-tokens 60000"
    found = capacity(tmp_path, flags)
    assert found.token_capacity == 60_000
    assert found.host_tokens == pytest.approx(120_001, abs=1)
