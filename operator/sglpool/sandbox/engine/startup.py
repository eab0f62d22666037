"""The start of a simulated engine: from its command line to a loaded engine, in model time, with SGLang's log lines.

No port is open and no signal handler is set before the load is done, as in SGLang: SIGTERM ends the process by its
default action, and PID 1 of a container does not even notice it. Not here: serving (`server`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sglpool.enginemodel.config import EngineConfig
from sglpool.enginemodel.rates import Rates, rates_for
from sglpool.sandbox.engine import argv
from sglpool.sandbox.engine.capacity import RankDied, graph_requests, has_prefill_graphs, plan_capacity, token_bytes
from sglpool.sandbox.engine.machine import Faults, FaultsFile, Machine
from sglpool.sandbox.engine.modelfiles import ConfigError, Weights, WeightsError, read_weights
from sglpool.sandbox.engine.rules import Resolved, RuleError, is_blackwell, resolve
from sglpool.sandbox.engine.spec import VERSION, Capacity, Spec, StartupTimes

#: Faults are looked for this often while something takes time.
FAULT_POLL_S = 0.1

#: Of the overhead of a start, what CUDA graphs take: read, 85 to 96 s with decode graphs and 50 to 60 s without.
_GRAPH_SHARE = 0.4
_KV_ALLOCATION_S = 1.0
#: Estimate: a host pool is touched page by page and pinned.
_PINNED_BYTES_PER_S = 8e9
#: Progress lines of a load; a real one writes a line for each file.
_PROGRESS_LINES = 10


class Died(Exception):
    """The engine must end the way SGLang's main process does when a rank is gone; everything is logged."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    weights: Weights
    draft: Weights | None

    @property
    def total_bytes(self) -> int:
        return self.weights.checkpoint_bytes + (self.draft.checkpoint_bytes if self.draft else 0)


class Console:
    """Log lines in SGLang's format, on stderr like its own."""

    def line(self, text: str, *, rank: int | None = None) -> None:
        """Write one line of a process: the main one, or a rank."""
        where = "" if rank is None else f" TP{rank}"
        self.raw(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{where}] {text}")

    @staticmethod
    def raw(text: str) -> None:
        """Write text as it is."""
        print(text, file=sys.stderr, flush=True)

    def rank_died(self, kind: str, message: str, *, rank: int = 0) -> None:
        """Write what a dying rank and its parent write."""
        self.line(f"Scheduler hit an exception: Traceback (most recent call last):\n{kind}: {message}\n", rank=rank)
        self.line("Received sigquit from a child process. It usually means the child failed.")


def rank_failure(faults: Faults) -> tuple[str, str]:
    """Exception and message of a rank that ends by a fault of the machine."""
    if faults.gpu_lost:
        return (
            "torch.AcceleratorError",
            "CUDA error: unspecified launch failure (NVRM: Xid 79, GPU has fallen off the bus)",
        )
    if faults.crash == "oom":
        return "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.21 GiB free."
    return "RuntimeError", f"injected fault: {faults.crash}"


def start(words: Sequence[str], machine: Machine, *, prog: str = argv.SERVE_PROG) -> Spec:
    """Parse, resolve, and load, taking the time that it takes.

    Args:
        words: the engine's arguments.
        machine: where it runs.
        prog: the program's name in messages and in /server_info.

    Raises:
        SystemExit: the command line is refused (2), or cannot be resolved (1).
        Died: a rank has ended.
    """
    started_at_s = time.time()
    console = Console()
    args = argv.parse(words, prog)
    start = f", its start {machine.start_speed:g} x" if machine.start_speed is not None else ""
    console.raw(
        f"sglpool: this is a simulated SGLang {VERSION}: no GPU, no model, times {machine.speed:g} x life{start}."
    )
    try:
        resolved = resolve(args, machine)
    except (RuleError, ConfigError) as error:
        _refuse(console, error.kind, str(error))
    for warning in resolved.warnings:
        console.line(f"WARNING: {warning}")
    console.line(f"server_args={_server_args(resolved.args)}")
    return _Start(resolved, machine, console).run(launch_command=" ".join((prog, *words)), started_at_s=started_at_s)


def _refuse(console: Console, kind: str, message: str) -> NoReturn:
    console.raw(f"Traceback (most recent call last):\n{kind}: {message}")
    raise SystemExit(1)


