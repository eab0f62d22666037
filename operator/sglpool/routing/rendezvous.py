"""Rendezvous hashing (highest random weight): a home that every router computes alike, without talking to the others.

The fallback while a shared store is away, and the hash of the baselines. A replica that comes or goes moves only the
keys that it wins or had. Not here: load, which the routers would see differently.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from math import log

from sglpool.routing.types import Replica


def rank(key: str, replicas: Iterable[Replica]) -> list[Replica]:
    """Return replicas in the key's order of preference, heavier ones ahead more often, in proportion to their weight.

    The weight is the nominal one: a ramp that depends on the time would differ between routers.
    """
    seed = key.encode()
    return sorted(replicas, key=lambda replica: (-_height(seed, replica), replica.uid))


def _height(seed: bytes, replica: Replica) -> float:
    digest = blake2b(replica.uid.encode() + b"|" + seed, digest_size=8).digest()
    drawn = (int.from_bytes(digest, "big") + 1) / (2**64 + 2)
    return -replica.weight / log(drawn)
