"""The report in a real browser: nothing is cut off, nothing lies on top of something else, a pointer finds figures."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sglpool.sandbox.report import render
from unit.test_report import full

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LIMIT_S = 90

# Runs in the page after its own script, and leaves what it found where --dump-dom shows it.
LOOK = """<script>{
const out = {cut: [], met: [], wide: document.documentElement.scrollWidth - window.innerWidth};
for (const chart of document.querySelectorAll("svg.chart")) {
  const box = chart.viewBox.baseVal, seen = [];
  for (const text of chart.querySelectorAll("text")) {
    const b = text.getBBox();
    if (b.x < 0 || b.x + b.width > box.width || b.y < 0 || b.y + b.height > box.height) out.cut.push(text.textContent);
    for (const [c, other] of seen)
      if (b.x < c.x + c.width && c.x < b.x + b.width && b.y + 2 < c.y + c.height && c.y + 2 < b.y + b.height)
        out.met.push(other + " and " + text.textContent);
    seen.push([b, text.textContent]);
  }
}
const first = document.querySelector("svg.chart"), place = first.getBoundingClientRect();
const at = {clientX: place.left + place.width / 2, clientY: place.top + 20, bubbles: true};
first.dispatchEvent(new PointerEvent("pointermove", at));
const readout = document.getElementById("readout");
out.readout = readout.style.display + ": " + readout.textContent;
first.dispatchEvent(new PointerEvent("pointerleave"));
out.after = readout.style.display;
out.dark = getComputedStyle(document.body).backgroundColor;
const note = document.createElement("pre");
note.id = "found";
note.textContent = JSON.stringify(out);
document.body.append(note);
}</script>"""


def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no headless Chromium here: `apt-get install chromium-headless-shell` brings one")
    return found


def looked_at(folder: Path, *flags: str) -> dict[str, Any]:
    """What the page looks like from inside, in a window of a given size."""
    page = folder / "report.html"
    page.write_text(render(full()).replace("</body>", f"{LOOK}</body>"), encoding="utf-8")
    done = subprocess.run(
        [
            browser(),
            *(
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={folder / 'profile'}",
                "--enable-logging=stderr",
            ),
            *("--virtual-time-budget=5000", *flags, "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "HOME": str(folder)},
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    note = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert note, done.stderr
    found: dict[str, Any] = json.loads(html.unescape(note[1]))
    return found


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("width", [1200, 400])
def test_everything_is_to_be_seen(tmp_path: Path, width: int) -> None:
    found = looked_at(tmp_path, f"--window-size={width},900")
    assert found["cut"] == []
    assert found["met"] == []
    assert found["wide"] <= 0, "the page itself never scrolls sideways"


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_pointer_finds_the_figures_of_its_moment(tmp_path: Path) -> None:
    found = looked_at(tmp_path, "--window-size=1200,900")
    assert re.match(
        r"block: 0:\d\d · \d in flight, target 4 · 1 of 2 replicas ready · TTFT p50 20 ms", found["readout"]
    )
    assert found["after"] == "none"


@pytest.mark.timeout(2 * LIMIT_S)
def test_it_is_dark_where_the_reader_wants_it_dark(tmp_path: Path) -> None:
    light = looked_at(tmp_path)["dark"]
    dark = looked_at(tmp_path, "--blink-settings=preferredColorScheme=0")["dark"]
    assert light != dark
