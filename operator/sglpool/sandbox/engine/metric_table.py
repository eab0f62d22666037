"""The metric families of SGLang 0.5.23: name, type, labels, buckets, and when a family first appears.

Read off a running server. Only what is in this table is ever exported. Not here: where the numbers come from
(`telemetry`) and how they are written out (`metrics`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["scheduler", "tokenizer", "cache", "plain"]
"""Which common labels a family carries: the scheduler's, the tokenizer's, the cache's, or none."""

When = Literal["always", "scheduled", "request", "stream", "hit", "abort", "retraction", "speculation", "hicache"]
"""always: at the first scrape. scheduled: after the first request of any kind ran, a health probe too. request: after
the first real request, the server's own warm-up included. stream, hit, abort, retraction, speculation: after the
first of these. hicache: from the start, but only with the hierarchical cache."""

SCOPE_LABELS: dict[Scope, tuple[str, ...]] = {
    "scheduler": ("engine_type", "model_name", "moe_ep_rank", "pp_rank", "tp_rank"),
    "tokenizer": ("engine_type", "model_name"),
    "cache": ("cache_type", "dp_rank", "pp_rank", "tp_rank"),
    "plain": (),
}
NAME_PREFIX = "sglang:"

Child = tuple[str, ...]
"""Values of a family's own labels, in the order of `Family.labels`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family.

    Attributes:
        name: Without the `sglang:` in front.
        scope: Common labels.
        labels: Labels of its own, besides the common ones.
        children: Series that exist from the start; one without own labels when empty.
        buckets: Upper bounds of a histogram, without +Inf.
        start: Value before anything happened.
        every_rank: Whether each tensor parallel rank exports a series with the same value.
    """

    name: str
    kind: Kind
    help: str
    scope: Scope = "scheduler"
    labels: tuple[str, ...] = ()
    children: tuple[Child, ...] = ((),)
    when: When = "always"
    buckets: tuple[float, ...] = ()
    start: float = 0.0
    every_rank: bool = False

    @property
    def full_name(self) -> str:
        """The name as exported."""
        return NAME_PREFIX + self.name

    def starts_with(self, *, hicache: bool) -> tuple[Child, ...]:
        """Series that exist at the first scrape."""
        return self.children if self.when == "always" or (self.when == "hicache" and hicache) else ()


_LATENCY_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_TOKEN_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
_TOKENS = (
    *(100, 300, 500, 700, 1000, 1500, *range(2000, 10001, 1000), *range(12500, 30001, 2500), 35000, 40000),
    *(60000, 80000, 100000, 200000, 300000, 400000, 600000, 800000, 1000000, 1100000),
)
_QUEUE_S = (
    *(0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, *range(30, 101, 10)),
    *(*range(200, 1001, 100), 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)
_COPY_S = (*(i / 1000 for i in range(1, 11)), 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.5, 1)
_LOADS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1)
_BACKUP_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_IMBALANCE = (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15, 20, 30, 45, 60)
_SYNC_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_STAGE_S = tuple(0.001 * 1.62**i for i in range(30))

_PHASES = (("prefill",), ("decode",), ("target_verify",), ("draft_prefill",), ("draft_decode",), ("draft_extend",))
_STARTUP_PHASES = (("load_weight",), ("kv_cache_allocation",), ("scheduler_e2e",), ("tokenizer_e2e",))
_ROUTING_BOUNDS = ("0", "1", "2", "3", "5", "7", "10", "20", "50", "100", "200", "+Inf")
_ROUTING = tuple(itertools.pairwise(_ROUTING_BOUNDS))
_PROCESSES = (("detokenizer",), ("tokenizer",))
_ANSWER = ("endpoint", "method", "status_code")
_SOURCES = (("input",), ("device_hit",), ("host_hit",), ("storage_hit",))
_SYNC_KINDS = (("scheduled",), ("imbalance",))
_STAGE_LABELS = ("category", "forward_overlap")
_STAGES = tuple(
    (category, "none")
    for category in (
        *("other", "recv_requests", "process_input_requests", "get_next_batch_to_run", "process_queue"),
        *("run_batch", "process_batch_result", "sanity_check_cache", "idle"),
    )
)


