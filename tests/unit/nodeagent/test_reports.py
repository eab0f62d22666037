"""What reaches the API server: the newest status, once; events, not too many; and what happens when it refuses."""

from __future__ import annotations

import copy

import pytest

from sglpool.sandbox.apiserver import RequestRefused
from sglpool.sandbox.nodeagent.ports import PodGone
from sglpool.sandbox.nodeagent.reporter import EVENT_BURST
from unit.nodeagent import virtual
from unit.nodeagent.fakes import Program, on_stage, pod


def test_a_status_is_reported_again_until_the_server_takes_it() -> None:
    async def story() -> None:
        async with on_stage(pod()) as stage:
            stage.reporter.status_errors = [ConnectionError("refused")] * 4
            await stage.at(2)
            assert stage.reporter.statuses == []
            await stage.at(4)
            assert [at_s for at_s, _ in stage.reporter.statuses] == [3]
            assert stage.condition("Ready")["status"] == "True"

    virtual.run(story())


def test_only_the_newest_status_is_reported_and_never_two_at_a_time() -> None:
    async def story() -> None:
        programs = {"main": [Program(ends_after_s=0.1, code=1)] * 2 + [Program()]}
        async with on_stage(pod(), programs) as stage:
            stage.reporter.takes_s = 3
            await stage.at(30)
            assert stage.reporter.most_busy == 1
            assert stage.shown()["restartCount"] == 2
            # The restart at 0.1 s happened while the first report was under way.
            waiting = [s["containerStatuses"][0]["state"] for _, s in stage.reporter.statuses]
            assert waiting[1]["waiting"]["reason"] == "CrashLoopBackOff"

    virtual.run(story())


@pytest.mark.parametrize("error", [PodGone("gone"), RequestRefused("not found", 404), RequestRefused("uid", 409)])
def test_a_pod_that_the_server_no_longer_has_ends(error: Exception) -> None:
    async def story() -> None:
        async with on_stage(pod(), {"main": [Program(ends_after_s=10, code=1), Program(term_s=3)]}) as stage:
            await stage.at(5)
            stage.reporter.status_errors = [error]
            await stage.task
            assert stage.container().signals == [(10, 15)]
            assert stage.reporter.deletions == []
            assert stage.runtime.removed == [13]

    virtual.run(story())


def test_a_deletion_is_asked_for_until_the_server_grants_it() -> None:
    async def story() -> None:
        async with on_stage(pod()) as stage:
            await stage.at(1)
            stage.reporter.delete_errors = [ConnectionError("refused"), RequestRefused("busy", 500)]
            await stage.end()
            assert len(stage.reporter.deletions) == 1

    virtual.run(story())


def test_a_pod_that_is_removed_by_another_needs_no_deletion() -> None:
    async def story() -> None:
        async with on_stage(pod()) as stage:
            await stage.at(1)
            stage.reporter.delete_errors = [RequestRefused("not found", 404)]
            await stage.end()
            assert stage.reporter.deletions == []

    virtual.run(story())


def test_a_status_that_somebody_wrote_over_is_written_again() -> None:
    async def story() -> None:
        manifest = pod()
        async with on_stage(manifest) as stage:
            await stage.at(1)
            seen = copy.deepcopy(manifest)
            seen["status"] = copy.deepcopy(stage.status)
            stage.worker.update(seen)
            await stage.at(2)
            before = len(stage.reporter.statuses)
            lost = copy.deepcopy(seen)
            ready = next(c for c in lost["status"]["conditions"] if c["type"] == "Ready")
            ready["status"] = "False"
            stage.worker.update(lost)
            await stage.at(3)
            assert len(stage.reporter.statuses) == before + 1
            assert stage.condition("Ready")["status"] == "True"

    virtual.run(story())


def test_events_of_one_kind_are_limited_and_do_not_hide_others() -> None:
    async def story() -> None:
        main = {"readinessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 1}}

        async def answers(command: str, age_s: float) -> object:
            raise OSError("no such program")

        async with on_stage(pod(main=main), {"main": [Program(answers=answers)]}) as stage:  # type: ignore[arg-type]
            await stage.at(200)
            assert len(stage.reporter.messages("Unhealthy")) == EVENT_BURST
            await stage.end()
            assert stage.reporter.messages("Killing") == ["Stopping container main"]

    virtual.run(story())
