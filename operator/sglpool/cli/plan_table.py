"""The table of `sglpool plan`: the memory arithmetic of each GPU type, to be followed from top to bottom.

Readable without colour and in a pipe. Not here: any figure (`sizing`).
"""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sglpool.cli.planned import Planned
from sglpool.render import endpoint, has_router
from sglpool.render.router_config import max_concurrent_requests
from sglpool.sizing.pools import SizedGPU
from sglpool.sizing.text import gigabytes, tokens
from sglpool.sizing.types import Fit, Line, SizingRequest

PIPE_WIDTH = 100
"""Columns where no terminal says how many it has."""

_SUMS = frozenset({"KV pool", "memory request"})


def print_tables(planned: Sequence[Planned]) -> None:
    """Print pools one after the other on standard output."""
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else PIPE_WIDTH, highlight=False)
    for index, pool in enumerate(planned):
        if index:
            console.print()
        _print_pool(console, pool)


def _print_pool(console: Console, planned: Planned) -> None:
    pool = planned.pool
    console.print(Rule(Text(f"Pool {pool.name}", style="bold"), align="left", style="dim"))
    console.print(Text(_headline(planned)), soft_wrap=False)
    for sized in planned.sized:
        console.print()
        if sized.fit is not None and sized.request is not None:
            gpus = "1 GPU" if sized.fit.gpus_per_replica == 1 else f"{sized.fit.gpus_per_replica} GPUs"
            _print_section(console, f"{sized.entry.type}: memory of one GPU", sized.fit.hbm_lines)
            _print_section(console, f"{sized.entry.type}: host memory of one replica, {gpus}", sized.fit.host_lines)
            console.print(Text(f"{sized.entry.type}: what a replica holds", style="bold"))
            console.print(_results(sized.request, sized.fit, explicit=sized.entry.target_running_requests is not None))
            console.print()
        console.print(_verdict(sized))
    console.print()
    console.print(_summary(planned))
    if has_router(pool):
        console.print(_router(planned))


def _headline(planned: Planned) -> str:
    spec = planned.pool.spec
    parts = [
        spec.model.profile or f"{spec.model.name} (geometry given)",
        f"tensorParallelSize {spec.tensor_parallel_size}",
    ]
    request = planned.sized[0].request
    if request is not None:
        parts.append(f"context {tokens(request.context_tokens)} tokens")
    parts.append(f"KV cache {spec.kv_cache.dtype}")
    if spec.speculative is not None:
        parts.append(spec.speculative.algorithm)
    return ", ".join(parts)


def _print_section(console: Console, title: str, lines: Iterable[Line]) -> None:
    table = _grid()
    table.add_column(justify="right", no_wrap=True, min_width=11)
    table.add_column(overflow="fold")
    for line in lines:
        total = line.label in _SUMS
        label = f"= {line.label}" if total else f"  {line.label}"
        style = "bold" if total else ""
        table.add_row(Text(label, style=style), Text(gigabytes(line.bytes), style=style), Text(line.note, style="dim"))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()


def _grid() -> Table:
    """A table of which a label is the first column."""
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, min_width=24)
    return table


def _results(request: SizingRequest, fit: Fit, *, explicit: bool) -> Table:
    table = _grid()
    table.add_column(overflow="fold")
    for label, value in _result_rows(request, fit, explicit=explicit):
        table.add_row(Text(f"  {label}"), Text(value))
    return table


def _result_rows(request: SizingRequest, fit: Fit, *, explicit: bool) -> Iterable[tuple[str, str]]:
    band = f"estimate {tokens(fit.kv_tokens_low)} to {tokens(fit.kv_tokens_high)}"
    yield "KV tokens", f"{tokens(fit.kv_tokens)} ({band})"
    yield "full conversations", f"{fit.conversations_at_context} of {tokens(request.context_tokens)} tokens"
    origin = "as set" if explicit else "derived"
    each = tokens(request.tokens_per_request)
    yield "target, running requests", f"{fit.target_running_requests} of {each} tokens, {origin}"
    if request.hicache is not None:
        ranks = fit.tensor_parallel_size
        held = f"{tokens(fit.host_kv_tokens)} tokens"
        yield "HiCache", f"--hicache-size {fit.hicache_size_gb_per_rank} on each of {ranks} ranks, {held}"
    yield "memory request", gigabytes(fit.host_memory_request_bytes)
    guard = "none is set; SGLang's start-up guard would need at least"
    if request.memory_limit_bytes is not None:
        guard = f"{gigabytes(request.memory_limit_bytes)} is set; SGLang's start-up guard needs at least"
    yield "memory limit", f"{guard} {gigabytes(fit.host_memory_guard_bytes)}"


def _verdict(sized: SizedGPU) -> Text:
    mark, style = ("fits", "bold green") if sized.feasible else (f"does not fit ({sized.reason})", "bold red")
    if sized.fit is None:
        mark, style = f"unknown ({sized.reason})", "bold yellow"
    return Text.assemble(
        (f"{sized.entry.type} {mark}", style), "\n", sized.message.removeprefix(f"{sized.entry.type}: ")
    )


def _summary(planned: Planned) -> Text:
    if not planned.feasible:
        return Text("The operator would start nothing of this pool, and leave alone what runs.", style="bold red")
    spec, desired = planned.pool.spec, planned.desired
    split = ", ".join(f"{count} on {gpu_type}" for gpu_type, count in desired.items())
    gpus = sum(desired.values()) * spec.tensor_parallel_size
    if spec.autoscaling is not None:
        low, high = spec.autoscaling.min_replicas, spec.autoscaling.max_replicas
        return Text(f"Starts with {split} ({gpus} GPUs), then follows the load between {low} and {high} replicas.")
    return Text(f"Replicas: {split} ({gpus} GPUs).")


def _router(planned: Planned) -> Text:
    pool = planned.pool
    pods = "1 pod" if pool.spec.router.replicas == 1 else f"{pool.spec.router.replicas} pods"
    most = max_concurrent_requests(pool, planned.sized)
    return Text(f"Router: {pods}, at most {most} requests on a replica, {endpoint(pool)}")
