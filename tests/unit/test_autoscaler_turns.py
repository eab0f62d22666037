"""The tick: when pools are read, and that no pool holds up another."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from sglpool.controller.autoscaler import DRAIN_INTERVAL_S, FIXED_INTERVAL_S, INTERVAL_S, JUMP_S
from sglpool.signals import Reading, Target
from support.ticks import KEY, Scene, autoscaled, reading, replica


def test_pools_are_spread_evenly_over_the_interval(in_virtual_time):
    async def scenario():
        scene = Scene()
        async with scene.autoscaler:
            for number in range(300):
                scene.follow(autoscaled(f"pool-{number}"))
            await asyncio.sleep(2 * INTERVAL_S)
        seconds = Counter(int(at % INTERVAL_S) for at, _ in scene.reader.calls)
        assert len(scene.reader.calls) == 600
        assert set(seconds) == set(range(int(INTERVAL_S)))
        assert max(seconds.values()) <= 3 * 600 / INTERVAL_S
        for name in ("pool-0", "pool-299"):
            first, second = [at for at, pool in scene.reader.calls if pool == name]
            assert second - first == pytest.approx(INTERVAL_S, abs=0.1)

    in_virtual_time(scenario())


def test_a_load_that_jumps_is_read_once_more_within_seconds_and_followed(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put(4)
        replicas = {f"pod-{n}": replica(in_flight=2) for n in range(4)}
        scene.reader.answer = reading(9.0, replicas=replicas)
        async with scene.autoscaler:
            scene.follow()
            await asyncio.sleep(10 * INTERVAL_S)
            wanted = scene.autoscaler.view(KEY).wanted
            assert wanted == {"B200": 4}
            calls = len(scene.reader.calls)
            scene.reader.answer = reading(18.0, replicas=replicas)
            jumped_s = asyncio.get_running_loop().time()
            await asyncio.sleep(INTERVAL_S + JUMP_S)
            wanted = scene.autoscaler.view(KEY).wanted
            assert wanted is not None
            assert wanted["B200"] > 4
            first, second = [at for at, _ in scene.reader.calls[calls : calls + 2]]
            assert first - jumped_s <= INTERVAL_S
            assert second - first == pytest.approx(JUMP_S, abs=0.1)
            await asyncio.sleep(10 * INTERVAL_S)
            assert len(scene.reader.calls) <= calls + 13, "then at its usual pace again"

    in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("pool", "draining", "interval_s"),
    [
        (autoscaled(), (), INTERVAL_S),
        (autoscaled(), (1,), DRAIN_INTERVAL_S),
        (autoscaled(autoscaling=None, replicas=2), (), FIXED_INTERVAL_S),
        (autoscaled(autoscaling=None, replicas=2), (1,), DRAIN_INTERVAL_S),
    ],
)
def test_how_often_a_pool_is_read(in_virtual_time, pool, draining, interval_s):
    async def scenario():
        scene = Scene()
        async with scene.autoscaler:
            scene.put(2, draining=draining)
            scene.follow(pool)
            await asyncio.sleep(10 * interval_s)
        assert len(scene.reader.calls) == 10

    in_virtual_time(scenario())


def test_a_drain_is_read_more_often_from_its_first_mark_on(in_virtual_time):
    async def scenario():
        scene = Scene()
        async with scene.autoscaler:
            scene.put(2)
            scene.follow(autoscaled(autoscaling=None, replicas=2))
            scene.put(2, draining=(1,))
            scene.follow(autoscaled(autoscaling=None, replicas=1))
            await asyncio.sleep(2 * DRAIN_INTERVAL_S)
        assert len(scene.reader.calls) == 2

    in_virtual_time(scenario())


def test_a_tick_that_is_not_done_when_the_next_is_due_is_skipped_not_queued(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.reader.takes_s = 2.5 * INTERVAL_S
        async with scene.autoscaler:
            scene.put()
            scene.follow()
            await asyncio.sleep(6 * INTERVAL_S)
        assert len(scene.reader.calls) == 2
        assert scene.metrics.skipped_ticks._value.get() == 4

    in_virtual_time(scenario())


def test_a_pool_that_cannot_be_looked_at_holds_up_no_other(in_virtual_time, caplog):
    async def scenario():
        scene = Scene()
        good = scene.reader.read

        async def read(target: Target) -> Reading:
            if target.pool == "bad":
                raise RuntimeError("defect")
            return await good(target)

        scene.reader.read = read
        async with scene.autoscaler:
            scene.follow(autoscaled("bad"))
            scene.follow(autoscaled("good"))
            await asyncio.sleep(4 * INTERVAL_S)
        assert len(scene.reader.calls) == 4

    in_virtual_time(scenario())
    assert "pool=serving/bad" in caplog.text


def test_at_the_end_nothing_is_left_running(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.reader.takes_s = 1000.0
        async with scene.autoscaler:
            scene.follow()
            await asyncio.sleep(INTERVAL_S)
            assert len(scene.reader.calls) == 1
        assert len(asyncio.all_tasks()) == 1
        scene.follow(autoscaled("later"))
        await asyncio.sleep(2 * INTERVAL_S)
        assert len(scene.reader.calls) == 1

    in_virtual_time(scenario())
