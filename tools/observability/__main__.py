"""`python -m tools.observability write`: the dashboards of the chart, and `docs/metrics.md`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.observability import autoscaler, operator, pool, router
from tools.observability.grafana import text_of
from tools.observability.metricspage import page

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "charts/sglpool/dashboards"
PAGE = ROOT / "docs/metrics.md"
DASHBOARDS = (pool.DASHBOARD, router.DASHBOARD, autoscaler.DASHBOARD, operator.DASHBOARD)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tools.observability", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="write them anew")
    parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.uid}.json").write_text(text_of(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
