"""How long things take on a GPU type: constants of a Kimi-K2-class model, and how they scale.

Model seconds. Where a figure was not measured it says "estimate" and why. Not here: any dependence on the model but
the bytes that a token's KV takes; a small model is therefore as slow as a large one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Durations of one replica, in model seconds.

    Attributes:
        prefill_base_s_per_token: one prompt token without context.
        prefill_context_s_per_token: what every token of context adds to it (attention).
        decode_base_s: a decode step without requests: reading the weights.
        decode_per_request_s: what every running request adds to a decode step.
        accept_length: tokens per request and decode step; 1.0 without speculation.
        host_load_tokens_per_s: HiCache's way from host memory to HBM.
        decode_share_during_prefill: share of the time that decode gets while prompts wait, 0 for none.
        weight_load_bytes_per_s: checkpoint bytes of the whole replica.
        start_overhead_s: start without the weights: imports, CUDA graphs.
        first_prompt_s: what the first prompt of a fresh process pays for compilation.
        first_long_prompt_s: the same for the first long prompt.
        first_image_s: the same for the first image.
    """

    prefill_base_s_per_token: float
    prefill_context_s_per_token: float
    decode_base_s: float
    decode_per_request_s: float
    accept_length: float = 1.0
    host_load_tokens_per_s: float
    decode_share_during_prefill: float = 0.2
    weight_load_bytes_per_s: float
    start_overhead_s: float
    first_prompt_s: float = 0.0
    first_long_prompt_s: float = 0.0
    first_image_s: float = 0.0

    def __post_init__(self) -> None:
        for field in ("prefill_base_s_per_token", "decode_base_s", "host_load_tokens_per_s", "weight_load_bytes_per_s"):
            if not getattr(self, field) > 0:
                raise ValueError(f"Rates.{field} is {getattr(self, field)}: give more than 0")
        if not self.accept_length >= 1:
            raise ValueError(f"Rates.accept_length is {self.accept_length}: a decode step yields at least 1 token")
        if not 0 <= self.decode_share_during_prefill < 1:
            raise ValueError(
                f"Rates.decode_share_during_prefill is {self.decode_share_during_prefill}: give 0 or more, below 1"
            )

    def prefill_s(self, tokens: int, context_tokens: int) -> float:
        """Time of a stretch of prompt, after so many tokens of context."""
        mean_context_tokens = context_tokens + tokens / 2
        return tokens * (self.prefill_base_s_per_token + self.prefill_context_s_per_token * mean_context_tokens)

    def decode_s(self, requests: int) -> float:
        """Time of one decode step."""
        return self.decode_base_s + self.decode_per_request_s * requests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accelerator:
    """Factors on the durations of a B200."""

    prefill: float
    context: float
    decode: float


_ACCELERATORS = {
    "B200": _Accelerator(prefill=1.0, context=1.0, decode=1.0),
    # Estimate: 1.5 times the dense FP4 compute of a B200, the same 8 TB/s of HBM.
    "B300": _Accelerator(prefill=1 / 1.5, context=1 / 1.5, decode=1.0),
    # Estimate: no FP4, so weights are widened and multiplied in 8 bits or 16: a third of the useful speed; attention
    # in bf16 at 1.0 PFLOP/s to the B200's 2.25; HBM of 4.8 TB/s to the B200's 8.
    "H200": _Accelerator(prefill=3.0, context=2.25, decode=8 / 4.8),
}

# Kimi K2 (32B active, MLA) on four B200s: 100,000 tokens cold in about 6 s; a step of 8 ms and 0.8 ms a request at
# about 100,000 tokens of context. Assumptions of the workload study, not measured by us.
_REFERENCE_TP = 4
_PREFILL_BASE_S_PER_TOKEN = 2.5e-5
_PREFILL_CONTEXT_S_PER_TOKEN = 7.5e-10
_DECODE_BASE_S = 0.008
_DECODE_PER_REQUEST_S = 0.0008
_DECODE_SHARE_DURING_PREFILL = 0.2

