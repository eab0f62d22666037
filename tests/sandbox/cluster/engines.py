"""Engines in pods, as a test handles them: requests, metrics, processes, programs run inside."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from sglpool.sandbox.chat import Reply, Turn, stream_chat

Json = dict[str, Any]
READY_S = 120.0
CONTEXT = "\n".join(f"line {number}: the quick brown fox jumps over the lazy dog" for number in range(2000))
"""A prompt of more than 20,000 tokens."""


def address(pod: Json) -> str:
    return f"{pod['status']['podIP']}:30000"


def get(pod: Json, path: str, timeout_s: float = 10) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{address(pod)}{path}", timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def loads(pod: Json) -> Json:
    found: Json = json.loads(get(pod, "/v1/loads")[1])["loads"][0]
    return found


def metric(pod: Json, name: str) -> float:
    """The sum of a metric over its labels."""
    text = get(pod, "/metrics")[1].decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def say(pod: Json, *contents: str, max_tokens: int = 40, ignore_eos: bool = False) -> Reply:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    turn = Turn(messages=messages, max_tokens=max_tokens, ignore_eos=ignore_eos)
    return stream_chat(address(pod), turn, on_text=lambda _: None)


def machine_of(process: psutil.Process) -> str:
    """What a process finds as its machine; empty outside containers."""
    try:
        return Path(f"/proc/{process.pid}/root/run/sandbox/machine.json").read_text()
    except OSError:
        return ""


def processes_of(namespace: str, pod: str = "") -> Iterator[psutil.Process]:
    """The processes in a pod's containers, found by the machine folder that only they have; PID 1 first.

    Without `pod`, those of all pods of a namespace.
    """
    wanted = f'"{namespace}/{pod}"' if pod else f'"{namespace}/'
    for process in psutil.process_iter(["cmdline"]):
        # bubblewrap itself, on its way out of the machine, has no command of the container yet.
        if wanted in machine_of(process) and not (process.info["cmdline"] or [""])[0].endswith("bwrap"):
            yield process


def engine_process(pod: Json) -> psutil.Process:
    """The server process of a pod."""
    metadata = pod["metadata"]
    for process in processes_of(metadata["namespace"], metadata["name"]):
        if "sglpool.sandbox.engine" in (process.info["cmdline"] or []):
            return process
    raise AssertionError(f"pod {metadata['namespace']}/{metadata['name']} runs no engine")


def run_inside(pod: Json, script: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    """Run a shell script beside a pod's engine, with its environment and in its namespaces."""
    process = engine_process(pod)
    variables = [f"{name}={value}" for name, value in process.environ().items()]
    enter = ["nsenter", f"--target={process.pid}", "--mount", "--pid", "--ipc", "--uts"]
    return subprocess.run(
        [*enter, "env", "-i", *variables, "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
