"""A runtime with an image of nothing but the machine's own programs, and no container left afterwards."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sglpool.sandbox.images import Image, UnknownImage
from sglpool.sandbox.nodeagent.runtime import Container, Runtime

POD_IP = "127.9.8.7"


class FakeObjects:
    """ConfigMaps and Secrets by name, as the API server would return them; a token that says what it is for."""

    def __init__(self) -> None:
        self.config_maps: dict[str, dict[str, str]] = {}
        self.secrets: dict[str, dict[str, str]] = {}

    async def get_config_map(self, namespace: str, name: str) -> dict[str, Any] | None:
        data = self.config_maps.get(name)
        return None if data is None else {"kind": "ConfigMap", "data": data}

    async def get_secret(self, namespace: str, name: str) -> dict[str, Any] | None:
        data = self.secrets.get(name)
        if data is None:
            return None
        return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}

    async def token(
        self, namespace: str, service_account: str, audience: str, expiry_s: int, pod: dict[str, Any]
    ) -> str:
        return f"{namespace}/{service_account} for {audience or 'the API server'}, {expiry_s} s"


class Pods:
    """Starts containers of one pod, each run with the next attempt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = FakeObjects()
        self.runtime = Runtime(
            root,
            self.objects,
            machine=lambda pod: {"node": "n"},
            api_server="https://127.0.0.1:6443",
            images=self.image,
        )
        self.started: list[Container] = []
        self.pod: dict[str, Any] = {
            "metadata": {"name": "engine-0", "namespace": "serving", "uid": "uid-1", "labels": {"app": "engine"}},
            "spec": {"nodeName": "b200-0", "serviceAccountName": "engine", "containers": [], "volumes": []},
        }

    def image(self, reference: str) -> Image:
        if reference != "tools:1":
            raise UnknownImage(f'failed to pull and unpack image "{reference}": not found')
        folder = self.root / "image"
        folder.mkdir(exist_ok=True)
        program = folder / "from-image"
        program.write_text("#!/bin/sh\necho from the image\n")
        program.chmod(0o755)
        return Image(name=reference, path=folder, env={"OF_IMAGE": "yes"})

    async def start(self, *command: str, attempt: int | None = None, name: str = "main", **fields: Any) -> Container:
        container = {"name": name, "image": "tools:1", "command": list(command), **fields}
        await self.runtime.prepare(self.pod, POD_IP)
        number = len(self.started) if attempt is None else attempt
        started = await self.runtime.start(self.pod, container, attempt=number, pod_ip=POD_IP)
        self.started.append(started)
        return started

    async def output(self, *command: str, **fields: Any) -> str:
        """What a container prints that ends by itself."""
        exit_ = await (await self.start(*command, **fields)).wait()
        text = self.log()
        assert exit_.code == 0, text
        return text

    def log(self, name: str = "main", attempt: int | None = None) -> str:
        return self.runtime.log_path(self.pod, name, attempt).read_text()


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[Pods]:
    pods = Pods(tmp_path)
    yield pods
    for container in pods.started:
        container.kill()
        await container.wait()
