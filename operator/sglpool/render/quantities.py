"""Kubernetes quantities as the API server writes them back: one text for one amount.

Used to write sizes into manifests and to compare what users wrote, so that `1024Gi` and `1Ti` are one thing. Not
here: what an amount means.
"""

from __future__ import annotations

import math

from sglpool.api.quantity import amount

MIB = 2**20


def same_amount(value: str | int) -> str:
    """One text for all spellings of an amount, for hashes; a text that is no quantity stays as it is."""
    number = amount(value)
    return str(value) if number is None else format(number.normalize(), "f")


def binary_quantity(size_bytes: int) -> str:
    """Bytes as a canonical quantity, rounded up to whole Mi: `600Gi`, `1536Mi`."""
    size = -(-size_bytes // MIB)
    suffixes = ["Mi", "Gi", "Ti", "Pi"]
    while size and size % 1024 == 0 and len(suffixes) > 1:
        size //= 1024
        suffixes.pop(0)
    return f"{size}{suffixes[0]}"


def canonical_amount(value: str | int) -> str:
    """An amount as the API server writes it back: `1000m` as `1`, `1024Mi` as `1Gi`, `1.5Gi` as `1536Mi`.

    A text that is no quantity stays as it is.
    """
    number, text = amount(value), str(value).strip()
    if number is None:
        return text
    binary = text.endswith("i")
    if number == 0:
        return "0"
    if not binary and number != int(number):
        return f"{math.ceil(number * 1000)}m"
    whole, step = math.ceil(number), 1024 if binary else 1000
    suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] if binary else ["", "k", "M", "G", "T", "P", "E"]
    power = 0
    while whole % step == 0 and power + 1 < len(suffixes):
        whole //= step
        power += 1
    return f"{whole}{suffixes[power]}"
