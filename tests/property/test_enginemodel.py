"""Properties of the engine model under any traffic: nothing leaks, nothing is cached that never was, no one is lost."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool.enginemodel import Engine, EngineConfig, Finished, Load, QueueFull, Rates, Request, Step, TooLong

RATES = Rates(
    prefill_base_s_per_token=0.01,
    prefill_context_s_per_token=0.0001,
    decode_base_s=0.1,
    decode_per_request_s=0.01,
    host_load_tokens_per_s=10_000.0,
    decode_share_during_prefill=0.2,
    weight_load_bytes_per_s=1e9,
    start_overhead_s=1.0,
)


@dataclass(frozen=True)
class Submit:
    pages: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Abort:
    number: int


@dataclass(frozen=True)
class Wait:
    seconds: float


Action = Submit | Abort | Wait


@st.composite
def configs(draw: st.DrawFn, *, policy: str | None = None) -> EngineConfig:
    page = draw(st.sampled_from([1, 2, 4, 7]))
    return EngineConfig(
        max_total_tokens=draw(st.integers(8, 40) | st.just(17)) * page + draw(st.integers(0, page - 1)),
        host_total_tokens=draw(st.sampled_from([200, 30, 5, 0])) * page,
        page_size_tokens=page,
        max_running_requests=draw(st.sampled_from([4, 1, 2, 8])),
        max_queued_requests=draw(st.none() | st.integers(0, 4)),
        chunked_prefill_tokens=draw(st.sampled_from([-1, 1, 3, 8])) * page,
        max_prefill_tokens=draw(st.integers(1, 60)),
        schedule_policy=policy or draw(st.sampled_from(["fcfs", "lpm"])),
        rates=replace(
            RATES,
            accept_length=draw(st.sampled_from([1.0, 1.5, 3.3])),
            decode_share_during_prefill=draw(st.sampled_from([0.0, 0.2])),
        ),
    )


@st.composite
def submits(draw: st.DrawFn, page: int) -> Submit:
    # Few different pages, so that prefixes are shared, part and meet again.
    pages = tuple(
        draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=draw(st.sampled_from([1, 6, 10])), max_size=16))
    )
    tokens = len(pages) * page + draw(st.integers(0, page - 1))
    prompt_tokens = draw(st.integers(1, tokens) | st.integers(1, max(1, tokens // 4)))
    return Submit(pages, prompt_tokens, tokens - prompt_tokens)


@st.composite
def traffic(draw: st.DrawFn, *, policy: str | None = None) -> tuple[EngineConfig, list[Action]]:
    config = draw(configs(policy=policy))
    waits = st.builds(Wait, st.floats(0, 2) | st.sampled_from([0.0, 3.0, 30.0]))
    aborts = st.builds(Abort, st.integers(0, 30))
    one = submits(config.page_size_tokens)
    actions = st.lists(one | one | one | waits | aborts, min_size=draw(st.sampled_from([1, 12, 24])), max_size=40)
    return config, draw(actions)


def ids_of(pages: tuple[int, ...]) -> bytes:
    return b"".join((page + 1).to_bytes(8, "big") for page in pages)


class Run:
    """An engine under a list of actions, with all that it said."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = Engine(config)
        self.now_s = 0.0
        self.accepted: dict[str, Submit] = {}
        self.finished: dict[str, Finished] = {}
        self.steps: list[Step] = []

    def act(self, action: Action, *, pieces: int = 1) -> None:
        if isinstance(action, Submit):
            self._submit(action)
        elif isinstance(action, Abort):
            finished = self.engine.abort(f"r{action.number}", self.now_s)
            if finished is not None:
                self.finished[finished.rid] = finished
        else:
            start_s = self.now_s
            for piece in range(1, pieces):
                self._advance(start_s + action.seconds * piece / pieces)
            self._advance(start_s + action.seconds)

    def drain(self, *, limit_steps: int = 20_000) -> None:
        for _ in range(limit_steps):
            next_s = self.engine.next_event_s()
            if next_s is None:
                return
            self._advance(next_s)
        raise AssertionError(f"not idle after {limit_steps} steps: {self.engine.load()}")

    def _submit(self, action: Submit) -> None:
        rid = f"r{len(self.accepted)}"
        request = Request(
            rid=rid,
            ids=ids_of(action.pages),
            prompt_tokens=action.prompt_tokens,
            output_tokens=action.output_tokens,
        )
        idle = self.engine.next_event_s() is None
        try:
            self.engine.submit(request, self.now_s)
        except QueueFull:
            assert not idle
        except TooLong:
            pass
        else:
            self.accepted[rid] = action

    def _advance(self, now_s: float) -> None:
        self.now_s = now_s
        for step in self.engine.advance(now_s):
            self.steps.append(step)
            self.finished.update((finished.rid, finished) for finished in step.finished)


