"""The dashboard of one pool's size: what it needs, what it has, and what it costs to change.

Not here: the load of single replicas (`pool`).
"""

from __future__ import annotations

from tools.observability.panels import Dashboard, Panel, Query, Row, chart
from tools.observability.promql import POOL, quantile


def _figure(name: str) -> str:
    return f'max(sglpool_pool_autoscaler{{{POOL},figure="{name}"}})'


def _count(metric: str, by: str = "") -> str:
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (increase({metric}{{{POOL}}}[15m]))"


_SIZE = Row(
    title="Size",
    panels=(
        chart(
            "Need and places",
            "Requests in flight, the places that they need, the most of the window, and the places of the replicas. It "
            "grows when the need is above 1.05 of the places.",
            "short",
            (_figure("inFlight"), "in flight"),
            (_figure("needRequests"), "needed"),
            (_figure("peakNeedRequests"), "most needed in the window"),
            (_figure("capacityRequests"), "places"),
            width=12,
        ),
        chart(
            "Replicas",
            "Wanted and ready, those that start, that fail to, and that find no node.",
            "short",
            (f'sum(sglpool_pool_replicas{{{POOL},state="wanted"}})', "wanted"),
            (f'sum(sglpool_pool_replicas{{{POOL},state="ready"}})', "ready"),
            (_figure("startingReplicas"), "starting"),
            (_figure("failedReplicas"), "failing"),
            (_figure("unschedulableReplicas"), "without a node"),
            width=12,
        ),
        Panel(
            title="Scaling",
            text="Reason of condition ScalingActive; docs/conditions.md says what each means.",
            unit="",
            queries=(Query(expr=f'sglpool_pool_reason{{{POOL},type="ScalingActive"}}', legend="{{reason}}"),),
            kind="stat",
        ),
        chart(
            "KV cache in use",
            "Of all ready replicas, as the autoscaler read it.",
            "percentunit",
            (_figure("kvUtilization"), "in use"),
            top=1.0,
        ),
        chart(
            "Replicas by GPU type",
            "Wanted ones. The first type of the spec is filled first.",
            "short",
            (f'sum by (gpu) (sglpool_pool_replicas{{{POOL},state="wanted"}})', "{{gpu}}"),
            stacked=True,
        ),
    ),
)
_CHANGES = Row(
    title="Replicas that go",
    panels=(
        chart(
            "Drains",
            "Replicas that began to be emptied within 15 minutes.",
            "short",
            (_count("sglpool_pool_drains_total"), "began"),
        ),
        chart(
            "Replicas taken away",
            "Within 15 minutes. Late ones still had work at their deadline: their conversations moved at a bad moment.",
            "short",
            (_count("sglpool_pool_removed_replicas_total", "end"), "{{end}}"),
        ),
        chart(
            "What was cut and lost",
            "Requests that were under way on replicas taken away, and replicas whose node went, within 15 minutes.",
            "short",
            (_count("sglpool_pool_cut_requests_total"), "requests cut"),
            (_count("sglpool_pool_lost_replicas_total"), "replicas lost with their node"),
        ),
    ),
)
_READINGS = Row(
    title="Readings",
    panels=(
        chart(
            "What could not be read",
            "Ready replicas and routers without figures. Above 0 nothing shrinks; with too many the size is held.",
            "short",
            (f"max(sglpool_pool_missing_samples{{{POOL}}})", "missing"),
        ),
        chart(
            "Age of the figures",
            "Of the oldest engine's when it was read.",
            "s",
            (f"max(sglpool_pool_signal_age_seconds{{{POOL}}})", "oldest"),
        ),
        chart(
            "Decisions, all pools",
            "By reason. This and what follows is about the whole operator.",
            "per_s",
            ("sum by (reason) (rate(sglpool_autoscaler_decisions_total[$__rate_interval]))", "{{reason}}"),
            stacked=True,
        ),
        chart(
            "Duration of a look, all pools",
            "Most of it waits for answers; 2 s is the limit.",
            "s",
            *(
                (quantile(share, "sglpool_autoscaler_tick_seconds", where=""), f"p{100 * share:.0f}")
                for share in (0.5, 0.99)
            ),
        ),
        chart(
            "Skipped looks, all pools",
            "Due before the one before had ended. Should be 0.",
            "per_s",
            ("sum(rate(sglpool_autoscaler_skipped_ticks_total[$__rate_interval]))", "skipped"),
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="sglpool-autoscaler",
    title="sglpool / Autoscaler",
    text="Why one pool has its size, and what its changes cost.",
    rows=(_SIZE, _CHANGES, _READINGS),
)
