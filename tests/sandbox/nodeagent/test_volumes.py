"""Volumes as folders: their content, their modes, their refusals."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool.sandbox.errors import SandboxError
from sglpool.sandbox.nodeagent.contracts import StartFailed, VolumeFailed
from sglpool.sandbox.nodeagent.files import Folders, ProjectedFile, write_volume
from sglpool.sandbox.nodeagent.volumes import Mount, Volumes

from .conftest import POD_IP, FakeObjects


@pytest.fixture
def objects() -> FakeObjects:
    objects = FakeObjects()
    objects.config_maps["settings"] = {"a.conf": "listen 0.0.0.0:80", "b.conf": "b"}
    objects.secrets["token"] = {"key": "0.0.0.0", "other": "o"}
    return objects


class Given:
    """A pod with one volume."""

    def __init__(self, root: Path, objects: FakeObjects) -> None:
        self.folders = Folders(root)
        self.volumes = Volumes(self.folders, objects)

    def pod(self, **source: Any) -> dict[str, Any]:
        return {
            "metadata": {"name": "p", "namespace": "serving", "uid": "u", "labels": {"b": "2", "a": 'x"y'}},
            "spec": {
                "nodeName": "node-1",
                "serviceAccountName": "account",
                "containers": [{"name": "main", "resources": {"limits": {"memory": "64Mi"}}}],
                "volumes": [{"name": "v", **source}],
            },
        }

    async def files(self, **source: Any) -> dict[str, str]:
        """Visible files of the volume, by name."""
        pod = self.pod(**source)
        await self.volumes.provide(pod, POD_IP)
        return visible(self.folders.volume(pod, "v"))

    def mounts(self, mount: dict[str, Any], **source: Any) -> list[Mount]:
        container = {"name": "main", "volumeMounts": [{"name": "v", **mount}]}
        found = self.volumes.mounts(self.pod(**source), container, {"NAME": "sub"})
        return [mount for mount in found if mount.target != "/dev/shm"]


@pytest.fixture
def given_pod(tmp_path: Path, objects: FakeObjects) -> Given:
    return Given(tmp_path, objects)


def visible(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for top in folder.iterdir()
        if not top.name.startswith("..")
        for path in ([top] if top.is_file() else [file for file in top.rglob("*") if file.is_file()])
    }


async def test_config_map_speaks_of_the_pod_address_and_a_secret_stays_as_it_is(given_pod: Given) -> None:
    assert await given_pod.files(configMap={"name": "settings"}) == {"a.conf": f"listen {POD_IP}:80", "b.conf": "b"}
    assert await given_pod.files(secret={"secretName": "token"}) == {"key": "0.0.0.0", "other": "o"}


async def test_chosen_keys_have_their_paths_and_modes(given_pod: Given) -> None:
    items = [{"key": "a.conf", "path": "deep/er/x", "mode": 0o400}, {"key": "b.conf", "path": "y"}]
    pod = given_pod.pod(configMap={"name": "settings", "items": items, "defaultMode": 0o640})
    await given_pod.volumes.provide(pod, POD_IP)
    folder = given_pod.folders.volume(pod, "v")
    assert set(visible(folder)) == {"deep/er/x", "y"}
    assert stat.S_IMODE((folder / "deep/er/x").stat().st_mode) == 0o400
    assert stat.S_IMODE((folder / "y").stat().st_mode) == 0o640


async def test_projected_volume_joins_its_sources(given_pod: Given) -> None:
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600, "audience": "vault"}},
        {"configMap": {"name": "settings", "items": [{"key": "b.conf", "path": "b"}]}},
        {"secret": {"name": "token", "items": [{"key": "other", "path": "s"}]}},
        {
            "downwardAPI": {
                "items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {
                        "path": "memory",
                        "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"},
                    },
                ]
            }
        },
        {"configMap": {"name": "none", "optional": True}},
    ]
    assert await given_pod.files(projected={"sources": sources}) == {
        "token": "serving/account for vault, 600 s",
        "b": "b",
        "s": "o",
        "labels": 'a="x\\"y"\nb="2"',
        "memory": "64",
    }


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        (
            {"configMap": {"name": "settings", "items": [{"key": "k", "path": "p"}]}},
            "references non-existent config key: k",
        ),
        (
            {"secret": {"secretName": "token", "items": [{"key": "k", "path": "p"}]}},
            "references non-existent secret key: k",
        ),
        (
            {"hostPath": {"path": "/no/such", "type": "Directory"}},
            "hostPath type check failed: /no/such is not a directory",
        ),
        ({"hostPath": {"path": "/no/such", "type": "File"}}, "hostPath type check failed: /no/such is not a file"),
        ({"nfs": {"server": "s", "path": "/"}}, "volumes of kind nfs are not supported by the sandbox"),
    ],
)
async def test_refusals_are_those_of_a_kubelet(given_pod: Given, source: dict[str, Any], sentence: str) -> None:
    with pytest.raises(VolumeFailed) as failure:
        await given_pod.files(**source)
    assert str(failure.value) == f'MountVolume.SetUp failed for volume "v" : {sentence}'


async def test_what_is_optional_may_be_missing(given_pod: Given) -> None:
    assert await given_pod.files(configMap={"name": "none", "optional": True}) == {}
    items = [{"key": "k", "path": "p"}, {"key": "b.conf", "path": "b"}]
    assert await given_pod.files(configMap={"name": "settings", "items": items, "optional": True}) == {"b": "b"}


async def test_an_api_server_that_is_away_is_a_failed_mount(given_pod: Given, objects: FakeObjects) -> None:
    async def away(namespace: str, name: str) -> dict[str, Any] | None:
        raise SandboxError("https://127.0.0.1:1 does not answer")

    objects.get_config_map = away  # type: ignore[method-assign]
    with pytest.raises(VolumeFailed, match=r'volume "v" : https://127\.0\.0\.1:1 does not answer'):
        await given_pod.files(configMap={"name": "settings"})


async def test_host_paths_lie_in_the_root_of_their_node(given_pod: Given, tmp_path: Path) -> None:
    made = {"path": "/var/lib/models", "type": "DirectoryOrCreate"}
    await given_pod.volumes.provide(given_pod.pod(hostPath=made), POD_IP)
    folder = tmp_path / "agent/nodes/node-1/root/var/lib/models"
    assert folder.is_dir()
    assert given_pod.mounts({"mountPath": "/models"}, hostPath=made) == [Mount("/models", folder)]
    # It is there now, so the strict type is content too.
    await given_pod.volumes.provide(given_pod.pod(hostPath=made | {"type": "Directory"}), POD_IP)
    escaping = {"path": "/../../../etc", "type": "DirectoryOrCreate"}
    assert (
        given_pod.mounts({"mountPath": "/x"}, hostPath=escaping)[0].source == tmp_path / "agent/nodes/node-1/root/etc"
    )


async def test_a_claim_belongs_to_no_pod(given_pod: Given, tmp_path: Path) -> None:
    claim = {"claimName": "cache"}
    await given_pod.volumes.provide(given_pod.pod(persistentVolumeClaim=claim), POD_IP)
    assert given_pod.mounts({"mountPath": "/c"}, persistentVolumeClaim=claim) == [
        Mount("/c", tmp_path / "agent/claims/serving/cache")
    ]


async def test_memory_at_the_place_of_shared_memory_has_its_size(given_pod: Given) -> None:
    pod = given_pod.pod(emptyDir={"medium": "Memory", "sizeLimit": "16Mi"})
    container = {"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/dev/shm"}]}
    assert given_pod.volumes.mounts(pod, container, {}) == [Mount("/dev/shm", None, 16 * 2**20)]


async def test_sub_paths_are_made_and_may_come_from_variables(given_pod: Given) -> None:
    await given_pod.files(emptyDir={})
    mount = given_pod.mounts({"mountPath": "/a", "subPathExpr": "of/$(NAME)"}, emptyDir={})[0]
    assert mount.source is not None
    assert mount.source.is_dir()
    assert mount.source.parts[-3:] == ("v", "of", "sub")


@pytest.mark.parametrize("sub_path", ["../x", "a/../../x", "/etc", "link/x"])
async def test_sub_paths_stay_inside_their_volume(given_pod: Given, tmp_path: Path, sub_path: str) -> None:
    pod = given_pod.pod(emptyDir={})
    await given_pod.volumes.provide(pod, POD_IP)
    (given_pod.folders.volume(pod, "v") / "link").symlink_to(tmp_path)
    with pytest.raises(StartFailed, match="leaves its volume"):
        given_pod.mounts({"mountPath": "/a", "subPath": sub_path}, emptyDir={})


async def test_outer_mounts_come_first(given_pod: Given) -> None:
    await given_pod.files(emptyDir={})
    container = {
        "name": "main",
        "volumeMounts": [{"name": "v", "mountPath": "/a/b/c"}, {"name": "v", "mountPath": "/a"}],
    }
    targets = [mount.target for mount in given_pod.volumes.mounts(given_pod.pod(emptyDir={}), container, {})]
    assert targets.index("/a") < targets.index("/a/b/c")


def test_a_mount_of_no_volume_is_a_configuration_error(given_pod: Given) -> None:
    container = {"name": "main", "volumeMounts": [{"name": "other", "mountPath": "/a"}]}
    with pytest.raises(StartFailed, match="the pod has no volume 'other'"):
        given_pod.volumes.mounts(given_pod.pod(emptyDir={}), container, {})


CONTENTS = st.dictionaries(
    st.from_regex(r"[a-c]{1,2}(/[a-c])?", fullmatch=True), st.binary(max_size=4).map(ProjectedFile), max_size=4
).filter(lambda files: not any(f"{one}/" in other for one in files for other in files if one != other))


@given(st.lists(CONTENTS, min_size=1, max_size=4))
def test_a_projected_volume_always_holds_exactly_the_newest_files(
    tmp_path_factory: pytest.TempPathFactory, versions: list[dict[str, ProjectedFile]]
) -> None:
    folder = tmp_path_factory.mktemp("volume")
    for files in versions:
        write_volume(folder, files)
        found = {
            os.path.relpath(Path(parent, name), folder): Path(parent, name).read_bytes()
            for top in folder.iterdir()
            if not top.name.startswith("..")
            for parent, _, names in ([(folder, [], [top.name])] if top.is_file() else os.walk(top, followlinks=True))
            for name in names
        }
        assert found == {name: file.content for name, file in files.items()}
        # The data of older versions does not pile up.
        assert len(list(folder.glob("..*"))) == 2
