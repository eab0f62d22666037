#!/usr/bin/env python3
"""Liveness probe of the engine container: does it still do what clients want from it?

Exit 0 is alive, 1 is a failure; the kubelet restarts the container after `failures` of them in a row.

SGLang's /health answers while requests hang before the scheduler, and takes 14 s during a long prefill, so it
is not asked. A busy engine is alive while its counters move. An idle one must answer a one-token chat
completion. A full queue (503) and any 4xx are answers. State between runs lies in the run folder.

A planned stop always wins: while the draining marker exists, every run says alive.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sglpool.render.templates import diagnostics
    from sglpool.render.templates import sglpool_engine as engine
else:  # in the pod the scripts lie side by side
    import diagnostics
    import sglpool_engine as engine

# Any of these above 0 is work. A long prompt in chunked prefill is neither running nor waiting.
WORK_FIELDS = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_used_tokens",
    "num_waiting_uncached_tokens",
    "num_total_tokens",
)
# These move only when the GPU gets something done; counts of requests also move when clients come and go.
PROGRESS_FIELDS = ("num_used_tokens", "total_prefill_uncached_tokens", "total_prefill_busy_us")
PROGRESS_METRICS = ("sglang:generation_tokens_total", "sglang:realtime_tokens_total")


class State(NamedTuple):
    """What one run leaves for the next."""

    progress: dict[str, float]
    still_runs: int
    failures: int


def main() -> int:
    """Judge once; returns the exit code."""
    config = engine.load_config()
    if stopping(config):
        return 0
    before = load_state(config)
    failure, progress, still_runs = judge(config, before)
    state = State(progress, still_runs, before.failures + 1 if failure else 0)
    engine.write_file(engine.marker(config, "liveness.json"), json.dumps(state._asdict()))
    killing = engine.marker(config, "killing")
    if not failure:
        killing.unlink(missing_ok=True)
        return 0
    threshold = config["liveness"]["failures"]
    sentence = f"liveness failure {state.failures} of {threshold}: {failure}"
    # The kubelet puts this into its event.
    engine.log(sentence)
    if state.failures == threshold and not stopping(config):
        diagnostics.dump(config, f"{sentence} The engine is restarted; its last state follows.")
        # Last the marker: a planned stop that begins during the dump must find none, or it would be cut short.
        engine.write_file(killing, f"{time.time():.0f}\n")
    elif state.failures < threshold:
        diagnostics.write_log(config, [sentence])
    if stopping(config):
        killing.unlink(missing_ok=True)
        return 0
    return 1


def stopping(config: engine.Json) -> bool:
    """Whether the pod was asked to stop (by preStop or the launcher)."""
    return engine.marker(config, "draining").exists()


def load_state(config: engine.Json) -> State:
    """The state that the last run left, or that of a first run."""
    try:
        state = json.loads(engine.marker(config, "liveness.json").read_text(encoding="utf-8"))
        return State(dict(state["progress"]), int(state["still_runs"]), int(state["failures"]))
    except (OSError, ValueError, KeyError, TypeError):
        return State({}, 0, 0)


def judge(config: engine.Json, before: State) -> tuple[str | None, dict[str, float], int]:
    """The failure in words or None, the counters now, and for how many runs they stood still under work."""
    settings = config["liveness"]
    try:
        loads = engine.read_loads(config, timeout_s=settings["read_timeout_s"])
    except engine.NoAnswer:
        return ask(config, "load unknown"), before.progress, 0
    work = {field: value for field in WORK_FIELDS if (value := engine.total(loads, field)) > 0}
    progress = read_progress(config, loads, before)
    if not work:
        return ask(config, "idle"), progress, 0
    if progress != before.progress:
        return None, progress, 0
    still_runs = before.still_runs + 1
    # After a failure one still run is enough: the request that the probe itself left behind looks like work.
    if still_runs < settings["still_runs"] and before.failures == 0:
        return None, progress, still_runs
    shown = ", ".join(f"{field} {value:.0f}" for field, value in work.items())
    return f"busy ({shown}), and no counter has moved for {still_runs} runs.", progress, still_runs


def read_progress(config: engine.Json, loads: list[engine.Json], before: State) -> dict[str, float]:
    """Counters that move with work, from /v1/loads and, where they can be read, from /metrics."""
    progress = {field: engine.total(loads, field) for field in PROGRESS_FIELDS}
    try:
        answer = engine.request(config, "/metrics", timeout_s=config["liveness"]["read_timeout_s"])
        text = answer.body.decode("utf-8", "replace") if answer.status == 200 else ""
    except engine.NoAnswer:
        text = ""
    for name in PROGRESS_METRICS:
        values = [float(line.split()[-1]) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        # A metric that cannot be read now has not moved.
        progress[name] = sum(values) if values else before.progress.get(name, 0.0)
    return progress


def ask(config: engine.Json, state: str) -> str | None:
    """A one-token chat completion; None when the answer shows life."""
    try:
        answer = engine.chat(config, "ping", max_tokens=1, timeout_s=config["liveness"]["chat_timeout_s"])
    except engine.NoAnswer as error:
        return f"{state}, and a one-token chat completion failed: {error}."
    if answer.status >= 500 and answer.status != 503:
        return f"{state}, and a one-token chat completion got status {answer.status}: {answer.excerpt()}"
    return None


if __name__ == "__main__":
    sys.exit(main())
