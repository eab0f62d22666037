"""Settings as of the server that the readings come from, for tests that need no process."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from sglpool.enginemodel.config import EngineConfig
from sglpool.enginemodel.rates import Rates
from sglpool.sandbox.engine.machine import Machine
from sglpool.sandbox.engine.spec import Capacity, Spec, StartupTimes

FIXTURES = Path(__file__).parent / "fixtures"
RATES = Rates(
    prefill_base_s_per_token=2e-5,
    prefill_context_s_per_token=0.0,
    decode_base_s=0.01,
    decode_per_request_s=0.0,
    host_load_tokens_per_s=1e6,
    decode_share_during_prefill=0.2,
    weight_load_bytes_per_s=1e9,
    start_overhead_s=60.0,
)


def fixture(name: str) -> Any:
    """A JSON fixture."""
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


def read_spec(*, speculative: bool = False, ranks: int = 1, speed: float = 1.0, **engine: Any) -> Spec:
    """One H200 with a DeepSeek-V2-Lite shape at fraction 0.5, as read; `engine` changes the engine's settings."""
    settings: dict[str, Any] = {
        "max_total_tokens": 1_383_441,
        "page_size_tokens": 1,
        "max_running_requests": 8,
        "chunked_prefill_tokens": 8192,
        "rates": dataclasses.replace(RATES, accept_length=3.0) if speculative else RATES,
        **engine,
    }
    config = EngineConfig(**settings)
    machine = Machine(
        folder=Path("/nonexistent"),
        node="h200-0",
        accelerator="NVIDIA H200",
        gpu_type="H200",
        gpus=ranks,
        gpu_memory_mib=143_771,
        speed=speed,
    )
    args: dict[str, Any] = {"decode_log_interval": 40, "max_running_requests": None, "enable_metrics": True}
    if speculative:
        args |= {"speculative_num_draft_tokens": 8, "speculative_num_steps": 1}
    return Spec(
        args=args,
        launch_command="sglang serve --model-path M",
        served_model_name="m",
        host="0.0.0.0",
        port=30000,
        api_key=None,
        admin_api_key=None,
        engine=config,
        machine=machine,
        context_length_tokens=163_840,
        vision=False,
        tensor_parallel_size=ranks,
        speculative=speculative,
        architecture="DeepseekV2ForCausalLM",
        capacity=_capacity(config),
        startup=StartupTimes(process_s=40.0, load_weight_s=0.2, kv_cache_allocation_s=0.5, cuda_graph_s=38.4),
    )


def _capacity(config: EngineConfig) -> Capacity:
    return Capacity(
        weight_gb=29.4512,
        kv_cache_gb=config.max_total_tokens * 31_104 / 2**30,
        graph_gb=0.176,
        token_capacity=config.max_total_tokens,
        host_tokens=config.host_total_tokens,
        host_gb=config.host_total_tokens * 31_104 / 1e9,
        kv_bytes_per_token=31_104,
        pool_bytes_per_token=31_104,
        page_size_tokens=config.page_size_tokens,
        startup_available_gpu_memory_gb=139.1,
        available_gpu_memory_gb=69.24,
        max_running_requests=config.max_running_requests,
        request_table_gb=0.005,
    )
