"""What of Envoy's own metrics a router pod exports, in words: Envoy itself has none for them.

Not here: the filter that lets only these through (`sglpool.render.envoy.bootstrap`).
"""

from __future__ import annotations

_SERVING = ("envoy_http_conn_manager_prefix",)
_CLUSTER = ("envoy_cluster_name",)

ENVOY: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("envoy_http_downstream_rq_total", "counter", _SERVING, "Requests of clients."),
    (
        "envoy_http_downstream_rq_xx",
        "counter",
        ("envoy_response_code_class", *_SERVING),
        "Answers to clients by class of status.",
    ),
    ("envoy_http_downstream_rq_active", "gauge", _SERVING, "Requests under way."),
    ("envoy_http_downstream_rq_time", "histogram", _SERVING, "Duration of requests, to the last byte."),
    ("envoy_http_downstream_rq_rx_reset", "counter", _SERVING, "Requests that clients broke off."),
    ("envoy_http_downstream_rq_tx_reset", "counter", _SERVING, "Requests that Envoy broke off."),
    ("envoy_http_downstream_rq_idle_timeout", "counter", _SERVING, "Streams that ended because nothing moved."),
    ("envoy_http_downstream_rq_overload_close", "counter", _SERVING, "Requests refused for overload of Envoy."),
    ("envoy_http_downstream_cx_total", "counter", _SERVING, "Connections of clients."),
    ("envoy_http_downstream_cx_active", "gauge", _SERVING, "Open connections of clients."),
    ("envoy_http_downstream_cx_idle_timeout", "counter", _SERVING, "Connections closed because nothing moved."),
    ("envoy_cluster_membership_total", "gauge", _CLUSTER, "Replicas that Envoy knows."),
    ("envoy_cluster_membership_healthy", "gauge", _CLUSTER, "Replicas that its own choice may take."),
    (
        "envoy_cluster_ext_authz_ok",
        "counter",
        _CLUSTER,
        "Questions that the picker answered with a replica, or let pass.",
    ),
    ("envoy_cluster_ext_authz_denied", "counter", _CLUSTER, "Questions that the picker answered with 429."),
    ("envoy_cluster_ext_authz_error", "counter", _CLUSTER, "Questions without an answer in time."),
    (
        "envoy_cluster_ext_authz_failure_mode_allowed",
        "counter",
        _CLUSTER,
        "Requests that went on without the picker's answer.",
    ),
    ("envoy_cluster_upstream_rq_total", "counter", _CLUSTER, "Requests to engines, or questions to the picker."),
    ("envoy_cluster_upstream_rq_active", "gauge", _CLUSTER, "The same, under way."),
    ("envoy_cluster_upstream_rq_retry", "counter", _CLUSTER, "Requests sent to a second replica."),
    ("envoy_cluster_upstream_rq_timeout", "counter", _CLUSTER, "Requests that took too long."),
    ("envoy_cluster_upstream_rq_pending_overflow", "counter", _CLUSTER, "Requests that a circuit breaker refused."),
    ("envoy_cluster_upstream_cx_total", "counter", _CLUSTER, "Connections to engines, or to the picker."),
    ("envoy_cluster_upstream_cx_active", "gauge", _CLUSTER, "The same, open now."),
    ("envoy_cluster_upstream_cx_connect_fail", "counter", _CLUSTER, "Connections that failed."),
    ("envoy_server_uptime", "gauge", (), "Time since Envoy's start."),
    ("envoy_server_concurrency", "gauge", (), "Worker threads."),
    ("envoy_server_memory_physical_size", "gauge", (), "Memory, as its allocator counts it."),
    ("envoy_server_total_connections", "gauge", (), "Connections, those of both sides."),
)
"""Name, type, labels, meaning."""
