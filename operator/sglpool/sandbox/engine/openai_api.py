"""`/v1/chat/completions` and `/v1/completions`: requests, plain responses and streams in SGLang's shapes.

Not here: when tokens come (driver.py) and what they say (filler.py).
"""

from __future__ import annotations

import os
import time
import uuid
from array import array
from typing import Any

from sglpool.enginemodel.records import Finished
from sglpool.sandbox.engine import chat_template, filler
from sglpool.sandbox.engine.chat_template import ImageRules
from sglpool.sandbox.engine.errors import ApiError, QueueIsFull, invalid, missing
from sglpool.sandbox.engine.generation import Ask, Generation, Running, Usage, request_id, whole_number
from sglpool.sandbox.engine.http import Exchange, encode, event
from sglpool.sandbox.engine.spec import Spec

DONE = b"data: [DONE]\n\n"
COMPLETION_LIMIT_TOKENS = 16
"""Output limit of /v1/completions when the request names none."""


def image_rules(spec: Spec) -> ImageRules:
    """What this server does with images."""
    fetch = os.environ.get("SGLANG_VLM_MEDIA_URL_FETCH_ENABLED", "true").lower() not in ("false", "0", "no")
    return ImageRules(vision=spec.vision, fetch=fetch)


class OpenAI:
    """The two endpoints."""

    def __init__(self, spec: Spec, generation: Generation) -> None:
        """Answer for the model of `spec`."""
        self._spec = spec
        self._generation = generation
        self._images = image_rules(spec)

    async def chat(self, exchange: Exchange) -> None:
        """Serve a chat completion."""
        body = await exchange.json()
        messages = body.get("messages")
        if messages is None:
            raise missing("messages")
        if not isinstance(messages, list):
            raise invalid("messages", "Input should be a valid list", "list_type")
        if not messages:
            raise ApiError(400, "Messages cannot be empty.")
        tools = body.get("tools") or []
        rendered = chat_template.render(messages, tools, self._images)
        ask = self._ask(
            body,
            rendered.text,
            images=rendered.images,
            limit_tokens=whole_number(body, "max_completion_tokens", "max_tokens"),
            tool=chosen_tool(tools, body.get("tool_choice")),
        )
        await self._respond(exchange, body, ask, chat=True)

    async def completion(self, exchange: Exchange) -> None:
        """Serve a text completion."""
        body = await exchange.json()
        limit_tokens = whole_number(body, "max_tokens")
        ask = self._ask(body, prompt_bytes(body.get("prompt")), limit_tokens=limit_tokens or COMPLETION_LIMIT_TOKENS)
        await self._respond(exchange, body, ask, chat=False)

    def _ask(
        self,
        body: dict[str, Any],
        prompt: bytes,
        *,
        limit_tokens: int | None,
        images: int = 0,
        tool: tuple[str, object] | None = None,
    ) -> Ask:
        if body.get("n") not in (None, 1):
            raise ApiError(400, "This simulated engine makes one choice per request; leave n out or set it to 1.")
        return Ask(
            prompt=prompt,
            rid=request_id(body),
            images=images,
            streaming=body.get("stream") is True,
            limit_tokens=limit_tokens,
            ignore_eos=body.get("ignore_eos") is True,
            min_tokens=whole_number(body, "min_tokens", least=0) or 0,
            tool=tool,
        )

    async def _respond(self, exchange: Exchange, body: dict[str, Any], ask: Ask, *, chat: bool) -> None:
        model = body.get("model")
        name = model if isinstance(model, str) and model else self._spec.served_model_name
        report = bool(self._spec.args.get("enable_cache_report"))
        usage = self._wants_usage(body)

        def writer(running: Running | None) -> ChatWriter | CompletionWriter:
            kind = ChatWriter if chat else CompletionWriter
            return kind(ask.rid, name, running, usage=usage, report=report)

        def plain(running: Running, finished: Finished) -> dict[str, Any]:
            make = chat_body if chat else completion_body
            answer = make(ask.rid, name, running, finished)
            answer["usage"] = usage_body(Usage.of(finished), report=report)
            version = self._spec.args.get("weight_version") or "default"
            answer["metadata"] = {"weight_version": version, "weight_versions": [version]}
            return answer

        await self._generation.respond(exchange, ask, writer=writer, plain=plain)

    def _wants_usage(self, body: dict[str, Any]) -> bool:
        options = body.get("stream_options")
        if isinstance(options, dict) and "include_usage" in options:
            return options["include_usage"] is True
        return bool(self._spec.args.get("stream_response_default_include_usage"))


