"""Reads a folder of weights as the engine would: what the model is, and how many bytes there are to load.

Real weights count as what they are; simulated ones (the sandbox's hub writes them) are small files whose headers
say how many bytes they stand for. Nothing of the tensors is read. Not here: whether they fit (`capacity`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglpool.catalog.layouts import DSALayout, GQALayout, KVLayout, MLALayout

#: Keys of a safetensors header's `__metadata__` that make a small file stand for a large one.
SIMULATED_BYTES = "simulated_bytes"
SIMULATED_REPLICATED_BYTES = "simulated_replicated_bytes"

MAX_HEADER_BYTES = 100_000_000
DEFAULT_CONTEXT_TOKENS = 4096

#: Model types that SGLang loads with its own configuration class, whatever code the repository brings along.
_NATIVE_TYPES = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "gpt_oss", "minimax_m2"})


class ConfigError(Exception):
    """The configuration cannot be used; SGLang's main process ends with a traceback and exit code 1.

    Attributes:
        kind: the name of the exception that SGLang shows.
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class WeightsError(Exception):
    """The weights cannot be loaded; that ends a rank, and the main process with it.

    Attributes:
        kind: the name of the exception that SGLang shows.
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What `config.json` says.

    Attributes:
        folder: where it lies.
        architecture: the model class.
        layout: the KV cache of one token.
        max_context_tokens: the model's own context limit.
        vision: whether it takes images.
        quantization: the checkpoint's method, or None for plain weights.
        kv_algorithm: the KV dtype that the checkpoint declares ("FP8"), or None.
        custom_code: whether it needs code from its repository.
        block_size: a draft's tokens per step, or None.
    """

    folder: Path
    architecture: str
    layout: KVLayout
    max_context_tokens: int
    vision: bool
    quantization: str | None
    kv_algorithm: str | None
    custom_code: bool
    block_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weight files of a folder.

    Attributes:
        files: how many there are.
        checkpoint_bytes: what they hold or stand for.
        replicated_bytes: of these, what every rank holds whole.
        simulated: whether any file stands for a larger one.
    """

    files: int
    checkpoint_bytes: int
    replicated_bytes: int
    simulated: bool

    def rank_bytes(self, tensor_parallel_size: int) -> int:
        """What one rank loads: its share, and what is whole everywhere."""
        shared = self.checkpoint_bytes - self.replicated_bytes
        return -(-shared // tensor_parallel_size) + self.replicated_bytes


def read_config(path: str, *, overrides: str = "{}") -> ModelConfig:
    """Read the configuration of a local model.

    Args:
        path: `--model-path` or the draft's.
        overrides: `--json-model-override-args`.

    Raises:
        ConfigError: the folder or the file is missing, or says too little.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise _not_a_folder(path)
    content = _read_json(folder / "config.json")
    content.update(json.loads(overrides))
    architectures = content.get("architectures")
    if not architectures:
        raise ConfigError("ValueError", f"No model architectures are specified in {folder / 'config.json'}")
    text = content.get("text_config")
    merged = {**content, **text} if isinstance(text, dict) else content
    quantization = _quantization(folder, content, merged)
    return ModelConfig(
        folder=folder,
        architecture=str(architectures[0]),
        layout=_layout(folder, merged),
        max_context_tokens=int(merged.get("max_position_embeddings") or DEFAULT_CONTEXT_TOKENS),
        vision=isinstance(content.get("vision_config"), dict),
        quantization=quantization.get("quant_method"),
        kv_algorithm=quantization.get("kv_cache_quant_algo"),
        custom_code="auto_map" in content and content.get("model_type") not in _NATIVE_TYPES,
        block_size=_block_size(content),
    )


