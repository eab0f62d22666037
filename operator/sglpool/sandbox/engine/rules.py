"""The rules between SGLang's flags: defaults that depend on GPU and model, and combinations that it refuses.

Applied after parsing and before anything is loaded. The sentences are in SGLang's manner, because people search for
them. Not here: whether the weights fit (`capacity`), and flags that no rule of this page looks at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglpool.catalog import AttentionKind, UnknownGPUType, load_catalog
from sglpool.sandbox.engine.machine import Machine
from sglpool.sandbox.engine.modelfiles import ModelConfig, read_config

Args = dict[str, Any]

#: Algorithms with a draft model (or a layer of the model itself); SGLang sets their running limit when it is unset.
DRAFT_ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "STANDALONE", "DFLASH", "DSPARK", "UNO"})
ALGORITHMS = DRAFT_ALGORITHMS | {"NGRAM"}
NEEDS_DRAFT_PATH = frozenset({"EAGLE3", "STANDALONE", "DFLASH", "DSPARK"})
DRAFT_MAX_RUNNING_REQUESTS = 48
DEFAULT_DFLASH_BLOCK = 16

#: KV dtypes that the MLA kernels of Blackwell take (seen on an emulated B200); "auto" is resolved before.
BLACKWELL_MLA_DTYPES = ("auto", "fp8_e4m3", "bf16")
PLAIN_DTYPES = ("auto", "fp8_e4m3", "fp8_e5m2", "bf16", "bfloat16")
TRTLLM_PAGE_SIZES = {"trtllm_mla": (32, 64), "cutedsl_mla": (32, 64), "trtllm_mha": (16, 32, 64)}
TRTLLM_PAGE_TOKENS = 64

LARGE_GPU_MIB = 160 * 1024
LARGE_CHUNK_TOKENS = 16384
SMALL_CHUNK_TOKENS = 8192

#: `--quantization` that needs a checkpoint made for it, and the methods that such a checkpoint declares.
_PREQUANTIZED = {
    "modelopt_fp4": ("modelopt", "modelopt_fp4"),
    "modelopt_fp8": ("modelopt", "modelopt_fp8"),
    "compressed-tensors": ("compressed-tensors",),
    "mxfp4": ("mxfp4",),
    "gptq": ("gptq",),
    "awq": ("awq",),
}


class RuleError(Exception):
    """SGLang refuses this command line; its main process ends with a traceback and exit code 1.

    Attributes:
        kind: the name of the exception that SGLang shows.
    """

    def __init__(self, message: str, kind: str = "ValueError") -> None:
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A command line after all rules.

    Attributes:
        args: every flag, with what the rules filled in.
        model: the model's configuration.
        draft: the draft's, or None when there is none, or it is a layer of the model.
        context_tokens: the most tokens of one request.
        warnings: what SGLang logs about it.
    """

    args: Args
    model: ModelConfig
    draft: ModelConfig | None
    context_tokens: int
    warnings: tuple[str, ...]


def resolve(given: Mapping[str, Any], machine: Machine) -> Resolved:
    """Apply every rule.

    Raises:
        RuleError: a combination that SGLang refuses.
        ConfigError: the model's or the draft's configuration cannot be used.
    """
    args = dict(given)
    warnings: list[str] = []
    model = read_config(args["model_path"], overrides=args["json_model_override_args"])
    if model.custom_code and not args["trust_remote_code"]:
        raise RuleError(
            f"The repository {args['model_path']} contains custom code which must be executed to correctly load the "
            "model. Please pass the argument `trust_remote_code=True` to allow custom code to be run."
        )
    args["served_model_name"] = args["served_model_name"] or args["model_path"]
    args["tokenizer_path"] = args["tokenizer_path"] or args["model_path"]
    blackwell = is_blackwell(machine)
    _parallelism(args, warnings)
    _quantization(args["quantization"], model)
    context = _context(args, model, warnings)
    _attention(args, model, blackwell, warnings)
    _kv_dtype(args, model, blackwell)
    draft = _speculative(args, model, warnings)
    _chunks(args, machine)
    _hicache(args, warnings)
    return Resolved(args=args, model=model, draft=draft, context_tokens=context, warnings=tuple(warnings))


