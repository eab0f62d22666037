"""A recording as one HTML page that needs nothing else: no network, no other file, light and dark.

Pure: a recording in, text out. Not here: the charts (`report_charts`), the figures (`report_figures`), and who writes
the page to a file (`demo`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from sglpool.sandbox import report_charts as charts
from sglpool.sandbox import report_svg as svg
from sglpool.sandbox.report_data import Event, Recording, Sample, State
from sglpool.sandbox.report_figures import (
    Decision,
    Failure,
    Totals,
    Window,
    decisions,
    failures,
    totals,
    windows,
)

MOST_EVENTS = 120
UNKNOWN = "–"

STATES = {
    State.STARTING: "starting: fetches and loads weights, warms up",
    State.SERVING: "serving",
    State.SILENT: "does not answer its router",
    State.DRAINING: "draining: keeps its conversations, gets no new ones",
    State.ENDING: "ending",
    State.LOST: "its node is NotReady",
}


def render(recording: Recording) -> str:
    """The page."""
    axis = svg.TimeAxis(recording.end_s)
    found = windows(recording.requests)
    sections = [
        _story(recording),
        _demand(recording, axis),
        _replicas(recording, axis),
        _load(recording, axis),
        _kv(recording, axis),
        _latency(recording, axis, found),
        _hits(recording, axis, found),
        _failures(failures(recording.requests)),
        _decisions(decisions(recording.samples)),
        _events(recording),
        _figures(recording, found),
    ]
    title = f"A pool's life: {recording.pool}"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{_asset('report.css')}</style>\n</head>\n<body>\n<main>",
            f"<h1>{escape(title)}</h1>",
            _lead(recording),
            _tiles(recording, totals(recording)),
            *sections,
            _footer(recording),
            '</main>\n<div id="readout" aria-hidden="true"></div>',
            f'<script type="application/json" id="figures">{_data(recording, axis, found)}</script>',
            f"<script>\n{_asset('report.js')}</script>\n</body>\n</html>\n",
        ]
    )


def _lead(recording: Recording) -> str:
    return (
        f"<p>Coding agents work against an InferencePool of {escape(recording.model)} on a Kubernetes control plane. "
        "The control plane, the operator, the router and the agents' requests are real; the GPUs and SGLang's "
        f"arithmetic are simulated, {recording.speed:g} times faster than life, and the start of a replica "
        f"{recording.start_speed or recording.speed:g} times. Times are wall time of the machine that ran it. "
        "Move a pointer over a chart to read its figures.</p>"
    )


def _tiles(recording: Recording, sums: Totals) -> str:
    replicas = f"{sums.fewest} to {sums.most}" if sums.most else UNKNOWN
    tiles = [
        (f"{sums.requests:,}", "requests answered"),
        (f"{sums.failed:,}", "request failed" if sums.failed == 1 else "requests failed"),
        (_percent(sums.hit_rate), f"of {_millions(sums.prompt_tokens)} prompt tokens came from the KV cache"),
        (_ms(sums.p50_s), "to the first token, median"),
        (_ms(sums.p99_s), "to the first token, 99th percentile"),
        (replicas, "replicas ready"),
        (svg.clock(recording.end_s), "minutes of wall time"),
    ]
    cells = "".join(f'<div class="tile"><b>{value}</b><span>{words}</span></div>' for value, words in tiles)
    return f'<div class="tiles">{cells}</div>'


def _story(recording: Recording) -> str:
    lines = "\n".join(
        f"<li><i>{number}</i><time>{svg.clock(chapter.at_s)}</time>{escape(chapter.text)}</li>"
        for number, chapter in enumerate(recording.chapters, 1)
    )
    return _section("The story", "The numbers mark the same moments in every chart.", f'<ol class="story">{lines}</ol>')


def _demand(recording: Recording, axis: svg.TimeAxis) -> str:
    legend = _legend(
        ('<i class="key rule one"></i>', "requests in flight"),
        ('<i class="key rule dashed"></i>', "target of the ready replicas"),
    )
    text = "What the agents ask for, and what the replicas that are ready should carry."
    return _section("Demand and capacity", text, legend, _chart(charts.demand(recording, axis)))


def _replicas(recording: Recording, axis: svg.TimeAxis) -> str:
    kinds = charts.gpu_types(recording.samples)
    keys = [
        (f'<i class="key {name}"></i>', f"ready on {kind}") for kind, name in zip(kinds, charts.SERIES, strict=False)
    ]
    legend = _legend(*keys, ('<i class="key rule dashed"></i>', "wanted"))
    text = "Ready replicas, stacked by GPU type in order of preference, and how many the pool wants."
    return _section("Replicas", text, legend, _chart(charts.replicas(recording, axis)))


def _load(recording: Recording, axis: svg.TimeAxis) -> str:
    seen = {replica.state for sample in recording.samples for replica in sample.replicas}
    keys = [(f'<i class="key {state.value}"></i>', words) for state, words in STATES.items() if state in seen]
    text = (
        "Each lane is a replica: the curve is its requests in flight, the dashed line its target, the colour its "
        "state. Conversations stay where their cache is, so a replica that comes fills up with new ones."
    )
    return _section("Load per replica", text, _legend(*keys), _chart(charts.load_lanes(recording, axis)))


def _kv(recording: Recording, axis: svg.TimeAxis) -> str:
    text = (
        "The share of each replica's KV cache that running requests hold; a full lane is 100%. Cache that could be "
        "evicted is not in it."
    )
    return _section("KV utilisation per replica", text, _chart(charts.kv_lanes(recording, axis)))


def _latency(recording: Recording, axis: svg.TimeAxis, found: Sequence[Window]) -> str:
    legend = _legend(('<i class="key rule one"></i>', "median"), ('<i class="key rule two"></i>', "99th percentile"))
    text = (
        "As the agents measured it, by the moment at which a request was sent. The engines' share of it is "
        f"{recording.speed:g} times longer in life; the share of client and router is not."
    )
    return _section("Time to the first token (TTFT)", text, legend, _chart(charts.latency(recording, axis, found)))


def _hits(recording: Recording, axis: svg.TimeAxis, found: Sequence[Window]) -> str:
    text = (
        "The share of prompt tokens that the engine had in its KV cache. An agent's prompt repeats nearly all of the "
        "one before, so this shows whether conversations stay where their cache is."
    )
    return _section("Prefix cache hit rate", text, _chart(charts.hits(recording, axis, found)))


def _decisions(found: Sequence[Decision]) -> str:
    rows = [
        f'<tr><td class="time">{svg.clock(item.at_s)}</td><td class="figure">{item.before} to {item.after}</td>'
        f'<td class="word">{escape(item.why) or UNKNOWN}</td><td>{escape(item.because)}</td></tr>'
        for item in found
    ]
    table = _table('<th>time</th><th class="figure">replicas</th><th>reason</th><th>in words</th>', rows)
    return _section("Decisions", "How many replicas the pool wanted, and why, as its status said it.", table)


def _failures(found: Sequence[Failure]) -> str:
    if not found:
        return ""
    rows = [
        f'<tr><td class="figure">{item.count}</td><td class="word">{escape(item.problem)}</td>'
        f'<td class="time">{svg.clock(item.first_s)}</td><td class="time">{svg.clock(item.last_s)}</td></tr>'
        for item in found
    ]
    head = '<th class="figure">requests</th><th>what the client saw</th><th>first sent</th><th>last sent</th>'
    return _section("Failed requests", "An agent whose request fails goes on with its next one.", _table(head, rows))


def _events(recording: Recording) -> str:
    shown = recording.events[:MOST_EVENTS]
    rows = [
        f'<tr><td class="time">{svg.clock(item.at_s)}</td><td class="time">{escape(_about(item, recording.pool))}</td>'
        f'<td class="word{" warning" if item.warning else ""}">{escape(item.reason)}</td>'
        f"<td>{escape(item.message)}{f' ({item.count} times)' if item.count > 1 else ''}</td></tr>"
        for item in shown
    ]
    text = "What Kubernetes recorded about the pool and the nodes; a warning is red."
    if len(shown) < len(recording.events):
        text += f" The first {len(shown)} of {len(recording.events)}."
    return _section("Events", text, _table("<th>time</th><th>about</th><th>reason</th><th>in words</th>", rows))


def _about(event: Event, pool: str) -> str:
    """The object of an event, without the pool's name, which is everywhere."""
    kind, _, name = event.about.partition(" ")
    if name == pool:
        return "the pool"
    return f"{kind.lower()} {name.removeprefix(pool + '-')}"


