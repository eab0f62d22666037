"""Quantities and durations, parsed once, at the edge.

Bytes are Kubernetes quantities (`480G`, `1Ti`, an integer), time is a Go duration (`90s`, `1h30m`). Inside the
project both are plain integers with the unit in the name. Not here: anything about what the numbers mean.
"""

import re
from decimal import Decimal

QUANTITY_PATTERN = r"^[0-9]{1,18}(\.[0-9]{1,3})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
DURATION_PATTERN = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"

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
_DURATION = re.compile(r"^(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?$")

GIB = 2**30
GB = 10**9


def amount(value: str | int) -> Decimal | None:
    """The plain number of any Kubernetes quantity, or None for a text that is none."""
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        return None
    number, suffix, exponent = match.groups()
    scale = _SUFFIXES[suffix] if suffix else Decimal(10) ** int(exponent or 0)
    return Decimal(number) * scale


def parse_bytes(value: str | int) -> int:
    """Bytes of a quantity, rounded down to whole bytes.

    Raises:
        ValueError: The text is not a quantity.
    """
    number = amount(value)
    if number is None:
        raise ValueError(f"{value!r} is not a quantity of bytes: write for example 480G or 512Gi")
    return int(number)


def parse_duration_s(value: str) -> int:
    """Seconds of a Go duration made of hours, minutes and seconds.

    Raises:
        ValueError: The text is not such a duration.
    """
    match = _DURATION.match(value.strip())
    if match is None or not value.strip():
        raise ValueError(f"{value!r} is not a duration: write for example 90s, 15m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def format_duration(seconds: int) -> str:
    """Seconds as the shortest Go duration, for example `1h30m`."""
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    parts = [f"{n}{u}" for n, u in ((hours, "h"), (minutes, "m"), (left, "s")) if n]
    return "".join(parts) or "0s"
