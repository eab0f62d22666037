"""Replicas that vanish and replicas that join: only the streams and the homes of those that are gone are lost."""

from __future__ import annotations

import socket

import pytest

from sandbox.cluster.engines import address
from sandbox.router.costs import Cost
from sandbox.router.routed_pool import READY_S, RoutedPool, soon
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]

STREAMS = 6
SOON_S = 10.0
NEW = "main-b200-4"


def test_a_killed_replica(settled: RoutedPool, cost: Cost) -> None:
    homes = settled.homes()
    with settled.streams(STREAMS) as streams:
        lives = settled.homes(*[stream.session for stream in streams.all])
        victim = homes[settled.conversations[0].session]
        settled.kill_engine(settled.pod_of(victim))
        lost = cost.count_turns(settled.turns(), homes, settled.homes())
        assert cost.slowest_s < SOON_S
        assert set(cost.count_streams(streams)) == settled.on(victim, lives), "streams of the dead part alone"
    assert lost <= settled.on(victim, homes), "nobody else has lost a home"


@pytest.mark.faults
def test_an_address_that_somebody_else_has_now(settled: RoutedPool, cost: Cost) -> None:
    router, homes = settled.router, settled.homes()
    victim = homes[settled.conversations[0].session]
    name = settled.pod_of(victim)
    pod = settled.engines()[name]
    with settled.streams(STREAMS) as streams:
        lives = settled.homes(*[stream.session for stream in streams.all])
        settled.cluster.kubectl("delete", "pod", name, "-n", settled.namespace, "--force", "--grace-period=0")
        with _Stranger(pod["status"]["podIP"]) as stranger:
            soon(lambda: victim not in str(router.state()["replicas"]), "the pod is forgotten")
            soon(lambda: address(pod) not in router.hosts(), "by Envoy too")
            stranger.forget()
            turns, after = settled.turns(), settled.homes()
            lost = cost.count_turns(turns, homes, after)
            assert not settled.on(victim, after), "who lived there has moved"
            assert lost <= settled.on(victim, homes), "and nobody else has lost a home"
            assert {settled.ask(f"after-{number}").status for number in range(8)} == {200}
            assert stranger.visits == 0, "nothing of this pool goes to another pod"
        assert set(cost.count_streams(streams)) == settled.on(victim, lives)


class _Stranger:
    """A pod of something else, to which the address has been given."""

    def __init__(self, ip: str) -> None:
        self._place = (ip, 30000)
        self._socket = socket.socket()

    def __enter__(self) -> _Stranger:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wait_until(self._bind, timeout_s=30, describe="the address is free")
        self._socket.listen(64)
        self._socket.setblocking(False)
        return self

    def _bind(self) -> bool:
        try:
            self._socket.bind(self._place)
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def visits(self) -> int:
        """Connections since the last look."""
        count = 0
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1

    def forget(self) -> None:
        """Begin to count."""
        assert self.visits >= 0


@pytest.mark.faults
def test_a_replica_that_joins_takes_new_conversations_and_moves_no_old_one(settled: RoutedPool, cost: Cost) -> None:
    router, homes = settled.router, settled.homes()
    settled.pool.apply(replicas=5)
    soon(lambda: router.replica(NEW), "it is seen", timeout_s=60)
    # Few, so that they leave the cache to the conversations while the engine starts.
    with settled.streams(4) as streams:
        cost.times["joined"] = soon(lambda: router.replica(NEW)["healthy"], "it is ready", timeout_s=READY_S)
        cost.count_turns(settled.turns(), homes, settled.homes())
        uid = router.replica(NEW)["uid"]
        sessions = [f"newcomer-{number}" for number in range(24)]
        for session in sessions:
            assert settled.ask(session).status == 200
        assert settled.on(uid, settled.homes(*sessions)), "some are placed there"
        assert not cost.count_streams(streams)
    assert (cost.lost, cost.cold) == (0, 0)
