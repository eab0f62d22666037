"""What Envoy's configuration depends on: one flat value, made from the pool by the operator.

The operator renders the bootstrap from it, and hands it to the picker (as JSON), which renders the listener: the
listener holds API keys, and those must not lie in a ConfigMap. Not here: the keys themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

#: Memory-backed folder that Envoy and the picker share.
SHARED_DIR = "/run/sglpool-router"
#: Folder of the ConfigMap with the files of `bootstrap.files`.
CONFIG_DIR = "/etc/sglpool/router"

HTTP_PORT = 8000
HEALTH_PORT = 8001

AUTHZ_SOCKET = "authz.sock"
"""In the shared folder: the picker's authorization service."""
ACCESS_LOG_SOCKET = "als.sock"
"""In the shared folder: where the picker reads access log entries."""
ADMIN_SOCKET = "admin.sock"
"""In the shared folder: Envoy's admin."""
EDS_FILE = "eds.json"
LDS_FILE = "lds.json"

ENGINE_CLUSTER = "engines"
"""Name of the cluster in EDS and in the admin's /clusters."""

BUFFER_BYTES = 8 * 2**20
"""A request up to this size can be sent again to the second replica, and be read for its fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterShape:
    """One pool's Envoy."""

    pool: str
    """`namespace/name`, for Envoy's own logs and metrics."""
    max_replicas: int
    """Most replicas that the pool can have over all GPU types."""
    max_concurrent_requests: int
    """Most requests on one replica."""
    body_limit_bytes: int = 32 * 2**20
    api_keys: bool = False
    """Whether a request needs a key. Without any key in the listener then, every request gets 401."""
    tls_dir: str | None = None
    """Folder with tls.crt and tls.key; plain HTTP when absent."""
    stream_idle_timeout_s: int = 1800
    """A stream on which nothing moves for so long ends."""
    listen_host: str = "0.0.0.0"
    http_port: int = HTTP_PORT
    health_port: int = HEALTH_PORT
    shared_dir: str = SHARED_DIR
    config_dir: str = CONFIG_DIR

    @property
    def most_requests(self) -> int:
        """Most requests at once over all replicas: what the circuit breakers must let through."""
        return max(1, self.max_replicas) * max(1, self.max_concurrent_requests)

    def shared(self, name: str) -> str:
        """Path of a file in the shared folder."""
        return f"{self.shared_dir}/{name}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the picker's configuration."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The value that `to_json` gave."""
        return cls(**data)
