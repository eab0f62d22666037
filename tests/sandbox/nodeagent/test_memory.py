"""Memory limits: real processes that take too much, and those that only seem to."""

from __future__ import annotations

import asyncio

import pytest

from sglpool.sandbox.nodeagent import memory
from support.waiting import wait_until

from .conftest import Pods

LIMIT_S = 30.0
MIB = 2**20
PYTHON = "/usr/bin/python3"


async def seen_in_log(pods: Pods, text: str) -> None:
    await asyncio.to_thread(
        wait_until, lambda: text in pods.log(), timeout_s=LIMIT_S, describe=lambda: f"{text!r} in {pods.log()!r}"
    )


async def test_a_container_over_its_limit_is_killed_as_out_of_memory(pods: Pods) -> None:
    script = "import time; hoard = bytearray(96 * 2**20); time.sleep(1000)"
    container = await pods.start(PYTHON, "-c", script, resources={"limits": {"memory": "64Mi"}})
    exit_ = await asyncio.wait_for(container.wait(), LIMIT_S)
    assert (exit_.code, exit_.reason) == (137, "OOMKilled")


async def test_pages_that_processes_share_count_once(pods: Pods) -> None:
    fork = "os.fork(); os.fork(); print('ready', flush=True)"
    script = f"import os, time; hoard = bytearray(48 * 2**20); {fork}; time.sleep(1000)"
    container = await pods.start(PYTHON, "-c", script)
    await seen_in_log(pods, "ready\nready\nready\nready\n")
    namespace = memory.pid_namespace(container.pid)
    members = memory.Census().members(namespace)
    assert len(members) == 4
    assert sum(map(memory.resident_bytes, members)) > 150 * MIB
    assert not memory.Census().over_limit(namespace, 150 * MIB)
    assert memory.Census().over_limit(namespace, 40 * MIB)


async def test_a_program_started_inside_counts_too(pods: Pods) -> None:
    container = await pods.start("sleep", "1000", resources={"limits": {"memory": "64Mi"}})
    script = "import time; hoard = bytearray(96 * 2**20); time.sleep(1000)"
    task = asyncio.create_task(container.exec([PYTHON, "-c", script], timeout_s=LIMIT_S))
    exit_ = await asyncio.wait_for(container.wait(), LIMIT_S)
    assert exit_.reason == "OOMKilled"
    assert (await task).code == 137


async def test_a_log_is_limited_while_its_container_runs(pods: Pods) -> None:
    await pods.start("sh", "-c", "head -c 12000000 /dev/zero; exec sleep 1000")
    rotated = pods.runtime.log_path(pods.pod, "main", 0).with_name("0.log.1")
    await asyncio.to_thread(wait_until, rotated.exists, timeout_s=LIMIT_S, describe="the log begins again")


@pytest.mark.parametrize(
    ("resources", "limit"),
    [({}, None), ({"requests": {"memory": "1Gi"}}, None), ({"limits": {"memory": "2Mi"}}, 2 * MIB)],
)
def test_only_a_limit_limits(resources: dict[str, dict[str, str]], limit: int | None) -> None:
    assert memory.limit_bytes({"resources": resources}) == limit


def test_processes_that_are_gone_use_nothing() -> None:
    assert (memory.resident_bytes(2**22 + 1), memory.proportional_bytes(2**22 + 1)) == (0, 0)
    assert memory.pid_namespace(2**22 + 1) == ""
