"""Leader election between contenders on a real API server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sglpool.kube import KubeClient, LeaderLease, LeaseLost, LeaseTimes
from sglpool.kube.resources import LEASES

pytestmark = pytest.mark.controlplane

TIMES = LeaseTimes(duration_s=3, renew_deadline_s=2.0, retry_s=0.1)


@pytest.fixture
async def kube(kubeconfig: str) -> AsyncIterator[KubeClient]:
    async with KubeClient.connect(str(kubeconfig)) as client:
        yield client


def contender(kube: KubeClient, namespace: str, identity: str) -> LeaderLease:
    return LeaderLease(kube, namespace=namespace, name="sglpool", identity=identity, times=TIMES)


async def spec_of(kube: KubeClient, namespace: str) -> dict[str, object]:
    spec: dict[str, object] = (await kube.get(LEASES, namespace=namespace, name="sglpool"))["spec"]
    return spec


async def test_only_one_of_two_works_and_release_hands_over_at_once(kube, namespace):
    loop = asyncio.get_running_loop()
    spans: dict[str, list[float]] = {}
    finish = {"a": asyncio.Event(), "b": asyncio.Event()}
    started = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def operate(identity: str) -> None:
        async def work() -> None:
            spans[identity] = [loop.time()]
            started[identity].set()
            await finish[identity].wait()
            spans[identity].append(loop.time())

        await contender(kube, namespace, identity).run(work)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(operate("a"))
        await started["a"].wait()
        group.create_task(operate("b"))
        # Longer than the lease lasts: only renewal keeps `b` out.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(TIMES.duration_s + 1):
                await started["b"].wait()
        assert (await spec_of(kube, namespace))["holderIdentity"] == "a"
        finish["a"].set()
        await started["b"].wait()
        spec = await spec_of(kube, namespace)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("b", 3)
        assert spec["leaseTransitions"] == 1
        finish["b"].set()
    assert 0 <= spans["b"][0] - spans["a"][1] < 1.5
    assert not (await spec_of(kube, namespace)).get("holderIdentity")


async def test_a_crashed_holder_is_followed_after_its_lease_ran_out(kube, namespace):
    loop = asyncio.get_running_loop()
    await contender(kube, namespace, "crashed").acquire()
    begin = loop.time()
    successor = contender(kube, namespace, "successor")
    async with asyncio.timeout(20):
        await successor.acquire()
    assert TIMES.duration_s <= loop.time() - begin < TIMES.duration_s + 2
    assert successor.is_leader


async def test_losing_it_to_somebody_else_cancels_the_work_and_says_so(kube, namespace):
    working, cancelled = asyncio.Event(), []

    async def work() -> None:
        working.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    mine = contender(kube, namespace, "mine")
    running = asyncio.create_task(mine.run(work))
    async with asyncio.timeout(20):
        await working.wait()
        await kube.merge_patch(
            LEASES, namespace=namespace, name="sglpool", patch={"spec": {"holderIdentity": "usurper"}}
        )
        with pytest.raises(LeaseLost, match=f"{namespace}/sglpool was taken by usurper"):
            await running
    assert cancelled == [True]
    assert not mine.is_leader
    assert (await spec_of(kube, namespace))["holderIdentity"] == "usurper"


async def test_a_stranger_who_only_labels_the_lease_does_no_harm(kube, namespace):
    mine = contender(kube, namespace, "mine")
    await mine.acquire()
    before = (await spec_of(kube, namespace))["renewTime"]
    await kube.merge_patch(LEASES, namespace=namespace, name="sglpool", patch={"metadata": {"labels": {"seen": "yes"}}})
    with pytest.raises(TimeoutError):  # and not LeaseLost
        async with asyncio.timeout(1):
            await mine.hold()
    found = await kube.get(LEASES, namespace=namespace, name="sglpool")
    assert found["spec"]["renewTime"] > before
    assert found["metadata"]["labels"] == {"seen": "yes"}


async def test_an_error_of_the_work_comes_out_and_the_lease_is_free(kube, namespace):
    async def work() -> None:
        raise RuntimeError("the operator broke")

    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="the operator broke"):
            await contender(kube, namespace, "mine").run(work)
    assert not (await spec_of(kube, namespace)).get("holderIdentity")
