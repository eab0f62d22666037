"""A pool whose engines run: it serves, survives what happens to engines and nodes, and says what is wrong."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandbox.cluster.conftest import AgentCluster
from sglpool.sandbox.chat import Reply, Turn, stream_chat
from sglpool.sandbox.nodes import start_node, stop_node
from support.pool_on_cluster import ClusterPool, PoolMaker, is_ready
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]
READY_S = 120.0
CONTEXT = "\n".join(f"line {number}: the quick brown fox jumps over the lazy dog" for number in range(2000))


def address(pod: dict[str, Any]) -> str:
    return f"{pod['status']['podIP']}:30000"


def loads(pod: dict[str, Any]) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address(pod)}/v1/loads", timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())["loads"][0]
        return found


def say(pod: dict[str, Any], *contents: str, max_tokens: int = 40) -> Reply:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return stream_chat(address(pod), Turn(messages=messages, max_tokens=max_tokens), on_text=lambda _: None)


def engine_process(pool: ClusterPool, pod: str) -> psutil.Process:
    """The server process of a pod, found by the machine folder that only it has."""
    name = f"{pool.namespace}/{pod}"
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "sglpool.sandbox.engine" in command and name in machine_of(process):
            return process
    raise AssertionError(f"pod {name} runs no engine")


def machine_of(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/root/run/sandbox/machine.json").read_text()
    except OSError:
        return ""


def test_a_pool_serves_and_the_second_turn_finds_its_cache(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=2)
    pool.wait_ready(READY_S)
    first, second = pool.pods().values()
    assert first["status"]["podIP"] != second["status"]["podIP"]
    cold = say(first, CONTEXT)
    assert cold.prompt_tokens > 20_000
    assert cold.cached_tokens == 0
    warm = say(first, CONTEXT, cold.text, "and now?")
    assert warm.cached_tokens > cold.prompt_tokens - 100
    assert say(second, CONTEXT).cached_tokens == 0
    assert "simulated" in cold.text


def test_an_engine_killed_by_hand_comes_back_and_the_pool_with_it(make_pool: PoolMaker) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready(READY_S)
    engine_process(pool, "p-b200-0").kill()
    wait_until(
        lambda: pool.pods()["p-b200-0"]["status"]["containerStatuses"][0]["restartCount"] == 1,
        timeout_s=30,
        describe="the container was restarted",
    )
    last = pool.pods()["p-b200-0"]["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert last["exitCode"] == 137
    pool.wait_ready(READY_S)
    assert say(pool.pods()["p-b200-0"], "hello").completion_tokens > 0


def test_a_deleted_pod_finishes_its_stream_and_a_new_one_takes_its_place(
    cluster: AgentCluster, make_pool: PoolMaker
) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready(READY_S)
    pod = pool.pods()["p-b200-0"]
    replies: list[Reply] = []
    begun = threading.Event()

    def stream() -> None:
        turn = Turn(messages=[{"role": "user", "content": "count"}], max_tokens=30_000, ignore_eos=True)
        replies.append(stream_chat(address(pod), turn, on_text=lambda _: begun.set()))

    thread = threading.Thread(target=stream)
    thread.start()
    assert begun.wait(20)
    cluster.kubectl("delete", "pod", "p-b200-0", "-n", pool.namespace, "--wait=false")
    thread.join(120)
    assert replies
    assert replies[0].completion_tokens == 30_000
    wait_until(
        lambda: pool.pods().get("p-b200-0", pod)["metadata"]["uid"] != pod["metadata"]["uid"],
        timeout_s=60,
        describe="a new pod has its name",
    )
    pool.wait_ready(READY_S)


def test_a_full_queue_refuses_as_sglang_does(make_pool: PoolMaker) -> None:
    pool = make_pool(
        replicas=1, engine={"maxRunningRequests": 1, "maxQueuedRequests": 1, "warmup": {"promptTokens": 2000}}
    )
    pool.wait_ready(READY_S)
    pod = pool.pods()["p-b200-0"]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 20000, "ignore_eos": True}

    def post(stream: bool) -> tuple[int, bytes]:
        request = urllib.request.Request(
            f"http://{address(pod)}/v1/chat/completions",
            json.dumps({**body, "stream": stream}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    threads = [threading.Thread(target=post, args=(False,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(
        lambda: (loads(pod)["num_running_reqs"], loads(pod)["num_waiting_reqs"]) == (1, 1),
        timeout_s=20,
        describe="one runs and one waits",
        interval_s=0.02,
    )
    status, answer = post(False)
    assert (status, json.loads(answer)["message"]) == (503, "The request queue is full.")
    status, answer = post(True)
    assert status == 200
    assert json.loads(answer.splitlines()[0].removeprefix(b"data: "))["error"]["code"] == 503
    for thread in threads:
        thread.join(120)
    assert is_ready(pool.pods()["p-b200-0"]), "a full queue is no reason to take a replica out"


def test_a_node_that_loses_power_loses_its_pods_and_the_pool_recovers(
    cluster: AgentCluster, make_pool: PoolMaker
) -> None:
    pool = make_pool(replicas=1)
    pool.wait_ready(READY_S)
    pod = pool.pods()["p-b200-0"]
    node = pod["spec"]["nodeName"]
    stop_node(cluster.sandbox.api, node)
    try:
        with pytest.raises(OSError, match=r"refused|timed out|reset"):
            wait_until(lambda: not loads(pod), timeout_s=20, describe="its engine is gone")

        def elsewhere() -> bool:
            now = pool.pods().get("p-b200-0")
            # The object stays Terminating until its node comes back or is deleted.
            return bool(now and now["metadata"].get("deletionTimestamp"))

        wait_until(elsewhere, timeout_s=60, describe="its pod is marked for deletion")
    finally:
        start_node(cluster.sandbox.api, node)
    wait_until(
        lambda: pool.pods().get("p-b200-0", pod)["metadata"]["uid"] != pod["metadata"]["uid"],
        timeout_s=60,
        describe="the node is back and lets the old pod go",
    )
    pool.wait_ready(READY_S)


def test_a_flag_that_the_engine_refuses_shows_in_the_pod_and_in_the_pool(make_pool: PoolMaker) -> None:
    # A rule between flags, which only the engine itself knows.
    pool = make_pool(replicas=1, engine={"extraArgs": ["--attn-cp-size=3"]})
    condition = pool.wait_for("Ready", reason="CrashLoop", timeout_s=60)
    assert "must be divisible by attn_dp_size" in condition["message"]
    (status,) = pool.pods()["p-b200-0"]["status"]["containerStatuses"]
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert "must be divisible by attn_dp_size" in status["lastState"]["terminated"]["message"]
    pool.apply(engine={"warmup": {"promptTokens": 2000}})
    pool.wait_ready(READY_S)
