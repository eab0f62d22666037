"""What dies, hangs or lies behind or beside a router costs its own streams and no others."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable

import psutil
import pytest

from sandbox.cluster.engines import address, engine_process
from sandbox.router.costs import Cost
from sandbox.router.routed_pool import RoutedPool, requests_of, soon
from sglpool.routing.pickerconfig import EDS_FILE, LDS_FILE
from support.streaming import Stream, chat, send

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]

STREAMS = 6
SOON_S = 10.0
"""Two seconds is what is promised for a dead process; a machine that is busy with tests gets more."""


def test_a_hanging_picker(settled: RoutedPool, cost: Cost, stopped: Callable[[psutil.Process], None]) -> None:
    router, homes = settled.router, settled.homes()
    with settled.streams(STREAMS) as streams:
        await_snapshot(settled, homes)
        picker = router.picker()
        stopped(picker)
        turns = settled.turns()
        assert settled.ask("new-meanwhile").status == 200
        assert not cost.count_streams(streams), "no byte goes through the picker"
        # On a busy machine its supervisor may have lost its patience meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            picker.send_signal(signal.SIGCONT)
        soon(router.picks, "it picks again")
        cost.count_turns(turns, homes, settled.homes())
        assert (cost.lost, cost.cold) == (0, 0), "Envoy remembers where they were"
        assert cost.slowest_s < SOON_S
        cost.count_turns(settled.turns(), homes, settled.homes())
    assert (cost.lost, cost.cold) == (0, 0), "home is home still"
    soon(lambda: router.state()["in_flight"] == 0, "picks that came too late give their slots back")


def await_snapshot(settled: RoutedPool, homes: dict[str, str]) -> None:
    """What a picker has not saved, it cannot know after its death."""
    router = settled.router
    soon(lambda: set(homes) <= set(settled.named(router.homes_on_file())), "every home is in the snapshot")


@pytest.mark.faults
def test_a_picker_that_hangs_for_good(
    settled: RoutedPool, cost: Cost, stopped: Callable[[psutil.Process], None]
) -> None:
    router, homes = settled.router, settled.homes()
    ready_since = router.ready_since
    with settled.streams(STREAMS) as streams:
        await_snapshot(settled, homes)
        stopped(hung := router.picker())
        cost.times["replaced"] = soon(lambda: not hung.is_running() and router.picks(), "another one picks", 60)
        assert settled.as_now(router).ready_since == ready_since, "clients have never lost this router"
        cost.count_turns(settled.turns(), homes, settled.homes())
        assert not cost.count_streams(streams), "no byte goes through the picker"
    assert (cost.lost, cost.cold) == (0, 0), "homes were on file"


def test_a_killed_picker_that_was_writing_its_files(settled: RoutedPool, cost: Cost) -> None:
    router, homes = settled.router, settled.homes()
    ready_since = router.ready_since
    with settled.streams(STREAMS) as streams:
        await_snapshot(settled, homes)
        # As a picker leaves them that was killed while it wrote: the files themselves are only ever renamed.
        for name in (EDS_FILE, LDS_FILE):
            (router.shared / f".{name}.new").write_text('{"resources": [{"@type": "type.goo')
        router.picker().kill()
        # Envoy serves on, and sends everybody to where they were.
        cost.count_turns(settled.turns(router), homes, homes)
        cost.times["picker back"] = soon(router.picks, "the picker is back", timeout_s=30)
        assert settled.as_now(router).ready_since == ready_since, "clients have never lost this router"
        cost.count_turns(settled.turns(router), homes, settled.homes(router=router))
        assert not cost.count_streams(streams), "no byte goes through the picker"
    assert (cost.lost, cost.cold) == (0, 0), "homes were on file"
    soon(lambda: router.state()["in_flight"] == 0, "no slot leaks")


@pytest.mark.faults
def test_a_killed_supervisor(settled: RoutedPool, cost: Cost) -> None:
    """PID 1 of the picker's container: the kubelet starts it again, and the pod is unready meanwhile."""
    router, homes = settled.router, settled.homes()
    with settled.streams(STREAMS) as streams:
        await_snapshot(settled, homes)
        picker = router.picker()
        router.supervisor().kill()
        cost.times["picker back"] = soon(lambda: not picker.is_running() and router.picks(), "it is back", 30)
        cost.count_turns(settled.turns(router), homes, settled.homes(router=router))
        assert not cost.count_streams(streams), "no byte goes through the picker"
    assert (cost.lost, cost.cold) == (0, 0), "homes were on file"


