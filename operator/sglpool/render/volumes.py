"""Volumes of the engine pod and where they are mounted: weights, caches, scratch space.

Weights come from one of four kinds of source; compiled kernels need a folder whatever the source. Not here: how the
weights get there (`templates/weights.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from sglpool.api.base import Manifest
from sglpool.api.model import Cache, EmptyDirCache, Source
from sglpool.render import paths
from sglpool.render.quantities import binary_quantity
from sglpool.render.replica import Replica
from sglpool.render.scripts import SourceKind, WeightsSource

MODEL_DIR = "/models/model"
"""Where weights that need no download are mounted, read-only."""

DRAFT_DIR = "/models/draft"
"""The same for the draft model."""

SHM_VOLUME = "shm"

RUN_DIR_BYTES = 16 * 2**20
"""Room for markers and the probe's state: a few kilobytes in use."""

DEFAULT_CACHE = Cache(host_path=paths.CACHE_DIR)


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume of the pod with its one mount, the same in every container that has it.

    Attributes:
        name: Name inside the pod.
        source: The volume's own fields.
        path: Where it is mounted.
        read_only: Whether the mount is.
    """

    name: str
    source: Manifest
    path: str
    read_only: bool = False

    def volume(self) -> Manifest:
        """The entry of the pod's `volumes`."""
        return {"name": self.name, **self.source}

    def mount(self) -> Manifest:
        """The entry of a container's `volumeMounts`."""
        mount: Manifest = {"name": self.name, "mountPath": self.path}
        return mount | ({"readOnly": True} if self.read_only else {})


def model_path(replica: Replica) -> str:
    """Where the engine finds the model: `--model-path`."""
    return _weights_path(replica.pool.spec.model.source, MODEL_DIR)


def draft_path(replica: Replica) -> str | None:
    """Where the engine finds the draft model, None when the pool has none."""
    source = _draft_source(replica)
    return None if source is None else _weights_path(source, DRAFT_DIR)


def weights_sources(replica: Replica) -> tuple[WeightsSource, ...]:
    """What the weights init container downloads or verifies."""
    model = _weights_source(
        replica.pool.spec.model.source,
        role="model",
        path=model_path(replica),
        expected_bytes=replica.model.checkpoint_bytes,
    )
    draft_source, path = _draft_source(replica), draft_path(replica)
    if draft_source is None or path is None:
        return (model,)
    expected_bytes = replica.request.draft.checkpoint_bytes if replica.request.draft else None
    return (model, _weights_source(draft_source, role="draft", path=path, expected_bytes=expected_bytes))


def pod_volumes(replica: Replica, *, configmap_name: str) -> tuple[Volume, ...]:
    """Every volume of the pod."""
    volumes = [
        Volume("scripts", {"configMap": {"name": configmap_name}}, paths.SCRIPTS_DIR, read_only=True),
        Volume("run", _memory(RUN_DIR_BYTES), paths.RUN_DIR),
        Volume(SHM_VOLUME, _memory(replica.fit.shm_bytes), "/dev/shm"),
        Volume("cache", _cache(replica), paths.CACHE_DIR),
    ]
    draft = _draft_source(replica)
    sources = [("model", replica.pool.spec.model.source, MODEL_DIR)]
    if draft is not None:
        sources.append(("draft", draft, DRAFT_DIR))
    for name, source, path in sources:
        if source.hugging_face is None:
            volumes.append(Volume(name, _source_volume(source), path, read_only=True))
    return tuple(volumes)


def _draft_source(replica: Replica) -> Source | None:
    speculative = replica.pool.spec.speculative
    return speculative.draft_model.source if speculative and speculative.draft_model else None


def _sources(replica: Replica) -> tuple[Source, ...]:
    draft = _draft_source(replica)
    model = replica.pool.spec.model.source
    return (model,) if draft is None else (model, draft)


def _weights_path(source: Source, folder: str) -> str:
    if source.hugging_face is not None:
        return paths.model_cache_dir(repo=source.hugging_face.repo, revision=source.hugging_face.revision)
    inside = None
    if source.persistent_volume_claim is not None:
        inside = source.persistent_volume_claim.sub_path
    elif source.image is not None:
        inside = source.image.path
    return str(PurePosixPath(folder, inside or ""))


def _kind(source: Source) -> SourceKind:
    if source.hugging_face is not None:
        return "huggingFace"
    if source.persistent_volume_claim is not None:
        return "persistentVolumeClaim"
    return "hostPath" if source.host_path is not None else "image"


def _weights_source(
    source: Source, *, role: Literal["model", "draft"], path: str, expected_bytes: int | None
) -> WeightsSource:
    hub = source.hugging_face
    return WeightsSource(
        role=role,
        kind=_kind(source),
        path=path,
        repo=hub.repo if hub else None,
        revision=hub.revision if hub else None,
        expected_bytes=expected_bytes,
    )


def _source_volume(source: Source) -> Manifest:
    if source.persistent_volume_claim is not None:
        claim = source.persistent_volume_claim.claim_name
        return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    if source.host_path is not None:
        # Directory: a node without the folder then says so in an event, instead of getting an empty one.
        return {"hostPath": {"path": source.host_path.path, "type": "Directory"}}
    return {"image": {"reference": source.image.reference if source.image else ""}}


def _cache(replica: Replica) -> Manifest:
    """The volume for downloads and compiled kernels.

    The default is a folder of the node where weights come from the hub or from the node anyway. Claims and images fit
    the Pod Security level `baseline`, and a hostPath would take that away: there kernels live with the pod.
    """
    sources = _sources(replica)
    chosen = next((source.cache for source in sources if source.cache is not None), None)
    if chosen is None:
        on_node = any(source.hugging_face or source.host_path for source in sources)
        chosen = DEFAULT_CACHE if on_node else Cache(empty_dir=EmptyDirCache())
    if chosen.host_path is not None:
        return {"hostPath": {"path": chosen.host_path, "type": "DirectoryOrCreate"}}
    if chosen.persistent_volume_claim is not None:
        return {"persistentVolumeClaim": {"claimName": chosen.persistent_volume_claim.claim_name}}
    limit = chosen.empty_dir.size_limit if chosen.empty_dir else None
    return {"emptyDir": {} if limit is None else {"sizeLimit": binary_quantity(limit)}}


def _memory(size_bytes: int) -> Manifest:
    return {"emptyDir": {"medium": "Memory", "sizeLimit": binary_quantity(size_bytes)}}