def check_load(load: Load, config: EngineConfig) -> None:
    page = config.page_size_tokens
    assert min(load.used_tokens, load.evictable_tokens, load.available_tokens) >= 0
    assert load.used_tokens + load.evictable_tokens + load.available_tokens == load.max_total_tokens
    assert load.max_total_tokens == config.max_total_tokens // page * page
    assert 0 <= load.host_used_tokens <= config.host_total_tokens
    assert load.running + load.prefilling <= config.max_running_requests
    assert min(load.waiting_tokens, load.waiting_uncached_tokens, load.prefilling, load.retracted) >= 0


@given(traffic())
def test_tokens_are_conserved_and_limits_are_kept(case: tuple[EngineConfig, list[Action]]) -> None:
    config, actions = case
    run = Run(config)
    for action in actions:
        run.act(action)
        check_load(run.engine.load(), config)
        check_load(run.engine.published, config)
    for _ in range(20_000):
        next_s = run.engine.next_event_s()
        if next_s is None:
            break
        run.engine.advance(next_s)
        check_load(run.engine.load(), config)
    load = run.engine.load()
    assert (load.used_tokens, load.running, load.waiting, load.prefilling) == (0, 0, 0, 0)
    assert load.waiting_tokens == load.waiting_uncached_tokens == 0


@given(traffic())
def test_everyone_ends_once_with_all_its_output(case: tuple[EngineConfig, list[Action]]) -> None:
    config, actions = case
    run = Run(config)
    for action in actions:
        run.act(action)
    run.drain()
    assert run.finished.keys() == run.accepted.keys()
    produced = dict.fromkeys(run.accepted, 0)
    for step in run.steps:
        for rid, tokens in step.tokens:
            assert tokens > 0
            produced[rid] += tokens
    for rid, finished in run.finished.items():
        assert finished.completion_tokens == produced[rid]
        if finished.reason == "stop":
            assert finished.completion_tokens == run.accepted[rid].output_tokens
    assert run.engine.load().generated_tokens_total == sum(produced.values())


@given(traffic())
def test_a_hit_is_never_longer_than_what_someone_else_had_in_common(case: tuple[EngineConfig, list[Action]]) -> None:
    config, actions = case
    run = Run(config)
    for action in actions:
        run.act(action)
    run.drain()
    page = config.page_size_tokens
    for rid, finished in run.finished.items():
        hit = finished.cached_device_tokens + finished.cached_host_tokens
        mine = run.accepted[rid]
        common = max(
            (_common(mine.pages, other.pages) for name, other in run.accepted.items() if name != rid), default=0
        )
        assert hit % page == 0
        assert hit <= min(common * page, mine.prompt_tokens - 1)


@given(traffic(policy="fcfs"))
def test_prefills_begin_in_order_of_arrival(case: tuple[EngineConfig, list[Action]]) -> None:
    config, actions = case
    run = Run(config)
    for action in actions:
        run.act(action)
    run.drain()
    in_order = sorted(run.finished.values(), key=lambda finished: int(finished.rid[1:]))
    started = [finished.prefill_started_s for finished in in_order if finished.prefill_started_s is not None]
    assert started == sorted(started)


