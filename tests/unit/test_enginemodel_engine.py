"""The engine model against what a running SGLang showed, and its rules one by one."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from sglpool.enginemodel import CachedTokens, Engine, EngineConfig, Finished, QueueFull, Rates, Request, Step, TooLong

# Round figures: a prompt token takes 1 ms, a decode step 100 ms.
RATES = Rates(
    prefill_base_s_per_token=0.001,
    prefill_context_s_per_token=0.0,
    decode_base_s=0.1,
    decode_per_request_s=0.0,
    host_load_tokens_per_s=100_000.0,
    decode_share_during_prefill=0.2,
    weight_load_bytes_per_s=1e9,
    start_overhead_s=1.0,
)


def engine(**fields: Any) -> Engine:
    rates = replace(RATES, **{name: fields.pop(name) for name in list(fields) if hasattr(RATES, name)})
    given = {"max_total_tokens": 100_000, "page_size_tokens": 1, "max_running_requests": 8, **fields}
    return Engine(EngineConfig(rates=rates, **given))


def request(rid: str, prompt: int, output: int = 1, *, text: int | None = None, **fields: Any) -> Request:
    """A request whose every token is the same number: two are equal where their texts are."""
    number = text if text is not None else sum(rid.encode()) + 1000
    return Request(
        rid=rid,
        ids=number.to_bytes(8, "big") * (prompt + output),
        prompt_tokens=prompt,
        output_tokens=output,
        **fields,
    )


def drain(subject: Engine) -> list[Step]:
    steps: list[Step] = []
    while (next_s := subject.next_event_s()) is not None:
        steps += subject.advance(next_s)
        assert len(steps) < 100_000
    return steps


def finished(steps: list[Step]) -> dict[str, Finished]:
    return {ended.rid: ended for step in steps for ended in step.finished}


def test_a_prompt_in_chunks_is_neither_running_nor_waiting_and_its_tokens_move_as_read() -> None:
    subject = engine(max_total_tokens=1_383_441, chunked_prefill_tokens=8192)
    subject.submit(request("long", 30_000, 100), 0.0)
    seen = []
    for _ in range(4):
        shown = subject.published
        assert (shown.running, shown.waiting, subject.load().prefilling) == (0, 0, 1)
        seen.append((shown.used_tokens, shown.waiting_uncached_tokens, shown.total_tokens))
        subject.advance(subject.next_event_s() or 0.0)
    assert seen[:3] == [(8192, 30_000, 8192), (16_384, 21_808, 16_384), (24_576, 13_616, 24_576)]
    assert seen[3] == (30_000, 0, 30_000)
    assert subject.load().running == 1


def test_the_snapshot_is_renewed_every_fifteen_decode_steps_and_at_once_when_idle() -> None:
    subject = engine()
    for rid in ("a", "b", "c"):
        subject.submit(request(rid, 10, 61), 0.0)
    used = []
    while (next_s := subject.next_event_s()) is not None:
        subject.advance(next_s)
        if subject.published.running == 3 and subject.published.used_tokens not in used:
            used.append(subject.published.used_tokens)
    assert len(used) == 3
    assert {after - before for before, after in pairwise(used)} == {45}
    assert (subject.published.used_tokens, subject.published.gen_throughput) == (0, 0.0)


def test_throughput_is_that_of_the_last_stretch() -> None:
    subject = engine()
    subject.submit(request("a", 100, 200), 0.0)
    subject.advance(0.1 + 30 * 0.1 + 0.05)
    assert subject.published.gen_throughput == pytest.approx(10.0)
    assert (subject.published.decode_steps, subject.published.sum_seq_lens) == (30, sum(range(101, 131)))


def test_cached_tokens_are_evictable_not_used() -> None:
    subject = engine()
    subject.submit(request("a", 30_000, 17), 0.0)
    drain(subject)
    load = subject.load()
    assert (load.used_tokens, load.token_usage) == (0, 0.0)
    assert (load.evictable_tokens, load.available_tokens) == (30_016, 100_000 - 30_016)


def test_hicache_gives_back_what_was_evicted_as_read() -> None:
    subject = engine(max_total_tokens=60_000, host_total_tokens=257_202, chunked_prefill_tokens=8192)
    now_s, cached = 0.0, []
    for turn, text in enumerate([1, 2, 3, 4, 1, 2, 1]):
        subject.submit(request(f"r{turn}", 25_000, 17, text=text), now_s)
        ended = finished(drain(subject))[f"r{turn}"]
        cached.append((ended.cached_device_tokens, ended.cached_host_tokens))
        now_s = ended.finished_s
        if turn == 0:
            assert subject.load().backup_tokens_total == 25_016
    # The second last has one page of its prompt to compute, and its end was never evicted again.
    assert cached == [(0, 0)] * 4 + [(0, 24_999), (0, 24_999), (24_999, 0)]
    load = subject.load()
    assert load.load_back_tokens_total == load.cached_host_tokens_total == 49_998
    assert load.cached_device_tokens_total == 24_999
    assert load.host_used_tokens == 4 * 25_016
    assert load.cache_hit_rate == pytest.approx(24_999 / 25_000)


def test_loading_back_takes_time_but_less_than_computing() -> None:
    subject = engine(max_total_tokens=30_000, host_total_tokens=100_000, host_load_tokens_per_s=100_000.0)
    for rid, text, now_s in (("a", 1, 0.0), ("b", 2, 100.0)):
        subject.submit(request(rid, 20_000, text=text), now_s)
        drain(subject)
    subject.submit(request("again", 20_000, text=1), 200.0)
    step = drain(subject)[0]
    # 10,000 of a's tokens were evicted for b's; the last token is always computed.
    assert step.cached_device_tokens + step.cached_host_tokens == 19_999
    assert step.cached_host_tokens == 9_999
    assert step.duration_s == pytest.approx(0.09999 + 0.001)


def test_without_hicache_what_was_evicted_is_computed_again() -> None:
    subject = engine(max_total_tokens=30_000)
    for rid, text, now_s in (("a", 1, 0.0), ("b", 2, 100.0)):
        subject.submit(request(rid, 20_000, text=text), now_s)
        drain(subject)
    subject.submit(request("again", 20_000, text=1), 200.0)
    ended = finished(drain(subject))["again"]
    assert (ended.cached_device_tokens, ended.cached_host_tokens) == (10_000, 0)
    assert subject.load().load_back_tokens_total == 0


def test_the_host_pool_forgets_the_longest_unused() -> None:
    subject = engine(max_total_tokens=1_000, host_total_tokens=2_000)
    for turn, text in enumerate([1, 2, 1, 3]):
        subject.submit(request(f"r{turn}", 900, text=text), 10.0 * turn)
        drain(subject)
    assert subject.load().host_used_tokens == 2_000
    cached = []
    for turn, text in enumerate([1, 2]):
        subject.submit(request(f"s{turn}", 900, text=text), 100.0 + 10 * turn)
        cached.append(finished(drain(subject))[f"s{turn}"].cached_host_tokens)
    # Of text 2, unused since its only turn, the end had made room in the host pool for text 3.
    assert cached == [799, 200]


def test_a_running_prefix_is_shared_and_its_duplicate_freed() -> None:
    subject = engine(max_prefill_tokens=100_000, chunked_prefill_tokens=-1)
    subject.submit(request("first", 1), 0.0)
    for rid in ("a", "b"):
        subject.submit(request(rid, 5_000, 50, text=7), 0.0)
    subject.advance(0.001)
    assert subject.load().used_tokens == 10_000  # neither could see the other's tokens when the step began
    subject.advance(10.001)
    assert subject.load().running == 2
    assert subject.load().used_tokens == 5_002  # and a token each for the decode step in flight
    subject.submit(request("c", 5_000, 50, text=7), 10.001)
    drain(subject)
    assert subject.load().cached_device_tokens_total == 4_999


def test_short_prompts_share_a_step_and_the_running_limit_holds_the_rest_back() -> None:
    subject = engine(max_running_requests=3)
    subject.submit(request("x", 100, 2), 0.0)
    for rid in ("a", "b", "c"):
        subject.submit(request(rid, 100, 5), 0.0)
    steps = subject.advance(0.35)
    assert [(step.kind, step.prefill_tokens) for step in steps[:2]] == [("prefill", 100), ("prefill", 200)]
    assert [rid for rid, _ in steps[1].tokens] == ["a", "b"]
    assert (subject.load().running, subject.load().waiting) == (3, 1)


def test_decode_has_its_share_of_the_time_between_chunks() -> None:
    subject = engine(chunked_prefill_tokens=1_000, decode_share_during_prefill=0.2)
    subject.submit(request("talks", 10, 1_000), 0.0)
    subject.submit(request("long", 20_000, 1), 0.0)
    steps = [step for step in subject.advance(30.0) if step.started_s >= 0.01 and step.at_s <= 25.0]
    spent = {kind: sum(step.duration_s for step in steps if step.kind == kind) for kind in ("prefill", "decode")}
    assert spent["decode"] / (spent["decode"] + spent["prefill"]) == pytest.approx(0.2, abs=0.02)


def test_without_a_share_decode_stands_still_while_prompts_are_computed() -> None:
    subject = engine(chunked_prefill_tokens=1_000, decode_share_during_prefill=0.0)
    subject.submit(request("talks", 10, 1_000), 0.0)
    subject.submit(request("long", 5_000, 1), 0.0)
    assert [step.kind for step in subject.advance(5.01)] == ["prefill"] * 6


def test_accepted_drafts_give_the_average_and_never_too_much() -> None:
    subject = engine(accept_length=3.5)
    subject.submit(request("a", 10, 72), 0.0)
    ended = finished(drain(subject))["a"]
    assert ended.completion_tokens == 72
    assert ended.verify_calls == 21  # 20 steps of 3.5 and one for the last token
    assert subject.load().verify_calls_total == 21


def test_new_rates_count_from_the_next_step_on() -> None:
    subject = engine(accept_length=4.0)
    subject.submit(request("a", 100, 1_000), 0.0)
    subject.advance(0.15)
    subject.set_rates(replace(RATES, accept_length=1.0, decode_base_s=1.0))
    steps = subject.advance(2.0)
    assert [(step.tokens, round(step.duration_s, 6)) for step in steps] == [
        ([("a", 4)], 0.1),
        ([("a", 1)], 1.0),
    ]


def test_extra_work_is_paid_once_and_by_everyone_in_the_step() -> None:
    subject = engine(chunked_prefill_tokens=1_000)
    subject.submit(request("image", 2_000, 1, extra_prefill_s=50.0), 0.0)
    steps = drain(subject)
    assert [round(step.duration_s, 6) for step in steps] == [51.0, 1.0]


def test_a_full_queue_refuses_even_with_free_slots_and_an_idle_engine_never_does() -> None:
    subject = engine(max_running_requests=8, max_queued_requests=2)
    for rid in ("a", "b", "c"):
        subject.submit(request(rid, 1_000), 0.0)
    with pytest.raises(QueueFull, match="2 requests wait, the limit is 2"):
        subject.submit(request("d", 1_000), 0.5)
    subject.submit(request("e", 1_000), 1.0)
    idle = engine(max_queued_requests=0)
    idle.submit(request("a", 10), 0.0)
    with pytest.raises(QueueFull):
        idle.submit(request("b", 10), 0.0)


def test_what_can_never_fit_is_refused_and_what_just_fits_is_served() -> None:
    subject = engine(max_total_tokens=1_000)
    with pytest.raises(TooLong, match="900 prompt and 102 output tokens"):
        subject.submit(request("long", 900, 102), 0.0)
    subject.submit(request("fits", 900, 101), 0.0)
    assert finished(drain(subject))["fits"].completion_tokens == 101


def test_the_youngest_goes_back_to_the_head_of_the_queue_when_output_outgrows_the_pool() -> None:
    subject = engine(max_total_tokens=2_000, max_running_requests=2)
    subject.submit(request("old", 100, 1_500), 0.0)
    steps = subject.advance(70.0)  # by now room is kept for a tenth of what is still to come
    for rid in ("young", "other"):
        subject.submit(request(rid, 100, 1_000), 70.0)
    steps += drain(subject)
    assert next(step.retracted for step in steps if step.retracted) == ["young"]
    retracted = next(number for number, step in enumerate(steps) if step.retracted)
    back = next(step for step in steps[retracted:] if step.kind == "prefill")
    assert back.tokens[0] == ("young", 1)
    ended = finished(steps)
    assert {rid: end.completion_tokens for rid, end in ended.items()} == {"old": 1_500, "young": 1_000, "other": 1_000}
    assert ended["old"].finished_s < ended["young"].finished_s
    assert ended["young"].cached_device_tokens == 0  # what it found of itself afterwards is no hit of its prompt
    assert subject.load().retracted_total == len([rid for step in steps for rid in step.retracted])


def test_room_is_kept_for_the_output_of_all_that_are_admitted_together() -> None:
    subject = engine(max_total_tokens=1_000)
    subject.submit(request("busy", 10, 1), 0.0)
    for rid in ("a", "b"):
        subject.submit(request(rid, 100, 450), 0.0)
    steps = drain(subject)
    assert [rid for rid, _ in steps[1].tokens] == ["a"]
    assert subject.load().retracted_total == 0
    assert set(finished(steps)) == {"busy", "a", "b"}


def test_a_long_prompt_takes_the_room_of_what_runs() -> None:
    subject = engine(
        max_total_tokens=10_000, chunked_prefill_tokens=2_000, decode_base_s=0.001, decode_share_during_prefill=0.4
    )
    subject.submit(request("talks", 10, 9_900), 0.0)
    subject.advance(2.0)
    subject.submit(request("long", 5_500, 2), 2.0)
    # Between chunks the other grows by some 1,300 tokens, until the third chunk finds no room beside it.
    steps = drain(subject)
    assert [(step.kind, step.prefill_tokens, step.retracted) for step in steps if step.retracted] == [
        ("prefill", 1_500, ["talks"])
    ]
    assert {rid: end.completion_tokens for rid, end in finished(steps).items()} == {"talks": 9_900, "long": 2}


def test_the_longest_prefix_goes_first_under_lpm_and_the_first_under_fcfs() -> None:
    order = {}
    for policy in ("lpm", "fcfs"):
        subject = engine(max_running_requests=1, schedule_policy=policy)
        for rid, text, prompt, now_s in (("seed", 1, 500, 0.0), ("busy", 9, 500, 10.0)):
            subject.submit(request(rid, prompt, 2, text=text), now_s)
            subject.advance(now_s + 0.1)
        for rid, text, prompt in (("cold", 2, 600), ("warm", 1, 400), ("warmer", 1, 600)):
            subject.submit(request(rid, prompt, text=text), 10.1)
        order[policy] = [rid for rid in finished(drain(subject)) if rid != "busy"]
    assert order == {"lpm": ["warmer", "warm", "cold"], "fcfs": ["cold", "warm", "warmer"]}


@pytest.mark.parametrize(
    ("now_s", "tokens", "kept"), [(0.5, 0, 0), (1.5, 0, 1_000), (2.55, 6, 2_005), (2.65, 7, 2_006)]
)
def test_an_abort_frees_what_was_held_and_keeps_what_was_computed(now_s: float, tokens: int, kept: int) -> None:
    subject = engine(chunked_prefill_tokens=1_000)
    subject.submit(request("a", 2_000, 100), 0.0)
    ended = subject.abort("a", now_s)
    assert ended is not None
    assert (ended.reason, ended.completion_tokens, ended.finished_s) == ("abort", tokens, now_s)
    load = subject.load()
    assert (load.used_tokens, load.evictable_tokens, load.running) == (0, kept, 0)
    assert subject.published.used_tokens == 0
    assert subject.abort("a", now_s) is None
    assert sum(len(step.finished) for step in subject.advance(100.0)) == 0


def test_aborting_in_the_queue_lets_the_next_one_come() -> None:
    subject = engine(max_running_requests=1)
    for rid in ("a", "b", "c"):
        subject.submit(request(rid, 100, 3), 0.0)
    ended = subject.abort("b", 0.05)
    assert ended is not None
    assert (ended.prefill_started_s, ended.first_token_s) == (None, None)
    assert (subject.load().waiting, subject.load().waiting_tokens) == (1, 100)
    assert list(finished(drain(subject))) == ["a", "c"]


def test_what_prefill_found_is_known_once_it_has_begun() -> None:
    subject = engine(max_running_requests=1)
    subject.submit(request("a", 100, 2, text=1), 0.0)
    subject.submit(request("b", 100, 2, text=1), 0.0)
    assert (subject.info("a"), subject.info("b"), subject.info("c")) == (CachedTokens(0, 0), None, None)
    subject.advance(0.21)
    assert subject.info("b") == CachedTokens(99, 0)


def test_flush_forgets_both_tiers_but_not_while_anyone_runs() -> None:
    subject = engine(host_total_tokens=200_000)
    subject.submit(request("a", 1_000, 5, text=1), 0.0)
    assert not subject.flush()
    drain(subject)
    assert subject.flush()
    assert (subject.load().available_tokens, subject.load().host_used_tokens) == (100_000, 0)
    subject.submit(request("b", 1_000, 5, text=1), 10.0)
    assert subject.info("b") == CachedTokens(0, 0)


def test_pages_without_an_id_are_never_shared() -> None:
    subject = engine()
    for rid, now_s in (("a", 0.0), ("b", 10.0)):
        whole = request(rid, 1_000, 5, text=1)
        subject.submit(replace(whole, ids=whole.ids[: 400 * 8]), now_s)
        drain(subject)
    assert subject.load().cached_device_tokens_total == 400
    assert subject.load().used_tokens == 0


def test_wrong_arguments_name_the_field() -> None:
    subject = engine()
    subject.submit(request("a", 10, 100), 1.0)
    with pytest.raises(ValueError, match="request a is alive already"):
        subject.submit(request("a", 10), 1.0)
    with pytest.raises(ValueError, match=r"time went backwards: now_s is 0\.5 after 1\.0"):
        subject.advance(0.5)
    with pytest.raises(ValueError, match="prompt_tokens 0 must be at least 1"):
        Request(rid="b", ids=b"", prompt_tokens=0, output_tokens=1)
    with pytest.raises(ValueError, match="8 bytes per full page"):
        Request(rid="b", ids=b"123", prompt_tokens=1, output_tokens=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_running_requests": 0}, r"EngineConfig\.max_running_requests is 0"),
        ({"max_total_tokens": 63, "page_size_tokens": 64}, r"EngineConfig\.max_total_tokens is 63"),
        ({"chunked_prefill_tokens": 100, "page_size_tokens": 64}, "give a multiple of page_size_tokens, 64"),
        ({"host_total_tokens": -1}, r"EngineConfig\.host_total_tokens is -1"),
        ({"max_queued_requests": -1}, r"EngineConfig\.max_queued_requests is -1"),
        ({"accept_length": 0.5}, r"Rates\.accept_length is 0\.5"),
        ({"decode_share_during_prefill": 1.0}, r"Rates\.decode_share_during_prefill is 1\.0"),
        ({"decode_base_s": 0.0}, r"Rates\.decode_base_s is 0\.0"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine(**fields)
