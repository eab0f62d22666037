"""How a pod ends: hooks and grace periods, deletion in every state, power cuts, and what an agent's restart leaves."""

from __future__ import annotations

import asyncio
import copy
import signal

import pytest

from sglpool.sandbox.nodeagent.contracts import StartFailed, VolumeFailed
from unit.nodeagent import virtual
from unit.nodeagent.fakes import ExecResult, Manifest, Program, Stage, clock_s, on_stage, pod, says, stamp

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def _pre_stop(seconds: float, code: int = 0) -> Manifest:
    return {"lifecycle": {"preStop": {"exec": {"command": ["drain", str(seconds), str(code)]}}}}


async def _drains(command: str, age_s: float) -> ExecResult:
    _, seconds, code = command.split()
    return await says(int(code), "drain says no", after_s=float(seconds))


def test_a_deleted_pod_gets_its_hook_then_sigterm_then_what_is_left_of_its_grace() -> None:
    programs = {"main": [Program(term_s=None, answers=_drains)]}

    async def story() -> None:
        async with on_stage(pod(main=_pre_stop(8)), programs) as stage:
            await stage.at(100)
            stage.delete(30)
            await stage.at(101)
            # As with a real kubelet the pod stays ready until its probe or its end says otherwise.
            assert stage.shown()["ready"]
            assert stage.reporter.messages("Killing") == ["Stopping container main"]
            await stage.task
            assert stage.container().commands == [(100.001, "drain 8 0")]
            assert stage.container().signals == [(108.001, TERM), (130.001, KILL)]
            assert stage.status["phase"] == "Failed"
            assert stage.shown()["state"]["terminated"]["exitCode"] == 137
            assert stage.condition("Ready")["status"] == "False"
            assert stage.runtime.removed == stage.reporter.deletions == [130.001]
            assert stage.reporter.statuses[-1][0] <= stage.reporter.deletions[0]

    virtual.run(story())


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (143, "Failed")])
def test_the_last_phase_of_a_deleted_pod_is_told_by_its_exit_codes(code: int, phase: str) -> None:
    async def story() -> None:
        async with on_stage(pod(), {"main": [Program(term_s=3, term_code=code)]}) as stage:
            await stage.at(10)
            await stage.end(30)
            assert clock_s() == pytest.approx(13, abs=0.01)
            assert stage.status["phase"] == phase
            assert len(stage.container().signals) == 1

    virtual.run(story())


def test_a_hook_that_outlasts_the_grace_period_leaves_two_seconds_for_sigterm() -> None:
    programs = {"main": [Program(term_s=None, answers=_drains)]}

    async def story() -> None:
        async with on_stage(pod(main=_pre_stop(60)), programs) as stage:
            await stage.at(0)
            await stage.end(5)
            assert stage.container().signals == [(5.001, TERM), (7.001, KILL)]

    virtual.run(story())


def test_a_hook_that_fails_is_told_and_the_container_still_gets_sigterm() -> None:
    programs = {"main": [Program(answers=_drains)]}

    async def story() -> None:
        async with on_stage(pod(main=_pre_stop(1, code=2)), programs) as stage:
            await stage.at(0)
            await stage.end()
            assert stage.reporter.messages("FailedPreStopHook") == ["PreStopHook failed: drain says no"]
            assert [number for _, number in stage.container().signals] == [TERM]

    virtual.run(story())


def test_a_sleep_hook_sleeps() -> None:
    async def story() -> None:
        async with on_stage(pod(main={"lifecycle": {"preStop": {"sleep": {"seconds": 7}}}})) as stage:
            await stage.at(0)
            await stage.end()
            assert stage.container().signals == [(7.001, TERM)]

    virtual.run(story())


def test_a_shorter_grace_period_later_on_is_obeyed() -> None:
    async def story() -> None:
        async with on_stage(pod(), {"main": [Program(term_s=None)]}) as stage:
            await stage.at(0)
            stage.delete(600)
            await stage.at(50)
            stage.delete(10)
            await stage.task
            assert stage.container().signals == [(0.001, TERM), (60.001, KILL)]

    virtual.run(story())


def test_a_longer_grace_period_later_on_changes_nothing() -> None:
    async def story() -> None:
        async with on_stage(pod(), {"main": [Program(term_s=None)]}) as stage:
            await stage.at(0)
            stage.delete(20)
            await stage.at(10)
            stage.delete(600)
            await stage.task
            assert stage.container().signals[-1] == (20.001, KILL)

    virtual.run(story())