# Estimate: twice the ranks are 1.8 times as fast where they compute (all-reduce takes the rest) and 1.6 times where
# they read weights. What a request adds to a decode step is reading its KV, which MLA keeps whole on every rank.
_COMPUTE_EXPONENT = 0.85
_WEIGHTS_EXPONENT = 0.7

# 100,000 tokens of fp8 KV (35,136 bytes each) come back from host memory in 0.07 s: about a PCIe 5.0 x16 link, and
# every rank loads the whole latent over its own.
_HOST_LOAD_BYTES_PER_S = 50e9

# Real starts with dummy weights: 85 to 96 s to an open port, decode graphs included. A cold start of Kimi K2.6 (595 GB)
# takes about 16 minutes; the storage is the limit, so more ranks do not load faster (estimate).
_START_OVERHEAD_S = 90.0
_WEIGHT_LOAD_BYTES_PER_S = 595.15e9 / (16 * 60 - _START_OVERHEAD_S)

# Read: the first six tokens of a fresh process took 18.9 s of prefill. Field reports: 25 to 80 s for the first image,
# and "the first long prompts pay too" (the figure for them is an estimate).
_FIRST_PROMPT_S = 18.9
_FIRST_LONG_PROMPT_S = 20.0
_FIRST_IMAGE_S = 50.0

# Field reports: a healthy draft yields 3 to 6 tokens per verification. Estimate: drafting and verifying eight tokens
# makes a step 1.3 times as long.
_ACCEPT_LENGTH = 3.5
_SPECULATIVE_STEP = 1.3


def rates_for(accelerator: str, tensor_parallel_size: int, *, speculative: bool, kv_bytes_per_token: int) -> Rates:
    """Durations of a replica of a Kimi-K2-class model.

    Args:
        accelerator: "B200", "B300" or "H200".
        tensor_parallel_size: ranks of the replica.
        speculative: whether a draft model proposes tokens.
        kv_bytes_per_token: bytes of a token's KV on each rank, the draft's included.

    Raises:
        ValueError: the accelerator is unknown, or a figure is not positive.
    """
    factors = _ACCELERATORS.get(accelerator)
    if factors is None:
        raise ValueError(f"no rates for the accelerator {accelerator!r}: known are {', '.join(sorted(_ACCELERATORS))}")
    if tensor_parallel_size < 1 or kv_bytes_per_token < 1:
        raise ValueError(
            f"tensor_parallel_size is {tensor_parallel_size} and kv_bytes_per_token {kv_bytes_per_token}: "
            "both must be at least 1"
        )
    ranks = tensor_parallel_size / _REFERENCE_TP
    compute, weights = ranks**-_COMPUTE_EXPONENT, ranks**-_WEIGHTS_EXPONENT
    decode = factors.decode * (_SPECULATIVE_STEP if speculative else 1.0)
    return Rates(
        prefill_base_s_per_token=_PREFILL_BASE_S_PER_TOKEN * factors.prefill * compute,
        prefill_context_s_per_token=_PREFILL_CONTEXT_S_PER_TOKEN * factors.context * compute,
        decode_base_s=_DECODE_BASE_S * decode * weights,
        decode_per_request_s=_DECODE_PER_REQUEST_S * decode,
        accept_length=_ACCEPT_LENGTH if speculative else 1.0,
        host_load_tokens_per_s=_HOST_LOAD_BYTES_PER_S / kv_bytes_per_token,
        decode_share_during_prefill=_DECODE_SHARE_DURING_PREFILL,
        weight_load_bytes_per_s=_WEIGHT_LOAD_BYTES_PER_S,
        start_overhead_s=_START_OVERHEAD_S,
        first_prompt_s=_FIRST_PROMPT_S,
        first_long_prompt_s=_FIRST_LONG_PROMPT_S,
        first_image_s=_FIRST_IMAGE_S,
    )
