"""The scheduler's loop: one step at a time, prefill first, decode in between.

A step begins as soon as the one before it has ended and something is to do; its length is known when it begins. So
the state changes only at the ends of steps, on submit and on abort, and advancing in one go or bit by bit comes to
the same. Not here: who is taken into a step (`scheduler`), where KV lies (`tiers`), how long things take (`rates`).
"""

from dataclasses import dataclass, replace
from math import ceil

from sglpool.enginemodel.config import EngineConfig, Request
from sglpool.enginemodel.entry import Entry, State
from sglpool.enginemodel.errors import QueueFull, TooLong
from sglpool.enginemodel.meters import Meters
from sglpool.enginemodel.rates import Rates
from sglpool.enginemodel.records import CachedTokens, Finished, Load, Step
from sglpool.enginemodel.scheduler import DecodeBatch, PrefillBatch, Scheduler

__all__ = [
    "CachedTokens",
    "Engine",
    "EngineConfig",
    "Finished",
    "Load",
    "QueueFull",
    "Rates",
    "Request",
    "Step",
    "TooLong",
]

DECODE_STEPS_PER_SNAPSHOT = 15
"""While it decodes, SGLang renews its snapshot so rarely (read off a running server)."""


@dataclass(frozen=True, slots=True)
class _Running:
    """The step in flight."""

    started_s: float
    ends_s: float
    batch: PrefillBatch | DecodeBatch
    decode_step_s: float = 0.0