def prompt_bytes(prompt: object) -> bytes:
    """The bytes of a completion's prompt: text, a list with one text, or token ids.

    Raises:
        ApiError: it is none of these.
    """
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt.encode("utf-8", "surrogatepass")
    if isinstance(prompt, list) and prompt:
        try:
            return array("I", prompt).tobytes()
        except (TypeError, OverflowError):
            pass
    if prompt in ("", []):
        raise ApiError(400, "Prompt cannot be empty")
    raise invalid("prompt", "Input should be one text or one list of token ids", "string_type")


def chosen_tool(tools: object, choice: object) -> tuple[str, object] | None:
    """Name and schema of the tool that a request insists on; None when words will do.

    Raises:
        ApiError: there is no such tool.
    """
    named = None
    if isinstance(choice, dict):
        function = choice.get("function")
        named = function.get("name") if isinstance(function, dict) else choice.get("name")
    elif choice != "required":
        return None
    functions = (
        [tool.get("function", tool) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    )
    for function in functions:
        if isinstance(function, dict) and isinstance(function.get("name"), str) and named in (None, function["name"]):
            return function["name"], function.get("parameters")
    raise ApiError(400, f"tool_choice asks for {named or 'a tool'}, which is not in tools.")


def usage_body(usage: Usage, *, report: bool) -> dict[str, Any]:
    """The `usage` of a response; cached tokens only when the server reports them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens} if report else None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def finish(running: Running, finished: Finished) -> tuple[str, int | None]:
    """Finish reason and what matched."""
    if finished.reason == "abort":
        return "abort", None
    if not running.reply.stops:
        return "length", None
    return ("tool_calls" if running.reply.tool else "stop"), filler.END_TOKEN


def text_of(running: Running, finished: Finished) -> str:
    """The text of a reply, or the arguments of its tool call."""
    return running.reply.text(0, finished.completion_tokens).decode()


def call_id(name: str) -> str:
    """Id of a tool call, as the parser for Kimi makes them."""
    return f"functions.{name}:0"


def chat_body(rid: str, model: str, running: Running, finished: Finished) -> dict[str, Any]:
    """A plain chat completion, without usage."""
    reason, matched = finish(running, finished)
    text = text_of(running, finished)
    message: dict[str, Any] = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
    if running.reply.tool:
        name = running.reply.tool
        function = {"name": name, "arguments": text}
        call = {"id": call_id(name), "index": 0, "type": "function", "function": function}
        message |= {"content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "matched_stop": matched}
    created = int(time.time())
    return {"id": rid, "object": "chat.completion", "created": created, "model": model, "choices": [choice]}


def completion_body(rid: str, model: str, running: Running, finished: Finished) -> dict[str, Any]:
    """A plain text completion, without usage."""
    reason, matched = finish(running, finished)
    text = text_of(running, finished)
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "matched_stop": matched}
    created = int(time.time())
    return {"id": rid, "object": "text_completion", "created": created, "model": model, "choices": [choice]}


class _EventWriter:
    """What both streams share: the frame around each chunk, cut into bytes once."""

    kind = ""

    def __init__(self, rid: str, model: str, running: Running | None, *, usage: bool, report: bool) -> None:
        self._frame = {"id": rid, "object": self.kind, "created": int(time.time()), "model": model}
        self._running = running
        self._usage = usage
        self._report = report

    def start(self) -> bytes:
        """Nothing comes before the first token."""
        return b""

    def refused(self, error: QueueIsFull) -> bytes:
        """The error, zero usage if wanted, and the end."""
        return event(error.event()) + self._usage_event(Usage(0, 0, 0)) + DONE

    def _chunk(self, choice: dict[str, Any], **more: object) -> bytes:
        return event(self._frame | {"choices": [choice]} | more)

    def _usage_event(self, usage: Usage) -> bytes:
        if not self._usage:
            return b""
        return event(self._frame | {"choices": [], "usage": usage_body(usage, report=self._report)})

    def _cut(self, choice: dict[str, Any], **more: object) -> tuple[bytes, bytes]:
        """A chunk in two parts around its text, which holds nothing that JSON escapes."""
        before, _, after = self._chunk(choice, **more).partition(b"\\u0000")
        return before, after


class ChatWriter(_EventWriter):
    """Stream of a chat completion: role, then words or the arguments of a call, then the finish reason."""

    kind = "chat.completion.chunk"

    def __init__(self, rid: str, model: str, running: Running | None, *, usage: bool, report: bool) -> None:
        """Write for one request."""
        super().__init__(rid, model, running, usage=usage, report=report)
        self._named = False
        if running is not None and running.reply.tool:
            function = {"name": None, "arguments": "\0"}
            call = {"id": None, "index": 0, "type": "function", "function": function}
            self._before, self._after = self._cut(self._choice({"tool_calls": [call]}))
        elif running is not None:
            self._before, self._after = self._cut(self._choice({"content": "\0"}))

    @staticmethod
    def _choice(delta: dict[str, Any], reason: str | None = None, matched: int | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "matched_stop": matched}

    def start(self) -> bytes:
        """The chunk with the role."""
        return self._chunk(self._choice({"role": "assistant", "content": ""}))

    def tokens(self, from_token: int, to_token: int) -> bytes:
        """One chunk for all of these tokens; the name of a tool comes before its arguments."""
        assert self._running is not None
        reply = self._running.reply
        text = reply.text(from_token, to_token)
        if not text:
            return b""
        if not reply.tool:
            return self._before + text + self._after
        named = b""
        if not self._named:
            self._named = True
            function = {"name": reply.tool, "arguments": ""}
            call = {"id": call_id(reply.tool), "index": 0, "type": "function", "function": function}
            named = self._chunk(self._choice({"tool_calls": [call]}))
        return named + self._before + escape(text) + self._after

    def end(self, finished: Finished) -> bytes:
        """Finish reason, usage and the end mark."""
        assert self._running is not None
        reason, matched = finish(self._running, finished)
        return self._chunk(self._choice({}, reason, matched)) + self._usage_event(Usage.of(finished)) + DONE


class CompletionWriter(_EventWriter):
    """Stream of a text completion: the last chunk with text carries the finish reason."""

    kind = "text_completion"

    def __init__(self, rid: str, model: str, running: Running | None, *, usage: bool, report: bool) -> None:
        """Write for one request."""
        super().__init__(rid, model, running, usage=usage, report=report)
        self._before, self._after = self._cut(self._choice("\0"), usage=None)
        self._held = b""

    @staticmethod
    def _choice(text: str, reason: str | None = None, matched: int | None = None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "matched_stop": matched}

    def tokens(self, from_token: int, to_token: int) -> bytes:
        """One chunk for all of these tokens; the reply's last are held for the finish reason."""
        assert self._running is not None
        reply = self._running.reply
        text = reply.text(from_token, to_token)
        if to_token >= reply.tokens:
            self._held = text
            return b""
        return self._before + text + self._after

    def end(self, finished: Finished) -> bytes:
        """The last text with the finish reason, usage and the end mark."""
        assert self._running is not None
        reason, matched = finish(self._running, finished)
        last = self._chunk(self._choice(self._held.decode(), reason, matched), usage=None)
        return last + self._usage_event(Usage.of(finished)) + DONE


def escape(text: bytes) -> bytes:
    """JSON text inside JSON text, without its quotes."""
    return encode(text.decode("utf-8", "replace"))[1:-1]


def new_id(prefix: str) -> str:
    """A fresh id."""
    return f"{prefix}_{uuid.uuid4().hex}"
