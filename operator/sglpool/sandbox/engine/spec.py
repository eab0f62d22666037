"""Everything that the HTTP server of a simulated engine needs to know: the result of its start.

Plain frozen values. Not here: how they come about (`argv`, `rules`, `modelfiles`, `capacity`, `startup`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglpool.enginemodel.config import EngineConfig
from sglpool.sandbox.engine.machine import Machine

#: The SGLang that is simulated, whatever the image's tag says.
VERSION = "0.5.23"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the GPUs hold, per GPU unless it says otherwise; GB here is 2**30 bytes, as in SGLang's reports.

    Attributes:
        weight_gb: the model's and the draft's weights.
        kv_cache_gb: the KV pool, with draft and indexer.
        graph_gb: CUDA graphs.
        token_capacity: tokens of the KV pool, the same on every rank.
        host_tokens: tokens of the HiCache pool, the same on every rank; 0 without.
        host_gb: that pool of one rank in decimal GB; 0 without.
        kv_bytes_per_token: the target's KV of one token on one rank; also what one token takes in the host pool.
        pool_bytes_per_token: the same with the indexer's and the draft's.
        page_size_tokens: tokens of one page.
        startup_available_gpu_memory_gb: free before the load.
        available_gpu_memory_gb: free after everything.
        max_running_requests: the effective running limit.
        request_table_gb: the request-to-token table, outside the fraction.
    """

    weight_gb: float
    kv_cache_gb: float
    graph_gb: float
    token_capacity: int
    host_tokens: int
    host_gb: float
    kv_bytes_per_token: int
    pool_bytes_per_token: int
    page_size_tokens: int
    startup_available_gpu_memory_gb: float
    available_gpu_memory_gb: float
    max_running_requests: int
    request_table_gb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupTimes:
    """How long the phases of the start take, in model seconds.

    Attributes:
        process_s: processes, imports and compiled kernels before the load.
        load_weight_s: reading the weights.
        kv_cache_allocation_s: KV pools, the host's with it.
        cuda_graph_s: capturing CUDA graphs.
    """

    process_s: float
    load_weight_s: float
    kv_cache_allocation_s: float
    cuda_graph_s: float

    @property
    def scheduler_e2e_s(self) -> float:
        """From the first process to a scheduler that could serve."""
        return self.process_s + self.load_weight_s + self.kv_cache_allocation_s + self.cuda_graph_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One engine, resolved and loaded.

    Attributes:
        args: every flag by its destination name, after the rules; None where unset.
        launch_command: the command line as it was given, for /server_info.
        served_model_name: the name in responses and metric labels.
        host: address to listen on.
        port: port to listen on.
        api_key: key of normal calls, or None.
        admin_api_key: key of administrative calls, or None.
        engine: settings of the engine model.
        machine: the machine, with its faults.
        context_length_tokens: the most tokens of one request.
        vision: whether the model takes images.
        tensor_parallel_size: ranks.
        speculative: whether a draft is on.
        architecture: the model class of the checkpoint.
        capacity: what the GPUs hold.
        startup: how long the start took.
        version: the simulated SGLang.
        started_at_s: Unix time of the process's start.
    """

    args: Mapping[str, Any]
    launch_command: str
    served_model_name: str
    host: str
    port: int
    api_key: str | None
    admin_api_key: str | None
    engine: EngineConfig
    machine: Machine
    context_length_tokens: int
    vision: bool
    tensor_parallel_size: int
    speculative: bool
    architecture: str
    capacity: Capacity
    startup: StartupTimes
    version: str = VERSION
    started_at_s: float = field(default=0.0)

    @property
    def max_req_input_len_tokens(self) -> int:
        """The longest prompt, as /server_info shows it: SGLang keeps six tokens back (163834 of 163840, read)."""
        return min(self.context_length_tokens, self.capacity.token_capacity) - 6
