"""What a picker that dies, hangs or goes costs: no stream, and few homes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from sglpool.render.envoy.shape import PICKER_TIMEOUT_S
from sglpool.routing.pickerconfig import DRAINED_MARKER, HOMES_FILE, LEAVING_MARKER
from support.envoy_peers import Answer
from support.picker_process import router_pod
from support.waiting import wait_until

MakePool = Callable[[int], Any]
SSE = {"content-type": "text/event-stream"}
SESSIONS = [f"s{number}" for number in range(12)]


def eventually(check: Callable[[], Any], text: str) -> Any:
    return wait_until(check, timeout_s=20, describe=text, interval_s=0.02)


def hold(pool: Any) -> None:
    for engine in pool.engines:
        engine.answer = Answer(headers=SSE, chunks=(b"data: 1\n\n", b"data: 2\n\n"), hold=True)


def homes_of(pool: Any, router: Any) -> dict[str, int]:
    homes = {}
    for session in SESSIONS:
        # A conversation as short as these leaves a home that still counts the one before.
        eventually(lambda: router.picker.state()["in_flight"] == 0, "the one before has ended")
        homes[session] = pool.served(lambda s=session: router.ask(s))
    return homes


def test_a_killed_picker_costs_no_stream_and_no_home_that_was_on_file(make_pool: MakePool) -> None:
    pool = make_pool(4)
    router = pool.router()
    homes = homes_of(pool, router)
    eventually((router.envoy.folder / HOMES_FILE).exists, "a snapshot")
    served = [engine.answer for engine in pool.engines]
    hold(pool)
    response = router.open_stream("s0")
    router.picker.kill()
    for engine, answer in zip(pool.engines, served, strict=True):
        engine.answer = answer
        engine.release()
    assert response.read().endswith(b"data: 2\n\n")
    # Nobody picks, and everybody is served.
    assert {router.ask(session).status for session in SESSIONS} == {200}
    router.picker.start()
    assert homes_of(pool, router) == homes
    eventually(lambda: router.picker.state()["in_flight"] == 0, "no slot leaks")


def test_a_terminated_picker_saves_what_it_knows(make_pool: MakePool) -> None:
    pool = make_pool(4)
    router = pool.router()
    homes = homes_of(pool, router)
    assert router.picker.stop() == 0
    router.picker.start()
    assert homes_of(pool, router) == homes


def test_requests_that_ended_while_nobody_read_are_learned_from(make_pool: MakePool) -> None:
    pool = make_pool(4)
    router = pool.router()
    hold(pool)
    response = router.open_stream("s")
    router.picker.kill()
    (router.envoy.folder / HOMES_FILE).unlink(missing_ok=True)
    (home,) = [at for at, count in enumerate(pool.counts()) if count]
    for engine in pool.engines:
        engine.release()
    response.read()
    router.envoy.wait_logged()
    router.picker.start()
    eventually(lambda: router.picker.state()["conversations"] == 1, "the log was read")
    assert router.picker.replica(f"e{home + 1}")["conversations"] == 1


def test_a_picker_that_hangs_costs_each_request_a_quarter_of_a_second(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router(picker_timeout_s=PICKER_TIMEOUT_S)
    home = pool.served(lambda: router.ask("s"))
    router.picker.signal(signal.SIGSTOP)
    reply = router.ask("other")
    assert reply.status == 200
    assert reply.took_s > 0.2
    router.picker.signal(signal.SIGCONT)
    assert pool.served(lambda: router.ask("s")) == home
    # What it answered too late lapses: nobody confirms it.
    eventually(lambda: router.picker.state()["in_flight"] == 0, "the late pick gives its slot back")


def test_requests_that_envoy_placed_itself_count_as_load(make_pool: MakePool) -> None:
    pool = make_pool(1)
    router = pool.router()
    router.picker.kill()
    hold(pool)
    stream = router.open_stream("s")
    assert stream.status == 200
    router.picker.start()
    eventually(lambda: router.picker.replica("e1")["load"] == 1, "Envoy's own count says so")
    stream.close()
    eventually(lambda: router.picker.replica("e1")["load"] == 0, "and its end too")


def test_a_killed_envoy_leaves_no_slot_taken(make_pool: MakePool) -> None:
    pool = make_pool(1)
    router = pool.router()
    hold(pool)
    stream = router.open_stream("s")
    assert stream.status == 200
    assert router.picker.state()["in_flight"] == 1
    router.envoy.stop()
    eventually(lambda: router.picker.state()["in_flight"] == 0, "nothing is in flight without Envoy")
    assert router.picker.metric("sglpool_router_lapsed_reservations_total") == 1


def test_a_router_that_goes_ends_its_streams_first(make_pool: MakePool) -> None:
    pool = make_pool(1)
    router = pool.router()
    hold(pool)
    response = router.open_stream("s")
    drained = router.envoy.folder / DRAINED_MARKER
    pool.api.put(router_pod("r1", "127.0.0.1", terminating=True))
    health = router.envoy.health_port
    eventually(
        lambda: router.envoy.request("GET", "/readyz", port=health).status == 503,
        "the router says that it is not ready",
    )
    assert router.picker.state()["leaving"]
    eventually(lambda: not _listens(router), "no new connection is taken")
    assert not drained.exists()
    pool.engines[0].release()
    assert response.read().endswith(b"data: 2\n\n")
    eventually(drained.exists, "preStop may end")


def _listens(router: Any) -> bool:
    try:
        connection = router.envoy.connect(2.0)
        connection.connect()
        connection.close()
    except OSError:
        return False
    return True


def test_prestop_alone_is_enough_when_the_api_server_is_away(make_pool: MakePool) -> None:
    pool = make_pool(1)
    router = pool.router()
    pool.api.kill()
    (router.envoy.folder / LEAVING_MARKER).touch()
    eventually((router.envoy.folder / DRAINED_MARKER).exists, "the router has drained")


def test_replicas_are_served_on_while_the_api_server_is_away(make_pool: MakePool) -> None:
    pool = make_pool(2)
    router = pool.router()
    home = pool.served(lambda: router.ask("s"))
    pool.api.kill()
    eventually(lambda: router.picker.metric("sglpool_router_watch_restarts_total") > 0, "the watch is lost")
    assert pool.served(lambda: router.ask("s")) == home
    new = pool.add_engine("late")
    pool.peers.run(pool.api.open())
    eventually(lambda: router.picker.endpoints().get(new.address) == "HEALTHY", "the next list brings what was missed")


def test_a_new_router_asks_its_sibling_for_homes(make_pool: MakePool) -> None:
    pool = make_pool(4)
    port = pool.port
    first = pool.router("r1", ip=pool.ip(101), state_port=port)
    homes = homes_of(pool, first)
    second = pool.router("r2", ip=pool.ip(102), state_port=port)
    assert homes_of(pool, second) == homes
