"""HBM and host-memory arithmetic: does a replica fit, and how many tokens does it hold.

Pure arithmetic over the catalogue's figures. The engine's own report, once a replica runs, is better than any
result of this package; `plan` decides which of them to show.
"""

from sglpool.sizing.fit import size
from sglpool.sizing.hbm import Napkin, napkin
from sglpool.sizing.host import auto_hicache_bytes, host_overhead_bytes, shm_bytes
from sglpool.sizing.types import (
    AUTO,
    DraftRequest,
    Fit,
    HiCacheRequest,
    HiCacheSize,
    Line,
    Reason,
    Remedy,
    SizingRequest,
)

__all__ = [
    "AUTO",
    "DraftRequest",
    "Fit",
    "HiCacheRequest",
    "HiCacheSize",
    "Line",
    "Napkin",
    "Reason",
    "Remedy",
    "SizingRequest",
    "auto_hicache_bytes",
    "host_overhead_bytes",
    "napkin",
    "shm_bytes",
    "size",
]
