"""What the engine reports: steps, finished requests and its load. Plain values: nothing here computes but ratios."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Prompt tokens that a request did not have to compute.

    Attributes:
        device: found in HBM.
        host: loaded back from host memory.
    """

    device: int
    host: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A request that has ended.

    Attributes:
        rid: its name.
        reason: "stop" when it had produced all its output, else "abort".
        prompt_tokens: tokens of its prompt.
        completion_tokens: tokens that it produced.
        cached_device_tokens: prompt tokens found in HBM when its prefill first began.
        cached_host_tokens: prompt tokens loaded back from host memory then.
        arrived_s: when it was submitted.
        prefill_started_s: when its prefill first began, None if it never did.
        first_token_s: when its first prefill ended, None if it never did.
        finished_s: when it ended.
        verify_calls: decode steps it took part in; with speculation each is one verification.
    """

    rid: str
    reason: Literal["stop", "abort"]
    prompt_tokens: int
    completion_tokens: int
    cached_device_tokens: int
    cached_host_tokens: int
    arrived_s: float
    prefill_started_s: float | None
    first_token_s: float | None
    finished_s: float
    verify_calls: int


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of the scheduler's loop that has ended.

    Attributes:
        kind: "prefill" or "decode".
        started_s: when it began.
        at_s: when it ended; tokens and finished requests have this time.
        tokens: new tokens by request.
        finished: requests that ended with it.
        retracted: requests sent back to the queue for want of KV when it began.
        running: requests that decode after it.
        prefill_tokens: prompt tokens computed.
        cached_device_tokens: prompt tokens found in HBM by the requests whose prefill began with it.
        cached_host_tokens: prompt tokens that were loaded back for it.
        verify_calls: decode steps of single requests, each one verification with speculation.
    """

    kind: Literal["prefill", "decode"]
    started_s: float
    at_s: float
    tokens: list[tuple[str, int]] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    retracted: list[str] = field(default_factory=list)
    running: int = 0
    prefill_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    verify_calls: int = 0

    @property
    def duration_s(self) -> float:
        """How long it took."""
        return self.at_s - self.started_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The engine's state and totals at a moment, in SGLang's terms.

    A request whose prompt is being computed is neither running nor waiting.

    Attributes:
        at_s: the moment.
        running: requests that decode.
        waiting: requests in the queue, the retracted ones included.
        prefilling: requests whose prompt is being computed; SGLang shows no such figure.
        retracted: requests in the queue that had run before.
        waiting_tokens: tokens of the requests in the queue.
        waiting_uncached_tokens: of these, not cached as far as known, and what a chunked prompt still lacks.
        used_tokens: held by requests; whole pages.
        evictable_tokens: cached in HBM and held by no request.
        available_tokens: free. Used, evictable and available add up to `max_total_tokens`.
        max_total_tokens: the KV pool, in whole pages.
        max_running_requests: the limit.
        gen_throughput: tokens per second of the last stretch of decode steps, 0 when idle.
        cache_hit_rate: cached share of the prompt tokens of the last prefill step.
        host_used_tokens: in the host pool, also of what is in HBM.
        host_total_tokens: the host pool, in whole pages.
        total_prefill_uncached_tokens: prompt tokens computed.
        total_prefill_busy_us: time in prefill steps.
        cached_device_tokens_total: prompt tokens found in HBM.
        cached_host_tokens_total: prompt tokens loaded back.
        evicted_tokens_total: thrown out of HBM.
        load_back_tokens_total: brought from host memory to HBM.
        backup_tokens_total: copied to host memory.
        generated_tokens_total: output tokens, the first of each request included.
        verify_calls_total: decode steps of single requests.
        retracted_total: retractions.
        decode_steps: decode steps.
        sum_seq_lens: sum over decode steps of their requests' tokens.
    """

    at_s: float
    running: int
    waiting: int
    prefilling: int
    retracted: int
    waiting_tokens: int
    waiting_uncached_tokens: int
    used_tokens: int
    evictable_tokens: int
    available_tokens: int
    max_total_tokens: int
    max_running_requests: int
    gen_throughput: float
    cache_hit_rate: float
    host_used_tokens: int
    host_total_tokens: int
    total_prefill_uncached_tokens: int
    total_prefill_busy_us: int
    cached_device_tokens_total: int
    cached_host_tokens_total: int
    evicted_tokens_total: int
    load_back_tokens_total: int
    backup_tokens_total: int
    generated_tokens_total: int
    verify_calls_total: int
    retracted_total: int
    decode_steps: int
    sum_seq_lens: int

    @property
    def total_tokens(self) -> int:
        """Held and waiting tokens, SGLang's `num_total_tokens` (and `num_active_tokens`)."""
        return self.used_tokens + self.waiting_tokens

    @property
    def token_usage(self) -> float:
        """Share of the pool that requests hold; what is only cached does not count."""
        return self.used_tokens / self.max_total_tokens
