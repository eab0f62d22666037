"""How many bytes of KV cache one token costs on one GPU, per attention kind.

The rules are SGLang's: an MLA latent is whole on every rank, GQA heads are divided among the ranks, a
sparse-attention model (DSA) adds an indexer, and a model with sliding windows keeps a second, smaller pool.
Nothing here knows about GPUs or memory sizes; `sizing` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol


class AttentionKind(StrEnum):
    """The attention families whose KV cache SGLang lays out differently."""

    MLA = "MLA"
    GQA = "GQA"
    DSA = "DSA"


#: Bytes of one cached element. Read on an H200 with SGLang 0.5.23: bf16 is exactly twice fp8_e4m3, and fp8
#: has no overhead for scales. `fp8_e5m2` has the same width.
ELEMENT_BYTES = {"bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


def element_bytes(dtype: str) -> int:
    """Return the width in bytes of one element of a KV cache.

    Raises:
        ValueError: the dtype is not one that the project renders.
    """
    try:
        return ELEMENT_BYTES[dtype]
    except KeyError:
        known = ", ".join(ELEMENT_BYTES)
        raise ValueError(f"KV dtype {dtype!r} is unknown; use one of {known}") from None


class KVLayout(Protocol):
    """What one token costs on one rank."""

    @property
    def kind(self) -> AttentionKind:
        """The attention family, which decides the KV dtypes that a GPU accepts."""
        ...

    def bytes_per_token_per_rank(self, dtype: str, tensor_parallel_size: int) -> int:
        """Bytes of KV proper that one token takes on each rank; also what one token takes in a host pool."""
        ...

    def indexer_bytes_per_token_per_rank(self) -> int:
        """Bytes beside the KV proper: zero but for models with an indexer. Outside `--hicache-size`."""
        ...

    def one_layer(self) -> KVLayout:
        """The layout of a single full layer, which is what a model's own draft layer (NEXTN) keeps."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MLALayout:
    """Multi-head latent attention: one latent per layer, **whole on every rank** (read at TP1 and TP2)."""

    layers: int
    kv_lora_rank: int
    rope_head_dim: int

    @property
    def kind(self) -> AttentionKind:
        """Always MLA."""
        return AttentionKind.MLA

    def bytes_per_token_per_rank(self, dtype: str, tensor_parallel_size: int) -> int:
        """Layers x (latent + rotary part) x element; never divided by the tensor-parallel size."""
        del tensor_parallel_size
        return self.layers * (self.kv_lora_rank + self.rope_head_dim) * element_bytes(dtype)

    def indexer_bytes_per_token_per_rank(self) -> int:
        """Zero: no indexer."""
        return 0

    def one_layer(self) -> MLALayout:
        """The same with one full layer."""
        return replace(self, layers=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GQALayout:
    """Grouped-query attention: keys and values of the heads that a rank holds.

    `window_layers` of the `layers` keep only a sliding window. SGLang gives them a second pool of
    `window_pool_percent` of the tokens of the full one (`--swa-full-tokens-ratio`, 0.8 by default), so a
    token costs a full layer's bytes on the others and that share of them on these.
    """

    layers: int
    kv_heads: int
    head_dim: int
    window_layers: int = 0
    window_pool_percent: int = 80

    @property
    def kind(self) -> AttentionKind:
        """Always GQA."""
        return AttentionKind.GQA

    def bytes_per_token_per_rank(self, dtype: str, tensor_parallel_size: int) -> int:
        """Layers x 2 x heads of a rank x head size x element; heads divide by min(tp, heads)."""
        heads = -(-self.kv_heads // min(tensor_parallel_size, self.kv_heads))
        layer = 2 * heads * self.head_dim * element_bytes(dtype)
        full = (self.layers - self.window_layers) * layer
        return full + -(-self.window_layers * layer * self.window_pool_percent // 100)

    def indexer_bytes_per_token_per_rank(self) -> int:
        """Zero: no indexer."""
        return 0

    def one_layer(self) -> GQALayout:
        """The same with one full layer."""
        return replace(self, layers=1, window_layers=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DSALayout:
    """DeepSeek sparse attention: an MLA latent plus an indexer key per layer, whole on every rank.

    The fp8 latent is stored as `fp8_bytes_per_layer` (512 B of latent, 16 B of scales and a bf16 rotary part
    of 128 B: 656 B in SGLang 0.5.23); in bf16 it is the plain latent. The indexer's pool does not follow the
    dtype.
    """

    layers: int
    kv_lora_rank: int
    rope_head_dim: int
    fp8_bytes_per_layer: int = 656
    indexer_bytes_per_layer: int = 132

    @property
    def kind(self) -> AttentionKind:
        """Always DSA."""
        return AttentionKind.DSA

    def bytes_per_token_per_rank(self, dtype: str, tensor_parallel_size: int) -> int:
        """Layers x the stored latent; never divided by the tensor-parallel size."""
        del tensor_parallel_size
        if element_bytes(dtype) == 1:
            return self.layers * self.fp8_bytes_per_layer
        return self.layers * (self.kv_lora_rank + self.rope_head_dim) * element_bytes(dtype)

    def indexer_bytes_per_token_per_rank(self) -> int:
        """Layers x one quantised indexer key with its scale."""
        return self.layers * self.indexer_bytes_per_layer

    def one_layer(self) -> DSALayout:
        """The same with one full layer."""
        return replace(self, layers=1)
