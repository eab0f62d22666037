"""When each alert fires, and when it keeps quiet: series of an imagined Prometheus, a value a minute.

Values are promtool's: `5+2x30` begins at 5 and grows by 2 thirty times, `1x30` stays, `_` is no sample. Not here:
running them (`test_alerts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

P = 'namespace="ns",pool="p"'
OF_POOL = {"namespace": "ns", "pool": "p"}
SERVING = 'envoy_http_conn_manager_prefix="serving"'
TTFT = "sglang:time_to_first_token_seconds"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One alert.

    Attributes:
        alert: Its name.
        minute: When it is looked at.
        labels: Of the alert, without its name and severity.
        summary: What the reader gets.
        series: What Prometheus knows when it fires.
        quiet: What is otherwise when it does not: series by what they stand for; None takes one away.
    """

    alert: str
    minute: int
    labels: Mapping[str, str]
    summary: str
    series: Mapping[str, str]
    quiet: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)


def condition(kind: str) -> str:
    return f'sglpool_pool_condition{{{P},type="{kind}"}}'


def reason(kind: str, word: str) -> str:
    return f'sglpool_pool_reason{{{P},type="{kind}",reason="{word}"}}'


def removed(end: str) -> str:
    return f'sglpool_pool_removed_replicas_total{{{P},end="{end}"}}'


def lost(namespace: str = "ns") -> str:
    return f'sglpool_pool_lost_replicas_total{{namespace="{namespace}",pool="p",gpu="B200"}}'


def answers(group: str) -> str:
    return f'envoy_http_downstream_rq_xx{{{P},{SERVING},envoy_response_code_class="{group}"}}'


def first_token(end: str, pod: str = "p-0") -> str:
    return f'{TTFT}_{end.split("{")[0]}{{{P},pod="{pod}"{"," + end.split("{")[1] if "{" in end else "}"}'


ENVOY_TOTAL = f"envoy_http_downstream_rq_total{{{P},{SERVING}}}"
UNPLACED = f"sglpool_router_unplaced_requests_total{{{P}}}"
RESTARTS = f"sglpool_router_picker_restarts_total{{{P}}}"
MISSING = f"sglpool_pool_missing_samples{{{P}}}"
READY = f'sglpool_pool_replicas{{{P},gpu="B200",state="ready"}}'
RUNNING = f'sglang:num_running_reqs{{{P},pod="p-b200-0",tp_rank="0"}}'
CACHED = f'sglang:cached_tokens_total{{{P},cache_source="device"}}'
PROMPT = f"sglang:prompt_tokens_total{{{P}}}"
FINISHED = f"sglang:num_requests_total{{{P}}}"
RESYNC = "sglpool_last_resync_timestamp_seconds"
LOADS = tuple(f'sglpool_router_load{{{P},pod="p-{n}"}}' for n in range(2))
STORE_OF_A, STORE_OF_B = (f'sglpool_router_store_available{{{P},router="{name}"}}' for name in "ab")
EVENNESS = f"sglpool_router_load_variance_to_mean{{{P}}}"

