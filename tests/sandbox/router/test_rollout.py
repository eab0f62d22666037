"""Routers that are replaced, multiplied and deleted, and their store: no stream is cut."""

from __future__ import annotations

import pytest

from sandbox.router.costs import Cost
from sandbox.router.routed_pool import RoutedPool, soon
from sandbox.router.router_pod import RouterPod
from support.store_process import StoreProcess
from support.streaming import chat, send

pytestmark = [pytest.mark.controlplane, pytest.mark.faults, pytest.mark.timeout(240)]

STREAMS = 4


def test_another_router_spec_cuts_no_stream(settled: RoutedPool, cost: Cost, store: StoreProcess) -> None:
    """One router becomes two with a store; the old one ends when its streams have."""
    old, homes = settled.router, settled.homes()
    with settled.streams(STREAMS) as streams:
        settled.pool.apply(router={"replicas": 2, "sessionStore": {"valkey": {"url": store.url}}})
        soon(lambda: _names(settled) - {old.name} and len(_names(settled)) == 2, "two new routers", timeout_s=90)
        settled.wait_ready()
        first, second = settled.routers()
        assert old.name not in {first.name, second.name}
        for router in (first, second):
            cost.count_turns(settled.turns(router), homes, settled.homes(router=router))
        assert not cost.count_streams(streams), "the old router serves its streams to their end"
        # Unless this took so long that they have come to their end.
        assert old.name in _all_names(settled) or all(stream.finished for stream in streams.all)
    soon(lambda: old.name not in _all_names(settled), "without streams it goes", timeout_s=60)
    assert (cost.lost, cost.cold) == (0, 0), "new routers ask their siblings"


def _names(settled: RoutedPool) -> set[str]:
    return {router.name for router in settled.routers()}


def _all_names(settled: RoutedPool) -> str:
    return settled.cluster.kubectl("get", "pods", "-n", settled.namespace, "-o", "name")


def test_a_store_that_is_gone_and_comes_back(settled: RoutedPool, cost: Cost, store: StoreProcess) -> None:
    first, second = settled.routers()
    soon(lambda: first.has_store() and second.has_store(), "both share homes", timeout_s=30)
    # One router has seen them, the other one has not: it knows them from the store alone.
    homes = settled.homes(router=first)
    with settled.streams(STREAMS, first) as streams:
        store.kill()
        cost.times["noticed"] = soon(lambda: not first.has_store() and not second.has_store(), "both notice")
        for router in (first, second):
            cost.count_turns(settled.turns(router), homes, settled.homes(router=router))
        assert {settled.ask("nobody-knows", router=router).status for router in (first, second)} == {200}
        assert not cost.count_streams(streams)
        store.start()
        both = "both have it again"
        cost.times[both] = soon(lambda: first.has_store() and second.has_store(), both, timeout_s=60)
    assert (cost.lost, cost.cold) == (0, 0), "each goes on with the homes that it knows"


def test_what_one_router_has_placed_the_other_one_finds(settled: RoutedPool) -> None:
    first, second = settled.routers()
    soon(lambda: first.has_store() and second.has_store(), "both share homes", timeout_s=30)
    for number in range(6):
        session = f"shared-{number}"
        assert settled.ask(session, router=first).status == 200
        assert settled.ask(session, router=second).status == 200
        # Homes are written behind the requests: of two that were too fast, one learns that the other was first.
        soon(lambda: _agree(settled, session), "they agree")  # noqa: B023 - called at once


def _agree(settled: RoutedPool, session: str) -> bool:
    first, second = settled.routers()
    home = settled.homes(session, router=first)
    return bool(home) and settled.homes(session, router=second) == home


def test_a_deleted_router_ends_its_streams_first(settled: RoutedPool, cost: Cost) -> None:
    going, staying = settled.routers()
    homes = settled.homes(router=staying)
    with settled.streams(STREAMS, going) as streams:
        settled.cluster.kubectl("delete", "pod", going.name, "-n", settled.namespace, "--wait=false")
        soon(lambda: not _listens(going), "it takes no new connection")
        assert not cost.count_streams(streams)
        cost.count_turns(settled.turns(staying), homes, settled.homes(router=staying))
    soon(lambda: going.name not in _all_names(settled), "without streams it goes", timeout_s=60)
    assert (cost.lost, cost.cold) == (0, 0)


def _listens(router: RouterPod) -> bool:
    try:
        send(router.address, body=chat("late", max_tokens=1), timeout_s=5)
    except OSError:
        return False
    return True
