"""The charts of a recording: demand, replicas, one lane a replica, latency and cache hits, over one time axis.

Not here: the page around them (`report`), and how a line is drawn (`report_svg`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sglpool.sandbox import report_svg as svg
from sglpool.sandbox.report_data import Recording, Replica, Sample, State
from sglpool.sandbox.report_figures import Window

HEIGHT = 150
LANE = 34
KV_LANE = 22
GAP = 6
SERIES = ("one", "two", "three", "four")
"""Classes of GPU types, in order of preference."""

Value = Callable[[Replica], float | None]


def demand(recording: Recording, axis: svg.TimeAxis) -> str:
    """Requests in flight against what the ready replicas should carry."""
    in_flight: list[svg.Point] = [(sample.at_s, sample.in_flight) for sample in recording.samples]
    capacity: list[svg.Point] = [(sample.at_s, sample.capacity) for sample in recording.samples]
    most = max([value or 0.0 for _, value in (*in_flight, *capacity)], default=0.0)

    def draw(scale: svg.Scale) -> Iterator[str]:
        yield svg.area(in_flight, axis, scale, "under one")
        yield svg.steps(capacity, axis, scale, "line reference")
        yield svg.curve(in_flight, axis, scale, "line one")

    return _framed(recording, axis, most, draw, "Requests in flight and the pool's target", str_of=_plain)


def replicas(recording: Recording, axis: svg.TimeAxis) -> str:
    """Ready replicas by GPU type, stacked, and how many are wanted."""
    samples = recording.samples
    kinds = gpu_types(samples)
    ready = {kind: [_ready(sample, kind) for sample in samples] for kind in kinds}
    wanted: list[svg.Point] = [(sample.at_s, sample.wanted) for sample in samples]
    decided: list[svg.Point] = [(sample.at_s, sample.decided) for sample in samples]
    most = max([value or 0.0 for _, value in (*wanted, *decided)] + [sample.ready for sample in samples], default=0.0)

    def draw(scale: svg.Scale) -> Iterator[str]:
        lower = [0] * len(samples)
        for kind, name in zip(kinds, SERIES, strict=False):
            upper = [below + count for below, count in zip(lower, ready[kind], strict=True)]
            yield svg.stacked_steps(
                [(sample.at_s, value) for sample, value in zip(samples, lower, strict=True)],
                [(sample.at_s, value) for sample, value in zip(samples, upper, strict=True)],
                axis,
                scale,
                f"stack {name}",
            )
            lower = upper
        yield svg.steps(wanted if not any(value for _, value in decided) else decided, axis, scale, "line reference")

    return _framed(recording, axis, most, draw, "Ready replicas by GPU type and how many are wanted", str_of=_plain)


def latency(recording: Recording, axis: svg.TimeAxis, found: Sequence[Window]) -> str:
    """Time to the first token, median and 99th percentile, in milliseconds."""
    p50: list[svg.Point] = _with_gaps([(window.at_s, _ms(window.p50_s)) for window in found])
    p99: list[svg.Point] = _with_gaps([(window.at_s, _ms(window.p99_s)) for window in found])
    most = max([value or 0.0 for _, value in (*p50, *p99)], default=0.0)

    def draw(scale: svg.Scale) -> Iterator[str]:
        yield svg.curve(p99, axis, scale, "line two")
        yield svg.curve(p50, axis, scale, "line one")

    return _framed(recording, axis, most, draw, "Time to the first token", str_of=lambda value: f"{value:g} ms")


def hits(recording: Recording, axis: svg.TimeAxis, found: Sequence[Window]) -> str:
    """Cached share of the prompt tokens."""
    points = _with_gaps([(window.at_s, None if window.hit_rate is None else 100 * window.hit_rate) for window in found])

    def draw(scale: svg.Scale) -> Iterator[str]:
        yield svg.area(points, axis, scale, "under one")
        yield svg.curve(points, axis, scale, "line one")

    return _framed(recording, axis, 100.0, draw, "Prefix cache hit rate", str_of=lambda value: f"{value:g}%")


def load_lanes(recording: Recording, axis: svg.TimeAxis) -> str:
    """A lane for each replica: its requests in flight against its target, and what it was doing."""
    targets = {gpu.type: gpu.target for sample in recording.samples for gpu in sample.types}
    flying = [replica.in_flight or 0 for sample in recording.samples for replica in sample.replicas]
    most = max([1.6 * max(targets.values(), default=1), *flying], default=1.0)
    return _lanes(
        recording,
        axis,
        LANE,
        max(most, 1.0),
        lambda replica: None if replica.in_flight is None else float(replica.in_flight),
        lambda replica: float(targets.get(replica.gpu, 0)),
        "Requests in flight on each replica",
    )


def kv_lanes(recording: Recording, axis: svg.TimeAxis) -> str:
    """A lane for each replica: the share of its KV cache that running requests hold."""
    return _lanes(recording, axis, KV_LANE, 1.0, kv_utilization, lambda _: 0.0, "KV cache utilisation of each replica")


def kv_utilization(replica: Replica) -> float | None:
    """Used share of a replica's KV cache, None when unknown."""
    return replica.kv_used_tokens / replica.kv_total_tokens if replica.kv_total_tokens else None


def gpu_types(samples: Sequence[Sample]) -> list[str]:
    """GPU types in order of preference."""
    return list(dict.fromkeys(gpu.type for sample in samples for gpu in sample.types))


