"""How far behind its time the driver of the model says it is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

from sglpool.sandbox.engine.clock import ModelClock
from sglpool.sandbox.engine.driver import Driver

HELD_UP_S = 0.3


class HeldUp:
    """A model with two steps, during the first of which the machine does something else."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(rates=None)
        self.steps = 0
        self.over = asyncio.Event()

    def next_event_s(self) -> float | None:
        return 0.001 * (self.steps + 1) if self.steps < 2 else None

    def advance(self, to_s: float) -> list[Any]:
        del to_s
        self.steps += 1
        if self.steps == 1:
            time.sleep(HELD_UP_S)
        else:
            self.over.set()
        return []


def test_who_is_held_up_while_it_computes_is_behind() -> None:
    model = HeldUp()

    async def drive() -> float:
        driver: Any = Driver(model, ModelClock(speed=1.0), None)  # type: ignore[arg-type]
        running = asyncio.ensure_future(driver.run())
        async with asyncio.timeout(10):
            await model.over.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return float(driver.lag_s())

    assert asyncio.run(drive()) >= 0.9 * HELD_UP_S
