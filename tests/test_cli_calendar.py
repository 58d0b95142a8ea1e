"""`shardq calendar`, through the real entry point."""

from __future__ import annotations

import re
import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from rich.text import Text
from shell import Shell, shell

import shardq
from shardq.cli.exits import Exit
from shardq.cli.heatmap import HeatMap
from shardq.inspection import calendar as counted
from shardq.inspection.calendar import Load
from shardq.inspection.grid import By, lay_out
from shardq.model.times import due_ms
from shardq.pictures.colours import RED
from shardq.pictures.loadmap import Panel

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG\r\n\x1a\n"


def in_minutes(number: int) -> str:
    """The middle of a minute ahead: a test that takes seconds meets it there."""
    begin = datetime.now(UTC).replace(second=30, microsecond=0)
    return (begin + timedelta(minutes=number)).isoformat()


@pytest.fixture
def mail(shell: Shell) -> Shell:
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail")
        # At once: a minute may end while they are put.
        few, many, *each = (in_minutes(n) for n in (5, 9, *range(15, 45)))
        queue.put_many({"body": "x", "due": due} for due in each)
        queue.put_many({"body": "x", "due": few} for _ in range(12))
        queue.put_many({"body": "x", "due": many} for _ in range(1_234))
        queue.put("x", delay="3d")
    return shell


def test_it_shows_each_minute_of_the_next_hour_and_what_is_hot(mail: Shell) -> None:
    told = mail.ok("calendar", "mail").out.splitlines()
    assert told[0] == "mail: the load ahead"
    assert re.fullmatch(
        r"\w{3} \d+ \w{3} \d{4} \d\d:\d\d to .*\d\d:\d\d UTC: 1,276 due, at most 1,234 in one "
        r"minute \(.*\d\d:\d\d\)",
        told[1],
    )
    assert told[3].split() == [*(f"+{n}" for n in range(10)), "total"]
    shown = " ".join(told)
    assert re.search(r"\d\d:\d0 .* 12 ", shown)
    assert " !1,234 " in shown
    assert re.search(r"Hot: .*\d\d:\d\d: 1,234 due, 21/s; other minutes have 1\.", shown)
    assert "1 message due later: --horizon looks further." in told


def test_a_map_lines_up_and_ends_without_spaces(mail: Shell) -> None:
    lines = mail.ok("calendar", "mail").out.splitlines()
    heads = next(line for line in lines if line.endswith("total"))
    rows = [line for line in lines if re.match(r"(\w{3} )?\d\d:\d0 ", line.lstrip())]
    assert len(rows) >= 6
    assert all(line == line.rstrip() for line in lines)
    ends = [match.end() for match in re.finditer(r"\+\d", heads)]
    for row in rows:
        for match in re.finditer(r"(?<=\s)(?:!?[\d,]+|·)(?=\s|$)", row):
            assert match.end() in (*ends, len(heads))


def test_without_a_queue_all_are_shown_but_dead_letters(mail: Shell) -> None:
    mail.ok("put", "other", "x", "--delay", "10m")
    mail.ok("queues", "create", "other.dead")
    titles = [line for line in mail.ok("calendar").out.splitlines() if "the load ahead" in line]
    assert titles == ["mail: the load ahead", "other: the load ahead"]
    assert "nothing is due" in mail.ok("calendar", "other.dead").out


def test_firings_of_schedules_are_told_and_counted_apart(mail: Shell) -> None:
    # Far from now, by when the messages are due.
    hour = 18 if datetime.now(ZoneInfo("Europe/Berlin")).hour < 12 else 6
    with shardq.connect(mail.url) as db:
        for number in range(70):
            db.queue("mail").cron(f"0 {hour} * * *", b"x", name=f"s{number}", tz="Europe/Berlin")
    out = mail.ok(
        "calendar", "mail", "--horizon", "9d", "--by", "hour", "--tz", "Europe/Berlin"
    ).out
    messages, firings = 1_276 + 1, 9 * 70
    assert (
        f"{messages + firings:,} due ({messages:,} messages, {firings} firings of schedules)" in out
    )
    assert re.search(
        rf"Hot: (\w{{3}} \d+ \w{{3}} )?{hour:02}:00, and on 8 other days as well: 70 due, 1.2/s; "
        "other minutes",
        out,
    )
    [told] = mail.ok("calendar", "mail", "--horizon", "9d", "--json").lines
    assert (told["messages"], told["firings"], told["firings_until"]) == (messages, firings, None)
    assert sum(one["firings"] for one in told["cells"]) == firings
    assert len(told["hot"]) == 1 + 9
    titles = [line for line in mail.ok("calendar").out.splitlines() if "the load ahead" in line]
    assert titles == ["mail: the load ahead"]


def test_a_count_that_stopped_early_says_at_least(
    mail: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "FIRINGS_MAX", 10)
    mail.ok("schedule", "add", "far", "often", "x", "--every", "1m")
    out = mail.ok("calendar", "far", "--horizon", "1h").out
    assert re.search(r" UTC: at least 10 due \(10 firings of schedules\), at most 1 in one ", out)


