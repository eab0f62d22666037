"""The documentation builds without a warning, and names nothing that does not exist.

Every command on a page is run by some test, or says that it needs a cluster. The quick start is walked word by word
in `tests/sandbox/cluster/test_quickstart.py`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.walk import NEEDS_CLUSTER, ROOT, Block, blocks

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
WALKED = {"quickstart.md", "sandbox.md"}
"""Pages whose commands have a test of their own."""


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", ROOT / "docs", tmp_path / "site"]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "<h1>" in (tmp_path / "site/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:operator|manifests|benchmarks|charts|crds|docs|tests|tools)/[\w./-]*\w", text))
    missing = [name for name in sorted(named) if not (ROOT / name).exists()]
    assert not missing


def consoles(page: Path) -> list[Block]:
    return [block for block in blocks(page.read_text(encoding="utf-8")) if block.kind == "console"]


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in WALKED], ids=lambda page: page.stem)
def test_commands_of_a_page_run_or_say_that_they_need_a_cluster(page: Path) -> None:
    for block in consoles(page):
        if block.needs_cluster:
            continue
        for command in block.commands:
            words = shlex.split(command.partition(" | ")[0])
            assert words[:2] in (["sglpool", "plan"], ["sglpool", "crd"]), f"{command}: mark it `{NEEDS_CLUSTER}`"
            done = subprocess.run(
                [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"


def test_commands_for_a_cluster_are_commands_of_ours() -> None:
    """A subcommand of sglpool that a page names exists, wherever it has to run."""
    named = set()
    for page in PAGES:
        for block in consoles(page):
            named |= {" ".join(c.split()[1:3]) for c in block.commands if c.startswith("sglpool ")}
    shown = {name for name in named if name.split()[0] in {"router", "operator", "picker"}}
    assert shown
    for name in shown:
        words = [word for word in name.split() if not word.startswith("-")]
        done = subprocess.run([sys.executable, "-m", "sglpool", *words, "--help"], capture_output=True, check=False)
        assert done.returncode == 0, name
