"""Model and draft profiles: weights, KV geometry and the engine flags that suit them.

A profile is data (`data/models/*.toml`) or is made from the geometry that a pool gives inline. It says what a
model is; whether it fits is for `sizing`, and how its flags become an argv is for `render`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglpool.catalog.gpus import GPUType
from sglpool.catalog.layouts import AttentionKind, GQALayout, KVLayout, MLALayout

#: One engine flag and its value; None is a switch without a value.
Flag = tuple[str, str | None]

#: The running limit of a replica: twice a target of 6, as a production fleet of coding agents sets it.
DEFAULT_MAX_RUNNING_REQUESTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftProfile:
    """A draft model for speculative decoding.

    Attributes:
        algorithm: `--speculative-algorithm`, for example DFLASH.
        repo: the Hugging Face repository.
        checkpoint_bytes: size of its weight files.
        sharded: True if the ranks split its weights, False if each holds all of them.
        layout: its own KV cache, which exists beside the target's.
        draft_tokens: tokens proposed per step (`--speculative-num-draft-tokens`).
        window_tokens: `--speculative-draft-window-size`, or None.
        kv_dtype: recommended `--speculative-draft-kv-cache-dtype`.
        quantization: recommended `--speculative-draft-model-quantization`; unset it inherits the target's.
        attention_backend: recommended `--speculative-draft-attention-backend`, or None for SGLang's choice.
        attention_mode: recommended `--speculative-attention-mode`, or None for SGLang's default.
        source: where the numbers come from.
    """

    algorithm: str
    repo: str
    checkpoint_bytes: int
    sharded: bool
    layout: KVLayout
    draft_tokens: int
    window_tokens: int | None
    kv_dtype: str
    quantization: str
    attention_backend: str | None
    attention_mode: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A model that a pool can serve.

    Attributes:
        name: what `spec.model.profile` says.
        title: the name for people.
        repo: the Hugging Face repository of exactly this checkpoint; empty for inline geometry.
        architecture: the model class of the checkpoint's config; empty for inline geometry.
        layout: the KV cache of one token.
        parameters: number of parameters, 0 if not known.
        checkpoint_bytes: size of the weight files; a rank is taken to load that divided by tp.
        replicated_bytes_low: least bytes of the weights that are whole on every rank.
        replicated_bytes_high: most of them. Both only widen the error band of a result.
        max_context_tokens: the model's own context limit, 0 if not known.
        vision: True if it takes images (the warm-up can send one).
        quantization: `--quantization`, or None to let the engine read the checkpoint.
        tool_call_parser: `--tool-call-parser`, or None.
        reasoning_parser: `--reasoning-parser`, or None.
        trust_remote_code: whether the checkpoint needs `--trust-remote-code`.
        chunked_prefill_tokens: recommended `--chunked-prefill-size`, or None for SGLang's choice.
        max_running_requests: recommended `--max-running-requests`.
        mem_fraction_percents: `--mem-fraction-static` in percent per GPU type, where not the type's own.
        flags: other recommended flags, in order, on every GPU.
        gpu_flags: more of them per GPU type.
        tensor_parallel_flags: more of them per tensor-parallel size.
        drafts: known draft models.
        source: where the numbers come from.
    """

    name: str
    title: str
    repo: str = ""
    architecture: str = ""
    layout: KVLayout
    parameters: int = 0
    checkpoint_bytes: int
    replicated_bytes_low: int
    replicated_bytes_high: int
    max_context_tokens: int
    vision: bool
    quantization: str | None
    tool_call_parser: str | None
    reasoning_parser: str | None
    trust_remote_code: bool
    chunked_prefill_tokens: int | None = None
    max_running_requests: int = DEFAULT_MAX_RUNNING_REQUESTS
    mem_fraction_percents: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()
    gpu_flags: Mapping[str, tuple[Flag, ...]] = field(default_factory=dict)
    tensor_parallel_flags: Mapping[int, tuple[Flag, ...]] = field(default_factory=dict)
    drafts: tuple[DraftProfile, ...] = ()
    source: str

    @property
    def attention(self) -> AttentionKind:
        """The attention family."""
        return self.layout.kind

    def mem_fraction_percent(self, gpu: GPUType) -> int:
        """The recommended `--mem-fraction-static` on this GPU type, in percent."""
        return self.mem_fraction_percents.get(gpu.name, gpu.default_mem_fraction_percent)

    def recommended_flags(self, gpu: GPUType, tensor_parallel_size: int) -> tuple[Flag, ...]:
        """The recommended flags on this GPU type and size, in order.

        Flags that have an attribute of their own (quantization, parsers, remote code, prefill chunk,
        running limit, memory fraction) are not repeated here.
        """
        by_size = self.tensor_parallel_flags.get(tensor_parallel_size, ())
        return self.flags + self.gpu_flags.get(gpu.name, ()) + by_size

    def draft(self, algorithm: str) -> DraftProfile | None:
        """The known draft model for a speculative algorithm, or None."""
        return next((draft for draft in self.drafts if draft.algorithm == algorithm.upper()), None)


def _geometry_layout(
    attention: str, layers: int, *, latent: tuple[int | None, int | None], heads: tuple[int | None, int | None]
) -> KVLayout:
    if attention == AttentionKind.MLA:
        rank, rope = latent
        if rank is None or rope is None:
            raise ValueError("geometry with attention MLA needs kvLoraRank and ropeHeadDim")
        return MLALayout(layers=layers, kv_lora_rank=rank, rope_head_dim=rope)
    if attention == AttentionKind.GQA:
        count, dim = heads
        if count is None or dim is None:
            raise ValueError("geometry with attention GQA needs kvHeads and headDim")
        return GQALayout(layers=layers, kv_heads=count, head_dim=dim)
    raise ValueError(f"geometry with attention {attention!r} is not supported; use MLA or GQA, or a profile")


def model_from_geometry(
    *,
    name: str,
    attention: str,
    layers: int,
    weights_bytes: int,
    max_context_tokens: int = 0,
    kv_lora_rank: int | None = None,
    rope_head_dim: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    vision: bool = False,
    quantization: str | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    trust_remote_code: bool = False,
) -> ModelProfile:
    """Build a profile for a model that the catalogue does not know.

    Raises:
        ValueError: the attention is neither MLA nor GQA, or one of its own fields is missing.
    """
    latent, heads = (kv_lora_rank, rope_head_dim), (kv_heads, head_dim)
    return ModelProfile(
        name=name,
        title=name,
        layout=_geometry_layout(attention, layers, latent=latent, heads=heads),
        checkpoint_bytes=weights_bytes,
        replicated_bytes_low=0,
        # A guess for a model nobody has measured: 1% of the weights is whole on every rank.
        replicated_bytes_high=weights_bytes // 100,
        max_context_tokens=max_context_tokens,
        vision=vision,
        quantization=quantization,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        trust_remote_code=trust_remote_code,
        source="the pool's own geometry",
    )
