"""States of the server: starting, up, unhealthy, ending; its health checks, its ends and the machine's faults.

Readings of a real SGLang decide: who is told 503 when, how long a drain lasts, and that the end holds up the whole
process. Not here: endpoints (admin.py) and sockets (server.py).
"""

from __future__ import annotations

import asyncio
import enum
import os
import random
import signal
import time
from collections.abc import Callable

from sglpool.sandbox.engine.clock import ModelClock
from sglpool.sandbox.engine.errors import ApiError
from sglpool.sandbox.engine.generation import Generation
from sglpool.sandbox.engine.machine import FaultsFile, die_by_kill
from sglpool.sandbox.engine.spec import Spec
from sglpool.sandbox.engine.startup import Console, rank_failure

HEALTH_LOOK_S = 1.0
"""A health check looks for output this often, in wall time: no answer comes earlier."""
FAULT_POLL_S = 0.2
DRAIN_POLL_S = 5.0
"""Model seconds between two looks of the drain, whose phase is that of the process."""
TAIL_S = (2.0, 8.0)
"""Model seconds in which the port is open and nothing answers, before the end."""
EXIT_S = 0.7
"""Model seconds from the closed port to the end of the process."""
DUMP_S = 65.0
"""Model seconds that an unhealthy server takes to end, in which nothing answers."""
FORCED_END_S = 10.0
"""Model seconds until the scheduler is gone when the drain is skipped."""
_WARM_UP_PROMPT = b"The capital city of France is"
_WARM_UP_TOKENS = 8


class Status(enum.Enum):
    """What the health checks of the server have found."""

    STARTING = "Starting"
    UP = "Up"
    UNHEALTHY = "UnHealthy"


class Lifecycle:
    """State of one server."""

    def __init__(self, spec: Spec, clock: ModelClock, generation: Generation, close_port: Callable[[], None]) -> None:
        """Begin as starting, or up without a warm-up; `close_port` is called when no more connections are taken."""
        self._warms_up = not spec.args.get("skip_server_warmup")
        self.status = Status.STARTING if self._warms_up else Status.UP
        self.terminating = False
        self.ended = asyncio.Event()
        """Set when the process shall exit with code 0."""
        self.forced = False
        """The end comes when clients have gone, not before."""
        self._spec = spec
        self._clock = clock
        self._generation = generation
        self._driver = generation.driver
        self._close_port = close_port
        self._console = Console()
        self._faults_file = FaultsFile(spec.machine)
        self._probes = 0
        self._started_s = clock.now_s()
        self._limit_s = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT") or 20.0)
        self._generates = os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() not in ("0", "false")
        self._end: asyncio.Task[None] | None = None

    # Answers to probes.

    def ready(self) -> bool:
        """Whether /ready is 200; known at once."""
        return self.status is Status.UP and not self.terminating

    async def healthy(self, *, generate: bool) -> bool:
        """Whether /health is 200: the scheduler has shown output since the question was asked.

        Never known before a second has passed. An idle engine gets a request of one token; a busy one shows life with
        its next step.
        """
        if self.terminating or self.status is Status.STARTING:
            return False
        if not generate and not self._generates:
            return True
        asked_s = time.monotonic()
        rid = self._probe()
        try:
            while time.monotonic() < asked_s + self._limit_s:
                await asyncio.sleep(HEALTH_LOOK_S)
                if self._driver.last_output_wall_s > asked_s:
                    self.status = Status.UP
                    return True
        finally:
            self._driver.abort(rid)
        self.status = Status.UNHEALTHY
        self.log(
            f"Health check failed. Server couldn't get a response from detokenizer for last {self._limit_s:g} seconds."
        )
        return False

    def _probe(self) -> str:
        self._probes += 1
        rid = f"HEALTH_CHECK_{self._probes}"
        self._driver.catch_up()
        if self._driver.idle() and not self._driver.stopped:
            self._generation.submit_probe(rid)
        return rid

    # Start.

    async def warm_up(self) -> None:
        """The server's own first request, unless it is skipped; then the server is up."""
        if self._warms_up:
            try:
                stream = self._generation.submit_own(_WARM_UP_PROMPT, _WARM_UP_TOKENS, images=int(self._spec.vision))
            except ApiError as error:
                self.log(f"Initialization failed. warmup error: {error}")
                die_by_kill()
            while stream.finished is None:
                await stream.wait()
        self.status = Status.UP
        self.log("The server is fired up and ready to roll!")

    # Faults.

    async def watch_faults(self) -> None:
        """Apply the machine's faults as they come and go."""
        known = None
        while True:
            faults = self._faults_file.read()
            if faults != known:
                known = faults
                if faults.deadly:
                    self._console.rank_died(*rank_failure(faults))
                    die_by_kill()
                self._driver.apply(faults)
                if faults.hang:
                    self._generation.open_gate.clear()
                else:
                    self._generation.open_gate.set()
            await asyncio.sleep(FAULT_POLL_S)

    # End.

    def terminate(self) -> None:
        """SIGTERM: probes see it at once; how the server ends depends on its health and its environment."""
        if self.terminating:
            return
        self.terminating = True
        if self.status is Status.UNHEALTHY:
            ending = self._dump()
        elif os.environ.get("SGL_FORCE_SHUTDOWN", "").lower() in ("1", "true"):
            ending = self._force()
        else:
            ending = self._drain()
        self._end = asyncio.get_running_loop().create_task(ending)

    async def _drain(self) -> None:
        """Wait for the last request without any limit, then hold up the process, then go."""
        while True:
            await self._clock.sleep(DRAIN_POLL_S - (self._clock.now_s() - self._started_s) % DRAIN_POLL_S)
            left = list(self._generation.in_flight)
            self.log(f"Gracefully exiting... Remaining number of requests {len(left)}. Remaining requests {left[:16]}.")
            if not left:
                break
        # A scheduler that ends holds up SGLang's event loop: the kernel takes connections, nobody reads them.
        self._clock.block(random.Random(self._spec.machine.pod + str(os.getpid())).uniform(*TAIL_S))
        self._close_port()
        await self._clock.sleep(EXIT_S)
        self.ended.set()

    async def _force(self) -> None:
        """Without a drain the scheduler goes, and the process stays for as long as a client holds a connection."""
        await self._clock.sleep(2.0)
        self.log("Signal SIGTERM received with SGL_FORCE_SHUTDOWN. Force exiting.")
        await self._clock.sleep(FORCED_END_S - 2.0)
        self._driver.stopped = True
        self.forced = True
        self.ended.set()

    async def _dump(self) -> None:
        """After a failed health check the server neither drains nor exits soon: it collects a dump of the crash."""
        self.log("Signal SIGTERM received while health check failed. Force exiting.")
        await self._clock.sleep(1.0)
        self.log("Waiting 60.0 seconds for CUDA coredumps before exiting.")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._clock.block(DUMP_S)
        die_by_kill()

    def log(self, text: str) -> None:
        """One line in SGLang's form."""
        self._console.line(text)
