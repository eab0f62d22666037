"""Writes manifests as YAML for people: block texts, no anchors, keys in the order given.

Not here: what is written.
"""

from collections.abc import Iterable

import yaml

from sglpool.api.base import Manifest

LINE_WIDTH = 120


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(manifests: Iterable[Manifest]) -> str:
    """A stream of documents that `kubectl apply -f -` takes."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=LINE_WIDTH, explicit_start=True)
