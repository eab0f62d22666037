"""Values of the chart that turn on everything that it can do."""

from __future__ import annotations

from typing import Any

DIGEST = "sha256:" + "0" * 64
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example.com/sglpool", "digest": DIGEST},
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 2,
    "leaderElection": True,
    "operator": {"env": [{"name": "EXTRA", "value": "1"}], "logLevel": "debug"},
    "gpuTypes": {"B200": {"node_label_key": "example.com/gpu", "node_label_values": ["b200"]}},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"pool": "cpu"},
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "commonLabels": {"team": "inference"},
    "podLabels": {"scrape": "no"},
    "podAnnotations": {"note": "yes"},
    "proxy": {"http": "http://p:1", "https": "http://p:2", "noProxy": "example.com"},
    "serviceAccount": {"annotations": {"role": "r"}},
    "rbac": {"prometheusTokens": [{"namespace": "ml", "name": "prometheus-token"}]},
    "networkPolicy": {"enabled": True, "extraEgress": [{"ports": [{"protocol": "TCP", "port": 9090}]}]},
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "podMonitors": {"enabled": True},
        "rules": {"enabled": True, "runbooks": "https://wiki.example.com/runbooks/"},
        "dashboards": {"enabled": True},
    },
}
