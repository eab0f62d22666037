"""The file of `--gpu-types`: what an installation says of GPU types, over the catalogue.

Not here: what a type is (`catalog.gpus`).
"""

from pathlib import Path

import yaml

from sglpool.catalog import Catalog, CatalogDataError, load_catalog


class BadGPUTypes(Exception):
    """The file cannot be used; the text says why."""


def catalog_with(gpu_types: str | None) -> Catalog:
    """The catalogue, with the GPU types of a YAML file of the form `B200: {node_label_values: [...]}`.

    Args:
        gpu_types: Path of the file, None for the catalogue alone.

    Raises:
        BadGPUTypes: The file cannot be used; the message names the type and the key.
    """
    if gpu_types is None:
        return load_catalog()
    try:
        content = yaml.safe_load(Path(gpu_types).read_text(encoding="utf-8")) or {}
        return load_catalog().with_overrides(content)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, CatalogDataError) as error:
        raise BadGPUTypes(f"--gpu-types {gpu_types}: {' '.join(str(error).split())}") from None
