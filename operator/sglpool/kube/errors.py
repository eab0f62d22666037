"""What can go wrong between us and the API server, in six classes that callers treat differently.

Each error names the verb, the object and the server's own words in one sentence. What to do about an error (back
off, show a condition, give up) is the caller's decision.
"""

import json
from collections.abc import Mapping
from typing import Any

_MAX_MESSAGE_CHARS = 600
_MAX_CAUSES = 5
_MAX_CAUSE_CHARS = 200
# Server-side apply of a built-in type reports an unknown field, a wrong type and a duplicate list key as a 500
# with these words (seen on 1.37), although the manifest is to blame.
_REFUSED_APPLY = "failed to create typed patch object"


class KubeConfigError(Exception):
    """There is no usable way to reach an API server: no kubeconfig, a broken one, or not inside a pod."""


class KubeError(Exception):
    """A request that the API server refused or did not answer.

    Attributes:
        verb: what was asked for, such as `apply`.
        kind: kind of the object.
        namespace: its namespace; empty for a cluster-scoped object or a list over all namespaces.
        name: its name; empty for a list.
        message: the server's words, shortened.
        code: the HTTP status, 0 when there was no answer.
        reason: the `reason` of the server's Status object, such as `AlreadyExists`; may be empty.
        causes: `field: message` of each cause in the server's Status object, at most five, shortened.
    """

    def __init__(
        self,
        message: str,
        *,
        verb: str,
        kind: str,
        namespace: str = "",
        name: str = "",
        code: int = 0,
        reason: str = "",
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = _shorten(message, _MAX_MESSAGE_CHARS)
        self.verb = verb
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.code = code
        self.reason = reason
        self.causes = causes

    @property
    def key(self) -> str:
        """`namespace/name`, or the part of it that there is."""
        return "/".join(part for part in (self.namespace, self.name) if part)

    def __str__(self) -> str:
        what = f"{self.kind} {self.key}" if self.name else f"{self.kind} objects"
        if not self.name:
            what += f" in namespace {self.namespace}" if self.namespace else " of the cluster"
        answer = f" ({self.code}{f' {self.reason}' if self.reason else ''})" if self.code else ""
        return f"Cannot {self.verb} {what}: {self.message}{answer}"


class NotFound(KubeError):
    """404: the object, its namespace or its resource type is not there."""


class Conflict(KubeError):
    """409: it exists already, it changed in between, or a precondition (uid, resourceVersion) does not hold."""

    @property
    def already_exists(self) -> bool:
        """Whether a create met an object of the same name."""
        return self.reason == "AlreadyExists"


class Forbidden(KubeError):
    """401 or 403: we are not known, or not allowed to do this."""

    @property
    def namespace_terminating(self) -> bool:
        """Whether the namespace is being deleted, so that nothing can be created in it any more."""
        return "is being terminated" in self.message


class Invalid(KubeError):
    """400, 422 or another 4xx: the request itself is wrong; repeating it unchanged is useless."""


class Transient(KubeError):
    """5xx, 429, a timeout or a broken connection: may go well later.

    Attributes:
        retry_after_s: the server's wish when to come back; None when it named none.
    """

    retry_after_s: float | None = None


def error_from_response(
    *,
    verb: str,
    kind: str,
    namespace: str,
    name: str,
    code: int,
    body: bytes,
    headers: Mapping[str, str],
) -> KubeError:
    """The error that stands for an answer other than 2xx.

    The body is normally a `Status` object. Proxies and a dying server answer with text; then that is the message.
    """
    status = _status_object(body)
    message = str(status.get("message") or "") or body.decode(errors="replace").strip() or "no explanation"
    error = _class_of(code, message)(
        message,
        verb=verb,
        kind=kind,
        namespace=namespace,
        name=name,
        code=code,
        reason=str(status.get("reason") or ""),
        causes=_causes(status),
    )
    if isinstance(error, Transient):
        error.retry_after_s = _retry_after_s(status, headers)
    return error


def _class_of(code: int, message: str) -> type[KubeError]:
    if message.startswith(_REFUSED_APPLY):
        return Invalid
    match code:
        case 404:
            return NotFound
        case 409:
            return Conflict
        case 401 | 403:
            return Forbidden
        # 410: a list's continue token or a watch's version has expired; a new request starts over.
        case 408 | 410 | 425 | 429:
            return Transient
    # Redirects and other surprises between us and the server are not a verdict on the request.
    return Invalid if 400 <= code < 500 else Transient


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        status = json.loads(body)
    except ValueError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}


def _causes(status: Mapping[str, Any]) -> tuple[str, ...]:
    causes = (status.get("details") or {}).get("causes") or []
    texts = (": ".join(part for part in (c.get("field"), c.get("message")) if part) for c in causes[:_MAX_CAUSES])
    return tuple(_shorten(text, _MAX_CAUSE_CHARS) for text in texts)


def _retry_after_s(status: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
    wish = headers.get("Retry-After") or (status.get("details") or {}).get("retryAfterSeconds")
    try:
        return float(wish) if wish is not None else None
    except ValueError:
        return None  # the HTTP date form, which the API server does not use


def _shorten(text: str, limit: int) -> str:
    """At most `limit` characters on one line. The middle goes: there the server quotes whole objects."""
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]} … {text[head + 3 - limit :]}"
