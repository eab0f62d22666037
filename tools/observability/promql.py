"""Pieces of PromQL that panels share.

SGLang exports some series once for every rank, and with attention data parallelism once for every part: ranks repeat
each other, parts add up. Not here: panels.
"""

from __future__ import annotations

POOL = 'namespace="$namespace",pool="$pool"'
"""Selects the series of the pool that the reader chose."""
SPAN = "$__rate_interval"
RANKS = "tp_rank, pp_rank, moe_ep_rank"


def per_replica(metric: str, *, more: str = "") -> str:
    """A count of every replica: one series a pod."""
    return f"sum by (pod) (max without ({RANKS}) ({metric}{{{POOL}{more}}}))"


def rate(metric: str, *, by: str = "", more: str = "", span: str = SPAN) -> str:
    """How fast a counter of the pool grows a second."""
    return f"sum{_by(by)} (rate({metric}{{{POOL}{more}}}[{span}]))"


def rank_rate(metric: str, *, by: str = "", more: str = "", span: str = SPAN) -> str:
    """The same of a counter that every rank repeats."""
    return f"sum{_by(by)} (max without ({RANKS}) (rate({metric}{{{POOL}{more}}}[{span}])))"


def quantile(share: float, metric: str, *, where: str = POOL, by: str = "", span: str = SPAN) -> str:
    """A quantile of a histogram."""
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({metric}_bucket{{{where}}}[{span}])))"


def or_zero(expr: str) -> str:
    """0 where nothing ever happened: such counters have no series before the first time."""
    return f"({expr}) or vector(0)"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
