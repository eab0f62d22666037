"""Routers' own state, over HTTP by pod IP: requests in flight, refusals, and what they polled from the engines.

Every router counts its own requests and conversations, so those are summed; what several polled from one engine is
taken from the latest poll. A router that contradicts itself, the cluster or its own name is as good as silent: acting
on half a truth is worse than waiting. Not here: what routers decide.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglpool.signals.fields import Unreadable, count, objects, parse_object, seconds, text
from sglpool.signals.http import Web
from sglpool.signals.reading import Endpoint, Reading, ReplicaReading, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterState:
    """What one router says.

    Attributes:
        in_flight: Its requests in flight.
        refused_conversations: Conversations that it refused within a minute.
        replicas: Every replica as it sees it, by uid: its own requests and conversations, what it polled, and whether
            it knows of nothing that runs there or is about to come back.
        unpolled: uids of those of them whose engine it has no figures of.
    """

    in_flight: int
    refused_conversations: int
    replicas: Mapping[str, ReplicaReading]
    unpolled: frozenset[str] = frozenset()


async def read_routers(web: Web, target: Target) -> Reading:
    """Ask all routers of a pool at once."""
    known = frozenset(engine.uid for engine in target.engines)
    questions = [_ask(web, target, router, known) for router in target.routers]
    # The usual single router needs no task of its own.
    asked = [await questions[0]] if len(questions) == 1 else await asyncio.gather(*questions)
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
    found = [(text(fields, "uid"), fields) for fields in objects(state, "replicas")]
    replicas = {uid: _replica(fields) for uid, fields in found}
    in_flight = count(state, "in_flight")
    if replicas.keys() - known and any(replica.in_flight for uid, replica in replicas.items() if uid not in known):
        raise Unreadable("reports requests on replicas that do not exist")
    if in_flight != sum([replica.in_flight for replica in replicas.values()]):
        raise Unreadable("reports other requests in flight than its replicas have")
    return RouterState(
        in_flight=in_flight,
        refused_conversations=count(state, "refused_conversations_last_minute"),
        replicas={uid: replica for uid, replica in replicas.items() if uid in known},
        unpolled=frozenset(uid for uid, fields in found if not _polled(fields, replicas[uid])),
    )


def _replica(fields: Mapping[str, Any]) -> ReplicaReading:
    return ReplicaReading(
        in_flight=count(fields, "in_flight"),
        queued=count(fields, "queued"),
        kv_used_tokens=count(fields, "kv_used_tokens"),
        kv_total_tokens=count(fields, "kv_total_tokens"),
        conversations=count(fields, "conversations"),
        # Null while it does not drain, and absent in routers of an earlier version.
        warm_tokens=count(fields, "warm_tokens") if fields.get("warm_tokens") is not None else 0,
        idle=fields.get("idle") is True,
        age_s=seconds(fields, "last_poll_age_s") or 0.0,
    )


def _polled(fields: Mapping[str, Any], replica: ReplicaReading) -> bool:
    """Whether the engine ever answered, with figures that can be."""
    return fields.get("last_poll_age_s") is not None and 0 < replica.kv_total_tokens >= replica.kv_used_tokens


def merge(asked: Mapping[Endpoint, RouterState | str], target: Target) -> Reading:
    """One reading out of what the routers said, or why they said nothing."""
    states = [answer for answer in asked.values() if isinstance(answer, RouterState)]
    required = [answer for router, answer in asked.items() if router.required]
    problems = [answer for answer in required if isinstance(answer, str)]
    if not required:
        problems.append("The pool has no router pod that could be asked.")
    merged = ((engine.uid, _merge_replica(engine.uid, states, complete=not problems)) for engine in target.engines)
    replicas = {uid: replica for uid, replica in merged if replica is not None}
    return Reading(
        in_flight=float(sum(state.in_flight for state in states)) if states else None,
        refused_conversations=sum(state.refused_conversations for state in states),
        queued=sum([replica.queued for replica in replicas.values()]),
        routers_read=sum(isinstance(answer, RouterState) for answer in required),
        routers_known=len(required),
        replicas=replicas,
        problems=tuple(problems),
    )


def _merge_replica(uid: str, states: Sequence[RouterState], *, complete: bool) -> ReplicaReading | None:
    """One replica as all routers see it, None where nobody has polled it.

    It is idle only if every router that should answer did, knows the replica, and says so.
    """
    if complete and len(states) == 1:
        # The usual case: nothing to add up.
        return None if uid in states[0].unpolled else states[0].replicas.get(uid)
    views = [state.replicas[uid] for state in states if uid in state.replicas]
    polled = [state.replicas[uid] for state in states if uid in state.replicas and uid not in state.unpolled]
    if not polled:
        return None
    latest = min(polled, key=lambda view: view.age_s)
    return replace(
        latest,
        in_flight=sum(view.in_flight for view in views),
        conversations=sum(view.conversations for view in views),
        warm_tokens=sum(view.warm_tokens for view in views),
        idle=complete and len(views) == len(states) and all(view.idle for view in views),
    )