def _figures(recording: Recording, found: Sequence[Window]) -> str:
    """The curves as a table, for who cannot see them or wants the numbers."""
    rows = []
    for window in found:
        sample = _nearest(recording.samples, window.at_s)
        cells = [
            _count(sample.in_flight if sample else None),
            f"{sample.ready} of {sample.wanted}" if sample else UNKNOWN,
            str(window.requests),
            str(window.failed),
            _ms(window.p50_s),
            _ms(window.p99_s),
            _percent(window.hit_rate),
        ]
        figures = "".join(f'<td class="figure">{cell}</td>' for cell in cells)
        rows.append(f'<tr><td class="time">{svg.clock(window.at_s)}</td>{figures}</tr>')
    names = ("in flight", "ready", "requests", "failed", "TTFT p50", "TTFT p99", "hit rate")
    head = "<th>time</th>" + "".join(f'<th class="figure">{name}</th>' for name in names)
    return f"<section><details><summary>All figures, every 5 seconds</summary>{_table(head, rows)}</details></section>"


def _footer(recording: Recording) -> str:
    missed = f" {recording.missed} readings failed and are gaps." if recording.missed else ""
    return (
        f"<footer>sglpool {escape(recording.version)}, {escape(recording.began)}. Read once a second from the pool's "
        f"status, its pods and events, and its routers.{missed}</footer>"
    )


