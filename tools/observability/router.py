"""The dashboard of one pool's router: what Envoy serves, what the picker decides, and how both do.

Not here: the engines behind it (`pool`).
"""

from __future__ import annotations

from tools.observability.panels import Dashboard, Row, chart
from tools.observability.promql import POOL, or_zero, quantile, rate

_SERVING = ',envoy_http_conn_manager_prefix="serving"'
_ENGINES = ',envoy_cluster_name="engines"'

_REQUESTS = Row(
    title="Requests",
    panels=(
        chart(
            "Answers",
            "Of Envoy by class of status. 429 is among 4xx: every replica was at its limit.",
            "reqps",
            (
                rate("envoy_http_downstream_rq_xx", by="envoy_response_code_class", more=_SERVING),
                "{{envoy_response_code_class}}xx",
            ),
            stacked=True,
        ),
        chart(
            "Open requests",
            "Streams under way, by router pod.",
            "short",
            (f"sum by (router) (envoy_http_downstream_rq_active{{{POOL}{_SERVING}}})", "{{router}}"),
        ),
        chart(
            "Duration",
            "Of whole requests, to the last byte. Long answers are long: it is a change that tells something.",
            "s",
            *(
                (
                    f"{quantile(share, 'envoy_http_downstream_rq_time', where=POOL + _SERVING)} / 1000",
                    f"p{100 * share:.0f}",
                )
                for share in (0.5, 0.95)
            ),
        ),
        chart(
            "Refused",
            "By engines with a full queue, and distinct conversations that found every replica at its limit within a "
            "minute. Both ask for more replicas.",
            "short",
            (f"60 * {rate('sglpool_router_engine_refusals_total')}", "by engines, a minute"),
            (f"sum(sglpool_router_refused_conversations{{{POOL}}})", "conversations of the last minute"),
        ),
        chart(
            "Retries and failed connections",
            "Of Envoy towards the engines. A dying replica shows here first.",
            "per_s",
            (rate("envoy_cluster_upstream_rq_retry", more=_ENGINES), "retries"),
            (rate("envoy_cluster_upstream_cx_connect_fail", more=_ENGINES), "failed connections"),
        ),
        chart(
            "Connections",
            "Of clients, by router pod.",
            "short",
            (f"sum by (router) (envoy_http_downstream_cx_active{{{POOL}{_SERVING}}})", "{{router}}"),
        ),
    ),
)
_DECISIONS = Row(
    title="Decisions",
    panels=(
        chart(
            "Decisions by rule",
            "docs/router.md explains the rules. `stay` should be nearly all.",
            "per_s",
            (rate("sglpool_router_decisions_total", by="rule"), "{{rule}}"),
            stacked=True,
        ),
        chart(
            "Conversations that moved",
            "Forced: their home was gone or leaving. Chosen: it cost less than to stay.",
            "per_s",
            (rate("sglpool_router_moves_total", more=',forced="true"'), "forced"),
            (rate("sglpool_router_moves_total", more=',forced="false"'), "chosen"),
        ),
        chart(
            "Cache hit rate",
            "Share of prompt tokens that the engine had cached, as its answers to these requests say.",
            "percentunit",
            (f"{rate('sglpool_router_cached_tokens_total')} / {rate('sglpool_router_prompt_tokens_total')}", "cached"),
            top=1.0,
        ),
        chart(
            "Load of each replica",
            "As the router knows it: what it sent there, corrected by the engine's own report.",
            "short",
            (f"max by (pod) (sglpool_router_load{{{POOL}}})", "{{pod}}"),
        ),
        chart(
            "Evenness of load",
            "Variance of the replicas' load over its mean: 0 is even, 1 is chance.",
            "short",
            (f"max by (router) (sglpool_router_load_variance_to_mean{{{POOL}}})", "{{router}}"),
        ),
        chart(
            "Conversations at home",
            "On each replica; most of them only wait.",
            "short",
            (f"max by (pod) (sglpool_router_homed_conversations{{{POOL}}})", "{{pod}}"),
        ),
    ),
)
_PICKER = Row(
    title="The picker",
    panels=(
        chart(
            "Time of a decision",
            "Within the picker. Envoy waits 0.25 s for it, then decides by itself.",
            "s",
            *((quantile(share, "sglpool_router_decision_seconds"), f"p{100 * share:.0f}") for share in (0.5, 0.99)),
        ),
        chart(
            "Without the picker",
            "Requests that Envoy placed by itself, and questions that came too late. More than a few mean that the "
            "picker is away or too slow.",
            "per_s",
            (rate("sglpool_router_unplaced_requests_total"), "placed by Envoy"),
            (rate("sglpool_router_late_questions_total"), "late questions"),
            (or_zero(rate("envoy_cluster_ext_authz_failure_mode_allowed", more=_ENGINES)), "Envoy had no answer"),
        ),
        chart(
            "What fails",
            "Polls of engines, requests to the store of homes, reservations nobody confirmed, unreadable lines.",
            "per_s",
            (rate("sglpool_router_missed_polls_total"), "missed polls"),
            (rate("sglpool_router_store_errors_total"), "store errors"),
            (rate("sglpool_router_lapsed_reservations_total"), "lapsed reservations"),
            (rate("sglpool_router_bad_log_lines_total"), "bad log lines"),
        ),
        chart(
            "Store of homes",
            "1 while it answers, and where none is configured. 0: homes are neither learned nor changed.",
            "short",
            (f"min by (router) (sglpool_router_store_available{{{POOL}}})", "{{router}}"),
            top=1.0,
        ),
        chart(
            "Memory",
            "Of picker and Envoy.",
            "bytes",
            (f"max by (router) (process_resident_memory_bytes{{{POOL}}})", "picker {{router}}"),
            (f"max by (router) (envoy_server_memory_physical_size{{{POOL}}})", "Envoy {{router}}"),
        ),
        chart(
            "CPU of the picker",
            "It is one thread: near 1 it is at its end.",
            "cores",
            (f'sum by (router) (rate(process_cpu_seconds_total{{{POOL},router!=""}}[$__rate_interval]))', "{{router}}"),
            top=1.0,
        ),
        chart(
            "Restarts",
            "Of pickers in their containers, and of their watches of pods.",
            "short",
            (f"sum(sglpool_router_picker_restarts_total{{{POOL}}})", "pickers"),
            (f"sum(sglpool_router_watch_restarts_total{{{POOL}}})", "watches"),
        ),
        chart(
            "Replicas that Envoy knows",
            "All of them, and those that pass its checks.",
            "short",
            (f"max(envoy_cluster_membership_total{{{POOL}{_ENGINES}}})", "known"),
            (f"min(envoy_cluster_membership_healthy{{{POOL}{_ENGINES}}})", "healthy"),
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="sglpool-router",
    title="sglpool / Router",
    text="The router of one pool: Envoy and the picker.",
    rows=(_REQUESTS, _DECISIONS, _PICKER),
)
