"""How a pool follows its load: bounds, a target for the KV cache, and further sources of load figures.

Not here: targets by GPU type (`api.pool`), and what follows from the load (`scaling`).
"""

from typing import Annotated, ClassVar

from pydantic import Field

from sglpool.api import patterns
from sglpool.api.base import Model, Percent, Rule, SecretKey


class Prometheus(Model):
    """A Prometheus that scrapes the engines."""

    url: Annotated[str, Field(min_length=8, max_length=512, pattern=patterns.HTTP_URL)] = Field(
        description="Base URL of its HTTP API."
    )
    token_secret: SecretKey | None = Field(default=None, description="Bearer token for it.")


class Metrics(Model):
    """Where load figures come from beside the router."""

    prometheus: Prometheus | None = Field(default=None, description="Read engine metrics from a Prometheus.")


class Autoscaling(Model):
    """The pool follows its load between two bounds."""

    min_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="Fewest replicas over all GPU types; at least 1, since nothing would wake a pool at 0."
    )
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(description="Most replicas over all GPU types.")
    target_kv_utilization_percent: Percent = Field(
        default=80, alias="targetKVUtilizationPercent", description="KV utilisation to stay under, percent."
    )
    metrics: Metrics | None = Field(default=None, description="Further sources of load figures.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            message="autoscaling.minReplicas is larger than maxReplicas: lower minReplicas or raise maxReplicas",
            check=lambda self: self.min_replicas <= self.max_replicas,
            field_path=".minReplicas",
        ),
    )
