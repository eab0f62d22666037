"""The event recorder: few events, none of which anybody waits for."""

import asyncio
from datetime import UTC, datetime

from sglpool.kube import EventRecorder, Forbidden

POOL = {
    "apiVersion": "sglpool.io/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"namespace": "prod", "name": "kimi", "uid": "u-1", "resourceVersion": "9"},
}


class Inbox:
    """Keeps what is posted; `takes_s` for each; fails with `error` if there is one."""

    def __init__(self, *, takes_s=0.0, error=None):
        self.events = []
        self.takes_s = takes_s
        self.error = error

    async def create(self, manifest, *, timeout_s):
        await asyncio.sleep(self.takes_s)
        if self.error:
            raise self.error
        self.events.append(manifest)

    @property
    def messages(self):
        return [event["message"] for event in self.events]


def recorder(inbox, **options):
    loop = asyncio.get_running_loop()
    return EventRecorder(
        inbox,
        instance="operator-0",
        clock=loop.time,
        wall_clock=lambda: datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC),
        **options,
    )


def say(events, message, *, pool=POOL, reason="Scaled"):
    return events.record(pool, reason=reason, message=message, action="Scale")


def pool(n):
    return {**POOL, "metadata": {**POOL["metadata"], "name": f"pool-{n}", "uid": f"u-{n}"}}


def test_an_event_names_its_object_and_time(in_virtual_time):
    async def scenario():
        inbox = Inbox()
        async with recorder(inbox) as events:
            assert say(events, "2 → 3 replicas")
        (event,) = inbox.events
        assert event["involvedObject"] == {
            "apiVersion": "sglpool.io/v1alpha1",
            "kind": "InferencePool",
            "namespace": "prod",
            "name": "kimi",
            "uid": "u-1",
            "resourceVersion": "9",
        }
        assert event["metadata"]["namespace"] == "prod"
        assert (event["type"], event["lastTimestamp"]) == ("Normal", "2026-05-01T12:00:00Z")

    in_virtual_time(scenario())


def test_the_same_message_is_said_again_only_after_ten_minutes(in_virtual_time):
    async def scenario():
        inbox = Inbox()
        async with recorder(inbox) as events:
            for _ in range(25):
                say(events, "broken image")
                await asyncio.sleep(60)
            assert len(inbox.events) == 3
            assert events.counts.repeated == 22
            assert say(events, "broken image", pool=pool(2))
            assert say(events, "broken image", reason="Other")

    in_virtual_time(scenario())


def test_a_chatty_object_is_limited_and_the_others_are_not(in_virtual_time):
    async def scenario():
        inbox = Inbox()
        async with recorder(inbox, per_object_per_minute=3) as events:
            assert [say(events, f"m{i}") for i in range(5)] == [True, True, True, False, False]
            assert say(events, "m0", pool=pool(2))
            await asyncio.sleep(61)
            assert say(events, "m4")
            assert events.counts.limited == 2

    in_virtual_time(scenario())


def test_a_slow_server_never_holds_up_the_caller(in_virtual_time):
    async def scenario():
        inbox = Inbox(takes_s=100)
        loop = asyncio.get_running_loop()
        async with recorder(inbox) as events:
            begin = loop.time()
            accepted = sum(say(events, "hello", pool=pool(n)) for n in range(1_500))
            assert loop.time() == begin
            assert accepted == 1_000
            assert events.counts.overflowed == 500
            closing = loop.time()
        assert loop.time() - closing == 5
        assert events.counts.overflowed + events.counts.posted >= 1_499

    in_virtual_time(scenario())


def test_close_posts_what_is_queued_and_drops_what_comes_later(in_virtual_time):
    async def scenario():
        inbox = Inbox(takes_s=0.5)
        async with recorder(inbox) as events:
            for n in range(5):
                say(events, f"m{n}", pool=pool(n))
        assert inbox.messages == [f"m{n}" for n in range(5)]
        assert say(events, "too late") is False
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(scenario())


def test_a_refused_event_is_counted_logged_and_not_the_last(in_virtual_time, caplog):
    async def scenario():
        inbox = Inbox(error=Forbidden("no rights", verb="create", kind="Event", namespace="prod", code=403))
        async with recorder(inbox) as events:
            say(events, "one")
            await asyncio.sleep(1)
            inbox.error = ValueError("a bug")
            say(events, "two")
            await asyncio.sleep(1)
            inbox.error = None
            say(events, "three")
        assert inbox.messages == ["three"]
        assert (events.counts.posted, events.counts.failed) == (1, 2)

    in_virtual_time(scenario())
    assert "no rights" in caplog.text


def test_memory_stays_bounded_however_many_objects_come(in_virtual_time):
    async def scenario():
        inbox = Inbox()
        async with recorder(inbox) as events:
            for n in range(3_000):
                say(events, "hello", pool=pool(n))
                await asyncio.sleep(0)
            assert len(events._said_at) <= 1_000
            assert len(events._recent) <= 1_000
            assert say(events, "hello", pool=pool(2_999)) is False  # the latest are remembered
            assert say(events, "hello", pool=pool(0)) is True  # the oldest are forgotten

    in_virtual_time(scenario())
