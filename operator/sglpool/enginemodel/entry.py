"""One request inside the engine: how far it is and what it holds. Not here: when it gets its turn."""

from enum import Enum

from sglpool.enginemodel.config import Request
from sglpool.enginemodel.records import CachedTokens
from sglpool.enginemodel.tiers import Lease


class State(Enum):
    """Where a request is."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    GONE = "gone"


class Entry:
    """A request that has been accepted.

    Attributes:
        request: what was asked.
        number: its place among all requests ever accepted.
        arrived_s: when it was.
        state: where it is.
        lease: what it holds, None while it waits.
        computed_tokens: tokens whose KV is in HBM.
        generated_tokens: tokens produced.
        cached: what its first prefill found cached, None before that.
        waiting_uncached_tokens: what its prefill will have to compute, as far as known while it waits.
        credit: fraction of a token left over from accepted drafts.
        verify_calls: decode steps it took part in.
        prefill_started_s: when its prefill first began.
        first_token_s: when its first prefill ended.
    """

    __slots__ = (
        "arrived_s",
        "cached",
        "computed_tokens",
        "credit",
        "first_token_s",
        "generated_tokens",
        "lease",
        "number",
        "prefill_started_s",
        "request",
        "state",
        "verify_calls",
        "waiting_uncached_tokens",
    )

    def __init__(self, request: Request, number: int, arrived_s: float) -> None:
        self.request = request
        self.number = number
        self.arrived_s = arrived_s
        self.state = State.WAITING
        self.lease: Lease | None = None
        self.computed_tokens = 0
        self.generated_tokens = 0
        self.cached: CachedTokens | None = None
        self.waiting_uncached_tokens = 0
        self.credit = 0.0
        self.verify_calls = 0
        self.prefill_started_s: float | None = None
        self.first_token_s: float | None = None

    @property
    def held(self) -> Lease:
        """What it holds; only for requests that have left the queue."""
        assert self.lease is not None
        return self.lease

    @property
    def prefill_tokens(self) -> int:
        """Tokens that must be in HBM before it can decode: the prompt, after a retraction the output so far too."""
        return self.request.prompt_tokens + self.generated_tokens

    @property
    def left_tokens(self) -> int:
        """Tokens still to be produced."""
        return self.request.output_tokens - self.generated_tokens
