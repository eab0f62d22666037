"""Waiting for the real world: poll with a limit, and say what was seen when the limit passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T], *, timeout_s: float, describe: str | Callable[[], str], interval_s: float = 0.1
) -> T:
    """Return the first true value of `predicate`; fail with `describe` when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            text = describe() if callable(describe) else describe
            raise AssertionError(f"not within {timeout_s:g} s: {text}")
        time.sleep(interval_s)


def wait_quiet(look: Callable[[], T], *, quiet_s: float, timeout_s: float, what: str, interval_s: float = 0.5) -> T:
    """Return what `look` sees once that has been the same for a while; fail when it changes all the time."""
    deadline = time.monotonic() + timeout_s
    seen = look()
    since = time.monotonic()
    while True:
        time.sleep(interval_s)
        # A look that takes long says nothing of the time after it began.
        asked = time.monotonic()
        now = look()
        if now != seen:
            if time.monotonic() > deadline:
                raise AssertionError(f"not quiet for {quiet_s:g} s within {timeout_s:g} s: {what}: {seen} became {now}")
            seen, since = now, time.monotonic()
        elif asked - since >= quiet_s:
            return seen
