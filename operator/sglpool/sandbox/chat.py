"""One streaming chat completion as any OpenAI client sends it, with what a person wants to know afterwards."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sglpool.sandbox.errors import SandboxError

_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Turn:
    """A request.

    Attributes:
        messages: The conversation so far, OpenAI's shape.
        max_tokens: Most tokens of the answer.
        api_key: Sent as a bearer token unless empty.
        ignore_eos: Go on until `max_tokens`, wherever the model would stop.
        session: Session id for a router; empty sends none.
    """

    messages: list[dict[str, Any]]
    max_tokens: int
    api_key: str = ""
    ignore_eos: bool = False
    session: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        text: The whole answer.
        prompt_tokens: Tokens of the conversation.
        cached_tokens: How many of them were in the engine's cache.
        completion_tokens: Tokens of the answer.
        first_token_s: Seconds to the first token (TTFT).
        total_s: Seconds to the last.
    """

    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_s: float
    total_s: float

    def summary(self) -> str:
        """One line for people."""
        hit = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        speed = self.completion_tokens / max(self.total_s - self.first_token_s, 1e-3)
        return (
            f"{self.prompt_tokens:,} prompt tokens, {self.cached_tokens:,} of them cached ({hit:.1%}); "
            f"first token after {self.first_token_s:.2f} s; "
            f"{self.completion_tokens:,} tokens at {speed:,.0f} tokens/s"
        )


def stream_chat(address: str, turn: Turn, *, on_text: Callable[[str], None]) -> Reply:
    """Send one request to `host:port` and hand over the text as it comes.

    Raises:
        SandboxError: No connection, an error answer, or an error inside the stream.
    """
    started = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=_LIMIT_S)
    headers = {"Content-Type": "application/json"}
    if turn.api_key:
        headers["Authorization"] = f"Bearer {turn.api_key}"
    if turn.session:
        headers["x-sglpool-session"] = turn.session
    first_s, parts, usage = 0.0, [], dict[str, Any]()
    try:
        connection.request("GET", "/v1/models", headers=headers)
        model = _json(connection.getresponse(), address)["data"][0]["id"]
        body = {
            "model": model,
            "messages": turn.messages,
            "max_tokens": turn.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if turn.ignore_eos else {}),
        }
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        for event in _events(connection.getresponse(), address):
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                if text := choice["delta"].get("content"):
                    first_s = first_s or time.monotonic() - started
                    parts.append(text)
                    on_text(text)
    except (OSError, http.client.HTTPException) as error:
        raise SandboxError(f"{address} did not answer to the end: {error or type(error).__name__}") from error
    finally:
        connection.close()
    return Reply(
        text="".join(parts),
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        first_token_s=first_s,
        total_s=time.monotonic() - started,
    )


def _json(response: http.client.HTTPResponse, address: str) -> Any:
    content = response.read()
    if response.status != 200:
        raise SandboxError(f"{address} answers {response.status}: {content[:300].decode(errors='replace')}")
    return json.loads(content)


def _events(response: http.client.HTTPResponse, address: str) -> Iterator[dict[str, Any]]:
    """The JSON events of a stream; an error that comes inside a stream of status 200 ends it too."""
    if response.status != 200:
        _json(response, address)
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if not data or data == b"[DONE]":
            continue
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise SandboxError(f"{address}: {event['error'].get('message', event['error'])}")
        yield event
