"""What goes wrong in engines on request shows where it would show in life, and ends when it is told to."""

from __future__ import annotations

import threading
import time

import pytest

from sandbox.cluster.conftest import AgentCluster, PodRunner
from sandbox.cluster.engines import CONTEXT, READY_S, Json, get, metric, run_inside, say
from sglpool.sandbox.errors import SandboxError
from support.pool_on_cluster import ClusterPool
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

# The rendered script and its settings, but for how long a person is willing to wait in a test.
IMPATIENT = """
cp -rL /etc/sglpool/launch /tmp/launch
sed -i 's/"chat_timeout_s": 30/"chat_timeout_s": 2/' /tmp/launch/config.json
python3 /tmp/launch/liveness.py
"""


def test_a_hanging_engine_stays_healthy_and_only_liveness_sees_it(
    cluster: AgentCluster, shared_pool: ClusterPool
) -> None:
    pod = shared_pool.pods()["shared-b200-0"]
    assert run_inside(pod, "python3 /etc/sglpool/launch/liveness.py").returncode == 0
    cluster.told("fault", "shared-b200-0", "--hang", "-n", shared_pool.namespace)
    try:
        # Requests hang before the scheduler, so nothing that SGLang itself looks at is wrong.
        wait_until(lambda: hangs(pod), timeout_s=10, describe="a request is not answered")
        assert get(pod, "/health")[0] == 200
        assert get(pod, "/ready")[0] == 200
        found = run_inside(pod, IMPATIENT)
        assert found.returncode == 1
        assert found.stdout.startswith("sglpool: liveness failure")
        assert "a one-token chat completion failed" in found.stdout
    finally:
        cluster.told("fault", "shared-b200-0", "--clear", "-n", shared_pool.namespace)
    wait_until(lambda: not hangs(pod), timeout_s=10, describe="requests are answered again")
    assert run_inside(pod, IMPATIENT).returncode == 0
    assert shared_pool.pods()["shared-b200-0"]["metadata"]["uid"] == pod["metadata"]["uid"]


def hangs(pod: Json) -> bool:
    """Whether a request is still unanswered after a while that is long for an engine so fast."""
    answered = threading.Event()

    def ask() -> None:
        try:
            say(pod, "hello", max_tokens=1)
        except SandboxError:
            return
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    return not answered.wait(3)


def test_a_container_whose_liveness_fails_is_restarted(run_pod: PodRunner) -> None:
    pod = run_pod(
        "touch /tmp/well; sleep 2; rm /tmp/well; sleep 600",
        pod={"terminationGracePeriodSeconds": 1},
        startupProbe={"exec": {"command": ["test", "-f", "/tmp/well"]}, "periodSeconds": 1},
        livenessProbe={
            "exec": {"command": ["sh", "-c", "test -f /tmp/well || { echo not well; exit 1; }"]},
            "periodSeconds": 1,
            "failureThreshold": 2,
        },
    )
    pod.wait_for("it was restarted", lambda: pod.container().get("restartCount", 0) >= 1)
    assert pod.container()["lastState"]["terminated"]["exitCode"] == 137, "its shell does not hear SIGTERM"
    events = pod.kubectl.json("get", "events", "-n", pod.namespace)["items"]
    messages = {event["reason"]: event["message"] for event in events}
    assert "not well" in messages["Unhealthy"]
    assert messages["Killing"] == "Container main failed liveness probe, will be restarted"


def test_a_collapsed_accept_length_shows_in_the_metrics(cluster: AgentCluster, speculative_pool: ClusterPool) -> None:
    pod = speculative_pool.pods()["speculative-b200-0"]

    def tokens_per_step() -> float:
        before = metric(pod, "sglang:generation_tokens_total"), metric(pod, "sglang:spec_verify_calls_total")
        assert say(pod, "hello", max_tokens=400, ignore_eos=True).completion_tokens == 400
        after = metric(pod, "sglang:generation_tokens_total"), metric(pod, "sglang:spec_verify_calls_total")
        return (after[0] - before[0]) / (after[1] - before[1])

    healthy = tokens_per_step()
    assert healthy > 1.5
    cluster.told("fault", "speculative-b200-0", "--accept-length", "1", "-n", speculative_pool.namespace)
    try:
        wait_until(lambda: tokens_per_step() < 1.05, timeout_s=10, describe="each step accepts one token")
    finally:
        cluster.told("fault", "speculative-b200-0", "--clear", "-n", speculative_pool.namespace)
    wait_until(lambda: tokens_per_step() > healthy * 0.9, timeout_s=10, describe="steps accept as before")


def test_a_slow_prefill_shows_in_the_time_to_the_first_token(cluster: AgentCluster, shared_pool: ClusterPool) -> None:
    pod = shared_pool.pods()["shared-b200-1"]

    def first_token_s() -> float:
        # Another beginning each time, so that nothing of it is in the cache.
        return say(pod, f"{time.monotonic_ns()}\n{CONTEXT}", max_tokens=1).first_token_s

    usual_s = first_token_s()
    cluster.told("fault", "shared-b200-1", "--prefill-slowdown", "60", "-n", shared_pool.namespace)
    try:
        wait_until(lambda: first_token_s() > usual_s + 1, timeout_s=20, describe="the prompt is read slowly")
    finally:
        cluster.told("fault", "shared-b200-1", "--clear", "-n", shared_pool.namespace)
    wait_until(lambda: first_token_s() < usual_s + 1, timeout_s=10, describe="the prompt is read as before")


def test_a_lost_gpu_and_a_full_one_end_the_engine_until_they_are_well(
    cluster: AgentCluster, shared_pool: ClusterPool
) -> None:
    faults = {"shared-b200-0": "--gpu-lost", "shared-b200-1": "--oom"}
    sentences = {"shared-b200-0": "GPU has fallen off the bus", "shared-b200-1": "CUDA out of memory"}
    before = {name: restarts(shared_pool, name) for name in faults}
    for name, flag in faults.items():
        cluster.told("fault", name, flag, "-n", shared_pool.namespace)
    try:
        for name in faults:
            wait_until(
                lambda name=name: restarts(shared_pool, name) > before[name],  # type: ignore[misc]
                timeout_s=30,
                describe=f"the container of {name} was restarted",
            )
    finally:
        for name in faults:
            cluster.told("fault", name, "--clear", "-n", shared_pool.namespace)
    for name in faults:
        (status,) = shared_pool.pods()[name]["status"]["containerStatuses"]
        last = status["lastState"]["terminated"]
        # Not OOMKilled: that is memory of the host, and the remedy another one.
        assert (last["exitCode"], last["reason"]) == (137, "Error")
        previous = cluster.kubectl("logs", name, "-n", shared_pool.namespace, "--previous")
        assert sentences[name] in previous
        assert "the server ended while serving with exit code 137" in previous
        assert previous == cluster.sglpool("logs", name, "-n", shared_pool.namespace, "--previous").stdout
    shared_pool.wait_ready(READY_S)


def restarts(pool: ClusterPool, name: str) -> int:
    count: int = pool.pods()[name]["status"]["containerStatuses"][0]["restartCount"]
    return count


def test_a_fault_needs_a_pod_and_a_name(cluster: AgentCluster, shared_pool: ClusterPool) -> None:
    assert "say which fault" in cluster.sglpool("fault", "shared-b200-0", "-n", shared_pool.namespace).stderr
    missing = cluster.sglpool("fault", "nobody", "--hang", "-n", shared_pool.namespace)
    assert (missing.returncode, 'pods "nobody" not found' in missing.stderr) == (1, True)
