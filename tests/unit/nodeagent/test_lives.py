"""The life of a pod from its arrival to its end: order, restarts, what cannot start, jobs and sidecars."""

from __future__ import annotations

import itertools

import pytest

from sglpool.sandbox.nodeagent.contracts import StartFailed, VolumeFailed
from unit.nodeagent import virtual
from unit.nodeagent.fakes import Program, on_stage, pod, stamp

WHERE = "web-0_default(u-1)"


def test_a_pod_becomes_ready_and_says_so_once() -> None:
    async def story() -> None:
        async with on_stage(pod()) as stage:
            await stage.at(0)
            status = stage.status
            assert status["phase"] == "Running"
            assert status["podIP"] == "127.1.0.5"
            assert status["podIPs"] == [{"ip": "127.1.0.5"}]
            assert status["hostIP"] == "127.1.0.1"
            assert status["startTime"] == stamp(0)
            assert {c["type"]: c["status"] for c in status["conditions"]} == dict.fromkeys(
                ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"], "True"
            )
            shown = stage.shown()
            assert shown["state"] == {"running": {"startedAt": stamp(0)}}
            assert shown["ready"]
            assert shown["started"]
            assert shown["containerID"] == stage.container().id
            assert stage.reporter.reasons() == ["Pulled", "Created", "Started"]
            reports = len(stage.reporter.statuses)
            await stage.at(3600)
            assert len(stage.reporter.statuses) == reports

    virtual.run(story())


def test_init_containers_run_one_after_the_other_before_the_others() -> None:
    programs = {"a": [Program(ends_after_s=5)], "b": [Program(ends_after_s=7)]}

    async def story() -> None:
        async with on_stage(pod(inits=[{"name": "a"}, {"name": "b"}]), programs) as stage:
            await stage.at(1)
            assert stage.status["phase"] == "Pending"
            assert stage.shown("b")["state"] == {"waiting": {"reason": "PodInitializing"}}
            assert stage.shown()["state"] == {"waiting": {"reason": "PodInitializing"}}
            assert stage.condition("Initialized") | {"lastTransitionTime": ""} == {
                "type": "Initialized",
                "status": "False",
                "reason": "ContainersNotInitialized",
                "message": "containers with incomplete status: [a b]",
                "lastTransitionTime": "",
            }
            await stage.at(6)
            assert stage.shown("a")["ready"]
            assert stage.shown("a")["state"]["terminated"]["reason"] == "Completed"
            await stage.at(12)
            assert stage.runtime.starts == [(0, "a", 0), (5, "b", 0), (12, "main", 0)]
            assert stage.condition("Initialized")["lastTransitionTime"] == stamp(12)

    virtual.run(story())


def test_a_failing_init_container_is_tried_again_and_one_that_completes_is_not() -> None:
    programs = {"a": [Program(ends_after_s=1, code=3), Program(ends_after_s=1, code=3), Program(ends_after_s=1)]}

    async def story() -> None:
        async with on_stage(pod(inits=[{"name": "a"}]), programs) as stage:
            await stage.at(3)
            waiting = stage.shown("a")["state"]["waiting"]
            assert waiting["reason"] == "CrashLoopBackOff"
            assert stage.status["phase"] == "Pending"
            await stage.at(14)
            assert stage.runtime.starts == [(0, "a", 0), (1, "a", 1), (12, "a", 2), (13, "main", 0)]
            assert stage.status["phase"] == "Running"

    virtual.run(story())


def test_a_failed_init_container_fails_a_pod_that_never_restarts() -> None:
    async def story() -> None:
        programs = {"a": [Program(ends_after_s=1, code=3)]}
        async with on_stage(pod(inits=[{"name": "a"}], policy="Never"), programs) as stage:
            await stage.at(5)
            assert stage.status["phase"] == "Failed"
            assert stage.runtime.start_times("main") == []

    virtual.run(story())


def test_restarts_wait_for_ten_seconds_and_twice_as_long_each_time_up_to_five_minutes() -> None:
    async def story() -> None:
        async with on_stage(pod(), {"main": [Program(ends_after_s=1, code=2, message="no luck")]}) as stage:
            await stage.at(5)
            shown = stage.shown()
            assert shown["state"]["waiting"] == {
                "reason": "CrashLoopBackOff",
                "message": f"back-off 10s restarting failed container=main pod={WHERE}",
            }
            assert shown["lastState"]["terminated"]["exitCode"] == 2
            assert shown["lastState"]["terminated"]["message"] == "no luck"
            assert shown["restartCount"] == 1
            assert not shown["started"]
            assert stage.status["phase"] == "Running"
            assert stage.condition("Ready")["message"] == "containers with unready status: [main]"
            await stage.at(1500)
            starts = stage.runtime.start_times("main")
            waits = [round(b - a - 1) for a, b in itertools.pairwise(starts)]
            assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 300]
            assert [attempt for _, _, attempt in stage.runtime.starts] == list(range(10))
            messages = stage.reporter.messages("BackOff")
            assert messages[0] == f"Back-off restarting failed container main in pod {WHERE}"

    virtual.run(story())


