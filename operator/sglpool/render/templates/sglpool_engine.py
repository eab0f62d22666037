#!/usr/bin/env python3
"""What the scripts in the engine pod share: settings, log lines, markers, and one careful HTTP client.

Runs in the SGLang image with the standard library only (Python 3.10 and newer). Settings come from
`config.json` beside this file. The client has one limit for the whole exchange: an SGLang that is shutting
down or hung accepts connections and never answers, so a connection alone means nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]

MAX_BODY_BYTES = 16 * 1024 * 1024


class NoAnswer(Exception):
    """The engine gave no usable answer; the text says how."""


class Answer(NamedTuple):
    """Status and body of an HTTP response."""

    status: int
    body: bytes

    def excerpt(self) -> str:
        """The beginning of the body, on one line."""
        return " ".join(self.body[:300].decode("utf-8", "replace").split())


def load_config() -> Json:
    """Settings of this pod: the file that lies beside the scripts."""
    config: Json = json.loads((Path(__file__).parent / "config.json").read_text(encoding="utf-8"))
    return config


def log(sentence: str) -> None:
    """One line for the person who reads the container's log."""
    print(f"sglpool: {sentence}", flush=True)


def marker(config: Json, name: str) -> Path:
    """Path of a marker or state file of this pod."""
    return Path(config["run_dir"], name)


def write_file(path: Path, text: str) -> None:
    """Write a small file so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def request(config: Json, path: str, *, timeout_s: float, payload: Json | None = None) -> Answer:
    """GET, or POST when there is a payload; `timeout_s` bounds the whole exchange.

    Raises:
        NoAnswer: refused, reset, cut short, or not finished in time.
    """
    listen_host: str = config["listen_host"]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen_host, listen_host)
    connection = http.client.HTTPConnection(host, config["port"], timeout=timeout_s)
    late = NoAnswer(f"no answer within {timeout_s:g} s")
    result: list[Answer | NoAnswer] = []

    def exchange() -> None:
        try:
            if payload is None:
                connection.request("GET", path)
            else:
                body = json.dumps(payload).encode()
                connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            result.append(Answer(response.status, response.read(MAX_BODY_BYTES)))
        except TimeoutError:
            result.append(late)
        except (OSError, http.client.HTTPException) as error:
            result.append(NoAnswer(str(error) or type(error).__name__))

    # A socket timeout starts anew with every byte, so the limit is kept from outside.
    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(timeout_s)
    outcome = result[0] if result else late
    _hang_up(connection)
    if isinstance(outcome, NoAnswer):
        raise outcome
    return outcome


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """Close the connection, also under a thread that still waits for it: the engine then drops the work."""
    sock: socket.socket | None = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def chat(config: Json, content: str | list[Json], *, max_tokens: int, timeout_s: float) -> Answer:
    """One chat completion over the path that clients use, without streaming."""
    payload: Json = {
        "model": config["served_model_name"],
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    return request(config, "/v1/chat/completions", timeout_s=timeout_s, payload=payload)


def read_loads(config: Json, *, timeout_s: float) -> list[Json]:
    """The engine's load report, one entry per data-parallel rank.

    Raises:
        NoAnswer: when there is none, or it is not a report.
    """
    answer = request(config, "/v1/loads?include=core", timeout_s=timeout_s)
    if answer.status != 200:
        raise NoAnswer(f"/v1/loads answered with status {answer.status}")
    try:
        loads: list[Json] = json.loads(answer.body)["loads"]
        return [dict(load) for load in loads]
    except (ValueError, KeyError, TypeError):
        raise NoAnswer("/v1/loads answered with something that is not a load report") from None


def total(loads: list[Json], field: str) -> float:
    """Sum of one number over all ranks; an absent one counts as 0."""
    return sum(float(load.get(field) or 0) for load in loads)


def living_descendants(root: int) -> list[int]:
    """Process ids below `root`, from /proc; zombies do not count."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The command name may hold spaces and brackets; what follows its last bracket does not.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append((int(entry.name), state))
    found: list[int] = []
    pending = [root]
    while pending:
        for pid, state in children.get(pending.pop(), []):
            pending.append(pid)
            if state not in "ZX":
                found.append(pid)
    return found
