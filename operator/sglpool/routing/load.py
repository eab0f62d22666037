"""The load of a replica, its weight, and whether it may be chosen: the numbers under every score.

Not here: scores and choices (`choice`), and where the readings come from (the picker's polls).
"""

from __future__ import annotations

from sglpool.routing.types import PolicyConfig, Replica

POLL_STALE_S = 15.0
"""Beyond this age a poll says nothing, even corrected by what this router did since."""


def load(replica: Replica, now_s: float) -> float:
    """Return the requests on a replica, as far as this router can know (L_r).

    The routers' own counts lead, because SGLang shows a chunked prefill in neither of its counts. The poll, corrected
    by what this router did since, sees what the heartbeats of other routers miss.
    """
    known = replica.own_in_flight + replica.others_in_flight
    polled = replica.polled_in_flight
    # Comparisons rather than max(): a pick may ask for the load of every replica.
    if polled is not None and now_s - (replica.polled_at_s or 0.0) <= POLL_STALE_S:
        polled += replica.own_picks_since_poll - replica.own_releases_since_poll
        if polled > known:
            known = polled
    if known < 1 and replica.prefilling:
        known = 1
    return float(known) if known > 0 else 0.0


def prefill_wait_s(replica: Replica, now_s: float) -> float:
    """Return how long a prompt would wait there for those before it, as far as this router can guess."""
    return max(0.0, replica.prefill_until_s - now_s)


def weight(replica: Replica, now_s: float, config: PolicyConfig) -> float:
    """Return a replica's capacity now: a new one ramps up, since its first prefills compile and find no cache."""
    age_s = now_s - replica.ready_since_s
    if age_s >= config.ramp_s:
        return replica.weight
    return replica.weight * max(config.ramp_floor, age_s / config.ramp_s)


def can_serve(replica: Replica) -> bool:
    """Return whether requests of conversations that live there may go there."""
    return replica.healthy and replica.proven


def can_take(replica: Replica) -> bool:
    """Return whether requests from elsewhere may go there, room aside."""
    return replica.healthy and replica.proven and not replica.draining and not replica.refused
