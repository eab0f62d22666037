"""Generated sessions have the statistics that were published, and recorded ones are replayed as they were."""

import gzip
import itertools
import json
import random
from pathlib import Path

import pytest

from sglpool.enginemodel.config import BLOCK_ID_BYTES
from sglpool.lab.replay import Replay, read_sessions
from sglpool.lab.workload import (
    LONGEST_USER_GAP_S,
    MAX_CONTEXT_TOKENS,
    SHARED_PREFIX_TOKENS,
    Conversation,
    Generator,
    Kind,
    Turn,
    turns_of,
)

PAGE = 128


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


@pytest.fixture(scope="module")
def sessions() -> list[list[Turn]]:
    return [list(turns_of(Kind.INTERACTIVE, random.Random(seed), under_way=False)) for seed in range(600)]


def test_sessions_are_as_long_as_published(sessions: list[list[Turn]]) -> None:
    requests = [float(len(turns)) for turns in sessions]
    assert 38 <= quantile(requests, 0.5) <= 53
    assert 55 <= sum(requests) / len(requests) <= 85


def test_contexts_and_outputs_are_as_published(sessions: list[list[Turn]]) -> None:
    prompts = [float(turn.prompt_tokens) for turns in sessions for turn in turns]
    outputs = [float(turn.output_tokens) for turns in sessions for turn in turns]
    assert 70_000 <= quantile(prompts, 0.5) <= 115_000
    assert 120_000 <= quantile(prompts, 0.9) <= 235_000
    assert max(prompts) + max(outputs) <= MAX_CONTEXT_TOKENS + 16_000
    assert 180 <= quantile(outputs, 0.5) <= 250
    assert 340 <= sum(outputs) / len(outputs) <= 500


def test_nearly_all_of_a_prompt_was_there_before(sessions: list[list[Turn]]) -> None:
    later = [turn for turns in sessions for turn in turns[1:]]
    uncached = [float(turn.prompt_tokens - turn.kept_tokens) for turn in later]
    assert 550 <= quantile(uncached, 0.5) <= 850
    hit = 1 - sum(uncached) / sum(turn.prompt_tokens for turn in later)
    assert 0.955 <= hit <= 0.98


def test_every_second_session_is_compacted(sessions: list[list[Turn]]) -> None:
    drops = sum(
        after.prompt_tokens < before.prompt_tokens - 8_000
        for turns in sessions
        for before, after in itertools.pairwise(turns)
    )
    assert 0.3 <= drops / len(sessions) <= 0.9


def test_users_speak_after_a_stop_and_tools_are_quick(sessions: list[list[Turn]]) -> None:
    turns = [turn for session in sessions for turn in session[:-1]]
    stops = [turn.gap_s for turn in turns if turn.finish == "stop"]
    tools = [turn.gap_s for turn in turns if turn.finish == "tool_calls"]
    assert 0.10 <= len(stops) / len(turns) <= 0.25
    assert 0.8 <= quantile(tools, 0.5) <= 1.2
    assert 80 <= quantile(stops, 0.5) <= 127
    assert max(stops) <= LONGEST_USER_GAP_S


def test_autonomous_agents_never_wait_for_a_user() -> None:
    turns = list(turns_of(Kind.AUTONOMOUS, random.Random(1), under_way=False))
    assert [turn.finish for turn in turns[:-1]] == ["tool_calls"] * (len(turns) - 1)


def test_a_twentieth_of_thick_sessions_is_wide_and_each_conversation_has_its_id() -> None:
    generator = Generator(Kind.THICK, 1, PAGE)
    sessions = [generator.session(under_way=False) for _ in range(1500)]
    wide = [session.conversations for session in sessions if len(session.conversations) > 1]
    assert 0.035 <= len(wide) / len(sessions) <= 0.085
    for conversations in wide:
        assert 4 <= len(conversations) <= 16
        assert len({each.session for each in conversations}) == 1
        assert len({each.conversation for each in conversations}) == len(conversations)


def test_a_helper_is_followed_until_its_session_ends() -> None:
    generator = Generator(Kind.THICK, 1, PAGE)
    session = next(s for s in iter(lambda: generator.session(under_way=False), None) if len(s.conversations) > 1)
    lead, helper = session.conversations[:2]
    follower = session.successor(helper)
    assert follower is not None
    assert (follower.session, follower.leads) == (lead.session, False)
    assert session.successor(lead) is None
    assert session.successor(follower) is None


def conversation(turns: list[Turn], shared: bytes = b"") -> Conversation:
    return Conversation("s", "c", iter(turns), leads=True, rng=random.Random(3), shared_ids=shared)


