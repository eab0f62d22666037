"""When Events are read, and what is taken from them."""

from __future__ import annotations

from sglpool.controller.refusals import PATIENCE_S, RefusalReader
from sglpool.kube import Forbidden
from sglpool.plan import Observed
from support import pools
from support.fake_kube import FakeKube
from support.observed import observed_pod, observed_statefulset

POOL = pools.pool(metadata={"uid": "pool"})
KEY = ("serving", "kimi")
MISSING = Observed(statefulsets=(observed_statefulset(replicas=1),), refusals={})
COMPLETE = Observed(statefulsets=MISSING.statefulsets, pods=(observed_pod(0),), refusals={})
WORDS = 'pods "kimi-b200-0" is forbidden: exceeded quota: gpus'


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def event(message: str, at: str) -> dict:
    return {"kind": "Event", "metadata": {"name": at}, "message": message, "lastTimestamp": at}


def bench() -> tuple[RefusalReader, FakeKube, Clock]:
    kube, clock = FakeKube(), Clock()
    prefix = "create Pod kimi-b200-0 in StatefulSet kimi-b200 failed error: "
    kube.put(event(prefix + "older words", "2026-01-01T00:00:00Z"))
    kube.put(event(prefix + WORDS, "2026-01-01T00:00:09Z"))
    return RefusalReader(kube, clock), kube, clock


async def test_events_are_read_only_when_pods_have_been_missing_for_a_while():
    reader, _, clock = bench()
    assert await reader.read(POOL, COMPLETE) == ({}, None)
    found, again_s = await reader.read(POOL, MISSING)
    assert found == {}
    assert again_s is not None
    clock.now_s += again_s
    found, again_s = await reader.read(POOL, MISSING)
    assert (found["kimi-b200"].kind, found["kimi-b200"].message) == ("QuotaExceeded", WORDS)
    assert again_s == 2 * PATIENCE_S
    assert reader.known(KEY) == found


async def test_what_was_known_is_forgotten_once_the_pods_are_there():
    reader, _, clock = bench()
    await reader.read(POOL, MISSING)
    clock.now_s += 60
    await reader.read(POOL, MISSING)
    assert await reader.read(POOL, COMPLETE) == ({}, None)
    assert reader.known(KEY) == {}
    # The next time starts with patience again.
    assert (await reader.read(POOL, MISSING))[0] == {}


async def test_without_the_right_to_read_events_there_is_no_reason_and_no_failure():
    reader, kube, clock = bench()
    kube.failures["list", "Event", ""] = Forbidden("no", verb="list", kind="Event", code=403)
    await reader.read(POOL, MISSING)
    clock.now_s += 60
    assert await reader.read(POOL, MISSING) == ({}, 2 * PATIENCE_S)


async def test_no_events_no_reason():
    reader, kube, clock = bench()
    kube.objects.clear()
    await reader.read(POOL, MISSING)
    clock.now_s += 60
    assert (await reader.read(POOL, MISSING))[0] == {}


async def test_strangers_and_statefulsets_in_motion_are_not_asked_about():
    reader, _, _ = bench()
    moving = observed_statefulset(replicas=1, caught_up=False)
    stranger = observed_statefulset(replicas=1, owner_uid="other")
    assert await reader.read(POOL, Observed(statefulsets=(moving, stranger), refusals={})) == ({}, None)
