"""Kubernetes Events about our objects: few, in the background, and never in the way of reconcile.

An Event is a courtesy to the person at `kubectl describe`; what must be known stands in conditions. So a full
queue, a refusing server or a repeated message drops events and counts them, and nothing waits for one.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from sglpool.kube.errors import KubeError
from sglpool.kube.port import KubePort
from sglpool.kube.resources import EVENTS, Manifest

_LOGGER = logging.getLogger(__name__)

EventType: TypeAlias = Literal["Normal", "Warning"]

REPORTING_COMPONENT = "sglpool-operator"
REPEAT_AFTER_S = 600.0
"""The same message about the same object is posted again after ten minutes at the earliest."""

_MOST_REMEMBERED = 1000
_MOST_QUEUED = 1000
_MINUTE_S = 60.0
_POST_TIMEOUT_S = 10.0

# Limits of the API server's validation.
_MAX_MESSAGE_CHARS = 1024
_MAX_WORD_CHARS = 128
_MAX_NAME_CHARS = 200


@dataclass(slots=True)
class EventCounts:
    """What became of the events so far."""

    posted: int = 0
    repeated: int = 0
    """Dropped because the same was said lately."""
    limited: int = 0
    """Dropped because the object had too many within a minute."""
    overflowed: int = 0
    """Dropped because the queue was full or the recorder closed."""
    failed: int = 0
    """Refused or not answered by the API server."""


class EventRecorder:
    """Posts Events from a bounded queue: `async with EventRecorder(kube, instance=...) as events: events.record(...)`.

    Args:
        kube: where to post.
        instance: which process speaks, such as the pod's name.
        per_object_per_minute: most events about one object within a minute.
        flush_timeout_s: longest time to post what is still queued when it is closed.
        clock: monotonic seconds.
        wall_clock: the time that the events carry.
    """

    def __init__(
        self,
        kube: KubePort,
        *,
        instance: str,
        per_object_per_minute: int = 10,
        flush_timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.counts = EventCounts()
        self._kube = kube
        self._instance = instance
        self._per_object_per_minute = per_object_per_minute
        self._flush_timeout_s = flush_timeout_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._queue: asyncio.Queue[Manifest] = asyncio.Queue(_MOST_QUEUED)
        # Both forget what was used least recently, so that they stay small for ever.
        self._said_at: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._recent: OrderedDict[str, deque[float]] = OrderedDict()
        self._poster: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "EventRecorder":
        self._poster = asyncio.create_task(self._post_all(), name="event-poster")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def record(
        self, regarding: Manifest, *, reason: str, message: str, action: str, event_type: EventType = "Normal"
    ) -> bool:
        """Queue an event and return at once; False if it was dropped.

        Args:
            regarding: the object, with `apiVersion`, `kind` and `metadata`.
            reason: one word in CamelCase.
            message: a sentence for people, cut at 1,024 characters.
            action: what was done or tried, one word in CamelCase.
            event_type: `Warning` if somebody should look.
        """
        uid, now = str(regarding["metadata"].get("uid", "")), self._clock()
        said_at = self._said_at.get((uid, reason, message))
        if said_at is not None and now - said_at < REPEAT_AFTER_S:
            self.counts.repeated += 1
            return False
        if not self._has_room(uid, now):
            self.counts.limited += 1
            return False
        if self._poster is None or self._queue.full():
            self.counts.overflowed += 1
            return False
        self._remember(uid, reason, message, now)
        event = event_manifest(
            regarding,
            reason=reason,
            message=message,
            action=action,
            event_type=event_type,
            now=self._wall_clock(),
            instance=self._instance,
        )
        self._queue.put_nowait(event)
        return True

    async def close(self) -> None:
        """Post what is queued, within the flush timeout, and stop. Later events are dropped."""
        poster, self._poster = self._poster, None
        if poster is None:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), self._flush_timeout_s)
        poster.cancel()
        await asyncio.gather(poster, return_exceptions=True)
        self.counts.overflowed += self._queue.qsize()

    async def _post_all(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._kube.create(event, timeout_s=_POST_TIMEOUT_S)
                self.counts.posted += 1
            except KubeError as error:
                self.counts.failed += 1
                _LOGGER.warning("Event %s not posted: %s", event["reason"], error)
            except Exception:
                self.counts.failed += 1
                _LOGGER.exception("Event %s not posted", event["reason"])
            finally:
                self._queue.task_done()

    def _has_room(self, uid: str, now: float) -> bool:
        times = self._recent.get(uid, ())
        return sum(now - at < _MINUTE_S for at in times) < self._per_object_per_minute

    def _remember(self, uid: str, reason: str, message: str, now: float) -> None:
        self._said_at[uid, reason, message] = now
        self._said_at.move_to_end((uid, reason, message))
        self._recent.setdefault(uid, deque(maxlen=self._per_object_per_minute)).append(now)
        self._recent.move_to_end(uid)
        for memory in (self._said_at, self._recent):
            while len(memory) > _MOST_REMEMBERED:
                memory.popitem(last=False)


def event_manifest(
    regarding: Manifest,
    *,
    reason: str,
    message: str,
    action: str,
    event_type: EventType,
    now: datetime,
    instance: str,
) -> Manifest:
    """The core/v1 Event that `EventRecorder.record` posts; texts cut to what the API server accepts."""
    metadata = regarding["metadata"]
    at = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {
            "namespace": metadata.get("namespace") or "default",
            "generateName": f"{metadata['name'][:_MAX_NAME_CHARS]}.",
        },
        "involvedObject": {
            "apiVersion": regarding["apiVersion"],
            "kind": regarding["kind"],
            **{key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if metadata.get(key)},
        },
        "reason": reason[:_MAX_WORD_CHARS],
        "message": message if len(message) <= _MAX_MESSAGE_CHARS else message[: _MAX_MESSAGE_CHARS - 1] + "…",
        "type": event_type,
        "action": action[:_MAX_WORD_CHARS],
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": REPORTING_COMPONENT},
        "reportingComponent": REPORTING_COMPONENT,
        "reportingInstance": instance[:_MAX_WORD_CHARS],
    }
