"""The engine pod: where it runs, what it takes, what it may, and where its weights come from."""

from __future__ import annotations

from collections import Counter

import pytest

from sglpool.api.base import Manifest
from sglpool.render import paths
from sglpool.render.quantities import binary_quantity, same_amount
from support import pools
from support.rendering import engine, environment, pod_spec, volumes

# --- Where pods go


def test_pods_go_to_nodes_of_their_type_by_exact_labels() -> None:
    affinity = pod_spec(gpu=1)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"] == [
        {
            "matchExpressions": [
                {
                    "key": "nvidia.com/gpu.product",
                    "operator": "In",
                    "values": ["NVIDIA-B300-SXM6-AC", "NVIDIA-B300-SXM6-PC"],
                }
            ]
        }
    ]


def test_replicas_that_share_a_node_are_packed_and_whole_node_replicas_are_not() -> None:
    (term,) = pod_spec()["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert "podAffinity" not in pod_spec({"tensorParallelSize": 8})["affinity"]


def test_tolerations_selectors_and_classes_of_the_user_are_added() -> None:
    spot = {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoExecute", "tolerationSeconds": 60}
    template = {
        "nodeSelector": {"rack": "7"},
        "tolerations": [spot],
        "priorityClassName": "serving",
        "imagePullSecrets": [{"name": "registry"}],
    }
    spec = pod_spec({"template": template})
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, spot]
    assert spec["nodeSelector"] == {"rack": "7"}
    assert spec["priorityClassName"] == "serving"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


# --- Resources


def test_gpus_follow_tensor_parallelism_and_memory_follows_sizing() -> None:
    pool = pools.pool()
    fit = pools.size(pool)[0].fit
    assert fit is not None
    resources = engine()["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "4"}
    assert resources["requests"]["nvidia.com/gpu"] == "4"
    assert resources["requests"]["memory"] == binary_quantity(fit.host_memory_request_bytes)


def test_resources_of_the_user_replace_ours_key_by_key() -> None:
    given = {"requests": {"cpu": 48, "rdma/ib": 4}, "limits": {"rdma/ib": 4}}
    resources = engine({"template": {"resources": given}})["resources"]
    assert resources["requests"]["cpu"] == "48"
    assert resources["requests"]["memory"] == engine()["resources"]["requests"]["memory"]
    assert resources["limits"] == {"rdma/ib": "4", "nvidia.com/gpu": "4"}


def test_a_derived_request_stays_under_the_users_limit() -> None:
    resources = engine({"template": {"resources": {"limits": {"cpu": "16"}}}})["resources"]
    assert resources["requests"]["cpu"] == "16"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0Mi"), (1, "1Mi"), (2**20, "1Mi"), (2**30, "1Gi"), (600 * 2**30 + 1, "614401Mi"), (2**40, "1Ti")],
)
def test_sizes_are_canonical_and_rounded_up(size_bytes: int, text: str) -> None:
    assert binary_quantity(size_bytes) == text


@pytest.mark.parametrize(
    ("one", "other"), [("1024Gi", "1Ti"), ("2", 2), ("2000m", "2"), ("1e3", "1k"), ("0.5", "500m"), ("1G", 10**9)]
)
def test_spellings_of_one_amount_are_one(one: str | int, other: str | int) -> None:
    assert same_amount(one) == same_amount(other)


def test_other_amounts_are_others() -> None:
    assert same_amount("1G") != same_amount("1Gi")
    assert same_amount("plenty") == "plenty"


# --- Environment and secrets


def test_each_variable_stands_once_and_the_users_value_counts() -> None:
    given = [{"name": "SGLANG_TIMEOUT_KEEP_ALIVE", "value": "900"}, {"name": "TRITON_CACHE_DIR", "value": "/tmp/t"}]
    container = engine({"engine": {"env": given}})
    assert max(Counter(variable["name"] for variable in container["env"]).values()) == 1
    assert environment(container)["SGLANG_TIMEOUT_KEEP_ALIVE"]["value"] == "900"
    assert environment(container)["TRITON_CACHE_DIR"]["value"] == "/tmp/t"


def test_engines_fetch_nothing_from_outside() -> None:
    variables = environment(engine())
    assert variables["HF_HUB_OFFLINE"]["value"] == "1"
    assert variables["SGLANG_VLM_MEDIA_URL_FETCH_ENABLED"]["value"] == "false"
    assert variables["SGLANG_OPENAI_MEDIA_URL_FETCH_ENABLED"]["value"] == "false"


def test_only_the_download_gets_the_token_and_proxies_reach_it() -> None:
    changes = {
        "model": {"source": {"huggingFace": {"tokenSecret": {"name": "hub", "key": "token"}}}},
        "engine": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}, {"name": "HF_HUB_OFFLINE"}]},
    }
    spec = pod_spec(changes)
    download, serving = environment(spec["initContainers"][0]), environment(spec["containers"][0])
    assert download["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert download.keys() == {"HF_TOKEN", "HTTPS_PROXY"}
    assert "HF_TOKEN" not in serving


def test_compiled_kernels_are_kept_per_image_and_architecture() -> None:
    folders = {
        environment(engine(changes, gpu=gpu))["SGLANG_CACHE_DIR"]["value"]
        for changes in ({}, {"engine": {"image": "example/sglang:other"}})
        for gpu in (0, 1)
    }
    assert len(folders) == 4
    assert all(folder.startswith(paths.CACHE_DIR) for folder in folders)


# --- Security


def test_containers_have_no_privilege_beyond_what_the_user_adds() -> None:
    security = {"runAsUser": 1000, "runAsNonRoot": True, "capabilities": {"add": ["SYS_NICE"]}}
    spec = pod_spec({"template": {"securityContext": security}})
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    weights, serving = spec["initContainers"][0]["securityContext"], spec["containers"][0]["securityContext"]
    assert weights["capabilities"] == {"drop": ["ALL"]}
    assert serving["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}
    for context in (weights, serving):
        assert context["allowPrivilegeEscalation"] is False
        assert context["runAsUser"] == 1000
        assert context["runAsNonRoot"] is True


# --- Where weights come from


CLAIM = {"model": {"source": {"huggingFace": None, "persistentVolumeClaim": {"claimName": "w", "subPath": "a/b"}}}}
FOLDER = {"model": {"source": {"huggingFace": None, "hostPath": {"path": "/mnt/m"}}}}
IMAGE = {"model": {"source": {"huggingFace": None, "image": {"reference": "example/m:1", "path": "m"}}}}
ALONE = {"speculative": None}


@pytest.mark.parametrize(
    ("source", "model_path", "model_volume", "cache"),
    [
        ({}, f"{paths.CACHE_DIR}/models/nvidia/Kimi-K2.6-NVFP4/{pools.COMMIT}", None, "hostPath"),
        (CLAIM, "/models/model/a/b", {"persistentVolumeClaim": {"claimName": "w", "readOnly": True}}, "emptyDir"),
        (FOLDER, "/models/model", {"hostPath": {"path": "/mnt/m", "type": "Directory"}}, "hostPath"),
        (IMAGE, "/models/model/m", {"image": {"reference": "example/m:1"}}, "emptyDir"),
    ],
    ids=["huggingFace", "persistentVolumeClaim", "hostPath", "image"],
)
def test_the_engine_finds_its_weights(
    source: pools.Json, model_path: str, model_volume: Manifest | None, cache: str
) -> None:
    container, present = engine(source | ALONE), volumes(source | ALONE)
    assert container["args"][3] == model_path
    assert present.get("model", {"name": "model"}) == {"name": "model", **(model_volume or {})}
    assert cache in present["cache"]
    for mount in container["volumeMounts"]:
        assert mount["name"] in present
        if mount["name"] == "model":
            assert mount["readOnly"] is True


def test_a_draft_on_a_claim_and_a_model_on_another_have_their_own_places() -> None:
    draft = {"draftModel": {"source": {"huggingFace": None, "persistentVolumeClaim": {"claimName": "d"}}}}
    changes = CLAIM | {"speculative": draft}
    assert volumes(changes)["draft"]["persistentVolumeClaim"]["claimName"] == "d"
    assert volumes(changes)["model"]["persistentVolumeClaim"]["claimName"] == "w"
    paths_ = [mount["mountPath"] for mount in engine(changes)["volumeMounts"]]
    assert len(paths_) == len(set(paths_))


def test_claims_and_images_need_nothing_of_the_node() -> None:
    for source in (CLAIM, IMAGE):
        assert not [v for v in volumes(source | ALONE).values() if "hostPath" in v]


def test_a_chosen_cache_is_used() -> None:
    cache = {"emptyDir": {"sizeLimit": "900G"}}
    assert volumes({"model": {"source": {"cache": cache}}})["cache"]["emptyDir"] == {"sizeLimit": "858307Mi"}


def test_lists_that_the_api_server_merges_by_key_have_unique_keys() -> None:
    for changes in ({}, CLAIM | ALONE, {"tensorParallelSize": 8}):
        spec = pod_spec(changes)
        mounts = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
        volume_names = [volume["name"] for volume in spec["volumes"]]
        assert len(mounts) == len(set(mounts))
        assert len(volume_names) == len(set(volume_names))
