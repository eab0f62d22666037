"""The picker's figures for Prometheus; every one is described in `docs/metrics.md`.

What happens is counted where it happens; what is the case (load, homes) is read off the ledger when somebody asks
(`gauges`). Not here: the endpoint (`endpoint`).
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.process_collector import ProcessCollector

from sglpool import __version__
from sglpool.picker.counts import Count, Counts
from sglpool.routing.types import Decision, Outcome, Rule

DECISION_BUCKETS_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1)


class Metrics:
    """All counters of one picker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        name, text = "sglpool_router_build_info", "Version of the picker: always 1."
        Gauge(name, text, ("version",), registry=self.registry).labels(__version__).set(1)
        self._counts = Counts()
        self.registry.register(self._counts)
        by_rule = [rule.value for rule in Rule]
        self._decisions = self._labelled("decisions", "Picks by the rule that decided.", "rule", by_rule)
        moves = "Conversations that got another home, by whether they had to."
        self._moves = self._labelled("moves", moves, "forced", ["true", "false"])
        self.decision_s = self._counts.times(
            "sglpool_router_decision_seconds",
            "Time from a request's arrival at the picker to its answer.",
            DECISION_BUCKETS_S,
        )
        self.lapsed = self._counter("lapsed_reservations", "Slots that nobody confirmed and that were given back.")
        self.bad_requests = self._counter("bad_questions", "Questions of Envoy's that could not be read.")
        self.late_questions = self._counter("late_questions", "Questions that Envoy no longer waited for.")
        self.log_lines = self._counter("log_lines", "Lines of Envoy's access log that were read.")
        self.bad_log_lines = self._counter("bad_log_lines", "Lines of it that could not be read.")
        self.unplaced = self._counter("unplaced_requests", "Requests that Envoy placed, or answered, without a pick.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens, as the engines' usage says.")
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens that an engine had cached.")
        self.completion_tokens = self._counter("completion_tokens", "Tokens generated.")
        self.refusals = self._counter("engine_refusals", "Requests that an engine's full queue refused.")
        self.missed_polls = self._counter("missed_polls", "Polls of a replica that were not answered in time.")
        self.watch_restarts = self._counter("watch_restarts", "Times that the watch of pods had to begin anew.")
        self.restarts = self._counter("picker_restarts", "Pickers of this container that died or hung.")
        self.store_errors = self._counter("store_errors", "Requests to the store that failed or came too late.")

    def _counter(self, name: str, text: str) -> Count:
        return self._counts.count(f"sglpool_router_{name}", text)

    def _labelled(self, name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Count]:
        return self._counts.counts(f"sglpool_router_{name}", text, label, values)

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        self._decisions[decision.rule].inc()
        if decision.moved and decision.home is not None:
            if decision.forced:
                self._moves["true"].inc()
            elif decision.rule is not Rule.NEW:
                self._moves["false"].inc()

    def ended(self, outcome: Outcome) -> None:
        """Count what a request's usage says."""
        if outcome.prompt_tokens:
            self.prompt_tokens.inc(outcome.prompt_tokens)
            self.cached_tokens.inc(outcome.cached_tokens or 0)
            self.completion_tokens.inc(outcome.completion_tokens or 0)
        if outcome.refused:
            self.refusals.inc()