def _gauge(
    name: str, text: str, *labels: str, children: tuple[Child, ...] = ((),), scope: Scope = "scheduler"
) -> Family:
    """A gauge that exists from the start."""
    return Family(name=name, kind="gauge", help=text, scope=scope, labels=labels, children=children)


def _counter(
    name: str,
    text: str,
    *labels: str,
    children: tuple[Child, ...] = ((),),
    scope: Scope = "scheduler",
    when: When = "always",
) -> Family:
    """A counter; its own labels' first values where it exists from the start."""
    return Family(name=name, kind="counter", help=text, scope=scope, labels=labels, children=children, when=when)


def _gauges(*rows: tuple[str, str]) -> tuple[Family, ...]:
    """Plain scheduler gauges that start at zero."""
    return tuple(Family(name=name, kind="gauge", help=text) for name, text in rows)


def _constants(*rows: tuple[str, str]) -> tuple[Family, ...]:
    """Gauges set once at the start, by every rank."""
    return tuple(Family(name=name, kind="gauge", help=text, every_rank=True) for name, text in rows)


def _hicache(name: str, text: str, *labels: str, children: tuple[Child, ...] = ((),)) -> Family:
    """A counter of the hierarchical cache: every rank repeats the number."""
    return Family(
        name=name,
        kind="counter",
        help=text,
        scope="cache",
        labels=labels,
        children=children,
        when="hicache",
        every_rank=True,
    )


def _hicache_s(name: str, text: str, buckets: tuple[float, ...]) -> Family:
    """A histogram of the hierarchical cache."""
    return Family(
        name=name, kind="histogram", help=text, scope="cache", when="hicache", buckets=buckets, every_rank=True
    )


def _request_s(name: str, text: str, buckets: tuple[float, ...]) -> Family:
    """A latency per request, split by whether it streams."""
    return Family(
        name=name,
        kind="histogram",
        help=text,
        scope="tokenizer",
        labels=("is_streaming",),
        when="request",
        buckets=buckets,
    )


def _request_tokens(name: str, text: str) -> Family:
    """A length in tokens per request."""
    return Family(name=name, kind="histogram", help=text, scope="tokenizer", when="request", buckets=_TOKENS)


def _request_counter(name: str, text: str) -> Family:
    """A counter over requests, split by whether they stream."""
    return Family(name=name, kind="counter", help=text, scope="tokenizer", labels=("is_streaming",), when="request")


_TOKENIZER = (
    Family(
        name="get_loads_duration_seconds",
        kind="histogram",
        help="Time to answer /v1/loads.",
        scope="tokenizer",
        buckets=_LOADS_S,
    ),
    _request_s("time_to_first_token_seconds", "From arrival to the first token.", _LATENCY_S),
    _request_s("e2e_request_latency_seconds", "From arrival to the last token.", (*_LATENCY_S, 600, 1200, 1800, 2400)),
    _request_s(
        "request_time_per_output_token_seconds", "Decode time of a request over its tokens after the first.", _TOKEN_S
    ),
    _request_tokens("prompt_tokens_histogram", "Prompt length in tokens."),
    _request_tokens("uncached_prompt_tokens_histogram", "Prompt tokens that were computed, not found in the cache."),
    _request_tokens("generation_tokens_histogram", "Output length in tokens."),
    Family(
        name="inter_token_latency_seconds",
        kind="histogram",
        help="Time between tokens of a stream, each token counted.",
        scope="tokenizer",
        when="stream",
        buckets=_TOKEN_S,
    ),
)

