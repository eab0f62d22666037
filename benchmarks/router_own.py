"""Our router as a pod runs it: Envoy with the rendered configuration, and the picker's own process.

Only what a cluster would give is replaced: the API server by a stand-in, the pod's folder by a temporary one.
Not here: the routers that it is compared with (`router_variants`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from benchmarks.router_peers import ENGINE_PORT, cores, pinned
from benchmarks.router_pods import NAMESPACE, POOL, api_server
from benchmarks.router_variants import ENVOY, Router, await_answer, await_socket, free_port, started

from sglpool.api import names
from sglpool.render.envoy import bootstrap
from sglpool.render.envoy.shape import RouterShape
from sglpool.routing.pickerconfig import AUTHZ_SOCKET, PickerConfig

# Far above what is in flight: at thousands of requests a second, those whose end is not logged yet are many.
MAX_CONCURRENT_REQUESTS = 512


@contextmanager
def own_router(folder: Path, engines: Sequence[str]) -> Iterator[Router]:
    """Picker and Envoy, both on the router's core; yields once both serve."""
    shape = _shape(folder)
    for name, text in bootstrap.files(shape).items():
        (folder / name).write_text(text)
    with api_server([engine.partition(":")[0] for engine in engines]) as url:
        config = _config(shape, folder)
        path = folder / "picker.json"
        path.write_text(config.to_json())
        command = [sys.executable, "-m", "sglpool", "picker", "--config", str(path)]
        subprocess.run(pinned(cores()[1], [*command, "--init"]), check=True, timeout=60)
        envoy_command = [str(ENVOY), *bootstrap.arguments(shape, concurrency=1), "--log-level", "warn"]
        with (
            started("picker", [*command, "--api-server", url], folder, env=_POD) as picker,
            started("envoy", envoy_command, folder) as envoy,
        ):
            yield _when_ready(folder, shape, config, picker, envoy)


_POD = {"POD_NAME": "bench-router-0", "POD_UID": "00000000-0000-4000-8000-000000000000", "POD_IP": "127.0.0.1"}


def _shape(folder: Path) -> RouterShape:
    return RouterShape(
        pool=POOL,
        max_replicas=64,
        max_concurrent_requests=MAX_CONCURRENT_REQUESTS,
        listen_host="127.0.0.1",
        http_port=free_port(),
        health_port=free_port(),
        shared_dir=str(folder),
        config_dir=str(folder),
    )


def _config(shape: RouterShape, folder: Path) -> PickerConfig:
    return PickerConfig(
        pool=POOL,
        pool_uid="0c9b7a52-0000-4000-8000-000000000000",
        namespace=NAMESPACE,
        label_selector=f"{names.LABEL_POOL}={POOL}",
        engine_port=ENGINE_PORT,
        weights={"B200": 1.0},
        max_concurrent_requests=MAX_CONCURRENT_REQUESTS,
        shared_dir=str(folder),
        listener=shape.to_json(),
        listen_host="127.0.0.1",
        state_port=free_port(),
    )


def _when_ready(
    folder: Path, shape: RouterShape, config: PickerConfig, picker: psutil.Process, envoy: psutil.Process
) -> Router:
    await_answer(f"http://127.0.0.1:{config.state_port}/healthz", picker, folder / "picker.log")
    await_answer(f"http://127.0.0.1:{shape.http_port}/v1/models", envoy, folder / "envoy.log")
    # Until then Envoy decides by itself.
    await_socket(folder / AUTHZ_SOCKET)
    state = f"http://127.0.0.1:{config.state_port}"
    return Router(f"127.0.0.1:{shape.http_port}", folder, {"picker": picker, "envoy": envoy}, state)
