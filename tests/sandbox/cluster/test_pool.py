"""A pool whose engines run: it serves, survives what happens to engines and nodes, and says what is wrong."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import Any

import pytest

from sandbox.cluster.conftest import WARM_UP, AgentCluster
from sandbox.cluster.engines import CONTEXT, READY_S, address, engine_process, loads, say
from sglpool.sandbox.chat import Reply, Turn, stream_chat
from support.pool_on_cluster import ClusterPool, PoolMaker, is_ready
from support.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]


def test_a_pool_serves_and_the_second_turn_finds_its_cache(shared_pool: ClusterPool) -> None:
    first, second = shared_pool.pods().values()
    assert first["status"]["podIP"] != second["status"]["podIP"]
    cold = say(first, CONTEXT)
    assert cold.prompt_tokens > 20_000
    assert cold.cached_tokens == 0
    warm = say(first, CONTEXT, cold.text, "and now?")
    assert warm.cached_tokens > cold.prompt_tokens - 100
    assert say(second, CONTEXT).cached_tokens == 0
    assert "simulated" in cold.text


def test_status_says_how_much_kv_cache_an_engine_really_has(shared_pool: ClusterPool) -> None:
    def capacity() -> dict[str, Any]:
        found: dict[str, Any] = shared_pool.get()["status"]["gpus"][0]["capacity"]
        return found

    wait_until(lambda: capacity()["source"] == "Engine", timeout_s=60, describe=lambda: f"it is asked; {capacity()}")
    said = [loads(pod)["max_total_num_tokens"] for pod in shared_pool.pods().values()]
    assert capacity()["kvTokens"] == min(said)


def test_a_deleted_pod_finishes_its_stream_serves_on_and_a_new_one_takes_its_place(
    cluster: AgentCluster, shared_pool: ClusterPool
) -> None:
    pod = shared_pool.pods()["shared-b200-0"]
    replies: list[Reply] = []
    begun = threading.Event()

    def stream() -> None:
        turn = Turn(messages=[{"role": "user", "content": "count"}], max_tokens=40_000, ignore_eos=True)
        replies.append(stream_chat(address(pod), turn, on_text=lambda _: begun.set()))

    thread = threading.Thread(target=stream)
    thread.start()
    assert begun.wait(20)
    engine = engine_process(pod)
    cluster.kubectl("delete", "pod", "shared-b200-0", "-n", shared_pool.namespace, "--wait=false")
    # Between the hook, in which the router takes it out, and the end: whoever still comes is served.
    wait_until(
        lambda: "SIGTERM: the server may finish" in cluster.told("logs", "shared-b200-0", "-n", shared_pool.namespace),
        timeout_s=20,
        describe="the server was told to end",
    )
    assert thread.is_alive()
    assert say(pod, "late").completion_tokens > 0
    assert not replies, "it was served while the long stream ran"
    thread.join(120)
    assert replies
    assert replies[0].completion_tokens == 40_000
    wait_until(lambda: not engine.is_running(), timeout_s=30, describe="the old engine has ended")
    wait_until(
        lambda: shared_pool.pods().get("shared-b200-0", pod)["metadata"]["uid"] != pod["metadata"]["uid"],
        timeout_s=60,
        describe="a new pod has its name",
    )
    shared_pool.wait_ready(READY_S)


def test_an_engine_killed_by_hand_comes_back_and_the_pool_with_it(shared_pool: ClusterPool) -> None:
    before = shared_pool.pods()["shared-b200-0"]
    restarts = before["status"]["containerStatuses"][0]["restartCount"]
    engine_process(before).kill()
    wait_until(
        lambda: shared_pool.pods()["shared-b200-0"]["status"]["containerStatuses"][0]["restartCount"] == restarts + 1,
        timeout_s=30,
        describe="the container was restarted",
    )
    last = shared_pool.pods()["shared-b200-0"]["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert last["exitCode"] == 137
    shared_pool.wait_ready(READY_S)
    assert say(shared_pool.pods()["shared-b200-0"], "hello").completion_tokens > 0


def test_a_full_queue_refuses_as_sglang_does(speculative_pool: ClusterPool) -> None:
    pod = speculative_pool.pods()["speculative-b200-0"]
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
    assert is_ready(speculative_pool.pods()["speculative-b200-0"]), "a full queue is no reason to take a replica out"


def test_a_flag_that_the_engine_refuses_shows_in_the_pod_and_in_the_pool(make_pool: PoolMaker) -> None:
    # A rule between flags, which only the engine itself knows.
    pool = make_pool(replicas=1, engine={"extraArgs": ["--attn-cp-size=3"]})
    condition = pool.wait_for("Ready", reason="CrashLoop", timeout_s=60)
    assert "must be divisible by attn_dp_size" in condition["message"]
    (status,) = pool.pods()["p-b200-0"]["status"]["containerStatuses"]
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert "must be divisible by attn_dp_size" in status["lastState"]["terminated"]["message"]
    pool.apply(engine=WARM_UP)
    pool.wait_ready(READY_S)
