"""Pods on the node agent's nodes show what they would show on a real cluster."""

from __future__ import annotations

import json

import pytest

from sandbox.cluster.conftest import AgentCluster, PodRunner
from support.waiting import wait_until

pytestmark = pytest.mark.controlplane


def test_a_pod_runs_to_its_end_and_keeps_its_exit_code(run_pod: PodRunner) -> None:
    pod = run_pod("echo hello; exit 3", pod={"restartPolicy": "Never"})
    pod.wait_for("it has failed", lambda: pod.phase == "Failed")
    ended = pod.container()["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert pod.logs() == "hello\n"


def test_a_container_that_ends_again_and_again_backs_off(run_pod: PodRunner) -> None:
    pod = run_pod("echo going down >&2; exit 7", terminationMessagePolicy="FallbackToLogsOnError")
    pod.wait_for("it backs off", lambda: pod.waiting().get("reason") == "CrashLoopBackOff")
    last = pod.container()["lastState"]["terminated"]
    assert (last["exitCode"], last["message"]) == (7, "going down\n")
    pod.wait_for("it was restarted", lambda: pod.container()["restartCount"] >= 1)
    assert pod.logs("--previous") == "going down\n"


def test_an_image_that_nobody_has_is_not_pulled(run_pod: PodRunner) -> None:
    pod = run_pod("true", image="registry.example/nobody/has-this:1")
    seen: set[str] = set()

    def backs_off() -> bool:
        seen.add(pod.waiting().get("reason", ""))
        return "ImagePullBackOff" in seen

    pod.wait_for("it backs off", backs_off)
    assert "nobody/has-this" in pod.waiting()["message"]
    assert pod.phase == "Pending"


def test_a_missing_secret_is_named_and_its_coming_is_noticed(
    cluster: AgentCluster, namespace: str, run_pod: PodRunner
) -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "one"}}}]
    pod = run_pod("echo $KEY; sleep 600", env=env)
    pod.wait_for("it waits", lambda: pod.waiting().get("reason") == "CreateContainerConfigError")
    assert pod.waiting()["message"] == 'secret "keys" not found'
    cluster.kubectl("create", "secret", "generic", "keys", "--from-literal=one=open", "-n", namespace)
    pod.wait_for("it runs", lambda: pod.container().get("started"))
    wait_until(lambda: pod.logs() == "open\n", timeout_s=10, describe="the secret is in its environment")


def test_a_container_above_its_memory_limit_is_killed(run_pod: PodRunner) -> None:
    script = "a=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 600"
    pod = run_pod(script, pod={"restartPolicy": "Never"}, resources={"limits": {"memory": "64Mi"}})
    pod.wait_for("it was killed", lambda: pod.phase == "Failed")
    ended = pod.container()["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_shared_memory_has_its_size_and_no_more(run_pod: PodRunner) -> None:
    pod = run_pod(
        "head -c 3000000 /dev/zero > /dev/shm/fits && echo fits; head -c 3000000 /dev/zero > /dev/shm/too-much",
        pod={
            "restartPolicy": "Never",
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}],
        },
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
    )
    pod.wait_for("it has failed", lambda: pod.phase == "Failed")
    assert pod.logs().startswith("fits\n")
    assert "No space left on device" in pod.logs()


def test_a_pod_knows_itself_and_its_files_are_where_it_says(
    cluster: AgentCluster, namespace: str, run_pod: PodRunner
) -> None:
    cluster.kubectl("create", "configmap", "settings", "--from-literal=host=0.0.0.0", "-n", namespace)
    pod = run_pod(
        "cat /etc/settings/host; echo; echo $IP $NODE $HOSTNAME $(sh -c 'echo $PPID'); id -u; sleep 600",
        pod={"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]},
        env=[
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        volumeMounts=[{"name": "settings", "mountPath": "/etc/settings", "readOnly": True}],
    )
    wait_until(lambda: pod.phase == "Running" and pod.logs().count("\n") == 3, timeout_s=30, describe="it has spoken")
    manifest = pod.get()
    address, node = manifest["status"]["podIP"], manifest["spec"]["nodeName"]
    assert address.startswith("127.")
    # Where a file says "any address" it says the pod's own; PID 1 is the command itself.
    assert pod.logs() == f"{address}\n{address} {node} p 1\n0\n"


def test_probes_gate_ready_and_a_failing_one_restarts(run_pod: PodRunner) -> None:
    pod = run_pod(
        "touch /tmp/well; sleep 600",
        startupProbe={"exec": {"command": ["test", "-f", "/tmp/well"]}, "periodSeconds": 1},
        readinessProbe={"exec": {"command": ["test", "-f", "/tmp/ready"]}, "periodSeconds": 1},
        livenessProbe={"exec": {"command": ["test", "-f", "/tmp/well"]}, "periodSeconds": 1, "failureThreshold": 2},
    )
    pod.wait_for("it is started", lambda: pod.container().get("started"))
    assert not pod.container()["ready"]
    assert pod.container()["restartCount"] == 0


def test_a_deployment_and_a_job_live_on_the_agents_nodes(cluster: AgentCluster, namespace: str) -> None:
    kubectl = cluster.kubectl
    kubectl("create", "deployment", "web", "--image=busybox", "--replicas=2", "-n", namespace, "--", "sleep", "600")
    kubectl("create", "job", "once", "--image=busybox", "-n", namespace, "--", "echo", "done")
    kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=60s", timeout_s=70)
    kubectl("wait", "job/once", "--for=condition=Complete", "-n", namespace, "--timeout=60s", timeout_s=70)
    assert kubectl("logs", "job/once", "-n", namespace) == "done\n"
    addresses = kubectl("get", "pods", "-l", "app=web", "-n", namespace, "-o", "jsonpath={.items[*].status.podIP}")
    assert len(set(addresses.split())) == 2


def test_a_deleted_pod_gets_its_hook_its_signal_and_its_grace(
    cluster: AgentCluster, namespace: str, run_pod: PodRunner
) -> None:
    pod = run_pod(
        "trap 'echo term; exit 0' TERM; touch /tmp/up; while :; do sleep 0.1; done",
        pod={"terminationGracePeriodSeconds": 30},
        readinessProbe={"exec": {"command": ["test", "-f", "/tmp/up"]}, "periodSeconds": 1},
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "echo hook > /proc/1/fd/1"]}}},
    )
    pod.wait_for("it is ready", lambda: pod.container().get("ready"))
    cluster.kubectl("delete", "pod", "p", "-n", namespace, "--timeout=25s")
    log = cluster.sandbox.folder / "agent/logs"
    text = next(log.glob(f"{namespace}_p_*/main/0.log")).read_text()
    assert text == "hook\nterm\n"


def test_a_pod_that_ignores_its_signal_is_killed_after_its_grace(
    cluster: AgentCluster, namespace: str, run_pod: PodRunner
) -> None:
    # PID 1 without a handler loses SIGTERM, as in life.
    pod = run_pod("sleep 600 & wait", pod={"terminationGracePeriodSeconds": 2})
    pod.wait_for("it runs", lambda: pod.phase == "Running")
    cluster.kubectl("delete", "pod", "p", "-n", namespace, "--timeout=30s", timeout_s=40)
    events = json.loads(cluster.kubectl("get", "events", "-n", namespace, "-o", "json"))["items"]
    assert "Killing" in {event["reason"] for event in events}
