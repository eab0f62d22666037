"""Model time: wall time since the start, times a speed. All of the engine's own durations are in it.

What a client of the HTTP API times stays in wall time. Not here: who waits for what.
"""

from __future__ import annotations

import asyncio
import time


class ModelClock:
    """Seconds of the model since the server's start."""

    def __init__(self, speed: float) -> None:
        """Start at 0 now; `speed` model seconds pass in one second."""
        if not speed > 0:
            raise ValueError(f"speed must be above 0, not {speed!r}.")
        self.speed = speed
        self._start_s = time.monotonic()
        self._unix_start_s = time.time()

    def now_s(self) -> float:
        """Model seconds since the start."""
        return (time.monotonic() - self._start_s) * self.speed

    def wall_until_s(self, at_s: float) -> float:
        """Wall seconds until a model time; negative when it has passed."""
        return self._start_s + at_s / self.speed - time.monotonic()

    def unix_s(self, at_s: float) -> float:
        """The wall clock's date at a model time."""
        return self._unix_start_s + at_s / self.speed

    async def sleep(self, duration_s: float) -> None:
        """Sleep for a duration of the model."""
        await asyncio.sleep(duration_s / self.speed)

    def block(self, duration_s: float) -> None:
        """Hold up the whole process for a duration of the model: nothing is served meanwhile."""
        time.sleep(duration_s / self.speed)
