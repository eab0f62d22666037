"""The status of a pool: what the operator answers.

The models exist for the CRD's schema and for the names of the fields; `plan.status` builds the values.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sglpool.api.base import Model

Count = Annotated[int, Field(ge=0)]


class ConditionStatus(Model):
    """A condition, in the shape of metav1.Condition."""

    list_map_key: ClassVar[str | None] = "type"
    type: Annotated[str, Field(max_length=63)] = Field(description="What the condition is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Why, in one CamelCase word.")
    message: Annotated[str, Field(max_length=32768)] = Field(description="Why, and what to do, for people.")
    observed_generation: Count | None = Field(default=None, description="Generation of the spec that it speaks of.")
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] = Field(
        description="When status last changed."
    )


class Capacity(Model):
    """What one replica of a GPU type holds."""

    kv_tokens: Count = Field(description="Tokens in the KV cache of one replica.")
    host_kv_tokens: Count = Field(alias="hostKVTokens", description="Tokens in its HiCache, host memory.")
    conversations_at_context: Count = Field(description="Conversations of full contextLength in the KV cache.")
    target_running_requests: Count = Field(description="Running requests that one replica should carry.")
    hicache_size_gb_per_rank: Count = Field(
        alias="hicacheSizeGBPerRank", description="SGLang's --hicache-size, decimal GB per rank."
    )
    source: Literal["Estimate", "Engine"] = Field(
        description="Engine once a replica of the current revision has said how large its KV cache is; kvTokens and "
        "conversationsAtContext are its own then, and the rest stays an estimate."
    )


class GPUStatus(Model):
    """Replicas of one GPU type."""

    list_map_key: ClassVar[str | None] = "type"
    type: str = Field(description="GPU type of spec.gpus.")
    desired: Count = Field(description="Wanted replicas of this type.")
    replicas: Count = Field(description="Existing replicas of this type.")
    ready: Count = Field(description="Ready replicas of this type.")
    updated: Count = Field(description="Replicas on the current revision.")
    capacity: Capacity | None = Field(default=None, description="What one replica holds.")


class ScaleChange(Model):
    """One change of a pool's wanted size."""

    time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] = Field(description="When it was decided.")
    from_: Count = Field(alias="from", description="Wanted replicas before.")
    to: Count = Field(description="Wanted replicas after.")
    reason: Annotated[str, Field(max_length=128)] = Field(description="Why, in one CamelCase word.")


InputName = Annotated[str, Field(max_length=64)]


class AutoscalingStatus(Model):
    """The autoscaler's last decision."""

    desired: Count = Field(description="Replicas that it wants over all GPU types.")
    reason: Annotated[str, Field(max_length=128)] = Field(description="Why it wants that many, in one CamelCase word.")
    message: Annotated[str, Field(max_length=512)] | None = Field(default=None, description="Why, with figures.")
    inputs: Annotated[dict[InputName, float], Field(max_length=32)] = Field(
        default={}, description="Figures that it decided on, rounded, written once a minute at most."
    )
    last_scale_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = Field(
        default=None, description="When the wanted number last changed."
    )
    history: Annotated[tuple[ScaleChange, ...], Field(max_length=5)] = Field(
        default=(), description="The last changes of the wanted number, the newest first."
    )


class LoadStatus(Model):
    """Load of the pool, rounded and at most once a minute."""

    running_requests: Count | None = Field(default=None, description="Requests in flight over all replicas.")
    kv_utilization_percent: Count | None = Field(
        default=None,
        alias="kvUtilizationPercent",
        description="KV cache in use over all replicas, percent, in steps of 5.",
    )


class Summary(Model):
    """Figures of `kubectl get`, as text."""

    ready: Annotated[str, Field(max_length=16)] = Field(description="Ready of wanted replicas, for example 2/2.")
    gpus: Annotated[str, Field(max_length=64)] = Field(description="GPUs in use by type, for example 8 B200.")
    scaling: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Why the pool has its size, and how many replicas are updated or being emptied."
    )


class InferencePoolStatus(Model):
    """What the operator observed."""

    observed_generation: Count | None = Field(default=None, description="Generation that the status speaks of.")
    conditions: Annotated[tuple[ConditionStatus, ...], Field(max_length=16)] = Field(
        default=(), description="Conditions; Ready sums up."
    )
    replicas: Count | None = Field(default=None, description="Existing replicas over all GPU types.")
    ready_replicas: Count | None = Field(default=None, description="Ready replicas over all GPU types.")
    selector: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Label selector of the engine pods, for the scale subresource."
    )
    endpoint: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Base URL of the OpenAI API inside the cluster."
    )
    gpus: Annotated[tuple[GPUStatus, ...], Field(max_length=16)] = Field(
        default=(), description="Replicas and capacity by GPU type."
    )
    autoscaling: AutoscalingStatus | None = Field(default=None, description="The autoscaler's last decision.")
    load: LoadStatus | None = Field(default=None, description="Load of the pool.")
    summary: Summary | None = Field(default=None, description="Figures of `kubectl get`, as text.")


PENDING_STATUS = {
    "conditions": [
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": "Pending",
            "message": "The operator has not looked at this pool yet.",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
    ]
}
"""Default of `status`: without it, tools that wait would take a pool that nobody has seen for a finished one."""
