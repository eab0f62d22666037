"""The demo's agents: a closed loop that stays closed, conversations that grow, and failures that are told."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sglpool.sandbox.report_data import Request
from sglpool.sandbox.traffic import Mix, Traffic
from support.waiting import wait_until

QUICK = Mix(speed=1000.0, context_share=0.02)
WAIT_S = 30.0


class Engine(ThreadingHTTPServer):
    """Answers like an engine: a role, a word, usage. `spoil` makes it answer otherwise."""

    daemon_threads = True

    def __init__(self, spoil: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spoil = spoil
        self.lock = threading.Lock()
        self.now = 0
        self.most = 0
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.held = threading.Event()
        self.held.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def do_POST(self) -> None:
        engine = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with engine.lock:
            engine.now += 1
            engine.most = max(engine.most, engine.now)
            engine.asked.append((self.headers["x-sglpool-session"], self.headers["x-sglpool-conversation"], body))
        engine.held.wait(WAIT_S)
        with engine.lock:
            engine.now -= 1
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer(engine.spoil)

    def _answer(self, spoil: str) -> None:
        if spoil == "503":
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.close_connection = True
        if spoil == "gone":
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        if spoil == "broken":
            self.send_header("content-length", "100000")
        self.send_header("connection", "close")
        self.end_headers()
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        if spoil == "error":
            self._event({"error": {"message": "the queue is full"}})
            return
        self._event({"choices": [{"delta": {"content": "word " * (20_000 if spoil == "long" else 1)}}]})
        if spoil in ("cut", "broken"):
            return
        usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60}}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, content: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def engine(spoil: str = "") -> Iterator[Engine]:
    server = Engine(spoil)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(WAIT_S)
        server.server_close()


@contextmanager
def traffic(server: Engine) -> Iterator[Traffic]:
    agents = Traffic(server.address, "kimi", QUICK, time.monotonic)
    agents.start()
    try:
        yield agents
    finally:
        server.held.set()
        agents.stop()


def ended(agents: Traffic, least: int) -> list[Request]:
    return (
        wait_until(
            lambda: found if len(found := agents.requests()) >= least else None,
            timeout_s=WAIT_S,
            describe=lambda: f"{least} requests; there are {len(agents.requests())}",
        )
        or []
    )


def test_no_more_requests_at_once_than_sessions() -> None:
    with engine() as server, traffic(server) as agents:
        server.held.clear()
        agents.aim(3)
        wait_until(lambda: server.now == 3, timeout_s=WAIT_S, describe="three at once")
        server.held.set()
        ended(agents, 20)
        assert server.most == 3
        assert len({session for session, _, _ in server.asked}) >= 3


def test_what_was_measured() -> None:
    with engine() as server, traffic(server) as agents:
        agents.aim(1)
        request = ended(agents, 1)[0]
    assert (request.problem, request.prompt_tokens, request.cached_tokens) == ("", 100, 60)
    assert 0 < request.first_token_s <= request.total_s


def test_a_whole_answer_in_one_piece_is_an_answer() -> None:
    with engine("long") as server, traffic(server) as agents:
        agents.aim(1)
        request = ended(agents, 1)[0]
    assert (request.problem, request.prompt_tokens) == ("", 100)
    assert request.first_token_s > 0


def test_a_conversation_grows_on_what_it_was() -> None:
    with engine() as server, traffic(server) as agents:
        agents.aim(1)
        ended(agents, 12)
    by_conversation: dict[str, list[dict[str, Any]]] = {}
    for _, conversation, body in server.asked:
        by_conversation.setdefault(conversation, []).append(body)
    turns = max(by_conversation.values(), key=len)
    assert len(turns) > 3
    grown = sum(later["messages"][: len(earlier["messages"])] == earlier["messages"] for earlier, later in pairs(turns))
    assert grown >= 0.7 * (len(turns) - 1), "only a compaction or a rewrite begins anew"
    for body in turns:
        assert body["stream"] is True
        assert body["model"] == "kimi"
        assert body["messages"][0] == turns[0]["messages"][0], "tools and instructions are shared"
        assert body["messages"][-1]["role"] == "user"


def pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return itertools.pairwise(items)


def test_a_thick_session_is_one_session_with_many_conversations() -> None:
    with engine() as server, traffic(server) as agents:
        server.held.clear()
        agents.thick(4)
        wait_until(lambda: server.now == 4, timeout_s=WAIT_S, describe="four at once")
        assert agents.sessions == 1
    assert len({session for session, _, _ in server.asked}) == 1
    assert len({conversation for _, conversation, _ in server.asked}) == 4


def test_sessions_that_are_too_many_end_after_their_answer() -> None:
    with engine() as server, traffic(server) as agents:
        agents.aim(4)
        ended(agents, 8)
        agents.aim(1)
        server.held.clear()
        wait_until(lambda: server.now >= 1, timeout_s=WAIT_S, describe="the one that stays")
        server.held.set()
        before = len(agents.requests())
        ended(agents, before + 8)
        server.held.clear()
        wait_until(lambda: server.now == 1, timeout_s=WAIT_S, describe="one at a time")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ("503", "status 503"),
        ("error", "the stream ended early"),
        ("cut", "the stream ended early"),
        ("broken", "the stream broke off"),
        ("gone", "the connection was closed before an answer"),
    ],
)
def test_failures_are_told_and_do_not_end_the_session(spoil: str, problem: str) -> None:
    with engine(spoil) as server, traffic(server) as agents:
        agents.aim(1)
        assert ended(agents, 1)[0].problem == problem
        server.spoil = ""
        wait_until(lambda: not agents.requests()[-1].problem, timeout_s=WAIT_S, describe="an answer")


def test_nobody_there_is_a_failure_and_no_crash() -> None:
    with engine() as server:
        address = server.address
    agents = Traffic(address, "kimi", QUICK, time.monotonic)
    agents.start()
    agents.aim(1)
    assert ended(agents, 1)[0].problem == "no connection"
    agents.stop()


def test_stopping_does_not_wait_for_answers() -> None:
    with engine() as server:
        agents = Traffic(server.address, "kimi", QUICK, time.monotonic)
        agents.start()
        server.held.clear()
        agents.aim(2)
        wait_until(lambda: server.now == 2, timeout_s=WAIT_S, describe="two that hang")
        agents.stop()
        assert agents.requests() == []
        server.held.set()


def test_stopping_before_the_start_is_fine() -> None:
    Traffic("127.0.0.1:1", "kimi", QUICK, time.monotonic).stop()
