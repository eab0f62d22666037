"""Reads Prometheus text as strictly as the tests need, with the order and form of samples kept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = ("_sum", "_bucket", "_count")

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One family of a scrape."""

    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def label_sets(self) -> set[tuple[str, ...]]:
        """Names of labels in use, `le` of buckets left out."""
        dropped = {"le"} if self.kind == "histogram" else set()
        return {tuple(name for name, _ in labels if name not in dropped) for _, labels in self.samples}

    def bounds(self) -> list[str]:
        """Bounds of a histogram's buckets in order, each once."""
        return list(dict.fromkeys(dict(labels)["le"] for name, labels in self.samples if name.endswith("_bucket")))


def parse(text: str) -> dict[str, Family]:
    """Families by name; a line that is none of Prometheus' is an error."""
    families: dict[str, Family] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in families, f"{name} comes twice"
            families[name] = Family(kind)
        elif not line.startswith("# HELP "):
            match = _SAMPLE.match(line)
            assert match, f"not a sample: {line!r}"
            sample, labels, value = match.groups()
            assert sample == name or sample.removeprefix(name) in _SUFFIXES, f"{sample} under {name}"
            found = tuple(_LABEL.findall(labels or ""))
            families[name].samples[sample, found] = float(value)
    return families


def value(text: str, sample: str, **labels: str) -> float | None:
    """Sum of a sample over every series that has these labels; None when there is none."""
    found = [
        number
        for family in parse(text).values()
        for (name, pairs), number in family.samples.items()
        if name == sample and labels.items() <= dict(pairs).items()
    ]
    return sum(found) if found else None
