"""Kubernetes quantities as the API server writes them back: one text for one amount.

Used to write sizes into manifests and to compare what users wrote, so that `1024Gi` and `1Ti` are one thing. Not
here: what an amount means.
"""

from __future__ import annotations

import re
from decimal import Decimal

MIB = 2**20

_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?")
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def amount(value: str | int) -> Decimal | None:
    """The plain number of a quantity, or None for a text that is none (the API server will say so)."""
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        return None
    number, suffix, exponent = match.groups()
    scale = _SUFFIXES[suffix] if suffix else Decimal(10) ** int(exponent or 0)
    return Decimal(number) * scale


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