def test_a_container_that_ran_for_long_begins_with_the_first_back_off_again() -> None:
    programs = {"main": [*[Program(ends_after_s=1, code=1)] * 4, Program(ends_after_s=700, code=1), Program()]}

    async def story() -> None:
        async with on_stage(pod(), programs) as stage:
            await stage.at(900)
            # Ends at 1, 2, 13 and 34; the fifth run lasts from 74 to 774 and is followed at once by the sixth.
            assert stage.runtime.start_times("main") == [0, 1, 12, 33, 74, 774]

    virtual.run(story())


@pytest.mark.parametrize(
    ("policy", "code", "phase", "runs"),
    [("Never", 0, "Succeeded", 1), ("Never", 4, "Failed", 1), ("OnFailure", 0, "Succeeded", 1)],
)
def test_a_pod_that_runs_to_its_end(policy: str, code: int, phase: str, runs: int) -> None:
    async def story() -> None:
        async with on_stage(pod(policy=policy), {"main": [Program(ends_after_s=3, code=code)]}) as stage:
            await stage.at(100)
            assert stage.status["phase"] == phase
            assert len(stage.runtime.starts) == runs
            assert stage.condition("Ready")["reason"] == ("PodCompleted" if phase == "Succeeded" else "PodFailed")
            assert stage.runtime.removed == [3]
            assert not stage.reporter.deletions
            await stage.end()
            assert stage.status["phase"] == phase
            assert stage.reporter.deletions == [100.001]

    virtual.run(story())


def test_on_failure_restarts_until_it_succeeds() -> None:
    programs = {"main": [Program(ends_after_s=1, code=1), Program(ends_after_s=1)]}

    async def story() -> None:
        async with on_stage(pod(policy="OnFailure"), programs) as stage:
            await stage.at(10)
            assert stage.status["phase"] == "Succeeded"
            assert stage.shown()["restartCount"] == 1
            assert stage.shown()["lastState"]["terminated"]["exitCode"] == 1

    virtual.run(story())


def test_a_pod_with_one_failed_and_one_completed_container_has_failed() -> None:
    programs = {"a": [Program(ends_after_s=1)], "b": [Program(ends_after_s=2, code=1)]}

    async def story() -> None:
        async with on_stage(pod(mains=["a", "b"], policy="Never"), programs) as stage:
            await stage.at(1)
            assert stage.status["phase"] == "Running"
            await stage.at(2)
            assert stage.status["phase"] == "Failed"

    virtual.run(story())


def test_an_image_that_cannot_be_had_is_asked_for_with_back_off() -> None:
    error = StartFailed("ErrImagePull", "example/main:1: not found")

    async def story() -> None:
        async with on_stage(pod(), {"main": [*[Program(fails=error)] * 3, Program()]}) as stage:
            await stage.at(1)
            assert stage.shown()["state"]["waiting"] == {"reason": "ErrImagePull", "message": error.message}
            await stage.at(5)
            assert stage.shown()["state"]["waiting"] == {
                "reason": "ImagePullBackOff",
                "message": f'Back-off pulling image "example/main:1": ErrImagePull: {error.message}',
            }
            assert stage.status["phase"] == "Pending"
            await stage.at(75)
            assert stage.runtime.start_times("main") == [0, 10, 30, 70]
            assert stage.shown()["restartCount"] == 0
            assert stage.shown()["ready"]

    virtual.run(story())


def test_a_container_whose_secret_is_missing_starts_once_it_is_there() -> None:
    error = StartFailed("CreateContainerConfigError", 'secret "hub" not found')

    async def story() -> None:
        async with on_stage(pod(), {"main": [Program(fails=error), Program()]}) as stage:
            await stage.at(3)
            assert stage.shown()["state"]["waiting"] == {
                "reason": "CreateContainerConfigError",
                "message": 'secret "hub" not found',
            }
            assert stage.reporter.messages("Failed") == ['Error: secret "hub" not found']
            await stage.at(10)
            assert stage.shown()["state"]["running"] == {"startedAt": stamp(10)}
            assert stage.shown()["restartCount"] == 0

    virtual.run(story())


