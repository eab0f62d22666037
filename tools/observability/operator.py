"""The dashboard of the operator: its pools, its work, its process.

Not here: one pool (`pool`).
"""

from __future__ import annotations

from tools.observability.panels import Dashboard, Panel, Query, Row, chart, figure
from tools.observability.promql import or_zero, quantile

_SPAN = "$__rate_interval"
_OURS = "* on (instance) group_left () sglpool_build_info"
"""Other controllers use these names too."""

_POOLS = Row(
    title="Pools",
    panels=(
        figure("Pools", "All that it knows.", "short", 'count(sglpool_pool_condition{type="Ready"})'),
        figure(
            "Not ready",
            "Their condition Ready is not True.",
            "short",
            or_zero('count(sglpool_pool_condition{type="Ready"} != 1)'),
        ),
        figure(
            "Stalled", "They wait for a person.", "short", or_zero('count(sglpool_pool_condition{type="Stalled"} == 1)')
        ),
        figure("GPUs", "Of ready replicas.", "short", "sum(sglpool_pool_gpus)"),
        Panel(
            title="Version",
            text="Of the operator. Two stand here where one of two replicas waits for its turn.",
            unit="",
            queries=(Query(expr="sglpool_build_info", legend="{{version}}"),),
            kind="stat",
            height=4,
        ),
        Panel(
            title="Pools by reason of Ready",
            text="docs/conditions.md says what each means.",
            unit="short",
            queries=(Query(expr='count by (reason) (sglpool_pool_reason{type="Ready"})', legend="{{reason}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            title="Conditions of every pool",
            text="1 for True, 0 for False, -1 for Unknown.",
            unit="short",
            queries=(
                Query(
                    expr="max by (namespace, pool, type) "
                    '(sglpool_pool_condition{type=~"Ready|Feasible|NodesReady|Stalled"})',
                    legend="{{namespace}}/{{pool}} {{type}}",
                ),
            ),
            kind="table",
            width=12,
        ),
    ),
)
_WORK = Row(
    title="Work",
    panels=(
        chart(
            "Reconciles",
            "By outcome. Retry: a failure that passes by itself. RequeueAfter: time or a person has to change things.",
            "per_s",
            (f"sum by (result) (rate(sglpool_reconcile_seconds_count[{_SPAN}]))", "{{result}}"),
            stacked=True,
        ),
        chart(
            "Duration of a reconcile",
            "Most of it waits for the API server.",
            "s",
            *((quantile(share, "sglpool_reconcile_seconds", where=""), f"p{100 * share:.0f}") for share in (0.5, 0.99)),
        ),
        chart(
            "Wait for a reconcile",
            "From a change to the start of its reconcile.",
            "s",
            *(
                (
                    f"histogram_quantile({share:g}, sum by (le) "
                    f"(rate(workqueue_queue_duration_seconds_bucket[{_SPAN}]) {_OURS}))",
                    f"p{100 * share:.0f}",
                )
                for share in (0.5, 0.99)
            ),
        ),
        chart("Queue", "Pools that wait for a reconcile.", "short", (f"max(workqueue_depth {_OURS})", "waiting")),
        chart(
            "Requests to the API server",
            "By verb. At rest there are no writes.",
            "per_s",
            (f"sum by (verb) (rate(sglpool_api_requests_total[{_SPAN}]))", "{{verb}}"),
            stacked=True,
        ),
        chart(
            "Refused by the API server",
            "By code; 0 means no answer. 403: a permission is missing. 404 and 409 are parts of usual work.",
            "per_s",
            (or_zero(f'sum by (code) (rate(sglpool_api_requests_total{{code!~"2..|404|409"}}[{_SPAN}]))'), "{{code}}"),
        ),
        chart(
            "Rights that are missing",
            "Of the operator's account, as it found at its start: see docs/permissions.md. Should be 0.",
            "short",
            (or_zero("sum by (verb, resource) (sglpool_missing_permissions)"), "{{verb}} {{resource}}"),
        ),
        chart(
            "Operators at work",
            "1, also where several stand by; 0 while nobody has the Lease.",
            "short",
            ("sum(sglpool_leader)", "at work"),
        ),
        chart(
            "Age of the last full listing",
            "A few minutes at most; after three failed ones the operator is not alive.",
            "s",
            ("time() - max(sglpool_last_resync_timestamp_seconds)", "age"),
        ),
        chart(
            "Unhealthy replicas",
            "Found within the last hour although their probes passed, by ailment.",
            "short",
            (or_zero("sum by (ailment) (increase(sglpool_unhealthy_replicas_total[1h]))"), "{{ailment}}"),
        ),
        chart(
            "Reconciles sent to back off",
            "After a failure that passes by itself.",
            "per_s",
            (f"sum(rate(workqueue_retries_total[{_SPAN}]) {_OURS})", "retries"),
        ),
    ),
)
_PROCESS = Row(
    title="Process",
    panels=(
        chart(
            "Memory",
            "Resident.",
            "bytes",
            (f"max by (instance) (process_resident_memory_bytes {_OURS})", "{{instance}}"),
            width=12,
        ),
        chart(
            "CPU",
            "Of one operator.",
            "cores",
            (
                f"sum by (instance) (rate(process_cpu_seconds_total[{_SPAN}]) {_OURS})",
                "{{instance}}",
            ),
            width=12,
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="sglpool-operator",
    title="sglpool / Operator",
    text="All pools, and the operator's own work.",
    rows=(_POOLS, _WORK, _PROCESS),
    of_pool=False,
)
