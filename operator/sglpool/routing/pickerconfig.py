"""What a router pod is told, and the names that its parts share: files, headers, ports, the access log's line.

The operator renders `PickerConfig` into the pool's ConfigMap, the picker reads it. Names live here, because Envoy's
configuration (`render`), the picker and the operator must spell them alike. Not here: how the picker works
(`picker`), Envoy's configuration itself (`render.envoy`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

# Files in the memory-backed folder that Envoy and the picker share.
SHARED_DIR = "/run/sglpool-router"
AUTHZ_SOCKET = "authz.sock"
ADMIN_SOCKET = "admin.sock"
ACCESS_LOG = "access.log"
EDS_FILE = "eds.json"
LDS_FILE = "lds.json"
HOMES_FILE = "homes.jsonl"
LEAVING_MARKER = "leaving"
"""preStop of the router's containers writes it; the picker also sees its pod's deletion, if the API server is there."""
DRAINED_MARKER = "drained"
"""The picker writes it when the pod may end; preStop waits for it."""
CONFIG_PATH = "/etc/sglpool/router/picker.json"

# Ports of a router pod.
HTTP_PORT = 8000
HEALTH_PORT = 8001
STATE_PORT = 9000

# Envoy to picker: only these reach the picker, beside the harnesses' own session headers.
HEADER_KEY_SESSION = "x-sglpool-key-session"
HEADER_KEY_CONVERSATION = "x-sglpool-key-conversation"
HEADER_LENGTH = "x-sglpool-length"
HEADER_REQUEST_ID = "x-request-id"
# Picker to Envoy.
HEADER_DESTINATION = "x-sglpool-destination"
HEADER_PICK = "x-sglpool-pick"
HEADER_MEMO = "x-sglpool-memo"
"""Destination, a blank, and the key that was asked about (session, or session, tab, conversation): Envoy puts it on the
response, where its script reads it, so as to know the destination while the picker is away. No client sees it."""

METADATA_NAMESPACE = "sglpool"
METADATA_ANSWER = "answer"
"""Dynamic metadata in which the scan of the response leaves `ANSWER_FIELDS`, joined by commas, for the access log."""

ANSWER_FIELDS = ("finish", "prompt_tokens", "cached_tokens", "completion_tokens", "refused")
"""What a response says about itself. `-` stands for an absent value."""

CLUSTER_NAME = "engines"
"""Name of Envoy's cluster of engines, and of its load assignment in the EDS file."""

ACCESS_LOG_FIELDS: tuple[tuple[str, str], ...] = (
    ("pick", f"%REQ({HEADER_PICK})%"),
    ("upstream", "%UPSTREAM_HOST%"),
    ("status", "%RESPONSE_CODE%"),
    ("flags", "%RESPONSE_FLAGS%"),
    ("attempts", "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"),
    ("answer", f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:{METADATA_ANSWER})%"),
)
"""One line of the access log: fields by name, each with Envoy's operator for it. `-` stands for an absent value, and
the last is a list of `ANSWER_FIELDS`.

No field holds bytes that a client chose, so that tabs separate them safely: the pick id is the picker's own, the rest
Envoy's or the response scan's numbers and words.
"""

ACCESS_LOG_FORMAT = "\t".join(operator for _, operator in ACCESS_LOG_FIELDS) + "\n"
"""`text_format_source` of Envoy's file access log, written to `SHARED_DIR/access.log`.

Envoy's flags `--file-flush-interval-msec 20` and `--file-flush-min-size-kb 16` batch it. The picker renames the file
now and then and has Envoy open a new one (`POST /reopen_logs`), so that it stays small and no line is lost.
"""

ENVOY_LOG_FLAGS = ("--file-flush-interval-msec", "20", "--file-flush-min-size-kb", "16")


