"""SGLang's command line, parsed as SGLang's own parser does it: prefixes, types, choices, messages, exit code 2.

Made from the catalogue's option list. Not here: rules between flags, which SGLang applies after parsing (`rules`).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sglpool.catalog.flags import FlagOption, load_flags

SERVE_PROG = "sglang serve"

#: Flags that are stored under another name than their first spelling's.
_DESTINATIONS = {
    "--fp8-gemm-backend": "fp8_gemm_runner_backend",
    "--fp4-gemm-backend": "fp4_gemm_runner_backend",
    "--elastic-ep-join-mode": "ep_join_mode",
    "--elastic-ep-join-rank-offset": "ep_join_rank_offset",
    "--monokernel-backend": "enable_amd_monokernel",
}

#: SGLang 0.5.23's defaults that are not None (False for switches), for what anybody looks at here.
_DEFAULTS: dict[str, Any] = {
    "attn_cp_size": 1,
    "attn_dp_size": 1,
    "base_gpu_id": 0,
    "dcp_size": 1,
    "decode_log_interval": 40,
    "disaggregation_bootstrap_port": 8998,
    "disaggregation_mode": "null",
    "dp_size": 1,
    "dtype": "auto",
    "ep_size": 1,
    "gpu_id_step": 1,
    "hicache_host_memory_fraction": 0.8,
    "hicache_host_memory_mode": "cache",
    "hicache_io_backend": "kernel",
    "hicache_mem_layout": "page_first",
    "hicache_size": 0,
    "hicache_storage_prefetch_policy": "timeout",
    "hicache_write_policy": "write_through",
    "host": "127.0.0.1",
    "json_model_override_args": "{}",
    "kv_cache_dtype": "auto",
    "load_balance_method": "auto",
    "load_format": "auto",
    "load_snapshot_publish_interval": 15,
    "log_level": "info",
    "log_requests_format": "text",
    "log_requests_level": 2,
    "max_prefill_tokens": 16384,
    "model_loader_extra_config": "{}",
    "moe_a2a_backend": "none",
    "moe_dp_size": 1,
    "moe_runner_backend": "auto",
    "nnodes": 1,
    "node_rank": 0,
    "port": 30000,
    "pp_size": 1,
    "radix_eviction_policy": "lru",
    "schedule_conservativeness": 1.0,
    "schedule_policy": "fcfs",
    "speculative_attention_mode": "prefill",
    "stream_interval": 1,
    "tokenizer_mode": "auto",
    "tokenizer_worker_num": 1,
    "tp_size": 1,
    "uvicorn_access_log_exclude_prefixes": [],
    "watchdog_timeout": 300.0,
    "weight_cache_mode": "off",
    "weight_version": "default",
}

_DECIMAL = {"k": 10**3, "K": 10**3, "m": 10**6, "M": 10**6, "g": 10**9, "G": 10**9, "t": 10**12, "T": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HUMAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kMGT])|(?P<whole>\d+)(?P<binary>[KMGT])i")


def human_readable_int(value: str) -> int:
    """A whole number, or one with k, M, G, T, Ki, Mi, Gi or Ti: `128k` is 128000, `128Ki` is 131072."""
    text = value.strip()
    match = _HUMAN.fullmatch(text)
    if match is None:
        return int(text)
    if match["whole"]:
        return int(match["whole"]) * _BINARY[match["binary"]]
    return int(float(match["number"]) * _DECIMAL[match["unit"]])


def loads(value: str) -> Any:
    """A JSON value; named as SGLang's type is, because argparse shows the name."""
    return json.loads(value)


def json_list_type(value: str) -> Any:
    """A JSON value, as `loads`."""
    return json.loads(value)


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "human_readable_int": human_readable_int,
    "loads": loads,
    "json_list_type": json_list_type,
}


class _Parser(argparse.ArgumentParser):
    """Prints one line of usage: SGLang's own lists 532 options before it comes to the point."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"usage: {self.prog} [-h] --model-path MODEL_PATH [options]\n{self.prog}: error: {message}\n")


def build_parser(prog: str = SERVE_PROG) -> argparse.ArgumentParser:
    """The parser with every option of the list."""
    table = load_flags()
    parser = _Parser(prog=prog, add_help=False)
    for option in dict.fromkeys(table.options.values()):
        _add(parser, option)
    return parser


def _add(parser: argparse.ArgumentParser, option: FlagOption) -> None:
    if "--help" in option.names:
        parser.add_argument(*option.names, action="help", help="show this help message and exit")
        return
    first = next(name for name in option.names if name.startswith("--"))
    dest = _DESTINATIONS.get(first, first.removeprefix("--").replace("-", "_"))
    if option.values == "0":
        # A pair such as --lora-strict-loading and --no-lora-strict-loading is unset until one of them is given.
        paired = any(name.startswith("--no-") for name in option.names) and len(option.names) > 1
        if paired:
            parser.add_argument(*option.names[:1], dest=dest, action=argparse.BooleanOptionalAction, default=None)
        else:
            parser.add_argument(*option.names, dest=dest, action="store_true", default=_DEFAULTS.get(dest, False))
        return
    convert = _TYPES.get(option.type_name, str)
    parser.add_argument(
        *option.names,
        dest=dest,
        nargs=None if option.values == "1" else option.values,
        type=convert,
        # The list holds them as text; argparse compares converted values.
        choices=None if option.choices is None else [convert(choice) for choice in option.choices],
        default=_DEFAULTS.get(dest),
        required=dest == "model_path",
    )


def parse(words: Sequence[str], prog: str = SERVE_PROG) -> dict[str, Any]:
    """Parse a command line into every flag by destination name.

    Args:
        words: the arguments after the program.
        prog: the program's name in messages.

    Raises:
        SystemExit: as argparse does, with code 2 after a message, or 0 after --help.
    """
    parser = build_parser(prog)
    return vars(parser.parse_args(_with_config_file(parser, list(words))))


def _with_config_file(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Put the flags of `--config FILE.yaml` before those of the command line, which therefore win."""
    if "--config" not in words:
        return words
    position = words.index("--config")
    if position + 1 == len(words):
        parser.error("argument --config: expected one argument")
    # Only this rare flag needs the YAML parser.
    import yaml

    path = Path(words[position + 1])
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        parser.error(f"argument --config: cannot read {path}: {' '.join(str(error).split())}")
    if not isinstance(content, dict):
        parser.error(f"argument --config: {path} must hold a mapping of flags to values")
    merged: list[str] = []
    for key, value in content.items():
        flag = f"--{str(key).replace('_', '-')}"
        if value is True:
            merged.append(flag)
        elif isinstance(value, list):
            merged += [flag, *(str(item) for item in value)]
        elif value is not None and value is not False:
            merged += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return merged + words[:position] + words[position + 2 :]
