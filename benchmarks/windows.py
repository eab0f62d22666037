"""Hours of a fluid day, simulated request by request: whether the fluid model of the autoscaler can be believed.

Three hours of the day, chosen by rule: where the load rises most, where it is highest, where it falls most. Clients, as
many as make that load; the routing policy and the operator's decision in a closed loop; replicas that take ten minutes
to start and ten to drain. The fluid model is asked twice: on its own load, and on the load that the requests made.
The two differ while a pool is overloaded: who waits longer is in flight for longer, most of all people, since agents
that never pause are nearly always in flight.
Not here: whole days (`autoscaler`).
"""

from collections.abc import Callable, Sequence

from benchmarks.common import Row

from sglpool.lab.fluid import Day, Fleet
from sglpool.lab.fluid_joined import Joined, run_window
from sglpool.lab.fluid_scalers import Ours
from sglpool.lab.fluid_windows import Entry, enter, windows_of
from sglpool.lab.workload import Kind

SEED = 1
"""Of the day, and of the clients."""


def window_rows(
    windows: int, kinds: Sequence[Kind], fleet_of: Callable[[float], Fleet], scaler_of: Callable[[Fleet], Ours]
) -> list[Row]:
    """The figures of the first so many windows of a day.

    Args:
        windows: how many.
        kinds: what clients are like, in runs of their own.
        fleet_of: the replicas for a load.
        scaler_of: the autoscaler of a fleet.
    """
    day = Day(seed=SEED)
    rows = []
    for window in windows_of(day)[:windows]:
        fleet = fleet_of(day.load()[0])
        entry = enter(day, window, fleet, scaler_of(fleet))
        for kind in kinds:
            rows += _rows(f"{window.name}, {_clock(window.begin_s)}, {kind}", entry, run_window(entry, kind, SEED))
    return rows


def _rows(name: str, entry: Entry, found: Joined) -> list[Row]:
    figures = found.figures
    return [
        Row(
            figure=f"{name}: time with more than 1.2 of the target",
            value=found.above * 100,
            unit="%",
            peer="fluid model",
            peer_value=entry.outcome.above * 100,
        ),
        Row(
            figure="the same",
            value=found.above * 100,
            unit="%",
            peer="fluid model on the load that the requests made",
            peer_value=found.fluid_above * 100,
        ),
        Row(
            figure=f"{name}: mean requests in flight",
            value=found.mean_in_flight,
            unit="1",
            peer="fluid model",
            peer_value=_mean(entry.load),
        ),
        Row(figure=f"{name}: TTFT p99", value=figures.ttft_p99_s, unit="s"),
        Row(
            figure=f"{name}: cache hits below perfect affinity",
            value=(figures.hit_bound - figures.hit_rate) * 100,
            unit="points",
        ),
        Row(
            figure=f"{name}: warm conversations that a drain forced to move, at work",
            value=figures.forced_at_work,
            unit="1",
            peer="at a pause",
            peer_value=figures.forced_warm_moves - figures.forced_at_work,
        ),
        Row(figure=f"{name}: requests refused or cut", value=figures.refused + found.cut, unit="1"),
    ]


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
