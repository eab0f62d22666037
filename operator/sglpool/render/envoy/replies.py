"""What Envoy itself answers: in the shape that OpenAI's clients read, and with words about what to do."""

from __future__ import annotations

from typing import Any

RETRY_AFTER_S = 5
"""For a client that found no replica."""

_HINTS: tuple[tuple[int, str, str], ...] = (
    (403, "authentication_error", "Send a valid API key as Authorization: Bearer KEY, or as x-api-key."),
    (404, "not_found_error", "This path is not served here: chat completions, completions, responses, messages, "
     "models and tokenize are."),
    (413, "invalid_request_error", "The request body is larger than this endpoint takes (spec.router.bodyLimit)."),
    (429, "rate_limit_error", "Every replica is at its limit of requests: try again after Retry-After seconds."),
    (503, "service_unavailable_error", "No replica can take this request now: try again after Retry-After seconds."),
)  # fmt: skip


_HEADERS = {403: ("www-authenticate", "Bearer"), 503: ("retry-after", str(RETRY_AFTER_S))}
_SHOWN = {403: 401}
"""Only the check of API keys answers 403 here: who sent no valid key is unknown rather than forbidden."""


def _mapper(status: int, kind: str, message: str) -> dict[str, Any]:
    mapper: dict[str, Any] = {
        "filter": {
            "status_code_filter": {
                "comparison": {"op": "EQ", "value": {"default_value": status, "runtime_key": f"sglpool.reply.{status}"}}
            }
        },
        "body_format_override": {
            "json_format": {"error": {"message": message, "type": kind, "code": _SHOWN.get(status, status)}},
        },
    }
    if status in _SHOWN:
        mapper["status_code"] = _SHOWN[status]
    if status in _HEADERS:
        name, text = _HEADERS[status]
        header = {"header": {"key": name, "value": text}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        mapper["headers_to_add"] = [header]
    return mapper


LOCAL_REPLIES: dict[str, Any] = {"mappers": [_mapper(*hint) for hint in _HINTS]}
"""`local_reply_config` of the listener."""
