"""`/v1/messages`: the Anthropic shapes, which SGLang offers beside OpenAI's.

Requests become OpenAI messages; one prompt, one cache. Not here: the prompt's bytes (chat_template.py).
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from sglpool.enginemodel.records import Finished
from sglpool.enginemodel.tokens import count_tokens
from sglpool.sandbox.engine import chat_template
from sglpool.sandbox.engine.errors import ApiError, QueueIsFull, missing
from sglpool.sandbox.engine.generation import Ask, Generation, Running, Usage, request_id, whole_number
from sglpool.sandbox.engine.http import Exchange, encode
from sglpool.sandbox.engine.openai_api import call_id, chosen_tool, escape, image_rules, text_of
from sglpool.sandbox.engine.spec import Spec

_TEXT_KINDS = ("text", "thinking", "redacted_thinking")


class Anthropic:
    """The endpoints for messages and for counting their tokens."""

    def __init__(self, spec: Spec, generation: Generation) -> None:
        """Answer for the model of `spec`."""
        self._spec = spec
        self._generation = generation
        self._images = image_rules(spec)

    async def messages(self, exchange: Exchange) -> None:
        """Serve a message."""
        try:
            body = await exchange.json()
            if body.get("max_tokens") is None:
                raise missing("max_tokens")
            rendered, tools = self._render(body)
            ask = Ask(
                prompt=rendered.text,
                rid=request_id(body),
                images=rendered.images,
                streaming=body.get("stream") is True,
                limit_tokens=whole_number(body, "max_tokens"),
                ignore_eos=body.get("ignore_eos") is True,
                tool=chosen_tool(tools, _tool_choice(body.get("tool_choice"))),
            )
            model = str(body.get("model") or self._spec.served_model_name)
            report = bool(self._spec.args.get("enable_cache_report"))
            await self._generation.respond(
                exchange,
                ask,
                writer=lambda running: MessageWriter(model, running, report=report),
                plain=lambda running, finished: message_body(model, running, finished, report=report),
            )
        except ApiError as error:
            if exchange.status:
                raise
            await exchange.reply_json(error.anthropic(), error.status)

    async def count_tokens(self, exchange: Exchange) -> None:
        """Count the tokens of a message's prompt."""
        try:
            rendered, _ = self._render(await exchange.json())
            await exchange.reply_json({"input_tokens": count_tokens(rendered.text)})
        except ApiError as error:
            await exchange.reply_json(error.anthropic(), error.status)

    def _render(self, body: dict[str, Any]) -> tuple[chat_template.Rendered, list[dict[str, Any]]]:
        messages = body.get("messages")
        if messages is None:
            raise missing("messages")
        if not isinstance(messages, list) or not messages:
            raise ApiError(400, "Messages cannot be empty.")
        tools = [_tool(tool) for tool in body.get("tools") or [] if isinstance(tool, dict)]
        return chat_template.render(to_openai(body.get("system"), messages), tools, self._images), tools


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: object) -> object:
    """OpenAI's word for an Anthropic choice of tools."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool" and isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return "required" if kind == "any" else "auto"


def to_openai(system: object, messages: list[Any]) -> list[dict[str, Any]]:
    """Anthropic's system text and messages as OpenAI messages.

    Raises:
        ApiError: a message is not one.
    """
    result: list[dict[str, Any]] = []
    if system:
        result.append({"role": "system", "content": system})
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise missing(f"messages.{index}.role")
        content = message.get("content")
        if isinstance(content, list):
            result += _blocks(message["role"], content)
        else:
            result.append({"role": message["role"], "content": content})
    return result


def _blocks(role: str, blocks: list[Any]) -> list[dict[str, Any]]:
    """A message of blocks: results of tools become messages of their own, before the rest."""
    parts: list[Any] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            calls.append({"function": {"name": block.get("name"), "arguments": block.get("input") or {}}})
        elif kind == "tool_result":
            results.append({"role": "tool", "content": _parts(block.get("content"))})
        elif kind not in _TEXT_KINDS[1:]:
            parts.append(_part(block))
    if parts or calls or not results:
        results.append({"role": role, "content": parts or None, "tool_calls": calls})
    return results


def _parts(content: object) -> object:
    return [_part(block) for block in content] if isinstance(content, list) else content


def _part(block: object) -> object:
    """A block as an OpenAI content part; one that is unknown stays and is refused by the template."""
    if not isinstance(block, dict):
        return block
    if block.get("type") == "image" and isinstance(block.get("source"), dict):
        source = block["source"]
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    # Marks for caching may change from turn to turn; the text is what counts.
    return {"type": block.get("type"), "text": block.get("text")}


def usage_body(usage: Usage, *, report: bool) -> dict[str, int]:
    """Token counts; the cached ones only when the server reports them."""
    cached = usage.cached_tokens if report else 0
    counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    return counts | {"cache_read_input_tokens": cached}


def stop_reason(running: Running, finished: Finished) -> str:
    """Why the message ended."""
    if finished.reason == "abort" or running.reply.stops:
        return "tool_use" if running.reply.tool and finished.reason != "abort" else "end_turn"
    return "max_tokens"


def _message(model: str, content: list[Any], reason: str | None, usage: dict[str, int]) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": model,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }


def message_body(model: str, running: Running, finished: Finished, *, report: bool) -> dict[str, Any]:
    """A plain message."""
    text = text_of(running, finished)
    block: dict[str, Any] = {"type": "text", "text": text}
    if running.reply.tool:
        block = {
            "type": "tool_use",
            "id": call_id(running.reply.tool),
            "name": running.reply.tool,
            "input": _input(text),
        }
    usage = usage_body(Usage.of(finished), report=report)
    return _message(model, [block], stop_reason(running, finished), usage)


def _input(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _event(kind: str, **fields: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind} | fields) + b"\n\n"


class MessageWriter:
    """Stream of a message: start, one block of text or of a tool's input, stop reason, stop."""

    def __init__(self, model: str, running: Running | None, *, report: bool) -> None:
        """Write for one request."""
        self._model = model
        self._running = running
        self._report = report
        self._open = False
        self._tool = running.reply.tool if running is not None else ""
        text = (
            {"type": "input_json_delta", "partial_json": "\0"} if self._tool else {"type": "text_delta", "text": "\0"}
        )
        self._before, _, self._after = _event("content_block_delta", index=0, delta=text).partition(b"\\u0000")

    def start(self) -> bytes:
        """The message without content; its final counts come at the end."""
        prompt_tokens = self._running.prompt_tokens if self._running is not None else 0
        usage = usage_body(Usage(prompt_tokens, 0, 0), report=self._report)
        return _event("message_start", message=_message(self._model, [], None, usage))

    def tokens(self, from_token: int, to_token: int) -> bytes:
        """One delta for all of these tokens; the first opens the block."""
        assert self._running is not None
        text = self._running.reply.text(from_token, to_token)
        if not text:
            return b""
        opened = b""
        if not self._open:
            self._open = True
            block: dict[str, Any] = {"type": "text", "text": ""}
            if self._tool:
                block = {"type": "tool_use", "id": call_id(self._tool), "name": self._tool, "input": {}}
            opened = _event("content_block_start", index=0, content_block=block)
        return opened + self._before + (escape(text) if self._tool else text) + self._after

    def end(self, finished: Finished) -> bytes:
        """Close the block and the message."""
        assert self._running is not None
        closed = _event("content_block_stop", index=0) if self._open else b""
        delta = {"stop_reason": stop_reason(self._running, finished), "stop_sequence": None}
        usage = usage_body(Usage.of(finished), report=self._report)
        return closed + _event("message_delta", delta=delta, usage=usage) + _event("message_stop")

    def refused(self, error: QueueIsFull) -> bytes:
        """An error event."""
        return _event("error", error={"type": "overloaded_error", "message": error.message})
