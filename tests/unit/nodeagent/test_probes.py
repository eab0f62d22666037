"""Probes as a kubelet runs them: when, how often, what counts, and what they lead to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from unit.nodeagent import virtual
from unit.nodeagent.fakes import ExecResult, Manifest, Program, on_stage, pod, says, stamp

TERM, KILL = 15, 9


def _probe(command: str, **numbers: Any) -> Manifest:
    return {"exec": {"command": [command]}} | numbers


def _looks(stage: Any, command: str, run: int = -1) -> list[float]:
    return [at_s for at_s, line in stage.container(run=run).commands if line == command]


def _up_from(moment_s: float) -> Program:
    """Every command succeeds from `moment_s` seconds after the start."""

    async def answers(command: str, age_s: float) -> ExecResult:
        return await says(0 if age_s >= moment_s else 1, "not yet")

    return Program(answers=answers)


def test_nothing_else_is_asked_before_the_startup_probe_has_passed() -> None:
    main = {
        "startupProbe": _probe("startup", periodSeconds=10, failureThreshold=30),
        "readinessProbe": _probe("readiness", periodSeconds=5),
        "livenessProbe": _probe("liveness", periodSeconds=7),
    }

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [_up_from(25)]}) as stage:
            await stage.at(29)
            assert {line for _, line in stage.container().commands} == {"startup"}
            assert not stage.shown()["started"]
            assert stage.status["phase"] == "Running"
            await stage.at(46)
            assert _looks(stage, "startup") == [10, 20, 30]
            # Readiness is asked the moment it may be, then at its own ticks.
            assert _looks(stage, "readiness") == [30, 35, 40, 45]
            assert _looks(stage, "liveness") == [35, 42]
            assert stage.condition("Ready")["lastTransitionTime"] == stamp(30)
            assert stage.reporter.messages("Unhealthy") == ["Startup probe failed: not yet"] * 2

    virtual.run(story())


def test_a_startup_probe_that_gives_up_has_the_container_restarted() -> None:
    main = {"startupProbe": _probe("startup", periodSeconds=10, failureThreshold=3, terminationGracePeriodSeconds=4)}

    async def story() -> None:
        sleeper = _up_from(10_000)
        sleeper.term_s = None
        async with on_stage(pod(main=main), {"main": [sleeper, _up_from(0)]}) as stage:
            await stage.at(31)
            assert stage.reporter.messages("Killing") == ["Container main failed startup probe, will be restarted"]
            await stage.at(45)
            assert stage.container(run=0).signals == [(30, TERM), (34, KILL)]
            assert stage.runtime.start_times("main") == [0, 34]
            assert stage.shown()["started"]
            assert stage.shown()["restartCount"] == 1

    virtual.run(story())


def test_a_failing_liveness_probe_runs_the_hook_and_restarts() -> None:
    main = {
        "livenessProbe": _probe("liveness", periodSeconds=10, failureThreshold=2, terminationGracePeriodSeconds=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    }

    async def answers(command: str, age_s: float) -> ExecResult:
        return await says(0 if age_s < 15 else 1, "hangs")

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [Program(term_s=None, answers=answers)]}) as stage:
            await stage.at(40)
            # Two failures, 5 s of hook, and the two seconds that are always left.
            assert stage.container(run=0).signals == [(35, TERM), (37, KILL)]
            assert stage.runtime.start_times("main") == [0, 37]
            assert stage.reporter.messages("Unhealthy") == ["Liveness probe failed: hangs"] * 2
            assert stage.reporter.messages("Killing") == ["Container main failed liveness probe, will be restarted"]

    virtual.run(story())


def test_readiness_follows_its_thresholds_both_ways() -> None:
    main = {"readinessProbe": _probe("ready", periodSeconds=5, failureThreshold=3, successThreshold=2)}

    async def answers(command: str, age_s: float) -> ExecResult:
        return await says(1 if 21 < age_s < 44 else 0, "busy")

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [Program(answers=answers)]}) as stage:
            await stage.at(4)
            assert not stage.shown()["ready"]
            await stage.at(5)
            assert stage.condition("Ready")["lastTransitionTime"] == stamp(5)
            await stage.at(34)
            assert stage.shown()["ready"]
            await stage.at(35)
            assert not stage.shown()["ready"]
            assert stage.condition("Ready")["reason"] == "ContainersNotReady"
            await stage.at(51)
            assert stage.condition("Ready") | {"reason": ""} == {
                "type": "Ready",
                "status": "True",
                "reason": "",
                "message": "",
                "lastTransitionTime": stamp(50),
            }
            assert stage.shown()["restartCount"] == 0

    virtual.run(story())


def test_a_look_that_takes_longer_than_its_period_is_followed_by_the_next_at_once() -> None:
    main = {"livenessProbe": _probe("liveness", periodSeconds=10, timeoutSeconds=60, failureThreshold=100)}

    async def answers(command: str, age_s: float) -> ExecResult:
        return await says(0, after_s=25 if age_s < 11 else 0)

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [Program(answers=answers)]}) as stage:
            await stage.at(51)
            assert _looks(stage, "liveness") == [10, 35, 40, 50]

    virtual.run(story())


def test_a_command_that_takes_too_long_has_failed() -> None:
    main = {"livenessProbe": _probe("liveness", periodSeconds=10, timeoutSeconds=3, failureThreshold=1)}

    async def answers(command: str, age_s: float) -> ExecResult:
        return await says(0, after_s=100)

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [Program(answers=answers), Program()]}) as stage:
            await stage.at(14)
            text = 'Liveness probe failed: command timed out: "liveness" timed out after 3s'
            assert stage.reporter.messages("Unhealthy") == [text]
            assert stage.runtime.start_times("main") == [0, 13]

    virtual.run(story())


def test_the_initial_delay_is_waited_for() -> None:
    main = {"readinessProbe": _probe("ready", periodSeconds=4, initialDelaySeconds=10)}

    async def story() -> None:
        async with on_stage(pod(main=main)) as stage:
            await stage.at(20)
            assert _looks(stage, "ready") == [12, 16, 20]

    virtual.run(story())


def test_a_terminating_pod_is_still_asked_for_readiness_but_not_for_liveness() -> None:
    main = {
        "readinessProbe": _probe("ready", periodSeconds=5, failureThreshold=1),
        "livenessProbe": _probe("liveness", periodSeconds=5, failureThreshold=1),
    }

    async def answers(command: str, age_s: float) -> ExecResult:
        return await says(0 if age_s < 12 else 1, "drains")

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [Program(term_s=20, answers=answers)]}) as stage:
            await stage.at(11)
            stage.delete(60)
            await stage.at(14)
            assert stage.shown()["ready"]
            await stage.at(16)
            assert not stage.shown()["ready"]
            await stage.task
            assert _looks(stage, "liveness") == [5, 10]
            assert stage.container().signals == [(11.001, TERM)]

    virtual.run(story())


def test_a_container_that_its_probe_kills_again_and_again_comes_to_back_off_too() -> None:
    main = {"livenessProbe": _probe("liveness", periodSeconds=5, failureThreshold=1)}

    async def answers(command: str, age_s: float) -> ExecResult:
        return await says(1, "hangs")

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [Program(answers=answers)]}) as stage:
            await stage.at(100)
            starts = stage.runtime.start_times("main")
            # At once while the end before lies further back than the back-off; then that counts in full.
            assert starts[:5] == [0, 5, 10, 25, 50]
            assert stage.reporter.messages("BackOff")

    virtual.run(story())


def test_a_grpc_probe_is_refused_with_a_remedy_and_kills_nobody() -> None:
    main = {"livenessProbe": {"grpc": {"port": 1}, "periodSeconds": 5, "failureThreshold": 1}}

    async def story() -> None:
        async with on_stage(pod(main=main)) as stage:
            await stage.at(30)
            text = "Liveness probe errored: the sandbox has no grpc probes; use httpGet, tcpSocket or exec"
            assert set(stage.reporter.messages("Unhealthy")) == {text}
            assert stage.shown()["restartCount"] == 0

    virtual.run(story())


@given(answers=st.lists(st.booleans(), min_size=1, max_size=30), up=st.integers(1, 4), down=st.integers(1, 4))
def test_readiness_is_what_came_last_as_often_in_a_row_as_asked(answers: list[bool], up: int, down: int) -> None:
    main = {"readinessProbe": _probe("ready", periodSeconds=1, successThreshold=up, failureThreshold=down)}
    given_answers = iter(answers)

    async def answer(command: str, age_s: float) -> ExecResult:
        return ExecResult(0 if next(given_answers, answers[-1]) else 1)

    expected, row = False, 0
    for index, good in enumerate(answers):
        row = row + 1 if index and answers[index - 1] is good else 1
        if row >= (up if good else down):
            expected = good

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [Program(answers=answer)]}) as stage:
            await stage.at(len(answers) - 1)
            assert stage.shown()["ready"] is expected
            assert (stage.condition("Ready")["status"] == "True") is expected

    virtual.run(story())
