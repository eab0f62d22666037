"""The picker beside a real Envoy: where requests go, and what is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.envoy_peers import Answer

MakePool = Callable[[int], Any]


def test_a_conversation_stays_and_new_ones_spread(make_pool: MakePool) -> None:
    pool = make_pool(4)
    router = pool.router()
    homes = {session: pool.served(lambda s=session: router.ask(s)) for session in ("a", "b", "c", "d")}
    assert sorted(homes.values()) == [0, 1, 2, 3]
    for session, home in homes.items():
        assert pool.served(lambda s=session: router.ask(s)) == home
