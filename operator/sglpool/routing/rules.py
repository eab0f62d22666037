"""The rules, one function each, in the order in which they are asked. The first that has an answer decides.

    lost home     no home, or it is gone             the best by score                new, failover
    store away    homes cannot be shared             known homes, else rendezvous     rendezvous
    thick         S requests of it run at home       another one for this request     thick
    free move     less than half is warm at home     the best by score, if lighter    free_move
    return        another one still holds it, too    that one, if much lighter        free_move
    spill         home much busier, budget left      the best by score                spill
    drain         the home's deadline has passed     the best by score                drain_move
    closed        home refused, or is at its limit   another one for this request     refused_home, full_home
    stay          otherwise                          home                             stay, drain_stay

Wherever it goes, replicas that hold a prefix of it come first.
Not here: the counting of what was decided (`policy`).
"""

from __future__ import annotations

from sglpool.routing import choice, rendezvous
from sglpool.routing.choice import Candidate, Situation
from sglpool.routing.load import can_serve, can_take, load, prefill_wait_s
from sglpool.routing.types import Decision, Replica, Rule


def decide(s: Situation) -> Decision:
    """Return the decision of the first rule that has one."""
    home = s.home
    if not s.state.store_available:
        return _without_store(s)
    if s.conversation is None or home is None or not can_serve(home):
        return _place(s)
    return (
        _thick(s, home)
        or _free_move(s, home)
        or _return(s, home)
        or _spill(s, home)
        or _drain(s, home)
        or _closed(s, home)
        or _stay(s, home)
    )


def refusal(s: Situation) -> Decision:
    """Refuse: nobody may take it. Where replicas are able, Retry-After is spread, lest all come back at once."""
    alive = sum(1 for replica in s.replicas.values() if can_serve(replica))
    wait_s = s.config.retry_after_s * (1.0 + s.rng.random()) if alive else 0.0
    inputs = {"replicas": float(len(s.replicas)), "able": float(alive)}
    return Decision(home=None, second=None, rule=Rule.REFUSE, retry_after_s=wait_s, inputs=inputs)


def _place(s: Situation) -> Decision:
    """Rule 1: no home, or it cannot serve any more."""
    had_home = s.conversation is not None and s.conversation.home is not None
    best, second = choice.next_best(s, s.home)
    if best is None:
        return refusal(s)
    return Decision(
        home=best.replica.uid,
        second=second.uid if second else None,
        rule=Rule.FAILOVER if had_home else Rule.NEW,
        moved=had_home,
        forced=had_home and _is_warm(s),
        inputs=_inputs(s, best),
    )


def _thick(s: Situation, home: Replica) -> Decision | None:
    """The key runs so many requests at home already that it must stand for several conversations: spread them."""
    if s.conversation is None or s.conversation.running_on(home.uid) < s.config.thick_requests:
        return None
    best, second = choice.next_best(s, home)
    if best is None:
        return None
    return _away(s, home, best, second, Rule.THICK)


def _free_move(s: Situation, home: Replica) -> Decision | None:
    """Rule 2: less than half of the prompt is warm at home, so that leaving costs little. Draining homes: any time."""
    if _is_warm(s):
        return None
    best, second = choice.next_best(s, home)
    if best is None:
        return None
    here = choice.candidate(s, home)
    is_lighter = here.pressure - best.pressure >= s.config.free_move_difference and choice.is_better(best, here)
    if not (is_lighter or _knows_it(s, home, here, best) or home.draining):
        return None
    return _move(s, home, best, second, Rule.FREE_MOVE)


def _knows_it(s: Situation, home: Replica, here: Candidate, best: Candidate) -> bool:
    """Whether another replica still holds most of it, and is no busier.

    After an aside that was answered elsewhere the prompt is as long as before, and that replica is the home that it
    had: it may be busier, as long as a spill would not leave it. A prompt that starts over is no reason to go far.
    """
    held = choice.held_on(s, best.replica.uid)
    if held < max(1.0, s.config.warm_fraction * s.prompt):
        return False
    busier = best.pressure - here.pressure
    return busier <= 0 or (
        s.warm > 0 and busier < choice.spill_difference(s.config, choice.migration_s(s, home, s.warm, held))
    )


