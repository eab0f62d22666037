"""What a reconcile tells as Events: replicas that come, that are being emptied, that went, each with figures.

One Event for a thing that happened, however many replicas it concerned. Not here: the limits that keep Events from
becoming a storm (`kube.events`), and what stands in conditions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sglpool.api import names
from sglpool.api.base import Manifest
from sglpool.plan import DeleteObject, MarkPod, Scale, Step
from sglpool.plan.drain import ReplicaLoad
from sglpool.plan.steps import Drained
from sglpool.render.deadlines import DRAIN_S

MAX_NAMED = 3
"""Replicas that an Event names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One Event.

    Attributes:
        reason: One word.
        message: One or two sentences.
        action: What was done, one word.
    """

    reason: str
    message: str
    action: str = "Scale"


def notes_of(stored: Manifest, status: Manifest, done: Sequence[Step], loads: Mapping[str, ReplicaLoad]) -> list[Note]:
    """What happened in a reconcile.

    Args:
        stored: The pool's status as it was.
        status: As it is now.
        done: Steps that were carried out.
        loads: What replicas had to do, by uid.
    """
    return [*_grown(stored, status), *_drains(done, loads), *_gone(done)]


def _grown(stored: Manifest, status: Manifest) -> Iterable[Note]:
    now, before = status.get("autoscaling"), stored.get("autoscaling")
    if now is None or before is None or now["desired"] <= before["desired"]:
        return
    message = f"From {before['desired']} to {now['desired']} replicas, {now['reason']}: {now.get('message', '')}"
    yield Note(reason="ScaledUp", message=message.removesuffix(": "))


def _drains(done: Sequence[Step], loads: Mapping[str, ReplicaLoad]) -> Iterable[Note]:
    marks = [step for step in done if isinstance(step, MarkPod) and names.ANNOTATION_DRAINING in step.annotations]
    started = [step for step in marks if step.annotations[names.ANNOTATION_DRAINING] is not None]
    for reason in dict.fromkeys(step.reason for step in started):
        pods = [step for step in started if step.reason == reason]
        read = [load for step in pods if (load := loads.get(step.uid)) is not None]
        has = (
            f" {_many(sum(load.in_flight for load in read), 'request')} and "
            f"{_many(sum(load.conversations for load in read), 'conversation')} are there."
            if read
            else ""
        )
        yield Note(
            reason="DrainStarted", message=f"{_listed([step.name for step in pods])}: {reason}.{has}", action="Drain"
        )
    cancelled = [step.name for step in marks if step.annotations[names.ANNOTATION_DRAINING] is None]
    if cancelled:
        yield Note(reason="DrainCancelled", message=f"{_listed(cancelled)}: wanted again.", action="Drain")


def _gone(done: Sequence[Step]) -> Iterable[Note]:
    for step in done:
        if isinstance(step, Scale) and step.drained is not None:
            yield Note(reason="ScaledDown", message=f"{step.name} to {step.replicas}: {_cost(step.drained)}")
        elif isinstance(step, DeleteObject) and step.drained is not None:
            yield Note(reason="ReplicaReplaced", message=f"{step.reason}: {_cost(step.drained)}", action="Replace")


_LATE = f"cut unless over within {DRAIN_S} s"
"""The engine goes on with what it has for so long, and is out of the routers' sight."""


def _cost(drained: Drained) -> str:
    """What went with replicas that were taken away."""
    costs = [
        f"{_many(drained.conversations, 'conversation')} left",
        f"{drained.warm_tokens:,} warm tokens dropped",
        f"{_many(drained.requests, 'request')} {_LATE if drained.requests else 'cut'}",
    ]
    if drained.unread:
        costs.append(f"nothing known of {_many(drained.unread, 'replica')}")
    return f"{_listed(drained.pods)} with {', '.join(costs)}."


def _listed(pods: Sequence[str]) -> str:
    more = len(pods) - MAX_NAMED
    return ", ".join(pods[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
