"""Secrets that a pool needs, each with a value that is found wherever it is told.

Not here: looking for them (`test_live`).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from support.certificates import write_certificate
from support.kubectl import Kubectl

Json = dict[str, Any]

API_KEY = "planted-api-key-3f1c"
HUB_TOKEN = "hf_plantedHubToken9d2e"
STORE_PASSWORD = "planted-store-password-77aa"
ENGINE_SECRET = "planted-engine-variable-5b5b"
PROMETHEUS_TOKEN = "planted-prometheus-token-c0c0"


def plant(kubectl: Kubectl, namespace: str, folder: Path) -> dict[str, str]:
    """Create the Secrets; returns what must never be seen, by what it is."""
    write_certificate(folder)
    key = (folder / "tls.key").read_text()
    contents: dict[str, dict[str, str]] = {
        "api-keys": {"anna": API_KEY},
        "hub": {"token": HUB_TOKEN},
        "store": {"password": STORE_PASSWORD},
        "engine": {"value": ENGINE_SECRET},
        "prometheus": {"token": PROMETHEUS_TOKEN},
        "tls": {"tls.crt": (folder / "tls.crt").read_text(), "tls.key": key},
    }
    for name, data in contents.items():
        encoded = {field: base64.b64encode(value.encode()).decode() for field, value in data.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
        kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(secret))
    planted = {
        "API key": API_KEY,
        "token of the hub": HUB_TOKEN,
        "password of the store": STORE_PASSWORD,
        "variable of the engine": ENGINE_SECRET,
        "token of the Prometheus": PROMETHEUS_TOKEN,
        "TLS key": key.splitlines()[1],
    }
    return planted | {f"{what}, encoded": base64.b64encode(value.encode()).decode() for what, value in planted.items()}
