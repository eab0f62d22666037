"""The engine's running totals, and the throughput of the last stretch of decode steps. Not here: anything decided."""

from dataclasses import dataclass


@dataclass(slots=True)
class Meters:
    """Totals since the start; the names are those of `Load`."""

    prefill_uncached_tokens: int = 0
    prefill_busy_s: float = 0.0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    generated_tokens: int = 0
    retracted: int = 0
    decode_steps: int = 0
    verify_calls: int = 0
    sum_seq_lens: int = 0
    cache_hit_rate: float = 0.0
    gen_throughput: float = 0.0
    _stretch_started_s: float | None = None
    _stretch_tokens: int = 0

    def prefill(self, *, computed_tokens: int, device_tokens: int, host_tokens: int) -> None:
        """Count a prefill step that begins."""
        cached_tokens = device_tokens + host_tokens
        self.cached_device_tokens += device_tokens
        self.cached_host_tokens += host_tokens
        self.cache_hit_rate = cached_tokens / max(1, cached_tokens + computed_tokens)

    def decode(self, *, steps: int, batch: int, seq_lens: int, tokens: int, started_s: float) -> None:
        """Count decode steps of the same requests that have ended; `seq_lens` and `tokens` are sums over the steps."""
        self.decode_steps += steps
        self.verify_calls += steps * batch
        self.sum_seq_lens += seq_lens
        self.generated_tokens += tokens
        self._stretch_tokens += tokens
        if self._stretch_started_s is None:
            self._stretch_started_s = started_s

    def end_stretch(self, now_s: float) -> None:
        """Take the throughput since the last stretch ended, prefill steps between included."""
        if self._stretch_started_s is not None and now_s > self._stretch_started_s:
            self.gen_throughput = self._stretch_tokens / (now_s - self._stretch_started_s)
        self._stretch_started_s, self._stretch_tokens = now_s, 0

    def idle(self) -> None:
        """Nothing runs any more."""
        self.gen_throughput = 0.0
        self._stretch_started_s, self._stretch_tokens = None, 0