CASES = (
    Case(
        alert="SglpoolPoolDown",
        minute=10,
        labels=OF_POOL | {"type": "Available"},
        summary="Pool ns/p serves nobody any more.",
        series={condition("Available"): "1x4 0x20", reason("Ready", "CrashLoop"): "1x24"},
        quiet={
            "it starts for the first time": {condition("Available"): "0x24"},
            "it was parked": {reason("Ready", "CrashLoop"): None, reason("Ready", "Parked"): "1x24"},
            "it was away for a minute": {condition("Available"): "1x7 0 1x20"},
        },
    ),
    Case(
        alert="SglpoolPoolNotReady",
        minute=50,
        labels=OF_POOL | {"type": "Ready"},
        summary="Pool ns/p is not ready.",
        series={condition("Ready"): "0x60", reason("Ready", "Unschedulable"): "1x60"},
        quiet={
            "it is ready": {condition("Ready"): "1x60"},
            "it started, which takes long": {condition("Ready"): "0x40 1x60"},
            "it is rolled out": {
                reason("Ready", "Unschedulable"): None,
                reason("Ready", "RollingOut"): "1x60",
            },
            "another alert says so": {reason("Ready", "Unschedulable"): None, reason("Ready", "Infeasible"): "1x60"},
        },
    ),
    Case(
        alert="SglpoolPoolInfeasible",
        minute=10,
        labels=OF_POOL | {"type": "Feasible"},
        summary="The spec of pool ns/p does not fit, and is not carried out.",
        series={condition("Feasible"): "0x20"},
        quiet={"it fits": {condition("Feasible"): "1x20"}, "it fitted again": {condition("Feasible"): "0x3 1x20"}},
    ),
    Case(
        alert="SglpoolMetricsMissing",
        minute=20,
        labels=OF_POOL,
        summary="1 replicas or routers of pool ns/p show no figures.",
        series={MISSING: "0x30", READY: "2x30", RUNNING: "3x30"},
        quiet={
            "every replica is scraped": {READY: "1x30"},
            "one was missing for a moment": {READY: "1x30", MISSING: "0x5 1x3 0x30"},
            "a second rank repeats the first": {READY: "1x30", RUNNING.replace('"0"}', '"1"}'): "3x30"},
        },
    ),
    Case(
        alert="SglpoolMetricsMissing",
        minute=20,
        labels=OF_POOL,
        summary="2 replicas or routers of pool ns/p show no figures.",
        series={MISSING: "2x30", READY: "1x30", RUNNING: "3x30"},
    ),
    Case(
        alert="SglpoolTimeToFirstTokenBurn",
        minute=70,
        labels=OF_POOL,
        summary="ns/p: 50% of requests wait over 10 s.",
        series={first_token('bucket{le="10.0"}'): "0+5x100", first_token("count"): "0+10x100"},
        quiet={
            "nine of ten are in time": {first_token('bucket{le="10.0"}'): "0+9x100"},
            "it is over": {first_token('bucket{le="10.0"}'): "0+5x60 310+10x40"},
            "nobody asks": {first_token('bucket{le="10.0"}'): "7x100", first_token("count"): "9x100"},
        },
    ),
    Case(
        alert="SglpoolHitRateCollapse",
        minute=700,
        labels=OF_POOL,
        summary="ns/p: caches hold only 40% of prompts.",
        series={CACHED: "0+90x640 57600+40x100", PROMPT: "0+100x740", FINISHED: "0+10x740"},
        quiet={
            "it fell a little": {CACHED: "0+90x640 57600+80x100"},
            "it was never better": {CACHED: "0+40x740"},
            "hardly anybody asks": {FINISHED: "0+1x740"},
        },
    ),
    Case(
        alert="SglpoolReplicaImbalance",
        minute=20,
        labels=OF_POOL,
        summary="Load of ns/p is uneven: variance 4 times the mean.",
        series={EVENNESS: "4x30", LOADS[0]: "1x30", LOADS[1]: "8x30"},
        quiet={
            "it is even": {EVENNESS: "0.4x30"},
            "hardly any load": {LOADS[0]: "0x30", LOADS[1]: "3x30"},
            "for a moment": {EVENNESS: "0.4x10 4x5 0.4x30"},
        },
    ),
    Case(
        alert="SglpoolRouterErrors",
        minute=15,
        labels=OF_POOL,
        summary="ns/p: 10% of answers are 5xx.",
        series={answers("2"): "0+9x30", answers("5"): "0+1x30"},
        quiet={"hardly any": {answers("2"): "0+99x30"}, "none": {answers("5"): "0x30"}},
    ),
    Case(
        alert="SglpoolPickerAway",
        minute=25,
        labels=OF_POOL,
        summary="The picker of pool ns/p is away or too slow.",
        series={UNPLACED: "0+3x40", ENVOY_TOTAL: "0+10x40", RESTARTS: "0x40"},
        quiet={"it places nearly all": {UNPLACED: "0+0.5x40"}},
    ),
    Case(
        alert="SglpoolPickerAway",
        minute=40,
        labels=OF_POOL,
        summary="The picker of pool ns/p is away or too slow.",
        series={UNPLACED: "0x60", ENVOY_TOTAL: "0+10x60", RESTARTS: "0+1x60"},
        quiet={"it was started again once": {RESTARTS: "0x20 1x40"}},
    ),
    Case(
        alert="SglpoolStoreAway",
        minute=30,
        labels=OF_POOL,
        summary="Routers of pool ns/p cannot use their store of homes.",
        series={STORE_OF_A: "1x5 0x40", STORE_OF_B: "1x45"},
        quiet={
            "it answers": {STORE_OF_A: "1x45"},
            "it was away for some minutes": {STORE_OF_A: "1x10 0x4 1x40"},
        },
    ),
    Case(
        alert="SglpoolScalingBlocked",
        minute=30,
        labels=OF_POOL | {"type": "ScalingActive", "reason": "NoRoom"},
        summary="Scaling of ns/p is blocked: NoRoom.",
        series={reason("ScalingActive", "NoRoom"): "1x40"},
        quiet={
            "it works": {
                reason("ScalingActive", "NoRoom"): None,
                reason("ScalingActive", "ValidMetrics"): "1x40",
            },
            "there is none": {reason("ScalingActive", "NoRoom"): None, reason("ScalingActive", "Disabled"): "1x40"},
        },
    ),
    Case(
        alert="SglpoolDrainTimeouts",
        minute=60,
        labels=OF_POOL,
        summary="ns/p: 4 replicas were ended with work left.",
        series={removed("late"): "0x20 4x60", removed("empty"): "0x20 2x60"},
        quiet={
            "all were empty": {removed("late"): "0x80"},
            "few of many": {removed("empty"): "0x20 20x60"},
            "it was long ago": {removed("late"): "4x80"},
        },
    ),
    Case(
        alert="SglpoolReplicasLost",
        minute=60,
        labels=OF_POOL | {"gpu": "B200"},
        summary="ns/p lost 3 replicas on B200.",
        series={lost(): "0x20 3x60"},
        quiet={"none": {lost(): "0x80"}, "one in each of two pools": {lost(): "0x20 1x60", lost("other"): "0x20 1x60"}},
    ),
    Case(
        alert="SglpoolOperatorDown",
        minute=25,
        labels={},
        summary="No sglpool operator works.",
        series={RESYNC: "1000 _x40"},
        quiet={"it lists every few minutes": {RESYNC: "0+60x40"}},
    ),
    Case(
        alert="SglpoolOperatorDown",
        minute=60,
        labels={},
        summary="No sglpool operator works.",
        series={RESYNC: "60x80"},
        quiet={"one of two leads": {f"{RESYNC}{{instance='b'}}": "0+60x80"}},
    ),
    Case(
        alert="SglpoolOperatorForbidden",
        minute=40,
        labels={"verb": "patch", "resource": "statefulsets"},
        summary="The operator may not patch statefulsets.",
        series={'sglpool_api_requests_total{verb="patch",resource="statefulsets",code="403"}': "0+1x60"},
        quiet={
            "it was given the right": {
                'sglpool_api_requests_total{verb="patch",resource="statefulsets",code="403"}': "0+1x10 10x50"
            },
            "only conflicts": {
                'sglpool_api_requests_total{verb="patch",resource="statefulsets",code="403"}': None,
                'sglpool_api_requests_total{verb="patch",resource="statefulsets",code="409"}': "0+1x60",
            },
        },
    ),
    Case(
        alert="SglpoolPermissionsMissing",
        minute=20,
        labels={"verb": "watch", "resource": "nodes"},
        summary="The operator's account lacks the right to watch nodes.",
        series={'sglpool_missing_permissions{verb="watch",resource="nodes"}': "1x30"},
        quiet={
            "it was given the right": {'sglpool_missing_permissions{verb="watch",resource="nodes"}': "1x5 stale _x25"}
        },
    ),
)
