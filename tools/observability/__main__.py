"""`python -m tools.observability`: `write` the dashboards of the chart and `docs/metrics.md`, or `draw` dashboards.

`draw` asks a Prometheus for the figures of every panel and leaves one page for each dashboard.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from tools.observability import autoscaler, operator, pool, router
from tools.observability.draw import page_of
from tools.observability.grafana import text_of
from tools.observability.metricspage import page
from tools.observability.query import Place, series_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "charts/sglpool/dashboards"
PAGE = ROOT / "docs/metrics.md"
DASHBOARDS = (pool.DASHBOARD, router.DASHBOARD, autoscaler.DASHBOARD, operator.DASHBOARD)
STEPS = 120


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tools.observability", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="write them anew")
    drawing = commands.add_parser("draw", help="draw dashboards with figures of a Prometheus")
    drawing.add_argument("--prometheus", required=True, metavar="URL")
    drawing.add_argument("--namespace", required=True)
    drawing.add_argument("--pool", required=True)
    drawing.add_argument("--minutes", type=float, default=180.0, help="how far back")
    drawing.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args(words)
    if arguments.command == "write":
        write()
    else:
        draw(arguments)


def write() -> None:
    """Write every generated file."""
    FOLDER.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.uid}.json").write_text(text_of(dashboard), encoding="utf-8")


def draw(arguments: argparse.Namespace) -> None:
    """Write a page for each dashboard."""
    end_s, span_s = time.time(), 60 * arguments.minutes
    step_s = max(1.0, span_s / STEPS)
    place = Place(
        url=arguments.prometheus.rstrip("/"),
        begin_s=end_s - span_s,
        end_s=end_s,
        step_s=step_s,
        variables={
            "namespace": arguments.namespace,
            "pool": arguments.pool,
            "__rate_interval": f"{max(120.0, 4 * step_s):.0f}s",
        },
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        found = [series_of(panel, place) for panel in dashboard.panels]
        path = arguments.out / f"{dashboard.uid}.html"
        path.write_text(page_of(dashboard, found), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
