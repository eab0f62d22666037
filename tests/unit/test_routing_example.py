"""The example in the router's documentation is what the policy really does, figure by figure."""

import random
from pathlib import Path

import pytest

from sglpool.routing.choice import Candidate, Situation, candidate, spill_difference
from sglpool.routing.policy import pick, release
from sglpool.routing.state import RoutingState
from sglpool.routing.types import DEFAULT_CONFIG, ConversationKey, Decision, Outcome, PickRequest, Replica, Rule

DOCUMENT = Path(__file__).parents[2] / "docs" / "router.md"
KEY = ConversationKey("agent", "")


class Example:
    """Three replicas, and the conversation that the documentation follows."""

    def __init__(self) -> None:
        loads = {"a": (6, 300_000), "b": (3, 180_000), "c": (3, 240_000)}
        self.replicas = {
            uid: Replica(
                uid=uid,
                address=uid,
                others_in_flight=requests,
                kv_used_tokens=kv_tokens,
                kv_total_tokens=460_000,
                max_concurrent=28,
            )
            for uid, (requests, kv_tokens) in loads.items()
        }
        self.state = RoutingState()
        self.now_s = 10_000.0

    def load(self, **requests: int) -> None:
        """Set the load of replicas."""
        for uid, count in requests.items():
            self.replicas[uid].others_in_flight = count

    def pick(self, body_bytes: int) -> Decision:
        request = PickRequest(KEY, body_bytes, "agent")
        return pick(self.state, request, self.replicas, self.now_s, random.Random(1))

    def end(self, decision: Decision, body_bytes: int, prompt_tokens: int) -> None:
        """The request ends with 200 tokens and a tool call."""
        assert decision.home is not None
        outcome = Outcome(
            key=KEY,
            replica_uid=decision.home,
            body_bytes=body_bytes,
            prompt_tokens=prompt_tokens,
            completion_tokens=200,
            finish="tool_calls",
        )
        release(self.state, self.replicas, outcome, self.now_s)
        self.now_s += 3.0

    def scores(self, body_bytes: int) -> dict[str, Candidate]:
        request = PickRequest(KEY, body_bytes, "agent")
        s = Situation(self.state, request, self.replicas, self.now_s, random.Random(1), DEFAULT_CONFIG)
        return {uid: candidate(s, replica) for uid, replica in self.replicas.items()}


@pytest.fixture
def text() -> str:
    """The example, on one line."""
    whole = DOCUMENT.read_text(encoding="utf-8")
    return " ".join(whole.partition("### An example")[2].partition("\n## ")[0].split())


def test_the_example_of_the_documentation(text: str) -> None:
    example = Example()
    scores = example.scores(400_000)
    first = example.pick(400_000)
    assert (first.home, first.second, first.rule) == ("b", "c", Rule.NEW)
    assert f"a {scores['a'].score:.2f}, b {scores['b'].score:.2f}, c {scores['c'].score:.2f}" in text
    example.end(first, 400_000, 100_000)

    second = example.pick(402_800)
    assert (second.home, second.rule) == ("b", Rule.STAY)
    assert f"{second.inputs['warm_tokens']:,.0f} of its tokens should be cached on b" in text
    example.end(second, 402_800, 100_700)

    example.load(b=9, a=2)
    third = example.pick(403_600)
    assert (third.home, third.rule) == ("b", Rule.STAY)
    example.end(third, 403_600, 100_900)

    example.load(b=26, a=0)
    fourth = example.pick(404_400)
    assert (fourth.home, fourth.second, fourth.rule) == ("a", "b", Rule.SPILL)
    anew = fourth.inputs
    price = spill_difference(DEFAULT_CONFIG, anew["migration_s"])
    assert f"would take {anew['migration_s']:.1f} s, so a move has to save {price:.0f} places, not 7" in text
    assert price < 26
    example.end(fourth, 404_400, 101_100)

    example.load(b=3, a=7)
    fifth = example.pick(407_200)
    assert (fifth.home, fifth.rule) == ("b", Rule.FREE_MOVE)
    assert f"All but the last {407_200 / 4 - fifth.inputs['held_tokens']:.0f} tokens" in text
    example.end(fifth, 407_200, 101_800)

    example.load(b=7, c=2)
    sixth = example.pick(150_000)
    assert (sixth.home, sixth.rule) == ("c", Rule.FREE_MOVE)
