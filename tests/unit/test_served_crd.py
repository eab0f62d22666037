"""A CRD that is older than the operator is noticed, by the fields that it drops."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from sglpool.api.crd import build_crd
from sglpool.controller.crd import ServedCRD, missing_fields
from sglpool.kube import NotFound


def schema() -> dict[str, Any]:
    return copy.deepcopy(build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def document(of: dict[str, Any]) -> dict[str, Any]:
    return {"components": {"schemas": {"io.sglpool.v1alpha1.InferencePool": of, "other": {}}}}


def test_its_own_crd_lacks_nothing() -> None:
    assert missing_fields(schema()) == []


def test_only_the_outermost_missing_field_is_named() -> None:
    served = schema()
    del served["properties"]["spec"]["properties"]["autoscaling"]
    del served["properties"]["spec"]["properties"]["gpus"]["items"]["properties"]["maxReplicas"]
    del served["properties"]["status"]["properties"]["endpoint"]
    assert sorted(missing_fields(served)) == ["spec.autoscaling", "spec.gpus[].maxReplicas", "status.endpoint"]


async def test_an_older_crd_is_told_once_until_it_is_upgraded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shown: list[int] = []
    served = schema()
    del served["properties"]["spec"]["properties"]["load"]

    async def describe() -> dict[str, Any]:
        return document(served)

    crd = ServedCRD(describe, show=shown.append)
    await crd.look()
    await crd.look()
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "older than this operator: it drops spec.load" in line
    assert "kubectl apply --server-side" in line
    served = schema()
    await crd.run_for_ever()  # ends, since nothing is missing
    assert shown == [1, 1, 0]
    assert "has all fields now" in caplog.text


async def test_where_nobody_says_it_stays_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def describe() -> dict[str, Any]:
        raise NotFound("no such document", verb="describe", kind="InferencePool", code=404)

    shown: list[int] = []
    await ServedCRD(describe, show=shown.append).look()
    assert shown == []
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
