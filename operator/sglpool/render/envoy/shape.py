"""What Envoy's configuration depends on: one flat value, made from the pool by the operator.

The operator renders the bootstrap from it, and hands it to the picker (`PickerConfig.listener`), which renders the
listener: that holds API keys, and those must not lie in a ConfigMap. Not here: the keys themselves, and the names that
Envoy shares with the picker (`routing.pickerconfig`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from sglpool.routing.pickerconfig import HEALTH_PORT, HTTP_PORT, SHARED_DIR

#: Folder of the ConfigMap with the files of `bootstrap.files`.
CONFIG_DIR = "/etc/sglpool/router"

PICKER_TIMEOUT_S = 0.25
"""How long a request waits for the picker."""

BUFFER_BYTES = 8 * 2**20
"""A request up to this size can be sent again to the second replica, and be read for its fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterShape:
    """One pool's Envoy.

    Attributes:
        pool: Name of the pool, for Envoy's own logs.
        max_replicas: Most replicas that the pool can have over all GPU types.
        max_concurrent_requests: Most requests on one replica.
        body_limit_bytes: Larger bodies get 413.
        api_keys: Whether a request needs a key. As long as the listener holds none, every request gets 401 then.
        tls_dir: Folder with tls.crt and tls.key; plain HTTP when absent.
        picker_timeout_s: Without the picker's answer in so long, Envoy places a request itself.
        stream_idle_timeout_s: A stream on which nothing moves for so long ends.
        stream_grace_s: How long streams may go on after the router began to go, or its listener changed.
        listen_host: Address of both listeners.
        http_port: Port of the serving API.
        health_port: Port of /healthz and /readyz.
        shared_dir: Folder shared with the picker.
        config_dir: Folder of the files of `bootstrap.files`.
    """

    pool: str
    max_replicas: int
    max_concurrent_requests: int
    body_limit_bytes: int = 32 * 2**20
    api_keys: bool = False
    tls_dir: str | None = None
    picker_timeout_s: float = PICKER_TIMEOUT_S
    stream_idle_timeout_s: int = 1800
    stream_grace_s: int = 1800
    listen_host: str = "0.0.0.0"
    http_port: int = HTTP_PORT
    health_port: int = HEALTH_PORT
    shared_dir: str = SHARED_DIR
    config_dir: str = CONFIG_DIR

    @property
    def most_requests(self) -> int:
        """What the circuit breakers let through: every replica full, and room for what holds no slot."""
        full = max(1, self.max_replicas) * max(1, self.max_concurrent_requests)
        return full + full // 4 + 64

    @property
    def most_connections(self) -> int:
        """Most connections of clients: several times what can be served, since idle ones are kept open."""
        return max(4096, 4 * self.most_requests)

    def shared(self, name: str) -> str:
        """Path of a file in the shared folder."""
        return f"{self.shared_dir}/{name}"

    def config(self, name: str) -> str:
        """Path of a file of the ConfigMap."""
        return f"{self.config_dir}/{name}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the picker's configuration."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The value that `to_json` gave."""
        return cls(**data)
