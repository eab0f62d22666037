"""The tick: when pools are read, what follows from a reading, and that nothing is asked for while nothing changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sglpool.api import names
from sglpool.api.pool import Pool
from sglpool.controller.autoscaler import DRAIN_INTERVAL_S, FIXED_INTERVAL_S, INTERVAL_S, JUMP_S, SHOW_S, Autoscaler
from sglpool.controller.loadview import (
    FIRST_POLL_S,
    ROUTER_PATIENCE_S,
    Subject,
    engines_of,
    load_of,
    signals_of,
    target_of,
)
from sglpool.controller.metrics import Metrics
from sglpool.controller.store import PoolKey, Store
from sglpool.plan import Observed
from sglpool.plan.drain import CAUSE_SIZE
from sglpool.scaling import Reason
from sglpool.signals import Reading, ReplicaReading, Target
from support import pools
from support.observed import observed_pod, observed_statefulset

Json = dict[str, Any]
KEY = ("serving", "kimi")
LONG_AGO = "2026-01-01T00:00:00Z"
NOW_S = 1_800_000_000.0


def autoscaled(name: str = "kimi", **spec: Any) -> Pool:
    changes = {
        "replicas": None,
        "gpus": [{"type": "B200", "targetRunningRequests": 4}],
        "autoscaling": {"minReplicas": 1, "maxReplicas": 8},
        "router": {"enabled": True},
        **spec,
    }
    return pools.pool(changes, metadata={"name": name, "uid": f"pool-{name}", "generation": 1})


def replica(**changes: Any) -> ReplicaReading:
    return ReplicaReading(**{"in_flight": 0, "queued": 0, "kv_used_tokens": 0, "kv_total_tokens": 1000, **changes})


def reading(in_flight: float | None = 0.0, **changes: Any) -> Reading:
    replicas = changes.pop("replicas", {"pod-0": replica()})
    fields = {"routers_read": 1, "routers_known": 1, "replicas": replicas, "measured": replicas, **changes}
    return Reading(in_flight=in_flight, **fields)


class FakeReader:
    """Answers with what it is told, after a while."""

    def __init__(self, answer: Reading | None = None) -> None:
        self.answer = answer or reading()
        self.takes_s = 0.0
        self.calls: list[tuple[float, str]] = []

    async def read(self, target: Target) -> Reading:
        self.calls.append((asyncio.get_running_loop().time(), target.pool))
        await asyncio.sleep(self.takes_s)
        return self.answer


class Scene:
    """An autoscaler with pools whose objects lie in a store."""

    def __init__(self, *, clock_speed: float = 1.0) -> None:
        self.store = Store()
        self.reader = FakeReader()
        self.asked: list[PoolKey] = []
        self.metrics = Metrics()
        self.wall_s = NOW_S
        self.versions = 0
        self.autoscaler = Autoscaler(
            store=self.store,
            reader=self.reader,
            enqueue=self.asked.append,
            metrics=self.metrics,
            wall_clock_s=lambda: NOW_S + asyncio.get_running_loop().time(),
            clock_speed=clock_speed,
        )

    def put(self, replicas: int = 1, *, draining: tuple[int, ...] = (), name: str = "kimi") -> None:
        """StatefulSet and ready pods."""
        self.versions += 1
        labels = {names.LABEL_POOL: name, names.LABEL_GPU: "B200", names.LABEL_COMPONENT: names.COMPONENT_ENGINE}
        meta = {"namespace": "serving", "resourceVersion": str(self.versions), "labels": labels}
        owner = {"controller": True, "uid": f"pool-{name}", "kind": "InferencePool", "name": name}
        self.store.put_statefulset(
            {
                "metadata": {**meta, "name": f"{name}-b200", "uid": f"sts-{name}", "ownerReferences": [owner]},
                "spec": {"replicas": replicas},
            }
        )
        for ordinal in range(replicas):
            marks = (
                {names.ANNOTATION_DRAINING: "true", names.ANNOTATION_DRAIN_CAUSE: CAUSE_SIZE}
                if ordinal in draining
                else {}
            )
            metadata = {
                **meta,
                "name": f"{name}-b200-{ordinal}",
                "uid": f"pod-{ordinal}",
                "annotations": marks,
                "creationTimestamp": LONG_AGO,
                "ownerReferences": [{"controller": True, "uid": f"sts-{name}", "kind": "StatefulSet", "name": name}],
            }
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}
            self.store.put_pod(
                {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"conditions": [ready], "podIP": "1.2.3.4"}}
            )

    def follow(self, pool: Pool | None = None) -> None:
        pool = pool or autoscaled()
        self.autoscaler.follow(pool, pools.size(pool), self.store.observed((pool.namespace, pool.name), {}))

    async def tick(self, times: int = 1, *, every_s: float = INTERVAL_S) -> None:
        for _ in range(times):
            await self.autoscaler.tick(KEY)
            await asyncio.sleep(every_s)


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


def subject(**changes: Any) -> Subject:
    pool = autoscaled()
    return replace(Subject.of(pool, pools.size(pool)), uid="pool", **changes)


def observed(*pods: Any, routers: tuple[Any, ...] = ()) -> Observed:
    return Observed(
        statefulsets=(observed_statefulset(replicas=3),), pods=tuple(pods), router_pods=tuple(routers), refusals={}
    )


def router(name: str, **changes: Any) -> Any:
    fields = {"component": names.COMPONENT_ROUTER, "address": "10.0.0.9", "gpu_type": "", **changes}
    return replace(observed_pod(0), name=name, uid=name, **fields)


def test_who_is_asked_and_whose_silence_matters():
    routers = (
        router("ready"),
        router("new", address=""),
        router("store", component=names.COMPONENT_STORE),
        router("leaving", ready=False, terminating=True),
        router("unready", ready=False, unready_since_s=NOW_S - 10),
        router("broken", ready=False, unready_since_s=NOW_S - ROUTER_PATIENCE_S),
    )
    now = observed(observed_pod(0), routers=routers)
    target = target_of(subject(), now, engines_of(now), now_s=NOW_S)
    assert {each.name: each.required for each in target.routers} == {
        "ready": True,
        "leaving": True,
        "unready": True,
        "broken": False,
    }


def test_the_autoscaler_is_asked_about_every_ready_replica_read_or_not():
    pods = (
        observed_pod(0),
        observed_pod(1),
        observed_pod(2, ready=False, unready_since_s=5.0, node="", unschedulable="no room"),
        observed_pod(3, ready=False, terminating=True),
        observed_pod(4, owner_uid="somebody else"),
    )
    found = reading(3.0, replicas={"pod-B200-0": replica(in_flight=3, age_s=1.0)})
    asked = signals_of(subject(), observed(*pods), found, now_s=NOW_S, waited_s=2.0, scaled=lambda s: s * 10)
    assert [(one.uid, one.age_s, one.running) for one in asked.replicas] == [
        ("pod-B200-0", 3.0, 3.0),
        ("pod-B200-1", None, 0.0),
    ]
    (state,) = asked.types
    assert (state.replicas, state.ready) == (3, 2)
    (starting,) = state.starting
    assert (starting.ordinal, starting.since_s, starting.unschedulable_since_s) == (2, 50.0, 50.0)
    assert (asked.in_flight, asked.age_s, asked.has_router) == (3.0, 2.0, True)


@pytest.mark.parametrize(
    ("ready_for_s", "read", "ready"), [(1.0, False, 0), (1.0, True, 1), (FIRST_POLL_S, False, 1), (-30.0, False, 1)]
)
def test_a_replica_that_was_not_polled_yet_still_starts(ready_for_s, read, ready):
    pod = observed_pod(0, unready_since_s=NOW_S - ready_for_s)
    found = reading(replicas={pod.uid: replica()} if read else {})
    asked = signals_of(subject(), observed(pod), found, now_s=NOW_S, waited_s=0.0, scaled=lambda s: s)
    assert (asked.types[0].ready, len(asked.types[0].starting), len(asked.replicas)) == (ready, 1 - ready, ready)


@pytest.mark.parametrize(("unproven", "serves"), [("true", False), ("false", True), ("", True)])
def test_a_replica_under_a_gate_gets_no_traffic_and_is_no_capacity(unproven: str, serves: bool):
    pods = (observed_pod(0), observed_pod(1, unproven=unproven, unready_since_s=NOW_S - 300))
    found = reading(3.0, replicas={pod.uid: replica(in_flight=1, queued=2) for pod in pods})
    asked = signals_of(subject(), observed(*pods), found, now_s=NOW_S, waited_s=0.0, scaled=lambda s: s)
    (state,) = asked.types
    assert (state.ready, len(asked.replicas), asked.queued) == ((2, 2, 4) if serves else (1, 1, 2))
    if not serves:
        (starting,) = state.starting
        assert (starting.uid, starting.ready, starting.since_s) == (pods[1].uid, True, NOW_S - 300)


def test_the_sum_over_some_routers_is_not_the_pools_load():
    partial = reading(3.0, routers_read=1, routers_known=2)
    assert load_of(subject(), observed(), partial).running_requests is None
    assert load_of(subject(), observed(), reading(3.0)).running_requests == 3


def test_without_a_router_the_load_is_that_of_ready_replicas():
    pods = (observed_pod(0), observed_pod(1, ready=False))
    both = {"pod-B200-0": replica(in_flight=2, kv_used_tokens=500), "pod-B200-1": replica(in_flight=9)}
    found = load_of(subject(routed=False), observed(*pods), reading(11.0, replicas=both))
    assert (found.running_requests, found.kv_utilization_percent) == (2, 50)
    asked = signals_of(
        subject(routed=False), observed(*pods), reading(11.0), now_s=NOW_S, waited_s=0.0, scaled=lambda s: s
    )
    assert (asked.in_flight, asked.has_router) == (None, False)
