"""What a container is told of its machine."""

from __future__ import annotations

from typing import Any

import pytest

from sglpool.sandbox.nodeagent.machines import read_machine
from sglpool.sandbox.nodes import node_manifest

GiB = 2**30


def pod(*limits: dict[str, str]) -> dict[str, Any]:
    containers = [{"name": f"c{number}", "resources": {"limits": limit}} for number, limit in enumerate(limits)]
    return {"metadata": {"namespace": "ns", "name": "p"}, "spec": {"containers": containers}}


def described(*limits: dict[str, str], node: str = "b200-0", start_speed: float | None = None) -> dict[str, object]:
    manifest = node_manifest(node, speed=20, start_speed=start_speed)
    manifest["metadata"]["uid"] = "u"
    machine = read_machine(manifest)
    assert machine
    return machine.describe(pod(*limits))


def test_a_pod_sees_the_gpus_that_it_asked_for() -> None:
    assert described({"nvidia.com/gpu": "4"}) == {
        "node": "b200-0",
        "accelerator": "NVIDIA B200",
        "gpu_type": "B200",
        "gpu_memory_mib": 183359,
        "gpus": 4,
        "memory_bytes": 2048 * GiB,
        "speed": 20.0,
        "start_speed": None,
        "pod": "ns/p",
    }
    assert described({}, node="cpu-0")["gpus"] == 0


@pytest.mark.parametrize(
    ("limits", "memory_bytes"),
    [
        # Its own limit, also beside a helper's without one.
        ([{"nvidia.com/gpu": "1", "memory": "3Gi"}], 3 * GiB),
        ([{"nvidia.com/gpu": "1", "memory": "3Gi"}, {"memory": "1Gi"}, {}], 3 * GiB),
        ([{"memory": "1Gi"}, {"memory": "2Gi"}], 3 * GiB),
        # Without one, all that the node has.
        ([{"nvidia.com/gpu": "1"}, {"memory": "1Gi"}], 2048 * GiB),
        ([{"memory": "1Gi"}, {}], 2048 * GiB),
    ],
)
def test_memory_is_the_limit_or_the_nodes(limits: list[dict[str, str]], memory_bytes: int) -> None:
    assert described(*limits)["memory_bytes"] == memory_bytes


def test_engines_may_start_at_a_speed_of_their_own() -> None:
    assert described({}, start_speed=100)["start_speed"] == 100.0


def test_a_node_of_another_keeper_is_no_machine_of_ours() -> None:
    assert read_machine(node_manifest("b200-0")) is None