@given(traffic(), st.data())
def test_what_is_aborted_at_once_leaves_nothing_held(
    case: tuple[EngineConfig, list[Action]], data: st.DataObject
) -> None:
    config, actions = case
    run = Run(config)
    for action in actions:
        run.act(action)
    before, accepted = run.engine.load(), set(run.accepted)
    run.act(data.draw(submits(config.page_size_tokens)))
    for rid in run.accepted.keys() - accepted:
        assert run.engine.abort(rid, run.now_s) is not None
    after = run.engine.load()
    assert (after.used_tokens, after.running) == (before.used_tokens, before.running)
    if after.waiting == before.waiting:
        assert after.waiting_uncached_tokens == before.waiting_uncached_tokens


@given(traffic())
def test_aborting_everyone_frees_everything(case: tuple[EngineConfig, list[Action]]) -> None:
    config, actions = case
    run = Run(config)
    for action in actions:
        run.act(action)
    for rid in run.accepted:
        run.engine.abort(rid, run.now_s)
    load = run.engine.load()
    assert (load.used_tokens, load.total_tokens, load.waiting_uncached_tokens) == (0, 0, 0)
    assert run.engine.published.total_tokens == 0
    assert run.engine.flush()
    assert run.engine.load().available_tokens == load.max_total_tokens
    assert run.engine.load().host_used_tokens == 0


@given(traffic(), st.integers(2, 5))
def test_advancing_bit_by_bit_is_the_same_as_at_once(case: tuple[EngineConfig, list[Action]], pieces: int) -> None:
    config, actions = case
    at_once, bit_by_bit = Run(config), Run(config)
    for action in actions:
        at_once.act(action)
        bit_by_bit.act(action, pieces=pieces)
        assert at_once.engine.load() == bit_by_bit.engine.load()
        assert at_once.engine.published == bit_by_bit.engine.published
    at_once.drain()
    bit_by_bit.drain()
    assert at_once.steps == bit_by_bit.steps
    assert at_once.finished == bit_by_bit.finished


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


@given(traffic())
def test_decode_steps_that_pass_as_one_come_to_the_same(case: tuple[EngineConfig, list[Action]]) -> None:
    config, actions = case
    # Room for everything: short of room, whole pages are taken for several steps at once, and that is seen.
    config = replace(config, max_total_tokens=4_000 * config.page_size_tokens, max_queued_requests=None)
    # In quarters, parts of tokens add up without rounding.
    quarters = round(config.rates.accept_length * 4) / 4
    config = replace(config, rates=replace(config.rates, accept_length=quarters))
    slow = _ends(config, actions)
    fast = _ends(replace(config, decode_stride_steps=1_000), actions)
    assert slow.keys() == fast.keys()
    for rid, end in slow.items():
        other = fast[rid]
        assert (other.reason, other.cached_device_tokens) == (end.reason, end.cached_device_tokens)
        assert other.finished_s == pytest.approx(end.finished_s)
        assert other.verify_calls == end.verify_calls
        assert other.completion_tokens == end.completion_tokens


def _ends(config: EngineConfig, actions: list[Action]) -> dict[str, Finished]:
    """How every request ends, whatever the engine reports in between."""
    engine, now_s, ends = Engine(config), 0.0, dict[str, Finished]()
    for number, action in enumerate(actions):
        # Off the ends of steps: which side of one a float falls is no property.
        now_s += 0.000_317
        match action:
            case Submit():
                request = Request(
                    rid=str(number),
                    ids=b"".join(page.to_bytes(8, "big") for page in action.pages),
                    prompt_tokens=action.prompt_tokens,
                    output_tokens=action.output_tokens,
                )
                engine.submit(request, now_s)
            case Abort():
                end = engine.abort(str(action.number), now_s)
                if end is not None:
                    ends[end.rid] = end
            case Wait():
                now_s += action.seconds
        ends |= {end.rid: end for step in engine.advance(now_s) for end in step.finished}
    while (next_s := engine.next_event_s()) is not None:
        ends |= {end.rid: end for step in engine.advance(next_s) for end in step.finished}
    return ends
