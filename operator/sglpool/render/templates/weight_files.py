#!/usr/bin/env python3
"""Reads a folder of weights without loading it: are all files there, and is each as long as its header says?

A safetensors file is 8 bytes (the header's length, little endian), the header (JSON, with a begin and an end
for every tensor) and the tensors: 8 + header + the largest end. Used by weights.py; changes nothing.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# The format's own limit for a header.
MAX_HEADER_BYTES = 100_000_000
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf")
TARGET_KEYS = (
    "target_model_name_or_path",
    "target_model",
    "base_model_name_or_path",
    "verifier_model_name_or_path",
    "name_or_path",
)
TARGET_SECTIONS = ("speculators_config", "verifier", "dflash_config", "eagle_config")


class Problem(NamedTuple):
    """A sentence about one broken or missing file; `file` is set when it exists and should be replaced."""

    sentence: str
    file: Path | None


class Report(NamedTuple):
    """What was found in a folder."""

    files: int
    size_bytes: int
    problems: list[Problem]
    warnings: list[str]


def check_folder(folder: Path) -> Report:
    """Check configuration, index and every safetensors file of a folder."""
    if not folder.is_dir():
        return Report(0, 0, [Problem(f"{folder} is not a folder.", None)], [])
    problems = list(check_config(folder))
    files = sorted(folder.glob("*.safetensors"))
    wanted = expected_files(folder, problems)
    files += [folder / name for name in sorted(wanted) if "/" in name and (folder / name).exists()]
    problems += [
        Problem(f"{folder / name} is missing: other files of this model refer to it.", None)
        for name in sorted(wanted)
        if not (folder / name).exists()
    ]
    size_bytes = 0
    for path in files:
        sentence = check_file(path)
        if sentence:
            problems.append(Problem(sentence, path))
        elif path.exists():
            size_bytes += path.stat().st_size
    warnings = []
    others = [path.name for pattern in OTHER_FORMATS for path in folder.glob(pattern)]
    if not files and others:
        warnings.append(f"{folder} has no safetensors files; {len(others)} of another format are not checked.")
    elif not files and not wanted:
        problems.append(Problem(f"{folder} holds no *.safetensors file.", None))
    return Report(len(files), size_bytes, problems, warnings)


def check_config(folder: Path) -> Iterator[Problem]:
    """config.json must be there and name its architecture."""
    path = folder / "config.json"
    if not path.exists():
        yield Problem(f"{path} is missing: the engine cannot tell what this model is.", None)
        return
    config = read_json(path)
    if config is None:
        yield Problem(f"{path} ({path.stat().st_size} bytes) is not a JSON object.", path)
    elif not config.get("architectures"):
        yield Problem(f"{path} names no `architectures`: the engine cannot tell what this model is.", None)


def expected_files(folder: Path, problems: list[Problem]) -> set[str]:
    """Names that an index lists or that numbered names (`-00001-of-00003`) imply."""
    names: set[str] = set()
    for index in sorted(folder.glob("*.safetensors.index.json")):
        content = read_json(index)
        weight_map = content.get("weight_map") if content else None
        if isinstance(weight_map, dict) and weight_map:
            names.update(str(name) for name in weight_map.values())
        else:
            problems.append(Problem(f"{index} ({index.stat().st_size} bytes) is not an index of weights.", index))
    for path in folder.glob("*.safetensors"):
        match = re.fullmatch(r"(.+-)(\d+)-of-(\d+)\.safetensors", path.name)
        if match:
            stem, digits, count = match.group(1), len(match.group(2)), match.group(3)
            names.update(f"{stem}{n:0{digits}d}-of-{count}.safetensors" for n in range(1, int(count) + 1))
    return names


def check_file(path: Path) -> str | None:
    """None when a safetensors file is as long as its header says, else the sentence."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            start = stream.read(8)
            if start == b"version ":
                return f"{path} is a Git LFS pointer of {size} bytes, not the weights: fetch it with git lfs."
            if len(start) < 8:
                return f"{path} has {size} bytes, too few for a safetensors file."
            (length,) = struct.unpack("<Q", start)
            if length > min(MAX_HEADER_BYTES, size - 8):
                return f"{path} has {size} bytes, but its header alone would be {length} bytes long."
            header = json.loads(stream.read(length))
        expected = (
            8
            + length
            + max(
                (int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"),
                default=0,
            )
        )
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return f"{path} ({size} bytes) has a header that is not one of a safetensors file."
    if size != expected:
        return f"{path} has {size} bytes where its header says {expected}."
    return None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when the file is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def recorded_target(folder: Path) -> str | None:
    """The model that a draft's config.json says it was trained for; None when it says nothing."""
    config = read_json(folder / "config.json") or {}
    pending = [config]
    while pending:
        section = pending.pop(0)
        # Every configuration may carry `name_or_path`; only inside a section does it mean the target.
        keys = TARGET_KEYS[:-1] if section is config else TARGET_KEYS
        for key in keys:
            if isinstance(section.get(key), str) and section[key]:
                return str(section[key])
        pending += [section[name] for name in TARGET_SECTIONS if isinstance(section.get(name), dict)]
    return None


def own_name(folder: Path) -> str | None:
    """What a model calls itself in its config.json, if it does."""
    name = (read_json(folder / "config.json") or {}).get("_name_or_path")
    return name if isinstance(name, str) else None


def is_repository(name: str) -> bool:
    """Whether a name looks like `owner/name` on the hub rather than a path."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) is not None


def same_model(one: str, other: str) -> bool:
    """Whether two names mean one model: the last part of one begins with that of the other.

    A quantized copy has a longer name (`Kimi-K2.6` and `Kimi-K2.6-NVFP4`) and often another owner.
    """
    short, long = sorted((plain_name(one), plain_name(other)), key=len)
    return bool(short) and long.startswith(short)


def plain_name(name: str) -> str:
    """Last part of a path or repository name, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", name.rstrip("/").rpartition("/")[2].lower())
