"""The laboratory as a whole: one result per seed, nothing lost, and events that have the effect they should have."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from sglpool.cli.app import app
from sglpool.enginemodel import EngineConfig
from sglpool.lab.figures import Sample, Tally, seconds_to_share, ttft_p99_between, vmr_between
from sglpool.lab.policies import ALL, pick_of
from sglpool.lab.scenario import Resize, Scenario, engine_rates
from sglpool.lab.simulator import GRACE_S, Simulator
from sglpool.lab.store import Store
from sglpool.lab.workload import Generator, Kind, Session, Turn
from sglpool.routing.state import RoutingState
from sglpool.routing.types import ConversationKey

SMALL = Scenario(replicas=6, seconds=220.0, warmup_s=100.0)


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    first, again, other = (Simulator(replace(SMALL, seed=seed)).run() for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("policy", ALL)
def test_every_policy_serves_its_clients(policy: str) -> None:
    found = Simulator(replace(SMALL, policy=policy, seconds=160.0)).run()
    assert found.requests > 20
    assert 0 < found.hit_rate <= found.hit_bound + 0.01
    assert 0 < found.ttft_p50_s <= found.ttft_p99_s
    assert found.mean_load > 0


def test_affinity_keeps_hits_and_balances_better_than_a_hash() -> None:
    scenario = replace(SMALL, replicas=12, seconds=500.0, warmup_s=200.0)
    ours = Simulator(scenario).run()
    hashed = Simulator(replace(scenario, policy="session_hash")).run()
    assert ours.vmr < hashed.vmr / 2
    assert ours.hit_bound - ours.hit_rate < 0.01
    assert ours.forced_warm_moves == 0


def test_balancing_every_request_costs_the_cache() -> None:
    found = Simulator(replace(SMALL, policy="least_loaded")).run()
    assert found.hit_rate < found.hit_bound - 0.1
    assert found.moved_share > 0.5


def test_new_replicas_get_work_and_nobody_is_forced_to_them() -> None:
    scenario = replace(SMALL, sessions=54, seconds=400.0, resize=Resize(at_s=150.0, replicas=8))
    run = Simulator(scenario)
    found = run.run()
    new = {"r6", "r7"}
    assert seconds_to_share(run.tally.samples, new, 150.0, 0.5, 5) < 200.0
    assert found.forced_warm_moves == 0
    assert run.moved_since <= run.alive_at_resize


def test_a_hash_moves_warm_conversations_to_new_replicas() -> None:
    scenario = replace(SMALL, policy="session_hash", seconds=300.0, resize=Resize(at_s=150.0, replicas=8))
    run = Simulator(scenario)
    assert run.run().warm_moved_share > 0
    assert run.moved_since


def test_a_drained_replica_empties_and_leaves() -> None:
    scenario = replace(SMALL, sessions=30, seconds=400.0, resize=Resize(at_s=150.0, replicas=4, drain_s=60.0))
    run = Simulator(scenario)
    run.run()
    last = run.tally.samples[-1].loads
    assert len(last) == 4
    assert sum(last.values()) > 0
    for router in run._routers:
        assert set(router.replicas) == set(last)


def test_the_highest_ordinals_drain_and_it_is_seen_who_was_at_work_when_their_time_was_over() -> None:
    resize = Resize(at_s=250.0, replicas=4, drain_s=120.0)
    run = Simulator(replace(SMALL, kind=Kind.INTERACTIVE, sessions=90, seconds=900.0, warmup_s=200.0, resize=resize))
    found = run.run()
    assert set(run.removed_s) == {"r4", "r5"}
    assert min(run.removed_s.values()) >= 370.0
    # People pause: most of those who have to move come back only when their replica has long gone.
    assert 0 < found.forced_at_work < found.forced_warm_moves / 2
    assert run.tally.cut == 0


def test_what_still_runs_when_the_grace_after_a_drain_is_over_is_cut() -> None:
    class Endless:
        def __init__(self) -> None:
            self._generator = Generator(Kind.AUTONOMOUS, 1, SMALL.engine.page_size_tokens)

        def session(self, *, under_way: bool) -> Session:
            session = self._generator.session(under_way=under_way)
            for conversation in session.conversations:
                conversation._turns = iter([Turn(20_000, 0, 200_000, "stop", 0.0)] * 9)
            return session

    resize = Resize(at_s=150.0, replicas=2, drain_s=60.0)
    run = Simulator(replace(SMALL, replicas=4, sessions=8, seconds=400.0, resize=resize), Endless())
    run.run()
    assert run.tally.cut > 0
    assert max(run.removed_s.values()) == pytest.approx(150.0 + 60.0 + GRACE_S, abs=1.0)


def test_the_slowest_of_a_span_of_time_are_those_that_came_in_it() -> None:
    tally = Tally(asked_s=[1.0, 2.0, 3.0], ttfts_s=[9.0, 4.0, 5.0])
    assert ttft_p99_between(tally, 2.0, 4.0) == 5.0
    assert ttft_p99_between(tally, 4.0, 9.0) == 0.0


def test_routers_with_a_store_find_each_others_homes_and_without_one_they_do_not() -> None:
    scenario = replace(SMALL, routers=3, seconds=300.0)
    shared = Simulator(scenario).run()
    apart = Simulator(replace(scenario, shared_store=False)).run()
    assert shared.hit_bound - shared.hit_rate < 0.01
    assert apart.hit_rate < shared.hit_rate - 0.02
    assert apart.moved_share > shared.moved_share


def test_without_their_store_routers_keep_the_homes_that_they_know() -> None:
    scenario = replace(SMALL, routers=2, seconds=400.0, warmup_s=150.0)
    found = Simulator(replace(scenario, outage=(200.0, 260.0))).run()
    apart = Simulator(replace(scenario, shared_store=False)).run()
    assert found.rules.get("rendezvous", 0) > 0
    assert found.hit_rate > apart.hit_rate


def test_a_full_pool_tells_clients_to_come_again_and_serves_them_later() -> None:
    found = Simulator(replace(SMALL, replicas=2, sessions=30, max_concurrent=4, seconds=300.0)).run()
    assert found.refused > 0
    assert found.requests > 0
    assert found.mean_load <= 4


def test_an_engine_that_refuses_is_not_asked_until_a_poll_shows_room() -> None:
    engine = EngineConfig(
        max_total_tokens=750_000,
        page_size_tokens=128,
        max_running_requests=2,
        max_queued_requests=0,
        decode_stride_steps=100,
        rates=engine_rates(),
    )
    found = Simulator(replace(SMALL, replicas=3, sessions=12, engine=engine, seconds=300.0)).run()
    assert found.refused > 0
    assert found.requests > 0


def test_a_scenario_without_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="warm-up must be the shorter"):
        Scenario(seconds=10.0, warmup_s=10.0)
    with pytest.raises(ValueError, match="at least 1"):
        Scenario(replicas=0)
    with pytest.raises(ValueError, match="poll_s is 0"):
        Scenario(poll_s=0)
    with pytest.raises(ValueError, match="'fair' is not known: give one of affinity"):
        pick_of("fair")


def test_even_load_has_no_variance_and_poisson_has_that_of_its_mean() -> None:
    even = [Sample(float(at), {"a": 5, "b": 5}) for at in range(10)]
    assert vmr_between(even, 0, 10) == 0
    uneven = [Sample(float(at), {"a": 2, "b": 8}) for at in range(10)]
    assert vmr_between(uneven, 0, 10) == pytest.approx(9 / 5)
    assert vmr_between(uneven, 20, 30) == 0


def test_figures_of_nothing_are_zeros() -> None:
    found = Tally().figures(10.0, 0.0)
    assert (found.requests, found.vmr, found.ttft_p99_s, found.hit_rate) == (0, 0, 0, 0)


def test_a_store_gives_the_newest_and_never_takes_back_what_a_router_knows_better() -> None:
    store, one, other = Store(), RoutingState(), RoutingState()
    key = ConversationKey("s", "c")
    conversation = one.touch(key, 10.0)
    one.set_home(conversation, "r1")
    conversation.ctx_tokens = 500
    store.write(conversation, 3)
    assert store.read(key, other) == 3
    found = other.get(key)
    assert found is not None
    assert (found.home, found.ctx_tokens, other.homed("r1")) == ("r1", 500, 1)
    other.touch(key, 20.0)
    other.set_home(found, "r2")
    store.read(key, other)
    assert found.home == "r2"
    store.forget(key)
    third = RoutingState()
    assert store.read(key, third) is None
    assert third.get(key) is None


def test_the_command_prints_a_row_per_policy() -> None:
    arguments = ["simulate", "-p", "affinity", "-p", "random", "--replicas", "3", "--seconds", "60", "--warmup", "20"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "affinity" in result.output
    assert "random" in result.output


def test_the_command_says_what_is_wrong() -> None:
    result = CliRunner().invoke(app, ["simulate", "--seconds", "10", "--warmup", "20"])
    assert result.exit_code == 2
    assert "warm-up" in result.output
    missing = CliRunner().invoke(app, ["simulate", "-p", "affinity", "--trace", "/nowhere/corpus.jsonl"])
    assert missing.exit_code == 2
    assert "corpus.jsonl" in missing.output
