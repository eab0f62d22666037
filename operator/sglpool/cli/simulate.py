"""`sglpool simulate`: run policies through the laboratory and print what they do. Not here: the simulation (`lab`)."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sglpool.lab.figures import Figures
from sglpool.lab.policies import ALL
from sglpool.lab.scenario import Scenario
from sglpool.lab.simulator import Simulator
from sglpool.lab.workload import Kind

DONE, INVALID = 0, 2
PIPE_WIDTH = 140
COLUMNS = ("policy", "load", "VMR", "<= 1", ">= 12", "hit / bound %", "TTFT p50 / p99 s", "req/s")
MOVES = ("moved", "warm moves", "forced")


def run_simulate(
    policies: Sequence[str],
    workload: str,
    *,
    replicas: int,
    sessions: int,
    seconds: float,
    warmup_s: float,
    seed: int,
    routers: int,
    poll_s: float,
    trace: str,
) -> int:
    """Simulate each policy on the same clients and print a table.

    Returns:
        The exit code: 0 done, 2 an argument is invalid.
    """
    table = Table(title=f"{workload}, {replicas} replicas, {seconds:.0f} s, seed {seed}", title_justify="left")
    for column in (*COLUMNS, *MOVES):
        table.add_column(column, justify="left" if column == "policy" else "right")
    try:
        for policy in policies or list(ALL):
            scenario = Scenario(
                policy=policy,
                kind=Kind(workload),
                replicas=replicas,
                sessions=sessions,
                seconds=seconds,
                warmup_s=warmup_s,
                seed=seed,
                routers=routers,
                poll_s=poll_s,
                trace=trace,
            )
            table.add_row(policy, *_cells(Simulator(scenario).run()))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return INVALID
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False).print(table)
    return DONE


def _cells(found: Figures) -> list[str]:
    return [
        f"{found.mean_load:.2f}",
        f"{found.vmr:.2f}",
        f"{found.light_share:.1%}",
        f"{found.heavy_share:.2%}",
        f"{found.hit_rate * 100:.1f} / {found.hit_bound * 100:.1f}",
        f"{found.ttft_p50_s:.2f} / {found.ttft_p99_s:.1f}",
        f"{found.requests_per_s:.1f}",
        f"{found.moved_share:.1%}",
        f"{found.warm_moved_share:.1%}",
        str(found.forced_warm_moves),
    ]
