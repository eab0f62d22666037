"""The InferencePool: its spec, and the object as the operator reads it.

Not here: status (`api.status`), checks that need a catalogue or arithmetic (`sizing`, reported as conditions).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sglpool.api import patterns
from sglpool.api.autoscaling import Autoscaling
from sglpool.api.base import (
    Bytes,
    BytesOrAuto,
    DurationS,
    Manifest,
    Model,
    Rule,
    SecretKey,
    SecretName,
    Text,
    count_set,
    duration,
    exactly_one,
    quantity,
)
from sglpool.api.engine import Argument, Engine, Resources, Template
from sglpool.api.model import ModelSpec, Speculative

Replicas = Annotated[int, Field(ge=0, le=1000)]
TINY_HICACHE_BYTES = 10**9
SMALLEST_STORE_BYTES = 16 * 2**20


class GPU(Model):
    """Replicas of one GPU type: one StatefulSet."""

    list_map_key: ClassVar[str | None] = "type"
    type: Annotated[str, Field(min_length=2, max_length=11, pattern=patterns.GPU_TYPE)] = Field(
        description="GPU type of the catalogue: B200, B300, H200, or one that the installation added."
    )
    min_replicas: Replicas = Field(default=0, description="Fewest replicas of this type.")
    max_replicas: Replicas | None = Field(
        default=None, description="Most replicas of this type; unbounded when absent."
    )
    mem_fraction_static_percent: Annotated[int, Field(ge=40, le=97)] | None = Field(
        default=None,
        description="Share of the free GPU memory for weights and KV cache, percent (SGLang's --mem-fraction-static). "
        "Default: the catalogue's for this model and type.",
    )
    target_running_requests: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Running requests that one replica should carry. Default: what its KV cache holds, from "
        "load.tokensPerRequest.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            message="gpus: minReplicas is larger than maxReplicas: lower minReplicas or raise maxReplicas",
            check=lambda self: self.max_replicas is None or self.min_replicas <= self.max_replicas,
            field_path=".minReplicas",
        ),
    )


class HiCache(Model):
    """The second tier of the KV cache, in host memory."""

    size: BytesOrAuto = Field(
        description="Host memory for KV cache of the whole replica: all ranks, draft and indexer pools included; for "
        "example 480G, or Auto for what a node can spare. The flag per rank is derived."
    )
    write_policy: Literal["WriteThrough", "WriteThroughSelective", "WriteBack"] = Field(
        default="WriteThrough", description="When KV moves to host memory."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="type(self.size) == string ? (self.size == 'Auto' || !isQuantity(self.size) || "
            "quantity(self.size).compareTo(quantity('1G')) >= 0) : int(self.size) >= 1000000000",
            message="kvCache.hiCache.size is in bytes and for the whole replica, and under 1G it holds nothing: give "
            "it a unit, for example 480G, or write Auto",
            check=lambda self: self.size == "Auto" or self.size >= TINY_HICACHE_BYTES,
            field_path=".size",
        ),
    )


class KVCache(Model):
    """The KV cache of the engine."""

    dtype: Literal["auto", "bf16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4"] = Field(
        default="fp8_e4m3",
        description="Type of the KV cache, in SGLang's words. fp8_e4m3 halves the bytes of bf16. Which types a GPU's "
        "attention backend takes is in condition Feasible.",
    )
    hi_cache: HiCache | None = Field(default=None, description="Host memory behind the GPU's cache; off when absent.")


class Load(Model):
    """What the pool is expected to carry."""

    tokens_per_request: Annotated[int, Field(ge=1, le=16_777_216)] = Field(
        default=100_000,
        description="Tokens that one running request holds in the KV cache, on average. The fit check and the derived "
        "targets use it.",
    )


class Gate(Model):
    """A test that a new revision must pass on one replica before it gets traffic."""

    image: Text = Field(description="Image of the test.")
    args: Annotated[tuple[Argument, ...], Field(max_length=64)] = Field(
        default=(), description="Arguments of its entrypoint."
    )
    timeout: DurationS = duration("20m", "Longest run of the test, a Go duration; then it has failed.")


class Rollout(Model):
    """How a changed pool replaces its replicas."""

    max_unavailable: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="Most replicas of one GPU type that a roll-out takes away at a time."
    )
    drain_timeout: DurationS = duration(
        "15m", "Longest wait for a replica's conversations to leave before it is replaced or removed, a Go duration."
    )
    gate: Gate | None = Field(default=None, description="A test for one replica of the new revision.")


class Valkey(Model):
    """A Valkey or Redis server."""

    url: Annotated[str, Field(min_length=8, max_length=512, pattern=patterns.VALKEY_URL)] = Field(
        description="URL without credentials, for example valkey://sessions.serving:6379."
    )
    password_secret: SecretKey | None = Field(default=None, description="Password of the server; none when absent.")
    ca_secret: SecretKey | None = Field(
        default=None, description="CA of the server's certificate, as PEM; the usual public ones when absent."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.caSecret) || self.url.startsWith('valkeys:') || self.url.startsWith('rediss:')",
            message="router.sessionStore.valkey.caSecret is used with TLS only: start the url with valkeys:// or rediss://",
            check=lambda self: self.ca_secret is None or self.url.startswith(("valkeys:", "rediss:")),
            field_path=".caSecret",
        ),
    )


class ManagedValkey(Model):
    """A Valkey that the pool runs beside its routers: one pod, nothing on disk, closed to all but the routers."""

    image: Text = Field(default="valkey/valkey:8.1-alpine", description="Image with valkey-server.")
    memory: Bytes = quantity(
        "256Mi", "Memory for conversations, of about 1 kB each; the longest unused ones go when it is full."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="type(self.memory) == string ? !isQuantity(self.memory) || "
            "quantity(self.memory).compareTo(quantity('16Mi')) >= 0 : int(self.memory) >= 16777216",
            message="router.sessionStore.managed.memory is in bytes, and Valkey alone takes some: at least 16Mi",
            check=lambda self: self.memory >= SMALLEST_STORE_BYTES,
            field_path=".memory",
        ),
    )


class SessionStore(Model):
    """Memory of conversations that several routers share."""

    valkey: Valkey | None = Field(default=None, description="A server that exists already.")
    managed: ManagedValkey | None = Field(default=None, description="A small Valkey of the pool's own; {} will do.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=exactly_one("valkey", "managed"),
            message="router.sessionStore needs exactly one of valkey (a server of yours) and managed (one of the "
            "pool's own)",
            check=lambda self: count_set(self.valkey, self.managed) == 1,
        ),
    )


class Auth(Model):
    """Who may use the endpoint."""

    api_keys_secret: SecretName = Field(description="Secret whose values are the accepted API keys.")


class TLS(Model):
    """Encryption of the endpoint."""

    secret: SecretName = Field(description="Secret of type kubernetes.io/tls.")


class Router(Model):
    """The session-aware router in front of the replicas."""

    enabled: bool = Field(
        default=True,
        description="Whether the pool has a router. Without one its endpoint is the Service of the engines, which "
        "spreads requests blindly.",
    )
    replicas: Annotated[int, Field(ge=1, le=32)] = Field(
        default=1, description="Number of router pods; several share what they know through sessionStore."
    )
    image: Text | None = Field(
        default=None, description="Image of sglpool for the router's pods. Default: that of the operator's version."
    )
    envoy_image: Text | None = Field(
        default=None, description="Image of Envoy. Default: the version that sglpool was tested with."
    )
    max_concurrent_requests: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None,
        description="Most requests that the router keeps on one replica. Default: engine.maxRunningRequests plus 16.",
    )
    session_store: SessionStore | None = Field(
        default=None, description="Shared memory of conversations; in process when absent."
    )
    auth: Auth | None = Field(default=None, description="API keys; open to the cluster when absent.")
    tls: TLS | None = Field(default=None, description="TLS; plain HTTP when absent.")
    body_limit: Bytes = quantity("32Mi", "Largest request body in bytes; larger ones get 413.")
    resources: Resources = Field(default=Resources(), description="CPU and memory of Envoy in a router pod.")


def _has_draft_cache(spec: "InferencePoolSpec") -> bool:
    draft = spec.speculative.draft_model if spec.speculative else None
    return draft is not None and draft.source.cache is not None


class InferencePoolSpec(Model):
    """What a user asks for."""

    model: ModelSpec = Field(description="Which model, and where its weights come from.")
    tensor_parallel_size: Literal[1, 2, 4, 8] = Field(
        description="GPUs of one replica, all on one node. The pod's GPU request is derived from it."
    )
    gpus: Annotated[tuple[GPU, ...], Field(min_length=1, max_length=4)] = Field(
        description="GPU types in order of preference; one StatefulSet each."
    )
    kv_cache: KVCache = Field(default=KVCache(), description="KV cache on GPU and host.")
    speculative: Speculative | None = Field(default=None, description="Speculative decoding; off when absent.")
    load: Load = Field(default=Load(), description="What the pool is expected to carry.")
    engine: Engine = Field(default=Engine(), description="The SGLang server.")
    replicas: Replicas | None = Field(
        default=None,
        description="Fixed number of replicas over all GPU types, filled in order of preference. Exactly one of "
        "replicas and autoscaling. `kubectl scale` writes it.",
    )
    autoscaling: Autoscaling | None = Field(default=None, description="Follow the load instead of fixed replicas.")
    rollout: Rollout = Field(default=Rollout(), description="How changes reach the replicas.")
    router: Router = Field(default=Router(), description="The router in front of the replicas.")
    template: Template = Field(default=Template(), description="What the engine pods carry beyond sglpool's own.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.replicas) || has(self.autoscaling)",
            message="spec needs one of replicas (a fixed size) or autoscaling (bounds)",
            check=lambda self: count_set(self.replicas, self.autoscaling) > 0,
        ),
        Rule(
            cel="!(has(self.replicas) && has(self.autoscaling))",
            message="spec.replicas cannot be set while spec.autoscaling is: the autoscaler decides the size. Change "
            "autoscaling.minReplicas and maxReplicas, or remove autoscaling",
            check=lambda self: count_set(self.replicas, self.autoscaling) < 2,
        ),
        Rule(
            cel="!has(self.model.source.cache) || !has(self.speculative) || !has(self.speculative.draftModel) || "
            "!has(self.speculative.draftModel.source.cache)",
            message="a pod has one cache: remove speculative.draftModel.source.cache, the draft uses "
            "model.source.cache",
            check=lambda self: self.model.source.cache is None or not _has_draft_cache(self),
            field_path=".speculative",
        ),
        Rule(
            cel="!has(self.replicas) || self.gpus.exists(g, !has(g.maxReplicas)) || "
            "self.gpus.map(g, has(g.maxReplicas) ? g.maxReplicas : 0).sum() >= self.replicas",
            message="spec.replicas is larger than the sum of gpus[].maxReplicas: raise a maxReplicas or lower replicas",
            check=lambda self: (
                self.replicas is None
                or any(g.max_replicas is None for g in self.gpus)
                or sum(g.max_replicas or 0 for g in self.gpus) >= self.replicas
            ),
            field_path=".replicas",
        ),
        Rule(
            cel="!has(self.autoscaling) || self.gpus.map(g, g.minReplicas).sum() <= self.autoscaling.maxReplicas",
            message="the sum of gpus[].minReplicas is larger than autoscaling.maxReplicas: lower a minReplicas or "
            "raise autoscaling.maxReplicas",
            check=lambda self: (
                self.autoscaling is None or sum(g.min_replicas for g in self.gpus) <= self.autoscaling.max_replicas
            ),
            field_path=".autoscaling",
        ),
        Rule(
            cel="!has(self.autoscaling) || self.gpus.exists(g, !has(g.maxReplicas)) || "
            "self.gpus.map(g, has(g.maxReplicas) ? g.maxReplicas : 0).sum() >= self.autoscaling.minReplicas",
            message="the sum of gpus[].maxReplicas is smaller than autoscaling.minReplicas: raise a maxReplicas or "
            "lower autoscaling.minReplicas",
            check=lambda self: (
                self.autoscaling is None
                or any(g.max_replicas is None for g in self.gpus)
                or sum(g.max_replicas or 0 for g in self.gpus) >= self.autoscaling.min_replicas
            ),
            field_path=".autoscaling",
        ),
        Rule(
            cel="!has(self.engine) || !has(self.engine.maxRunningRequests) || self.gpus.all(g, "
            "!has(g.targetRunningRequests) || g.targetRunningRequests <= self.engine.maxRunningRequests)",
            message="gpus[].targetRunningRequests is larger than engine.maxRunningRequests, so that no replica can "
            "reach it: lower the target or raise the limit",
            check=lambda self: all(
                g.target_running_requests is None
                or self.engine.max_running_requests is None
                or g.target_running_requests <= self.engine.max_running_requests
                for g in self.gpus
            ),
            field_path=".gpus",
        ),
    )


@dataclass(frozen=True, slots=True)
class Pool:
    """An InferencePool as the operator and `sglpool plan` see it.

    Attributes:
        name: metadata.name.
        namespace: metadata.namespace.
        uid: metadata.uid; empty for a file that no cluster has seen.
        generation: metadata.generation.
        annotations: metadata.annotations.
        spec: The parsed spec with defaults.
        status: The status as stored, raw.
        resource_version: For guarded status patches.
        deleting: Whether a deletion timestamp is set.
        router_image: Image of sglpool for routers whose pool names none; empty for the one of this version.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    annotations: dict[str, str]
    spec: InferencePoolSpec
    status: Manifest
    resource_version: str
    deleting: bool
    router_image: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`, as logs and messages call it."""
        return f"{self.namespace}/{self.name}"


def parse_pool(manifest: Manifest, *, router_image: str = "") -> Pool:
    """Read a pool as the API server returned it.

    Unknown fields are ignored: a newer CRD must not crash an older operator.

    Args:
        manifest: The InferencePool.
        router_image: What the installation gives its routers.

    Raises:
        pydantic.ValidationError: The spec does not fit the models, which only a foreign or older CRD can cause.
    """
    metadata = manifest["metadata"]
    return Pool(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 1),
        annotations=metadata.get("annotations") or {},
        spec=InferencePoolSpec.model_validate(manifest.get("spec") or {}, extra="ignore"),
        status=manifest.get("status") or {},
        resource_version=metadata.get("resourceVersion", ""),
        deleting="deletionTimestamp" in metadata,
        router_image=router_image,
    )
