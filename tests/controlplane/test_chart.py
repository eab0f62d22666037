"""Every object of the chart with everything turned on: a real API server takes it, and nothing unknown is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.chart_values import EVERYTHING
from support.helm import Helm, helm_binary
from support.kubectl import Kubectl

pytestmark = pytest.mark.controlplane


def test_the_api_server_takes_every_object_strictly(kubectl: Kubectl, namespace: str, tmp_path: Path) -> None:
    values = json.dumps({**EVERYTHING, "rbac": {"prometheusTokens": [{"namespace": namespace, "name": "token"}]}})
    file = tmp_path / "values.yaml"
    file.write_text(values)
    objects = Helm(helm_binary(4)).template("-f", str(file), namespace=namespace)
    foreign = [o for o in objects if o["apiVersion"].startswith("monitoring.coreos.com/")]
    own = [o for o in objects if o not in foreign and o["kind"] != "CustomResourceDefinition"]
    assert {o["kind"] for o in foreign} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}

    # Admission looks the account of a pod up.
    kubectl("create", "serviceaccount", "sglpool", "-n", namespace)
    text = "\n---\n".join(json.dumps(o) for o in own)
    kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-", input=text
    )
