"""The page of conditions is the table of conditions, in other clothes."""

from __future__ import annotations

from pathlib import Path

from sglpool.api.conditions import PRESENT_ONLY, TABLE

PAGE = Path(__file__).parents[2] / "docs" / "conditions.md"

HEAD = """\
# Conditions

Made from the table in `operator/sglpool/api/conditions.py`. `Ready` sums up: its reason is the STATUS column of
`kubectl get sglpool`, and its message says what to do. kstatus, and so Flux, Helm and `kubectl wait`, read `Ready`,
`Reconciling` and `Stalled`.
"""


def page() -> str:
    lines = [HEAD]
    for kind, reasons in TABLE.items():
        lines += [f"## {kind}", ""]
        if kind in PRESENT_ONLY:
            lines += [f"Present only {PRESENT_ONLY[kind]}.", ""]
        lines += ["| reason | status | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {reason.status} | {reason.meaning} |" for name, reason in reasons.items()]
        lines.append("")
    return "\n".join(lines)


def test_the_page_is_current(regenerate: bool) -> None:
    if regenerate:
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "run `pytest tests/golden --regenerate`"
