"""An operator whose token is not taken any more says so, and loses nothing; with a new one the work goes on.

Not here: a pod's token, which is read again every minute (`tests/contract/kube`).
"""

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


def test_a_token_that_ends_is_named_and_the_work_waits_for_a_new_one(
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
        # The API server remembers for some seconds that it was good; until then it would do.
        user = Kubectl(kubectl.binary, account.kubeconfig)
        wait_until(
            lambda: "Unauthorized" in user.run("get", "sglpool", "-n", namespace).stderr,
            timeout_s=60,
            describe="the old token is refused",
        )
        pool.apply(replicas=2)
        wait_until(lambda: "401 Unauthorized" in process.log.read_text(), timeout_s=90, describe="the log says 401")
        assert process.get("/healthz")[0] == 200, "a pod would be started again for nothing"
        assert pool.statefulset()["spec"]["replicas"] == 1

        token = kubectl("create", "token", namespace, "-n", namespace, "--duration=2h").strip()
        config = yaml.safe_load(account.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        account.kubeconfig.write_text(yaml.safe_dump(config))
        process.stop()
        process.start()
        wait_until(
            lambda: pool.statefulset()["spec"]["replicas"] == 2,
            timeout_s=60,
            describe=lambda: process.log.read_text()[-6000:],
        )
    finally:
        print(process.log.read_text()[-5000:])
        process.kill()
        account.delete()
        operator.start()
