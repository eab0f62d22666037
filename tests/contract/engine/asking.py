"""Requests to a simulated engine of which a test knows the length, and requests that run beside a test."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.engine_process import Answer, EngineProcess, EventStream
from support.waiting import wait_until

JOIN_LIMIT_S = 60.0


def prompt(tokens: int, *, name: str = "p") -> str:
    """A text of exactly `tokens` tokens of four bytes; different names share no prefix."""
    return "".join(f"{name[:1]}{index:07x}" for index in range(tokens // 2 + 1))[: 4 * tokens]


def completion(tokens: int, output_tokens: int, *, name: str = "p", **extra: Any) -> dict[str, Any]:
    """A body for /v1/completions that produces exactly so many tokens."""
    text = prompt(tokens, name=name)
    return {"model": "m", "prompt": text, "max_tokens": output_tokens, "ignore_eos": True, **extra}


class Background:
    """A plain request in a thread of its own; its answer, or what went wrong, when it is over."""

    def __init__(self, engine: EngineProcess, path: str, body: dict[str, Any]) -> None:
        self._engine, self._path, self._body = engine, path, body
        self._answer: Answer | None = None
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._engine.post(self._path, self._body, timeout_s=JOIN_LIMIT_S)
        except (OSError, http.client.HTTPException) as error:
            self.failure = error

    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def answer(self) -> Answer:
        """The answer, once it is there."""
        self._thread.join(JOIN_LIMIT_S)
        assert self._answer is not None, f"no answer: {self.failure!r}"
        return self._answer

    def join(self) -> None:
        """Wait for the end, however it ends."""
        self._thread.join(JOIN_LIMIT_S)


@contextmanager
def streaming(engine: EngineProcess, body: dict[str, Any], path: str = "/v1/completions") -> Iterator[EventStream]:
    """A stream that is hung up on at the end."""
    stream = engine.stream(path, body)
    try:
        yield stream
    finally:
        stream.close()


def read_stream(engine: EngineProcess, body: dict[str, Any], path: str = "/v1/completions") -> list[Any]:
    """Every event of a stream, read to its end."""
    with streaming(engine, body, path) as stream:
        assert stream.status == 200
        return list(stream.events())


def wait_running(engine: EngineProcess, running: int, *, waiting: int = 0) -> None:
    """Wait until exactly so many requests run and wait."""

    def reached() -> bool:
        load = engine.load()
        return (load["num_running_reqs"], load["num_waiting_reqs"]) == (running, waiting)

    wait_until(
        reached,
        timeout_s=20,
        describe=lambda: f"{running} running, {waiting} waiting: {engine.load()}",
        interval_s=0.01,
    )


def wait_idle(engine: EngineProcess) -> None:
    """Wait until nothing runs, waits or is in prefill."""
    wait_until(lambda: engine.load()["num_total_tokens"] == 0, timeout_s=20, describe="idle", interval_s=0.01)