def test_a_program_that_cannot_be_started_counts_as_a_run_that_ended() -> None:
    error = StartFailed("RunContainerError", 'exec: "nope": executable file not found in $PATH')

    async def story() -> None:
        async with on_stage(pod(), {"main": [Program(fails=error)]}) as stage:
            await stage.at(5)
            shown = stage.shown()
            assert shown["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            ended = shown["lastState"]["terminated"]
            assert (ended["exitCode"], ended["reason"], ended["message"]) == (128, "StartError", error.message)
            assert stage.runtime.start_times("main") == [0, 0]

    virtual.run(story())


def test_a_program_that_cannot_be_started_fails_a_pod_that_never_restarts() -> None:
    async def story() -> None:
        programs = {"main": [Program(fails=StartFailed("RunContainerError", "no such program"))]}
        async with on_stage(pod(policy="Never"), programs) as stage:
            await stage.at(1)
            assert stage.status["phase"] == "Failed"
            assert stage.shown()["state"]["terminated"]["exitCode"] == 128

    virtual.run(story())


def test_a_volume_that_is_not_there_yet_holds_the_pod_back() -> None:
    async def story() -> None:
        async with on_stage(pod()) as stage:
            stage.runtime.volume_errors = [VolumeFailed('configmap "launch" not found')] * 3
            await stage.at(1)
            assert stage.status["phase"] == "Pending"
            assert "podIP" not in stage.status
            assert stage.condition("PodReadyToStartContainers")["status"] == "False"
            assert stage.shown()["state"] == {"waiting": {"reason": "ContainerCreating"}}
            assert stage.reporter.messages("FailedMount") == ['configmap "launch" not found'] * 2
            await stage.at(4)
            assert stage.runtime.prepared == [0, 0.5, 1.5, 3.5]
            assert stage.status["phase"] == "Running"

    virtual.run(story())


def test_volumes_follow_their_sources_while_the_pod_runs() -> None:
    async def story() -> None:
        async with on_stage(pod()) as stage:
            await stage.at(130)
            assert stage.runtime.prepared == [0, 60, 120]

    virtual.run(story())


SIDECAR = {"name": "side", "restartPolicy": "Always"}


def test_a_sidecar_runs_before_the_others_and_ends_after_them() -> None:
    programs = {"side": [Program(term_s=4)], "main": [Program(ends_after_s=10)]}

    async def story() -> None:
        startup = {"exec": {"command": ["up"]}, "periodSeconds": 3}
        sidecar = SIDECAR | {"startupProbe": startup}
        async with on_stage(pod(inits=[sidecar], policy="Never"), programs) as stage:
            await stage.at(1)
            assert stage.status["phase"] == "Pending"
            assert stage.condition("Initialized")["status"] == "False"
            await stage.at(3)
            assert stage.runtime.starts == [(0, "side", 0), (3, "main", 0)]
            assert stage.condition("Ready")["status"] == "True"
            await stage.at(14)
            assert stage.container("side").signals == [(13, 15)]
            assert stage.status["phase"] == "Running"
            await stage.at(17)
            assert stage.status["phase"] == "Succeeded"

    virtual.run(story())


def test_a_sidecar_is_restarted_even_in_a_pod_that_never_restarts() -> None:
    programs = {"side": [Program(ends_after_s=5), Program()]}

    async def story() -> None:
        async with on_stage(pod(inits=[SIDECAR], policy="Never"), programs) as stage:
            await stage.at(20)
            assert stage.runtime.start_times("side") == [0, 5]
            assert stage.shown("side")["restartCount"] == 1
            assert stage.status["phase"] == "Running"

    virtual.run(story())


def test_the_deadline_of_a_pod_ends_it() -> None:
    async def story() -> None:
        programs = {"main": [Program(term_s=2, term_code=0)]}
        async with on_stage(pod(policy="Never", activeDeadlineSeconds=60), programs) as stage:
            await stage.at(61)
            assert stage.container().signals == [(60, 15)]
            assert stage.status["phase"] == "Running"
            await stage.at(62)
            assert stage.status["phase"] == "Failed"
            assert stage.status["reason"] == "DeadlineExceeded"
            assert "DeadlineExceeded" in stage.reporter.reasons()

    virtual.run(story())


def test_a_readiness_gate_keeps_a_pod_unready_until_it_opens() -> None:
    async def story() -> None:
        gated = pod(readinessGates=[{"conditionType": "example.com/in-service"}])
        async with on_stage(gated) as stage:
            await stage.at(1)
            assert stage.condition("ContainersReady")["status"] == "True"
            assert stage.condition("Ready")["reason"] == "ReadinessGatesNotReady"
            opened = gated | {"status": {"conditions": [{"type": "example.com/in-service", "status": "True"}]}}
            stage.worker.update(opened)
            await stage.at(2)
            assert stage.condition("Ready")["status"] == "True"
            assert stage.condition("Ready")["lastTransitionTime"] == stamp(1)

    virtual.run(story())
