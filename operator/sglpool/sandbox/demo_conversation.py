"""The conversation of the demo: what a coding agent sends, about as long as the real thing."""

from __future__ import annotations

from typing import Any

_MODULES = 60
_FUNCTIONS = 60
_TOOLS = ("read_file", "write_file", "run_tests", "search")


def first_turn() -> list[dict[str, Any]]:
    """Messages of a first turn of about 100,000 tokens: instructions, and the files of a repository."""
    tools = "\n".join(f"- {name}(path: str) -> str" for name in _TOOLS)
    files = "\n".join(_module(number) for number in range(_MODULES))
    return [
        {
            "role": "system",
            "content": f"You are a coding agent. Change code in small steps and run the tests.\n{tools}",
        },
        {"role": "user", "content": f"{files}\nThe test of module_7.step_12 fails for negative amounts. Fix it."},
    ]


def tool_result() -> list[dict[str, Any]]:
    """What comes after the model's answer: the agent ran its tool."""
    return [
        {"role": "user", "content": "run_tests: 59 passed, 1 failed: module_7.step_12(-1) returned -13, expected 13"}
    ]


def _module(number: int) -> str:
    functions = "\n".join(
        f"def step_{index}(amount: int) -> int:\n"
        f'    """Step {index} of module {number}: scale and shift."""\n'
        f"    return amount * {number + 1} + {index}\n"
        for index in range(_FUNCTIONS)
    )
    return f"### module_{number}.py\n{functions}"