def pods(samples: Sequence[Sample]) -> list[str]:
    """Every pod that was ever seen, GPU types in order of preference, ordinals as numbers."""
    order = gpu_types(samples)
    seen = {replica.pod: replica.gpu for sample in samples for replica in sample.replicas}

    def place(pod: str) -> tuple[int, int, str]:
        tail = pod.rpartition("-")[2]
        gpu = seen[pod]
        return order.index(gpu) if gpu in order else len(order), int(tail) if tail.isdecimal() else -1, pod

    return sorted(seen, key=place)


def _framed(
    recording: Recording,
    axis: svg.TimeAxis,
    most: float,
    draw: Callable[[svg.Scale], Iterator[str]],
    label: str,
    *,
    str_of: Callable[[float], str],
) -> str:
    """A chart with a scale at its left, the marks of the chapters, and the time axis."""
    ticks = svg.round_ticks(most)
    scale = svg.Scale(ticks[-1], svg.TOP, svg.TOP + HEIGHT)
    body: list[str] = []
    for tick in ticks:
        body.append(svg.line(svg.LEFT, scale.y(tick), svg.RIGHT, scale.y(tick), "grid"))
        body.append(svg.text(svg.LEFT - 8, scale.y(tick) + 4, str_of(tick), "tick", "end"))
    body += _marks(recording, axis, scale.bottom)
    body += draw(scale)
    body += svg.time_axis(axis, scale.bottom)
    return svg.figure(body, scale.bottom + svg.BOTTOM, label)


def _lanes(
    recording: Recording,
    axis: svg.TimeAxis,
    height: int,
    most: float,
    value: Value,
    reference: Callable[[Replica], float],
    label: str,
) -> str:
    names = pods(recording.samples)
    bottom = svg.TOP + len(names) * (height + GAP)
    body = list(_marks(recording, axis, bottom))
    for number, name in enumerate(names):
        top = svg.TOP + number * (height + GAP) + GAP / 2
        body += _lane(recording.samples, name, axis, svg.Scale(most, top, top + height), value, reference)
    body += svg.time_axis(axis, bottom)
    return svg.figure(body, bottom + svg.BOTTOM, label)


def _lane(
    samples: Sequence[Sample],
    name: str,
    axis: svg.TimeAxis,
    scale: svg.Scale,
    value: Value,
    reference: Callable[[Replica], float],
) -> Iterator[str]:
    seen = [(sample.at_s, _of(sample, name)) for sample in samples]
    middle = (scale.top + scale.bottom) / 2
    yield svg.text(svg.LEFT - 8, middle + 4, short(name), "lane", "end")
    for begin_s, end_s, replica in stretches(seen):
        x1, x2 = axis.x(begin_s), axis.x(end_s)
        words = f"{name} {replica.state.value} from {svg.clock(begin_s)} to {svg.clock(end_s)}"
        if replica.node:
            words += f" on {replica.node}"
        yield svg.band(x1, x2, scale.top, scale.bottom, f"state {replica.state.value}", words)
        if reference(replica) and replica.state in (State.SERVING, State.DRAINING):
            y = scale.y(reference(replica))
            yield svg.line(x1, y, x2, y, "target")
    points: list[svg.Point] = [(at_s, _shown(replica, value)) for at_s, replica in seen]
    yield svg.area(points, axis, scale, "load")
    yield svg.curve(points, axis, scale, "line thin one")


def short(pod: str) -> str:
    """The part of a pod's name that tells it from its siblings: GPU type and ordinal."""
    return "-".join(pod.split("-")[-2:])


def stretches(seen: Sequence[tuple[float, Replica | None]]) -> list[tuple[float, float, Replica]]:
    """From when to when a replica was in each state, on the same node; the last reading ends the last stretch."""
    found: list[tuple[float, float, Replica]] = []
    for at_s, replica in seen:
        if found and found[-1][1] == _OPEN_S:
            begin_s, _, before = found[-1]
            if replica is not None and (replica.state, replica.node) == (before.state, before.node):
                continue
            found[-1] = (begin_s, at_s, before)
        if replica is not None:
            found.append((at_s, _OPEN_S, replica))
    if found and found[-1][1] == _OPEN_S:
        begin_s, _, before = found[-1]
        found[-1] = (begin_s, seen[-1][0], before)
    return found


_OPEN_S = float("inf")


def _shown(replica: Replica | None, value: Value) -> float | None:
    if replica is None or replica.state in (State.STARTING, State.SILENT, State.LOST):
        return None
    return value(replica)


def _of(sample: Sample, name: str) -> Replica | None:
    return next((replica for replica in sample.replicas if replica.pod == name), None)


def _ready(sample: Sample, kind: str) -> int:
    return sum(gpu.ready for gpu in sample.types if gpu.type == kind)


def _marks(recording: Recording, axis: svg.TimeAxis, bottom: float) -> Iterator[str]:
    return svg.marks(axis, [chapter.at_s for chapter in recording.chapters], svg.TOP, bottom)


def _with_gaps(points: Sequence[svg.Point], longest_s: float = 12.0) -> list[svg.Point]:
    """A gap where nothing was for long."""
    found: list[svg.Point] = []
    for at_s, value in points:
        if found and at_s - found[-1][0] > longest_s:
            found.append((at_s, None))
        found.append((at_s, value))
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _plain(value: float) -> str:
    return f"{value:g}"
