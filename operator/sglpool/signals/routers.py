"""Routers' own state, over HTTP by pod IP: requests in flight, refusals, and what they polled from the engines.

Every router counts its own requests and conversations, so those are summed; what several polled from one engine is
taken from the latest poll. A router that contradicts itself, the cluster or its own name is as good as silent: acting
on half a truth is worse than waiting. Not here: what routers decide.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglpool.signals.fields import Unreadable, count, objects, parse_object, seconds, text
from sglpool.signals.http import Web
from sglpool.signals.reading import Endpoint, Reading, ReplicaReading, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReplica:
    """One replica as one router sees it.

    Attributes:
        uid: uid of its pod.
        in_flight: This router's requests on it.
        queued: Requests that wait inside its engine.
        kv_used_tokens: KV cache in use.
        kv_total_tokens: KV cache.
        conversations: Conversations of this router that live on it.
        warm_tokens: What those hold there, while it drains.
        idle: Whether the router knows of nothing that runs or is about to come back.
        poll_age_s: Since the engine last answered, None if it never did.
    """

    uid: str
    in_flight: int
    queued: int
    kv_used_tokens: int
    kv_total_tokens: int
    conversations: int
    warm_tokens: int
    idle: bool
    poll_age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterState:
    """What one router says.

    Attributes:
        in_flight: Its requests in flight.
        refused_conversations: Conversations that it refused within a minute.
        replicas: By uid.
    """

    in_flight: int
    refused_conversations: int
    replicas: Mapping[str, RouterReplica]


async def read_routers(web: Web, target: Target) -> Reading:
    """Ask all routers of a pool at once."""
    known = frozenset(engine.uid for engine in target.engines)
    asked = await asyncio.gather(*(_ask(web, target, router, known) for router in target.routers))
    return merge(dict(zip(target.routers, asked, strict=True)), target)


async def _ask(web: Web, target: Target, router: Endpoint, known: Collection[str]) -> RouterState | str:
    """A router's state, or the sentence that says why there is none."""
    try:
        body = await web.get(router.address, target.router_port, "/state")
        return parse_state(parse_object(body), pool=target.pool, router=router.name, known=known)
    except Unreadable as problem:
        return f"Router {router.name} {problem}."


def parse_state(state: Mapping[str, Any], *, pool: str, router: str, known: Collection[str]) -> RouterState:
    """Read the answer of /state.

    Args:
        state: The answer.
        pool: The pool that was asked about.
        router: The router that was asked: an IP may have passed on to another pod.
        known: uids of the pool's replicas.

    Raises:
        Unreadable: It is another pool's or router's, is no state, or reports more than exists.
    """
    for name, wanted in (("pool", pool), ("router", router)):
        said = text(state, name)
        if said != wanted:
            raise Unreadable(f"speaks for {name} {said[:80]!r}")
    replicas = {replica.uid: replica for replica in map(_replica, objects(state, "replicas"))}
    in_flight = count(state, "in_flight")
    strangers = sum(replica.in_flight for uid, replica in replicas.items() if uid not in known)
    if strangers:
        raise Unreadable("reports requests on replicas that do not exist")
    if in_flight != sum(replica.in_flight for replica in replicas.values()):
        raise Unreadable("reports other requests in flight than its replicas have")
    return RouterState(
        in_flight=in_flight,
        refused_conversations=count(state, "refused_conversations_last_minute"),
        replicas={uid: replica for uid, replica in replicas.items() if uid in known},
    )


def _replica(fields: Mapping[str, Any]) -> RouterReplica:
    used, total = count(fields, "kv_used_tokens"), count(fields, "kv_total_tokens")
    age_s = seconds(fields, "last_poll_age_s")
    return RouterReplica(
        uid=text(fields, "uid"),
        in_flight=count(fields, "in_flight"),
        queued=count(fields, "queued"),
        kv_used_tokens=used,
        kv_total_tokens=total,
        conversations=count(fields, "conversations"),
        # Null while it does not drain, and absent in routers of an earlier version.
        warm_tokens=count(fields, "warm_tokens") if fields.get("warm_tokens") is not None else 0,
        idle=fields.get("idle") is True,
        poll_age_s=None if total == 0 or used > total else age_s,
    )


def merge(asked: Mapping[Endpoint, RouterState | str], target: Target) -> Reading:
    """One reading out of what the routers said, or why they said nothing.

    A replica is idle only if every router that should answer did, knows the replica, and says so.
    """
    states = [answer for answer in asked.values() if isinstance(answer, RouterState)]
    required = [answer for router, answer in asked.items() if router.required]
    problems = [answer for answer in required if isinstance(answer, str)]
    if not required:
        problems.append("The pool has no router pod that could be asked.")
    replicas = {}
    for engine in target.engines:
        views = [state.replicas[engine.uid] for state in states if engine.uid in state.replicas]
        polled = [view for view in views if view.poll_age_s is not None]
        if polled:
            complete = not problems and len(views) == len(states)
            replicas[engine.uid] = _merge_replica(views, polled, idle=complete and all(view.idle for view in views))
    return Reading(
        in_flight=float(sum(state.in_flight for state in states)) if states else None,
        refused_conversations=sum(state.refused_conversations for state in states),
        queued=sum(replica.queued for replica in replicas.values()),
        routers_read=sum(isinstance(answer, RouterState) for answer in required),
        routers_known=len(required),
        replicas=replicas,
        problems=tuple(problems),
    )


def _merge_replica(views: Sequence[RouterReplica], polled: Sequence[RouterReplica], *, idle: bool) -> ReplicaReading:
    latest = min(polled, key=lambda view: view.poll_age_s or 0.0)
    return ReplicaReading(
        in_flight=sum(view.in_flight for view in views),
        queued=latest.queued,
        kv_used_tokens=latest.kv_used_tokens,
        kv_total_tokens=latest.kv_total_tokens,
        conversations=sum(view.conversations for view in views),
        warm_tokens=sum(view.warm_tokens for view in views),
        idle=idle,
        age_s=latest.poll_age_s or 0.0,
    )
