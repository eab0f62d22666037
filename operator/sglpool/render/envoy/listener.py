"""The listener of the serving API, as data of a file that Envoy watches.

The way of a request: no headers of ours from outside, its length as a header, the API key, the body's limit, the
conversation's key, the picker, or what it said the last time, an engine. Not here: the bootstrap around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglpool.render.envoy import replies, routes
from sglpool.render.envoy.bootstrap import TLS_FILE, TLS_SECRET
from sglpool.render.envoy.luascript import source
from sglpool.render.envoy.shape import BUFFER_BYTES, RouterShape
from sglpool.routing import pickerconfig as names

_HTTP = "type.googleapis.com/envoy.extensions.filters.http"
_API = "type.googleapis.com/envoy"

_FROM_PICKER = (names.HEADER_DESTINATION, names.HEADER_PICK)
_TO_PICKER = (
    names.HEADER_KEY_SESSION,
    names.HEADER_KEY_CONVERSATION,
    names.HEADER_LENGTH,
    names.HEADER_REQUEST_ID,
)
_OURS = (*_FROM_PICKER, names.HEADER_KEY_SESSION, names.HEADER_KEY_CONVERSATION, names.HEADER_LENGTH)
"""Headers that mean something inside the router, and that nobody outside may set."""


def listener(shape: RouterShape, api_keys: Mapping[str, str]) -> dict[str, Any]:
    """Content of the LDS file.

    Args:
        shape: the pool's Envoy.
        api_keys: client name to key; used only when the shape wants keys.
    """
    chain: dict[str, Any] = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": _manager(shape, api_keys)}
        ]
    }
    if shape.tls_dir:
        chain["transport_socket"] = _tls(shape)
    resource = {
        "@type": f"{_API}.config.listener.v3.Listener",
        "name": "serving",
        "address": {"socket_address": {"address": shape.listen_host, "port_value": shape.http_port}},
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [chain],
    }
    return {"resources": [resource]}


def _manager(shape: RouterShape, api_keys: Mapping[str, str]) -> dict[str, Any]:
    return {
        "@type": f"{_API}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "serving",
        "server_name": "sglpool",
        # Nobody's x-envoy-* headers count, such as retries: no address is internal. An empty list means the default.
        "use_remote_address": True,
        "internal_address_config": {"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
        # One meaning of a path here and in the engine.
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "common_http_protocol_options": {"idle_timeout": "600s"},
        "request_headers_timeout": "30s",
        "stream_idle_timeout": f"{shape.stream_idle_timeout_s}s",
        # A client's own id of a request reaches the engine, as its traceparent does: one id in every log.
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "early_header_mutation_extensions": [_own_headers()],
        "access_log": [_access_log(shape)],
        "local_reply_config": replies.LOCAL_REPLIES,
        "route_config": {
            "name": "serving",
            "virtual_hosts": [{"name": "serving", "domains": ["*"], "routes": routes.routes()}],
        },
        "http_filters": _filters(shape, api_keys),
    }


def _filters(shape: RouterShape, api_keys: Mapping[str, str]) -> Sequence[dict[str, Any]]:
    filters = _authentication(api_keys) if shape.api_keys else []
    filters.append(
        _filter("body_size_limit", "body_size_limit.v3.BodySizeLimit", max_request_bytes=shape.body_limit_bytes)
    )
    filters.append(_filter("lua", "lua.v3.Lua", default_source_code={"inline_string": source()}))
    filters.append(_picker(shape))
    # Counts by status and times by cluster, which nothing of ours reads, cost each request some microseconds.
    filters.append(_filter("router", "router.v3.Router", suppress_envoy_headers=True, dynamic_stats=False))
    return filters


def _filter(name: str, kind: str, **config: Any) -> dict[str, Any]:
    return {"name": f"envoy.filters.http.{name}", "typed_config": {"@type": f"{_HTTP}.{kind}", **config}}


def _own_headers() -> dict[str, Any]:
    """Take away what a client may not say, then note the length: the picker's check shows it as 0.

    Before the filters rather than as one of them: a filter costs every chunk of a stream something.
    """
    length = {"key": names.HEADER_LENGTH, "value": "%REQ(content-length)%"}
    mutations: list[dict[str, Any]] = [{"remove": name} for name in _OURS]
    mutations.append({"append": {"header": length, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}})
    kind = f"{_API}.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {"@type": kind, "mutations": mutations},
    }


def _authentication(api_keys: Mapping[str, str]) -> list[dict[str, Any]]:
    """Envoy's own work, so that it holds while the picker is away. The key goes no further.

    By RBAC, which Envoy's developers vouch for; they call the filter for API keys unfinished and outside of their
    threat model. Its 403 becomes a 401 in `replies`. Without a key nobody is let in.
    """
    # Values of Secrets often end in a newline, and an empty key would let anybody in.
    keys = sorted({key.strip() for key in api_keys.values()} - {""})
    principals = [_says("authorization", f"Bearer {key}") for key in keys] + [_says("x-api-key", key) for key in keys]
    policies = {"keys": {"permissions": [{"any": True}], "principals": principals}} if keys else {}
    check = _filter("rbac", "rbac.v3.RBAC", rules={"action": "ALLOW", "policies": policies})
    mutations = {"request_mutations": [{"remove": "authorization"}, {"remove": "x-api-key"}]}
    hide = _filter("header_mutation", "header_mutation.v3.HeaderMutation", mutations=mutations)
    return [check, hide | {"name": "hide-credentials"}]


def _says(header: str, value: str) -> dict[str, Any]:
    return {"header": {"name": header, "string_match": {"exact": value}}}


def _picker(shape: RouterShape) -> dict[str, Any]:
    """Ask the picker; without its answer in time the request goes on: to where it was last, else the ring decides.

    Where it was last is in the destination's header already: the picker's answer replaces it.
    """
    return _filter(
        "ext_authz",
        "ext_authz.v3.ExtAuthz",
        http_service={
            "server_uri": {"uri": "http://picker", "cluster": "picker", "timeout": f"{shape.picker_timeout_s:g}s"},
            "authorization_response": {
                "allowed_upstream_headers": _exactly(_FROM_PICKER),
                "allowed_client_headers": _exactly(("retry-after",)),
                # On the response, where the script reads it.
                "allowed_client_headers_on_success": _exactly((names.HEADER_MEMO,)),
            },
        },
        allowed_headers=_exactly(_TO_PICKER),
        failure_mode_allow=True,
    )


def _exactly(headers: Sequence[str]) -> dict[str, Any]:
    return {"patterns": [{"exact": name} for name in headers]}


def _access_log(shape: RouterShape) -> dict[str, Any]:
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": f"{_API}.extensions.access_loggers.file.v3.FileAccessLog",
            "path": shape.shared(names.ACCESS_LOG),
            "log_format": {"text_format_source": {"inline_string": names.ACCESS_LOG_FORMAT}},
        },
    }


def _tls(shape: RouterShape) -> dict[str, Any]:
    secret = {
        "name": TLS_SECRET,
        "sds_config": {
            "path_config_source": {"path": shape.config(TLS_FILE)},
            "resource_api_version": "V3",
        },
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{_API}.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "tls_certificate_sds_secret_configs": [secret],
            },
        },
    }
