"""What every benchmark shares: figures with their goals, a table on the terminal and a file of results.

Not here: how anything is measured. A figure without a goal is context; a goal that was missed is said as plainly
as one that was met.
"""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sglpool import __version__

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure.

    Attributes:
        figure: What was measured, in words.
        value: The figure.
        unit: Its unit.
        goal: The largest value that meets the goal, None without a goal.
        peer: What it is compared with, measured in the same run; empty without one.
        peer_value: The peer's figure, in the same unit unless `peer` names another.
    """

    figure: str
    value: float
    unit: str
    goal: float | None = None
    peer: str = ""
    peer_value: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met, None without a goal."""
        return None if self.goal is None else self.value <= self.goal


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was really seen."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(percent / 100 * len(ranked)) - 1)]


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the figures as a table, and how many goals were missed."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure", overflow="fold")
    for name in ("value", "unit", "goal"):
        table.add_column(name, justify="left" if name == "unit" else "right")
    table.add_column("compared with", overflow="fold")
    table.add_column("", justify="left")
    for row in rows:
        table.add_row(
            row.figure,
            _number(row.value),
            row.unit,
            "" if row.goal is None else f"<= {_number(row.goal)}",
            row.peer if row.peer_value is None else f"{row.peer}: {_number(row.peer_value)}",
            {None: "", True: "met", False: "[bold red]MISSED[/]"}[row.met],
        )
    console = Console(width=None if os.isatty(1) else 140)
    console.print(table)
    missed = [row.figure for row in rows if row.met is False]
    goals = sum(row.goal is not None for row in rows)
    console.print(f"{goals - len(missed)} of {goals} goals met." + "".join(f"\nMissed: {figure}" for figure in missed))


def write_results(path: Path, *, benchmark: str, settings: dict[str, float], rows: Sequence[Row]) -> None:
    """Write the figures with what is needed to judge them: when, which settings, which machine."""
    found = {
        "benchmark": benchmark,
        "sglpool": __version__,
        "measured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "settings": settings,
        "rows": [
            {**asdict(row), "value": _rounded(row.value), "peer_value": _rounded(row.peer_value), "met": row.met}
            for row in rows
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def say(line: str) -> None:
    """Tell whoever waits how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