def test_a_store_without_queues_says_so(shell: Shell) -> None:
    shell.ok("init")
    assert "has no queues yet" in shell.ok("calendar").out
    assert not shell.ok("calendar", "--json").out


def test_it_looks_further_where_nothing_is_due_in_the_hour(shell: Shell) -> None:
    shell.ok("put", "mail", "x", "--delay", "3h")
    assert ":55" in shell.ok("calendar", "mail").out
    shell.ok("put", "far", "x", "--delay", "9d")
    assert " 23" in (out := shell.ok("calendar", "far").out)
    assert len(re.findall(r"^ ?\w{3} \d", out, re.MULTILINE)) > 25
    assert "nothing is due" in shell.ok("calendar", "far", "--horizon", "1h").out


@pytest.mark.parametrize(
    ("options", "columns", "cells"),
    [
        ((), "+9", 61),
        (("--horizon", "1d"), ":55", 289),
        (("--horizon", "30d"), "23", 721),
        (("--by", "hour"), "23", 721),
        (("--by", "day"), "Sun", 31),
        (("--by", "day", "--horizon", "1d"), "Sun", 2),
        (("--by", "minute", "--horizon", "2h"), "+9", 121),
        (("--horizon", "300d"), "Sun", 301),
    ],
)
def test_horizon_and_by_choose_the_cells(
    mail: Shell, options: tuple[str, ...], columns: str, cells: int
) -> None:
    assert f"{columns} " in mail.ok("calendar", "mail", *options).out
    [told] = mail.ok("calendar", "mail", *options, "--json").lines
    assert len(told["cells"]) in (cells - 1, cells)
    assert sum(one["messages"] for one in told["cells"]) == told["messages"]


def test_json_has_every_cell_and_number(mail: Shell) -> None:
    [told] = mail.ok("calendar", "mail", "--json").lines
    assert (told["queue"], told["zone"], told["by"]) == ("mail", "UTC", "minute")
    assert (told["messages"], told["firings"], told["later"]) == (1_276, 0, 1)
    assert (told["due"], told["done_rate"], told["clear"]) == (0, None, None)
    assert [(one["due"], one["late_ms"]) for one in told["hot"]] == [(1_234, 0)]
    assert told["cells"][0]["start"] == told["at"]
    assert told["cells"][-1]["end"] == told["until"]
    assert sorted(one["messages"] for one in told["cells"])[-2:] == [12, 1_234]


def test_the_clocks_of_a_zone_name_the_rows(mail: Shell) -> None:
    out = mail.ok("calendar", "mail", "--tz", "Asia/Kathmandu").out
    utc = mail.ok("calendar", "mail").out
    assert "Asia/Kathmandu: 1,276 due" in out
    hour = re.search(r"\((?:.* )?(\d\d):(\d\d)\)", out)
    other = re.search(r"\((?:.* )?(\d\d):(\d\d)\)", utc)
    assert hour is not None
    assert other is not None
    minutes = [60 * int(one[1]) + int(one[2]) for one in (hour, other)]
    assert (minutes[0] - minutes[1]) % 1_440 == 345


def test_a_backlog_is_told_with_the_rates_of_who_works_it(shell: Shell) -> None:
    shell.ok("produce", "mail", "--rate", "1e6", "--count", "40")
    assert "40 due now; nobody consumes the queue." in shell.ok("calendar", "mail").out
    with shardq.connect(shell.url) as db:
        mail = db.queue("mail")
        mail.ack(*mail.receive(10, wait="5s"))
    [told] = shell.ok("calendar", "mail", "--json").lines
    assert told["done_rate"] > 0
    assert (told["due"], told["consumers"]) == (30, 0)


@pytest.mark.parametrize("suffix", ["svg", "SVG", "png"])
def test_a_picture_is_written_as_well(mail: Shell, suffix: str) -> None:
    if suffix == "png":
        pytest.importorskip("matplotlib")
    done = mail.ok("calendar", "mail", "--out", f"load.{suffix}")
    assert done.out.startswith("mail: the load ahead\n")
    assert done.err == f"wrote load.{suffix}\n"
    picture = (mail.directory / f"load.{suffix}").read_bytes()
    assert picture.startswith(PNG if suffix == "png" else b"<svg ")
    if suffix != "png":
        assert b">1,234<" in picture