def read_weights(folder: Path) -> Weights:
    """Count the bytes of all safetensors files of a folder, from their headers.

    Raises:
        WeightsError: there are none, one that the index names is missing, or one is cut off.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsError("RuntimeError", f"Cannot find any model weights with `{folder}`")
    for name in sorted(_indexed(folder) - {file.name for file in files}):
        raise WeightsError("FileNotFoundError", f"No such file or directory: {folder / name}")
    total = replicated = 0
    simulated = False
    for file in files:
        metadata, real_bytes = _read_header(file)
        simulated = simulated or SIMULATED_BYTES in metadata
        total += _number(metadata, SIMULATED_BYTES, real_bytes)
        replicated += _number(metadata, SIMULATED_REPLICATED_BYTES, 0)
    return Weights(
        files=len(files), checkpoint_bytes=total, replicated_bytes=min(replicated, total), simulated=simulated
    )


def _not_a_folder(path: str) -> ConfigError:
    if path.startswith(("/", ".")) or path.count("/") != 1:
        return ConfigError(
            "huggingface_hub.errors.HFValidationError",
            f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. "
            "Use `repo_type` argument if needed.",
        )
    return ConfigError(
        "OSError",
        f"We couldn't connect to the hub to load the files, and couldn't find them in the cached files. "
        f"{path} is not the path to a directory containing a file named config.json.",
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError("OSError", f"{path.parent} does not appear to have a file named {path.name}.") from None
    except ValueError:
        raise ConfigError("OSError", f"It looks like the config file at '{path}' is not a valid JSON file.") from None
    if not isinstance(content, dict):
        raise ConfigError("OSError", f"It looks like the config file at '{path}' is not a valid JSON file.")
    return content


def _layout(folder: Path, config: Mapping[str, Any]) -> KVLayout:
    """The KV layout by SGLang's rules: a latent rank makes it MLA, an indexer makes that DSA, else GQA."""
    try:
        layers = int(config["num_hidden_layers"])
        if config.get("kv_lora_rank"):
            rank, rope = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
            if config.get("index_head_dim"):
                return DSALayout(
                    layers=layers,
                    kv_lora_rank=rank,
                    rope_head_dim=rope,
                    # A key of one byte an element, and a 4-byte scale for each 128 of them.
                    indexer_bytes_per_layer=int(config["index_head_dim"]) * 132 // 128,
                )
            return MLALayout(layers=layers, kv_lora_rank=rank, rope_head_dim=rope)
        heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))
        kinds = config.get("layer_types") or ()
        windows = sum(1 for kind in kinds if kind == "sliding_attention")
        # With windows everywhere (a draft's), there is one pool as without any.
        return GQALayout(
            layers=layers, kv_heads=heads, head_dim=head_dim, window_layers=windows if windows < layers else 0
        )
    except KeyError as error:
        raise ConfigError("AttributeError", f"the config of {folder} has no attribute {error}") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError("ValueError", f"the config of {folder} describes no model: {error}") from None


def _quantization(folder: Path, content: Mapping[str, Any], merged: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint's quantization: in config.json, or in the file that NVIDIA's tool writes beside it."""
    section = content.get("quantization_config") or merged.get("quantization_config")
    if isinstance(section, dict):
        return section
    try:
        beside = json.loads((folder / "hf_quant_config.json").read_text(encoding="utf-8"))["quantization"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"quant_method": "modelopt", **beside} if isinstance(beside, dict) else {}


def _block_size(content: Mapping[str, Any]) -> int | None:
    section = content.get("dflash_config")
    value = content.get("block_size") or (section.get("block_size") if isinstance(section, dict) else None)
    return value if isinstance(value, int) else None


def _indexed(folder: Path) -> set[str]:
    names: set[str] = set()
    for index in folder.glob("*.safetensors.index.json"):
        try:
            names.update(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            raise WeightsError("ValueError", f"{index} is not an index of weights") from None
    return names


def _read_header(path: Path) -> tuple[dict[str, str], int]:
    """Metadata and size of a file whose header matches it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(MAX_HEADER_BYTES, size - 8):
                raise WeightsError(
                    "safetensors_rust.SafetensorError", f"Error while deserializing header: header too large ({path})"
                )
            header = json.loads(stream.read(length))
        ends = [int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"]
        metadata = header.get("__metadata__") or {}
    except OSError as error:
        raise WeightsError("OSError", f"{error.strerror}: {path}") from None
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise WeightsError(
            "safetensors_rust.SafetensorError", f"Error while deserializing header: invalid JSON in header ({path})"
        ) from None
    if size != 8 + length + max(ends, default=0):
        raise WeightsError(
            "safetensors_rust.SafetensorError",
            f"Error while deserializing header: incomplete metadata, file not fully covered ({path})",
        )
    return metadata, size


def _number(metadata: Mapping[str, str], key: str, default: int) -> int:
    try:
        return max(0, int(metadata[key]))
    except (KeyError, ValueError, TypeError):
        return default
