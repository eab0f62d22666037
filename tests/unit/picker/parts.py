"""What the picker's unit tests are made of: a ledger with a clock of its own, and pods."""

from __future__ import annotations

import random
from typing import Any

from sglpool.picker.fleet import Fleet
from sglpool.picker.ledger import Entry, Ledger, Picked
from sglpool.picker.metrics import Metrics
from sglpool.picker.pods import PodView
from sglpool.routing.pickerconfig import PickerConfig
from sglpool.routing.types import ConversationKey, PolicyConfig, Replica


class Clock:
    """Time that only tests move."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def key(number: int) -> ConversationKey:
    return ConversationKey(f"{number:016x}", "")


def make_ledger(replicas: int = 2, *, clock: Clock | None = None, **limits: Any) -> Ledger:
    ledger = Ledger(PolicyConfig(), Metrics(), random.Random(1), clock or Clock())
    for number in range(1, replicas + 1):
        ledger.put(Replica(uid=f"e{number}", address=f"10.0.0.{number}:30000", **limits))
    return ledger


def picked(answer: object) -> Picked:
    assert isinstance(answer, Picked)
    return answer


def ended(pick: Picked, **changes: Any) -> Entry:
    """The log's entry of a pick that went well."""
    fields: dict[str, Any] = {
        "pick_id": pick.pick_id,
        "upstream": pick.destination.partition(",")[0],
        "status": 200,
        "flags": "-",
        "attempts": 1,
        "finish": "stop",
        "prompt_tokens": 1000,
        "cached_tokens": 0,
        "completion_tokens": 10,
        "refused": False,
    }
    return Entry(**{**fields, **changes})


def pod(uid: str = "u1", ip: str = "10.0.0.1", **changes: Any) -> PodView:
    fields: dict[str, Any] = {
        "uid": uid,
        "name": f"pod-{uid}",
        "component": "engine",
        "ip": ip,
        "gpu": "B200",
        "ready": True,
        "ready_since_s": 1000.0,
        "restarts": 0,
        "terminating": False,
        "draining": False,
        "drain_deadline_s": None,
        "revision": "r1",
        "unproven": False,
        "proven": False,
        "over": False,
    }
    return PodView(**{**fields, **changes})


def config(**changes: Any) -> PickerConfig:
    return PickerConfig(pool="p", pool_uid="u", namespace="ns", label_selector="a=b", **changes)


def make_fleet(**changes: Any) -> tuple[Fleet, Ledger, list[int]]:
    """A fleet, its ledger, and how often it asked for a new endpoint file."""
    ledger = make_ledger(0)
    asked: list[int] = []
    return Fleet(config(**changes), ledger, lambda: asked.append(1)), ledger, asked