def test_what_a_turn_keeps_has_the_same_blocks_and_the_rest_has_new_ones() -> None:
    turns = [
        Turn(10 * PAGE, 0, 2 * PAGE, "tool_calls", 0.0),
        Turn(14 * PAGE, 10 * PAGE, PAGE, "tool_calls", 0.0),
        Turn(8 * PAGE, 3 * PAGE, PAGE, "stop", 0.0),
    ]
    one = conversation(turns)
    first, second, third = (one.ids_of(turn, PAGE) for turn in turns)
    assert [len(ids) // BLOCK_ID_BYTES for ids in (first, second, third)] == [12, 15, 9]
    assert second[: 10 * BLOCK_ID_BYTES] == first[: 10 * BLOCK_ID_BYTES]
    assert second[10 * BLOCK_ID_BYTES : 11 * BLOCK_ID_BYTES] != first[10 * BLOCK_ID_BYTES : 11 * BLOCK_ID_BYTES]
    assert third[: 3 * BLOCK_ID_BYTES] == first[: 3 * BLOCK_ID_BYTES]
    assert third[3 * BLOCK_ID_BYTES : 4 * BLOCK_ID_BYTES] != first[3 * BLOCK_ID_BYTES : 4 * BLOCK_ID_BYTES]


def test_what_follows_an_aside_goes_on_from_the_prompt_before_it() -> None:
    turns = [
        Turn(40 * PAGE, 0, 0, "tool_calls", 0.0),
        Turn(10 * PAGE, 4 * PAGE, 0, "tool_calls", 0.0),
        Turn(42 * PAGE, 40 * PAGE, 0, "stop", 0.0),
    ]
    one = conversation(turns)
    first, aside, third = (one.ids_of(turn, PAGE) for turn in turns)
    assert aside[: 5 * BLOCK_ID_BYTES] != first[: 5 * BLOCK_ID_BYTES]
    assert third[: 40 * BLOCK_ID_BYTES] == first


def test_conversations_share_their_first_blocks_and_no_others() -> None:
    generator = Generator(Kind.AUTONOMOUS, 1, PAGE)
    ids = []
    for _ in range(2):
        one = generator.session(under_way=False).conversations[0]
        turn = one.next_turn()
        assert turn is not None
        ids.append(one.ids_of(turn, PAGE))
    shared = SHARED_PREFIX_TOKENS // PAGE * BLOCK_ID_BYTES
    assert ids[0][:shared] == ids[1][:shared]
    assert ids[0][shared : shared + BLOCK_ID_BYTES] != ids[1][shared : shared + BLOCK_ID_BYTES]


def corpus(folder: Path, *sessions: list[list[object]]) -> Path:
    path = folder / "corpus.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for rows in sessions:
            file.write(json.dumps({"id": "x", "rows": rows}) + "\n")
    return path


MAIN = [
    [0.0, "m", 20_000, 100, 0, 3.0, 0, 1, "i"],
    [10.0, "m", 21_000, 200, 19_968, 3.0, 4.0, 0, "e"],
    [200.0, "m", 22_000, 300, 20_992, 3.0, 180.0, 1, "e"],
]
HELPER = [[9.0, "m.agent_", 9_000, 50, 64, 1.0, 0, 1, "e"]]


def test_recorded_sessions_are_replayed_with_their_tokens_and_the_pauses_of_their_users(tmp_path: Path) -> None:
    sessions = read_sessions(corpus(tmp_path, [MAIN[0], HELPER[0], *MAIN[1:]]))
    session = Replay(sessions, Kind.INTERACTIVE, 1, PAGE).session(under_way=False)
    main, helper = session.conversations
    turns = list(iter(main.next_turn, None))
    assert [(turn.prompt_tokens, turn.kept_tokens, turn.output_tokens) for turn in turns] == [
        (20_000, SHARED_PREFIX_TOKENS, 100),
        (21_000, 19_968, 200),
        (22_000, 20_992, 300),
    ]
    assert [turn.finish for turn in turns] == ["tool_calls", "stop", "stop"]
    assert turns[1].gap_s == 180.0
    assert (main.leads, helper.leads) == (True, False)
    assert helper.delay_s > 0
    assert session.successor(helper) is None


def test_what_a_recorded_prompt_keeps_can_be_cached_in_a_replay(tmp_path: Path) -> None:
    rows = [
        [0.0, "m", 60_000, 100, 0, 3.0, 0, 1, "i"],
        [10.0, "m", 30_000, 100, 14_976, 3.0, 4.0, 0, "i"],
        [20.0, "m", 61_000, 100, 59_968, 3.0, 4.0, 0, "e"],
    ]
    replay = Replay(read_sessions(corpus(tmp_path, rows)), Kind.AUTONOMOUS, 1, PAGE)
    for _ in range(20):
        session = replay.session(under_way=True).conversations[0]
        seen: list[bytes] = []
        for turn in iter(session.next_turn, None):
            kept = turn.kept_tokens // PAGE * BLOCK_ID_BYTES
            ids = session.ids_of(turn, PAGE)
            # Only the first prompt has a prefix that others have computed: tools and system prompt.
            assert any(ids[:kept] == before[:kept] for before in seen) or (not seen and kept <= SHARED_PREFIX_TOKENS)
            seen.append(ids)


def test_sessions_that_no_model_of_this_size_can_serve_are_left_out(tmp_path: Path) -> None:
    huge = [[0.0, "m", MAX_CONTEXT_TOKENS, 100, 0, 3.0, 0, 1, "e"]]
    assert len(read_sessions(corpus(tmp_path, huge, MAIN))) == 1
    with pytest.raises(ValueError, match="no session"):
        read_sessions(corpus(tmp_path, huge))


def test_a_file_that_is_no_corpus_says_which_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2: not a session"):
        read_sessions(corpus(tmp_path, MAIN, [[1, 2]]))
