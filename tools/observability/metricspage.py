"""`docs/metrics.md`: every metric in tables, made from what the processes themselves say of their metrics.

Not here: what of it is drawn (the dashboards) and what of it wakes people (`charts/sglpool/rules`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric as Exposed

from sglpool.controller import poolfigures
from sglpool.controller.metrics import Metrics as OperatorMetrics
from sglpool.picker.app import PickerApp, PickerOptions
from sglpool.picker.watch import Account
from sglpool.routing.pickerconfig import PickerConfig
from sglpool.sandbox.engine.metric_table import FAMILIES, SCOPE_LABELS
from tools.observability.envoymetrics import ENVOY


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One line of a table.

    Attributes:
        name: As Prometheus knows it; of a histogram without `_bucket`.
        kind: counter, gauge or histogram.
        labels: Those of its own, without what a scrape adds.
        text: What it means.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def unit(self) -> str:
        """Of its values."""
        for pattern, unit in _UNITS:
            if re.search(pattern, self.name):
                return unit
        return "count"


_UNITS = (
    (r"^envoy_http_downstream_rq_time$", "ms"),
    (r"timestamp_seconds|start_time_seconds", "Unix time, s"),
    (r"_seconds(_total)?$|_server_uptime$", "s"),
    (r"_bytes(_total)?$|memory_physical_size$", "bytes"),
    (r"_gb$", "GB"),
    (r"gen_throughput$", "tokens/s"),
    (r"usage$|_rate$|_ratio$|_occupancy$|utilization$", "share"),
    (r"variance_to_mean$", "ratio"),
    (r"tokens|context_len|accept_length|_cap_length|page_size|seq_lens", "tokens"),
    (r"_condition$|_reason$|_info$|healthy$|draining$|available$|is_cuda_graph$", "flag"),
)
_TRIMMED = re.compile(r"(_total|_created)$")


def operator_metrics() -> list[Metric]:
    """What the operator exports."""
    own = list(_of_registry(OperatorMetrics().registry))
    figures = [
        Metric(name=name, kind="gauge", labels=("namespace", "pool", *labels), text=text)
        for name, (text, labels) in poolfigures._FAMILIES.items()
    ]
    return sorted([*own, *figures], key=lambda metric: metric.name)


def picker_metrics() -> list[Metric]:
    """What the picker exports."""
    registry = PickerApp(_OPTIONS).metrics.registry
    return sorted(_of_registry(registry), key=lambda metric: metric.name)


_OPTIONS = PickerOptions(
    config=PickerConfig(pool="p", pool_uid="u", namespace="n", label_selector=""),
    config_path=Path(),
    account=Account(address=""),
    pod_name="",
    pod_uid="",
)
"""Of a picker that never runs."""


def engine_metrics() -> list[Metric]:
    """What SGLang exports."""
    return [
        Metric(name=each.full_name, kind=each.kind, labels=(*SCOPE_LABELS[each.scope], *each.labels), text=each.help)
        for each in FAMILIES
    ]


def _of_registry(registry: CollectorRegistry) -> Iterator[Metric]:
    labels = {
        own._name: tuple(own._labelnames) for own in registry._collector_to_names if isinstance(own, MetricWrapperBase)
    }
    for family in registry.collect():
        if family.name in poolfigures._FAMILIES:
            continue
        yield Metric(
            name=exported_name(family),
            kind=family.type,
            labels=labels.get(family.name, _labels_of(family)),
            text=family.documentation,
        )


def exported_name(family: Exposed) -> str:
    """The name that queries use."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels_of(family: Exposed) -> tuple[str, ...]:
    return tuple(getattr(family, "_labelnames", ()))


_HEAD = """# Metrics

Made from what the processes say of themselves, by `python -m tools.observability write`. Dashboards are in
`charts/sglpool/dashboards`, alerts in `charts/sglpool/rules` with [a page for each](runbooks/README.md).

## Where they come from

| who | where | for |
|---|---|---|
| operator | port 8080, `/metrics` | pools, scaling, the operator's own work |
| picker | port 9000 (`state`) of router pods, `/metrics` | decisions, loads, homes |
| Envoy | port 8001 (`health`) of router pods, `/metrics` | requests of clients; nothing else of its admin |
| SGLang | port 30000 of engine pods, `/metrics` | requests, caches, speeds |

Dashboards and alerts need these labels besides: **namespace** and **pool** on everything that is a pool's, **pod** on
engines, **router** on the two of a router pod. The operator's and the picker's series carry some of them themselves,
which have to be honoured. Some of SGLang's carry a `pool` of their own that must not be: it becomes `exported_pool`.
The chart's monitors do all this. Without them, as a scrape configuration of Prometheus:

```yaml
scrape_configs:
- job_name: sglpool-operator
  honor_labels: true
  kubernetes_sd_configs: [{role: pod}]
  relabel_configs:
  - source_labels:
    - __meta_kubernetes_pod_label_app_kubernetes_io_name
    - __meta_kubernetes_pod_label_app_kubernetes_io_component
    - __meta_kubernetes_pod_container_port_name
    regex: sglpool;operator;http
    action: keep
- job_name: sglpool-engines
  kubernetes_sd_configs: [{role: pod}]
  relabel_configs:
  - source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_component, __meta_kubernetes_pod_container_port_name]
    regex: engine;http
    action: keep
  - {source_labels: [__meta_kubernetes_pod_label_sglpool_io_pool], regex: (.+), target_label: pool}
  - {source_labels: [__meta_kubernetes_pod_label_sglpool_io_gpu_type], target_label: gpu}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
- job_name: sglpool-routers
  honor_labels: true
  kubernetes_sd_configs: [{role: pod}]
  relabel_configs:
  # The picker's port, and Envoy's.
  - source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_component, __meta_kubernetes_pod_container_port_name]
    regex: router;state|router;health
    action: keep
  - {source_labels: [__meta_kubernetes_pod_label_sglpool_io_pool], regex: (.+), target_label: pool}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: router}
```

Names of SGLang begin with `sglang:`. It repeats some series for every rank (`tp_rank`): take the maximum over ranks
before you sum. Some families are there only after the first event of their kind, such as an abort.
"""


_LOGS = """## Logs and traces

The operator logs as text, or with `--log-json` as one JSON object a line; a picker in a pod always does that. What
is about a pool has it in the field `pool`, as NAMESPACE/NAME. No secret is ever logged.

A request keeps its `x-request-id` and its `traceparent` from the client through Envoy to the engine; without an
`x-request-id` Envoy makes one. It is in the answer, so that a client can name a request that went wrong. SGLang takes
up a `traceparent` where its tracing is on (`engine.extraArgs`).
"""


def page() -> str:
    """The text of `docs/metrics.md`."""
    parts = [
        _HEAD,
        _table("Operator", operator_metrics()),
        _table("Picker", picker_metrics()),
        _table("Envoy", ENVOY_METRICS),
        _table("SGLang 0.5.23", engine_metrics()),
        _LOGS,
    ]
    return "\n".join(parts)


ENVOY_METRICS = [Metric(name=name, kind=kind, labels=labels, text=text) for name, kind, labels, text in ENVOY]


def _table(title: str, metrics: Iterable[Metric]) -> str:
    lines = [f"## {title}", "", "| name | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for each in metrics:
        labels = ", ".join(each.labels)
        text = each.text.replace("|", "\\|")
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.unit} | {text} |")
    return "\n".join(lines) + "\n"
