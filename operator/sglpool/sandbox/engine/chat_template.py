"""Conversations as bytes: a turn is the turn before it, its reply and the new messages, byte for byte.

That holds for words and for tool calls, so that a cache of prefixes works as it does with a real model. What
clients may change between turns (ids of calls, blanks in JSON) is left out. Images stand as bytes made from
their content. Not here: other request formats; the API modules turn theirs into OpenAI messages first.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglpool.sandbox.engine.errors import ApiError, invalid
from sglpool.sandbox.engine.filler import END, TOKEN_BYTES, TOOL_CLOSE, TOOL_NAMED, TOOL_OPEN, canonical

IMAGE_TOKENS = 256
"""Tokens of an image, whatever its size. An estimate: real ones take 64 to some thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRules:
    """What is done with images.

    Attributes:
        vision: whether the model takes them; if not they are dropped, as templates for text do.
        fetch: whether http URLs are accepted. They are never fetched: the URL stands for the image.
    """

    vision: bool
    fetch: bool


@dataclass(slots=True)
class Rendered:
    """A prompt.

    Attributes:
        text: its bytes.
        images: how many images are in it.
    """

    text: bytes
    images: int = 0


@dataclass(slots=True)
class _Writer:
    rules: ImageRules
    parts: list[bytes] = field(default_factory=list)
    images: int = 0


def render(messages: Sequence[object], tools: object, rules: ImageRules) -> Rendered:
    """The prompt of a conversation, up to where the assistant's next message begins.

    Raises:
        ApiError: a message is not one.
    """
    writer = _Writer(rules)
    if tools:
        writer.parts += (b"<|tools|>", canonical(tools), END)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid(f"messages.{index}", "Input should be a valid dictionary", "model_attributes_type")
        _write_message(writer, message, f"messages.{index}")
    writer.parts.append(b"<|assistant|>")
    return Rendered(b"".join(writer.parts), writer.images)


def _write_message(writer: _Writer, message: Mapping[str, Any], at: str) -> None:
    role = message.get("role")
    if not isinstance(role, str):
        raise invalid(f"{at}.role", "Field required", "missing")
    writer.parts.append(b"<|" + _utf8(role) + b"|>")
    _write_content(writer, message.get("content"), f"{at}.content")
    for call in message.get("tool_calls") or ():
        _write_call(writer, call, f"{at}.tool_calls")
    writer.parts.append(END)


def _write_content(writer: _Writer, content: object, at: str) -> None:
    if content is None:
        return
    if isinstance(content, str):
        writer.parts.append(_utf8(content))
        return
    if not isinstance(content, list):
        raise invalid(at, "Input should be a valid string or list", "string_type")
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            writer.parts.append(_utf8(part["text"]))
        elif kind == "image_url":
            _write_image(writer, part, f"{at}.{index}")
        else:
            raise invalid(f"{at}.{index}", f"Unsupported content part of type {kind!r}")


def _write_image(writer: _Writer, part: Mapping[str, Any], at: str) -> None:
    source = part.get("image_url")
    url = source.get("url") if isinstance(source, dict) else source
    if not isinstance(url, str):
        raise invalid(f"{at}.image_url.url", "Input should be a valid string", "string_type")
    if not writer.rules.vision:
        return
    _check_image(url, writer.rules)
    writer.images += 1
    digest = hashlib.blake2b(_utf8(url), digest_size=32).hexdigest().encode()
    writer.parts += (b"<|image|>", (digest * (IMAGE_TOKENS * TOKEN_BYTES // len(digest))), END)


def _check_image(url: str, rules: ImageRules) -> None:
    head, comma, data = url.partition(",")
    if head.startswith("data:"):
        if not comma or not head.endswith(";base64"):
            raise ApiError(400, "An image's data: URI must be of the form data:image/...;base64,...")
        try:
            base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(400, "An image's data: URI does not hold valid base64.") from None
    elif not url.startswith(("http://", "https://")):
        raise ApiError(400, f"Invalid image: {url[:80]!r} is neither a data: URI nor an http URL.")
    elif not rules.fetch:
        raise ApiError(400, "Fetching media from URLs is disabled on this server; send the image as a data: URI.")


def _write_call(writer: _Writer, call: object, at: str) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"{at}.function.name", "Field required", "missing")
    arguments = function.get("arguments", "")
    writer.parts += (TOOL_OPEN, _utf8(function["name"]), TOOL_NAMED, _arguments(arguments), TOOL_CLOSE)


def _arguments(arguments: object) -> bytes:
    """The arguments in the one form; text that is no JSON (a call cut off by a limit) stays as it is."""
    if not isinstance(arguments, str):
        return canonical(arguments)
    try:
        return canonical(json.loads(arguments))
    except (ValueError, RecursionError):
        return _utf8(arguments)


def _utf8(text: str) -> bytes:
    """Bytes of a text; JSON can hold halves of surrogate pairs, which stay what they are."""
    return text.encode("utf-8", "surrogatepass")