class PickerConfigError(ValueError):
    """A picker.json that cannot be used: which field, what was wrong, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerConfig:
    """The picker's configuration, the same for every router pod of a pool.

    What differs by pod comes from its environment: POD_NAME, POD_UID, POD_IP (downward API).

    Attributes:
        pool: Name of the pool.
        pool_uid: Its uid: the prefix of keys in the store, so that a pool made anew never meets old homes.
        namespace: Where its pods are.
        label_selector: Selects the pool's pods. Routers may be among them: then a router sees its own deletion and
            finds its siblings; engines are told by label `app.kubernetes.io/component: engine`.
        engine_port: Port of the engines.
        weights: Relative capacity by value of label `sglpool.io/gpu-type`; 1 for a type that is absent.
        max_concurrent_requests: Most requests on one replica, over all routers.
        max_queued_requests: The engines' own queue limit: a refused replica comes back below half of it.
        prefill_tokens_per_s: Prefill rate of a replica that has not shown its own yet.
        policy: Overrides of the policy's constants, by their names in `routing.types.PolicyConfig`.
        store_url: `redis://` URL of the shared memory of homes; empty: in process.
        store_password_file: File with its password; None: none.
        store_ca_file: File with the CA of its certificate; None: the system's.
        routers: Number of router pods, 0 when unknown.
        shared_dir: Folder shared with Envoy.
        api_keys_dir: Mounted Secret whose values are API keys; None: no authentication.
        tls_dir: Mounted Secret with tls.crt and tls.key; None: plain HTTP.
        listener: Settings of Envoy's listener, as `render.envoy` takes them.
        listen_host: Address of the picker's own endpoint.
        state_port: Port of the picker's own endpoint: /state, /metrics, /healthz.
        drain_grace_s: Longest wait for streams when the router's pod ends.
    """

    pool: str
    pool_uid: str
    namespace: str
    label_selector: str
    engine_port: int = 30000
    weights: Mapping[str, float] = field(default_factory=dict)
    max_concurrent_requests: int = 64
    max_queued_requests: int = 64
    prefill_tokens_per_s: float = 10_000.0
    policy: Mapping[str, float] = field(default_factory=dict)
    store_url: str = ""
    store_password_file: str | None = None
    store_ca_file: str | None = None
    routers: int = 0
    shared_dir: str = SHARED_DIR
    api_keys_dir: str | None = None
    tls_dir: str | None = None
    listener: Mapping[str, Any] = field(default_factory=dict)
    listen_host: str = "0.0.0.0"
    state_port: int = STATE_PORT
    drain_grace_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("max_concurrent_requests", "max_queued_requests", "prefill_tokens_per_s", "engine_port"):
            if not getattr(self, name) > 0:
                raise PickerConfigError(f"picker config: {name} is {getattr(self, name)}: it must be above 0")
        for gpu, weight in self.weights.items():
            if not weight > 0:
                raise PickerConfigError(f"picker config: weights.{gpu} is {weight}: a weight must be above 0")

    def to_json(self) -> str:
        """The file's text, keys sorted: the same configuration is the same text."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "str | None": (str, type(None)),
    "Mapping[str, float]": (dict,),
    "Mapping[str, Any]": (dict,),
}


def parse_picker_config(text: str) -> PickerConfig:
    """Read picker.json.

    Raises:
        PickerConfigError: Not JSON, or a field is missing, unknown or of the wrong type.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PickerConfigError(f"picker config: not JSON ({error}): render it again") from error
    if not isinstance(data, dict):
        raise PickerConfigError("picker config: the file must hold one JSON object")
    known = {item.name: item for item in fields(PickerConfig)}
    if unknown := sorted(data.keys() - known.keys()):
        raise PickerConfigError(
            f"picker config: unknown field {unknown[0]}: operator and picker must be of the same version"
        )
    for name, item in known.items():
        if name not in data:
            if item.default is MISSING and item.default_factory is MISSING:
                raise PickerConfigError(f"picker config: field {name} is missing")
        elif not isinstance(data[name], _KINDS[str(item.type)]) or isinstance(data[name], bool):
            raise PickerConfigError(f"picker config: {name} must be {item.type}, not {data[name]!r}")
    return PickerConfig(**data)
