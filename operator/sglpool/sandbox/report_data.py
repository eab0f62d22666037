"""What a run of the demo leaves behind: readings, requests, events and the chapters of the story. Plain values.

All times are seconds since the recording began. Not here: who reads them (`recorder`, `traffic`), and what is made of
them (`report_figures`, `report`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a replica is doing."""

    STARTING = "starting"
    SERVING = "serving"
    SILENT = "silent"
    DRAINING = "draining"
    ENDING = "ending"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica at one moment.

    Attributes:
        pod: Its pod.
        gpu: Its GPU type.
        node: Where it runs, empty before it is scheduled.
        state: What it is doing.
        in_flight: Requests that the routers have on it; None when no router could be read or knows it.
        kv_used_tokens: KV cache that running requests hold.
        kv_total_tokens: KV cache, 0 when unknown.
        conversations: Conversations that live on it.
    """

    pod: str
    gpu: str
    node: str = ""
    state: State
    in_flight: int | None = None
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    conversations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """Replicas of one GPU type at one moment.

    Attributes:
        type: Its name.
        wanted: Replicas that the operator wants.
        ready: Replicas that are Ready.
        target: Running requests that one replica should carry.
    """

    type: str
    wanted: int
    ready: int
    target: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of the pool.

    Attributes:
        at_s: When.
        replicas: Every replica, by name.
        types: GPU types in order of preference.
        sessions: Agent sessions that the demo keeps going.
        in_flight: Requests in flight over all routers; None when none could be read.
        reason: Reason of the pool's Ready condition.
        decided: Replicas that the autoscaler wants; None for a pool of fixed size.
        why: The autoscaler's reason, one word.
        because: The same as a sentence.
    """

    at_s: float
    replicas: tuple[Replica, ...] = ()
    types: tuple[GpuType, ...] = ()
    sessions: int = 0
    in_flight: int | None = None
    reason: str = ""
    decided: int | None = None
    why: str = ""
    because: str = ""

    @property
    def wanted(self) -> int:
        """Wanted replicas over all GPU types."""
        return sum(gpu.wanted for gpu in self.types)

    @property
    def ready(self) -> int:
        """Ready replicas over all GPU types."""
        return sum(gpu.ready for gpu in self.types)

    @property
    def capacity(self) -> int:
        """Running requests that the ready replicas should carry."""
        return sum(gpu.ready * gpu.target for gpu in self.types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a client.

    Attributes:
        at_s: When it was sent.
        first_token_s: Seconds to the first token (TTFT).
        total_s: Seconds to the last.
        prompt_tokens: Tokens of its prompt.
        cached_tokens: How many of them were in the KV cache.
        problem: Why it failed, empty when it did not.
    """

    at_s: float
    first_token_s: float = 0.0
    total_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A Kubernetes Event.

    Attributes:
        at_s: When it was first seen.
        about: Kind and name of its object.
        reason: One word.
        message: A sentence.
        warning: Whether it is a warning.
        count: How often it came.
    """

    at_s: float
    about: str
    reason: str
    message: str
    warning: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Something that the demo did, or that it saw come true.

    Attributes:
        at_s: When.
        text: A few words.
    """

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything about one run.

    Attributes:
        pool: Name of the pool.
        model: What it serves.
        speed: How many times faster than life its engines ran.
        start_speed: How many times faster they started, None for the same.
        began: Date and time of its beginning, for people.
        version: Version of sglpool.
        samples: Readings, oldest first.
        requests: Requests, in the order in which they ended.
        events: Events, oldest first.
        chapters: What the demo did, oldest first.
        missed: Readings that failed.
    """

    pool: str
    model: str
    speed: float
    began: str
    version: str
    start_speed: float | None = None
    samples: tuple[Sample, ...] = ()
    requests: tuple[Request, ...] = ()
    events: tuple[Event, ...] = ()
    chapters: tuple[Chapter, ...] = ()
    missed: int = 0

    @property
    def end_s(self) -> float:
        """When the last thing happened."""
        seen = [item.at_s for item in self.samples[-1:]]
        seen += [item.at_s for item in self.events[-1:]]
        seen += [item.at_s for item in self.chapters[-1:]]
        seen += [item.at_s + item.total_s for item in self.requests[-1:]]
        return max([*seen, 1.0])