def _server_args(args: dict[str, Any]) -> str:
    """What is set, in SGLang's form; keys are left out."""
    hidden = {name: "******" for name in ("api_key", "admin_api_key") if args[name] is not None}
    shown = {name: value for name, value in {**args, **hidden}.items() if value not in (None, False, [])}
    return f"ServerArgs({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class _Start:
    """One start, phase by phase."""

    def __init__(self, resolved: Resolved, machine: Machine, console: Console) -> None:
        self._resolved = resolved
        self._args = resolved.args
        self._machine = machine
        self._console = console
        self._faults = FaultsFile(machine)
        self._rates = engine_rates(resolved, machine)

    def run(self, *, launch_command: str, started_at_s: float) -> Spec:
        """Take every phase; returns the engine, ready to open its port."""
        overhead_s = self._rates.start_overhead_s
        graph_s = self._graph_s()
        process_s = overhead_s - overhead_s * _GRAPH_SHARE
        self._line("Init torch distributed begin.")
        self._sleep(process_s)
        self._line("Init torch distributed ends.")
        loaded, capacity, died = self._plan()
        if died is not None and died.phase == "init":
            self._die(died)
        load_s = self._load(loaded, capacity, died)
        kv_s = self._allocate(capacity, died)
        if capacity is None or died is not None:
            self._sleep(graph_s)
            self._die(died)
        self._capture(capacity, graph_s)
        times = StartupTimes(
            process_s=process_s, load_weight_s=load_s, kv_cache_allocation_s=kv_s, cuda_graph_s=graph_s
        )
        self._report(capacity)
        return self._spec(capacity, times, launch_command=launch_command, started_at_s=started_at_s)

    def _plan(self) -> tuple[_Loaded, Capacity | None, RankDied | None]:
        """Weights and capacity, or what will go wrong and when."""
        empty = Weights(files=0, checkpoint_bytes=0, replicated_bytes=0, simulated=False)
        try:
            weights = read_weights(self._resolved.model.folder)
            draft = read_weights(self._resolved.draft.folder) if self._resolved.draft else None
        except WeightsError as error:
            return _Loaded(empty, None), None, RankDied(error.kind, str(error), phase="init")
        loaded = _Loaded(weights, draft)
        try:
            return loaded, plan_capacity(self._resolved, self._machine, weights, draft), None
        except RankDied as error:
            return loaded, None, error

    def _load(self, loaded: _Loaded, capacity: Capacity | None, died: RankDied | None) -> float:
        load_s = 0.0 if self._dummy() else loaded.total_bytes / self._rates.weight_load_bytes_per_s
        # Memory that ends within the load is full after a part of it; which part nobody can tell apart.
        share = 0.5 if died is not None and died.phase == "load" else 1.0
        free = f" avail mem={capacity.startup_available_gpu_memory_gb:.2f} GB" if capacity else ""
        self._line(f"Load weight begin.{free}")
        for step in range(1, _PROGRESS_LINES + 1):
            self._sleep(load_s * share / _PROGRESS_LINES)
            done = loaded.weights.files * step * share / _PROGRESS_LINES
            percent = 100 * step * share / _PROGRESS_LINES
            self._console.raw(
                f"Loading safetensors checkpoint shards: {percent:3.0f}% Completed | {done:.0f}/{loaded.weights.files}"
            )
        if share < 1:
            self._die(died)
        mem = f", mem usage={capacity.weight_gb:.2f} GB" if capacity else ""
        self._line(f"Load weight end. elapsed={load_s:.2f} s, type={self._resolved.model.architecture}{mem}.")
        return load_s

    def _dummy(self) -> bool:
        return bool(self._args["load_format"] == "dummy")

    def _allocate(self, capacity: Capacity | None, died: RankDied | None) -> float:
        if died is not None and died.phase == "pool":
            self._sleep(_KV_ALLOCATION_S)
            self._die(died)
        if capacity is None:
            return _KV_ALLOCATION_S
        dtype = "torch.bfloat16" if self._args["kv_cache_dtype"] == "bf16" else f"torch.{self._args['kv_cache_dtype']}"
        self._line(
            f"KV Cache is allocated. dtype: {dtype}, #tokens: {capacity.token_capacity}, "
            f"KV size: {capacity.kv_cache_gb:.2f} GB"
        )
        kv_s = _KV_ALLOCATION_S
        if capacity.host_tokens:
            self._line(
                f"Allocating kv hierarchical KV host pool: {capacity.host_tokens} tokens, "
                f"{capacity.host_gb:.2f} GB host memory"
            )
            kv_s += capacity.host_tokens * capacity.pool_bytes_per_token / _PINNED_BYTES_PER_S
        self._sleep(kv_s)
        return kv_s

    def _graph_s(self) -> float:
        """All of the graphs' time as soon as there are any; how many sizes hardly matters beside the first."""
        with_graphs = graph_requests(self._args, self._machine, 1) or has_prefill_graphs(self._args)
        return self._rates.start_overhead_s * _GRAPH_SHARE if with_graphs else 0.0

    def _capture(self, capacity: Capacity, graph_s: float) -> None:
        if not capacity.graph_gb:
            return
        self._line("Capture cuda graph begin. This can take up to several minutes.")
        self._sleep(graph_s)
        self._line(
            f"Capture cuda graph end. Time elapsed: {graph_s:.2f} s. mem usage={capacity.graph_gb:.2f} GB. "
            f"avail mem={capacity.available_gpu_memory_gb:.2f} GB."
        )

    def _report(self, capacity: Capacity) -> None:
        self._line(
            f"max_total_num_tokens={capacity.token_capacity}, "
            f"chunked_prefill_size={self._args['chunked_prefill_size']}, "
            f"max_prefill_tokens={self._args['max_prefill_tokens']}, "
            f"max_running_requests={capacity.max_running_requests}, context_len={self._resolved.context_tokens}, "
            f"available_gpu_mem={capacity.available_gpu_memory_gb:.2f} GB"
        )

    def _spec(self, capacity: Capacity, times: StartupTimes, *, launch_command: str, started_at_s: float) -> Spec:
        args = self._args
        engine = EngineConfig(
            max_total_tokens=capacity.token_capacity,
            host_total_tokens=capacity.host_tokens,
            page_size_tokens=capacity.page_size_tokens,
            max_running_requests=capacity.max_running_requests,
            max_queued_requests=args["max_queued_requests"],
            chunked_prefill_tokens=args["chunked_prefill_size"],
            max_prefill_tokens=args["max_prefill_tokens"],
            schedule_policy=args["schedule_policy"],
            rates=self._rates,
        )
        return Spec(
            args=args,
            launch_command=launch_command,
            served_model_name=args["served_model_name"],
            host=args["host"],
            port=args["port"],
            api_key=args["api_key"],
            admin_api_key=args["admin_api_key"],
            engine=engine,
            machine=self._machine,
            context_length_tokens=self._resolved.context_tokens,
            vision=self._resolved.model.vision,
            tensor_parallel_size=args["tp_size"],
            speculative=args["speculative_algorithm"] is not None,
            architecture=self._resolved.model.architecture,
            capacity=capacity,
            startup=times,
            started_at_s=started_at_s,
        )

    def _line(self, text: str) -> None:
        self._console.line(text, rank=0)

    def _sleep(self, model_s: float) -> None:
        """Let model time pass, unless the machine breaks meanwhile."""
        until = time.monotonic() + model_s / (self._machine.start_speed or self._machine.speed)
        while True:
            faults = self._faults.read()
            if faults.deadly:
                kind, message = rank_failure(faults)
                self._die(RankDied(kind, message, phase=""))
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, FAULT_POLL_S))

    def _die(self, died: RankDied | None) -> NoReturn:
        if died is not None:
            self._console.rank_died(died.kind, str(died))
        raise Died


def engine_rates(resolved: Resolved, machine: Machine) -> Rates:
    """The rates of this engine; a GPU type without any takes those of its generation."""
    tensor_parallel_size = resolved.args["tp_size"]
    speculative = resolved.args["speculative_algorithm"] is not None
    kv_bytes = token_bytes(resolved).pool
    for accelerator in (machine.gpu_type, "B200" if is_blackwell(machine) else "H200"):
        try:
            return rates_for(accelerator, tensor_parallel_size, speculative=speculative, kv_bytes_per_token=kv_bytes)
        except ValueError:
            continue
    raise RuntimeError(f"no rates for {machine.gpu_type}, and none for its generation")
