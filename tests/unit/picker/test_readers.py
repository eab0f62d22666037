"""What the picker reads from elsewhere: the access log, polls, Envoy's admin, its own settings and snapshots."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from sglpool.picker.accesslog import LINES_AT_ONCE, ROTATE_BYTES, SHARE_AT_ONCE, AccessLog, parse_line
from sglpool.picker.admin import AdminError, AdminGone, parse_active
from sglpool.picker.app import policy_config
from sglpool.picker.initial import digest, read_keys
from sglpool.picker.ledger import Entry
from sglpool.picker.metrics import Metrics
from sglpool.picker.polls import BadAnswer, parse_loads
from sglpool.picker.snapshots import Snapshots, absorb_lines
from sglpool.picker.views import variance_to_mean
from sglpool.routing.pickerconfig import (
    ACCESS_LOG_FIELDS,
    ANSWER_FIELDS,
    PickerConfigError,
    parse_picker_config,
)
from unit.picker.parts import Clock, config, key, make_ledger, picked

GOOD = {
    "pick": "ab1.cd.ef.10",
    "upstream": "10.0.0.1:30000",
    "status": "200",
    "flags": "-",
    "attempts": "1",
    "finish": "tool_calls",
    "prompt_tokens": "100",
    "cached_tokens": "90",
    "completion_tokens": "7",
    "refused": "-",
}


def line(**changes: str) -> str:
    values = {**GOOD, **changes}
    values.setdefault("answer", ",".join(values[name] for name in ANSWER_FIELDS))
    return "\t".join(values[name] for name, _ in ACCESS_LOG_FIELDS)


def parsed(**changes: str) -> Entry:
    entry = parse_line(line(**changes))
    assert entry is not None
    return entry


def test_a_line_is_read_field_by_field():
    entry = parsed()
    assert (entry.pick_id, entry.upstream, entry.status) == ("ab1.cd.ef.10", "10.0.0.1:30000", 200)
    assert (entry.finish, entry.prompt_tokens, entry.cached_tokens) == ("tool_calls", 100, 90)
    assert (entry.completion_tokens, entry.attempts, entry.refused) == (7, 1, False)


def test_what_a_line_leaves_out_is_unknown():
    entry = parsed(upstream="-", finish="-", prompt_tokens="-", cached_tokens="-", completion_tokens="-")
    assert (entry.upstream, entry.finish, entry.prompt_tokens, entry.cached_tokens) == (None, "unknown", None, None)
    silent = parsed(answer="-")
    assert (silent.finish, silent.prompt_tokens, silent.completion_tokens, silent.refused) == (
        "unknown",
        None,
        None,
        False,
    )
    assert parse_line(line(pick="-")) is None


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"refused": "true"}, True),
        ({"status": "503"}, True),
        ({"status": "503", "upstream": "-", "flags": "UH"}, False),
        ({"status": "503", "flags": "UF"}, False),
        ({"status": "400"}, False),
    ],
)
def test_only_an_engine_refuses(changes, refused):
    assert parsed(**changes).refused is refused


def test_a_client_that_left_aborted():
    assert parsed(flags="DC", finish="-").finish == "abort"
    assert parsed(flags="URX,DC").finish == "abort"


@pytest.mark.parametrize(
    "text", ["", "a\tb", line() + "\tmore", line(status="x"), line(prompt_tokens="many"), line(answer="stop,1")]
)
def test_what_is_no_line_is_refused(text):
    with pytest.raises(ValueError, match=r"fields|invalid|convert"):
        parse_line(text)


class LogWriter:
    """Envoy's side of the log: it writes to the file that it has open, wherever that is by now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("a")
        self.problem: Exception | None = None

    def write(self, *picks: str) -> None:
        for pick in picks:
            self.file.write(line(pick=pick) + "\n")
        self.file.flush()

    async def reopen(self) -> None:
        if self.problem is not None:
            raise self.problem
        self.file.close()
        self.file = self.path.open("a")


def make_log(tmp_path: Path) -> tuple[AccessLog, LogWriter, list[str], Metrics]:
    path = tmp_path / "access.log"
    writer, seen, metrics = LogWriter(path), [], Metrics()
    return AccessLog(path, lambda entry: seen.append(entry.pick_id), writer.reopen, metrics), writer, seen, metrics


