"""The sizing request that tests of sizing change: Kimi K2.6 as the sample pool serves it."""

from sglpool.catalog import load_catalog
from sglpool.sizing import DraftRequest, HiCacheRequest, SizingRequest

GB = 10**9
CATALOG = load_catalog()
B200, H200 = CATALOG.gpu("B200"), CATALOG.gpu("H200")
KIMI = CATALOG.model("kimi-k2.6-nvfp4")
DRAFT = DraftRequest.of(KIMI.drafts[0])

#: Kimi K2.6 as the sample pool serves it: TP4 on B200, fp8 KV, DFLASH draft with bf16 KV, 480 GB of HiCache.
SAMPLE = SizingRequest(
    gpu=B200,
    model=KIMI,
    tensor_parallel_size=4,
    kv_dtype="fp8_e4m3",
    mem_fraction_percent=90,
    draft=DRAFT,
    context_tokens=262_144,
    max_running_requests=12,
    tokens_per_request=100_000,
    hicache=HiCacheRequest(size_bytes=480 * GB),
)
