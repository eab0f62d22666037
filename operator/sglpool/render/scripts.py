"""The files that run inside the engine pod, as data of one ConfigMap.

`templates/` holds plain Python and shell files (standard library only), copied as they are; everything that
differs between pools is in `config.json` beside them: `EngineScriptConfig`, field by field, under the same
names. So a script can be read, linted and run without rendering anything.

Not here: the StatefulSet that mounts the files, and the engine's own arguments.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal, Self

from sglpool.render import deadlines, paths

FILE_NAMES = (
    "diagnostics.py",
    "hub_download.py",
    "launch.py",
    "liveness.py",
    "prestop.sh",
    "sglpool_engine.py",
    "warm_up.py",
    "weight_files.py",
    "weights.py",
)

CONFIG_NAME = "config.json"

LAUNCH_COMMAND = ("python3", "-u", f"{paths.SCRIPTS_DIR}/launch.py")
"""Command of the engine container. Its args are the server's whole command line: `sglang serve ...`."""

WEIGHTS_COMMAND = ("python3", "-u", f"{paths.SCRIPTS_DIR}/weights.py")
"""Command of the weights init container; it takes no args."""

LIVENESS_COMMAND = ("python3", f"{paths.SCRIPTS_DIR}/liveness.py")
"""Exec command of the liveness probe."""

STARTUP_COMMAND = ("test", "-f", paths.WARM_MARKER)
"""Exec command of the startup probe."""

PRESTOP_COMMAND = ("/bin/sh", f"{paths.SCRIPTS_DIR}/prestop.sh", str(deadlines.PRESTOP_S), paths.RUN_DIR)
"""Exec command of the preStop hook."""

COMPILE_CACHES = {
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "sglang-jit",
    "SGLANG_DG_CACHE_DIR": "deep-gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "TILELANG_CACHE_DIR": "tilelang",
}
"""Environment variable of each compiled-kernel cache and its folder; SGLANG_CACHE_DIR leaves some out."""

SourceKind = Literal["huggingFace", "persistentVolumeClaim", "hostPath", "image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """One folder of weights that must be whole before the engine loads it.

    `path` is where the engine finds it. `repo` and `revision` (a commit) are set for huggingFace, which is
    downloaded to `path`; the other kinds are only verified. `expected_bytes` is what the catalogue says,
    used for the free-space check when the hub does not say; None when unknown.
    """

    role: Literal["model", "draft"]
    kind: SourceKind
    path: str
    repo: str | None = None
    revision: str | None = None
    expected_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPolicy:
    """Limits of the weights init container: waits in seconds, tries as counts.

    `ignore` are file patterns of a repository that no engine reads (second copies of the weights).
    """

    lock_timeout_s: float = 3 * 3600
    lock_poll_s: float = 2
    report_every_s: float = 60
    download_attempts: int = 5
    backoff_s: float = 10
    ignore: tuple[str, ...] = ("original/*", "metal/*", "*.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Requests that must succeed before the replica counts as started.

    One chat completion, `prompts` distinct prompts of about `prompt_tokens` tokens, and one image when
    `image` is set. Source of 3 x 32,000: field practice; the first of each kind compiles for up to 80 s.
    """

    prompts: int = 3
    prompt_tokens: int = 32_000
    image: bool = False
    attempts: int = 3
    backoff_s: float = 5
    request_timeout_s: float = 600
    timeout_s: float = deadlines.WARM_UP_TIMEOUT_S

    def within(self, context_length_tokens: int) -> Self:
        """The same warm-up with prompts that fit the context; a word may be more than one token."""
        return replace(self, prompt_tokens=min(self.prompt_tokens, context_length_tokens // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """When the engine counts as dead; `log_path` is where the last dump goes (the container's log)."""

    still_runs: int = deadlines.LIVENESS_STILL_RUNS
    failures: int = deadlines.LIVENESS_FAILURES
    chat_timeout_s: float = deadlines.LIVENESS_CHAT_S
    read_timeout_s: float = deadlines.LIVENESS_READ_S
    dump_timeout_s: float = deadlines.LIVENESS_DUMP_S
    log_path: str = "/proc/1/fd/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineScriptConfig:
    """Everything the scripts of one pool's engine need to know; becomes `config.json`.

    `listen_host` is the engine's `--host`: 0.0.0.0 is reached as 127.0.0.1, any other address as itself.
    `drain_s` is the time between SIGTERM and the final kill, `hung_drain_s` the same for a server that
    liveness gave up. `cache_dirs` are folders that the launcher makes (see `compile_cache_env`).
    """

    served_model_name: str
    weights: tuple[WeightsSource, ...]
    port: int = 30000
    listen_host: str = "0.0.0.0"
    drain_s: float = deadlines.DRAIN_S
    hung_drain_s: float = deadlines.HUNG_DRAIN_S
    ready_timeout_s: float = deadlines.READY_TIMEOUT_S
    ready_poll_s: float = 1
    warm_up: WarmUp = WarmUp()
    liveness: Liveness = Liveness()
    weights_policy: WeightsPolicy = WeightsPolicy()
    cache_dirs: tuple[str, ...] = ()
    run_dir: str = paths.RUN_DIR


def engine_files(config: EngineScriptConfig) -> dict[str, str]:
    """Data of the launch ConfigMap: file name to content, the same for equal configurations."""
    data = _templates() | {CONFIG_NAME: json.dumps(asdict(config), indent=2, sort_keys=True) + "\n"}
    return dict(sorted(data.items()))


@cache
def _templates() -> dict[str, str]:
    """The package's files by name, read once: every render needs them."""
    folder = resources.files("sglpool.render") / "templates"
    return {name: (folder / name).read_text(encoding="utf-8") for name in FILE_NAMES}


def compile_cache_key(*, image: str, gpu_architecture: str) -> str:
    """Folder name for kernels compiled by one image for one GPU architecture.

    A digest in the image reference is used as it is; a tag is hashed with its repository, so an image that
    moves under one tag keeps its folder, where SGLang and the compilers check versions themselves.
    """
    match = re.search(r"@sha256:([0-9a-f]{64})$", image)
    digest = match.group(1) if match else hashlib.sha256(image.encode()).hexdigest()
    return f"{digest[:16]}-{gpu_architecture}"


def compile_cache_env(root: str, key: str) -> list[tuple[str, str]]:
    """Environment that puts every compiled-kernel cache under `<root>/compiled/<key>`."""
    return [(name, f"{root}/compiled/{key}/{folder}") for name, folder in COMPILE_CACHES.items()]
