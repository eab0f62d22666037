"""`sglpool plan`: read files, check and size every pool, print, and answer with an exit code.

Not here: the arithmetic (`sizing`), the manifests (`render`), how each format looks (the modules beside this one).
"""

import json
import sys
from collections.abc import Sequence

from sglpool.api.base import Manifest
from sglpool.api.validate import InvalidPool, Problem, load_pool
from sglpool.catalog import Catalog
from sglpool.cli import plan_json
from sglpool.cli.files import Document, UnreadableFile, read_documents
from sglpool.cli.gpufile import BadGPUTypes, catalog_with
from sglpool.cli.planned import Invalid, Planned

FEASIBLE, INFEASIBLE, INVALID = 0, 1, 2


def run_plan(files: Sequence[str], output: str, gpu_types: str | None = None) -> int:
    """Print the plan of every pool in some files.

    Args:
        files: Paths, `-` for standard input.
        output: `table`, `json` or `yaml`.
        gpu_types: Path of a file with GPU types, None for those of the catalogue alone.

    Returns:
        The exit code: 0 every pool fits, 1 one does not, 2 an input is invalid.
    """
    try:
        catalog = catalog_with(gpu_types)
    except BadGPUTypes as error:
        print(f"sglpool plan: {error}", file=sys.stderr)
        return INVALID
    results = [result for path in files for result in _plan_file(path, catalog)]
    if output == "json":
        documents = [plan_json.to_json(result) for result in results]
        print(json.dumps(documents if len(documents) > 1 else documents[0], indent=2))
    else:
        _print_problems(results)
        _warn(results)
    exit_code = max(_exit_code(result) for result in results)
    if output == "yaml":
        _print_yaml(results, exit_code)
    if output == "table":
        from sglpool.cli.plan_table import print_tables

        print_tables([result for result in results if isinstance(result, Planned)])
    return exit_code


def _plan_file(path: str, catalog: Catalog) -> list[Planned | Invalid]:
    try:
        documents = read_documents(path)
    except UnreadableFile as error:
        return [Invalid(source=error.source, pool=None, problems=(Problem(error.where, str(error)),))]
    return [_plan_document(document, catalog) for document in documents]


def _plan_document(document: Document, catalog: Catalog) -> Planned | Invalid:
    try:
        pool = load_pool(document.content)
    except InvalidPool as error:
        return Invalid(source=document.source, pool=_name(document.content), problems=error.problems)
    return Planned.of(pool, catalog, source=document.source, in_namespace=_has_namespace(document.content))


def _name(content: object) -> str | None:
    metadata = content.get("metadata") if isinstance(content, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None


def _has_namespace(content: object) -> bool:
    return isinstance(content, dict) and bool(content["metadata"].get("namespace"))


def _exit_code(result: Planned | Invalid) -> int:
    if isinstance(result, Invalid):
        return INVALID
    return FEASIBLE if result.feasible else INFEASIBLE


def _print_problems(results: Sequence[Planned | Invalid]) -> None:
    for result in results:
        if isinstance(result, Invalid):
            for problem in result.problems:
                words = [result.source, problem.path, problem.message]
                print(": ".join(word for word in words if word), file=sys.stderr)


def _warn(results: Sequence[Planned | Invalid]) -> None:
    """Arguments that this version's engine would refuse; another image may take them."""
    for result in results:
        if isinstance(result, Planned):
            for problem in result.argument_problems():
                print(f"{result.source}: spec.engine.extraArgs: warning: {problem}", file=sys.stderr)


def _print_yaml(results: Sequence[Planned | Invalid], exit_code: int) -> None:
    """All manifests, or none: half a set of pools is nothing to apply."""
    from sglpool.cli.yamltext import to_yaml

    planned = [result for result in results if isinstance(result, Planned)]
    for result in planned:
        for sized in result.sized:
            if not sized.feasible:
                print(f"{result.source}: {result.pool.name}: {sized.reason}: {sized.message}", file=sys.stderr)
    if exit_code == FEASIBLE:
        manifests: list[Manifest] = [manifest for result in planned for manifest in result.manifests()]
        sys.stdout.write(to_yaml(manifests))
