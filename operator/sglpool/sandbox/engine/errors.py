"""Errors that a client of the simulated engine gets, in the bodies that SGLang gives.

Not here: who raises them (the API modules) and how they are sent (http.py).
"""

from __future__ import annotations

import json
from typing import Any

ANTHROPIC_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "too_large"}


class ApiError(Exception):
    """A request that is refused; the text is the sentence for the client."""

    def __init__(self, status: int, message: str, *, type_: str = "BadRequestError") -> None:
        """Refuse with an HTTP status; `type_` is the word that OpenAI bodies carry."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_

    def body(self) -> dict[str, Any]:
        """The error object of the OpenAI endpoints."""
        return {"object": "error", "message": self.message, "type": self.type, "param": None, "code": self.status}

    def anthropic(self) -> dict[str, Any]:
        """The error object of `/v1/messages`."""
        kind = ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


class QueueIsFull(ApiError):
    """The bounded queue refused the request: 503, but a stream has sent its 200 by then and gets an event."""

    def __init__(self) -> None:
        """Refuse in the engine's own words."""
        super().__init__(503, "The request queue is full.", type_="503")

    def event(self) -> dict[str, Any]:
        """The error event of a stream; its type is another one than in a plain body."""
        return {"error": self.body() | {"type": "SERVICE_UNAVAILABLE"}}


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


def invalid(location: str, message: str, kind: str = "value_error") -> ApiError:
    """A body of the wrong shape, in the form that the validation of SGLang's front end gives."""
    detail = {"type": kind, "loc": ["body", *location.split(".")], "msg": message}
    return ApiError(400, f"1 validation error: {json.dumps(detail)}", type_="Bad Request")


def missing(field: str) -> ApiError:
    """A field that must be there."""
    return invalid(field, "Field required", "missing")
