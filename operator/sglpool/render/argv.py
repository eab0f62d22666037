"""The engine's command line, from spec and catalogue alone.

Full flag names in a stable, readable order: what it serves, how much it takes, caches, speculation, observability,
recommendations, then the user's own arguments. Nothing here depends on time, targets or what an engine reported.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglpool.api import names
from sglpool.api.flags import MANAGED_FLAGS, flag_of
from sglpool.api.model import Speculative
from sglpool.api.pool import Pool
from sglpool.catalog import Flag, load_flags
from sglpool.render.replica import Replica, replica_of
from sglpool.render.volumes import draft_path, model_path
from sglpool.sizing.pools import SizedGPU

LISTEN_HOST = "0.0.0.0"

DEFAULT_EAGLE_DRAFT_TOKENS = 4
"""Draft tokens of the EAGLE family when neither user nor catalogue says: the SGLang cookbook's (3 steps, top-k 1)."""

_WRITE_POLICIES = {
    "WriteThrough": "write_through",
    "WriteThroughSelective": "write_through_selective",
    "WriteBack": "write_back",
}


def engine_argv(pool: Pool, sized: SizedGPU) -> tuple[str, ...]:
    """Arguments of `sglang serve` for the replicas of one GPU type.

    A recommended flag that the user repeats in `engine.extraArgs` is left out: the user's counts.

    Raises:
        ValueError: The profile or the GPU type is not in the catalogue.
    """
    replica = replica_of(pool, sized)
    extra = pool.spec.engine.extra_args
    taken = {option for word in extra if word.startswith("-") for option in _same_option(flag_of(word))}
    argv: list[str] = []
    for flag, value in derived_flags(replica):
        if flag in taken and flag not in MANAGED_FLAGS:
            continue
        # A recommendation never repeats what a field has set.
        if flag in argv:
            continue
        argv += [flag] if value is None else [flag, value]
    return (*argv, *extra)


def derived_flags(replica: Replica) -> tuple[Flag, ...]:
    """Every flag that sglpool writes, in order, before the user's own arguments."""
    return (
        *_serving(replica),
        *_capacity(replica),
        *_parsers(replica),
        *_hicache(replica),
        *_speculative(replica),
        *_observability(replica),
        *replica.model.recommended_flags(replica.gpu, replica.request.tensor_parallel_size),
    )


def _serving(replica: Replica) -> Iterable[Flag]:
    yield "--model-path", model_path(replica)
    yield "--served-model-name", replica.pool.spec.model.name
    yield "--host", LISTEN_HOST
    yield "--port", str(names.ENGINE_PORT)
    if replica.model.trust_remote_code:
        yield "--trust-remote-code", None
    # The launcher sends its own warm-up over the path that clients use.
    yield "--skip-server-warmup", None
    # Under a memory limit the page cache of 600 GB of weights would count against HiCache.
    yield "--weight-loader-drop-cache-after-load", None


def _capacity(replica: Replica) -> Iterable[Flag]:
    request, engine = replica.request, replica.pool.spec.engine
    chunk_tokens = engine.chunked_prefill_size or replica.model.chunked_prefill_tokens
    yield "--tp-size", str(request.tensor_parallel_size)
    yield "--context-length", str(request.context_tokens)
    if replica.model.quantization is not None:
        yield "--quantization", replica.model.quantization
    yield "--kv-cache-dtype", request.kv_dtype
    yield "--mem-fraction-static", f"{request.mem_fraction_percent / 100:.2f}"
    yield "--max-running-requests", str(request.max_running_requests)
    yield "--max-queued-requests", str(engine.max_queued_requests)
    if chunk_tokens is not None:
        yield "--chunked-prefill-size", str(chunk_tokens)


def _parsers(replica: Replica) -> Iterable[Flag]:
    if replica.model.reasoning_parser is not None:
        yield "--reasoning-parser", replica.model.reasoning_parser
    if replica.model.tool_call_parser is not None:
        yield "--tool-call-parser", replica.model.tool_call_parser


def _hicache(replica: Replica) -> Iterable[Flag]:
    hicache = replica.pool.spec.kv_cache.hi_cache
    # A size of 0 would mean SGLang's own default, twice the GPU's pool.
    if hicache is None or replica.fit.hicache_size_gb_per_rank == 0:
        return
    yield "--enable-hierarchical-cache", None
    yield "--hicache-size", str(replica.fit.hicache_size_gb_per_rank)
    yield "--hicache-write-policy", _WRITE_POLICIES[hicache.write_policy]


def _speculative(replica: Replica) -> Iterable[Flag]:
    speculative, draft = replica.pool.spec.speculative, replica.draft
    if speculative is None:
        return
    yield "--speculative-algorithm", speculative.algorithm
    path = draft_path(replica)
    if path is not None:
        yield "--speculative-draft-model-path", path
    yield from _draft_tokens(replica, speculative)
    # NEXTN drafts with a layer of the model itself: its quantization and KV are the model's.
    quantization = speculative.draft_quantization or (draft.quantization if draft else None)
    if path is not None or quantization is not None:
        yield "--speculative-draft-model-quantization", quantization or "unquant"
    kv_dtype = replica.request.draft.kv_dtype if path and replica.request.draft else speculative.draft_kv_cache_dtype
    if kv_dtype is not None:
        yield "--speculative-draft-kv-cache-dtype", kv_dtype
    if draft is not None:
        yield from _catalogue_draft(replica)


def _draft_tokens(replica: Replica, speculative: Speculative) -> Iterable[Flag]:
    tokens = speculative.draft_tokens or (replica.draft.draft_tokens if replica.draft else None)
    if speculative.algorithm == "DFLASH":
        # SGLang fixes steps and top-k itself, and reads the block size from the draft when it is not given.
        if tokens is not None:
            yield "--speculative-num-draft-tokens", str(tokens)
        return
    tokens = tokens or DEFAULT_EAGLE_DRAFT_TOKENS
    # With top-k 1 the draft is a chain: one token a step, and the target's own.
    yield "--speculative-num-steps", str(tokens - 1)
    yield "--speculative-eagle-topk", "1"
    yield "--speculative-num-draft-tokens", str(tokens)


def _catalogue_draft(replica: Replica) -> Iterable[Flag]:
    draft = replica.draft
    if draft is None:
        return
    if draft.window_tokens is not None:
        yield "--speculative-draft-window-size", str(draft.window_tokens)
    if draft.attention_backend is not None:
        yield "--speculative-draft-attention-backend", draft.attention_backend
    if draft.attention_mode is not None:
        yield "--speculative-attention-mode", draft.attention_mode


def _observability(replica: Replica) -> Iterable[Flag]:
    yield "--enable-metrics", None
    yield "--enable-cache-report", None
    yield "--stream-response-default-include-usage", None
    # Metadata only: prompts of users do not belong into logs.
    yield "--log-requests", None
    yield "--log-requests-level", "0"
    if replica.pool.spec.engine.return_token_ids:
        yield "--return-input-ids", None
        yield "--return-output-ids", None


def _same_option(flag: str) -> tuple[str, ...]:
    """All spellings of one engine option."""
    option = load_flags().options.get(flag)
    return (flag,) if option is None else option.names
