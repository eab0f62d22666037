"""What the demo measures meanwhile: the recording, the agents' sessions, and one line of figures about now.

Not here: the story (`demo`), and the page that comes of it (`report`).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path

from sglpool import __version__
from sglpool.sandbox.apiserver import ApiServer
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.recorder import Recorder
from sglpool.sandbox.report import render
from sglpool.sandbox.report_data import Chapter, Recording, Request, Sample
from sglpool.sandbox.report_figures import hit_rate, percentile
from sglpool.sandbox.report_svg import clock
from sglpool.sandbox.traffic import Mix, Traffic

NAMESPACE = "default"
RECENT_S = 10.0
_BEFORE = Sample(at_s=0.0)


class Show:
    """One run, as it is recorded.

    Args:
        api: The API server.
        pool: Name of the pool.
        mix: What the agents are like.
        start_speed: How many times faster than life engines start; None for the speed of the mix.
    """

    def __init__(self, api: ApiServer, pool: str, mix: Mix, *, start_speed: float | None = None) -> None:
        self._pool = pool
        self._mix = mix
        self._start_speed = start_speed
        self._model = ""
        self._began_s = time.monotonic()
        self._began = f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
        self._chapters: list[Chapter] = []
        self.traffic: Traffic | None = None
        self._recorder = Recorder(api, pool, NAMESPACE, self.now_s, lambda: self.sessions)

    def now_s(self) -> float:
        """Seconds since the recording began."""
        return time.monotonic() - self._began_s

    def start(self) -> None:
        """Begin to read."""
        self._recorder.start()

    def stop(self) -> None:
        """End the agents and the readings.

        Raises:
            SandboxError: The agents' client failed.
        """
        try:
            if self.traffic is not None:
                self.traffic.stop()
        finally:
            self._recorder.stop()

    def chapter(self, text: str) -> None:
        """Mark this moment."""
        self._chapters.append(Chapter(at_s=self.now_s(), text=text))

    def begin(self, address: str, model: str) -> Traffic:
        """Send agents to work against this address; there is no session yet."""
        self._model = model
        self.traffic = Traffic(address, model, self._mix, self.now_s)
        self.traffic.start()
        return self.traffic

    @property
    def sessions(self) -> int:
        """Agent sessions that are wanted now."""
        return self.traffic.sessions if self.traffic else 0

    @property
    def now(self) -> Sample:
        """The last reading."""
        return self._recorder.latest or _BEFORE

    def seen(self, condition: Callable[[Sample], bool]) -> Callable[[], bool]:
        """Whether a reading that was taken after this call fulfils the condition."""
        begin_s = self.now_s()
        return lambda: self.now.at_s >= begin_s and condition(self.now)

    def requests(self, since_s: float = 0.0) -> list[Request]:
        """Requests that have ended and were sent since then."""
        return [request for request in self.traffic.requests() if request.at_s >= since_s] if self.traffic else []

    @property
    def failed(self) -> int:
        """Requests that have failed, whenever they were sent."""
        return sum(bool(request.problem) for request in self.requests())

    def line(self) -> str:
        """Now, in one line that fits a terminal of 80 columns."""
        now = self.now
        parts = [f"{clock(self.now_s())}  {now.ready}/{now.wanted} ready"]
        if now.in_flight is not None and self.traffic is not None:
            parts.append(f"{now.in_flight} in flight (target {now.capacity})")
        recent = self.requests(self.now_s() - RECENT_S)
        answered_s = [request.first_token_s for request in recent if not request.problem]
        if answered_s:
            p50_s, p99_s = percentile(answered_s, 0.5) or 0.0, percentile(answered_s, 0.99) or 0.0
            parts.append(f"TTFT {1000 * p50_s:.0f} ms, p99 {1000 * p99_s:.0f}")
            parts.append(f"{100 * (hit_rate(recent) or 0.0):.0f}% cached")
        failed = len(recent) - len(answered_s)
        return ", ".join(parts) + (f", {failed} failed" if failed else "")

    def recording(self) -> Recording:
        """Everything so far."""
        return Recording(
            pool=self._pool,
            model=self._model or self._pool,
            speed=self._mix.speed,
            start_speed=self._start_speed,
            began=self._began,
            version=__version__,
            samples=self._recorder.samples,
            requests=tuple(self.requests()),
            events=self._recorder.events,
            chapters=tuple(self._chapters),
            missed=self._recorder.missed,
        )

    def write_report(self, path: Path) -> None:
        """The page of this run.

        Raises:
            SandboxError: It cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render(self.recording()), encoding="utf-8")
        except OSError as error:
            raise SandboxError(f"cannot write the report: {error}; name another file with --report") from error
