"""Which edits restart pods, told by the spec hash; and that an upgrade does not."""

from __future__ import annotations

import pytest

from sglpool import render
from support import pools


def spec_hash(changes: pools.Json | None = None, *, gpu: int = 0) -> str:
    pool = pools.pool(changes)
    return render.spec_hash(pool, pools.size(pool)[gpu])


BASE: pools.Json = {
    "engine": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
    "template": {
        "labels": {"a": "1", "b": "2"},
        "tolerations": [{"key": "x", "operator": "Exists"}, {"key": "y", "operator": "Exists"}],
        "resources": {"requests": {"memory": "1024Gi", "cpu": "64"}},
    },
}


def with_base(**changes: pools.Json) -> pools.Json:
    return BASE | {key: BASE.get(key, {}) | value for key, value in changes.items()}


EQUIVALENT = {
    "another spelling of an amount": with_base(
        template={"resources": {"requests": {"memory": "1Ti", "cpu": "64000m"}}}
    ),
    "a number instead of a text": with_base(template={"resources": {"requests": {"memory": "1Ti", "cpu": 64}}}),
    "labels in another order": with_base(template={"labels": {"b": "2", "a": "1"}}),
    "variables in another order": with_base(engine={"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}),
    "tolerations in another order": with_base(
        template={"tolerations": [{"key": "y", "operator": "Exists"}, {"key": "x", "operator": "Exists"}]}
    ),
    "defaults written out": BASE
    | {
        "kvCache": {"dtype": "fp8_e4m3", "hiCache": {"size": "480G", "writePolicy": "WriteThrough"}},
        "engine": BASE["engine"] | {"maxQueuedRequests": 64, "extraArgs": [], "warmup": {"prompts": 3}},
    },
    "empty maps": with_base(
        template={"nodeSelector": {}, "annotations": {}, "securityContext": {"capabilities": {"add": []}}}
    ),
    "another spelling of the cache size": BASE | {"kvCache": {"hiCache": {"size": 480_000_000_000}}},
}

NEVER = {
    "targets": {"gpus": [{"type": "B200", "targetRunningRequests": 2}, {"type": "B300"}]},
    "bounds": {"gpus": [{"type": "B200", "minReplicas": 1, "maxReplicas": 9}, {"type": "B300"}]},
    "another type's settings": {"gpus": [{"type": "B200"}, {"type": "B300", "memFractionStaticPercent": 80}]},
    "another type removed": {"gpus": [{"type": "B200"}]},
    "load": {"load": {"tokensPerRequest": 50_000}},
    "replicas": {"replicas": 5},
    "autoscaling": {"replicas": None, "autoscaling": {"maxReplicas": 4}},
    "rollout": {"rollout": {"drainTimeout": "5m", "maxUnavailable": 2}},
    "router": {"router": {"replicas": 3}},
    "the start-up timeout": {"engine": {"startupTimeout": "3h"}},
}

ALWAYS = {
    "another commit": {"model": {"source": {"huggingFace": {"revision": "f" * 40}}}},
    "another cache": {"model": {"source": {"cache": {"hostPath": "/nvme"}}}},
    "an emptyDir cache": {"model": {"source": {"cache": {"emptyDir": {}}}}},
    "context length": {"model": {"contextLength": 131_072}},
    "tensor parallelism": {"tensorParallelSize": 8},
    "KV dtype": {"kvCache": {"dtype": "bf16"}},
    "host cache": {"kvCache": {"hiCache": {"size": "500G"}}},
    "automatic host cache": {"kvCache": {"hiCache": {"size": "Auto"}}},
    "no host cache": {"kvCache": {"hiCache": None}},
    "no speculation": {"speculative": None},
    "draft tokens": {"speculative": {"draftTokens": 4}},
    "image": {"engine": {"image": "example/sglang:next"}},
    "arguments": {"engine": {"extraArgs": ["--decode-log-interval", "10"]}},
    "a variable": {"engine": {"env": [{"name": "A", "value": "2"}]}},
    "warm-up": {"engine": {"warmup": {"prompts": 5}}},
    "no warm-up image": {"engine": {"warmup": {"image": False}}},
    "memory fraction": {"gpus": [{"type": "B200", "memFractionStaticPercent": 91}, {"type": "B300"}]},
    "a label": {"template": {"labels": {"team": "coding"}}},
    "resources": {"template": {"resources": {"requests": {"cpu": 65}}}},
    "a toleration": {"template": {"tolerations": [{"key": "spot", "operator": "Exists"}]}},
}


@pytest.mark.parametrize("changes", EQUIVALENT.values(), ids=EQUIVALENT)
def test_equivalent_edits_restart_nothing(changes: pools.Json) -> None:
    assert spec_hash(changes) == spec_hash(BASE)


@pytest.mark.parametrize("changes", NEVER.values(), ids=NEVER)
def test_edits_beside_the_pods_restart_nothing(changes: pools.Json) -> None:
    assert spec_hash(changes) == spec_hash()


def test_edits_of_the_pods_each_give_a_revision_of_their_own() -> None:
    hashes = [spec_hash(), *(spec_hash(changes) for changes in ALWAYS.values())]
    assert len(set(hashes)) == len(hashes)


def test_types_have_hashes_of_their_own() -> None:
    assert spec_hash(gpu=0) != spec_hash(gpu=1)


def test_the_resolution_of_auto_does_not_count() -> None:
    pool = pools.pool({"kvCache": {"hiCache": {"size": "Auto"}}})
    free, pinned = pools.size(pool)[0], pools.size(pool, hicache_bytes={"B200": 300 * 10**9})[0]
    assert free.fit != pinned.fit
    assert render.spec_hash(pool, free) == render.spec_hash(pool, pinned)


def test_an_unknown_profile_still_has_a_hash() -> None:
    changes = {"model": {"profile": "kimi-k9"}}
    assert spec_hash(changes) not in {spec_hash(), ""}


def test_the_promise_to_those_who_upgrade() -> None:
    # If this fails, the next release restarts every model in every cluster. It holds for the life of v1alpha1.
    assert spec_hash({"engine": {"image": "lmsysorg/sglang:v0.5.23"}}) == "c04b16a1a3"


def test_children_hashes_see_every_change_and_no_order() -> None:
    children = render.shared_children(pools.pool())
    assert render.children_hash(children) == render.children_hash(reversed(children))
    other = render.shared_children(pools.pool({"template": {"serviceAccountName": "serving"}}))
    assert render.children_hash(children) != render.children_hash(other)
