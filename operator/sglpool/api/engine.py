"""`spec.engine` and `spec.template`: how the SGLang process and its pod are set up."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from sglpool.api import patterns
from sglpool.api.base import DurationS, Model, Name, Rule, SecretKey, Text, count_set, duration
from sglpool.api.flags import MANAGED_FLAGS, managed_arguments, managed_flag

DEFAULT_ENGINE_IMAGE = "lmsysorg/sglang:v0.5.23"
GPU_RESOURCE = "nvidia.com/gpu"


class EnvSource(Model):
    """Value of a variable that comes from elsewhere."""

    secret_key_ref: SecretKey = Field(description="Key of a Secret.")


class EnvVar(Model):
    """One environment variable of the engine."""

    list_map_key: ClassVar[str | None] = "name"
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=patterns.VARIABLE)] = Field(
        description="Name of the variable."
    )
    value: Annotated[str, Field(max_length=4096)] | None = Field(default=None, description="Value of the variable.")
    value_from: EnvSource | None = Field(default=None, description="Where its value comes from instead.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(has(self.value) && has(self.valueFrom))",
            message="a variable of engine.env has either value or valueFrom, not both",
            check=lambda self: count_set(self.value, self.value_from) <= 1,
        ),
    )


class Warmup(Model):
    """Requests that a replica answers before it counts as ready: a loaded engine is not a warm one."""

    prompts: Annotated[int, Field(ge=0, le=32)] = Field(default=3, description="Number of long prompts; 0 sends none.")
    prompt_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = Field(
        default=32_000, description="Length of each long prompt in tokens, cut to contextLength."
    )
    image: bool | None = Field(
        default=None,
        description="Whether to send one image, whose first request compiles for up to 80 s. Default: true for vision "
        "models of the catalogue.",
    )


Argument = Annotated[str, Field(min_length=1, max_length=512)]
EngineArgument = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "!self.startsWith('--') || "
                    f"!{sorted(MANAGED_FLAGS)}.exists(flag, flag.startsWith(self.split('=')[0]))",
                    "message": "engine.extraArgs names a flag that sglpool writes itself: remove it, and use the "
                    "field of spec that sets it",
                    "messageExpression": "'engine.extraArgs: ' + self.split('=')[0] + ' is written by sglpool itself: "
                    "remove it, and use the field of spec that sets it'",
                }
            ]
        },
    ),
]
"""An argument of the engine. The rule stands on each item, where its cost is bounded; its twin is in `Engine`."""


class Engine(Model):
    """The SGLang server."""

    image: Text = Field(
        default=DEFAULT_ENGINE_IMAGE,
        description="SGLang image, 0.5.23 or a version with the same flags. Pin it by digest in production.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the node pulls the image."
    )
    extra_args: Annotated[tuple[EngineArgument, ...], Field(max_length=64)] = Field(
        default=(),
        description="Further arguments of `sglang serve`, after sglpool's own. Flags that sglpool derives from other "
        "fields are refused by name.",
    )
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64)] = Field(
        default=(), description="Further environment variables; one of the same name replaces sglpool's."
    )
    startup_timeout: DurationS = duration(
        "60m",
        "Longest time from the start of a replica's container until its server answers, a Go duration; the warm-up has "
        "30 minutes of its own. After it the replica is restarted. Changing it restarts nothing.",
    )
    warmup: Warmup = Field(default=Warmup(), description="What a replica answers before it is ready.")
    max_running_requests: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None,
        description="Most requests that the engine batches at once. Default: the catalogue's, 12 for large models.",
    )
    max_queued_requests: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=64,
        description="Most requests that wait inside the engine. A backstop: the router bounds a replica before it.",
    )
    chunked_prefill_size: Annotated[int, Field(ge=64, le=1_048_576)] | None = Field(
        default=None, description="Tokens of one prefill chunk, a multiple of 64. Default: the catalogue's."
    )
    return_token_ids: bool = Field(
        default=False, description="Whether responses carry token ids, for training a draft model."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.chunkedPrefillSize) || self.chunkedPrefillSize % 64 == 0",
            message="engine.chunkedPrefillSize must be a multiple of the page size, 64 tokens",
            check=lambda self: self.chunked_prefill_size is None or self.chunked_prefill_size % 64 == 0,
            field_path=".chunkedPrefillSize",
        ),
        Rule(
            cel=None,
            message="engine.extraArgs names a flag that sglpool writes itself",
            check=lambda self: not managed_arguments(self.extra_args),
            field_path=".extraArgs",
            explain=lambda self: "; ".join(
                f"{flag} is written by sglpool ({MANAGED_FLAGS[managed_flag(flag) or flag]} sets it): remove it here"
                for flag in managed_arguments(self.extra_args)
            ),
        ),
    )


class Toleration(Model):
    """A taint that the engine pods tolerate; the fields are Kubernetes' own."""

    key: Annotated[str, Field(max_length=316)] | None = Field(default=None, description="Taint key; all when absent.")
    operator: Literal["Exists", "Equal"] | None = Field(default=None, description="Exists, or Equal (the default).")
    value: Annotated[str, Field(max_length=63)] | None = Field(default=None, description="Taint value for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect; all when absent."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = Field(
        default=None, description="How long a NoExecute taint is tolerated, seconds."
    )


class Capabilities(Model):
    """Linux capabilities of the engine container beyond none."""

    add: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=32, pattern=patterns.CAPABILITY)], ...],
        Field(max_length=16),
    ] = Field(
        default=(),
        description="Capabilities to add, for example SYS_NICE, with which SGLang binds HiCache memory to its socket.",
    )


