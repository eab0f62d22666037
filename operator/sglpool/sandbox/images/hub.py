"""The sandbox's model hub: the catalogue's repositories, with small files that stand for the real weights.

Configurations carry what the catalogue knows of a model, so that an engine computes the same memory from them; each
weight file is a few hundred bytes whose header says how many it stands for. The client's interface is in
`site/huggingface_hub`. Not here: any model that the catalogue does not hold.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

from sglpool.catalog import (
    DraftProfile,
    DSALayout,
    GQALayout,
    KVLayout,
    MLALayout,
    ModelProfile,
    load_catalog,
)
from sglpool.sandbox.engine.modelfiles import SIMULATED_BYTES, SIMULATED_REPLICATED_BYTES

#: One file for so many bytes of a checkpoint, within bounds.
_FILE_BYTES = 50_000_000_000
_MAX_FILES = 16

ABSENT = "does-not-exist"

#: What a checkpoint says about its quantization, by the engine flag that goes with it.
_QUANTIZATIONS: Mapping[str, dict[str, Any]] = {
    "modelopt_fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "compressed-tensors": {"quant_method": "compressed-tensors"},
    "fp8": {"quant_method": "fp8"},
}

#: `model_type` of a model class; a class that is not listed gets a type of its own name.
_MODEL_TYPES = {
    "KimiK25ForConditionalGeneration": "kimi_k25",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "GptOssForCausalLM": "gpt_oss",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


class RepositoryNotFound(LookupError):
    """The hub has no such repository or revision."""


def repository(repo: str, revision: str | None) -> Mapping[str, bytes]:
    """All files of a repository, by name.

    Args:
        repo: owner/name.
        revision: a branch, tag or commit; every one but `does-not-exist` is there.

    Raises:
        RepositoryNotFound: the catalogue has no such repository.
    """
    files = None if revision == ABSENT else _repositories().get(repo)
    if files is None:
        raise RepositoryNotFound(f"Repository Not Found: {repo} at {revision or 'main'}")
    return files


@cache
def _repositories() -> Mapping[str, Mapping[str, bytes]]:
    found: dict[str, Mapping[str, bytes]] = {}
    for model in load_catalog().models:
        if not model.repo:
            continue
        found[model.repo] = _files(
            model.repo,
            _model_config(model),
            checkpoint_bytes=model.checkpoint_bytes,
            # In the middle of what the catalogue thinks possible.
            replicated_bytes=(model.replicated_bytes_low + model.replicated_bytes_high) // 2,
        )
        for draft in model.drafts:
            found[draft.repo] = _files(
                draft.repo,
                _draft_config(model, draft),
                checkpoint_bytes=draft.checkpoint_bytes,
                replicated_bytes=0 if draft.sharded else draft.checkpoint_bytes,
            )
    return found


def _model_config(model: ModelProfile) -> dict[str, Any]:
    text = {"max_position_embeddings": model.max_context_tokens, **_geometry(model.layout)}
    config: dict[str, Any] = {
        "_name_or_path": model.repo,
        "architectures": [model.architecture],
        "model_type": _MODEL_TYPES.get(model.architecture, model.architecture.lower()),
        "torch_dtype": "bfloat16",
    }
    # Models that see keep their language half in a section of its own.
    config.update({"text_config": text, "vision_config": {"model_type": "simulated"}} if model.vision else text)
    if model.quantization is not None and model.quantization in _QUANTIZATIONS:
        config["quantization_config"] = _QUANTIZATIONS[model.quantization]
    if model.trust_remote_code:
        config["auto_map"] = {"AutoConfig": "configuration_simulated.SimulatedConfig"}
    return config


def _draft_config(model: ModelProfile, draft: DraftProfile) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [f"{draft.algorithm.title()}DraftModel"],
        "model_type": "simulated_draft",
        "torch_dtype": "bfloat16",
        "max_position_embeddings": model.max_context_tokens,
        "block_size": draft.draft_tokens,
        "target_model_name_or_path": model.repo,
        **_geometry(draft.layout),
    }
    if draft.window_tokens is not None:
        config["sliding_window"] = draft.window_tokens
    return config


def _geometry(layout: KVLayout) -> dict[str, Any]:
    """The fields of a configuration that decide the KV cache."""
    match layout:
        case MLALayout():
            return {
                "num_hidden_layers": layout.layers,
                "num_attention_heads": 64,
                "kv_lora_rank": layout.kv_lora_rank,
                "qk_rope_head_dim": layout.rope_head_dim,
            }
        case DSALayout():
            return {
                "num_hidden_layers": layout.layers,
                "num_attention_heads": 64,
                "kv_lora_rank": layout.kv_lora_rank,
                "qk_rope_head_dim": layout.rope_head_dim,
                "index_head_dim": 128 * layout.indexer_bytes_per_layer // 132,
                "index_topk": 2048,
            }
        case GQALayout():
            kinds = ["sliding_attention"] * layout.window_layers
            kinds += ["full_attention"] * (layout.layers - layout.window_layers)
            return {
                "num_hidden_layers": layout.layers,
                "num_attention_heads": 8 * layout.kv_heads,
                "num_key_value_heads": layout.kv_heads,
                "head_dim": layout.head_dim,
                **({"layer_types": kinds} if layout.window_layers else {}),
            }
    raise TypeError(f"{type(layout).__name__} has no configuration; add it here")


def _files(repo: str, config: dict[str, Any], *, checkpoint_bytes: int, replicated_bytes: int) -> dict[str, bytes]:
    count = min(_MAX_FILES, max(1, -(-checkpoint_bytes // _FILE_BYTES)))
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    sizes, replicated = _shares(checkpoint_bytes, count), _shares(replicated_bytes, count)
    tensors = {name: f"simulated.{number}.weight" for number, name in enumerate(names)}
    index = {
        "metadata": {"total_size": checkpoint_bytes},
        "weight_map": {tensor: name for name, tensor in tensors.items()},
    }
    files = {
        "README.md": _card(repo, checkpoint_bytes),
        "config.json": _json(config),
        "model.safetensors.index.json": _json(index),
    }
    for name, size, whole in zip(names, sizes, replicated, strict=True):
        files[name] = _safetensors(tensors[name], size_bytes=size, replicated_bytes=whole)
    return files


def _shares(total: int, count: int) -> list[int]:
    """A total in equal parts; the first takes the rest."""
    part = total // count
    return [total - part * (count - 1), *([part] * (count - 1))]


def _safetensors(tensor: str, *, size_bytes: int, replicated_bytes: int) -> bytes:
    """A whole, valid file with one tiny tensor."""
    data = bytes(16)
    header = json.dumps(
        {
            # The format allows text values only.
            "__metadata__": {
                "format": "pt",
                SIMULATED_BYTES: str(size_bytes),
                SIMULATED_REPLICATED_BYTES: str(replicated_bytes),
            },
            tensor: {"dtype": "BF16", "shape": [8], "data_offsets": [0, len(data)]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def _card(repo: str, checkpoint_bytes: int) -> bytes:
    return (
        f"# {repo} (simulated)\n\n"
        "These are not the model's weights. The files are placeholders of the sglpool sandbox: they say what the real "
        f"checkpoint is like ({checkpoint_bytes / 1e9:.1f} GB), and only its simulated engine can load them.\n"
    ).encode()


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
