"""What a router shows of itself to the operator."""

from __future__ import annotations

from sglpool.picker.views import warm_tokens
from sglpool.routing.state import RoutingState
from unit.picker.parts import key


def test_what_conversations_would_lose_is_counted_where_replicas_are_to_become_empty():
    state = RoutingState()
    for number, (home, tokens) in enumerate([("a", 100), ("a", 20), ("b", 3000), (None, 7)]):
        conversation = state.touch(key(number), 0.0)
        state.set_home(conversation, home)
        conversation.ctx_tokens = tokens
    conversations = state.conversations.values()
    assert warm_tokens(conversations, {"a"}) == {"a": 120}
    assert warm_tokens(conversations, {"b", "c"}) == {"b": 3000, "c": 0}
    assert warm_tokens(conversations, set()) == {}
