"""The catalogue: every known model and GPU type, looked up by name.

Look-ups fail with a sentence that names the near misses, because the usual cause is a typing error in a pool.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from sglpool.catalog.gpus import GPUType
from sglpool.catalog.loader import CatalogDataError, gpu_data, parse_gpu, parse_model, read_data
from sglpool.catalog.models import ModelProfile


class UnknownName(LookupError):
    """A name that the catalogue does not hold.

    Attributes:
        name: what was asked for.
        known: the names that exist, sorted.
        close: the known names that look like it, best first.
    """

    thing = "name"
    remedy = ""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        folded = {item.casefold(): item for item in self.known}
        same = [name.casefold()] if name.casefold() in folded else []
        matches = same or difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
        self.close = tuple(folded[match] for match in matches)
        hint = f"; did you mean {' or '.join(self.close)}?" if self.close else "."
        super().__init__(f"unknown {self.thing} {name!r}{hint} Known: {', '.join(self.known)}. {self.remedy}".rstrip())


class UnknownProfile(UnknownName):
    """A model profile that the catalogue does not hold."""

    thing = "model profile"
    remedy = "Any other MLA or GQA model can be described with spec.model.geometry."


class UnknownGPUType(UnknownName):
    """A GPU type that the catalogue does not hold."""

    thing = "GPU type"
    remedy = "The chart can add types with their exact node labels."


@dataclass(frozen=True, slots=True)
class Catalog:
    """Known models and GPU types, in a stable order."""

    models: tuple[ModelProfile, ...]
    gpus: tuple[GPUType, ...]

    def model(self, name: str) -> ModelProfile:
        """Return a model profile.

        Raises:
            UnknownProfile: there is none of that name.
        """
        for model in self.models:
            if model.name == name:
                return model
        raise UnknownProfile(name, (model.name for model in self.models))

    def gpu(self, name: str) -> GPUType:
        """Return a GPU type.

        Raises:
            UnknownGPUType: there is none of that name.
        """
        for gpu in self.gpus:
            if gpu.name == name:
                return gpu
        raise UnknownGPUType(name, (gpu.name for gpu in self.gpus))

    def with_gpus(self, extra: Iterable[GPUType]) -> Catalog:
        """Return a catalogue with more GPU types; one with a known name replaces it."""
        by_name = {gpu.name: gpu for gpu in self.gpus}
        by_name.update((gpu.name, gpu) for gpu in extra)
        return Catalog(models=self.models, gpus=tuple(by_name.values()))

    def with_overrides(self, types: object) -> Catalog:
        """Return a catalogue with what an installation says of GPU types.

        Args:
            types: by name of the type, keys as in the catalogue's files. Of a known type only what differs, of a new
                one everything.

        Raises:
            CatalogDataError: it is not of that form; the message names type and key.
        """
        if not isinstance(types, dict):
            raise CatalogDataError("GPU types must be a mapping from names to their keys")
        known = {gpu.name: gpu for gpu in self.gpus}
        extra = []
        for name, given in types.items():
            if not isinstance(name, str) or not isinstance(given, dict):
                raise CatalogDataError(f"GPU type {name}: must be a mapping of keys")
            base = gpu_data(known[name]) if name in known else {}
            extra.append(parse_gpu(f"GPU type {name}", {**base, **given, "name": name}))
        return self.with_gpus(extra)


@cache
def load_catalog() -> Catalog:
    """Read the packaged catalogue, once.

    Raises:
        CatalogDataError: a packaged file is wrong.
    """
    return Catalog(
        models=tuple(parse_model(name, data) for name, data in read_data("models")),
        gpus=tuple(parse_gpu(name, data) for name, data in read_data("gpus")),
    )
