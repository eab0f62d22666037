"""The paths that are open, and how a request to them is sent: everything else of an engine is closed from outside."""

from __future__ import annotations

from typing import Any

from sglpool.routing import pickerconfig as names

SERVING_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Requests that take a slot of a replica, and belong to a conversation."""

LOOKUP_PATHS = ("/v1/models", "/tokenize", "/v1/tokenize", "/v1/messages/count_tokens")
"""Requests that any replica answers at once, without a slot."""

RETRIES = {
    # `reset` also when the request had already been read: an engine that is killed during prefill has read it. A
    # request that kills engines therefore meets two of them at most.
    "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
    "retriable_status_codes": [503],
    "num_retries": 1,
    "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.02s"},
    # The ring hash must not choose the same one again; of a pick, the second host is taken.
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            },
        }
    ],
    "host_selection_retry_max_attempts": 5,
}

_HTTP = "type.googleapis.com/envoy.extensions.filters.http"
_WITHOUT_PICK = {
    "envoy.filters.http.ext_authz": {"@type": f"{_HTTP}.ext_authz.v3.ExtAuthzPerRoute", "disabled": True},
    "envoy.filters.http.lua": {"@type": f"{_HTTP}.lua.v3.LuaPerRoute", "disabled": True},
}


def routes() -> list[dict[str, Any]]:
    """The routes of the serving listener, first match first."""
    serving = [{"match": {"path": path}, "route": _to_engines()} for path in SERVING_PATHS]
    lookup: list[dict[str, Any]] = [_lookup({"path": path}) for path in LOOKUP_PATHS]
    # A model's name may hold slashes.
    lookup.append(_lookup({"prefix": "/v1/models/"}))
    closed = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 404, "body": {"inline_string": "Not Found"}},
        "typed_per_filter_config": _WITHOUT_PICK,
    }
    return [*serving, *lookup, closed]


def _lookup(match: dict[str, Any]) -> dict[str, Any]:
    return {"match": match, "route": _to_engines(), "typed_per_filter_config": _WITHOUT_PICK}


def _to_engines() -> dict[str, Any]:
    hashed = (names.HEADER_KEY_SESSION, names.HEADER_KEY_CONVERSATION)
    return {
        "cluster": names.CLUSTER_NAME,
        # A long answer may take any time; only silence ends it (stream_idle_timeout).
        "timeout": "0s",
        "retry_policy": RETRIES,
        "hash_policy": [{"header": {"header_name": name}} for name in hashed],
    }
