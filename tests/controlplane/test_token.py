"""An operator whose token is not taken any more says so, and goes on when it has a new one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.accounts import ChartAccount
from support.kubectl import Kubectl
from support.operator_process import OperatorProcess
from support.pool_on_cluster import ClusterPool, small_pool
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]


def test_a_token_that_ends_is_named_and_a_new_one_is_read(
    kubectl: Kubectl, namespace: str, operator: OperatorProcess, tmp_path: Path
) -> None:
    operator.stop()
    account = ChartAccount.create(kubectl, namespace, tmp_path)
    process = OperatorProcess(account.kubeconfig, tmp_path / "operator.log", "--namespace", namespace)
    try:
        process.start()
        pool = ClusterPool(kubectl, namespace, small_pool("p", router={"enabled": False}))
        pool.apply()
        pool.wait_ready()
        # A new account of the same name: the old token is worth nothing any more.
        kubectl("delete", "serviceaccount", namespace, "-n", namespace)
        kubectl("create", "serviceaccount", namespace, "-n", namespace)
        pool.apply(replicas=2)
        wait_until(lambda: "401" in process.log.read_text(), timeout_s=90, describe="the log says 401")
        token = kubectl("create", "token", namespace, "-n", namespace, "--duration=2h").strip()
        config = yaml.safe_load(account.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        account.kubeconfig.write_text(yaml.safe_dump(config))
        wait_until(
            lambda: pool.statefulset()["spec"]["replicas"] == 2,
            timeout_s=120,
            describe=lambda: process.log.read_text()[-6000:],
        )
    finally:
        print(process.log.read_text()[-5000:])
        process.kill()
        account.delete()
        operator.start()
