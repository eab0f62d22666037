"""The dashboard of one pool: what its users get, and how its replicas do.

Not here: how requests found their replica (`router`), why the pool has its size (`autoscaler`).
"""

from __future__ import annotations

from tools.observability.panels import Dashboard, Panel, Query, Row, chart, figure
from tools.observability.promql import POOL, or_zero, per_replica, quantile, rank_rate, rate

_TTFT = "sglang:time_to_first_token_seconds"
_PER_TOKEN = "sglang:request_time_per_output_token_seconds"
_GPUS = f"sum(sglpool_pool_gpus{{{POOL}}})"
_IN_FLIGHT = f"{per_replica('sglang:num_running_reqs')} + {per_replica('sglang:num_queue_reqs')}"

_NOW = Row(
    title="Now",
    panels=(
        figure("Ready replicas", "Of all GPU types.", "short", f'sum(sglpool_pool_replicas{{{POOL},state="ready"}})'),
        figure("Wanted replicas", "Of all GPU types.", "short", f'sum(sglpool_pool_replicas{{{POOL},state="wanted"}})'),
        figure("GPUs", "Of the ready replicas.", "short", _GPUS),
        figure("Requests in flight", "Running and waiting in the engines.", "short", f"sum({_IN_FLIGHT})"),
        Panel(
            title="Ready",
            text="Reason of condition Ready; docs/conditions.md says what each means.",
            unit="",
            queries=(Query(expr=f'sglpool_pool_reason{{{POOL},type="Ready"}}', legend="{{reason}}"),),
            kind="stat",
            height=4,
        ),
    ),
)
_USERS = Row(
    title="What users get",
    panels=(
        chart(
            "Time to the first token",
            "From the engine's receipt of a request. A cold prompt of 100,000 tokens takes seconds of prefill; a warm "
            "one a fraction of a second. If p95 rises, look at the hit rate and at waiting requests.",
            "s",
            *((quantile(share, _TTFT), f"p{100 * share:.0f}") for share in (0.5, 0.95, 0.99)),
        ),
        chart(
            "Tokens a second, each user",
            "Speed of an answer after its first token: the median, and what one in twenty has at most.",
            "tokens/s",
            (f"1 / {quantile(0.5, _PER_TOKEN)}", "median"),
            (f"1 / {quantile(0.95, _PER_TOKEN)}", "slowest 5%"),
        ),
        chart(
            "Tokens a minute, each GPU",
            "Of finished requests, over the GPUs of ready replicas: what the pool yields.",
            "tokens/min",
            (f"60 * {rate('sglang:generation_tokens_total')} / {_GPUS}", "generated"),
            (f"60 * {rate('sglang:prompt_tokens_total')} / {_GPUS}", "prompt, cached or not"),
        ),
        chart(
            "Requests",
            "Finished and aborted ones, as the engines count them. Those that the router refused are on its dashboard.",
            "reqps",
            (rate("sglang:num_requests_total"), "finished"),
            (or_zero(rate("sglang:num_aborted_requests_total")), "aborted"),
        ),
        chart(
            "Time in the engine's queue",
            "From a request's arrival to the start of its prefill.",
            "s",
            *((quantile(share, "sglang:queue_time_seconds"), f"p{100 * share:.0f}") for share in (0.5, 0.95)),
        ),
        chart(
            "Length of prompts and answers",
            "Medians of finished requests. Longer prompts fill the KV cache sooner than more requests do.",
            "tokens",
            (quantile(0.5, "sglang:prompt_tokens_histogram"), "prompt"),
            (quantile(0.5, "sglang:uncached_prompt_tokens_histogram"), "prompt, not cached"),
            (quantile(0.5, "sglang:generation_tokens_histogram"), "answer"),
        ),
    ),
)
_CACHE = Row(
    title="Caches",
    panels=(
        chart(
            "Cache hit rate",
            "Share of prompt tokens that a cache held, by where. Agents repeat nearly all of their last turn, so that "
            "above 90% is usual. A fall means that conversations move, or that caches are too small.",
            "percentunit",
            (
                f"{rate('sglang:cached_tokens_total', by='cache_source')} "
                f"/ on () group_left {rate('sglang:prompt_tokens_total')}",
                "{{cache_source}}",
            ),
            stacked=True,
            top=1.0,
        ),
        chart(
            "KV cache in use",
            "Share that running requests hold; cached prefixes that nobody holds are not counted. Near 1 requests are "
            "put back and computed again.",
            "percentunit",
            (f"max by (pod) (sglang:token_usage{{{POOL}}})", "{{pod}}"),
            top=1.0,
        ),
        chart(
            "HiCache in use",
            "Share of the host cache that holds tokens; it fills and stays full. Nothing is here without HiCache.",
            "percentunit",
            (
                f"max by (pod) (sglang:hicache_host_used_tokens{{{POOL}}}) "
                f"/ max by (pod) (sglang:hicache_host_total_tokens{{{POOL}}})",
                "{{pod}}",
            ),
            top=1.0,
        ),
        chart(
            "Tokens between GPU and host",
            "Copied to the host, brought back, and evicted from the GPU. Much coming back is the host cache at work.",
            "tokens/s",
            (rank_rate("sglang:hicache_backup_tokens_total"), "to the host"),
            (rank_rate("sglang:load_back_tokens_total"), "back to the GPU"),
            (rank_rate("sglang:evicted_tokens_total"), "evicted"),
        ),
        chart(
            "Accept length",
            "Tokens for each verify step of speculative decoding. 1 means that no draft is accepted: the draft model "
            "does not fit, and costs time. Without speculative decoding there is nothing here.",
            "short",
            (f"max by (pod) (sglang:spec_accept_length{{{POOL}}}) > 0", "{{pod}}"),
        ),
        chart(
            "Requests put back",
            "For want of KV cache: their work is lost. Should be 0.",
            "per_s",
            (or_zero(rate("sglang:num_retracted_requests_total")), "put back"),
        ),
    ),
)
_REPLICAS = Row(
    title="Replicas",
    panels=(
        chart(
            "Load of each replica",
            "Requests that run or wait in it.",
            "short",
            (_IN_FLIGHT, "{{pod}}"),
        ),
        chart(
            "Evenness of load",
            "Variance of the replicas' load over its mean: 0 is even, 1 is chance. The router's view knows of requests "
            "that the engines do not show yet.",
            "short",
            (f"max(sglpool_router_load_variance_to_mean{{{POOL}}})", "by the router"),
            (f"(stdvar({_IN_FLIGHT}) / avg({_IN_FLIGHT}) > 0) or vector(0)", "by the engines"),
        ),
        chart(
            "Waiting requests",
            "In the queue of each engine. A queue on one replica while others have none is an imbalance.",
            "short",
            (per_replica("sglang:num_queue_reqs"), "{{pod}}"),
        ),
        chart(
            "Replicas",
            "By GPU type and state.",
            "short",
            (f'sum by (gpu, state) (sglpool_pool_replicas{{{POOL},state=~"wanted|ready"}})', "{{gpu}} {{state}}"),
        ),
        chart(
            "Conditions",
            "1 for True, 0 for False, -1 for Unknown.",
            "short",
            (f"max by (type) (sglpool_pool_condition{{{POOL}}})", "{{type}}"),
        ),
        chart(
            "Tokens a second, each replica",
            "Generated now, as the engine reports it.",
            "tokens/s",
            (per_replica("sglang:gen_throughput"), "{{pod}}"),
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="sglpool-pool",
    title="sglpool / Pool",
    text="One pool: what its users get, its caches and its replicas.",
    rows=(_NOW, _USERS, _CACHE, _REPLICAS),
)
