"""How long things wait before they are tried again: the kubelet's back-offs, with its constants.

Not a clock: the moments are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Every delay and limit of a pod's life, so that a test can have others.

    Attributes:
        restart_initial_s: First back-off of a container that ends again; it doubles from there.
        restart_max_s: Largest back-off.
        restart_reset_s: A container that ran so long begins with the first back-off again.
        pull_initial_s: First back-off of an image that cannot be had; it doubles up to `restart_max_s`.
        pull_error_shown_s: How long ErrImagePull shows before ImagePullBackOff does.
        create_retry_s: Until a container that could not be made is tried again.
        volume_initial_s: First wait for a volume; it doubles.
        volume_max_s: Longest wait for a volume.
        volume_refresh_s: How often the volumes of a running pod are made to follow their ConfigMaps and Secrets.
        minimum_grace_s: What a container gets between SIGTERM and SIGKILL even when its time is up.
        default_grace_s: Grace period of a pod that says nothing.
        kill_limit_s: How long the end of a killed container is waited for before it is taken for lost.
        report_initial_s: First wait after a report that failed; it doubles.
        report_max_s: Longest wait after a report that failed.
        hook_limit_s: How long a postStart hook may take.
    """

    restart_initial_s: float = 10
    restart_max_s: float = 300
    restart_reset_s: float = 600
    pull_initial_s: float = 10
    pull_error_shown_s: float = 2
    create_retry_s: float = 10
    volume_initial_s: float = 0.5
    volume_max_s: float = 122
    volume_refresh_s: float = 60
    minimum_grace_s: float = 2
    default_grace_s: float = 30
    kill_limit_s: float = 30
    report_initial_s: float = 0.2
    report_max_s: float = 10
    hook_limit_s: float = 3600


@dataclass(slots=True)
class Doubling:
    """Waits that double from an initial one up to a largest one."""

    initial_s: float
    max_s: float
    _next_s: float = field(default=0, init=False)

    def next_s(self) -> float:
        """The next wait."""
        wait_s = self._next_s or self.initial_s
        self._next_s = min(wait_s * 2, self.max_s)
        return wait_s

    def reset(self) -> None:
        """Begin again with the initial wait."""
        self._next_s = 0


@dataclass(slots=True)
class RestartBackoff:
    """When a container that ended may run again.

    The first restart is at once; from the second on it waits, counted from its end. A container that its probes have
    killed is restarted in the same breath: for it the time since its *last but one* end counts, so that it is restarted
    at once as long as it runs for longer than its back-off.
    """

    timings: Timings
    _backoff_s: float = field(default=0, init=False)
    _counted_at_s: float = field(default=0, init=False)
    _ended_at_s: float | None = field(default=None, init=False)

    def wait_s(self, now_s: float, *, killed_by_probe: bool = False) -> float:
        """Note an end at `now_s` and return how long to wait from now; 0 is at once."""
        reference_s = self._ended_at_s if killed_by_probe else now_s
        self._ended_at_s = now_s
        if reference_s is None:
            return 0
        if reference_s - self._counted_at_s > self.timings.restart_reset_s:
            self._backoff_s = 0
        wait_s = self._backoff_s if now_s - reference_s < self._backoff_s else 0
        doubled_s = min(self._backoff_s * 2, self.timings.restart_max_s)
        self._backoff_s = doubled_s or self.timings.restart_initial_s
        # The kubelet counts when the container starts again, which is when the wait is over.
        self._counted_at_s = now_s + wait_s
        return wait_s


def words(duration_s: float) -> str:
    """A duration as the kubelet writes it: 40s, 1m20s, 5m0s."""
    minutes, seconds = divmod(duration_s, 60)
    return f"{minutes:.0f}m{seconds:g}s" if minutes else f"{seconds:g}s"
