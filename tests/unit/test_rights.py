"""The operator's rights: asked for in few words, waited for, and told once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from sglpool.controller import rights as module
from sglpool.controller.rights import Rights
from sglpool.kube import Transient
from sglpool.kube.rights import Right, in_namespaces, of_lease


class Reviewer:
    """Answers access reviews: what is in `denied` is not allowed."""

    def __init__(self, *denied: tuple[str, str]) -> None:
        self.denied = set(denied)
        self.asked: list[dict[str, Any]] = []
        self.silent = False

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if self.silent:
            raise Transient("no answer", verb="create", kind="SelfSubjectAccessReview")
        asked = manifest["spec"]["resourceAttributes"]
        self.asked.append(asked)
        path = "/".join(part for part in (asked["resource"], asked.get("subresource")) if part)
        return {**manifest, "status": {"allowed": (asked["verb"], path) not in self.denied}}


def watch(
    api: Reviewer,
    *,
    namespaces: tuple[str, ...] | None = None,
    lease: str | None = None,
    told: asyncio.Event | None = None,
) -> Any:
    shown: list[Sequence[Right]] = []

    def show(rights: Sequence[Right]) -> None:
        shown.append(rights)
        if told is not None:
            told.set()

    found: Any = Rights(
        api,  # type: ignore[arg-type]
        namespaces=namespaces,
        lease_namespace=lease,
        refusals=lambda: 0,
        show=show,
    )
    return found, shown


async def test_what_is_missing_is_said_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    rights, shown = watch(Reviewer(("delete", "pods"), ("patch", "inferencepools/status")))
    await rights.look()
    await rights.look()

    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "delete pods in all namespaces" in line
    assert "patch inferencepools.sglpool.io/status in all namespaces" in line
    assert {(r.verb, r.path) for r in shown[-1]} == {("delete", "pods"), ("patch", "inferencepools/status")}
    assert rights.waits_for == ""


async def test_an_essential_right_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    api = Reviewer(("watch", "statefulsets"))
    told = asyncio.Event()
    rights, shown = watch(api, told=told)
    waiting = asyncio.create_task(rights.wait(asyncio.Event()))
    await asyncio.wait_for(told.wait(), 5)
    assert "may not watch statefulsets.apps in all namespaces: grant it" in rights.waits_for
    assert not waiting.done()
    api.denied.clear()
    await asyncio.wait_for(waiting, 5)
    assert rights.waits_for == ""
    assert shown[-1] == ()


async def test_a_stop_ends_the_wait() -> None:
    told, stop = asyncio.Event(), asyncio.Event()
    rights, _ = watch(Reviewer(("list", "inferencepools")), told=told)
    waiting = asyncio.create_task(rights.wait(stop))
    await asyncio.wait_for(told.wait(), 5)
    stop.set()
    await asyncio.wait_for(waiting, 5)


async def test_where_nobody_says_it_goes_on() -> None:
    api = Reviewer()
    api.silent = True
    rights, shown = watch(api)
    await asyncio.wait_for(rights.wait(asyncio.Event()), 5)
    assert not shown
    assert not await rights.may_watch_nodes()


async def test_rights_are_asked_for_where_they_are_needed() -> None:
    api = Reviewer()
    rights, _ = watch(api, namespaces=("a", "b"), lease="own")
    await rights.look()
    assert {asked["namespace"] for asked in api.asked} == {"a", "b", "own"}
    assert {asked["verb"] for asked in api.asked if asked["namespace"] == "own"} == {"create", "get", "update"}
    # Neither what only some clusters want, nor a Secret: only a pool that names one needs it.
    assert not {"secrets", "nodes"} & {asked["resource"] for asked in api.asked}
    assert not any(asked.get("subresource") == "finalizers" for asked in api.asked)


def test_there_is_no_right_to_everything() -> None:
    every = [*in_namespaces(None), *of_lease("own")]
    assert not [r for r in every if "*" in (r.verb, r.path, r.resource.group)]
    assert not {"escalate", "bind", "impersonate", "deletecollection"} & {r.verb for r in every}
    assert {r.verb for r in every if r.resource.plural == "secrets"} == set()