def test_an_operator_that_is_gone(settled: RoutedPool, cost: Cost) -> None:
    homes = settled.homes()
    sandbox = settled.cluster.sandbox
    with settled.streams(STREAMS) as streams:
        psutil.Process(sandbox.status().processes["operator"]).kill()
        try:
            cost.count_turns(settled.turns(), homes, settled.homes())
            assert settled.ask("somebody-new").status == 200
            assert not cost.count_streams(streams)
        finally:
            sandbox.restart(["operator"])
        assert not streams.flowing(), "its return changes nothing"
    assert (cost.lost, cost.cold) == (0, 0)


@pytest.mark.faults
def test_a_replica_with_a_full_queue(settled: RoutedPool, cost: Cost) -> None:
    # With two streams on each of four the full one stands out by three: hardly anybody leaves it for good.
    settled.wait_ready()
    homes = settled.homes()
    victim = homes[settled.conversations[0].session]
    name = settled.pod_of(victim)
    pod = settled.engines()[name]
    engine = address(pod)
    fillers: list[Stream] = []
    with settled.streams(8) as streams:
        # Somebody goes past the router, so that it does not see them come: four run and one waits.
        free = 5 - requests_of(pod)
        fillers += [Stream(engine, f"filler-{number}", tokens=200_000) for number in range(free)]
        soon(lambda: requests_of(pod) == 5, "the engine is full")
        try:
            turns = settled.turns()
            lost = cost.count_turns(turns, homes, settled.homes())
            assert not cost.count_streams(streams), "what runs there runs on"
            assert cost.cold > 0, "who lives there is served elsewhere"
            by_choice = {session for session, rule in turns.rules.items() if rule == "spill"}
            assert lost <= by_choice, "and comes back, unless it has left the crowd for good"
            assert settled.router.replica(name)["refused"], "nobody else tries it"
        finally:
            for filler in fillers:
                filler.hang_up()
    soon(lambda: not settled.router.replica(name)["refused"], "it is chosen again")
    assert settled.conversations[0].turn(settled.router.address).cached_tokens > 0


def test_a_replica_that_accepts_and_never_answers(
    settled: RoutedPool, cost: Cost, stopped: Callable[[psutil.Process], None]
) -> None:
    router, homes = settled.router, settled.homes()
    with settled.streams(STREAMS) as streams:
        lives = settled.homes(*[stream.session for stream in streams.all])
        victim = homes[settled.conversations[0].session]
        name = settled.pod_of(victim)
        engine = engine_process(settled.engines()[name])
        stopped(engine)
        cost.times["unhealthy"] = soon(lambda: not router.replica(name)["healthy"], "two polls were missed")
        turns, after = settled.turns(), settled.homes()
        lost = cost.count_turns(turns, homes, after)
        assert cost.slowest_s < SOON_S, "nobody waits for it any more"
        assert set(cost.count_streams(streams)) == settled.on(victim, lives), "the others flow"
        assert not settled.on(victim, after), "who lived there has moved"
        assert lost <= settled.on(victim, homes), "and nobody else has lost a home"
        engine.send_signal(signal.SIGCONT)
        soon(lambda: not streams.flowing(), "it was only asleep: its streams go on", timeout_s=60)
    soon(lambda: router.replica(name)["healthy"], "it is back")


def test_a_killed_envoy(settled: RoutedPool, cost: Cost) -> None:
    router, homes = settled.router, settled.homes()
    with settled.streams(STREAMS) as streams:
        router.envoy().kill()
        cost.times["served again"] = soon(lambda: _serves(router.address), "it serves", timeout_s=30)
        assert cost.times["served again"] < SOON_S
        assert len(cost.count_streams(streams)) == STREAMS, "every byte goes through Envoy"
    soon(lambda: router.state()["in_flight"] == 0, "nothing is in flight without it")
    soon(lambda: len(router.hosts()) == 4, "it knows the replicas")
    settled.wait_ready()
    cost.count_turns(settled.turns(), homes, settled.homes())
    assert (cost.lost, cost.cold) == (0, 0), "the picker remembers"


def _serves(place: str) -> bool:
    try:
        return send(place, body=chat("anybody"), timeout_s=5).status == 200
    except OSError:
        return False
