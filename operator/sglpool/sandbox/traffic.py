"""The demo's coding agents: a bounded closed loop of sessions over HTTP against a pool's endpoint.

Sessions, contexts, gaps and compactions are drawn as the laboratory draws them (`lab.workload`); a session's next
request follows its last answer, one that ends is followed by another. They live in the engines' model time. Runs in a
thread of its own beside the story. Not here: what the bodies say (`traffic_text`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from sglpool.lab.workload import SHARED_PREFIX_TOKENS, Conversation, Generator, Kind, Turn
from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.report_data import Request
from sglpool.sandbox.traffic_text import Body, Text

MOST_SESSIONS = 64
MOST_REQUESTS = 50_000
"""Remembered; older ones are forgotten."""
REQUEST_LIMIT_S = 60.0
JOIN_LIMIT_S = 15.0
PAUSE_AFTER_FAILURE_S = 0.5
LONGEST_RETRY_AFTER_S = 2.0
_TICK_S = 0.1
_TAIL_BYTES = 4096
_MOST_UNREAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What the sessions are like.

    Attributes:
        speed: How many times faster than life they think and their tools run.
        context_share: Their contexts are so much of a real one.
        output_factor: Their answers are so many times longer than real ones; fewer requests a second keep as many in
            flight.
        longest_output_tokens: No answer is longer.
        seed: Of everything random.
    """

    speed: float
    context_share: float = 1.0
    output_factor: float = 1.0
    longest_output_tokens: int = 16_000
    seed: int = 1


class Traffic:
    """Sessions against one endpoint.

    Args:
        address: `host:port` of the endpoint.
        model: What it serves.
        mix: What the sessions are like.
        clock_s: Time of the recording.
    """

    def __init__(self, address: str, model: str, mix: Mix, clock_s: Callable[[], float]) -> None:
        self._url = f"http://{address}/v1/chat/completions"
        self._model = model
        self._mix = mix
        self._clock_s = clock_s
        self._text = Text(f"demo {mix.seed}")
        self._generator = Generator(Kind.AUTONOMOUS, mix.seed, page_size_tokens=64)
        self._aim = 0
        self._thick = 0
        self._begun = 0
        self._over = threading.Event()
        self._done: deque[Request] = deque(maxlen=MOST_REQUESTS)
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._problem: BaseException | None = None

    def start(self) -> None:
        """Begin, with no session yet."""
        self._thread.start()

    def aim(self, sessions: int) -> None:
        """Keep so many sessions going from now on; those that are too many end after their answer."""
        self._aim = min(sessions, MOST_SESSIONS)

    def thick(self, conversations: int) -> None:
        """Beside them, keep one session with so many conversations at once; 0 ends it."""
        self._thick = min(conversations, MOST_SESSIONS)

    @property
    def sessions(self) -> int:
        """How many are wanted now, the thick one included."""
        return self._aim + (self._thick > 0)

    def requests(self) -> list[Request]:
        """Requests that have ended, oldest first."""
        return list(self._done)

    def stop(self) -> None:
        """End every session now; requests under way are dropped and not counted.

        Raises:
            SandboxError: The client itself failed or does not end.
        """
        self._over.set()
        if self._thread.ident is None:
            return
        self._thread.join(JOIN_LIMIT_S)
        if self._thread.is_alive():
            raise SandboxError(f"the agents' requests do not end within {JOIN_LIMIT_S:.0f} s")
        if self._problem is not None:
            raise SandboxError(f"the agents' client failed: {self._problem!r}") from self._problem

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as problem:
            self._problem = problem

    async def _main(self) -> None:
        connector = aiohttp.TCPConnector(limit=2 * MOST_SESSIONS)
        limit = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
        running: dict[str, asyncio.Task[None]] = {}
        async with aiohttp.ClientSession(connector=connector, timeout=limit, trust_env=False) as http:
            try:
                while not self._over.is_set():
                    self._keep(http, running)
                    await asyncio.sleep(_TICK_S)
            finally:
                for task in running.values():
                    task.cancel()
                await asyncio.gather(*running.values(), return_exceptions=True)

    def _keep(self, http: aiohttp.ClientSession, running: dict[str, asyncio.Task[None]]) -> None:
        """One step towards the wanted sessions: new ones come one a step, so that they do not move in step."""
        for name in [name for name, task in running.items() if task.done()]:
            running.pop(name).result()
        for name in self._wanted():
            if name not in running:
                running[name] = asyncio.create_task(self._session(http, name))
                return

    def _wanted(self) -> list[str]:
        return [f"agent/{n}" for n in range(self._aim)] + [f"thick/{n}" for n in range(self._thick)]

    async def _session(self, http: aiohttp.ClientSession, slot: str) -> None:
        """Conversations one after another, as long as their place is wanted."""
        under_way = True
        while slot in self._wanted():
            self._begun += 1
            session = "demo-thick" if slot.startswith("thick") else f"demo-{self._begun}"
            lab = self._generator.conversation(session, str(self._begun), leads=True, under_way=under_way)
            await self._conversation(http, slot, lab)
            under_way = False

    async def _conversation(self, http: aiohttp.ClientSession, slot: str, lab: Conversation) -> None:
        shared_tokens = round(SHARED_PREFIX_TOKENS * self._mix.context_share)
        body = Body(self._model, self._text, random.Random(lab.rng.getrandbits(64)), shared_tokens=shared_tokens)
        first = True
        while slot in self._wanted() and (turn := lab.next_turn()) is not None:
            keep = first or turn.kept_tokens > SHARED_PREFIX_TOKENS
            first = False
            body.grow(round(turn.prompt_tokens * self._mix.context_share), keep=keep)
            request = await self._ask(http, body.request(self._output_tokens(turn)), lab)
            self._done.append(request)
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S if request.problem else turn.gap_s / self._mix.speed)

    def _output_tokens(self, turn: Turn) -> int:
        return max(1, min(round(turn.output_tokens * self._mix.output_factor), self._mix.longest_output_tokens))

    async def _ask(self, http: aiohttp.ClientSession, body: bytes, lab: Conversation) -> Request:
        """One request; whatever goes wrong is its problem, in a few words."""
        headers = {
            "content-type": "application/json",
            "x-sglpool-session": lab.session,
            "x-sglpool-conversation": lab.conversation,
        }
        at_s, began_s = self._clock_s(), time.monotonic()
        try:
            async with http.post(self._url, data=body, headers=headers) as response:
                if response.status != 200:
                    await _as_told(response)
                    return Request(at_s=at_s, problem=f"status {response.status}")
                first_s, tail = await _read(response, began_s)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Request(at_s=at_s, problem=_in_words(error))
        usage = _usage(tail)
        if first_s is None or usage is None:
            return Request(at_s=at_s, total_s=time.monotonic() - began_s, problem="the stream ended early")
        prompt_tokens, cached_tokens = usage
        return Request(
            at_s=at_s,
            first_token_s=first_s,
            total_s=time.monotonic() - began_s,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )


def _in_words(error: BaseException) -> str:
    """What a client would say; the general kinds come after the special ones."""
    known = {
        aiohttp.ClientPayloadError: "the stream broke off",
        aiohttp.ServerDisconnectedError: "the connection was closed before an answer",
        aiohttp.ClientConnectorError: "no connection",
        TimeoutError: f"no end within {REQUEST_LIMIT_S:.0f} s",
    }
    return next((words for kind, words in known.items() if isinstance(error, kind)), type(error).__name__)


async def _as_told(response: aiohttp.ClientResponse) -> None:
    """Wait as long as a refusal says, within reason."""
    await response.read()
    with contextlib.suppress(ValueError):
        await asyncio.sleep(min(float(response.headers.get("retry-after", "0")), LONGEST_RETRY_AFTER_S))


async def _read(response: aiohttp.ClientResponse, began_s: float) -> tuple[float | None, bytes]:
    """Seconds to the first token, None without any, and the end of the stream; the middle is not looked at."""
    first_s: float | None = None
    kept = b""
    async for chunk in response.content.iter_any():
        # Whole until there is a word: what a busy engine sends at once can be longer than the end that matters.
        kept += chunk
        if first_s is None and _has_text(kept):
            first_s = time.monotonic() - began_s
        if first_s is not None or len(kept) > _MOST_UNREAD_BYTES:
            kept = kept[-_TAIL_BYTES:]
    return first_s, kept


def _has_text(events: bytes) -> bool:
    """Whether any event carries words; the first one carries only the role."""
    return any(b'"content":"' in part and b'"content":""' not in part for part in events.split(b"\n\n"))


def _usage(tail: bytes) -> tuple[int, int] | None:
    """Prompt and cached tokens from the last events of a stream; None for one that failed or was cut."""
    for line in reversed(tail.split(b"\n")):
        if line.startswith(b"data: {"):
            with contextlib.suppress(ValueError):
                event = json.loads(line[6:])
                if "error" in event:
                    return None
                if usage := event.get("usage"):
                    details = usage.get("prompt_tokens_details") or {}
                    return int(usage["prompt_tokens"]), int(details.get("cached_tokens") or 0)
    return None
