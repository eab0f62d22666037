"""What the simulated engine counts, and when its gauges are written: SGLang's rules, holes included.

One object per engine, told of every request, step, abort and HTTP call. Times are model seconds, so that a latency
in /metrics reads as in life whatever the sandbox's speed. Not here: the text of /metrics (`metrics`), /v1/loads
(`loads`), and any waiting: idle rules are caught up with when somebody looks, which shows the same numbers.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from sglpool.sandbox.engine.metrics import Store

if TYPE_CHECKING:
    from sglpool.enginemodel.engine import Engine
    from sglpool.enginemodel.records import Finished, Load, Step
    from sglpool.sandbox.engine.spec import Spec

IDLE_REPORT_S = 30.0
"""An idle scheduler writes its gauges this rarely, unless the running gauge is wrong."""
_THROUGHPUT_STALE_S = 30.0
_REQUEST_PROCESS_S = 4.4e-5
_EVICTION_S = 4e-4
_NEW_TOKEN_RATIO = 0.098
"""Where the ratio settles in a running SGLang, as read."""
_DECODE_LOG_INTERVAL = 40


class _Watched:
    """A real request between its arrival and its end."""

    __slots__ = ("arrived_s", "last_token_s", "streaming")

    def __init__(self, arrived_s: float, *, streaming: bool) -> None:
        self.arrived_s = arrived_s
        self.streaming = streaming
        self.last_token_s: float | None = None


class Telemetry:
    """Counters and gauges of one engine.

    Args:
        spec: The engine's settings.
        engine: The engine model, read when gauges are written.
        started_s: Model time at which the scheduler began to serve.
    """

    def __init__(self, spec: Spec, engine: Engine, *, started_s: float = 0.0) -> None:
        self._spec = spec
        self._engine = engine
        self._config = spec.engine
        self._started_s = started_s
        self._requests: dict[str, _Watched] = {}
        self._hicache = spec.engine.host_total_tokens > 0
        self._pid = str(os.getpid())
        self.store = Store(
            model_name=spec.served_model_name, ranks=spec.tensor_parallel_size, pid=self._pid, hicache=self._hicache
        )
        self.decode_moments: list[float] | None = None
        """Sums over decode steps: steps, batch, time in us, batch squared, batch by time, tokens."""
        self._interval_steps = int(spec.args.get("decode_log_interval") or _DECODE_LOG_INTERVAL)
        self._draft_tokens = int(spec.args.get("speculative_num_draft_tokens") or 0)
        self._decode_steps = 0
        self._window_tokens = 0
        self._window_calls = 0
        self._window_started_s = started_s
        self._spec_tokens = 0
        self._spec_calls = 0
        self._last_report_s = started_s
        self._last_step_end_s: float | None = None
        self._last_step_decoded = False
        self._busy_s = 0.0
        self._seen = self._reported = engine.load()
        self._retracted = 0
        self._write_constants()
        self._write_pool(self._seen)

    # What happens.

    def on_request(self, rid: str, now_s: float, *, streaming: bool) -> None:
        """A real request was handed to the engine; health probes are never told, and so not counted."""
        self._requests[rid] = _Watched(now_s, streaming=streaming)

    def on_step(self, step: Step) -> None:
        """A step of the engine ended, with everything that finished in it.

        Gauges show the engine as it is now: told of each step before the next one ends, they are exact; told of many
        at once, they show the state after the last.
        """
        self._busy_s += step.duration_s
        if step.retracted:
            self._retracted += len(step.retracted)
            self.store.add("num_retracted_requests_total", len(step.retracted))
        if step.kind == "prefill":
            self._on_prefill(step)
        else:
            self._on_decode(step)
        self._on_tokens(step)
        for finished in step.finished:
            self.on_finished(finished)
        self._last_step_end_s = step.at_s
        self._last_step_decoded = step.kind == "decode"
        if self._engine.next_event_s() is None:
            self.tick(step.at_s)

    def on_finished(self, finished: Finished) -> None:
        """A request ended; `on_step` calls this for what a step finished."""
        if finished.prefill_started_s is not None:
            queued_s = finished.prefill_started_s - finished.arrived_s
            self.store.histogram("queue_time_seconds").observe(max(0.0, queued_s))
            self.store.histogram("per_stage_req_latency_seconds", "request_process").observe(_REQUEST_PROCESS_S)
        watched = self._requests.pop(finished.rid, None)
        if watched is not None:
            self._count_request(finished, "true" if watched.streaming else "false")

    def on_abort(self, rid: str) -> None:
        """A request was aborted, by its client's leaving or by /abort_request."""
        self._requests.pop(rid, None)
        self.store.add("num_aborted_requests_total", 1)

    def on_rejected(self, rid: str) -> None:
        """The queue had no room for a request that `on_request` was told of."""
        self._requests.pop(rid, None)

    def on_http(self, endpoint: str, method: str) -> None:
        """An HTTP request came in."""
        self.store.add("http_requests_total", 1, endpoint, method)
        self.store.add("http_requests_active", 1, endpoint, method)

    def on_http_done(self, endpoint: str, method: str, status: int) -> None:
        """Its answer is out, the whole stream for a stream."""
        self.store.add("http_responses_total", 1, endpoint, method, str(status))
        self.store.add("http_requests_active", -1, endpoint, method)

    def on_loads(self, duration_s: float) -> None:
        """/v1/loads was answered, in `duration_s` real seconds."""
        self.store.histogram("get_loads_duration_seconds").observe(duration_s)

    def tick(self, now_s: float) -> None:
        """Apply the idle rules as of `now_s`; cheap, and enough to be called by `text`.

        An idle scheduler corrects its gauges at once when the running gauge is above 0, else only every 30 s. So a
        request that never made it into a report of the running batch leaves its tokens in `token_usage` for 30 s.
        """
        if self._engine.next_event_s() is not None:
            return
        stale = self.store.get("num_running_reqs") > 0
        if not stale and now_s <= self._last_report_s + IDLE_REPORT_S:
            return
        load = self._engine.load()
        self._write_pool(load)
        self.store.set("num_running_reqs", load.running)
        self.store.set("num_queue_reqs", load.waiting)
        self.store.set("gen_throughput", 0.0)
        self._last_report_s = now_s

    def text(self, now_s: float) -> bytes:
        """The body of /metrics."""
        self.tick(now_s)
        self._write_cache_counters()
        cpu_s = time.process_time()
        for component, share in (("detokenizer", 0.25), ("tokenizer", 0.75)):
            self.store.set("process_cpu_seconds_total", cpu_s * share, component)
        idle_s = max(0.0, now_s - self._started_s - self._busy_s)
        self.store.set("scheduler_process_cpu_seconds_total", self._busy_s)
        self.store.set("scheduler_idle_seconds_total", idle_s)
        self.store.set("scheduler_stage_seconds_total", idle_s, "idle", "none")
        self.store.set("scheduler_stage_seconds_total", self._busy_s, "run_batch", "none")
        return self.store.render()

    def accept_length(self) -> float | None:
        """Tokens per verify step since the start; None without speculation or before its first report."""
        return self._spec_tokens / self._spec_calls if self._spec_calls else None

    # Steps.

    def _on_prefill(self, step: Step) -> None:
        """Gauges are written at each prefill batch, with the batch that ran *before* it as the running one."""
        store = self.store
        if step.prefill_tokens:
            store.add("realtime_tokens_total", step.prefill_tokens, "prefill_compute")
            store.add("prefill_effective_tokens_total", step.prefill_tokens, "input")
        cached_tokens = step.cached_device_tokens + step.cached_host_tokens
        if cached_tokens:
            store.add("realtime_tokens_total", cached_tokens, "prefill_cache")
            store.add("prefill_effective_tokens_total", step.cached_device_tokens, "device_hit")
            store.add("prefill_effective_tokens_total", step.cached_host_tokens, "host_hit")
        store.add("cuda_graph_passes_total", 1, "prefill_none")
        stage = "prefill_forward" if step.tokens else "chunked_prefill"
        stages = store.histogram("per_stage_req_latency_seconds", stage)
        for _ in range(len(step.tokens) or 1):
            stages.observe(step.duration_s)
        load = self._engine.load()
        self._observe_copies(load)
        self._write_pool(load)
        store.set("num_running_reqs", max(0, step.running - len(step.tokens) + len(step.finished)))
        store.set("num_queue_reqs", load.waiting)
        total_tokens = step.prefill_tokens + cached_tokens
        store.set("cache_hit_rate", cached_tokens / total_tokens if total_tokens else 0.0)
        store.set("new_token_ratio", _NEW_TOKEN_RATIO)
        if step.at_s - self._window_started_s > _THROUGHPUT_STALE_S:
            store.set("gen_throughput", 0.0)
        self._last_report_s = step.at_s

    def _on_decode(self, step: Step) -> None:
        """Tokens count at every step; gauges are written at every 40th since the start."""
        generated = sum(tokens for _, tokens in step.tokens)
        batch = len(step.tokens)
        self.store.add("realtime_tokens_total", generated, "decode")
        self.store.add("cuda_graph_passes_total", 1, "decode_cuda_graph")
        self._add_moments(step, batch, generated)
        self._decode_steps += 1
        self._window_tokens += generated
        self._window_calls += step.verify_calls
        if self._decode_steps % self._interval_steps == 0:
            self._report_decode(step.at_s, batch)

    def _report_decode(self, now_s: float, batch: int) -> None:
        load = self._engine.load()
        store = self.store
        self._write_pool(load)
        store.set("num_running_reqs", batch)
        store.set("num_queue_reqs", load.waiting)
        store.set("decode_sum_seq_lens", self._context_tokens(load))
        elapsed_s = now_s - self._window_started_s
        store.set("gen_throughput", self._window_tokens / elapsed_s if elapsed_s > 0 else 0.0)
        if self._spec.speculative and self._window_calls:
            self._report_speculation()
        self._window_tokens = self._window_calls = 0
        self._window_started_s = self._last_report_s = now_s

    def _context_tokens(self, load: Load) -> float:
        """Tokens of all requests that decode, as the mean over the steps since the last report."""
        before, self._reported = self._reported, load
        steps = load.decode_steps - before.decode_steps
        return round((load.sum_seq_lens - before.sum_seq_lens) / steps) if steps else 0.0

    def _report_speculation(self) -> None:
        accept_length = self._window_tokens / self._window_calls
        proposed = self._draft_tokens - 1
        self.store.set("spec_accept_length", accept_length)
        self.store.set("spec_accept_rate", (accept_length - 1) / proposed if proposed > 0 else 0.0)
        self.store.set("spec_num_steps", float(self._spec.args.get("speculative_num_steps") or 0))
        self.store.set("spec_num_draft_tokens", self._draft_tokens)
        self._spec_tokens += self._window_tokens
        self._spec_calls += self._window_calls

    def _on_tokens(self, step: Step) -> None:
        """First tokens and gaps between tokens; the hot path, one look-up per stream and step."""
        requests = self._requests
        now_s = step.at_s
        gaps = None
        for rid, tokens in step.tokens:
            watched = requests.get(rid)
            if watched is None or not tokens:
                continue
            last_s = watched.last_token_s
            watched.last_token_s = now_s
            if last_s is None:
                name = "time_to_first_token_seconds"
                first = self.store.histogram(name, "true" if watched.streaming else "false")
                first.observe(now_s - watched.arrived_s)
            elif watched.streaming:
                gaps = gaps or self.store.histogram("inter_token_latency_seconds")
                gaps.observe_shared(now_s - last_s, tokens)

    def _add_moments(self, step: Step, batch: int, generated: int) -> None:
        """Steps after a gap or a prefill do not count: their cadence is not decode's."""
        started_s = step.at_s - step.duration_s
        previous_s = self._last_step_end_s
        if not self._last_step_decoded or previous_s is None or started_s - previous_s > 1e-6 or not batch:
            return
        step_us = float(int(step.duration_s * 1e6))
        sums = self.decode_moments or [0.0] * 6
        added = (1.0, float(batch), step_us, float(batch * batch), batch * step_us, float(generated))
        self.decode_moments = [total + value for total, value in zip(sums, added, strict=True)]

    # Requests.

    def _count_request(self, finished: Finished, streaming: str) -> None:
        store = self.store
        cached_tokens = finished.cached_device_tokens + finished.cached_host_tokens
        store.add("prompt_tokens_total", finished.prompt_tokens, streaming)
        store.add("generation_tokens_total", finished.completion_tokens, streaming)
        store.add("num_requests_total", 1, streaming)
        if finished.verify_calls and self._spec.speculative:
            store.add("spec_verify_calls_total", finished.verify_calls)
        for source, tokens in (("device", finished.cached_device_tokens), ("host", finished.cached_host_tokens)):
            if tokens:
                store.add("cached_tokens_total", tokens, source)
        store.histogram("e2e_request_latency_seconds", streaming).observe(finished.finished_s - finished.arrived_s)
        if finished.completion_tokens > 1 and finished.first_token_s is not None:
            decode_s = (finished.finished_s - finished.first_token_s) / (finished.completion_tokens - 1)
            store.histogram("request_time_per_output_token_seconds", streaming).observe(decode_s)
        store.histogram("prompt_tokens_histogram").observe(finished.prompt_tokens)
        store.histogram("uncached_prompt_tokens_histogram").observe(finished.prompt_tokens - cached_tokens)
        store.histogram("generation_tokens_histogram").observe(finished.completion_tokens)

    # Gauges and what the engine counts itself.

    def _write_constants(self) -> None:
        capacity, startup, store = self._spec.capacity, self._spec.startup, self.store
        store.set("max_total_num_tokens", capacity.token_capacity)
        store.set("weight_memory_usage_gb", capacity.weight_gb)
        store.set("kv_cache_memory_usage_gb", capacity.kv_cache_gb)
        store.set("graph_memory_usage_gb", capacity.graph_gb, "decode")
        store.set("page_size", capacity.page_size_tokens)
        store.set("num_pages", capacity.token_capacity // capacity.page_size_tokens)
        store.set("context_len", self._spec.context_length_tokens)
        store.set("startup_available_gpu_memory_gb", capacity.available_gpu_memory_gb)
        store.set("startup_time_seconds", startup.load_weight_s, "load_weight")
        store.set("startup_time_seconds", startup.kv_cache_allocation_s, "kv_cache_allocation")
        store.set("startup_time_seconds", startup.scheduler_e2e_s, "scheduler_e2e")
        store.set("startup_time_seconds", startup.scheduler_e2e_s, "tokenizer_e2e")
        store.set("startup_cuda_graph_time_seconds", startup.cuda_graph_s, "decode")

    def _write_pool(self, load: Load) -> None:
        """Token gauges; cached prefixes that nobody holds are not usage."""
        store, usage = self.store, load.token_usage
        store.set("token_usage", round(usage, 2))
        store.set("full_token_usage", usage)
        store.set("num_used_tokens", load.used_tokens)
        store.set("kv_used_tokens", load.used_tokens)
        store.set("kv_available_tokens", load.available_tokens)
        store.set("kv_evictable_tokens", load.evictable_tokens)
        store.set("num_retracted_reqs", self._retracted, self._pid)
        self._retracted = 0
        if self._hicache:
            store.set("hicache_host_used_tokens", load.host_used_tokens)
            store.set("hicache_host_total_tokens", self._config.host_total_tokens)

    def _write_cache_counters(self) -> None:
        if not self._hicache:
            return
        load, store = self._engine.load(), self.store
        token_bytes = self._spec.capacity.pool_bytes_per_token
        store.set("evicted_tokens_total", load.evicted_tokens_total)
        store.set("load_back_tokens_total", load.load_back_tokens_total, "kv")
        store.set("load_back_bytes_total", load.load_back_tokens_total * token_bytes)
        store.set("hicache_backup_tokens_total", load.backup_tokens_total, "kv")
        store.set("hicache_backup_bytes_total", load.backup_tokens_total * token_bytes)

    def _observe_copies(self, load: Load) -> None:
        """Durations of what the cache moved since the last prefill batch."""
        if not self._hicache:
            return
        before, self._seen = self._seen, load
        tokens_per_s = self._config.rates.host_load_tokens_per_s
        for name, tokens in (
            ("load_back_duration_seconds", load.load_back_tokens_total - before.load_back_tokens_total),
            ("hicache_backup_duration_seconds", load.backup_tokens_total - before.backup_tokens_total),
        ):
            if tokens > 0:
                self.store.histogram(name).observe(tokens / tokens_per_s)
        if load.evicted_tokens_total > before.evicted_tokens_total:
            self.store.histogram("eviction_duration_seconds").observe(_EVICTION_S)
