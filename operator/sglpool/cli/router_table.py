"""The table of `sglpool router show`: one row a replica, over all routers of the pool.

Routers count their own requests and conversations, so those are summed; what they polled from the engine is taken
from the one that polled last. Not here: where the states come from (`router`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sglpool.cli.plan_table import PIPE_WIDTH
from sglpool.sizing.text import tokens

NEVER_S = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One replica as all routers together see it.

    Attributes:
        pod: Its pod.
        gpu: Its GPU type.
        states: What is special about it, in words.
        load: The largest load that a router sees.
        in_flight: Requests over all routers.
        limit: Most requests that the routers keep on it.
        queued: Requests waiting inside the engine.
        kv_used_tokens: KV cache in use.
        kv_total_tokens: KV cache.
        conversations: Conversations that live on it, over all routers.
        poll_age_s: Age of the newest poll.
    """

    pod: str
    gpu: str
    states: tuple[str, ...]
    load: float
    in_flight: int
    limit: int
    queued: int
    kv_used_tokens: int
    kv_total_tokens: int
    conversations: int
    poll_age_s: float


def rows(states: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Merge the states of the routers of a pool."""
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for state in states:
        for replica in state["replicas"]:
            seen.setdefault(replica["uid"], []).append(replica)
    return sorted((_merge(views) for views in seen.values()), key=lambda row: row.pod)


def print_routers(pool: str, states: Sequence[Mapping[str, Any]]) -> None:
    """Print the table on standard output."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    console.print(Text(headline(pool, states)))
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("REPLICA", no_wrap=True)
    table.add_column("GPU", no_wrap=True)
    for name in ("LOAD", "IN FLIGHT", "QUEUED", "KV TOKENS", "KV", "CONVERSATIONS"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("STATE", overflow="fold")
    for row in rows(states):
        table.add_row(*map(Text, cells(row)))
    console.print(table)


def headline(pool: str, states: Sequence[Mapping[str, Any]]) -> str:
    """Routers, conversations and the store in one line."""
    routers = "1 router" if len(states) == 1 else f"{len(states)} routers"
    conversations = max((int(state["conversations"]) for state in states), default=0)
    parts = [f"Pool {pool}: {routers}", f"{conversations} conversations remembered"]
    leaving = sum(bool(state.get("leaving")) for state in states)
    if leaving:
        parts.append(f"{leaving} leaving")
    stores = [state["store"] for state in states if state["store"].get("configured", True)]
    if stores:
        reached = sum(bool(store["available"]) for store in stores)
        parts.append(f"store reached by {reached} of {len(stores)}")
    return ", ".join(parts)


def cells(row: Row) -> tuple[str, ...]:
    """A row as it is printed."""
    share = f"{100 * row.kv_used_tokens / row.kv_total_tokens:.0f}%" if row.kv_total_tokens else "-"
    used = tokens(row.kv_used_tokens) if row.kv_total_tokens else "-"
    return (
        row.pod,
        row.gpu,
        f"{row.load:.1f}",
        f"{row.in_flight}/{row.limit}",
        str(row.queued),
        used,
        share,
        str(row.conversations),
        ", ".join(row.states) or "serving",
    )


def _merge(views: Sequence[Mapping[str, Any]]) -> Row:
    freshest = min(views, key=_age_s)
    return Row(
        pod=freshest["pod"],
        gpu=freshest["gpu"],
        states=_words(views, freshest),
        load=max(float(view["load"]) for view in views),
        in_flight=sum(int(view["in_flight"]) for view in views),
        limit=int(freshest.get("max_concurrent", 0)),
        queued=int(freshest["queued"]),
        kv_used_tokens=int(freshest["kv_used_tokens"]),
        kv_total_tokens=int(freshest["kv_total_tokens"]),
        conversations=sum(int(view["conversations"]) for view in views),
        poll_age_s=_age_s(freshest),
    )


def _age_s(view: Mapping[str, Any]) -> float:
    age_s = view.get("last_poll_age_s")
    return NEVER_S if age_s is None else float(age_s)


def _words(views: Sequence[Mapping[str, Any]], freshest: Mapping[str, Any]) -> tuple[str, ...]:
    """What is special; `idle` only if every router says so."""
    found = [word for word in ("terminating", "unproven") if freshest.get(word)]
    if any(view["draining"] for view in views):
        found.append("draining")
    if any(view.get("refused") for view in views):
        found.append("full")
    if not freshest["healthy"]:
        found.append("not ready" if freshest.get("ready") is False else "unhealthy")
    if all(view.get("idle") for view in views):
        found.append("idle")
    return tuple(found)