def test_without_grace_there_is_no_hook_and_two_seconds() -> None:
    async def story() -> None:
        programs = {"main": [Program(term_s=None, answers=_drains)]}
        async with on_stage(pod(main=_pre_stop(1)), programs) as stage:
            await stage.at(0)
            await stage.end(0)
            assert stage.container().commands == []
            assert stage.container().signals == [(0.001, TERM), (2.001, KILL)]

    virtual.run(story())


@pytest.mark.parametrize(
    "program",
    [
        Program(ends_after_s=1, code=1),
        Program(fails=StartFailed("ErrImagePull", "not found")),
        Program(fails=StartFailed("CreateContainerConfigError", "no secret")),
    ],
    ids=["crash-loop", "image", "config"],
)
def test_a_pod_that_waits_for_something_is_deleted_at_once(program: Program) -> None:
    async def story() -> None:
        async with on_stage(pod(), {"main": [program]}) as stage:
            await stage.at(5)
            starts = len(stage.runtime.starts)
            await stage.end()
            assert stage.reporter.deletions == [5.001]
            assert stage.status["phase"] == "Failed"
            assert len(stage.runtime.starts) == starts

    virtual.run(story())


def test_a_pod_that_waits_for_a_volume_is_deleted_at_once() -> None:
    async def story() -> None:
        async with on_stage(pod(inits=[{"name": "a"}])) as stage:
            stage.runtime.volume_errors = [VolumeFailed("no such claim")] * 100
            await stage.at(20)
            await stage.end()
            assert stage.reporter.deletions == [20.001]
            assert stage.runtime.starts == []

    virtual.run(story())


def test_a_pod_is_deleted_while_its_init_container_runs() -> None:
    async def story() -> None:
        async with on_stage(pod(inits=[{"name": "a"}, {"name": "b"}])) as stage:
            await stage.at(5)
            await stage.end()
            assert stage.container("a").signals == [(5.001, TERM)]
            assert [name for _, name, _ in stage.runtime.starts] == ["a"]
            assert stage.status["phase"] == "Failed"

    virtual.run(story())


def test_sidecars_of_a_deleted_pod_end_last_and_in_reverse_order() -> None:
    sidecars = [{"name": "one", "restartPolicy": "Always"}, {"name": "two", "restartPolicy": "Always"}]
    programs = {"main": [Program(term_s=5)], "two": [Program(term_s=3)], "one": [Program(term_s=2)]}

    async def story() -> None:
        async with on_stage(pod(inits=sidecars), programs) as stage:
            await stage.at(0)
            await stage.end()
            ends = {name: stage.container(name).signals for name in ("main", "two", "one")}
            assert ends == {"main": [(0.001, TERM)], "two": [(5.001, TERM)], "one": [(8.001, TERM)]}

    virtual.run(story())


def test_a_post_start_hook_comes_before_the_container_counts_as_running() -> None:
    async def story() -> None:
        main = {"lifecycle": {"postStart": {"exec": {"command": ["drain", "4", "0"]}}}}
        async with on_stage(pod(main=main), {"main": [Program(answers=_drains)]}) as stage:
            await stage.at(3)
            assert stage.status["phase"] == "Pending"
            await stage.at(4)
            assert stage.shown()["started"]
            assert stage.status["phase"] == "Running"

    virtual.run(story())


def test_a_failed_post_start_hook_ends_the_container() -> None:
    async def story() -> None:
        main = {"lifecycle": {"postStart": {"exec": {"command": ["drain", "1", "1"]}}}}
        async with on_stage(pod(main=main), {"main": [Program(answers=_drains)]}) as stage:
            await stage.at(5)
            assert stage.reporter.messages("FailedPostStartHook")[0] == "PostStartHook failed: drain says no"
            assert stage.container(run=0).signals == [(1, TERM)]
            assert stage.shown()["state"]["waiting"]["reason"] == "CrashLoopBackOff"

    virtual.run(story())


def test_a_power_cut_kills_at_once_and_says_nothing() -> None:
    async def story() -> None:
        stage = Stage(pod(inits=[{"name": "side", "restartPolicy": "Always"}], main=_pre_stop(5)))
        await stage.at(10)
        reports, events = len(stage.reporter.statuses), len(stage.reporter.events)
        stage.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage.task
        for name in ("side", "main"):
            assert stage.container(name).signals == [(10.001, KILL)]
        assert (len(stage.reporter.statuses), len(stage.reporter.events)) == (reports, events)
        assert stage.reporter.deletions == stage.runtime.removed == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtual.run(story())


