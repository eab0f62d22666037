"""Leader election where the API server does not answer: deadlines, in virtual time."""

import asyncio

import pytest

from sglpool.kube import Conflict, LeaderLease, LeaseLost, NotFound, Transient


class FlakyServer:
    """One Lease in memory; `down` makes every call fail as a broken connection does."""

    def __init__(self) -> None:
        self.lease = None
        self.down = False
        self.version = 0

    def _answer(self, verb):
        if self.down:
            raise Transient("connection refused", verb=verb, kind="Lease")

    def _store(self, lease):
        self.version += 1
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    async def get(self, resource, *, namespace, name, timeout_s):
        self._answer("get")
        if self.lease is None:
            raise NotFound("none", verb="get", kind="Lease")
        return self.lease

    async def create(self, manifest, *, timeout_s):
        self._answer("create")
        return self._store(manifest)

    async def replace(self, manifest, *, timeout_s):
        self._answer("replace")
        if self.lease is None:
            raise NotFound("none", verb="replace", kind="Lease")
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("changed", verb="replace", kind="Lease")
        return self._store(manifest)


def contender(server: FlakyServer, identity: str) -> LeaderLease:
    return LeaderLease(server, namespace="prod", name="sglpool", identity=identity)


def test_a_short_outage_does_not_cost_the_lease(in_virtual_time):
    async def scenario():
        server = FlakyServer()
        mine = contender(server, "mine")
        await mine.acquire()
        holding = asyncio.create_task(mine.hold())
        await asyncio.sleep(3_600)
        server.down = True
        await asyncio.sleep(5)
        server.down = False
        await asyncio.sleep(3_600)
        assert not holding.done()
        holding.cancel()

    in_virtual_time(scenario())


def test_a_long_outage_ends_the_leader_before_another_can_take_over(in_virtual_time):
    async def scenario():
        loop = asyncio.get_running_loop()
        server = FlakyServer()
        mine, other = contender(server, "mine"), contender(server, "other")
        ended = []

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(loop.time())

        running = asyncio.create_task(mine.run(work))
        await asyncio.sleep(100)
        waiting = asyncio.create_task(other.acquire())
        await asyncio.sleep(10)
        server.down = True
        down_at = loop.time()
        with pytest.raises(LeaseLost, match="could not be renewed for 10 s"):
            await running
        assert ended[0] - down_at <= 12.5
        server.down = False
        await waiting
        assert loop.time() - ended[0] > 0
        # Renewed just before the outage, it looks alive once more and must stand still again.
        assert loop.time() - down_at <= 30

    in_virtual_time(scenario())


def test_acquire_waits_for_the_server_to_come_back(in_virtual_time, caplog):
    async def scenario():
        server = FlakyServer()
        server.down = True
        mine = contender(server, "mine")
        acquiring = asyncio.create_task(mine.acquire())
        await asyncio.sleep(60)
        assert not acquiring.done()
        server.down = False
        await asyncio.sleep(3)
        assert acquiring.done()
        assert mine.is_leader

    in_virtual_time(scenario())
    assert "connection refused" in caplog.text


def test_a_deleted_lease_is_a_lost_one(in_virtual_time):
    async def scenario():
        server = FlakyServer()
        mine = contender(server, "mine")
        await mine.acquire()
        server.lease = None
        with pytest.raises(LeaseLost, match="prod/sglpool was deleted"):
            await mine.hold()
        assert not mine.is_leader

    in_virtual_time(scenario())


def test_cancelling_a_contender_leaves_no_work_and_no_lease(in_virtual_time):
    async def scenario():
        server = FlakyServer()
        running = asyncio.create_task(contender(server, "mine").run(asyncio.Event().wait))
        await asyncio.sleep(30)
        assert server.lease["spec"]["holderIdentity"] == "mine"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert server.lease["spec"]["holderIdentity"] == ""
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(scenario())
