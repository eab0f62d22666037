"""Dashboards out of compact definitions, and pictures of them: what the chart ships, and a way to look at it.

`python -m tools.observability write` writes `charts/sglpool/dashboards`; `draw` shows them with figures of a
Prometheus. Not here: alerts, which are written by hand in `charts/sglpool/rules`.
"""
