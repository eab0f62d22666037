"""`/v1/responses`: the OpenAI Responses shapes. Responses are not kept, so none can be fetched or continued by id.

Requests become chat messages; one prompt, one cache. Not here: the prompt's bytes (chat_template.py).
"""

from __future__ import annotations

import time
from typing import Any

from sglpool.enginemodel.records import Finished
from sglpool.sandbox.engine import chat_template
from sglpool.sandbox.engine.errors import ApiError, QueueIsFull, invalid, missing
from sglpool.sandbox.engine.generation import Ask, Generation, Running, Usage, request_id, whole_number
from sglpool.sandbox.engine.http import Exchange, encode
from sglpool.sandbox.engine.openai_api import chosen_tool, escape, image_rules, new_id, text_of
from sglpool.sandbox.engine.spec import Spec


class Responses:
    """The endpoint."""

    def __init__(self, spec: Spec, generation: Generation) -> None:
        """Answer for the model of `spec`."""
        self._spec = spec
        self._generation = generation
        self._images = image_rules(spec)

    async def create(self, exchange: Exchange) -> None:
        """Serve a response."""
        body = await exchange.json()
        if body.get("previous_response_id") is not None:
            raise ApiError(400, "previous_response_id: this simulated engine keeps no responses; send the whole input.")
        tools = [{"type": "function", "function": tool} for tool in body.get("tools") or [] if isinstance(tool, dict)]
        rendered = chat_template.render(to_messages(body.get("instructions"), body.get("input")), tools, self._images)
        ask = Ask(
            prompt=rendered.text,
            rid=request_id(body | {"rid": body.get("request_id") or body.get("rid")}),
            images=rendered.images,
            streaming=body.get("stream") is True,
            limit_tokens=whole_number(body, "max_output_tokens"),
            ignore_eos=body.get("ignore_eos") is True,
            tool=chosen_tool(tools, body.get("tool_choice")),
        )
        shape = _Shape(body, str(body.get("model") or self._spec.served_model_name))
        await self._generation.respond(
            exchange,
            ask,
            writer=lambda running: ResponseWriter(shape, running),
            plain=shape.response,
        )

    async def fetch(self, exchange: Exchange) -> None:
        """No response is kept."""
        raise ApiError(404, f"Response with id '{exchange.tail}' not found.", type_="invalid_request_error")


def to_messages(instructions: object, items: object) -> list[dict[str, Any]]:
    """Input items as chat messages.

    Raises:
        ApiError: an item is not one.
    """
    if not items:
        raise missing("input")
    result: list[dict[str, Any]] = []
    if instructions:
        result.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*result, {"role": "user", "content": items}]
    if not isinstance(items, list):
        raise invalid("input", "Input should be a valid string or list", "string_type")
    for index, item in enumerate(items):
        message = _message(item, index)
        if message is not None:
            result.append(message)
    return result


def _message(item: object, index: int) -> dict[str, Any] | None:
    if not isinstance(item, dict):
        raise invalid(f"input.{index}", "Input should be a valid dictionary", "model_attributes_type")
    kind = item.get("type", "message")
    if kind == "message":
        content = item.get("content")
        return {
            "role": item.get("role"),
            "content": [_part(part) for part in content] if isinstance(content, list) else content,
        }
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
        return {"role": "assistant", "tool_calls": [{"function": function}]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    if kind == "reasoning":
        return None
    raise invalid(f"input.{index}.type", f"Unsupported input item of type {kind!r}")


def _part(part: object) -> object:
    if not isinstance(part, dict):
        return part
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    if part.get("type") in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text")}
    return part


class _Shape:
    """The response object of one request, at any stage."""

    def __init__(self, body: dict[str, Any], model: str) -> None:
        self.id = str(body.get("request_id") or new_id("resp"))
        self.item_id = new_id("msg")
        self.call_id = new_id("call")
        self._created = int(time.time())
        self._model = model
        self._body = body

    def response(self, running: Running, finished: Finished) -> dict[str, Any]:
        """The finished response."""
        cut = finished.reason == "abort" or not running.reply.stops
        item = self.item(running.reply.tool, text_of(running, finished), "incomplete" if cut else "completed")
        response = self.empty("incomplete" if cut else "completed") | {"output": [item], "usage": _usage(finished)}
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens" if finished.reason == "stop" else "abort"}
        return response

    def empty(self, status: str) -> dict[str, Any]:
        """The response without output."""
        body = self._body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": False,
            "temperature": body.get("temperature"),
            "text": None,
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p"),
            "usage": None,
            "metadata": body.get("metadata"),
        }

    def item(self, tool: str, text: str, status: str) -> dict[str, Any]:
        """The one output item: a message or a call."""
        if tool:
            call = {"type": "function_call", "id": self.item_id, "call_id": self.call_id, "name": tool}
            return call | {"arguments": text, "status": status}
        content = [text_part(text)] if text or status != "in_progress" else []
        return {"type": "message", "id": self.item_id, "role": "assistant", "status": status, "content": content}


