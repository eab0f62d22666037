"""What an engine is made of and what it is asked: sizes, limits, one request.

Not here: how long anything takes (`rates`), and any state.
"""

from dataclasses import dataclass

from sglpool.enginemodel.rates import Rates

BLOCK_ID_BYTES = 8
"""Bytes of ids per full page of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One replica, as its flags and its memory make it.

    Attributes:
        max_total_tokens: tokens of the KV pool in HBM; rounded down to whole pages, as SGLang does.
        host_total_tokens: tokens of HiCache's host pool, 0 without HiCache; rounded down too.
        page_size_tokens: tokens of a page.
        max_running_requests: requests that hold KV at once, prefill included.
        max_queued_requests: requests that may wait, None without a limit.
        chunked_prefill_tokens: prompt tokens of one prefill step; 0 or less switches chunking off.
        max_prefill_tokens: no further request joins a prefill step that has reached so many tokens.
        schedule_policy: "fcfs" or "lpm" (longest cached prefix first); any other behaves as fcfs.
        decode_stride_steps: decode steps that may pass as one while nobody comes or goes: a simulation of many
            replicas is many times faster for it. The report of a step then covers several, and a snapshot whose counts
            of requests are unchanged may come later than it should.
        rates: how long things take.
    """

    max_total_tokens: int
    host_total_tokens: int = 0
    page_size_tokens: int = 64
    max_running_requests: int
    max_queued_requests: int | None = None
    chunked_prefill_tokens: int = 16_384
    max_prefill_tokens: int = 16_384
    schedule_policy: str = "fcfs"
    decode_stride_steps: int = 1
    rates: Rates

    def __post_init__(self) -> None:
        for field, least in (
            ("page_size_tokens", 1),
            ("max_running_requests", 1),
            ("max_prefill_tokens", 1),
            ("decode_stride_steps", 1),
        ):
            if getattr(self, field) < least:
                raise ValueError(f"EngineConfig.{field} is {getattr(self, field)}: give at least {least}")
        if self.pool_pages < 1:
            raise ValueError(
                f"EngineConfig.max_total_tokens is {self.max_total_tokens}: give at least one page of "
                f"{self.page_size_tokens} tokens"
            )
        if self.host_total_tokens < 0:
            raise ValueError(f"EngineConfig.host_total_tokens is {self.host_total_tokens}: give 0 for no HiCache")
        if self.max_queued_requests is not None and self.max_queued_requests < 0:
            raise ValueError(f"EngineConfig.max_queued_requests is {self.max_queued_requests}: give None for no limit")
        if self.chunked_prefill_tokens > 0 and self.chunked_prefill_tokens % self.page_size_tokens:
            raise ValueError(
                f"EngineConfig.chunked_prefill_tokens is {self.chunked_prefill_tokens}: give a multiple of "
                f"page_size_tokens, {self.page_size_tokens}"
            )

    @property
    def pool_pages(self) -> int:
        """Whole pages of the KV pool."""
        return self.max_total_tokens // self.page_size_tokens

    @property
    def host_pages(self) -> int:
        """Whole pages of the host pool."""
        return self.host_total_tokens // self.page_size_tokens


@dataclass(slots=True, kw_only=True)
class Request:
    """One request, its output known beforehand.

    Attributes:
        rid: its name, unique among the requests alive.
        ids: block ids of the prompt and of the output that it will produce; pages without an id are never shared.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens that it produces unless it is aborted.
        extra_prefill_s: compile or image work that its prefill pays.
    """

    rid: str
    ids: bytes
    prompt_tokens: int
    output_tokens: int
    extra_prefill_s: float = 0.0

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 0 or self.extra_prefill_s < 0:
            raise ValueError(
                f"request {self.rid}: prompt_tokens {self.prompt_tokens} must be at least 1, output_tokens "
                f"{self.output_tokens} and extra_prefill_s {self.extra_prefill_s} at least 0"
            )
        if len(self.ids) % BLOCK_ID_BYTES:
            raise ValueError(
                f"request {self.rid}: ids are {len(self.ids)} bytes; give {BLOCK_ID_BYTES} bytes per full page"
            )