async def _status_after(manifest: Manifest, programs: dict[str, list[Program]], after_s: float) -> Manifest:
    """The pod as the API server has it when its agent dies `after_s` seconds into its life."""
    async with on_stage(manifest, programs) as stage:
        await stage.at(after_s)
        left = copy.deepcopy(manifest)
        left["status"] |= copy.deepcopy(stage.status)
        return left


def test_after_a_reboot_everything_runs_again_and_the_count_goes_on() -> None:
    programs = {"init": [Program(ends_after_s=2)]}

    async def story() -> None:
        left = await _status_after(pod(inits=[{"name": "init"}]), programs, 10)
        async with on_stage(left, programs, restarted=True) as stage:
            await stage.at(11)
            assert stage.condition("Initialized")["status"] == "False"
            assert stage.condition("Ready")["status"] == "False"
            assert "SandboxChanged" in stage.reporter.reasons()
            await stage.at(13)
            assert stage.runtime.starts == [(10.001, "init", 1), (12.001, "main", 1)]
            shown = stage.shown()
            assert shown["restartCount"] == 1
            ended = shown["lastState"]["terminated"]
            assert (ended["exitCode"], ended["reason"], ended["startedAt"]) == (255, "Unknown", stamp(2))
            assert ended["finishedAt"] == stamp(10)
            assert stage.status["startTime"] == stamp(0)
            assert stage.condition("Ready")["status"] == "True"

    virtual.run(story())


def test_after_a_reboot_a_pod_that_never_restarts_has_failed() -> None:
    async def story() -> None:
        left = await _status_after(pod(policy="Never"), {}, 10)
        async with on_stage(left, restarted=True) as stage:
            await stage.at(12)
            assert stage.runtime.starts == []
            assert stage.status["phase"] == "Failed"
            assert stage.shown()["state"]["terminated"]["exitCode"] == 255

    virtual.run(story())


def test_after_a_reboot_what_completed_stays_completed() -> None:
    programs = {"a": [Program(ends_after_s=2)], "b": [Program()]}

    async def story() -> None:
        left = await _status_after(pod(mains=["a", "b"], policy="OnFailure"), programs, 10)
        async with on_stage(left, programs, restarted=True) as stage:
            await stage.at(12)
            assert [name for _, name, _ in stage.runtime.starts] == ["b"]
            assert stage.shown("a")["state"]["terminated"]["exitCode"] == 0
            assert stage.status["phase"] == "Running"

    virtual.run(story())


def test_a_pod_that_was_deleted_while_its_node_was_off_ends_without_a_start() -> None:
    async def story() -> None:
        left = await _status_after(pod(), {}, 10)
        left["metadata"] |= {"deletionTimestamp": stamp(20), "deletionGracePeriodSeconds": 30}
        async with on_stage(left, restarted=True) as stage:
            await stage.task
            assert stage.runtime.starts == []
            assert stage.status["phase"] == "Failed"
            assert stage.reporter.deletions == [10.001]

    virtual.run(story())


def test_a_finished_pod_is_only_waited_for() -> None:
    async def story() -> None:
        left = await _status_after(pod(policy="Never"), {"main": [Program(ends_after_s=1)]}, 5)
        assert left["status"]["phase"] == "Succeeded"
        async with on_stage(left, restarted=True) as stage:
            await stage.at(50)
            assert stage.runtime.starts == []
            await stage.end()
            assert stage.reporter.statuses == []
            assert len(stage.reporter.deletions) == 1

    virtual.run(story())


def test_a_deletion_while_a_probe_kills_only_brings_the_end_nearer_and_nothing_is_restarted() -> None:
    main = {"livenessProbe": {"exec": {"command": ["drain", "0", "1"]}, "periodSeconds": 10, "failureThreshold": 1}}
    manifest = pod(main=main, terminationGracePeriodSeconds=100)

    async def story() -> None:
        async with on_stage(manifest, {"main": [Program(term_s=None, answers=_drains)]}) as stage:
            await stage.at(20)
            assert stage.container().signals == [(10, TERM)]
            await stage.end(15)
            assert stage.container().signals == [(10, TERM), (35.001, KILL)]
            assert len(stage.runtime.starts) == 1

    virtual.run(story())


def test_a_deletion_does_not_wait_for_a_post_start_hook() -> None:
    main = {"lifecycle": {"postStart": {"exec": {"command": ["drain", "500", "0"]}}}}

    async def story() -> None:
        async with on_stage(pod(main=main), {"main": [Program(answers=_drains)]}) as stage:
            await stage.at(5)
            await stage.end()
            assert stage.container().signals == [(5.001, TERM)]

    virtual.run(story())