def test_a_png_without_matplotlib_names_the_extra_and_the_way_without(
    mail: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    told = mail.fails(Exit.MISSING_EXTRA, "calendar", "mail", "--out", "load.png")
    assert "pip install 'shardq[plots]'" in told
    assert "SVG needs nothing" in told
    assert not (mail.directory / "load.png").exists()
    mail.ok("calendar", "mail", "--out", "load.svg")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nobody",), Exit.UNKNOWN_QUEUE, "no queue 'nobody'"),
        (("mail", "nobody"), Exit.UNKNOWN_QUEUE, "no queue 'nobody'"),
        (("--horizon", "3d", "--by", "minute"), Exit.USAGE, "must be 1m to 2d where a cell is a"),
        (("--horizon", "367d"), Exit.USAGE, "1m to 366d where a cell is a day, not 367d"),
        (("--horizon", "0s"), Exit.USAGE, "must be 1m to 2d"),
        (("--horizon", "soon"), Exit.USAGE, "--horizon 'soon' cannot be read"),
        (("--by", "week"), Exit.USAGE, "'minute', 'hour', 'day'"),
        (
            ("--tz", "Europe/Berln"),
            Exit.USAGE,
            "there is no time zone 'Europe/Berln'; did you mean",
        ),
        (("--tz", "../../etc/passwd"), Exit.USAGE, "there is no time zone"),
        (("--tz", ""), Exit.USAGE, "there is no time zone ''"),
        (("--out", "load.pdf"), Exit.USAGE, "must end with .svg or .png"),
        (("--out", "load"), Exit.USAGE, "must end with .svg or .png"),
        (("--out", "nowhere/load.svg"), Exit.USAGE, "there is no directory 'nowhere'"),
        (("--out", "/proc/load.svg"), Exit.FILE, "/proc/load.svg"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    mail: Shell, arguments: tuple[str, ...], code: Exit, said: str
) -> None:
    assert said in mail.fails(code, "calendar", *arguments)


def test_a_damaged_queue_is_named_and_the_others_are_shown(mail: Shell) -> None:
    mail.ok("put", "other", "x", "--delay", "10m")
    connection = sqlite3.connect(f"{mail.directory}/jobs.db")
    connection.execute("UPDATE stats SET totals = '{bad' WHERE queue LIKE 'other%'")
    connection.commit()
    connection.close()
    done = mail.ok("calendar")
    assert done.out.startswith("mail: the load ahead\n")
    assert done.err.startswith("other: totals of queue ")
    assert [one["queue"] for one in mail.ok("calendar", "--json").lines] == ["mail", "other"]
    assert "are damaged" in mail.fails(Exit.STORE_CORRUPT, "calendar", "other")


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (30, ("--by", "hour")),
        (40, ()),
        (80, ("--horizon", "1d")),
        (80, ("--by", "hour")),
        (140, ("--by", "day")),
    ],
)
def test_no_line_is_wider_than_the_terminal(
    mail: Shell, columns: int, options: tuple[str, ...]
) -> None:
    lines = mail.on_terminal("calendar", "mail", *options, columns=columns)
    widths = [Text.from_ansi(line).cell_len for line in lines]
    assert max(widths) <= columns


def test_a_terminal_of_many_colours_shows_them_and_others_numbers(
    mail: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = "\n".join(mail.on_terminal("calendar", "mail"))
    assert "!1234" in Text.from_ansi(few).plain
    assert "\x1b[48;" not in few
    monkeypatch.setenv("COLORTERM", "truecolor")
    many = "\n".join(mail.on_terminal("calendar", "mail"))
    assert "48;2;213;94;0" in many
    assert "!" not in Text.from_ansi(many).plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;2;" not in "\n".join(mail.on_terminal("calendar", "mail"))


@pytest.mark.parametrize(
    ("width", "ascii_only", "row"),
    [
        (200, False, "Thu 26 Nov !100 100 3 · · · 203"),
        (200, True, "Thu 26 Nov !100 100 3 - - - 203"),
        (80, False, "Thu 26 Nov !▓▓▓░░· · · 203"),
        (40, False, "Thu 26 Nov !▓░···"),
        (40, True, "Thu 26 Nov !*.---"),
    ],
)
def test_an_hour_with_a_hot_minute_is_marked_in_any_alphabet(
    width: int, ascii_only: bool, row: str
) -> None:
    lines = hours(width, has_colours=False, ascii_only=ascii_only)
    assert row in [" ".join(line.plain.split()) for line in lines]


@pytest.mark.parametrize(("width", "cell"), [(200, 7), (80, 2), (40, 1)])
def test_an_hour_with_a_hot_minute_has_one_red_column(width: int, cell: int) -> None:
    [row] = [line for line in hours(width, has_colours=True) if line.plain.startswith("Thu")]
    [red] = [span for span in row.spans if RED in str(span.style)]
    [blue] = [span for span in row.spans if span.start == red.start + cell]
    assert (red.end - red.start, blue.end - blue.start) == (1, cell)
    assert red.start == row.plain.index("Nov") + len("Nov  ") + 18 * cell


def hours(width: int, *, has_colours: bool, ascii_only: bool = False) -> list[Text]:
    """A map of six hours, the first of which has a hot minute."""
    at_ms = due_ms("2026-11-26T18:00:30Z")
    grid = lay_out(at_ms, 5 * 3_600_000, By.HOUR, ZoneInfo("UTC"))
    loads = dict.fromkeys(filter(None, grid.rows[0].cells), Load())
    first, second, third = list(loads)[:3]
    loads |= {first: Load(70, 30), second: Load(100), third: Load(3)}
    panel = Panel("mail", "", loads, frozenset({first}))
    drawn = HeatMap(grid, panel, width, has_colours=has_colours, ascii_only=ascii_only)
    return list(drawn.lines())
