"""Clients of a router: requests, conversations that remember, and long streams that are held open over a fault.

Every request is one of an agent's: a session's name in a header, the whole conversation in the body. Not here: what
is done to the router meanwhile.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from support.waiting import wait_until

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
SESSION = "x-sglpool-session"
FIRST_CHUNK_S = 20.0
SILENCE_S = 6.0
"""A stream on which nothing moves for so long, after whatever was done has been done, is as good as broken."""
ANSWER_S = 60.0


@dataclass(frozen=True)
class Reply:
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    took_s: float

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The answer of a chat completion."""
        return str(self.json()["choices"][0]["message"]["content"])

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return int(self.json()["usage"]["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the engine still had."""
        return int((self.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0))


def send(
    address: str,
    path: str = CHAT,
    body: bytes | Json | None = None,
    *,
    method: str | None = None,
    timeout_s: float = ANSWER_S,
    **headers: str,
) -> Reply:
    """One request on a connection of its own; names of headers are given with underscores."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    sent = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    began_s = time.monotonic()
    try:
        connection.request(method or ("GET" if content is None else "POST"), path, content, sent)
        answer = connection.getresponse()
        received = answer.read()
    finally:
        connection.close()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return Reply(answer.status, found, received, time.monotonic() - began_s)


def chat(*contents: str, max_tokens: int = 8, **more: Any) -> Json:
    """Body of a chat completion; user and assistant take turns, the user begins."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return {"model": "m", "messages": messages, "max_tokens": max_tokens, **more}


@dataclass
class Conversation:
    """One agent's conversation: every turn sends all that came before."""

    session: str
    contents: list[str] = field(default_factory=list)

    def turn(self, address: str, text: str = "and then?", **headers: str) -> Reply:
        """Say something; the answer becomes part of the conversation."""
        self.contents.append(text)
        reply = send(address, body=chat(*self.contents), **{SESSION: self.session}, **headers)
        if reply.status == 200:
            self.contents.append(reply.text)
        else:
            self.contents.pop()
        return reply


class Stream:
    """A long answer that a thread of its own reads."""

    def __init__(self, address: str, session: str, *, tokens: int, **headers: str) -> None:
        self.session = session
        self.status = 0
        self.events = 0
        self.last_s = 0.0
        """When something came last."""
        self.broken = ""
        """Why it ended before its end; empty while it has not."""
        self.finished = False
        self._hung_up = False
        self._body = chat(f"Count for {session}.", max_tokens=tokens, ignore_eos=True, stream=True)
        self._headers = {"content-type": "application/json", SESSION: session, **headers}
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_S)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._connection.request("POST", CHAT, json.dumps(self._body), self._headers)
            answer = self._connection.getresponse()
            self.status = answer.status
            self._read(answer)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            self._end(repr(problem))

    def _read(self, answer: http.client.HTTPResponse) -> None:
        rest = b""
        while data := answer.read1(65536):
            self.last_s = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)
        if not self.finished:
            self._end("it ended without [DONE]")

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data: [DONE]"):
            self.finished = True
        elif line.startswith(b'data: {"error"'):
            self._end(line.decode())
        elif line.startswith(b"data: "):
            self.events += 1

    def _end(self, reason: str) -> None:
        if not self._hung_up:
            self.broken = self.broken or reason

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return not self._thread.is_alive()

    def hang_up(self) -> None:
        """Go, as a client does whose user has closed the window."""
        self._hung_up = True
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._connection.close()


class Streams:
    """Long streams that are open together; leaving the block hangs up on all of them."""

    def __init__(self, address: str, sessions: Sequence[str], *, tokens: int, **headers: str) -> None:
        self.all = [Stream(address, session, tokens=tokens, **headers) for session in sessions]

    def __enter__(self) -> Streams:
        try:
            self._await_first()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _await_first(self) -> None:
        for stream in self.all:
            wait_until(
                lambda stream=stream: stream.events > 1 or stream.ended,  # type: ignore[misc]
                timeout_s=FIRST_CHUNK_S,
                describe=f"the stream of {stream.session} flows",
                interval_s=0.02,
            )
        assert not self.broken(), f"the streams flow before anything is done to them: {self.broken()}"

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(Stream.hang_up, self.all))

    def broken(self) -> dict[str, str]:
        """Streams that ended before their end, and why."""
        return {stream.session: stream.broken for stream in self.all if stream.broken}

    def flowing(self) -> dict[str, str]:
        """See to it that every stream has moved since now or has ended; returns the broken ones.

        A stream that stands still counts as broken.
        """
        now_s = time.monotonic()
        deadline_s = now_s + SILENCE_S
        for stream in self.all:
            while stream.last_s <= now_s and not stream.ended and time.monotonic() < deadline_s:
                time.sleep(0.02)
        still = {s.session: "it stands still" for s in self.all if s.last_s <= now_s and not s.ended}
        return still | self.broken()
