"""`spec.model`: which weights a pool serves and where they come from."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sglpool.api import patterns
from sglpool.api.base import (
    Bytes,
    FilePath,
    Model,
    Name,
    Rule,
    SecretKey,
    Text,
    count_set,
    exactly_one,
)

_COMMIT = r"^[0-9a-f]{40}$"
_HEX = frozenset("0123456789abcdef")


def _is_commit(text: str) -> bool:
    return len(text) == 40 and set(text) <= _HEX


class HuggingFaceSource(Model):
    """A repository on the Hugging Face Hub at one commit."""

    repo: Annotated[str, Field(min_length=3, max_length=128, pattern=patterns.REPOSITORY)] = Field(
        description="Repository, for example nvidia/Kimi-K2.6-NVFP4."
    )
    revision: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="Commit of the repository, 40 hexadecimal digits. A branch name is refused: it moves, and "
        "replicas would then serve different weights."
    )
    token_secret: SecretKey | None = Field(
        default=None, description="Access token for gated repositories, handed to the download only."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.revision.matches('{_COMMIT}')",
            message="revision must be a commit of 40 hexadecimal digits, not a branch or tag: a branch moves, and "
            "replicas would then serve different weights. Copy the commit from the repository's history.",
            check=lambda self: _is_commit(self.revision),
            field_path=".revision",
        ),
    )


class ClaimSource(Model):
    """Weights on a PersistentVolumeClaim that many nodes can read."""

    claim_name: Name = Field(description="Claim in the pool's namespace; ReadOnlyMany or ReadWriteMany.")
    sub_path: Annotated[str, Field(min_length=1, max_length=512, pattern=patterns.RELATIVE_PATH)] | None = Field(
        default=None, description="Folder of the model inside the claim; the claim's root when absent."
    )


class HostPathSource(Model):
    """Weights that already lie on every node."""

    path: FilePath = Field(description="Absolute path of the model's folder on the node.")


class ImageSource(Model):
    """Weights in an OCI image, mounted as an image volume."""

    reference: Text = Field(description="Image reference, best with a digest. Needs image volumes (Kubernetes 1.33).")
    path: Annotated[str, Field(min_length=1, max_length=512, pattern=patterns.RELATIVE_PATH)] | None = Field(
        default=None, description="Folder of the model inside the image; its root when absent."
    )


class ClaimCache(Model):
    """A claim shared by the replicas."""

    claim_name: Name = Field(description="Claim in the pool's namespace; ReadWriteMany for more than one replica.")


class EmptyDirCache(Model):
    """A volume that lives and dies with the pod: every restart downloads again."""

    size_limit: Bytes | None = Field(default=None, description="Upper limit in bytes, for example 900G.")


class Cache(Model):
    """Where downloaded weights and compiled kernels are kept."""

    host_path: FilePath | None = Field(
        default=None,
        description="Folder on each node, shared by its replicas, so that a node downloads once. Needs a namespace "
        "without Pod Security enforcement.",
    )
    persistent_volume_claim: ClaimCache | None = Field(
        default=None, description="Shared claim instead of a folder on the node."
    )
    empty_dir: EmptyDirCache | None = Field(
        default=None, description="Pod-local volume: nothing is kept over a restart."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=exactly_one("hostPath", "persistentVolumeClaim", "emptyDir"),
            message="cache needs exactly one of hostPath, persistentVolumeClaim or emptyDir",
            check=lambda self: count_set(self.host_path, self.persistent_volume_claim, self.empty_dir) == 1,
        ),
    )


_SOURCES = ("huggingFace", "persistentVolumeClaim", "hostPath", "image")


class Source(Model):
    """Where weights come from: exactly one of four kinds."""

    hugging_face: HuggingFaceSource | None = Field(
        default=None, description="Download from the Hugging Face Hub into the cache, once per node."
    )
    persistent_volume_claim: ClaimSource | None = Field(default=None, description="Read from a claim.")
    host_path: HostPathSource | None = Field(default=None, description="Read from a folder on the node.")
    image: ImageSource | None = Field(default=None, description="Read from an OCI image.")
    cache: Cache | None = Field(
        default=None,
        description="Where downloads and compiled kernels are kept; only with huggingFace. Default: hostPath "
        "/var/lib/sglpool.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=exactly_one(*_SOURCES),
            message="source needs exactly one of huggingFace, persistentVolumeClaim, hostPath or image",
            check=lambda self: (
                count_set(self.hugging_face, self.persistent_volume_claim, self.host_path, self.image) == 1
            ),
        ),
        Rule(
            cel="!has(self.cache) || has(self.huggingFace)",
            message="source.cache only serves huggingFace downloads: remove it, or use huggingFace",
            check=lambda self: self.cache is None or self.hugging_face is not None,
            field_path=".cache",
        ),
    )


Count = Annotated[int, Field(ge=1, le=1024)]


class Geometry(Model):
    """Shape of a model that the catalogue does not know, as far as memory arithmetic needs it."""

    attention: Literal["MLA", "GQA"] = Field(
        description="MLA: one latent per token, whole on every rank. GQA: KV heads, divided over the ranks."
    )
    layers: Count = Field(description="Number of layers that hold KV cache.")
    kv_lora_rank: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None, description="MLA: width of the latent, elements per token and layer (512 for DeepSeek V3)."
    )
    rope_head_dim: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None, description="MLA: width of the rotary part, elements per token and layer (64)."
    )
    kv_heads: Count | None = Field(default=None, description="GQA: number of KV heads per layer.")
    head_dim: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None, description="GQA: width of one head, elements."
    )
    weights: Bytes = Field(description="Size of the whole checkpoint in bytes, for example 595G.")
    max_context_length: Annotated[int, Field(ge=1024, le=16_777_216)] = Field(
        description="Longest context that the model was made for, tokens."
    )
    vision: bool = Field(default=False, description="Whether the model takes images; the warm-up then sends one.")
    quantization: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        default=None, description="SGLang's --quantization, when the checkpoint does not say it itself."
    )
    reasoning_parser: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        default=None, description="SGLang's --reasoning-parser; none when absent."
    )
    tool_call_parser: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        default=None, description="SGLang's --tool-call-parser; none when absent."
    )
    trust_remote_code: bool = Field(default=False, description="Whether the repository's own code may run.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.attention != 'MLA' || (has(self.kvLoraRank) && has(self.ropeHeadDim))",
            message="geometry with attention MLA needs kvLoraRank and ropeHeadDim (config.json calls them "
            "kv_lora_rank and qk_rope_head_dim)",
            check=lambda self: self.attention != "MLA" or count_set(self.kv_lora_rank, self.rope_head_dim) == 2,
        ),
        Rule(
            cel="self.attention != 'GQA' || (has(self.kvHeads) && has(self.headDim))",
            message="geometry with attention GQA needs kvHeads and headDim (config.json calls them "
            "num_key_value_heads and head_dim)",
            check=lambda self: self.attention != "GQA" or count_set(self.kv_heads, self.head_dim) == 2,
        ),
    )


class ModelSpec(Model):
    """The model of a pool."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=patterns.MODEL_NAME)] = Field(
        description="Name that clients use in requests. Immutable."
    )
    profile: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        default=None,
        description="Entry of sglpool's catalogue, for example kimi-k2.6-nvfp4: geometry, weights and recommended "
        "flags. Exactly one of profile and geometry.",
    )
    geometry: Geometry | None = Field(
        default=None, description="Shape of a model that the catalogue does not know, instead of profile."
    )
    source: Source = Field(description="Where the weights come from.")
    context_length: Annotated[int, Field(ge=1024, le=16_777_216)] | None = Field(
        default=None,
        description="Longest context that a request may have, tokens. Default: the model's own. One request of this "
        "length must fit into the KV cache.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=exactly_one("profile", "geometry"),
            message="model needs exactly one of profile (a catalogue entry) or geometry (the model's shape)",
            check=lambda self: count_set(self.profile, self.geometry) == 1,
        ),
        Rule(
            cel="self.name == oldSelf.name",
            message="model.name is what clients ask for and cannot change: create another pool for another name",
            check=None,
            field_path=".name",
        ),
    )


