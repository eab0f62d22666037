"""Envoy's bootstrap, the files that stand beside it, and its command line.

Not here: the listener, which the picker writes, because it holds API keys.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import jinja2

from sglpool.render.envoy.shape import BUFFER_BYTES, RouterShape
from sglpool.routing import pickerconfig as names

BOOTSTRAP_FILE = "envoy.yaml"
TLS_FILE = "tls.json"
TLS_SECRET = "endpoint"
"""Name of the certificate in `TLS_FILE`, which the listener refers to."""

HANG_LIMIT_S = 30
"""A thread of Envoy's that has not turned for so long hangs: its longest work, a body's fingerprint, takes far less."""

_COUNTED = (
    r"http\.serving\.downstream_(rq|cx)_(total|active|[1-5]xx|time|rx_reset|tx_reset|idle_timeout|overload_close)",
    rf"cluster\.{names.CLUSTER_NAME}\.(membership_(total|healthy)|ext_authz\.(ok|denied|error|failure_mode_allowed))",
    rf"cluster\.({names.CLUSTER_NAME}|picker)\.upstream_cx_(total|active|connect_fail)",
    rf"cluster\.({names.CLUSTER_NAME}|picker)\.upstream_rq_(total|active|pending_overflow|retry|timeout)",
    r"server\.(uptime|concurrency|memory_physical_size|total_connections)",
)
"""Envoy's names of what `docs/metrics.md` lists; of many hundreds, a handful that somebody looks at."""

METRICS_PATH = f"/stats/prometheus?filter=^({'|'.join(_COUNTED)})$"
"""Where Envoy's admin shows them."""


def bootstrap(shape: RouterShape) -> str:
    """The bootstrap as YAML."""
    return _template().render(
        shape=shape,
        admin=shape.shared(names.ADMIN_SOCKET),
        authz=shape.shared(names.AUTHZ_SOCKET),
        lds=shape.shared(names.LDS_FILE),
        eds=shape.shared(names.EDS_FILE),
        cluster=names.CLUSTER_NAME,
        destination=names.HEADER_DESTINATION,
        buffer_bytes=BUFFER_BYTES,
        hang_limit_s=HANG_LIMIT_S,
        metrics_path=METRICS_PATH,
    )


def files(shape: RouterShape) -> dict[str, str]:
    """Every file of the router's ConfigMap that Envoy reads, by its name in `shape.config_dir`."""
    own = {BOOTSTRAP_FILE: bootstrap(shape)}
    return own | {TLS_FILE: _tls(shape.tls_dir)} if shape.tls_dir else own


def arguments(shape: RouterShape, *, concurrency: int) -> tuple[str, ...]:
    """Arguments of `envoy`.

    Args:
        shape: the pool's Envoy.
        concurrency: worker threads; the pod's CPUs.
    """
    return (
        *("--config-path", shape.config(BOOTSTRAP_FILE)),
        *("--concurrency", str(concurrency)),
        # Two routers on one machine would meet in its shared memory; and a pod is replaced, not restarted hot.
        "--disable-hot-restart",
        # A listener that was replaced (new API keys) or a router that goes: the next answer closes its connection, so
        # that an old key is soon of no use, and streams have as long as any may last.
        *("--drain-strategy", "immediate"),
        *("--drain-time-s", str(shape.stream_grace_s)),
        *names.ENVOY_LOG_FLAGS,
    )


def _tls(folder: str) -> str:
    """A secret resource that Envoy reads anew when the mounted Secret changes: Kubernetes swaps `..data` in it."""
    certificate = {
        "certificate_chain": {"filename": f"{folder}/tls.crt"},
        "private_key": {"filename": f"{folder}/tls.key"},
        "watched_directory": {"path": folder},
    }
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
    secret = {"@type": kind, "name": TLS_SECRET, "tls_certificate": certificate}
    return json.dumps({"resources": [secret]}, indent=2) + "\n"


@cache
def _template() -> jinja2.Template:
    text = resources.files(__package__).joinpath("bootstrap.yaml.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text)