_SCHEDULER = (
    *_constants(
        ("max_total_num_tokens", "Size of the KV pool in tokens."),
        ("weight_memory_usage_gb", "GPU memory of the weights."),
        ("kv_cache_memory_usage_gb", "GPU memory of the KV pool."),
    ),
    Family(
        name="graph_memory_usage_gb",
        kind="gauge",
        help="GPU memory of captured graphs.",
        labels=("phase",),
        children=_PHASES,
        every_rank=True,
    ),
    *_constants(
        ("page_size", "Tokens per KV page."),
        ("num_pages", "Pages of the KV pool."),
        ("context_len", "Longest context in tokens."),
        ("startup_available_gpu_memory_gb", "GPU memory left after the start."),
    ),
    *_gauges(
        ("num_running_reqs", "Requests in the running batch."),
        ("num_queue_reqs", "Requests that wait."),
        ("num_grammar_queue_reqs", "Requests that wait for a grammar."),
        ("gen_throughput", "Output tokens per second."),
        ("cache_hit_rate", "Share of the last prefill that the prefix cache held."),
        ("decode_sum_seq_lens", "Context tokens of all requests that decode."),
        ("token_usage", "Share of the KV pool held by requests, cached prefixes not counted."),
        ("full_token_usage", "The same for full attention layers."),
        ("swa_token_usage", "The same for sliding window layers."),
        ("mamba_usage", "The same for state space layers."),
        ("num_used_tokens", "KV tokens held by requests."),
        ("kv_available_tokens", "Free KV tokens."),
        ("kv_evictable_tokens", "KV tokens of cached prefixes that no request holds."),
        ("kv_used_tokens", "KV tokens held by requests."),
        ("swa_available_tokens", "Free tokens of the sliding window pool."),
        ("swa_evictable_tokens", "Evictable tokens of the sliding window pool."),
        ("swa_used_tokens", "Held tokens of the sliding window pool."),
        ("mamba_available_tokens", "Free states of the state space pool."),
        ("mamba_evictable_tokens", "Evictable states of the state space pool."),
        ("mamba_used_tokens", "Held states of the state space pool."),
        ("spec_accept_length", "Tokens per verify step of speculative decoding, the bonus token included."),
        ("spec_accept_rate", "Share of the proposed draft tokens that was accepted."),
        ("spec_cap_length", "Verify window of a capped draft; 0 without a cap."),
        ("spec_block_accept_length", "Tokens per verify step without a cap; 0 without a cap."),
        ("spec_num_steps", "Draft steps in use."),
        ("spec_num_draft_tokens", "Draft tokens per verify step in use."),
        ("num_prefill_bootstrap_queue_reqs", "Disaggregated prefill: requests that wait for a peer."),
        ("num_prefill_inflight_queue_reqs", "Disaggregated prefill: requests whose KV is on its way."),
        ("num_decode_prealloc_queue_reqs", "Disaggregated decode: requests that wait for KV space."),
        ("num_decode_transfer_queue_reqs", "Disaggregated decode: requests whose KV is on its way."),
        ("num_decode_host_receive_queue_reqs", "Disaggregated decode: requests received into host memory."),
        ("num_decode_deferred_kv_release_reqs", "Disaggregated decode: failed requests that still hold KV."),
        ("pending_prealloc_token_usage", "Disaggregated decode: KV share that is waited for."),
        ("prealloc_full_token_usage", "Disaggregated decode: KV share held before the KV came."),
        ("prealloc_swa_token_usage", "The same for sliding window layers."),
        ("utilization", "Always 0 in this version."),
    ),
    Family(
        name="fwd_occupancy", kind="gauge", help="GPU share of forward passes; needs a device timer.", start=math.nan
    ),
    *_gauges(
        ("new_token_ratio", "Share of the output limit reserved per request."),
        ("is_cuda_graph", "Whether the batch ran from a captured graph."),
        ("num_unique_running_routing_keys", "Routing keys in the running batch."),
    ),
    _gauge("routing_key_running_req_count", "Routing keys by running requests.", "gt", "le", children=_ROUTING),
    _gauge("routing_key_all_req_count", "Routing keys by all their requests.", "gt", "le", children=_ROUTING),
    _gauge("startup_time_seconds", "Start by phase.", "phase", children=_STARTUP_PHASES, scope="tokenizer"),
    _gauge("startup_cuda_graph_time_seconds", "Graph capture.", "phase", children=_PHASES, scope="tokenizer"),
    Family(
        name="dp_attention_token_imbalance_ratio",
        kind="histogram",
        help="Most tokens of a rank over the mean; needs attention data parallelism.",
        buckets=_IMBALANCE,
    ),
    Family(
        name="dp_attention_sync_wait_seconds",
        kind="histogram",
        help="Wait for the other ranks per step; needs attention data parallelism.",
        buckets=_SYNC_S,
    ),
    Family(
        name="per_stage_req_latency_seconds",
        kind="histogram",
        help="Time of a request by stage.",
        labels=("stage",),
        when="scheduled",
        buckets=_STAGE_S,
    ),
    Family(
        name="queue_time_seconds",
        kind="histogram",
        help="From arrival to the start of prefill.",
        when="scheduled",
        buckets=_QUEUE_S,
    ),
)

