"""`sglpool plan`: what the API server and the operator would say of a pool, without either.

Exit codes: 0 every pool fits, 1 one does not, 2 a file or pool is invalid. The JSON is documented in
docs/plan-json.md and stable. Not here: the checks (`api.validate`) and the arithmetic (`sizing`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sglpool.api.base import Manifest
from sglpool.api.pool import Pool
from sglpool.api.quantity import format_gb
from sglpool.api.validate import InvalidPool, Problem, load_pool
from sglpool.catalog import load_catalog
from sglpool.cli.files import UnreadableFile, read_documents
from sglpool.cli.yamltext import to_yaml
from sglpool.plan.children import expected_children
from sglpool.plan.replicas import desired_replicas
from sglpool.render import engine_argv, launch_configmap, statefulset
from sglpool.sizing.pools import SizedGPU, size_pool
from sglpool.sizing.types import Fit, Line

FEASIBLE, INFEASIBLE, INVALID = 0, 1, 2


class Output(StrEnum):
    """What to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Sized:
    """A valid pool with its sizes."""

    pool: Pool
    gpus: tuple[SizedGPU, ...]

    @property
    def feasible(self) -> bool:
        """Whether every GPU type fits."""
        return all(gpu.feasible for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class Refused:
    """A document that the API server would refuse."""

    source: str
    name: str | None
    problems: tuple[Problem, ...]


Result = Sized | Refused


def run_plan(files: Sequence[str], output: Output) -> int:
    """Plan every pool of the files and print; the exit code."""
    results = [result for path in files for result in _results(path)]
    if output is Output.JSON:
        shown = [_as_json(result) for result in results]
        typer.echo(json.dumps(shown[0] if len(shown) == 1 else shown, indent=2))
    else:
        _tell_problems(results)
        if output is Output.TABLE:
            _tables([r for r in results if isinstance(r, Sized)])
        elif all(isinstance(r, Sized) and r.feasible for r in results):
            typer.echo(to_yaml([m for r in results if isinstance(r, Sized) for m in _manifests(r)]), nl=False)
        else:
            _tell_infeasible(results)
    if any(isinstance(r, Refused) for r in results):
        return INVALID
    return FEASIBLE if all(isinstance(r, Sized) and r.feasible for r in results) else INFEASIBLE


def _results(path: str) -> list[Result]:
    try:
        documents = read_documents(path)
    except UnreadableFile as error:
        return [Refused(error.source, None, (Problem(error.where or "file", str(error)),))]
    return [_result(document.source, document.content) for document in documents]


def _result(source: str, content: object) -> Result:
    if not isinstance(content, dict):
        return Refused(source, None, (Problem("document", "is not a map: an InferencePool starts with apiVersion"),))
    try:
        pool = load_pool(content)
    except InvalidPool as error:
        metadata = content.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return Refused(source, name if isinstance(name, str) else None, error.problems)
    return Sized(pool, size_pool(pool, load_catalog(), node_memory_bytes={}, hicache_bytes={}))


def _tell_problems(results: Sequence[Result]) -> None:
    for refused in (r for r in results if isinstance(r, Refused)):
        for problem in refused.problems:
            typer.echo(f"{refused.source}: {problem}", err=True)


def _tell_infeasible(results: Sequence[Result]) -> None:
    for sized in (r for r in results if isinstance(r, Sized)):
        for gpu in sized.gpus:
            if not gpu.feasible:
                typer.echo(f"{sized.pool.name}: {gpu.reason}: {gpu.message}", err=True)


def _as_json(result: Result) -> Manifest:
    if isinstance(result, Refused):
        errors = [{"path": p.path, "message": p.message} for p in result.problems]
        return {"pool": result.name, "valid": False, "errors": errors}
    return {
        "pool": result.pool.name,
        "feasible": result.feasible,
        "gpus": [_gpu_json(result.pool, gpu) for gpu in result.gpus],
    }


def _gpu_json(pool: Pool, sized: SizedGPU) -> Manifest:
    fit = sized.fit
    tensor_parallel_size = pool.spec.tensor_parallel_size
    return {
        "type": sized.entry.type,
        "tensorParallelSize": tensor_parallel_size,
        "gpusPerReplica": tensor_parallel_size,
        "weightBytesPerGPU": fit and fit.weight_bytes_per_gpu,
        "kvBytesPerTokenPerGPU": fit and fit.kv_bytes_per_token_per_gpu,
        "kvTokens": fit and fit.kv_tokens,
        "hostKVTokens": fit and fit.host_kv_tokens,
        "hicacheSizeGBPerRank": fit and fit.hicache_size_gb_per_rank,
        "hostMemoryRequestBytes": fit and fit.host_memory_request_bytes,
        "hostMemoryGuardBytes": fit and fit.host_memory_guard_bytes,
        "conversationsAtContext": fit and fit.conversations_at_context,
        "targetRunningRequests": fit and fit.target_running_requests,
        "feasible": sized.feasible,
        "reason": sized.reason,
        "message": sized.message,
        "argv": [] if fit is None else list(engine_argv(pool, sized)),
    }


def _manifests(result: Sized) -> list[Manifest]:
    """Everything the operator would create, as a stranger to the cluster could apply it."""
    replicas = desired_replicas(result.pool.spec, {}, frozen=False)
    manifests = [*expected_children(result.pool)]
    for gpu in result.gpus:
        manifest = statefulset(result.pool, gpu)
        spec = {"replicas": replicas[gpu.entry.type], **manifest["spec"]}
        manifests += [launch_configmap(result.pool, gpu), {**manifest, "spec": spec}]
    return [_without_owner(manifest) for manifest in manifests]


def _without_owner(manifest: Manifest) -> Manifest:
    """A file has no uid, and an owner without one would be refused."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "ownerReferences"}
    return {**manifest, "metadata": metadata}


def _tables(results: Sequence[Sized]) -> None:
    console = Console(highlight=False)
    for result in results:
        spec = result.pool.spec
        size = "autoscaled" if spec.autoscaling else f"{spec.replicas} replicas"
        console.print(
            Text.assemble(
                (result.pool.name, "bold"),
                f": {spec.model.profile or spec.model.name}, tensorParallelSize {spec.tensor_parallel_size}, "
                f"KV cache {spec.kv_cache.dtype}, {size}",
            )
        )
        for gpu in result.gpus:
            _gpu_tables(console, gpu)


def _gpu_tables(console: Console, sized: SizedGPU) -> None:
    fit = sized.fit
    if fit is not None:
        console.print()
        console.print(_arithmetic(f"{sized.entry.type}: memory of one GPU", fit.hbm_lines, result="KV pool"))
        console.print(_arithmetic(f"{sized.entry.type}: host memory", fit.host_lines, result="memory request"))
        console.print(_figures(fit))
    verdict = Text("fits", "bold green") if sized.feasible else Text(f"does not fit ({sized.reason})", "bold red")
    console.print(Text.assemble("  ", verdict, ". ", sized.message))
    console.print()


def _arithmetic(title: str, lines: Sequence[Line], *, result: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=True)
    table.add_column(min_width=22, no_wrap=True)
    table.add_column(justify="right", min_width=12, no_wrap=True)
    table.add_column()
    for line in lines:
        style = "bold" if line.label == result else ""
        table.add_row(line.label, format_gb(line.bytes), line.note, style=style)
    return table


def _figures(fit: Fit) -> Table:
    table = Table(title="One replica", title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column(min_width=22, no_wrap=True)
    table.add_column(justify="right", min_width=12, no_wrap=True)
    table.add_column()
    band = f"estimate: {fit.kv_tokens_low:,} to {fit.kv_tokens_high:,}"
    table.add_row("KV tokens on GPU", f"{fit.kv_tokens:,}", band)
    table.add_row("KV tokens on host", f"{fit.host_kv_tokens:,}", f"--hicache-size {fit.hicache_size_gb_per_rank}")
    table.add_row("conversations", f"{fit.conversations_at_context:,}", "of full context length, on GPU")
    table.add_row("target running", f"{fit.target_running_requests:,}", "requests")
    return table
