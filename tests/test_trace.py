"""Traces: read, replayed and judged."""

from __future__ import annotations

import codecs
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proofs.verdict import IN_FLIGHT_US, Interruption, compare, read_deliveries

from shardq.cli import trace
from shardq.cli.trace import (
    Event,
    Timed,
    TraceLine,
    read,
    replay,
)
from shardq.errors import BadTime, UsageError
from shardq.model.times import due_ms

PUT = [Timed(b"a", 1_000), Timed(b"b", 2_000), Timed(b"c", 2_000)]


def delivery(body: bytes, at_ms: float, consumer: str = "one") -> TraceLine:
    at_us = round(at_ms * 1_000)
    return TraceLine(
        body.decode(), body, due_ms=0, delivered_ms=0, at_us=at_us, attempt=1, consumer=consumer
    )


GOOD = [delivery(b"a", 1_001), delivery(b"b", 2_002), delivery(b"c", 2_009)]


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_a_trace_is_read_line_by_line_with_zones(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl",
        '{"at":"1970-01-01T01:00:05+01:00"}',
        "",
        '{"at":"1970-01-01T00:01:00Z"}',
    )
    assert list(read(path, "at")) == [
        Event(b'{"at":"1970-01-01T01:00:05+01:00"}', 5_000),
        Event(b'{"at":"1970-01-01T00:01:00Z"}', 60_000),
    ]


LINE = b'{"at":"1970-01-01T00:00:05Z"}'


@pytest.mark.parametrize(
    "content",
    [
        LINE + b"\r\n",
        codecs.BOM_UTF8 + LINE,
        b" \t\r\n\n" + LINE + b"\n  \n",
        gzip.compress(LINE + b"\n"),
        gzip.compress(codecs.BOM_UTF8 + LINE),
    ],
    ids=["crlf", "byte order mark", "blank lines", "gzip", "byte order mark in gzip"],
)
def test_what_surrounds_a_line_is_no_part_of_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    assert list(read(path, "at")) == [Event(LINE, 5_000)]
    assert list(read(io.BytesIO(content), "at")) == [Event(LINE, 5_000)]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.jsonl.gz", LINE, "not gzipped; if it is plain text, rename it without .gz"),
        ("t.jsonl.gz", b"", "not gzipped"),
        ("t.jsonl", b"[" + LINE + b"]", "is a JSON array; JSON Lines are needed"),
        ("t.jsonl", b"\n [\n" + LINE + b"\n]", "is a JSON array; JSON Lines are needed"),
        ("t.jsonl", b"[" + LINE * 400_000 + b"]", "is a JSON array; JSON Lines are needed"),
        ("t.jsonl", LINE.decode().encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("t.jsonl", b"\x1f" + LINE, "damaged after line 0"),
        ("t.jsonl.gz", gzip.compress(LINE + b"\n")[:-12], "damaged"),
    ],
    ids=["plain", "empty", "array", "of lines", "large array", "utf-16", "no gzip", "cut gzip"],
)
def test_a_file_of_another_kind_is_refused_in_words(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=told):
        list(read(path, "at"))


