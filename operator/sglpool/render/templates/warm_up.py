#!/usr/bin/env python3
"""Waits for the server and sends it its first requests, over the path that clients use.

An engine that says it is ready still compiles kernels at its first long prompt and its first image, for up
to 80 s each; those requests are sent here, before the replica counts as started. Every request must succeed.
Used by launch.py. Not here: starting or stopping the server.
"""

from __future__ import annotations

import base64
import json
import random
import struct
import time
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglpool.render.templates import sglpool_engine as engine
else:  # in the pod the scripts lie side by side
    import sglpool_engine as engine

READY_READ_S = 5
PROGRESS_S = 60
MAX_BACKOFF_S = 60
# Short and frequent, so that nearly every tokenizer makes one token of each.
COMMON = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said "
    "what its about than into them can only other time new some could these two may first then do any like"
)
WORDS = COMMON.split()


class WarmUpFailed(Exception):
    """A limit passed or a request failed; the text is the sentence for the log."""


def run(config: engine.Json) -> None:
    """Wait for /ready, then send every warm-up request.

    Raises:
        WarmUpFailed: with the reason.
    """
    wait_ready(config)
    settings = config["warm_up"]
    until = time.monotonic() + settings["timeout_s"]
    # A new seed each start: a cache that outlives the process must not answer for the engine.
    rng = random.Random()
    ask(config, "chat", "Say hello.", until)
    for number in range(1, settings["prompts"] + 1):
        ask(config, f"long prompt {number}", filler(rng, settings["prompt_tokens"]), until)
    if settings["image"]:
        ask(config, "image", image_question(), until)


def wait_ready(config: engine.Json) -> None:
    """Poll /ready until it is 200. Connection refused is normal for as long as the weights load."""
    started = time.monotonic()
    next_report = started + PROGRESS_S
    while True:
        try:
            status = engine.request(config, "/ready", timeout_s=READY_READ_S).status
            if status == 200:
                break
            state = f"/ready says {status}"
        except engine.NoAnswer as error:
            state = str(error)
        now = time.monotonic()
        if now - started > config["ready_timeout_s"]:
            raise WarmUpFailed(f"the server was not ready after {config['ready_timeout_s']:g} s ({state}).")
        if now > next_report:
            engine.log(f"still loading after {now - started:.0f} s ({state}).")
            next_report = now + PROGRESS_S
        time.sleep(config["ready_poll_s"])
    engine.log(f"the server is ready after {time.monotonic() - started:.0f} s; warming up.")


def ask(config: engine.Json, name: str, content: str | list[engine.Json], until: float) -> None:
    """Send one request, again if it fails for a reason that may pass; stop at `until` (monotonic clock)."""
    settings = config["warm_up"]
    reason = f"the warm-up's {settings['timeout_s']:g} s were used up"
    for attempt in range(1, settings["attempts"] + 1):
        started = time.monotonic()
        if started >= until:
            break
        limit_s = min(settings["request_timeout_s"], until - started)
        retry = True
        try:
            answer = engine.chat(config, content, max_tokens=8, timeout_s=limit_s)
        except engine.NoAnswer as error:
            reason = str(error)
        else:
            tokens = prompt_tokens(answer)
            if tokens is not None:
                engine.log(f"warm-up {name}: {tokens} tokens in {time.monotonic() - started:.1f} s.")
                return
            reason = f"status {answer.status}: {answer.excerpt()}"
            retry = not 400 <= answer.status < 500
        if not retry or attempt == settings["attempts"]:
            break
        backoff_s = min(settings["backoff_s"] * 2 ** (attempt - 1), MAX_BACKOFF_S)
        engine.log(f"warm-up {name}: {reason}; trying again in {backoff_s:g} s.")
        time.sleep(min(backoff_s, max(0.0, until - time.monotonic())))
    raise WarmUpFailed(f"the warm-up request ({name}) failed: {reason}")


def prompt_tokens(answer: engine.Answer) -> int | None:
    """Tokens of the prompt when the answer is a completion with a choice; None when it is not."""
    if answer.status != 200:
        return None
    try:
        body = json.loads(answer.body)
        return int(body["usage"]["prompt_tokens"]) if body["choices"] else None
    except (ValueError, KeyError, TypeError):
        return None


def filler(rng: random.Random, tokens: int) -> str:
    """About that many tokens of text, unlike any other from its first words on."""
    return " ".join(rng.choices(WORDS, k=tokens))


def image_question() -> list[engine.Json]:
    """A question about a small grey square, sent inline: the engine fetches no URLs."""
    url = f"data:image/png;base64,{base64.b64encode(grey_png(224)).decode()}"
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What colour is this?"},
    ]


def grey_png(side: int) -> bytes:
    """A square PNG of one colour, RGB, `side` pixels wide; encoders refuse images of a few pixels."""
    rows = (b"\0" + b"\x80\x80\x80" * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
