"""Simulated engines as processes of their own, without a cluster: started, asked for their figures, ended.

Their weights are a file of some bytes and their times are those of four B200s. Not here: any load.
"""

import http.client
import json
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.streams import Address, running

from sglpool.enginemodel.rates import Rates, rates_for

START_LIMIT_S = 90.0
GPUS = 4
_GPU = "B200"
_POLL_S = 0.05
_MODEL = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 262144,
}
_DRAFT = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Streams that an engine has ended, by its own clock.

    Attributes:
        requests: How many.
        s_per_token: Sum over them of the model seconds from first token to last, for each token after the first.
    """

    requests: float
    s_per_token: float

    def since(self, before: "Decoded") -> "Decoded":
        """What came after another look."""
        return Decoded(self.requests - before.requests, self.s_per_token - before.s_per_token)

    @property
    def mean_s_per_token(self) -> float:
        """Of one request."""
        return self.s_per_token / self.requests


def decoded(address: Address) -> Decoded:
    """What /metrics says of streams so far."""
    text = read(address, "/metrics").decode()
    name = "sglang:request_time_per_output_token_seconds"
    count, total = (
        sum(map(float, re.findall(rf'^{name}_{part}\{{.*is_streaming="true".*\}} (\S+)$', text, re.MULTILINE)))
        for part in ("count", "sum")
    )
    return Decoded(count, total)


def server_info(address: Address) -> dict[str, Any]:
    """The body of /server_info."""
    found: dict[str, Any] = json.loads(read(address, "/server_info"))
    return found


def lag_s(address: Address) -> float:
    """The most that an engine was late in the last seconds, by its own account, in wall seconds."""
    return float(server_info(address)["internal_states"][0]["simulation"]["lag_s"])


def read(address: Address, path: str) -> bytes:
    """GET.

    Raises:
        OSError: No answer, or one that is not 200.
    """
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise OSError(f"GET {path} at {address[0]}:{address[1]} answers {response.status}: {body[:200]!r}")
    return body


def rates(*, speculative: bool) -> Rates:
    """Rates of these engines, as far as they concern decode."""
    return rates_for(_GPU, GPUS, speculative=speculative, kv_bytes_per_token=1)


@contextmanager
def engine(folder: Path, *, streams: int, speed: float, speculative: bool) -> Iterator[tuple[Address, int]]:
    """An engine for so many streams, on its way up; yields its address and process."""
    folder.mkdir()
    machine = {"node": "bench", "accelerator": f"NVIDIA {_GPU}", "gpu_type": _GPU, "gpus": GPUS, "speed": speed}
    (folder / "machine.json").write_text(json.dumps(machine | {"gpu_memory_mib": 183359}))
    (folder / "config.json").write_text(json.dumps(_MODEL))
    header = json.dumps({"__metadata__": {"simulated_bytes": "1000000000"}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    port = free_port()
    command = [sys.executable, "-m", "sglpool.sandbox.engine", "--machine", str(folder), "--"]
    command += ["--model-path", str(folder), "--served-model-name", "m", "--port", str(port), "--tp-size", str(GPUS)]
    command += ["--load-format", "dummy", "--enable-metrics", "--page-size", "64"]
    command += ["--max-running-requests", str(streams), *(_DRAFT if speculative else ())]
    with running(command, folder / "log") as popen:
        yield ("127.0.0.1", port), popen.pid


def wait_ready(address: Address, log: Path) -> None:
    """Wait until an engine has loaded and is warm.

    Raises:
        RuntimeError: It is not in time; the text quotes its log.
    """
    _wait(lambda: bool(read(address, "/ready") or True), log)


def wait_open(address: Address, log: Path) -> None:
    """Wait until a port takes connections."""
    _wait(lambda: socket.create_connection(address, timeout=2).close() is None, log)


def _wait(holds: Callable[[], bool], log: Path) -> None:
    deadline_s = time.perf_counter() + START_LIMIT_S
    while True:
        try:
            if holds():
                return
        except OSError:
            if time.perf_counter() > deadline_s:
                raise RuntimeError(f"a server is not ready:\n{log.read_text()[-3000:]}") from None
            time.sleep(_POLL_S)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