def is_blackwell(machine: Machine) -> bool:
    """Whether the GPUs are of the Blackwell generation; a type that the catalogue lacks goes by its memory."""
    try:
        return load_catalog().gpu(machine.gpu_type).architecture in ("sm_100", "sm_103")
    except UnknownGPUType:
        return machine.gpu_memory_mib >= LARGE_GPU_MIB


def _parallelism(args: Args, warnings: list[str]) -> None:
    if args["enable_dp_attention"] and args["dp_size"] > 1 and args["attn_dp_size"] == 1:
        warnings.append("--enable-dp-attention is deprecated. Use --attn-dp-size instead.")
        args["attn_dp_size"], args["dp_size"] = args["dp_size"], 1
    tp, pp, dp = args["tp_size"], args["pp_size"], args["dp_size"]
    attn_dp, attn_cp, nodes = args["attn_dp_size"], args["attn_cp_size"], args["nnodes"]
    if min(tp, pp, dp, attn_dp, attn_cp, nodes) < 1:
        raise RuleError("parallel sizes must be at least 1", "AssertionError")
    if dp > 1 and attn_dp > 1:
        raise RuleError(f"dp_size ({dp}) > 1 cannot be combined with attn_dp_size ({attn_dp}) > 1")
    if tp % (attn_dp * attn_cp):
        raise RuleError(
            f"tp_size ({tp}) must be divisible by attn_dp_size ({attn_dp}) * attn_cp_size ({attn_cp})",
            "AssertionError",
        )
    if tp * pp % nodes:
        raise RuleError("tp_size must be divisible by number of nodes", "AssertionError")
    if dp > 1 and nodes != 1:
        raise RuleError("multi-node data parallel is not supported unless dp attention!", "AssertionError")


def _quantization(flag: str | None, model: ModelConfig) -> None:
    if flag is None or flag not in _PREQUANTIZED:
        return
    if model.quantization is None:
        raise RuleError(
            f"Cannot find the config file for {flag}: {model.folder} holds no quantized weights. "
            "Set the quantization to `unquant` for plain ones."
        )
    if model.quantization not in _PREQUANTIZED[flag]:
        raise RuleError(
            f"Quantization method specified in the model config ({model.quantization}) does not match the "
            f"quantization method specified in the `quantization` argument ({flag})."
        )


