"""Reads the packaged TOML files into the catalogue's dataclasses.

Every key of a file is required or has a default here, and an unknown key is an error: a misspelt number must
not silently become a default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import resources
from typing import TypeVar

from sglpool.catalog.gpus import GPUType
from sglpool.catalog.layouts import AttentionKind, DSALayout, GQALayout, KVLayout, MLALayout
from sglpool.catalog.models import DEFAULT_MAX_RUNNING_REQUESTS, DraftProfile, Flag, ModelProfile

T = TypeVar("T")

_LAYOUTS: Mapping[str, type[MLALayout] | type[GQALayout] | type[DSALayout]] = {
    "MLA": MLALayout,
    "GQA": GQALayout,
    "DSA": DSALayout,
}


class CatalogDataError(ValueError):
    """A catalogue file is wrong; the message names the file and the key."""


class _Table:
    """One TOML table whose keys are taken one by one, so that none is left over."""

    def __init__(self, where: str, data: Mapping[str, object]) -> None:
        self._where = where
        self._left = dict(data)

    def take(self, key: str, kind: type[T]) -> T:
        """Take a required key of the given type."""
        if key not in self._left:
            raise CatalogDataError(f"{self._where}: {key} is missing")
        value = self._left.pop(key)
        # bool is an int in Python; a size must not be `true`.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CatalogDataError(f"{self._where}: {key} must be of type {kind.__name__}, not {value!r}")
        return value

    def take_or(self, key: str, kind: type[T], default: T) -> T:
        """Take an optional key of the given type."""
        return self.take(key, kind) if key in self._left else default

    def take_optional(self, key: str, kind: type[T]) -> T | None:
        """Take an optional key of the given type, None when absent."""
        return self.take(key, kind) if key in self._left else None

    def table(self, key: str) -> _Table:
        """Take a required sub-table."""
        return _Table(f"{self._where}: {key}", self.take(key, dict))

    def rest(self) -> Mapping[str, object]:
        """Take everything that is left."""
        left, self._left = self._left, {}
        return left

    def done(self) -> None:
        """Refuse keys that nobody took."""
        if self._left:
            raise CatalogDataError(f"{self._where}: unknown key {', '.join(sorted(self._left))}")


def _strings(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CatalogDataError(f"{where} must be a list of strings, not {value!r}")
    return tuple(value)


def _attention(where: str, kind: str) -> AttentionKind:
    try:
        return AttentionKind(kind)
    except ValueError:
        raise CatalogDataError(f"{where}: attention is one of {', '.join(AttentionKind)}") from None


def _flags(where: str, value: object) -> tuple[Flag, ...]:
    """Read `[["--flag", "value"], ["--switch"]]`."""
    if not isinstance(value, list):
        raise CatalogDataError(f"{where} must be a list of flags, not {value!r}")
    flags: list[Flag] = []
    for item in value:
        words = _strings(where, item)
        if len(words) not in (1, 2):
            raise CatalogDataError(f"{where}: a flag is one or two words, not {item!r}")
        flags.append((words[0], words[1] if len(words) == 2 else None))
    return tuple(flags)


def _layout(table: _Table) -> KVLayout:
    kind = table.take("attention", str)
    numbers: dict[str, int] = {}
    for key, value in table.rest().items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise CatalogDataError(f"KV layout: {key} must be a whole number, not {value!r}")
        numbers[key] = value
    try:
        return _LAYOUTS[kind](**numbers)
    except (KeyError, TypeError) as error:
        raise CatalogDataError(f"KV layout {kind}: {error}") from error


def parse_gpu(where: str, data: Mapping[str, object]) -> GPUType:
    """Read one GPU type.

    Args:
        where: the file's name, for messages.
        data: the parsed TOML, or a chart value of the same form.

    Raises:
        CatalogDataError: a key is missing, unknown or of the wrong type.
    """
    table = _Table(where, data)
    dtypes = table.take("kv_dtypes", dict)
    gpu = GPUType(
        name=table.take("name", str),
        memory_mib=table.take("memory_mib", int),
        architecture=table.take("architecture", str),
        node_label_key=table.take_or("node_label_key", str, "nvidia.com/gpu.product"),
        node_label_values=_strings(f"{where}: node_label_values", table.take("node_label_values", list)),
        gpus_per_node=table.take_or("gpus_per_node", int, 8),
        node_memory_bytes=table.take("node_memory_bytes", int),
        context_bytes=table.take("context_bytes", int),
        nccl_bytes=table.take("nccl_bytes", int),
        default_mem_fraction_percent=table.take("default_mem_fraction_percent", int),
        kv_dtypes={
            _attention(f"{where}: kv_dtypes.{kind}", kind): _strings(f"{where}: kv_dtypes.{kind}", value)
            for kind, value in dtypes.items()
        },
        measured=table.take("measured", bool),
        source=table.take("source", str),
    )
    table.done()
    return gpu


def gpu_data(gpu: GPUType) -> dict[str, object]:
    """A GPU type as `parse_gpu` reads it."""
    data: dict[str, object] = {field.name: getattr(gpu, field.name) for field in fields(gpu)}
    return data | {
        "node_label_values": list(gpu.node_label_values),
        "kv_dtypes": {str(kind): list(dtypes) for kind, dtypes in gpu.kv_dtypes.items()},
    }


def _draft(where: str, data: Mapping[str, object]) -> DraftProfile:
    table = _Table(where, data)
    draft = DraftProfile(
        algorithm=table.take("algorithm", str),
        repo=table.take("repo", str),
        checkpoint_bytes=table.take("checkpoint_bytes", int),
        sharded=table.take("sharded", bool),
        layout=_layout(table.table("kv")),
        draft_tokens=table.take("draft_tokens", int),
        window_tokens=table.take_optional("window_tokens", int),
        kv_dtype=table.take("kv_dtype", str),
        quantization=table.take("quantization", str),
        attention_backend=table.take_optional("attention_backend", str),
        attention_mode=table.take_optional("attention_mode", str),
        source=table.take("source", str),
    )
    table.done()
    return draft


def parse_model(where: str, data: Mapping[str, object]) -> ModelProfile:
    """Read one model profile; `where` is the file's name, for messages.

    Raises:
        CatalogDataError: a key is missing, unknown or of the wrong type.
    """
    table = _Table(where, data)
    flags = table.take_or("flags", list, [])
    gpu_flags = table.take_or("gpu_flags", dict, {})
    size_flags = table.take_or("tensor_parallel_flags", dict, {})
    model = ModelProfile(
        name=table.take("name", str),
        title=table.take("title", str),
        repo=table.take("repo", str),
        architecture=table.take("architecture", str),
        layout=_layout(table.table("kv")),
        parameters=table.take("parameters", int),
        checkpoint_bytes=table.take("checkpoint_bytes", int),
        replicated_bytes_low=table.take("replicated_bytes_low", int),
        replicated_bytes_high=table.take("replicated_bytes_high", int),
        max_context_tokens=table.take("max_context_tokens", int),
        vision=table.take_or("vision", bool, default=False),
        quantization=table.take_optional("quantization", str),
        tool_call_parser=table.take_optional("tool_call_parser", str),
        reasoning_parser=table.take_optional("reasoning_parser", str),
        trust_remote_code=table.take_or("trust_remote_code", bool, default=False),
        chunked_prefill_tokens=table.take_optional("chunked_prefill_tokens", int),
        max_running_requests=table.take_or("max_running_requests", int, DEFAULT_MAX_RUNNING_REQUESTS),
        mem_fraction_percents=table.take_or("mem_fraction_percents", dict, {}),
        flags=_flags(f"{where}: flags", flags),
        gpu_flags={gpu: _flags(f"{where}: gpu_flags", value) for gpu, value in gpu_flags.items()},
        tensor_parallel_flags={
            int(size): _flags(f"{where}: tensor_parallel_flags", value) for size, value in size_flags.items()
        },
        drafts=tuple(_draft(f"{where}: drafts", draft) for draft in table.take_or("drafts", list, [])),
        source=table.take("source", str),
    )
    table.done()
    return model


def read_data(folder: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the name and the content of each packaged TOML file of `data/<folder>`, by name."""
    root = resources.files("sglpool.catalog").joinpath("data", folder)
    for entry in sorted(root.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            yield entry.name, tomllib.loads(entry.read_text(encoding="utf-8"))
