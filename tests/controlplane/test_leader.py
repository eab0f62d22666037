"""Two operators behind a Lease: one works, the other waits and takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.operator_process import OperatorProcess
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane


def test_the_second_operator_takes_over_when_the_first_stops(
    crd: None, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    options = ("--leader-elect", "--namespace", namespace)
    first = OperatorProcess(kubeconfig, tmp_path / "first.log", *options)
    second = OperatorProcess(kubeconfig, tmp_path / "second.log", *options)
    first.start()
    try:
        # Ready all the same: a Deployment would otherwise wait for it for ever, and never end the first one.
        second.start()
        assert "stands by" in second.get("/readyz")[1]
        assert "sglpool_leader 0.0" in second.get("/metrics")[1]
        first.stop()
        wait_until(lambda: "sglpool_leader 1.0" in second.get("/metrics")[1], timeout_s=30, describe="the second leads")
        wait_until(lambda: second.get("/readyz") == (200, "ok\n"), timeout_s=30, describe="it has listed everything")
    finally:
        first.kill()
        second.stop()


def test_a_waiting_operator_ends_at_once(crd: None, kubeconfig: Path, namespace: str, tmp_path: Path) -> None:
    options = ("--leader-elect", "--namespace", namespace)
    first = OperatorProcess(kubeconfig, tmp_path / "first.log", *options)
    second = OperatorProcess(kubeconfig, tmp_path / "second.log", *options)
    first.start()
    try:
        second.start(until="/healthz")
        second.stop(timeout_s=5)
    finally:
        first.stop()