def test_lines_that_do_not_come_from_a_file_are_those_of_stdin() -> None:
    with pytest.raises(UsageError, match=r"^stdin, line 2 has no field 'at'"):
        list(read(io.BytesIO(LINE + b"\n{}\n"), "at"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON: it is nested too deep"),
        ("9" * 5_000, r"line 2 is not JSON: a number has more than 4,300 digits\.$"),
        ('{"other":1}', "line 2 has no field 'at'"),
        ("[1]", "line 2 has no field 'at'"),
        ("7", "line 2 has no field 'at'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, told: str) -> None:
    path = written(tmp_path / "t.jsonl", '{"at":"1970-01-01T00:00:05Z"}', line)
    with pytest.raises(UsageError, match=told):
        list(read(path, "at"))


@pytest.mark.parametrize("at", ['"1970-01-01T00:00:05"', '"soon"', "5", "null"])
def test_a_bad_time_is_named(tmp_path: Path, at: str) -> None:
    path = written(tmp_path / "t.jsonl", f'{{"at":{at}}}')
    with pytest.raises(BadTime, match="line 1: due"):
        list(read(path, "at"))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="such a file is Linux's")
def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(OSError, match="Input/output error") as caught:
        list(read(Path("/proc/self/mem"), "at"))
    assert caught.value.filename == "/proc/self/mem"


def test_gaps_are_divided_by_the_speed() -> None:
    events = [Event(b"a", 10_000), Event(b"b", 70_000), Event(b"c", 5_000)]
    timed = list(replay(events, start_ms=1_000_000, speed=60))
    assert [t.due_ms for t in timed] == [1_000_000, 1_001_000, 1_000_000 - 83]


@given(st.binary(), st.integers(0, 2**42), st.integers(0, 2**42), st.integers(1, 9))
def test_a_delivery_survives_its_line(body: bytes, due: int, at_us: int, attempt: int) -> None:
    one = TraceLine("id", body, due, due + 1, at_us, attempt, "c", "mail")
    line = one.to_json()
    assert "\n" not in line
    assert TraceLine.from_json(line, "c") == one


def test_a_torn_line_is_counted_not_read(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    line = GOOD[0].to_json()
    path.write_text(line + "\n" + line[:30])
    deliveries, torn = read_deliveries(path)
    assert (len(deliveries), torn) == (1, 1)
    assert deliveries[0].consumer == "out.jsonl"


@pytest.mark.parametrize("line", ["", "[]", "{}", json.dumps({"body": 1}), "null"])
def test_a_line_of_another_kind_is_no_delivery(line: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        TraceLine.from_json(line)


def test_all_delivered_once_on_time_is_a_clean_verdict() -> None:
    verdict = compare(PUT, GOOD)
    assert verdict.lines() == [
        "delivered   3 of 3",
        "lost        0",
        "duplicated  0",
        "early       0",
        "lateness    p50 2ms, p90 9ms, p99 9ms",
    ]
    assert verdict.sentence() == "All 3 messages were delivered once, none early."
    assert verdict.is_proved()
    assert not verdict.foreign


def test_a_verdict_says_in_words_what_is_wrong() -> None:
    twice = delivery(b"a", 5_000, "two")
    early = compare(PUT, [delivery(b"a", 999), twice, delivery(b"x", 9_000)])
    assert early.sentence() == (
        "NOT PROVED, of 3 messages: 2 lost, 1 delivered twice without a reason, 1 early, "
        "1 delivered that nobody put."
    )
    wrong = compare(PUT, [delivery(b"a", 999), *GOOD])
    assert not wrong.is_proved()
    assert wrong.is_proved(with_wrong_clocks=True)
    assert wrong.sentence(with_wrong_clocks=True) == (
        "All 3 messages were delivered; with clocks wrong on purpose, 1 came early and 1 twice."
    )


@pytest.mark.parametrize(
    ("deliveries", "found"),
    [
        (GOOD[:2], {"lost": [b"c"], "delivered": 2}),
        ([*GOOD, delivery(b"a", 5_000, "two")], {"duplicated": [b"a"], "delivered": 3}),
        ([*GOOD, delivery(b"x", 9_000)], {"foreign": [b"x"], "delivered": 3}),
    ],
    ids=["lost", "twice", "put by nobody"],
)
def test_what_is_wrong_is_found(deliveries: list[TraceLine], found: dict[str, object]) -> None:
    verdict = compare(PUT, deliveries)
    assert {name: getattr(verdict, name) for name in found} == found


def test_an_early_delivery_is_found_by_a_microsecond() -> None:
    early = delivery(b"a", 999.999)
    assert compare(PUT, [early, *GOOD[1:]]).early == [early]
    assert compare(PUT, [delivery(b"a", 1_000), *GOOD[1:]]).early == []


def test_equal_bodies_are_judged_by_number_and_due() -> None:
    put = [Timed(b"a", 1_000), Timed(b"a", 5_000)]
    assert compare(put, [delivery(b"a", 1_001)]).lost == [b"a"]
    assert compare(put, [delivery(b"a", 1_001), delivery(b"a", 5_001)]).delivered == 2
    assert len(compare(put, [delivery(b"a", 1_001), delivery(b"a", 4_000)]).early) == 1


def test_a_repeat_is_excused_only_near_its_own_consumers_interruption() -> None:
    cut = Interruption("one", "killed", 1_500_000, 1_500_000)
    again = delivery(b"a", 12_000, "two")
    excused = compare(PUT, [*GOOD, again], [cut])
    assert dict(excused.excused) == {"killed one": 1}
    assert excused.lines()[2] == "duplicated  1; 1 in flight when one was killed"
    assert excused.sentence() == (
        "All 3 messages were delivered, none early; 1 came twice, for their consumer was killed "
        "or frozen."
    )
    assert excused.duplicated == []
    assert excused.repeats == 1
    elsewhere = Interruption("three", "killed", 1_500_000, 1_500_000)
    assert compare(PUT, [*GOOD, again], [elsewhere]).duplicated == [b"a"]
    long_after = IN_FLIGHT_US + 2_000_000
    assert compare(
        PUT, [*GOOD, again], [Interruption("one", "killed", long_after, long_after)]
    ).duplicated


def test_an_interruption_never_excuses_a_loss() -> None:
    cut = Interruption("one", "killed", 1_500_000, 1_500_000)
    assert compare(PUT, GOOD[:2], [cut]).lost == [b"c"]


@pytest.mark.parametrize("speed", [1e-300, 1e-9, 0.0, -1.0, float("nan")])
def test_a_speed_that_leaves_the_calendar_is_refused(speed: float) -> None:
    events = [trace.Event(b"a", 0), trace.Event(b"b", 10**12)]
    with pytest.raises(UsageError, match="speed"):
        list(trace.replay(events, start_ms=0, speed=speed))


def test_a_start_after_the_last_year_is_refused() -> None:
    events = [trace.Event(b"a", 0), trace.Event(b"b", 86_400_000)]
    with pytest.raises(BadTime, match="event 2"):
        list(trace.replay(events, start_ms=due_ms("9999-12-31T00:00:00Z"), speed=1))