def _return(s: Situation, home: Replica) -> Decision | None:
    """Another replica still holds nearly all of it, and the home is much busier or has to go: no budget is asked."""
    if s.conversation is None or not s.conversation.holders:
        return None
    if not home.draining:
        others = [s.replicas[each.uid] for each in s.conversation.holders if each.uid in s.replicas]
        if s.home_load / home.weight - choice.lowest_pressure(s, others) < s.config.return_difference:
            return None
    best: Candidate | None = None
    for holder in s.conversation.holders:
        replica = s.replicas.get(holder.uid)
        if replica is None or replica is home or not can_take(replica) or not choice.has_room(s, replica):
            continue
        each = choice.candidate(s, replica)
        is_near = choice.migration_s(s, replica, choice.held(s, holder), s.warm) <= s.config.return_migration_s
        if is_near and (best is None or each.level < best.level):
            best = each
    if best is None:
        return None
    here = choice.candidate(s, home)
    is_lighter = here.pressure - best.pressure >= s.config.return_difference and best.level < here.level
    return _move(s, home, best, None, Rule.FREE_MOVE) if is_lighter or home.draining else None


def _spill(s: Situation, home: Replica) -> Decision | None:
    """Rule 3: a re-prefill elsewhere pays, and the budget has some left.

    Either the home is so much busier, or it computes other prompts first for so much longer. Not while requests of its
    own run there: they are no reason to leave, and `thick` spreads them when they are many.
    """
    config = s.config
    if s.conversation is not None and s.conversation.running_on(home.uid):
        return None
    if s.state.spill_tokens < 1.0:
        return None
    wait_s, pressure = prefill_wait_s(home, s.now_s), s.home_load / home.weight
    if pressure < config.spill_min_load and wait_s < config.spill_min_wait_s:
        return None
    least_s = choice.migration_s(s, home, choice.held_or_shared(s, _held_at_most(s)), s.warm)
    if pressure < choice.spill_difference(config, least_s) and wait_s < choice.spill_wait_s(config, least_s):
        return None
    lowest = choice.lowest_pressure(s, s.replicas.values())
    if wait_s < config.spill_min_wait_s and pressure - lowest < config.spill_min_difference:
        return None
    best, second = choice.next_best(s, home)
    if best is None or not choice.is_better(best, choice.candidate(s, home)):
        return None
    held = choice.held_or_shared(s, choice.held_on(s, best.replica.uid))
    seconds = choice.migration_s(s, best.replica, held, s.warm)
    saved_s = wait_s - prefill_wait_s(best.replica, s.now_s)
    is_busier = pressure - best.pressure >= choice.spill_difference(config, seconds)
    if not (is_busier and pressure >= config.spill_min_load) and saved_s < choice.spill_wait_s(config, seconds):
        return None
    inputs = {"migration_s": seconds, "budget": s.state.spill_tokens, "saved_s": saved_s}
    return _move(s, home, best, second, Rule.SPILL, inputs)


def _drain(s: Situation, home: Replica) -> Decision | None:
    """Rule 4: at the deadline of a draining home the conversation moves, if anybody can take it."""
    if not _is_overdue(s, home):
        return None
    best, second = choice.next_best(s, home)
    if best is None:
        return None
    return _move(s, home, best, second, Rule.DRAIN_MOVE, forced=_is_warm(s))


def _closed(s: Situation, home: Replica) -> Decision | None:
    """The home refused lately, or is at its limit: this request goes elsewhere, the home is kept."""
    if not home.refused and s.home_load < home.max_concurrent:
        return None
    best, second = choice.next_best(s, home)
    if best is None:
        return refusal(s)
    return _away(s, home, best, second, Rule.REFUSED_HOME if home.refused else Rule.FULL_HOME)