def _context(args: Args, model: ModelConfig, warnings: list[str]) -> int:
    wanted, derived = args["context_length"], model.max_context_tokens
    if wanted is None or wanted <= derived:
        return int(wanted or derived)
    sentence = (
        f"User-specified context_length ({wanted}) is greater than the derived context_length ({derived}). "
        "This may lead to incorrect model outputs or CUDA errors."
    )
    if os.environ.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true"):
        warnings.append(sentence)
        return int(wanted)
    raise RuleError(
        f"{sentence} To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    )


def _attention(args: Args, model: ModelConfig, blackwell: bool, warnings: list[str]) -> None:
    kind = model.layout.kind
    if args["attention_backend"] is None:
        automatic = {AttentionKind.MLA: "trtllm_mla", AttentionKind.GQA: "trtllm_mha", AttentionKind.DSA: "dsa"}
        args["attention_backend"] = automatic[kind] if blackwell or kind is AttentionKind.DSA else "fa3"
    elif args["attention_backend"] == "tokenspeed_mla":
        warnings.append("tokenspeed_mla is deprecated. Use cutedsl_mla instead.")
        args["attention_backend"] = "cutedsl_mla"
    backend = args["attention_backend"]
    if backend in TRTLLM_PAGE_SIZES and not blackwell:
        raise RuleError(f"{backend} backend is only supported on Blackwell GPUs (SM100). Use a different backend.")
    page = args["page_size"]
    allowed = TRTLLM_PAGE_SIZES.get(backend)
    if allowed is not None and page not in allowed:
        sizes = ", ".join(map(str, allowed))
        warnings.append(f"{backend} only supports page_size of {sizes}, changing page_size from {page} to 64.")
        args["page_size"] = TRTLLM_PAGE_TOKENS
    elif backend == "dsa":
        args["page_size"] = TRTLLM_PAGE_TOKENS
    elif page is None:
        args["page_size"] = 1


def _kv_dtype(args: Args, model: ModelConfig, blackwell: bool) -> None:
    dtype, kind, backend = args["kv_cache_dtype"], model.layout.kind, args["attention_backend"]
    if backend in ("trtllm_mla", "cutedsl_mla") and dtype not in BLACKWELL_MLA_DTYPES:
        raise RuleError(f"{backend} backend only supports kv-cache-dtype of fp8_e4m3, bf16, or auto, got {dtype}.")
    if kind is AttentionKind.DSA and dtype not in ("auto", "fp8_e4m3", "bf16", "bfloat16"):
        raise RuleError(f"DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype, got {dtype}")
    if dtype not in PLAIN_DTYPES and (kind is AttentionKind.MLA or not blackwell):
        raise RuleError(f"kv-cache-dtype {dtype} is not supported by the attention backend {backend} on this GPU.")
    if dtype == "auto":
        fp8 = (model.kv_algorithm or "").upper() == "FP8" or (kind is AttentionKind.DSA and blackwell)
        args["kv_cache_dtype"] = "fp8_e4m3" if fp8 else "bf16"
    elif dtype == "bfloat16":
        args["kv_cache_dtype"] = "bf16"


def _speculative(args: Args, model: ModelConfig, warnings: list[str]) -> ModelConfig | None:
    if args["speculative_algorithm"] is None:
        return None
    algorithm = str(args["speculative_algorithm"]).upper()
    algorithm = "EAGLE" if algorithm == "NEXTN" else algorithm
    if algorithm not in ALGORITHMS:
        raise RuleError(f"Unknown speculative algorithm name: {args['speculative_algorithm']}")
    args["speculative_algorithm"] = algorithm
    path = args["speculative_draft_model_path"]
    if path is None and algorithm in NEEDS_DRAFT_PATH:
        raise RuleError(f"{algorithm} requires setting --speculative-draft-model-path.")
    if args["max_running_requests"] is None and algorithm in DRAFT_ALGORITHMS:
        args["max_running_requests"] = DRAFT_MAX_RUNNING_REQUESTS
        warnings.append(
            f"Max running requests is reset to {DRAFT_MAX_RUNNING_REQUESTS} for speculative decoding. You can override "
            "this by explicitly setting --max-running-requests."
        )
    draft = None
    if path is not None:
        draft = read_config(path)
        args["speculative_draft_model_revision"] = args["speculative_draft_model_revision"] or "main"
        if args["speculative_draft_model_quantization"] is None:
            args["speculative_draft_model_quantization"] = args["quantization"]
        _quantization(args["speculative_draft_model_quantization"], draft)
    _draft_kv_dtype(args)
    handlers: dict[str, Callable[[Args, ModelConfig | None], None]] = {"DFLASH": _dflash}
    handlers.get(algorithm, _chain)(args, draft)
    return draft


def _draft_kv_dtype(args: Args) -> None:
    dtype = args["speculative_draft_kv_cache_dtype"]
    if dtype in (None, "auto"):
        args["speculative_draft_kv_cache_dtype"] = args["kv_cache_dtype"]
    elif dtype == "bfloat16":
        args["speculative_draft_kv_cache_dtype"] = "bf16"


def _dflash(args: Args, draft: ModelConfig | None) -> None:
    if args["pp_size"] != 1:
        raise RuleError(f"DFLASH speculative decoding only supports pp_size == 1, got {args['pp_size']}.")
    if args["attn_dp_size"] > 1:
        if not args["enable_dp_lm_head"]:
            raise RuleError("DFLASH with attention data parallelism requires --enable-dp-lm-head.")
        if args["attn_cp_size"] != 1:
            raise RuleError(
                f"DFLASH with attention data parallelism requires attn_cp_size == 1, got {args['attn_cp_size']}."
            )
    tokens, block = args["speculative_num_draft_tokens"], args["speculative_dflash_block_size"]
    if tokens is not None and block is not None and tokens != block:
        raise RuleError(
            f"Both --speculative-num-draft-tokens ({tokens}) and --speculative-dflash-block-size ({block}) are set but "
            "they differ. For DFLASH they must match."
        )
    own = draft.block_size if draft else None
    tokens = tokens or block or own or DEFAULT_DFLASH_BLOCK
    args["speculative_num_draft_tokens"] = args["speculative_dflash_block_size"] = tokens
    args["speculative_num_steps"] = args["speculative_eagle_topk"] = 1
    if args["speculative_draft_attention_backend"] is None and args["attention_backend"] == "trtllm_mla":
        args["speculative_draft_attention_backend"] = "flashinfer"


def _chain(args: Args, draft: ModelConfig | None) -> None:
    """Steps and draft tokens of the EAGLE family; with top-k 1 the draft is a chain."""
    del draft
    if args["speculative_num_steps"] is None:
        if args["speculative_eagle_topk"] is not None:
            raise RuleError(
                "speculative_eagle_topk and speculative_num_draft_tokens need speculative_num_steps.", "AssertionError"
            )
        args["speculative_num_steps"], args["speculative_eagle_topk"] = 3, 1
    args["speculative_eagle_topk"] = args["speculative_eagle_topk"] or 1
    if args["speculative_eagle_topk"] == 1 or args["speculative_num_draft_tokens"] is None:
        args["speculative_num_draft_tokens"] = args["speculative_num_steps"] + 1


def _chunks(args: Args, machine: Machine) -> None:
    page = args["page_size"]
    if args["chunked_prefill_size"] is None:
        large = machine.gpu_memory_mib >= LARGE_GPU_MIB
        args["chunked_prefill_size"] = LARGE_CHUNK_TOKENS if large else SMALL_CHUNK_TOKENS
    if args["chunked_prefill_size"] > 0:
        args["chunked_prefill_size"] //= args["attn_dp_size"]
        if args["chunked_prefill_size"] % page:
            raise RuleError("chunked_prefill_size must be divisible by page_size", "AssertionError")
    fraction = args["mem_fraction_static"]
    if fraction is not None and not 0 < fraction < 1:
        raise RuleError(f"mem_fraction_static must be between 0 and 1, got {fraction}")
    for name in ("max_running_requests", "max_total_tokens"):
        if args[name] is not None and args[name] <= 0:
            raise RuleError(f"{name} must be positive, got {args[name]}")


def _hicache(args: Args, warnings: list[str]) -> None:
    if not args["enable_hierarchical_cache"]:
        return
    for name in ("disable_radix_cache", "enable_lmcache", "enable_unified_cache_external_linker"):
        if args.get(name):
            other = name.replace("_", "-")
            raise RuleError(
                f"The arguments enable-hierarchical-cache and {other} are mutually exclusive and cannot be used at the "
                "same time. Please use only one of them."
            )
    if args["kv_cache_dtype"] == "nvfp4":
        raise RuleError("NVFP4 KV cache is not compatible with hierarchical cache.")
    mode, backend = args["hicache_host_memory_mode"], args["hicache_storage_backend"]
    if mode == "buffer_only" and backend is None:
        raise RuleError("--hicache-host-memory-mode buffer_only requires --hicache-storage-backend.")
    if args["dcp_size"] > 1 and args["speculative_algorithm"] not in (None, "DSPARK"):
        raise RuleError("Hierarchical cache with dcp_size > 1 supports only DSPARK speculative decoding.")
    layout, io = args["hicache_mem_layout"], args["hicache_io_backend"]
    if backend == "mooncake" and layout == "layer_first":
        layout = "page_first_direct" if io == "direct" else "page_first"
    if layout == "page_first_direct" and io == "kernel":
        io = "direct"
    elif layout == "page_first" and io == "direct":
        layout = "page_first_direct"
    if (layout, io) != (args["hicache_mem_layout"], args["hicache_io_backend"]):
        warnings.append(f"HiCache uses memory layout {layout} with io backend {io}.")
    args["hicache_mem_layout"], args["hicache_io_backend"] = layout, io
