"""Who is taken into the next step: the queue, the running batch, and the room that each needs.

SGLang's rules, in short: prompts are admitted in the policy's order, without skipping one that does not fit; a prompt
longer than a chunk is computed chunk by chunk, one such prompt at a time; room is kept for a part of the output still
to come, and if it runs out all the same, the youngest running requests go back to the head of the queue.
Not here: time.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sglpool.enginemodel.config import EngineConfig
from sglpool.enginemodel.entry import Entry, State
from sglpool.enginemodel.meters import Meters
from sglpool.enginemodel.records import CachedTokens
from sglpool.enginemodel.tiers import KVCache

# SGLang's `new_token_ratio`: the share of a running request's remaining output that admission keeps room for. It falls
# with every decode step and is back at its start after a retraction. A new request counts in full. Either way no more
# than so many tokens of a request's output count.
RESERVE_AT_FIRST = 0.7
RESERVE_AT_LEAST = 0.1
RESERVE_DECAY_PER_STEP = 0.001
RESERVE_LIMIT_TOKENS = 4096
LPM_LIMIT_REQUESTS = 128
"""With more requests in the queue SGLang sorts no longer by prefix."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one request's prompt in a prefill step."""

    entry: Entry
    tokens: int


@dataclass(slots=True)
class PrefillBatch:
    """What one prefill step computes and loads back, and whom it sent back to the queue."""

    parts: list[Part] = field(default_factory=list)
    retracted: list[str] = field(default_factory=list)
    device_tokens: int = 0
    host_tokens: int = 0
    extra_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Prompt tokens computed."""
        return sum(part.tokens for part in self.parts)


@dataclass(slots=True)
class DecodeBatch:
    """Who decodes, for how many steps and how many tokens that yields each, and whom it sent back to the queue."""

    parts: list[tuple[Entry, int]]
    retracted: list[str]
    accept_length: float
    steps: int

    def cut(self, steps: int) -> None:
        """Make it so few steps, from where its requests are now."""
        self.steps = steps
        self.parts = [(entry, _yield(entry, self.accept_length, steps)) for entry, _ in self.parts]


class Scheduler:
    """Queue, running batch and KV of one replica.

    Attributes:
        cache: the KV pool and its tiers.
        waiting: the queue, in order of arrival, retracted requests first.
        running: requests that decode, in order of admission.
        waiting_tokens: tokens of the queue's prompts.
        waiting_retracted: requests in the queue that had run before.
    """

    def __init__(self, config: EngineConfig, meters: Meters) -> None:
        self.cache = KVCache(config.pool_pages, config.host_pages)
        self.waiting: OrderedDict[str, Entry] = OrderedDict()
        self.running: OrderedDict[str, Entry] = OrderedDict()
        self.waiting_tokens = 0
        self.waiting_retracted = 0
        self._config = config
        self._meters = meters
        self._page_tokens = config.page_size_tokens
        self._prefilling: dict[str, Entry] = {}
        self._chunked: Entry | None = None
        self._waiting_uncached_tokens = 0
        self._reserve = RESERVE_AT_FIRST
        self._full = False
        self._retracted: list[str] = []

    @property
    def uncached_tokens(self) -> int:
        """What the queue's prompts, and the one in chunks, will have to compute; its last chunk no longer counts."""
        chunked = self._chunked
        left = 0 if chunked is None else chunked.prefill_tokens - chunked.computed_tokens
        return self._waiting_uncached_tokens + left

    @property
    def prefill_waits(self) -> bool:
        """Whether a prompt would be computed now if decode did not take its share."""
        return bool(self.waiting) or self._chunked is not None

    def pages(self, tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-tokens // self._page_tokens)

    def enqueue(self, entry: Entry, *, first: bool = False) -> None:
        """Put a request into the queue, at its end or at its head."""
        rid = entry.request.rid
        entry.state = State.WAITING
        cached_tokens = self.cache.peek(entry.request.ids, self._match_pages(entry)) * self._page_tokens
        entry.waiting_uncached_tokens = entry.prefill_tokens - cached_tokens
        self.waiting[rid] = entry
        if first:
            self.waiting.move_to_end(rid, last=False)
        self._count_waiting(entry, +1)

    def prefill_batch(self, now_s: float) -> PrefillBatch | None:
        """Take prompts for a prefill step, None if there is none or none fits."""
        batch = PrefillBatch()
        chunk_left = self._config.chunked_prefill_tokens
        if chunk_left <= 0:
            chunk_left = 1 << 62
        if self._chunked is not None:
            chunk_left -= self._continue_chunked(self._chunked, chunk_left, batch)
        if self.waiting and not self._full and self._chunked is None:
            self._admit_waiting(batch, chunk_left, now_s)
        if not batch.parts:
            return None
        batch.retracted = self._take_retracted()
        self._meters.prefill(
            computed_tokens=batch.tokens, device_tokens=batch.device_tokens, host_tokens=batch.host_tokens
        )
        return batch

    def prefilled(self, part: Part) -> bool:
        """Take in the end of a part's step.

        Returns:
            Whether the request's prompt is complete; it runs from now on.
        """
        entry = part.entry
        entry.computed_tokens += part.tokens
        self._commit(entry)
        if entry.computed_tokens < entry.prefill_tokens:
            return False
        del self._prefilling[entry.request.rid]
        entry.state = State.RUNNING
        self.running[entry.request.rid] = entry
        return True

    def decode_batch(self, accept_length: float, most_steps: int) -> DecodeBatch:
        """Take every running request for a decode step; whoever no longer fits goes back to the queue.

        The step may stand for several: until the first request would end, and while all have room.

        It may be that no one is left: then a prompt in chunks has taken the room.
        """
        steps = self._stride(accept_length, most_steps)
        parts, needs = self._decode_parts(accept_length, steps)
        need = sum(needs)
        if steps > 1 and need > self.cache.obtainable_pages:
            steps = 1
            parts, needs = self._decode_parts(accept_length, steps)
            need = sum(needs)
        while need > self.cache.obtainable_pages:
            entry, _ = parts.pop()
            need -= needs.pop()
            self._retract(entry)
        if need:
            for (entry, _), pages in zip(parts, needs, strict=True):
                self.cache.grow(entry.held, pages)
        self._reserve = max(RESERVE_AT_LEAST, self._reserve - steps * RESERVE_DECAY_PER_STEP)
        return DecodeBatch(parts, self._take_retracted() if parts else [], accept_length, steps)

    def decoded(self, entry: Entry, produced: int, batch: DecodeBatch) -> None:
        """Take in the end of a decode step for one request."""
        entry.credit = (entry.credit + batch.steps * batch.accept_length) % 1.0
        entry.verify_calls += batch.steps
        entry.computed_tokens += produced
        entry.generated_tokens += produced

    def leave(self, entry: Entry) -> None:
        """Take a request out, wherever it is; what it computed stays cached."""
        rid = entry.request.rid
        if entry.state is State.WAITING:
            del self.waiting[rid]
            self._count_waiting(entry, -1)
        else:
            self.running.pop(rid, None)
            self._prefilling.pop(rid, None)
            if self._chunked is entry:
                self._chunked = None
            self._let_go(entry)
        entry.state = State.GONE
        self._full = False

    def _stride(self, accept_length: float, most_steps: int) -> int:
        """Steps that may pass as one: no request ends before the last of them."""
        if most_steps == 1:
            return 1
        least = min((entry.left_tokens - entry.credit) / accept_length for entry in self.running.values())
        return max(1, min(most_steps, int(least)))

    def _decode_parts(self, accept_length: float, steps: int) -> tuple[list[tuple[Entry, int]], list[int]]:
        """What every running request would produce, and the pages it still needs for that."""
        parts = [(entry, _yield(entry, accept_length, steps)) for entry in self.running.values()]
        page = self._page_tokens
        # A step that was cut short may have left more pages than are needed now.
        needs = [max(0, -(-(entry.computed_tokens + made) // page) - entry.held.pages) for entry, made in parts]
        return parts, needs

    def _continue_chunked(self, entry: Entry, chunk_tokens: int, batch: PrefillBatch) -> int:
        """Take the next chunk of the prompt in chunks; running requests make room for it if they must."""
        left = entry.prefill_tokens - entry.computed_tokens
        tokens = min(left, chunk_tokens)
        pages = self.pages(entry.computed_tokens + tokens) - entry.held.pages
        while pages > self.cache.obtainable_pages:
            youngest = next(reversed(self.running.values()))
            self._retract(youngest)
        self._take(entry, tokens, batch)
        if tokens == left:
            self._chunked = None
        return tokens

    def _admit_waiting(self, batch: PrefillBatch, chunk_left: int, now_s: float) -> None:
        """Admit from the queue until the step, the running limit or the pool is full."""
        input_left = self._config.max_prefill_tokens - batch.tokens
        slots = self._config.max_running_requests - len(self.running) - len(self._prefilling)
        reserved_pages = sum(self._reserved_pages(entry) for entry in self.running.values())
        reserved_pages += sum(self._output_pages(entry) for entry in self._prefilling.values())
        for entry in self._in_order():
            if slots <= 0 or input_left <= 0 or chunk_left <= 0:
                return
            tokens = self._admit(entry, batch, chunk_left, reserved_pages, now_s)
            if tokens is None:
                return
            reserved_pages += self._output_pages(entry)
            slots -= 1
            input_left -= tokens
            chunk_left -= tokens
            if self._chunked is not None:
                return

    def _admit(
        self, entry: Entry, batch: PrefillBatch, chunk_left: int, reserved_pages: int, now_s: float
    ) -> int | None:
        """Take one request from the queue into the step; None if it does not fit the pool or the rest of the chunk."""
        request, cache = entry.request, self.cache
        lease = cache.acquire(request.ids, self._match_pages(entry))
        device_pages = lease.device.pages
        cached_tokens = max(device_pages, lease.host.pages) * self._page_tokens
        left = entry.prefill_tokens - cached_tokens
        tokens = left if left <= chunk_left else chunk_left // self._page_tokens * self._page_tokens
        need = self.pages(entry.prefill_tokens) - device_pages + self._output_pages(entry)
        if need + reserved_pages > cache.obtainable_pages:
            self._full = True
            tokens = 0
        if tokens == 0:
            cache.release(lease)
            return None
        host_tokens = cache.load_back(lease, request.ids) * self._page_tokens
        del self.waiting[request.rid]
        self._count_waiting(entry, -1)
        entry.lease, entry.state, entry.computed_tokens = lease, State.PREFILLING, cached_tokens
        self._prefilling[request.rid] = entry
        if entry.cached is None:
            entry.cached = CachedTokens(device_pages * self._page_tokens, host_tokens)
            entry.prefill_started_s = now_s
            batch.extra_s += request.extra_prefill_s
        batch.device_tokens += device_pages * self._page_tokens
        batch.host_tokens += host_tokens
        self._take(entry, tokens, batch)
        if tokens < left:
            self._chunked = entry
        return tokens

    def _take(self, entry: Entry, tokens: int, batch: PrefillBatch) -> None:
        batch.parts.append(Part(entry, tokens))
        self.cache.grow(entry.held, self.pages(entry.computed_tokens + tokens) - entry.held.pages)

    def _in_order(self) -> list[Entry]:
        """The queue in the policy's order."""
        entries = list(self.waiting.values())
        if self._config.schedule_policy != "lpm" or len(entries) > LPM_LIMIT_REQUESTS:
            return entries
        cached = {entry.number: self.cache.peek(entry.request.ids, self._match_pages(entry)) for entry in entries}
        return sorted(entries, key=lambda entry: -cached[entry.number])

    def _retract(self, entry: Entry) -> None:
        """Send a running request back to the head of the queue; its tokens stay cached until they are evicted."""
        del self.running[entry.request.rid]
        self._let_go(entry)
        self.enqueue(entry, first=True)
        self._meters.retracted += 1
        self._reserve = RESERVE_AT_FIRST
        self._full = False
        self._retracted.append(entry.request.rid)

    def _take_retracted(self) -> list[str]:
        """Who was retracted since the last step; the step that begins now reports it."""
        retracted, self._retracted = self._retracted, []
        return retracted

    def _let_go(self, entry: Entry) -> None:
        self._commit(entry)
        self.cache.release(entry.held)
        entry.lease = None
        entry.computed_tokens = 0

    def _commit(self, entry: Entry) -> None:
        self.cache.commit(entry.held, entry.request.ids, entry.computed_tokens // self._page_tokens)

    def _match_pages(self, entry: Entry) -> int:
        """How much of a prompt may come from the cache: all whole pages, but at least one token is computed."""
        return (entry.prefill_tokens - 1) // self._page_tokens

    def _reserved_pages(self, entry: Entry) -> int:
        """Room kept for a running request's output."""
        tokens = int(min(max(entry.left_tokens, 0), RESERVE_LIMIT_TOKENS) * self._reserve)
        return self.pages(entry.computed_tokens + tokens) - self.pages(entry.computed_tokens)

    def _output_pages(self, entry: Entry) -> int:
        """Room kept for the output of a request before it runs; the last token never gets KV."""
        tokens = min(max(entry.left_tokens - 1, 0), RESERVE_LIMIT_TOKENS)
        return self.pages(entry.prefill_tokens + tokens) - self.pages(entry.prefill_tokens)

    def _count_waiting(self, entry: Entry, sign: int) -> None:
        self.waiting_tokens += sign * entry.prefill_tokens
        self._waiting_uncached_tokens += sign * entry.waiting_uncached_tokens
        if entry.cached is not None:
            self.waiting_retracted += sign


def _yield(entry: Entry, accept_length: float, steps: int) -> int:
    """Tokens that so many decode steps give a request."""
    return min(max(int(entry.credit + steps * accept_length), steps), entry.left_tokens)