def _stay(s: Situation, home: Replica) -> Decision:
    """Rule 5: home."""
    second = choice.any_other(s, home)
    return Decision(
        home=home.uid,
        second=second.uid if second else None,
        rule=Rule.DRAIN_STAY if home.draining else Rule.STAY,
        inputs={"load_home": s.home_load, "prompt_tokens": s.prompt, "warm_tokens": s.warm},
    )


def _without_store(s: Situation) -> Decision:
    """The shared store is away: nobody learns of a new home, so all routers must come to the same one by themselves.

    Locally known homes lead. Nothing moves by choice, and a home that cannot serve is replaced for this request only.
    """
    home = s.home
    if s.conversation is not None and home is not None and can_serve(home):
        leaves: Decision | None = None
        if _is_overdue(s, home):
            leaves = _by_hash(s, home, Rule.RENDEZVOUS)
        elif s.conversation.running_on(home.uid) >= s.config.thick_requests:
            leaves = _by_hash(s, home, Rule.THICK)
        return leaves or _closed(s, home) or _stay(s, home)
    return _by_hash(s, None, Rule.RENDEZVOUS) or refusal(s)


def _is_overdue(s: Situation, home: Replica) -> bool:
    return home.draining and home.drain_deadline_s is not None and s.now_s >= home.drain_deadline_s


def _by_hash(s: Situation, without: Replica | None, rule: Rule) -> Decision | None:
    takers = [each for each in s.replicas.values() if each is not without and can_take(each)]
    ranked = [each for each in rendezvous.rank(s.request.fallback_key, takers) if choice.has_room(s, each)]
    if not ranked:
        return None
    return Decision(
        home=ranked[0].uid,
        second=ranked[1].uid if len(ranked) > 1 else None,
        rule=rule,
        inputs={"load_next": load(ranked[0], s.now_s), "takers": float(len(takers))},
    )


def _away(s: Situation, home: Replica, best: Candidate, second: Replica | None, rule: Rule) -> Decision:
    """One request goes elsewhere; if that fails, the home is not tried: it is what was avoided."""
    inputs = _inputs(s, best) | {"load_home": s.home_load}
    return Decision(home=best.replica.uid, second=second.uid if second else None, rule=rule, inputs=inputs)


def _move(
    s: Situation,
    home: Replica,
    best: Candidate,
    second: Replica | None,
    rule: Rule,
    more: dict[str, float] | None = None,
    *,
    forced: bool = False,
) -> Decision:
    """The conversation gets another home. The old one is the retry if it may be, since it is warm."""
    retry = home if can_take(home) and s.home_load < home.max_concurrent else second
    here = choice.candidate(s, home)
    inputs = _inputs(s, best) | {
        "load_home": s.home_load,
        "score_home": here.score,
        "warm_tokens": s.warm,
    }
    return Decision(
        home=best.replica.uid,
        second=retry.uid if retry else None,
        rule=rule,
        moved=True,
        forced=forced,
        inputs=inputs | (more or {}),
    )


def _is_warm(s: Situation) -> bool:
    return s.warm >= s.config.warm_fraction * s.prompt


def _held_at_most(s: Situation) -> float:
    most = 0.0
    for holder in s.conversation.holders if s.conversation is not None else ():
        tokens = choice.held(s, holder)
        if tokens > most:
            most = tokens
    return most


def _inputs(s: Situation, best: Candidate) -> dict[str, float]:
    uid = best.replica.uid
    return {
        "score_next": best.score,
        "load_next": load(best.replica, s.now_s),
        "pending_next": float(s.state.pending_on(uid)),
        "prompt_tokens": s.prompt,
        "held_tokens": choice.held_on(s, uid),
    }