def _data(recording: Recording, axis: svg.TimeAxis, found: Sequence[Window]) -> str:
    """What the script shows at the pointer; `<` is escaped, so that no text can end the element."""
    rows = [[sample.at_s, _readout(sample, found)] for sample in recording.samples]
    content = {"width": svg.WIDTH, "left": svg.LEFT, "right": svg.RIGHT, "end": axis.end_s, "rows": rows}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _readout(sample: Sample, found: Sequence[Window]) -> str:
    parts = [
        svg.clock(sample.at_s),
        f"{_count(sample.in_flight)} in flight, target {sample.capacity}",
        f"{sample.ready} of {sample.wanted} replicas ready",
    ]
    window = min(found, key=lambda each: abs(each.at_s - sample.at_s), default=None)
    if window is not None and abs(window.at_s - sample.at_s) <= 5:
        parts.append(f"TTFT p50 {_ms(window.p50_s)}, p99 {_ms(window.p99_s)}")
        parts.append(f"hits {_percent(window.hit_rate)}")
    return " · ".join(parts)


def _nearest(samples: Sequence[Sample], at_s: float) -> Sample | None:
    return min(samples, key=lambda sample: abs(sample.at_s - at_s), default=None)


def _section(title: str, text: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n<p>{escape(text)}</p>\n" + "\n".join(parts) + "\n</section>"


def _chart(figure: str) -> str:
    return f'<div class="scroll">{figure}</div>'


def _legend(*keys: tuple[str, str]) -> str:
    return '<div class="legend">' + "".join(f"<span>{key}{escape(words)}</span>" for key, words in keys) + "</div>"


def _table(head: str, rows: Iterable[str]) -> str:
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _asset(name: str) -> str:
    return (resources.files("sglpool.sandbox") / name).read_text(encoding="utf-8")


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{1000 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f}%"


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} million" if tokens >= 100_000 else f"{tokens:,}"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
