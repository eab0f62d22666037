"""What one simulation is asked: the pool, the routers, the clients, and what happens to them. Plain values."""

from dataclasses import dataclass, field, replace

from sglpool.enginemodel.config import EngineConfig
from sglpool.enginemodel.rates import Rates, rates_for
from sglpool.lab.workload import Kind
from sglpool.routing.types import DEFAULT_CONFIG, PolicyConfig

PAGE_SIZE_TOKENS = 128
KV_BYTES_PER_TOKEN = 35_136
"""Kimi-K2-class MLA in fp8."""
SESSIONS_PER_REPLICA = {Kind.AUTONOMOUS: 6.74, Kind.THICK: 2.9, Kind.INTERACTIVE: 28.0}
"""So many sessions keep about five requests running on a replica."""
RECORDED_PER_REPLICA = {Kind.AUTONOMOUS: 6.6, Kind.THICK: 6.6, Kind.INTERACTIVE: 19.0}
"""The same of recorded sessions, whose users are quicker."""


def engine_rates() -> Rates:
    """Durations of a replica of four B200s; fresh replicas are taken as warmed up.

    The workload study has a prompt take as long as it does alone while others decode at a fifth of their speed. Here
    decode takes that fifth from the prompt's time, so the prompt's own work is made shorter by as much.
    """
    rates = rates_for("B200", 4, speculative=False, kv_bytes_per_token=KV_BYTES_PER_TOKEN)
    share = 1 - rates.decode_share_during_prefill
    return replace(
        rates,
        prefill_base_s_per_token=rates.prefill_base_s_per_token * share,
        prefill_context_s_per_token=rates.prefill_context_s_per_token * share,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """A change of the number of replicas.

    Attributes:
        at_s: when.
        replicas: how many there are from then on.
        drain_s: how long conversations may stay on what goes; then their next request moves.
    """

    at_s: float
    replicas: int
    drain_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation.

    Attributes:
        policy: name of a policy, see `policies`.
        kind: what clients are like.
        replicas: engines at the start.
        sessions: clients in the closed loop, 0 for as many as keep about five requests running on a replica.
        seconds: simulated time, the warm-up included.
        warmup_s: time that no figure counts.
        seed: of everything random.
        routers: router replicas; each connection comes to any of them.
        shared_store: whether the routers share homes.
        poll_s: how often each router polls each replica.
        poll_delay_s: how old a reading is when it arrives.
        heartbeat_s: how often routers tell each other what they have in flight.
        outage: from when to when the store is away, None for never.
        resize: a change of the number of replicas, None for none.
        max_concurrent: requests that a router lets onto a replica.
        config: the policy's constants.
        trace: path of a corpus to replay instead of generating, empty for none.
    """

    policy: str = "affinity"
    kind: Kind = Kind.AUTONOMOUS
    replicas: int = 50
    sessions: int = 0
    seconds: float = 1500.0
    warmup_s: float = 300.0
    seed: int = 1
    routers: int = 1
    shared_store: bool = True
    poll_s: float = 1.0
    poll_delay_s: float = 0.0
    heartbeat_s: float = 1.0
    outage: tuple[float, float] | None = None
    resize: Resize | None = None
    max_concurrent: int = 48
    config: PolicyConfig = DEFAULT_CONFIG
    trace: str = ""
    engine: EngineConfig = field(
        default_factory=lambda: EngineConfig(
            max_total_tokens=750_000,
            host_total_tokens=6_000_000,
            page_size_tokens=PAGE_SIZE_TOKENS,
            max_running_requests=32,
            decode_stride_steps=1_000,
            rates=engine_rates(),
        )
    )

    def __post_init__(self) -> None:
        """Refuse what has no figures.

        Raises:
            ValueError: names the field and what it must be.
        """
        if self.replicas < 1 or self.routers < 1:
            raise ValueError(f"scenario: replicas is {self.replicas} and routers {self.routers}; give at least 1")
        if not 0 <= self.warmup_s < self.seconds:
            raise ValueError(
                f"scenario: warmup_s is {self.warmup_s} and seconds {self.seconds}; the warm-up must be the shorter"
            )
        for name in ("poll_s", "heartbeat_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"scenario: {name} is {getattr(self, name)}; give more than 0")

    @property
    def clients(self) -> int:
        """Sessions in the closed loop."""
        per_replica = RECORDED_PER_REPLICA if self.trace else SESSIONS_PER_REPLICA
        return self.sessions or round(self.replicas * per_replica[self.kind])
