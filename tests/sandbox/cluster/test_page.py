"""docs/sandbox.md names commands and options that there are, and what it says to type does what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sglpool.sandbox.commands import app
from support.walk import ROOT, walk

PAGE = (ROOT / "docs/sandbox.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"^\$ sglpool sandbox (.*)$", PAGE, re.MULTILINE)))
TABLE = PAGE.partition("| command |")[2].partition("\n\n")[0]


def help_of(*command: str) -> str:
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def offered() -> dict[str, str]:
    """Every command with its help."""
    found = dict.fromkeys(re.findall(r"^│ (\w+) ", help_of(), re.MULTILINE), "")
    found |= {f"node {name}": "" for name in re.findall(r"^│ (\w+) ", help_of("node"), re.MULTILINE)}
    return {name: help_of(*name.split()) for name in found if name != "node"}


def test_every_command_is_on_the_page_and_the_other_way_round(offered: dict[str, str]) -> None:
    rows = " ".join(line.split(" | ")[0] for line in TABLE.splitlines()[2:])
    named = set(re.findall(r"`((?:node )?[a-z]+)", rows))
    assert named == set(offered) - {"demo", "fetch"}


def test_the_commands_on_the_page_take_their_options(offered: dict[str, str]) -> None:
    assert len(COMMANDS) > 8
    for line in COMMANDS:
        words = shlex.split(line)
        name = next(name for name in sorted(offered, key=len, reverse=True) if line.startswith(name))
        for option in (word for word in words if word.startswith("-")):
            assert option in offered[name], line
    for option in re.findall(r"--[a-z-]+", next(row for row in TABLE.splitlines() if "`fault POD" in row)):
        assert option in offered["fault"]


@pytest.mark.controlplane
@pytest.mark.timeout(600)
def test_a_newcomer_walks_the_page(tmp_path: Path) -> None:
    said = walk(PAGE, tmp_path, {"sandbox up": "sandbox up --nodes B200=1,B300=1 --speed 200"})
    talk = said.by("curl -sSN")
    assert "minimax-m2-h200-0" in talk.partition("REPLICA")[2], "the router's table"
    assert '"object":"list"' in talk
    assert "data: [DONE]" in talk
    assert said.by("import openai").count("simulated") == 2, "answered as a whole, and as a stream"
