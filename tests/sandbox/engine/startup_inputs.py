"""Models, drafts and machines for the tests of an engine's start."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from sglpool.catalog import GIB
from sglpool.sandbox.engine import argv
from sglpool.sandbox.engine.machine import Machine

# The shape of DeepSeek-V2-Lite, of which a real engine's figures are known: 29.451 GiB of weights in bf16, of which
# 0.169 are whole on every rank (14.81 GiB a GPU at TP2).
LITE_BYTES = round(29.451 * GIB)
LITE_REPLICATED_BYTES = round(0.169 * GIB)
LITE_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
}
GQA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
}
DRAFT_CONFIG: dict[str, Any] = {
    "architectures": ["DflashDraftModel"],
    "model_type": "draft",
    "num_hidden_layers": 6,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "block_size": 8,
    "max_position_embeddings": 163840,
}


def weight_file(simulated_bytes: int, replicated_bytes: int = 0) -> bytes:
    """A whole safetensors file that stands for a larger one."""
    header = json.dumps(
        {
            "__metadata__": {
                "simulated_bytes": str(simulated_bytes),
                "simulated_replicated_bytes": str(replicated_bytes),
            },
            "w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def make_model(
    folder: Path,
    config: dict[str, Any] = LITE_CONFIG,
    *,
    weight_bytes: int = LITE_BYTES,
    replicated_bytes: int = LITE_REPLICATED_BYTES,
) -> Path:
    """Write a model's folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weight_file(weight_bytes, replicated_bytes))
    return folder


def make_draft(folder: Path) -> Path:
    """Write a DFLASH draft's folder."""
    return make_model(folder, DRAFT_CONFIG, weight_bytes=2 * GIB, replicated_bytes=0)


H200: dict[str, Any] = {
    "node": "h200-0",
    "accelerator": "NVIDIA H200",
    "gpu_type": "H200",
    "gpus": 1,
    "gpu_memory_mib": 143771,
    "speed": 100_000.0,
}
"""In a hurry."""


def machine(folder: Path, **changes: Any) -> Machine:
    """One H200."""
    return Machine(folder=folder, **(H200 | changes))


B200: dict[str, Any] = {"accelerator": "NVIDIA B200", "gpu_type": "B200", "gpus": 8, "gpu_memory_mib": 183359}


def write_machine(folder: Path, **changes: Any) -> Path:
    """Write machine.json as the node agent does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text(json.dumps({**H200, "pod": "default/a", **changes}))
    return folder


def parsed(model: Path, *words: str) -> dict[str, Any]:
    """Arguments of an engine that serves a model."""
    return argv.parse(["--model-path", str(model), *words])
