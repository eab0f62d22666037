"""Where load figures come from: routers' state, the engines' own counts, or a Prometheus.

Everything here reads and nothing decides. A figure that cannot be had, is not a number, belongs to somebody else or is
too old is missing, never zero. Not here: what follows from the figures (`scaling`), and when to read (`controller`).
"""

from sglpool.signals.reading import Endpoint, PrometheusAt, Reading, ReplicaReading, Target
from sglpool.signals.sources import Sources
from sglpool.signals.tokens import Tokens

__all__ = ["Endpoint", "PrometheusAt", "Reading", "ReplicaReading", "Sources", "Target", "Tokens"]