def large(writer: LogWriter) -> int:
    """Write so many lines that the file is to be replaced."""
    count = ROTATE_BYTES // len(line(pick="a.b.c.1")) + 1
    writer.write(*(f"a.b.c.{number}" for number in range(count)))
    return count


def read_all(log: AccessLog) -> None:
    while log.read_some():
        pass


def bad_lines(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("sglpool_router_bad_log_lines_total") or 0.0


def test_lines_come_whole_though_they_are_written_in_pieces(tmp_path):
    log, writer, seen, metrics = make_log(tmp_path)
    whole = line(pick="a.b.c.1") + "\n"
    for character in whole + whole[:9]:
        writer.file.write(character)
        writer.file.flush()
        read_all(log)
    assert seen == ["a.b.c.1"]
    assert bad_lines(metrics) == 0
    log.close()
    writer.file.close()


async def test_what_else_is_to_be_done_comes_between_a_few_lines_and_the_next(tmp_path):
    log, writer, seen, _ = make_log(tmp_path)
    writer.write(*(f"a.b.c.{number}" for number in range(1000)))
    reading = asyncio.ensure_future(log.run())
    counts = [0]
    async with asyncio.timeout(20):
        while counts[-1] < 1000:
            await asyncio.sleep(0)
            counts.append(len(seen))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    steps = [(1000 - before, after - before) for before, after in itertools.pairwise(counts)]
    assert all(taken <= max(LINES_AT_ONCE, left // SHARE_AT_ONCE) for left, taken in steps)
    writer.file.close()


def test_a_log_that_grows_by_dozens_of_lines_between_two_stretches_is_kept_up_with(tmp_path):
    """Its lines give slots back: a reader that falls behind makes every replica look full."""
    log, writer, seen, _ = make_log(tmp_path)
    written = 0
    for _ in range(200):
        writer.write(*(f"a.b.c.{number}" for number in range(written, written + 40)))
        written += 40
        log.read_some()
    assert written - len(seen) < 1000
    log.close()
    writer.file.close()


def test_broken_lines_are_counted_and_left_out(tmp_path):
    log, writer, seen, metrics = make_log(tmp_path)
    writer.file.write("junk\n" + "x" * 20_000 + "\n\n")
    writer.write("a.b.c.1")
    read_all(log)
    assert seen == ["a.b.c.1"]
    assert bad_lines(metrics) == 3
    log.close()
    writer.file.close()


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The loop's time, as `AccessLog` sees it."""
    clock = Clock()

    class Loop:
        time = staticmethod(clock)

    monkeypatch.setattr("sglpool.picker.accesslog.asyncio.get_running_loop", lambda: Loop)
    return clock


async def test_a_large_file_is_replaced_and_no_line_is_lost(tmp_path, moments):
    log, writer, seen, _ = make_log(tmp_path)
    count = large(writer)
    read_all(log)
    await log._between()
    assert (tmp_path / "access.log.old").exists()
    writer.write("a.b.c.9999999")
    read_all(log)
    moments.now_s += 2
    await log._between()
    assert [path.name for path in tmp_path.iterdir()] == ["access.log"]
    writer.write("a.b.c.8888888")
    read_all(log)
    assert len(seen) == count + 2
    assert seen[-2:] == ["a.b.c.9999999", "a.b.c.8888888"]
    log.close()
    writer.file.close()


async def test_the_new_file_is_read_as_soon_as_it_is_written_to(tmp_path, moments):
    """A second later thousands of slots would still be held, and every replica look full."""
    log, writer, seen, _ = make_log(tmp_path)
    large(writer)
    read_all(log)
    await log._between()
    writer.write("a.b.c.6666666")
    for _ in range(2):
        await log._between()
        read_all(log)
    assert seen[-1] == "a.b.c.6666666"
    assert not (tmp_path / "access.log.old").exists()
    log.close()
    writer.file.close()


async def test_an_envoy_that_does_not_answer_is_asked_again(tmp_path, moments):
    log, writer, seen, _ = make_log(tmp_path)
    large(writer)
    read_all(log)
    writer.problem = AdminError("busy")
    await log._between()
    writer.write("a.b.c.7777777")
    read_all(log)
    assert seen[-1] == "a.b.c.7777777", "it writes on to the old file"
    writer.problem = None
    for _ in range(3):
        moments.now_s += 6
        await log._between()
    assert not (tmp_path / "access.log.old").exists()
    log.close()
    writer.file.close()


async def test_a_file_that_the_picker_before_was_reading_is_read_first(tmp_path, moments):
    log, writer, seen, _ = make_log(tmp_path)
    writer.file.close()
    (tmp_path / "access.log.old").write_text(line(pick="a.b.c.1") + "\n")
    (tmp_path / "access.log").write_text(line(pick="a.b.c.2") + "\n")
    writer.problem = AdminGone("nobody")
    for _ in range(3):
        read_all(log)
        await log._between()
        moments.now_s += 2
    read_all(log)
    assert seen == ["a.b.c.1", "a.b.c.2"]
    log.close()


RANK: dict[str, Any] = {
    "num_running_reqs": 3,
    "num_waiting_reqs": 1,
    "num_waiting_uncached_tokens": 50,
    "num_used_tokens": 1910,
    "max_total_num_tokens": 60_000,
    "total_prefill_uncached_tokens": 100_000,
    "total_prefill_busy_us": 10_000_000,
}


def test_a_poll_is_summed_over_ranks():
    loads = parse_loads({"loads": [RANK, RANK]})
    assert (loads.running, loads.waiting, loads.used_tokens, loads.total_tokens) == (6, 2, 3820, 120_000)
    assert (loads.ranks, loads.waiting_uncached_tokens) == (2, 100)
    assert loads.prefill_tokens_per_s == 10_000
    assert loads.busy
    assert not loads.prefilling


def test_a_prefill_in_chunks_shows_in_tokens_alone():
    zero = {**RANK, "num_running_reqs": 0, "num_waiting_reqs": 0}
    assert parse_loads({"loads": [zero]}).prefilling
    idle = {**zero, "num_waiting_uncached_tokens": 0, "num_used_tokens": 0}
    assert not parse_loads({"loads": [idle]}).busy


def test_a_rate_is_believed_after_some_work():
    assert parse_loads({"loads": [{**RANK, "total_prefill_uncached_tokens": 100}]}).prefill_tokens_per_s is None
    assert parse_loads({"loads": [{**RANK, "total_prefill_busy_us": 0}]}).prefill_tokens_per_s is None


@pytest.mark.parametrize("body", [{}, {"loads": []}, {"loads": [{}]}, {"loads": [{**RANK, "num_used_tokens": "x"}]}])
def test_what_is_no_poll_is_refused(body):
    with pytest.raises(BadAnswer, match="/v1/loads"):
        parse_loads(body)


def test_envoy_s_counts_are_found_by_address():
    clusters = (
        "engines::observability_name::engines\n"
        "engines::default_priority::max_requests::104\n"
        "engines::10.0.0.1:30000::rq_total::7\n"
        "engines::10.0.0.1:30000::rq_active::2\n"
        "engines::[fd00::1]:30000::rq_active::0\n"
        "picker::9.9.9.9:30000::rq_active::5\n"
    )
    assert parse_active(clusters) == {"10.0.0.1:30000": 2, "[fd00::1]:30000": 0}
    assert parse_active("") == {}
    with pytest.raises(ValueError, match="many"):
        parse_active("engines::10.0.0.1:30000::rq_active::many")


def test_the_settings_come_back_from_their_file():
    settings = config(weights={"B300": 1.5}, policy={"spill_budget": 0.01, "max_conversations": 5})
    assert parse_picker_config(settings.to_json()) == settings
    policy = policy_config(settings)
    assert (policy.spill_budget, policy.max_conversations) == (0.01, 5)
    assert policy.prefill_tokens_per_s == settings.prefill_tokens_per_s


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pool": None}, "pool must be str"),
        ({"extra": 1}, "unknown field extra"),
        ({"engine_port": "x"}, "engine_port must be int"),
        ({"engine_port": True}, "engine_port must be int"),
        ({"weights": {"B200": 0}}, "weights.B200"),
        ({"max_concurrent_requests": 0}, "max_concurrent_requests"),
    ],
)
def test_settings_that_cannot_be_used_name_the_field(change, words):
    data = {**json.loads(config().to_json()), **change}
    with pytest.raises(PickerConfigError, match=words):
        parse_picker_config(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null"])
def test_what_are_no_settings_is_refused(text):
    with pytest.raises(PickerConfigError, match="picker config"):
        parse_picker_config(text)


@pytest.mark.parametrize("policy", [{"nonsense": 1}, {"ttl_s": 0}, {"spill_budget": 7}])
def test_an_override_that_cannot_be_used_is_refused(policy):
    with pytest.raises(PickerConfigError, match="picker config"):
        policy_config(config(policy=policy))


def test_keys_are_read_as_kubernetes_mounts_them(tmp_path):
    real = tmp_path / "..2026"
    real.mkdir()
    (real / "alice").write_text("one\n")
    (real / "nobody").write_text("  \n")
    (tmp_path / "..data").symlink_to(real)
    for name in ("alice", "nobody"):
        (tmp_path / name).symlink_to(tmp_path / "..data" / name)
    assert read_keys(str(tmp_path)) == {"alice": "one"}
    assert read_keys(None) == {}
    assert digest({"a": "b"}) != digest({"a": "c"}) != digest({})


async def test_homes_survive_a_restart(tmp_path):
    before = make_ledger(4, max_concurrent=1000)
    homes = {number: picked(before.pick(key(number), {})).decision.home for number in range(300)}
    snapshots = Snapshots(tmp_path / "homes", before.state, before.clock_s)
    before.clock_s.now_s += 1
    await snapshots.save()
    before.clock_s.now_s += 10
    homes[300] = picked(before.pick(key(300), {})).decision.home
    await snapshots.save()
    assert len((tmp_path / "homes").read_text().splitlines()) < 2 * len(homes), "only what is new was appended"
    after = make_ledger(4)
    assert Snapshots(tmp_path / "homes", after.state, before.clock_s).load() == 301
    assert {number: after.state.get(key(number)).home for number in homes} == homes


async def test_a_snapshot_stays_as_small_as_what_it_remembers(tmp_path, monkeypatch):
    monkeypatch.setattr("sglpool.picker.snapshots.SLACK", 10)
    ledger = make_ledger(2, max_concurrent=10_000)
    snapshots = Snapshots(tmp_path / "homes", ledger.state, ledger.clock_s)
    for _ in range(200):
        ledger.clock_s.now_s += 1
        ledger.pick(key(1), {})
        await snapshots.save()
    assert len((tmp_path / "homes").read_text().splitlines()) < 20


async def test_a_file_written_anew_has_everybody_once_and_as_they_are_now(tmp_path, monkeypatch):
    monkeypatch.setattr("sglpool.picker.snapshots.SLACK", 0)
    monkeypatch.setattr("sglpool.picker.snapshots.LOOK", 7)
    before = make_ledger(4, max_concurrent=1000)
    snapshots = Snapshots(tmp_path / "homes", before.state, before.clock_s)
    for number in (*range(40), *range(20), *range(10, 30), 5, 39):
        before.clock_s.now_s += 1
        before.pick(key(number), {})
        await snapshots.save()
    lines = [json.loads(text) for text in (tmp_path / "homes").read_text().splitlines()]
    assert len(lines) <= 1.3 * 40 + 2
    after = make_ledger(4)
    assert Snapshots(tmp_path / "homes", after.state, before.clock_s).load() == 40
    seen = {each: conversation.last_seen_s for each, conversation in before.state.conversations.items()}
    assert {each: conversation.last_seen_s for each, conversation in after.state.conversations.items()} == seen


async def test_half_a_snapshot_is_better_than_none(tmp_path):
    before, after = make_ledger(), make_ledger()
    for number in range(10):
        picked(before.pick(key(number), {}))
    await Snapshots(tmp_path / "homes", before.state, before.clock_s).save()
    lines = (tmp_path / "homes").read_text().splitlines()
    broken = [*lines[:6], lines[6][:30], "null", "[]", '{"version": 99}', '{"last_seen_s": "x"}']
    assert absorb_lines(after.state, broken, after.clock_s(), "test") == 4
    assert len(after.state.conversations) == 5
    assert Snapshots(tmp_path / "nothing", after.state, after.clock_s).load() == 0


def test_balance_is_a_number():
    assert variance_to_mean([]) == variance_to_mean([0, 0]) == variance_to_mean([4, 4]) == 0
    assert variance_to_mean([0, 4]) == 2
