"""A model of an SGLang replica: continuous batching, a paged KV pool with a radix cache, and HiCache behind it.

Pure arithmetic on model seconds that the caller gives: no clock, no I/O, no text (only `tokens` turns text into
block ids). It is a model: it says how long a step takes and which tokens are cached, not what the tokens are.
"""

from sglpool.enginemodel.config import BLOCK_ID_BYTES, EngineConfig, Request
from sglpool.enginemodel.engine import Engine
from sglpool.enginemodel.errors import QueueFull, TooLong
from sglpool.enginemodel.rates import Rates, rates_for
from sglpool.enginemodel.records import CachedTokens, Finished, Load, Step
from sglpool.enginemodel.tokens import TOKEN_BYTES, block_ids, count_tokens

__all__ = [
    "BLOCK_ID_BYTES",
    "TOKEN_BYTES",
    "CachedTokens",
    "Engine",
    "EngineConfig",
    "Finished",
    "Load",
    "QueueFull",
    "Rates",
    "Request",
    "Step",
    "TooLong",
    "block_ids",
    "count_tokens",
    "rates_for",
]