class SecurityContext(Model):
    """Exceptions to the engine container's security context. Default: the image's user, no capability."""

    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="User id of the engine; the image's own when absent."
    )
    run_as_group: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="Group id of the engine; the image's own when absent."
    )
    run_as_non_root: bool | None = Field(default=None, description="Whether the kubelet refuses to run as root.")
    capabilities: Capabilities | None = Field(default=None, description="Linux capabilities beyond none.")


ResourceName = Annotated[str, Field(max_length=128)]


def _amount(value: int | str) -> int | str:
    if re.fullmatch(patterns.AMOUNT, str(value)) is None:
        raise ValueError(f"{value!r} is not an amount: write for example 32 for CPUs and 900Gi for memory")
    return value


ResourceValue = Annotated[
    int | str,
    AfterValidator(_amount),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": patterns.AMOUNT, "maxLength": 24}),
]
ResourceMap = Annotated[dict[ResourceName, ResourceValue], Field(max_length=16)]


_MILLI = "type(self.{0}['memory']) == string && string(self.{0}['memory']).endsWith('m')"


class Resources(Model):
    """Requests and limits, as on any container."""

    requests: ResourceMap = Field(default={}, description="Requested amounts; memory replaces the derived request.")
    limits: ResourceMap = Field(
        default={},
        description="Limits. sglpool sets no memory limit by itself: SGLang's start-up check needs far more room under "
        "a limit than it uses (`sglpool plan` prints the figure).",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!(has(self.requests) && '{GPU_RESOURCE}' in self.requests) && "
            f"!(has(self.limits) && '{GPU_RESOURCE}' in self.limits)",
            message="resources may not name nvidia.com/gpu: the GPUs of a replica are tensorParallelSize",
            check=lambda self: GPU_RESOURCE not in self.requests and GPU_RESOURCE not in self.limits,
        ),
        Rule(
            cel=f"!(has(self.requests) && 'memory' in self.requests && {_MILLI.format('requests')}) && "
            f"!(has(self.limits) && 'memory' in self.limits && {_MILLI.format('limits')})",
            message="resources: memory in m is thousandths of a byte: write for example 900Gi",
            check=lambda self: not any(str(part.get("memory")).endswith("m") for part in (self.requests, self.limits)),
        ),
    )


LabelValue = Annotated[str, Field(max_length=63, pattern=patterns.LABEL_VALUE)]
LabelKey = Annotated[str, Field(max_length=316)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]


def _keys_rule(field: str) -> Rule:
    """Keys of labels and annotations; a schema cannot bound the keys of a map."""
    alias = to_camel(field)
    return Rule(
        cel=f"!has(self.{alias}) || self.{alias}.all(k, k.matches('{patterns.LABEL_KEY}'))",
        message=f"template.{alias}: a key holds only letters, digits, '-', '_' and '.', with a letter or digit first "
        "and last, and may have a prefix such as example.com/: correct the key",
        check=lambda self: all(re.fullmatch(patterns.LABEL_KEY, key) for key in getattr(self, field)),
        field_path=f".{alias}",
    )


Annotations = Annotated[dict[LabelKey, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]


class Template(Model):
    """What the engine pods carry beyond sglpool's own."""

    labels: Labels = Field(default={}, description="Further labels; the prefix sglpool.io/ is sglpool's own.")
    annotations: Annotations = Field(default={}, description="Further annotations of the engine pods.")
    node_selector: Labels = Field(
        default={}, description="Node labels beside the GPU type, for example a rack or a reservation."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(
        default=(),
        description="Taints tolerated beside nvidia.com/gpu, which always is; the router tolerates them too.",
    )
    priority_class_name: Name | None = Field(default=None, description="PriorityClass of the pods, the router's too.")
    service_account_name: Name | None = Field(
        default=None, description="ServiceAccount of the engine pods; default: one of the pool's own, without token."
    )
    image_pull_secrets: Annotated[tuple["PullSecret", ...], Field(max_length=8)] = Field(
        default=(), description="Secrets with registry credentials, for the router's images too."
    )
    resources: Resources = Field(default=Resources(), description="CPU, memory and others; never GPUs.")
    security_context: SecurityContext | None = Field(
        default=None, description="Exceptions to the engine container's security context."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.labels) || self.labels.all(k, !k.startsWith('sglpool.io/') && "
            "!k.startsWith('app.kubernetes.io/'))",
            message="template.labels may not use the prefixes sglpool.io/ and app.kubernetes.io/: sglpool writes them",
            check=lambda self: not any(k.startswith(("sglpool.io/", "app.kubernetes.io/")) for k in self.labels),
            field_path=".labels",
        ),
        _keys_rule("labels"),
        _keys_rule("annotations"),
        _keys_rule("node_selector"),
    )


class PullSecret(Model):
    """Name of a Secret with registry credentials."""

    list_map_key: ClassVar[str | None] = "name"
    name: Name = Field(description="Name of the Secret.")


Template.model_rebuild()
