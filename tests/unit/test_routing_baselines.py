"""What sets each comparison policy apart from the others."""

import random

from sglpool.routing.baselines import POLICIES, Pick
from sglpool.routing.policy import release
from sglpool.routing.state import RoutingState
from sglpool.routing.types import DEFAULT_CONFIG, ConversationKey, Outcome, PickRequest, Replica


class Pool:
    def __init__(self, policy: str, count: int = 10) -> None:
        self.replicas = {f"r{n}": Replica(uid=f"r{n}", address="") for n in range(count)}
        self.state, self.rng, self.policy = RoutingState(), random.Random(1), POLICIES[policy]

    def pick(self, session: str, conversation: str = "") -> str:
        key = ConversationKey(session, conversation)
        policy: Pick = self.policy
        decision = policy(self.state, PickRequest(key, 400, session), self.replicas, 1e4, self.rng, DEFAULT_CONFIG)
        assert decision.home is not None
        return decision.home

    def turn(self, session: str) -> str:
        uid = self.pick(session)
        key = ConversationKey(session, "")
        release(self.state, self.replicas, Outcome(key=key, replica_uid=uid, body_bytes=400, finish="stop"), 1e4)
        return uid

    def loads(self) -> list[int]:
        return [replica.own_in_flight for replica in self.replicas.values()]


def test_session_hash_keeps_a_session_together_and_ignores_load() -> None:
    pool = Pool("session_hash")
    assert len({pool.pick("fat", f"c{n}") for n in range(20)}) == 1
    for n in range(60):
        pool.pick(f"s{n}")
    assert max(pool.loads()) - min(pool.loads()) > 5


def test_bounded_hash_never_exceeds_its_bound() -> None:
    pool = Pool("bounded_hash")
    for n in range(80):
        pool.pick("fat" if n % 2 else f"s{n}")
        assert max(pool.loads()) <= 1.25 * sum(pool.loads()) / 10 + 1


def test_least_loaded_is_even_and_has_no_memory() -> None:
    pool = Pool("least_loaded")
    for n in range(50):
        pool.pick(f"s{n}")
    assert pool.loads() == [5] * 10
    assert len({pool.turn("one") for _ in range(30)}) > 3


def test_least_loaded_sticky_stays() -> None:
    pool = Pool("least_loaded_sticky")
    assert len({pool.turn("one") for _ in range(30)}) == 1


def test_most_recently_used_stays_while_there_is_room_and_comes_back_to_what_it_knows() -> None:
    pool = Pool("mru_with_room")
    first = pool.turn("one")
    assert pool.turn("one") == first
    pool.replicas[first].others_in_flight = 8
    second = pool.turn("one")
    assert second != first
    pool.replicas[first].others_in_flight = 0
    assert pool.turn("one") == second
    pool.replicas[second].others_in_flight = 8
    assert pool.turn("one") == first


def test_random_goes_anywhere() -> None:
    pool = Pool("random")
    assert len({pool.turn("one") for _ in range(100)}) == 10
