"""The operator's own wiring, where it meets kopf's habits."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from typing import Any

import pytest

from sglpool.controller import app
from sglpool.controller.metrics import Metrics
from sglpool.kube import Forbidden, NotFound
from support.fake_kube import FakeKube


@pytest.mark.parametrize("ours", [True, False])
async def test_at_the_end_kopf_raises_what_a_running_reconcile_met_and_that_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    error = Forbidden("is being terminated", verb="apply", kind="Service", code=403) if ours else RuntimeError("kopf's")

    async def ends_badly(**_: object) -> None:
        raise error

    monkeypatch.setattr(app.kopf, "operator", ends_badly)
    stop = asyncio.Event()
    operator = app.Operator(app.OperatorOptions(), FakeKube(), Metrics(), stop)
    if ours:
        await operator._watch()
        assert stop.is_set()
    else:
        with pytest.raises(RuntimeError):
            await operator._watch()


@pytest.mark.parametrize(
    ("answers", "watches"),
    [
        ({"list": True, "watch": True}, True),
        ({"list": True, "watch": False}, False),
        ({"list": False, "watch": True}, False),
        ({}, False),
    ],
)
async def test_nodes_are_watched_only_by_an_account_that_may(answers: dict[str, bool], watches: bool) -> None:
    class Api(FakeKube):
        async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
            verb = manifest["spec"]["resourceAttributes"]["verb"]
            if verb not in answers:
                raise Forbidden("no", verb="create", kind=manifest["kind"], code=403)
            return {**manifest, "status": {"allowed": answers[verb]}}

    operator = app.Operator(app.OperatorOptions(), Api(), Metrics(), asyncio.Event())
    assert await operator._rights.may_watch_nodes() is watches


async def test_a_user_without_a_name_may_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kopf would ask who we are, and fail for the user of a container, whom no passwd file knows."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    async def started(*, identity: str = "", **_: object) -> None:
        # As kopf does where it is not told.
        assert identity or getpass.getuser()

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr(app.kopf, "operator", started)
    stop = asyncio.Event()
    await app.Operator(app.OperatorOptions(), FakeKube(), Metrics(), stop)._watch()
    assert stop.is_set()


async def test_sigterm_is_ours_although_kopf_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kopf tells of it when it has ended, after waiting for tasks that are not its own."""
    kopfs = asyncio.Event()

    async def takes_signals(*, ready_flag: asyncio.Event, stop_flag: asyncio.Event, **_: object) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, kopfs.set)
        ready_flag.set()
        await stop_flag.wait()

    monkeypatch.setattr(app.kopf, "operator", takes_signals)
    stop = asyncio.Event()
    watching = asyncio.create_task(app.Operator(app.OperatorOptions(), FakeKube(), Metrics(), stop)._watch())
    try:
        # Everybody who can go on has had a turn.
        for _ in range(5):
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(watching, 10)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    assert stop.is_set()
    assert not kopfs.is_set()


async def test_a_right_to_watch_that_was_taken_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = 'statefulsets.apps is forbidden: User "u" cannot watch resource "statefulsets"'

    class Refused(Exception):
        status = 403

    async def ends(**_: object) -> None:
        raise Refused(words)

    monkeypatch.setattr(app.kopf, "operator", ends)
    with pytest.raises(app.WatchForbidden, match="cannot watch resource"):
        await app.Operator(app.OperatorOptions(), FakeKube(), Metrics(), asyncio.Event())._watch()


class WithoutCRD(FakeKube):
    """Knows no InferencePools for so many questions."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self.left = questions

    async def list(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        self.left -= 1
        if self.left >= 0:
            raise NotFound("no such resource", verb="list", kind="InferencePool", code=404)
        return []


async def test_without_the_crd_it_ends_and_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CRD_PATIENCE_S", 0.0)
    operator = app.Operator(app.OperatorOptions(), WithoutCRD(1000), Metrics(), asyncio.Event())
    with pytest.raises(app.MissingCRD, match=r"sglpool crd \| kubectl apply"):
        await operator._find_crd()


async def test_a_crd_that_comes_a_moment_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation creates it together with the operator."""
    monkeypatch.setattr(app, "CRD_PAUSE_S", 0.0)
    kube = WithoutCRD(3)
    await app.Operator(app.OperatorOptions(), kube, Metrics(), asyncio.Event())._find_crd()
    assert kube.left == -1
