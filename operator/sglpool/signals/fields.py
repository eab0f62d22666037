"""Figures out of somebody else's JSON: a whole number from 0 on, a time, a text, or an error that names the field.

Python's JSON reader takes NaN and Infinity, and a boolean for a number: none of them is a load. Not here: what the
fields mean.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

MAX_COUNT = 2**53
"""More of anything than there is, and the last whole number that a float tells from the next."""


class Unreadable(Exception):
    """An answer that cannot be used; the words say who gave it and what is wrong with it."""


def parse_object(body: bytes) -> Mapping[str, Any]:
    """A JSON object.

    Raises:
        Unreadable: It is something else, for example a page of HTML.
    """
    try:
        found = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Unreadable(f"answers {_kind(body)} instead of JSON") from None
    if not isinstance(found, dict):
        raise Unreadable("answers JSON that is no object")
    return found


def count(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number from 0 on.

    Raises:
        Unreadable: It is missing without a default, negative, beyond all measure, or no number.
    """
    value = fields.get(name, default)
    if type(value) is int and 0 <= value <= MAX_COUNT:
        # The usual case, a hundred thousand times a tick of a thousand pools.
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise Unreadable(f"says {name} is {_shown(value)}, which is no count")
    return value


def seconds(fields: Mapping[str, Any], name: str) -> float | None:
    """An age in seconds, None where it says null.

    Raises:
        Unreadable: It is negative or no number.
    """
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is float and 0.0 <= value < math.inf:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise Unreadable(f"says {name} is {_shown(value)}, which is no age")
    return float(value)


def text(fields: Mapping[str, Any], name: str) -> str:
    """A text.

    Raises:
        Unreadable: It is missing or something else.
    """
    value = fields.get(name)
    if not isinstance(value, str):
        raise Unreadable(f"says {name} is {_shown(value)}, which is no text")
    return value


def objects(fields: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A list of objects.

    Raises:
        Unreadable: It is missing or something else.
    """
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Unreadable(f"says {name} is {_shown(value)}, which is no list of objects")
    return value


def _no_number(word: str) -> NoReturn:
    raise ValueError(word)


def _kind(body: bytes) -> str:
    start = body[:256].lstrip().lower()
    if not start:
        return "nothing"
    return "HTML" if start.startswith((b"<!doctype", b"<html", b"<")) else "something"


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    try:
        return repr(value)[:40]
    except ValueError:  # a whole number too long to be written
        return "a number beyond all measure"