_COUNTERS = (
    _counter("process_cpu_seconds_total", "CPU time.", "component", children=_PROCESSES, scope="plain"),
    _counter("http_requests_total", "HTTP requests.", "endpoint", "method", children=(), scope="plain"),
    _counter("http_responses_total", "HTTP answers; a refused stream is a 200.", *_ANSWER, children=(), scope="plain"),
    _request_counter("prompt_tokens_total", "Prompt tokens of finished requests."),
    _request_counter("generation_tokens_total", "Output tokens of finished requests."),
    _request_counter("num_requests_total", "Finished requests."),
    _counter("cached_tokens_total", "Prompt tokens found in a cache.", "cache_source", when="hit", scope="tokenizer"),
    _counter("num_aborted_requests_total", "Aborts.", when="abort", scope="tokenizer"),
    _counter("spec_verify_calls_total", "Verify steps of a draft.", when="speculation", scope="tokenizer"),
    _gauge("num_retracted_reqs", "Requests put back since the last report.", "pid"),
    _counter("num_retracted_requests_total", "Requests put back.", when="retraction"),
    _gauge("num_paused_reqs", "Requests paused by a weight update.", "pid"),
    _gauge("routing_keys_active", "Routing keys in use.", scope="plain"),
    _gauge("http_requests_active", "HTTP requests in progress.", "endpoint", "method", children=(), scope="plain"),
    _counter("prefill_effective_tokens_total", "Prompt tokens by where they came from.", "mode", children=_SOURCES),
    _counter("scheduler_idle_seconds_total", "Time without any request."),
    _counter("scheduler_process_cpu_seconds_total", "CPU time of the scheduler."),
    _counter("scheduler_stage_seconds_total", "Time of the scheduler's loop.", *_STAGE_LABELS, children=_STAGES),
    _counter("dp_attention_tokens_total", "Tokens of synchronised steps.", "kind", children=_SYNC_KINDS),
    _counter("dp_attention_steps_total", "Synchronised steps.", "rank_state", children=(("active",), ("idle",))),
    _counter("dp_attention_pairs_total", "Token pairs of synchronised steps.", "kind", children=_SYNC_KINDS),
    _counter("cuda_graph_passes_total", "Forward passes by captured graph or not.", "mode", when="scheduled"),
    _counter("realtime_tokens_total", "Tokens by work, health probes included.", "mode", when="scheduled"),
)

_HICACHE = (
    _hicache_s("hicache_backup_duration_seconds", "Time of a copy from GPU to host.", _BACKUP_S),
    _hicache_s("eviction_duration_seconds", "Time of an eviction from the GPU.", _COPY_S),
    _hicache_s("load_back_duration_seconds", "Time of a copy from host to GPU.", _COPY_S),
    _hicache(
        "hicache_dropped_tokens_total",
        "Tokens evicted from the GPU without a copy on the host.",
        "pool",
        "reason",
        children=(("kv", "host_pressure"), ("kv", "write_through_unbacked_eviction")),
    ),
    _hicache("hicache_backup_tokens_total", "Tokens copied from GPU to host.", "pool", children=(("kv",),)),
    _hicache("hicache_backup_bytes_total", "Bytes copied from GPU to host."),
    _hicache("evicted_tokens_total", "Tokens evicted from the GPU."),
    _hicache("load_back_tokens_total", "Tokens copied from host to GPU.", "pool", children=(("kv",),)),
    _hicache("load_back_bytes_total", "Bytes copied from host to GPU."),
    Family(name="hicache_host_used_tokens", kind="gauge", help="Tokens held on the host.", when="hicache"),
    Family(name="hicache_host_total_tokens", kind="gauge", help="Size of the host pool in tokens.", when="hicache"),
)

FAMILIES: tuple[Family, ...] = (*_TOKENIZER, *_SCHEDULER, *_COUNTERS, *_HICACHE)
"""In the order of export."""