def text_part(text: str) -> dict[str, Any]:
    """A content part of output."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _usage(finished: Finished) -> dict[str, Any]:
    usage = Usage.of(finished)
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponseWriter:
    """Stream of a response: created, one item with its deltas, completed; events are numbered."""

    def __init__(self, shape: _Shape, running: Running | None) -> None:
        """Write for one request."""
        self._shape = shape
        self._running = running
        self._number = 0
        self._tool = running.reply.tool if running is not None else ""
        self._where: dict[str, Any] = {"item_id": shape.item_id, "output_index": 0}
        if not self._tool:
            self._where["content_index"] = 0
        self._kind = "response.function_call_arguments" if self._tool else "response.output_text"
        # Cut like a number would be: the event's number and its text change, the rest does not.
        frame = encode({"type": f"{self._kind}.delta"} | self._where | {"delta": "\0"})[:-1]
        self._before, _, self._after = frame.partition(b"\\u0000")

    def _event(self, kind: str, **fields: object) -> bytes:
        data = encode({"type": kind, "sequence_number": self._number} | fields)
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def start(self) -> bytes:
        """The response, begun, and its item."""
        shape = self._shape
        data = self._event("response.created", response=shape.empty("in_progress"))
        data += self._event("response.in_progress", response=shape.empty("in_progress"))
        item = shape.item(self._tool, "", "in_progress")
        data += self._event("response.output_item.added", output_index=0, item=item)
        if not self._tool:
            data += self._event("response.content_part.added", **self._where, part=text_part(""))
        return data

    def tokens(self, from_token: int, to_token: int) -> bytes:
        """One delta for all of these tokens."""
        assert self._running is not None
        text = self._running.reply.text(from_token, to_token)
        if not text:
            return b""
        number = self._number
        self._number += 1
        kind = self._kind.encode()
        shown = escape(text) if self._tool else text
        return b'event: %s.delta\ndata: %s%s%s,"sequence_number":%d}\n\n' % (
            kind,
            self._before,
            shown,
            self._after,
            number,
        )

    def end(self, finished: Finished) -> bytes:
        """Close the item and the response."""
        assert self._running is not None
        response = self._shape.response(self._running, finished)
        item, text = response["output"][0], text_of(self._running, finished)
        if self._tool:
            data = self._event(f"{self._kind}.done", **self._where, name=self._tool, arguments=text)
        else:
            data = self._event(f"{self._kind}.done", **self._where, text=text, logprobs=[])
            data += self._event("response.content_part.done", **self._where, part=text_part(text))
        data += self._event("response.output_item.done", output_index=0, item=item)
        return data + self._event(f"response.{response['status']}", response=response)

    def refused(self, error: QueueIsFull) -> bytes:
        """A failed response."""
        failed = self._shape.empty("failed") | {"error": {"code": "server_error", "message": error.message}}
        return self._event("response.failed", response=failed)
