"""What follows from a reading, and that nothing is asked for while nothing changes.

Not here: when pools are read (`test_autoscaler_turns`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sglpool.controller.autoscaler import SHOW_S
from sglpool.scaling import Reason
from sglpool.signals import Reading
from support.ticks import KEY, Scene, autoscaled, reading, replica


def test_load_above_target_asks_for_replicas_at_once(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.follow()
        assert scene.autoscaler.view(KEY).wanted is None, "nothing was read yet"
        scene.reader.answer = reading(40.0, replicas={"pod-0": replica(in_flight=40)})
        await scene.tick()
        assert scene.asked == [KEY]
        wanted = scene.autoscaler.view(KEY).wanted
        assert wanted is not None
        assert wanted["B200"] > 1

    in_virtual_time(scenario())


def test_the_first_decision_after_a_restart_goes_on_with_the_drain_under_way(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put(4, draining=(2, 3))
        scene.follow()
        scene.reader.answer = reading(4.0, replicas={f"pod-{n}": replica(in_flight=1) for n in range(4)})
        await scene.tick()
        assert scene.autoscaler.view(KEY).wanted == {"B200": 2}
        scene.reader.answer = reading(14.0, replicas={f"pod-{n}": replica(in_flight=4) for n in range(4)})
        await scene.tick(20)
        wanted = scene.autoscaler.view(KEY).wanted
        assert wanted is not None
        assert wanted["B200"] >= 4, "load that returns cancels it"

    in_virtual_time(scenario())


def test_a_tick_without_a_change_asks_for_nothing(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.follow()
        await scene.tick(40)
        first = len(scene.asked)
        assert first <= 3, "until every figure has settled"
        await scene.tick(400)
        assert len(scene.asked) <= first + 3, "windows that fill"
        settled = len(scene.asked)
        await scene.tick(400)
        assert len(scene.asked) == settled

    in_virtual_time(scenario())


def test_a_busy_pool_asks_at_most_once_a_minute_while_its_size_stays(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put(2)
        scene.follow()
        replicas = {f"pod-{n}": replica(in_flight=3) for n in range(2)}
        minutes = 60
        for turn in range(minutes * 4):
            scene.reader.answer = reading(6.0 + turn % 3 / 10, replicas=replicas)
            await scene.tick()
        assert scene.autoscaler.view(KEY).wanted == {"B200": 2}
        assert len(scene.asked) <= minutes + 1

    in_virtual_time(scenario())


def test_where_a_second_is_a_minute_a_late_tick_is_no_jump_of_the_clock(in_virtual_time):
    async def scenario():
        scene = Scene(clock_speed=60)
        scene.put()
        scene.follow()
        await scene.tick(3, every_s=3.0)
        told = scene.autoscaler.view(KEY).told
        assert told is not None
        assert told.decision is not None
        assert told.decision.valid, told.decision.message

    in_virtual_time(scenario())


def test_a_reading_that_fails_holds_the_size_and_is_told(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put(3)
        scene.follow()
        await scene.tick(4)
        before = len(scene.asked)
        scene.reader.answer = Reading(routers_known=1, problems=("Router r cannot be reached.",))
        await scene.tick()
        view = scene.autoscaler.view(KEY)
        assert view.wanted == {"B200": 3}
        assert view.told is not None
        assert view.told.decision is not None
        assert not view.told.decision.valid
        assert view.told.problems == ("Router r cannot be reached.",)
        assert view.told.load.running_requests is None
        assert len(scene.asked) == before + 1
        assert scene.metrics.missing_samples.labels(*KEY)._value.get() == 4

    in_virtual_time(scenario())


def test_idle_readings_are_counted_in_a_row_and_a_missing_one_breaks_it(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put(2, draining=(1,))
        scene.follow()
        idle = reading(replicas={"pod-0": replica(in_flight=1), "pod-1": replica(idle=True, conversations=2)})

        def idle_reads() -> dict[str, int]:
            return {uid: load.idle_reads for uid, load in scene.autoscaler.view(KEY).loads.items()}

        scene.reader.answer = idle
        await scene.tick()
        assert idle_reads() == {"pod-0": 0, "pod-1": 1}
        asked = len(scene.asked)
        await scene.tick()
        assert idle_reads()["pod-1"] == 2
        assert len(scene.asked) == asked + 1, "the removal is due"
        await scene.tick()
        assert len(scene.asked) == asked + 1, "and was asked for"
        scene.reader.answer = reading(replicas={"pod-0": replica()})
        await scene.tick()
        assert "pod-1" not in idle_reads()
        scene.reader.answer = idle
        await scene.tick()
        assert idle_reads()["pod-1"] == 1

    in_virtual_time(scenario())


def test_a_load_grows_old_between_readings(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.follow()
        scene.reader.answer = reading(replicas={"pod-0": replica(age_s=0.5)})
        await scene.autoscaler.tick(KEY)
        assert scene.autoscaler.view(KEY).loads["pod-0"].age_s == pytest.approx(0.5)
        await asyncio.sleep(20)
        assert scene.autoscaler.view(KEY).loads["pod-0"].age_s == pytest.approx(20.5)

    in_virtual_time(scenario())


def test_a_changed_bound_decides_at_once_on_the_last_reading(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put(2)
        scene.follow()
        scene.reader.answer = reading(replicas={"pod-0": replica(), "pod-1": replica()})
        await scene.tick()
        scene.follow(autoscaled(autoscaling={"minReplicas": 4, "maxReplicas": 8}))
        assert scene.autoscaler.view(KEY).wanted == {"B200": 4}
        told = scene.autoscaler.view(KEY).told
        assert told is not None
        assert told.decision is not None
        assert told.decision.reason == Reason.BOUNDS

    in_virtual_time(scenario())


def test_a_pool_that_becomes_fixed_is_no_longer_decided_on(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put(2)
        scene.follow()
        await scene.tick()
        scene.follow(autoscaled(autoscaling=None, replicas=2))
        view = scene.autoscaler.view(KEY)
        assert view.wanted is None
        assert view.told is not None
        assert view.told.decision is None

    in_virtual_time(scenario())


def test_a_new_pool_of_an_old_name_starts_anew(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.follow()
        await scene.tick()
        assert scene.autoscaler.view(KEY).told is not None
        scene.follow(replace(autoscaled(), uid="another"))
        assert scene.autoscaler.view(KEY).told is None
        scene.autoscaler.forget(KEY)
        assert scene.autoscaler.view(KEY).loads == {}

    in_virtual_time(scenario())


def test_a_pool_that_goes_while_it_is_read_is_not_decided_on(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.follow()
        scene.reader.takes_s = 2.0
        tick = asyncio.create_task(scene.autoscaler.tick(KEY))
        await asyncio.sleep(1)
        scene.autoscaler.forget(KEY)
        await tick
        assert scene.asked == []

    in_virtual_time(scenario())


def test_figures_alone_are_shown_once_a_minute(in_virtual_time):
    async def scenario():
        scene = Scene()
        scene.put()
        scene.follow()
        scene.reader.answer = reading(1.0)
        await scene.autoscaler.tick(KEY)

        def shown() -> int | None:
            told = scene.autoscaler.view(KEY).told
            assert told is not None
            return told.load.running_requests

        assert shown() == 1
        scene.reader.answer = reading(2.0)
        await asyncio.sleep(SHOW_S - 1)
        await scene.autoscaler.tick(KEY)
        assert shown() == 1
        await asyncio.sleep(1)
        await scene.autoscaler.tick(KEY)
        assert shown() == 2

    in_virtual_time(scenario())