class Engine:
    """A replica's scheduler, KV pool and caches.

    Attributes:
        config: what it is made of; `config.rates` are those it started with.
        published: the load as SGLang's snapshot shows it: renewed when a prefill step begins, every 15 decode steps
            and when the engine falls idle.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._rates = config.rates
        self._meters = Meters()
        self._scheduler = Scheduler(config, self._meters)
        self._entries: dict[str, Entry] = {}
        self._accepted = 0
        self._now_s = 0.0
        self._step: _Running | None = None
        self._ended: list[Step] = []
        self._decode_owed_s = 0.0
        self.published = self.load()

    def submit(self, request: Request, now_s: float) -> None:
        """Take a request; if the engine is idle its prefill begins at once.

        The pool must hold prompt and output; a caller that does not know how much is asked cuts the output short, as
        SGLang does.

        Raises:
            QueueFull: too many wait. As in SGLang, free running slots do not help: a request waits for the next step.
            TooLong: prompt and output would not fit the pool even alone.
            ValueError: a live request has that name, or time went backwards.
        """
        self._run_to(now_s)
        if request.rid in self._entries:
            raise ValueError(f"request {request.rid} is alive already: give every request its own rid")
        pages = self._scheduler.pages(request.prompt_tokens + max(request.output_tokens - 1, 0))
        if pages > self.config.pool_pages:
            raise TooLong(
                f"request {request.rid}: {request.prompt_tokens} prompt and {request.output_tokens} output tokens do "
                f"not fit the KV pool of {self.config.pool_pages * self.config.page_size_tokens} tokens"
            )
        limit = self.config.max_queued_requests
        if limit is not None and self._step is not None and len(self._scheduler.waiting) >= limit:
            raise QueueFull(
                f"request {request.rid}: {len(self._scheduler.waiting)} requests wait, the limit is {limit}"
            )
        self._cut_stride(now_s)
        entry = Entry(request, self._accepted, now_s)
        self._accepted += 1
        self._entries[request.rid] = entry
        self._scheduler.enqueue(entry)
        if self._step is None:
            self._start_step(now_s)

    def abort(self, rid: str, now_s: float) -> Finished | None:
        """End a request at once, wherever it is; what it computed stays cached, the rest of its KV is free.

        The step in flight goes on without it.

        Returns:
            How it ended, or None if no such request is alive.
        """
        self._run_to(now_s)
        entry = self._entries.get(rid)
        if entry is None:
            return None
        self._cut_stride(now_s)
        finished = self._finish(entry, "abort", now_s)
        if not self._entries:
            self._fall_idle()
        return finished

    def next_event_s(self) -> float | None:
        """When the step in flight ends, None when there is none."""
        return None if self._step is None else self._step.ends_s

    def advance(self, now_s: float) -> list[Step]:
        """Move to a moment and return the steps that have ended since the last call, in order."""
        self._run_to(now_s)
        ended, self._ended = self._ended, []
        return ended

    def info(self, rid: str) -> CachedTokens | None:
        """What a live request's prefill found cached; None before it has begun and after the request's end."""
        entry = self._entries.get(rid)
        return None if entry is None else entry.cached

    def set_rates(self, rates: Rates) -> None:
        """Change how long things take, from the next step on."""
        self._cut_stride(self._now_s)
        self._rates = rates

    def flush(self) -> bool:
        """Forget both cache tiers; False, and nothing done, while any request is alive."""
        if self._entries:
            return False
        self._scheduler.cache.flush()
        self.published = self.load()
        return True

    def load(self) -> Load:
        """The state now."""
        scheduler, meters, page = self._scheduler, self._meters, self.config.page_size_tokens
        cache = scheduler.cache
        return Load(
            at_s=self._now_s,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            prefilling=len(self._entries) - len(scheduler.running) - len(scheduler.waiting),
            retracted=scheduler.waiting_retracted,
            waiting_tokens=scheduler.waiting_tokens,
            waiting_uncached_tokens=scheduler.uncached_tokens,
            used_tokens=cache.used_pages * page,
            evictable_tokens=cache.evictable_pages * page,
            available_tokens=cache.available_pages * page,
            max_total_tokens=cache.pool_pages * page,
            max_running_requests=self.config.max_running_requests,
            gen_throughput=meters.gen_throughput,
            cache_hit_rate=meters.cache_hit_rate,
            host_used_tokens=cache.host_used_pages * page,
            host_total_tokens=cache.host_pages * page,
            total_prefill_uncached_tokens=meters.prefill_uncached_tokens,
            total_prefill_busy_us=round(meters.prefill_busy_s * 1e6),
            cached_device_tokens_total=meters.cached_device_tokens,
            cached_host_tokens_total=meters.cached_host_tokens,
            evicted_tokens_total=cache.evicted_pages * page,
            load_back_tokens_total=cache.load_back_pages * page,
            backup_tokens_total=cache.backup_pages * page,
            generated_tokens_total=meters.generated_tokens,
            verify_calls_total=meters.verify_calls,
            retracted_total=meters.retracted,
            decode_steps=meters.decode_steps,
            sum_seq_lens=meters.sum_seq_lens,
        )

    def _run_to(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time went backwards: now_s is {now_s} after {self._now_s}")
        while self._step is not None and self._step.ends_s <= now_s:
            step = self._step
            self._now_s = step.ends_s
            if isinstance(step.batch, PrefillBatch):
                self._ended.append(self._end_prefill(step, step.batch))
            else:
                self._ended.append(self._end_decode(step, step.batch))
            self._start_step(step.ends_s)
        self._now_s = now_s

    def _start_step(self, now_s: float) -> None:
        """Begin the next step: prompts first, unless decode has its share of the time to come yet."""
        self._now_s = now_s
        self._step = None
        running = self._scheduler.running
        if not running or self._decode_owed_s <= 0:
            self._begin_prefill(now_s)
        if self._step is None and running:
            step_s = self._rates.decode_s(len(running))
            decode = self._scheduler.decode_batch(self._rates.accept_length, self._most_steps(step_s))
            if decode.parts:
                step_s = self._rates.decode_s(len(decode.parts))
                self._step = _Running(now_s, now_s + decode.steps * step_s, decode, step_s)
            else:
                # A long prompt has taken the room of the last running request, and can now go on.
                self._begin_prefill(now_s)
        if self._step is None:
            self._fall_idle()

    def _most_steps(self, step_s: float) -> int:
        """Decode steps that may pass as one: to a snapshot with new counts, and while decode has its share."""
        stride = self.config.decode_stride_steps
        if stride == 1:
            return 1
        shown = self.published
        if (shown.running, shown.waiting) != (len(self._scheduler.running), len(self._scheduler.waiting)):
            stride = min(stride, DECODE_STEPS_PER_SNAPSHOT - self._meters.decode_steps % DECODE_STEPS_PER_SNAPSHOT)
        if self._decode_owed_s > 0 and self._scheduler.prefill_waits:
            stride = min(stride, ceil(self._decode_owed_s / step_s))
        return stride

    def _cut_stride(self, now_s: float) -> None:
        """End the decode steps that are over and leave the one that is really in flight: someone comes or goes."""
        step = self._step
        if step is None or not isinstance(step.batch, DecodeBatch) or step.batch.steps == 1:
            return
        steps = min(int((now_s - step.started_s) / step.decode_step_s), step.batch.steps - 1)
        cut_s = step.started_s + steps * step.decode_step_s
        if steps:
            step.batch.cut(steps)
            self._ended.append(self._end_decode(replace(step, ends_s=cut_s), step.batch))
        step.batch.cut(1)
        self._step = replace(step, started_s=cut_s, ends_s=cut_s + step.decode_step_s)

    def _begin_prefill(self, now_s: float) -> None:
        batch = self._scheduler.prefill_batch(now_s)
        if batch is None:
            self._decode_owed_s = 0.0
            return
        duration_s = batch.host_tokens / self._rates.host_load_tokens_per_s + batch.extra_s
        for part in batch.parts:
            duration_s += self._rates.prefill_s(part.tokens, part.entry.computed_tokens)
        self._step = _Running(now_s, now_s + duration_s, batch)
        self.published = self.load()

    def _end_prefill(self, step: _Running, batch: PrefillBatch) -> Step:
        now_s = step.ends_s
        report = Step(
            kind="prefill",
            started_s=step.started_s,
            at_s=now_s,
            retracted=batch.retracted,
            cached_device_tokens=batch.device_tokens,
            cached_host_tokens=batch.host_tokens,
        )
        decoding = bool(self._scheduler.running)
        self._meters.prefill_busy_s += now_s - step.started_s
        for part in batch.parts:
            entry = part.entry
            report.prefill_tokens += part.tokens
            if entry.state is State.GONE or not self._scheduler.prefilled(part):
                continue
            if entry.first_token_s is None:
                entry.first_token_s = now_s
            if entry.left_tokens > 0:
                entry.generated_tokens += 1
                self._meters.generated_tokens += 1
                report.tokens.append((entry.request.rid, 1))
            if entry.left_tokens <= 0:
                report.finished.append(self._finish(entry, "stop", now_s))
        self._meters.prefill_uncached_tokens += report.prefill_tokens
        report.running = len(self._scheduler.running)
        if decoding:
            share = self._rates.decode_share_during_prefill
            self._decode_owed_s += (now_s - step.started_s) * share / (1 - share)
        return report

    def _end_decode(self, step: _Running, batch: DecodeBatch) -> Step:
        now_s = step.ends_s
        report = Step(kind="decode", started_s=step.started_s, at_s=now_s, retracted=batch.retracted)
        seq_lens = tokens = alive = 0
        for entry, produced in batch.parts:
            if entry.state is State.GONE:
                continue
            self._scheduler.decoded(entry, produced, batch)
            alive += 1
            report.tokens.append((entry.request.rid, produced))
            seq_lens += batch.steps * entry.computed_tokens - (batch.steps - 1) * produced // 2
            tokens += produced
            if entry.left_tokens <= 0:
                report.finished.append(self._finish(entry, "stop", now_s))
        report.running = len(self._scheduler.running)
        report.verify_calls = alive * batch.steps
        meters = self._meters
        meters.decode(steps=batch.steps, batch=alive, seq_lens=seq_lens, tokens=tokens, started_s=step.started_s)
        # Time beyond what decode was owed is not saved up.
        self._decode_owed_s = max(self._decode_owed_s - (now_s - step.started_s), -step.decode_step_s)
        if meters.decode_steps % DECODE_STEPS_PER_SNAPSHOT < batch.steps:
            meters.end_stretch(now_s)
            self.published = self.load()
        return report

    def _finish(self, entry: Entry, reason: str, now_s: float) -> Finished:
        self._scheduler.leave(entry)
        request = entry.request
        del self._entries[request.rid]
        return Finished(
            rid=request.rid,
            reason="abort" if reason == "abort" else "stop",
            prompt_tokens=request.prompt_tokens,
            completion_tokens=entry.generated_tokens,
            cached_device_tokens=entry.cached.device if entry.cached else 0,
            cached_host_tokens=entry.cached.host if entry.cached else 0,
            arrived_s=entry.arrived_s,
            prefill_started_s=entry.prefill_started_s,
            first_token_s=entry.first_token_s,
            finished_s=now_s,
            verify_calls=entry.verify_calls,
        )

    def _fall_idle(self) -> None:
        self._decode_owed_s = 0.0
        self._meters.idle()
        self.published = self.load()
