"""Checks an engine command line against SGLang's own list of options, without SGLang.

`data/sglang-<version>-flags.json` has one line per option of the engine's argument parser: option strings,
number of values, type name and choices (null where there are none). It was made by walking the parser's actions
of that version; names, types and choices are facts about its interface, and help texts are left out. The engine
itself accepts any unambiguous prefix of a flag; here only whole names pass, because what is a prefix today is an
error in the next version. Not checked: rules between flags, which the engine resolves after parsing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

DEFAULT_VERSION = "0.5.23"

#: Whole numbers with SGLang's suffixes: any decimal with k, M, G, T; whole ones only with Ki, Mi, Gi, Ti.
_HUMAN_INT = re.compile(r"\s*([+-]?\d+|\d+(\.\d+)?[kMGT]|\d+[KMGT]i)\s*")


def _is_number(kind: type[int] | type[float]) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        try:
            kind(value)
        except ValueError:
            return False
        return True

    return check


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


#: The parser's type names, and what a value of each must look like. Others take any text.
_TYPES: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    "int": ("a whole number", _is_number(int)),
    "float": ("a number", _is_number(float)),
    "human_readable_int": (
        "a whole number, or one with k, M, G, T, Ki, Mi, Gi or Ti",
        lambda value: _HUMAN_INT.fullmatch(value) is not None,
    ),
    "loads": ("JSON", _is_json),
    "json_list_type": ("JSON", _is_json),
    "parse_cuda_graph_config_arg": ("JSON", _is_json),
}


@dataclass(frozen=True, slots=True)
class FlagOption:
    """One option of the engine.

    Attributes:
        names: its option strings, all equivalent.
        values: how many values follow: "0", "1", "?", "*" or "+".
        type_name: the name of the parser's type.
        choices: the allowed values, or None for any.
    """

    names: tuple[str, ...]
    values: str
    type_name: str
    choices: tuple[str, ...] | None

    def problem(self, name: str, value: str) -> str | None:
        """Say what is wrong with a value, or None."""
        what, valid = _TYPES.get(self.type_name, ("", None))
        if valid is not None and not valid(value):
            return f"{name} needs {what}, not {value!r}"
        if self.choices is not None and value not in self.choices:
            return f"{name} does not accept {value!r}; choose from {', '.join(self.choices)}"
        return None


@dataclass(frozen=True, slots=True)
class FlagTable:
    """Every option of one SGLang version, by option string."""

    version: str
    options: Mapping[str, FlagOption]

    def check_argv(self, argv: Sequence[str]) -> list[str]:
        """Return what is wrong with an argv (without the program itself), one sentence each, or nothing."""
        problems: list[str] = []
        seen: Counter[tuple[str, ...]] = Counter()
        position = 0
        while position < len(argv):
            word = argv[position]
            position += 1
            name, equals, inline = word.partition("=")
            option = self.options.get(name)
            if option is None:
                problems.append(self._unknown(word if not word.startswith("-") else name))
                continue
            seen[option.names] += 1
            if seen[option.names] == 2:
                problems.append(
                    f"{name} is given more than once ({' and '.join(option.names)} are the same option)"
                    if len(option.names) > 1
                    else f"{name} is given more than once"
                )
            values = [inline] if equals else self._following(argv, position, option)
            if not equals:
                position += len(values)
            problems.extend(self._values(option, name, values, inline=bool(equals)))
        return problems

    def _following(self, argv: Sequence[str], position: int, option: FlagOption) -> list[str]:
        """Take the values that belong to an option, as argparse would."""
        most = {"0": 0, "1": 1, "?": 1}.get(option.values, len(argv))
        taken: list[str] = []
        while len(taken) < most and position < len(argv) and not self._is_option(argv[position]):
            taken.append(argv[position])
            position += 1
        return taken

    @staticmethod
    def _is_option(word: str) -> bool:
        # argparse takes "-1" as a value, because no option looks like a negative number.
        return len(word) > 1 and word.startswith("-") and re.fullmatch(r"-(\d+|\d*\.\d+)", word) is None

    @staticmethod
    def _values(option: FlagOption, name: str, values: list[str], *, inline: bool) -> list[str]:
        if option.values == "0":
            return [f"{name} is a switch and takes no value"] if inline else []
        if not values and option.values in ("1", "+"):
            return [f"{name} needs a value"]
        return [problem for value in values if (problem := option.problem(name, value)) is not None]

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} belongs to no flag"
        whole = sorted(name for name in self.options if name.startswith(word) and word.startswith("--"))
        if len(whole) == 1:
            return f"{word} is an abbreviation; write {whole[0]}"
        if whole:
            return f"{word} is ambiguous: {', '.join(whole)}"
        return f"SGLang {self.version} has no flag {word}"


@cache
def load_flags(version: str = DEFAULT_VERSION) -> FlagTable:
    """Read the packaged option list of a SGLang version.

    Raises:
        LookupError: there is no list for that version.
    """
    name = f"sglang-{version}-flags.json"
    entry = resources.files("sglpool.catalog").joinpath("data", name)
    if not entry.is_file():
        raise LookupError(f"no option list for SGLang {version}; the package holds {DEFAULT_VERSION}")
    options: dict[str, FlagOption] = {}
    for names, values, type_name, choices in json.loads(entry.read_text(encoding="utf-8")):
        option = FlagOption(tuple(names), values, type_name, None if choices is None else tuple(choices))
        options.update(dict.fromkeys(names, option))
    return FlagTable(version=version, options=options)


def check_argv(argv: Sequence[str], version: str = DEFAULT_VERSION) -> list[str]:
    """Return what SGLang's argument parser would refuse in an argv; empty if nothing.

    Args:
        argv: the words after `sglang serve`.
        version: the engine's version.

    Raises:
        LookupError: there is no list for that version.
    """
    return load_flags(version).check_argv(argv)