class DraftModel(Model):
    """Draft model of speculative decoding."""

    source: Source = Field(description="Where the draft's weights come from.")
    weights: Bytes | None = Field(
        default=None, description="Size of the draft's checkpoint in bytes; default: the catalogue's figure."
    )


class Speculative(Model):
    """Speculative decoding."""

    algorithm: Literal["DFLASH", "EAGLE", "EAGLE3", "NEXTN"] = Field(
        description="SGLang's word for the algorithm. DFLASH, EAGLE and EAGLE3 need draftModel; NEXTN uses the "
        "model's own layer."
    )
    draft_model: DraftModel | None = Field(default=None, description="The draft model.")
    draft_tokens: Annotated[int, Field(ge=2, le=64)] | None = Field(
        default=None, description="Tokens that the draft proposes a step. Default: the catalogue's."
    )
    draft_kv_cache_dtype: Literal["bf16", "fp8_e4m3"] | None = Field(
        default=None, alias="draftKVCacheDtype", description="Type of the draft's KV cache. Default: the catalogue's."
    )
    draft_quantization: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        default=None,
        description="SGLang's quantization of the draft's weights. Default unquant, because SGLang would "
        "otherwise take the target's.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.algorithm == 'NEXTN' || has(self.draftModel)",
            message="speculative.algorithm needs draftModel: name the draft's source, or use NEXTN",
            check=lambda self: self.algorithm == "NEXTN" or self.draft_model is not None,
            field_path=".algorithm",
        ),
        Rule(
            cel="self.algorithm != 'NEXTN' || !has(self.draftModel)",
            message="speculative.algorithm NEXTN uses the model's own layer: remove draftModel",
            check=lambda self: self.algorithm != "NEXTN" or self.draft_model is None,
            field_path=".draftModel",
        ),
    )
