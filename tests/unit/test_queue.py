"""The keyed queue: what a caller of it may rely on."""

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglpool.controller.queue import Done, KeyedQueue, Outcome, RequeueAfter, Retry

Handle = Callable[[str], Awaitable[Outcome]]


def now() -> float:
    return asyncio.get_running_loop().time()


async def drain(queue: KeyedQueue[str], handler: Handle, *, workers: int = 4, for_s: float = 1.0) -> None:
    """Works on the queue for `for_s` seconds of virtual time, then stops."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(for_s, stop.set)
    await queue.run(workers=workers, handler=handler, stop=stop)


class Recorder:
    """A handler that takes `takes_s` for each key and answers from a script, `Done` at its end."""

    def __init__(self, *script: Outcome, takes_s: float = 0.0) -> None:
        self.calls: list[tuple[float, str]] = []
        self.script = list(script)
        self.takes_s = takes_s

    async def __call__(self, key: str) -> Outcome:
        self.calls.append((now(), key))
        await asyncio.sleep(self.takes_s)
        return self.script.pop(0) if self.script else Done()

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.calls]


def test_a_key_added_many_times_is_worked_on_once(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](), Recorder()
        for _ in range(100):
            queue.add("a")
        assert queue.depth == 1
        await drain(queue, handler)
        assert handler.keys == ["a"]
        assert queue.adds_total == 1
        assert queue.depth == 0

    in_virtual_time(scenario())


def test_a_key_dirtied_while_running_runs_exactly_once_more_and_never_twice_at_a_time(in_virtual_time):
    async def scenario():
        queue, spans = KeyedQueue[str](), []

        async def handler(key: str) -> Outcome:
            begin = now()
            if not spans:
                for _ in range(5):
                    queue.add("a")
            await asyncio.sleep(10)
            spans.append((begin, now()))
            return Done()

        queue.add("a")
        await drain(queue, handler, for_s=60)
        assert spans == [(0, 10), (10, 20)]
        assert queue.adds_total == 2

    in_virtual_time(scenario())


def test_different_keys_run_side_by_side_up_to_the_number_of_workers(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](), Recorder(takes_s=10)
        for key in "abcde":
            queue.add(key)
        await drain(queue, handler, workers=2, for_s=60)
        assert [at for at, _ in handler.calls] == [0, 0, 10, 10, 20]

    in_virtual_time(scenario())


def test_fresh_events_overtake_a_resync_and_a_resync_key_can_be_promoted(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](), Recorder()
        for key in "uvwxyz":
            queue.add(key, fresh=False)
        queue.add("event")
        queue.add("y")
        assert queue.depth == 7
        await drain(queue, handler, workers=1)
        assert handler.keys == ["event", "y", "u", "v", "w", "x", "z"]

    in_virtual_time(scenario())


def test_a_resync_add_does_not_push_a_fresh_key_back(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](), Recorder()
        queue.add("bulk", fresh=False)
        queue.add("event")
        queue.add("event", fresh=False)
        await drain(queue, handler, workers=1)
        assert handler.keys == ["event", "bulk"]

    in_virtual_time(scenario())


def test_an_endless_storm_of_events_does_not_hold_up_the_resync_for_ever(in_virtual_time):
    async def scenario():
        queue, seen = KeyedQueue[str](), Counter()

        async def handler(key: str) -> Outcome:
            seen[key] += 1
            queue.add(key if key != "bulk" else "storm-0")
            await asyncio.sleep(1)
            return Done()

        for i in range(20):
            queue.add(f"storm-{i}")
        queue.add("bulk", fresh=False)
        await drain(queue, handler, workers=1, for_s=100)
        assert seen["bulk"] >= 1

    in_virtual_time(scenario())


def test_requeue_after_runs_again_then_and_an_event_in_between_runs_at_once(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](), Recorder(RequeueAfter(30))
        queue.add("a")
        asyncio.get_running_loop().call_later(7, queue.add, "a")
        await drain(queue, handler, for_s=100)
        assert [at for at, _ in handler.calls] == [0, 7, 30]

    in_virtual_time(scenario())


def test_of_several_delays_the_earliest_wins(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](), Recorder()
        for delay_s in (50, 20, 80):
            queue.add_after("a", delay_s)
        assert (queue.delayed, queue.depth) == (1, 0)
        await drain(queue, handler, for_s=200)
        assert [at for at, _ in handler.calls] == [20]

    in_virtual_time(scenario())


def test_a_delay_that_has_passed_already_means_now(in_virtual_time):
    async def scenario():
        queue = KeyedQueue[str]()
        queue.add_after("a", 0)
        queue.add_after("b", -3)
        assert (queue.delayed, queue.depth) == (0, 2)

    in_virtual_time(scenario())


def test_retries_back_off_from_half_a_second_to_five_minutes_with_jitter(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](jitter=random.Random(7)), Recorder(*[Retry()] * 14)
        queue.add("a")
        await drain(queue, handler, for_s=3_000)
        times = [at for at, _ in handler.calls]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        assert len(gaps) == 14
        for n, gap in enumerate(gaps):
            nominal = min(0.5 * 2**n, 300)
            assert 0.8 * nominal <= gap <= min(1.2 * nominal, 300) + 1e-6
        assert gaps[0] != 0.5
        assert queue.retries_total == 14
        assert queue.failures("a") == 0  # the last one went well

    in_virtual_time(scenario())


def test_success_starts_the_backoff_anew(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](), Recorder(Retry(), Retry(), Retry(), RequeueAfter(100), Retry())
        queue.add("a")
        await drain(queue, handler, for_s=300)
        times = [at for at, _ in handler.calls]
        assert len(times) == 6
        assert times[5] - times[4] <= 0.6

    in_virtual_time(scenario())


def test_one_failing_key_does_not_slow_down_another(in_virtual_time):
    async def scenario():
        queue, calls = KeyedQueue[str](), []

        async def handler(key: str) -> Outcome:
            calls.append((now(), key))
            return Retry() if key == "bad" else Done()

        queue.add("bad")
        for i in range(60):
            asyncio.get_running_loop().call_later(i, queue.add, "good")
        await drain(queue, handler, workers=1, for_s=61)
        assert [at for at, key in calls if key == "good"] == [float(i) for i in range(60)]

    in_virtual_time(scenario())


@pytest.mark.parametrize("error", [RuntimeError("boom"), asyncio.CancelledError()])
def test_a_handler_that_raises_is_logged_and_retried_and_its_worker_lives(in_virtual_time, caplog, error):
    async def scenario():
        queue, calls = KeyedQueue[str](), []

        async def handler(key: str) -> Outcome:
            calls.append(key)
            if len(calls) < 4:
                raise error
            return Done()

        queue.add("prod/pool")
        await drain(queue, handler, workers=1, for_s=60)
        assert calls == ["prod/pool"] * 4
        assert queue.retries_total == 3

    with caplog.at_level(logging.ERROR):
        in_virtual_time(scenario())
    assert sum("prod/pool" in record.getMessage() for record in caplog.records) == 3


def test_stop_lets_running_work_finish_and_leaves_the_rest(in_virtual_time):
    async def scenario():
        queue, handler = KeyedQueue[str](), Recorder(takes_s=5)
        for key in "abc":
            queue.add(key)
        queue.add_after("later", 50)
        await drain(queue, handler, workers=1, for_s=2)
        assert now() == 5
        assert handler.keys == ["a"]
        assert (queue.depth, queue.running, queue.delayed) == (2, 0, 0)

    in_virtual_time(scenario())


def test_stop_with_idle_workers_returns_at_once(in_virtual_time):
    async def scenario():
        await drain(KeyedQueue[str](), Recorder(), for_s=3)
        assert now() == 3

    in_virtual_time(scenario())


def test_stop_does_not_wait_longer_than_the_grace(in_virtual_time, caplog):
    async def scenario():
        queue, stop = KeyedQueue[str](), asyncio.Event()
        queue.add("stuck")
        asyncio.get_running_loop().call_later(1, stop.set)
        await queue.run(workers=2, handler=Recorder(takes_s=10_000), stop=stop, grace_s=4)
        assert now() == 5
        assert queue.running == 0

    in_virtual_time(scenario())
    assert "stuck" in caplog.text


def test_cancelling_run_ends_its_workers(in_virtual_time):
    async def scenario():
        queue = KeyedQueue[str]()
        queue.add("a")
        running = asyncio.create_task(queue.run(workers=3, handler=Recorder(takes_s=100), stop=asyncio.Event()))
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(scenario())


def test_the_oldest_age_counts_waiting_and_running_keys(in_virtual_time):
    async def scenario():
        waited: list[float] = []
        queue, ages = KeyedQueue[str](on_start=waited.append), []
        assert queue.oldest_s == 0
        queue.add("a", fresh=False)
        await asyncio.sleep(3)
        queue.add("a")  # moves to the fresh lane, stays 3 s old
        assert queue.oldest_s == 3

        async def handler(key: str) -> Outcome:
            await asyncio.sleep(20)
            ages.append(queue.oldest_s)
            return Done()

        await drain(queue, handler, for_s=30)
        assert waited == [3]
        assert ages == [20]
        assert queue.oldest_s == 0

    in_virtual_time(scenario())


@settings(max_examples=150, deadline=None)
@given(
    adds=st.lists(
        st.tuples(st.floats(0, 30), st.sampled_from("abc"), st.booleans(), st.sampled_from([None, 0.5, 4.0])),
        max_size=30,
    ),
    takes_s=st.sampled_from([0.0, 0.3, 2.0]),
    workers=st.integers(1, 4),
)
def test_no_add_is_lost_and_no_key_overlaps(adds, takes_s, workers, in_virtual_time):
    """After every add, a run of that key starts; a key never runs twice at a time."""
    starts: dict[str, list[float]] = {"a": [], "b": [], "c": []}

    async def scenario():
        queue, running = KeyedQueue[str](), set()
        loop = asyncio.get_running_loop()

        async def handler(key: str) -> Outcome:
            assert key not in running
            running.add(key)
            starts[key].append(now())
            await asyncio.sleep(takes_s)
            running.discard(key)
            return Done()

        for at, key, fresh, delay_s in adds:
            if delay_s is None:
                loop.call_later(at, lambda key=key, fresh=fresh: queue.add(key, fresh=fresh))
            else:
                loop.call_later(at, queue.add_after, key, delay_s)
        await drain(queue, handler, workers=workers, for_s=1_000)
        assert (queue.depth, queue.running, queue.delayed, queue.retries_total) == (0, 0, 0, 0)

    in_virtual_time(scenario())
    for at, key, _, _ in adds:
        assert any(start >= at - 1e-6 for start in starts[key])
    assert sum(map(len, starts.values())) <= len(adds)
