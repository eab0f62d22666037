"""Hours of a fluid day that are looked at more closely: which ones, and the state in which the fluid model enters them.

Chosen by rule, so that nobody picks the kind ones. Not here: the simulation of such an hour request by request
(`fluid_joined`).
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sglpool.lab.fluid import DAY_S, STEP_S, Day, Fleet, Outcome, simulate
from sglpool.lab.fluid_scalers import Ours

HOUR_S, GRID_S = 3600.0, 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a day.

    Attributes:
        name: what it is.
        begin_s: when it begins.
        seconds: how long it is.
    """

    name: str
    begin_s: float
    seconds: float = HOUR_S

    @property
    def steps(self) -> slice:
        """Its steps among those of the day."""
        first = round(self.begin_s / STEP_S)
        return slice(first, first + round(self.seconds / STEP_S))


@dataclass(slots=True, kw_only=True)
class Entry:
    """A window with the pool as the fluid model brings it there, and what the model says of it.

    Attributes:
        window: the window.
        fleet: the replicas at its beginning.
        scaler: the autoscaler with its memory at its beginning.
        load: concurrent requests without noise, at every step: real clients make noise of their own.
        outcome: what the fluid model makes of the window, on the day's load with its noise.
    """

    window: Window
    fleet: Fleet
    scaler: Ours
    load: Sequence[float]
    outcome: Outcome

    def again(self, load: Sequence[float]) -> Outcome:
        """What the fluid model makes of the window under another load."""
        return _through(self.window, self.fleet, self.scaler, load)


def windows_of(day: Day) -> list[Window]:
    """The hours in which the load rises most before noon, is highest, and falls most after noon; noise aside."""
    load = replace(day, noise=0.0).load()
    begins = [GRID_S * number for number in range(int((DAY_S - HOUR_S) / GRID_S) + 1)]
    noon_s = DAY_S / 2

    def rise(window: Window) -> float:
        values = load[window.steps]
        return max(values) - values[0]

    def fall(window: Window) -> float:
        values = load[window.steps]
        return max(values) - values[-1]

    def mean(window: Window) -> float:
        return sum(load[window.steps])

    return [
        _best("morning", [begin_s for begin_s in begins if begin_s + HOUR_S <= noon_s], rise),
        _best("peak", begins, mean),
        _best("evening", [begin_s for begin_s in begins if begin_s >= noon_s], fall),
    ]


def _best(name: str, begins: Sequence[float], of: Callable[[Window], float]) -> Window:
    return max((Window(name=name, begin_s=begin_s) for begin_s in begins), key=of)


def enter(day: Day, window: Window, fleet: Fleet, scaler: Ours) -> Entry:
    """Run a day of the fluid model up to a window, and a copy of it through the window.

    Args:
        day: the day.
        window: where to.
        fleet: the replicas at the beginning of the day; changed.
        scaler: the autoscaler, without memory; changed.
    """
    load, steps = day.load(), window.steps
    simulate(load[: steps.start], fleet, scaler)
    outcome = _through(window, fleet, scaler, load[steps])
    calm = replace(day, noise=0.0).load()[steps]
    return Entry(window=window, fleet=fleet, scaler=scaler, load=calm, outcome=outcome)


def _through(window: Window, fleet: Fleet, scaler: Ours, load: Sequence[float]) -> Outcome:
    return simulate(load, copy.deepcopy(fleet), copy.deepcopy(scaler), begin_s=window.begin_s)
