"""Known models, GPU types and engine flags, as data files with a loader.

Every number carries its source. Nothing here decides whether a model fits a GPU; that is `sizing`.
"""

from sglpool.catalog.catalog import Catalog, UnknownGPUType, UnknownName, UnknownProfile, load_catalog
from sglpool.catalog.flags import FlagTable, check_argv, load_flags
from sglpool.catalog.gpus import GIB, MIB, GPUType
from sglpool.catalog.layouts import AttentionKind, DSALayout, GQALayout, KVLayout, MLALayout, element_bytes
from sglpool.catalog.loader import CatalogDataError, parse_gpu
from sglpool.catalog.models import (
    DEFAULT_MAX_RUNNING_REQUESTS,
    DraftProfile,
    Flag,
    ModelProfile,
    model_from_geometry,
)

__all__ = [
    "DEFAULT_MAX_RUNNING_REQUESTS",
    "GIB",
    "MIB",
    "AttentionKind",
    "Catalog",
    "CatalogDataError",
    "DSALayout",
    "DraftProfile",
    "Flag",
    "FlagTable",
    "GPUType",
    "GQALayout",
    "KVLayout",
    "MLALayout",
    "ModelProfile",
    "UnknownGPUType",
    "UnknownName",
    "UnknownProfile",
    "check_argv",
    "element_bytes",
    "load_catalog",
    "load_flags",
    "model_from_geometry",
    "parse_gpu",
]
