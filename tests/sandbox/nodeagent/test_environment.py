"""Variables and command lines, as a kubelet would make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool.sandbox.images import Image
from sglpool.sandbox.nodeagent.contracts import StartFailed
from sglpool.sandbox.nodeagent.environment import (
    DEFAULT_PATH,
    bytes_on_pod_address,
    command_line,
    expand,
    on_pod_address,
    variables_of,
)

from .conftest import POD_IP, FakeObjects

IMAGE = Image(name="tools:1", path=Path("/images/tools"), env={"OF_IMAGE": "image"}, command=("entry", "point"))
POD: dict[str, Any] = {
    "metadata": {
        "name": "engine-0",
        "namespace": "serving",
        "uid": "u-1",
        "labels": {"app": "engine", "tier": 'a"b'},
        "annotations": {"owner": "team"},
    },
    "spec": {"nodeName": "b200-0", "serviceAccountName": "account", "containers": []},
    "status": {"hostIP": "127.9.0.1"},
}


async def variables(
    env: list[dict[str, Any]] | None = None, objects: FakeObjects | None = None, **fields: Any
) -> dict[str, str]:
    return await variables_of(
        POD,
        {"name": "main", "env": env or [], **fields},
        objects=objects or FakeObjects(),
        image=IMAGE,
        pod_ip=POD_IP,
        api_server="https://127.0.0.1:6443",
    )


async def test_every_container_has_these_and_no_others() -> None:
    assert await variables() == {
        "HOME": "/root",
        "HOSTNAME": "engine-0",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": "6443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "6443",
        "OF_IMAGE": "image",
        "PATH": f"/images/tools:{DEFAULT_PATH}",
    }


async def test_own_values_win_and_the_image_stays_first_on_the_path() -> None:
    found = await variables([{"name": "OF_IMAGE", "value": "pod"}, {"name": "PATH", "value": "/opt/bin"}])
    assert found["OF_IMAGE"] == "pod"
    assert found["PATH"] == "/images/tools:/opt/bin"


async def test_values_refer_to_earlier_variables_only() -> None:
    found = await variables(
        [
            {"name": "LATE", "value": "$(LATER)"},
            {"name": "LATER", "value": "x"},
            {"name": "URL", "value": "http://$(HOSTNAME):$(PORT)/$$(HOSTNAME)"},
            {"name": "EMPTY"},
        ]
    )
    assert found["LATE"] == "$(LATER)"
    assert found["URL"] == "http://engine-0:$(PORT)/$(HOSTNAME)"
    assert found["EMPTY"] == ""


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "engine-0"),
        ("metadata.namespace", "serving"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "engine"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['owner']", "team"),
        ("spec.nodeName", "b200-0"),
        ("spec.serviceAccountName", "account"),
        ("status.podIP", POD_IP),
        ("status.hostIP", "127.9.0.1"),
    ],
)
async def test_field_references(path: str, value: str) -> None:
    assert (await variables([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]))["X"] == value


async def test_unknown_field_is_a_configuration_error() -> None:
    with pytest.raises(StartFailed, match=r"unsupported fieldPath: spec\.colour"):
        await variables([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.colour"}}}])


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.memory", "1Mi", "1536"),
        ("limits.memory", "1Gi", "2"),
        ("limits.memory", None, str(1536 * 2**20)),
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.cpu", None, "0"),
    ],
)
async def test_resource_references_round_up(resource: str, divisor: str | None, value: str) -> None:
    reference = {"resource": resource} | ({"divisor": divisor} if divisor else {})
    found = await variables(
        [{"name": "X", "valueFrom": {"resourceFieldRef": reference}}],
        resources={"limits": {"memory": "1536Mi", "cpu": "1500m"}},
    )
    assert found["X"] == value


async def test_keys_of_config_maps_and_secrets() -> None:
    objects = FakeObjects()
    objects.config_maps["settings"] = {"level": "high", "bad key": "kept", "bind": "0.0.0.0"}
    objects.secrets["token"] = {"key": "s3cret", "bind": "0.0.0.0"}
    found = await variables(
        [
            {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}},
            {"name": "NO_KEY", "valueFrom": {"secretKeyRef": {"name": "token", "key": "none", "optional": True}}},
            {"name": "NO_MAP", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
        ],
        objects,
        envFrom=[
            {"configMapRef": {"name": "settings"}, "prefix": "C_"},
            {"secretRef": {"name": "token"}},
            {"secretRef": {"name": "none", "optional": True}},
        ],
    )
    assert found["LEVEL"] == found["C_level"] == "high"
    assert found["TOKEN"] == found["key"] == "s3cret"
    assert (found["C_bind"], found["bind"]) == (POD_IP, "0.0.0.0")
    assert not {"NO_KEY", "NO_MAP"} & set(found)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        ({"secretKeyRef": {"name": "token", "key": "k"}}, "couldn't find key k in Secret serving/token"),
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, 'configmap "none" not found'),
        ({"configMapKeyRef": {"name": "settings", "key": "k"}}, "couldn't find key k in ConfigMap serving/settings"),
    ],
)
async def test_missing_references_are_configuration_errors(source: dict[str, Any], sentence: str) -> None:
    objects = FakeObjects()
    objects.config_maps["settings"] = {}
    objects.secrets["token"] = {}
    with pytest.raises(StartFailed) as failure:
        await variables([{"name": "X", "valueFrom": source}], objects)
    assert (failure.value.reason, failure.value.message) == ("CreateContainerConfigError", sentence)


async def test_missing_source_of_all_variables_is_a_configuration_error() -> None:
    with pytest.raises(StartFailed, match='configmap "none" not found'):
        await variables(envFrom=[{"configMapRef": {"name": "none"}}])


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({}, ["entry", "point"]),
        ({"args": ["a"]}, ["entry", "point", "a"]),
        ({"command": ["c"]}, ["c"]),
        ({"command": ["c", "$(X)"], "args": ["$(NONE)", "$$(X)"]}, ["c", "value", "$(NONE)", "$(X)"]),
        ({"command": ["s", "--host", "0.0.0.0"]}, ["s", "--host", POD_IP]),
    ],
)
def test_command_line(container: dict[str, Any], words: list[str]) -> None:
    assert command_line({"name": "main", **container}, IMAGE, {"X": "value"}, POD_IP) == words


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("0.0.0.0", "127.9.8.7"),
        ("--host=0.0.0.0", "--host=127.9.8.7"),
        ("http://0.0.0.0:80/x", "http://127.9.8.7:80/x"),
        ('"0.0.0.0", 0.0.0.0', '"127.9.8.7", 127.9.8.7'),
        ("10.0.0.0", "10.0.0.0"),
        ("0.0.0.0.1", "0.0.0.0.1"),
        ("0.0.0.05", "0.0.0.05"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("v0.0.0.0", "v0.0.0.0"),
    ],
)
def test_only_the_whole_word_becomes_the_pod_address(text: str, rewritten: str) -> None:
    assert on_pod_address(text, POD_IP) == rewritten
    assert bytes_on_pod_address(text.encode(), POD_IP) == rewritten.encode()


@given(st.text(), st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), st.text(max_size=5)))
def test_escaped_text_expands_to_itself(text: str, names: dict[str, str]) -> None:
    assert expand(text.replace("$", "$$"), names) == text


@given(st.text(st.characters(exclude_characters="$")), st.text(max_size=9))
def test_known_names_are_replaced_once(before: str, value: str) -> None:
    assert expand(f"{before}$(NAME)", {"NAME": value}) == before + value
