"""`shardq schedule`, run as a user runs it."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from shell import Shell, shell
from working import app_shell

import shardq
from shardq.cli.exits import Exit
from shardq.schedules import declaring
from shardq.schedules.options import chosen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import Queue

NIGHTLY = ("--cron", "30 2 * * *", "--tz", "Europe/Berlin")
BEFORE_FORWARD = "2027-03-27"
"""The day before clocks in Berlin go forward."""
BEFORE_BACK = "2027-10-30"
"""The day before they go back."""


def add(shell: Shell, name: str, *options: str, queue: str = "mail", body: str = "go") -> None:
    shell.ok("schedule", "add", queue, name, body, *options)


def shown(shell: Shell, name: str, queue: str = "mail") -> dict[str, Any]:
    [line] = shell.ok("schedule", "show", queue, name, "--json").lines
    assert isinstance(line, dict)
    return line


def preview(shell: Shell, *options: str) -> list[str]:
    """The lines below the heads of a preview."""
    _, _, _, *lines = shell.ok("schedule", "preview", *options).out.splitlines()
    return lines


@contextmanager
def opened(shell: Shell, queue: str = "mail") -> Iterator[Queue]:
    with shardq.connect(shell.url) as db:
        yield db.queue(queue)


# Making -------------------------------------------------------------------------------------------


def test_a_schedule_is_made_listed_shown_and_removed(shell: Shell) -> None:
    told = shell.ok("schedule", "add", "mail", "nightly", "report", *NIGHTLY).out
    assert re.fullmatch(r"nightly: next \d{4}-\d\d-\d\d 02:30 \+0[12]:00, in \d.*\n", told)
    add(shell, "hourly", "--every", "1h", queue="post", body="ping")
    heads, first, second = shell.ok("schedule", "list").out.splitlines()
    assert heads.split() == [
        "queue", "name", "next", "in", "previous", "fired", "skipped", "state", "fires", "puts",
    ]  # fmt: skip
    assert re.match(r"mail +nightly +\S+ 02:30 \+0[12]:00 +\d.* - +0 +0 +waiting ", first)
    assert first.endswith("cron 30 2 * * * Europe/Berlin  report")
    assert re.match(r"post +hourly .* waiting +every 1h +ping$", second)
    assert shell.ok("schedule", "list", "mail").out.splitlines()[1].startswith("nightly ")
    assert [one["name"] for one in shell.ok("schedule", "list", "--json").lines] == [
        "nightly",
        "hourly",
    ]
    facts = dict(
        line.split(maxsplit=1)
        for line in shell.ok("schedule", "show", "mail", "nightly").out.splitlines()
    )
    assert facts["fires"] == "cron 30 2 * * * Europe/Berlin"
    assert (facts["made"], facts["body"], facts["fired"]) == ("at run time", "report", "0")
    assert shell.ok("schedule", "remove", "mail", "nightly").out == "nightly: removed\n"
    [told] = shell.ok("schedule", "remove", "post", "hourly", "--json").lines
    assert told == {"queue": "post", "name": "hourly", "removed": True}
    assert shell.ok("schedule", "list", "mail").out.startswith("mail has no schedules; make one: ")


def test_a_list_in_a_narrow_terminal_leaves_out_columns_and_has_a_line_for_each(
    shell: Shell,
) -> None:
    add(shell, "monthly-report", *NIGHTLY, queue="default", body="what was done in the month")
    counts = {"in", "fired", "skipped"}
    for columns, left_out in (
        (80, {"puts", "previous"} | counts),
        (100, {"previous"} | counts),
        (130, {"previous"}),
    ):
        lines = [
            re.sub(r"\x1b\[[\d;]*m", "", line)
            for line in shell.on_terminal("schedule", "list", columns=columns)
        ]
        heads = {"in", "fired", "skipped", "previous", "next", "state", "fires", "puts"}
        assert heads & {*lines[0].split()} == heads - left_out
        assert len(lines) == 2
        assert all(len(line) <= columns for line in lines)


def test_all_that_can_be_chosen_of_a_schedule_is_kept_and_shown(shell: Shell) -> None:
    add(
        shell, "all", "--cron", "0 * * * *", "--start", "2090-01-01T00:00Z",
        "--end", "2090-01-02T00:00Z", "--count", "3", "--missed", "all", "--window", "6h",
        "--twice", "both", "--gap", "skip",
        "--jitter", "5m", "--spread", "1m", "--priority", "1", "--group", "g", "--key", "k",
        "--on-conflict", "replace", "--unique-for", "1d", "--header", "a=b", "--header", "c=d=e",
    )  # fmt: skip
    told = shown(shell, "all")
    assert told["trigger"] == (
        "cron 0 * * * * UTC, from 2090-01-01T00:00:00.000Z, until 2090-01-02T00:00:00.000Z"
    )
    assert (told["next"], told["count"]) == ("2090-01-01T00:00:00.000Z", 3)
    assert told["policies"] == {
        "missed": "all", "window": "6h", "twice": "both", "gap": "skip", "jitter": "5m",
        "spread": "1m",
    }  # fmt: skip
    assert [told[name] for name in ("priority", "group", "key", "on_conflict", "unique_for")] == [
        1, "g", "k", "replace", "1d",
    ]  # fmt: skip
    assert told["headers"] == {"a": "b", "c": "d=e"}
    text = shell.ok("schedule", "show", "mail", "all").out
    for fact in ("window    6h", "fired     0 of 3", "header    c=d=e", "group     g"):
        assert f"\n{fact}\n" in text
    assert "\nkey       k, replace where a message has it, held for 1d after its end\n" in text
    add(shell, "last", "--every", "1h", "--overlap", "cancel")
    assert shown(shell, "last")["policies"] == {"overlap": "cancel"}


def test_a_body_is_read_from_stdin(shell: Shell) -> None:
    shell.ok("schedule", "add", "mail", "a", "--every", "1h", stdin=b"two\nlines")
    shell.ok("schedule", "add", "mail", "b", "-", "--every", "1h", stdin=b"\xff")
    assert shown(shell, "a")["body"] == "two\nlines"
    assert "\nbody      two\n          lines\n" in shell.ok("schedule", "show", "mail", "a").out
    assert (shown(shell, "b")["body"], shown(shell, "b")["encoding"]) == ("/w==", "base64")


def test_a_local_time_is_one_of_the_schedule_s_zone(shell: Shell) -> None:
    add(shell, "later", *NIGHTLY, "--start", "2027-07-01", "--end", "2027-07-03T02:30")
    assert shown(shell, "later")["trigger"].endswith(
        ", from 2027-06-30T22:00:00.000Z, until 2027-07-03T00:30:00.000Z"
    )
    told = shell.fails(
        Exit.USAGE, "schedule", "add", "mail", "b", "x", "--every", "1h", "--start", "July"
    )
    assert "--start 'July' is not an ISO 8601 time" in told


def test_an_interval_may_fire_at_once(shell: Shell) -> None:
    said = shell.ok("schedule", "add", "mail", "x", "go", "--every", "1h", "--at-start").out
    assert re.match(r"x: next .*, (now|due|in 0|[\d.]+m?s ago)", said), said
    said = shell.fails(Exit.USAGE, "schedule", "add", "mail", "y", "go", *NIGHTLY, "--at-start")
    assert "--at-start goes with --every" in said


def test_a_day_or_a_local_time_of_an_interval_is_one_of_utc(shell: Shell) -> None:
    add(shell, "hourly", "--every", "1h", "--start", "2030-01-02", "--end", "2030-01-03T09:30")
    told = shown(shell, "hourly")
    assert told["next"] == "2030-01-02T00:00:00.000Z"
    assert told["trigger"].endswith(", until 2030-01-03T09:30:00.000Z")


def test_a_schedule_puts_jobs_of_a_task_and_is_shown_as_their_call(shell: Shell) -> None:
    shell.ok(
        "schedule", "add", "crm", "sync", "--every", "1h", "--task", "app.sync", "--args",
        '{"full": true}', "--header", "a=b",
    )  # fmt: skip
    told = shown(shell, "sync", "crm")
    assert told["job"] == "app.sync(full=true)"
    assert (json.loads(told["body"]), told["headers"]) == (
        {"full": True},
        {"task": "app.sync", "a": "b"},
    )
    assert shell.ok("schedule", "list").out.splitlines()[1].endswith("  app.sync(full=true)")
    assert "\njob       app.sync(full=true)\n" in shell.ok("schedule", "show", "crm", "sync").out


def test_with_its_app_a_task_is_scheduled_as_it_is_declared(app_shell: Shell) -> None:
    app_shell.ok(
        "schedule", "add", "hello", "--every", "1h", "--app", "app", "--task", "old.welcome",
        "--args", '["ada"]',
    )  # fmt: skip
    told = shown(app_shell, "hello")
    assert (told["queue"], told["priority"], told["job"]) == ("mail", 1, 'app.welcome(user="ada")')
    app_shell.ok(
        "schedule", "add", "letters", "hi", "--every", "1h", "--app", "app", "--task",
        "app.welcome", "--args", '["ada"]', "--priority", "0", "--missed", "skip",
    )  # fmt: skip
    told = shown(app_shell, "hi", "letters")
    assert (told["priority"], told["policies"]) == (0, {"missed": "skip"})
    said = app_shell.fails(
        Exit.USAGE, "schedule", "add", "x", "--every", "1h", "--app", "app", "--task",
        "app.welcome", "--args", '{"usr": 1}',
    )  # fmt: skip
    assert "task app.welcome has no argument usr" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cron", "0 0 30 2 *"], "cron 0 0 30 2 * UTC would never fire: no time fits it."),
        (["--cron", "@daily", "--tz", "Europe/Berlni"], "there is no time zone 'Europe/Berlni'; d"),
        (
            ["--cron", "@daily", "--end", "2020-01-01"],
            "until 2020-01-01T00:00:00.000Z would never ",
        ),
        (["--every", "10ms"], "a schedule fires once a second at most; 10ms is too short"),
        (["--every", "1h", "--count", "-1"], "'-1' is not a whole number of 0 or more."),
        (["--every", "1h", "--cron", "@daily"], "give --every or --cron, one of them."),
        (["--every", "1h", "--tz", "UTC"], "--tz goes with --cron: an interval is the same"),
        (["--tz", "UTC"], "give --every or --cron: when is it to fire?"),
        (["--every", "1h", "--args", "{}"], "--args and --app belong to --task; name the task"),
        (
            ["--every", "1h", "--task", "t"],
            "a job of --task has --args for a body; leave BODY out.",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_in_a_sentence_and_nothing_is_made(
    shell: Shell, options: list[str], said: str
) -> None:
    add(shell, "there", "--every", "1h")
    assert said in shell.fails(Exit.USAGE, "schedule", "add", "mail", "x", "go", *options)
    assert [one["name"] for one in shell.ok("schedule", "list", "--json").lines] == ["there"]


def test_queue_and_name_have_to_be_given(shell: Shell) -> None:
    for words in ((), ("mail",)):
        told = shell.fails(Exit.USAGE, "schedule", "add", *words, "--every", "1h")
        assert "give QUEUE and the schedule's NAME." in told
    told = shell.fails(Exit.USAGE, "schedule", "add", "mail", "x", "a", "b", "--every", "1h")
    assert "'b' is one word too many; quote a BODY with spaces." in told


@pytest.mark.parametrize(
    "command",
    [
        ["show"], ["preview"], ["change", "--count", "3"], ["pause"], ["resume"], ["run"],
        ["backfill", "--after", "2026-01-01", "--until", "2026-01-02"], ["remove"],
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_who_names_no_schedule_is_told_the_nearest_and_who_names_no_queue_so(
    shell: Shell, command: list[str]
) -> None:
    add(shell, "nightly", *NIGHTLY)
    name, *options = command
    told = shell.fails(Exit.NOT_THERE, "schedule", name, "mail", "nigthly", *options)
    assert told == "shardq: queue 'mail' has no schedule 'nigthly'; did you mean 'nightly'?\n"
    add(shell, "shop.jobs.weekly", *NIGHTLY)
    told = shell.fails(Exit.NOT_THERE, "schedule", name, "mail", "Weekly", *options)
    assert "no schedule 'Weekly'; did you mean 'shop.jobs.weekly'?" in told
    told = shell.fails(Exit.UNKNOWN_QUEUE, "schedule", name, "post", "nightly", *options)
    assert "post" in told


# Previews -----------------------------------------------------------------------------------------


def test_a_preview_marks_where_clocks_go_forward_and_why_a_time_is_moved(shell: Shell) -> None:
    told = preview(shell, *NIGHTLY, "--after", BEFORE_FORWARD, "-n", "3")
    assert told[1].endswith("──")
    assert all(
        line == line.rstrip() for line in shell.ok("schedule", "preview", *NIGHTLY).out.splitlines()
    )
    assert [line.rstrip("─ ") for line in told] == [
        "    Sat 2027-03-27  02:30 +01:00   01:30",
        " ── Sun 2027-03-28  clocks go forward: 02:00 +01:00 becomes 03:00 +02:00",
        "    Sun 2027-03-28  03:30 +02:00   01:30  "
        "02:30 does not exist, clocks go forward: moved to 03:30",
        "    Mon 2027-03-29  02:30 +02:00   00:30",
    ]


def test_a_preview_tells_which_time_is_passed_by_and_why(shell: Shell) -> None:
    told = preview(shell, *NIGHTLY, "--after", "2027-03-28", "-n", "1", "--gap", "skip")
    assert told[1:] == [
        "    Sun 2027-03-28  not fired: 02:30 does not exist, clocks go forward",
        "    Mon 2027-03-29  02:30 +02:00   00:30",
    ]


FIRST = "first of two 02:30, clocks go back"
SECOND = "second of two 02:30, clocks go back"


@pytest.mark.parametrize(
    ("twice", "first", "second"),
    [
        ("first", f"02:30 +02:00   00:30  {FIRST}", f"not fired: {SECOND}"),
        ("last", f"not fired: {FIRST}", f"02:30 +01:00   01:30  {SECOND}"),
        ("both", f"02:30 +02:00   00:30  {FIRST}", f"02:30 +01:00   01:30  {SECOND}"),
    ],
)
def test_a_preview_tells_which_of_two_times_fires(
    shell: Shell, twice: str, first: str, second: str
) -> None:
    count = "4" if twice == "both" else "3"
    before, *day, after = preview(
        shell, *NIGHTLY, "--after", BEFORE_BACK, "-n", count, "--twice", twice
    )
    assert before == "    Sat 2027-10-30  02:30 +02:00   00:30"
    assert after == "    Mon 2027-11-01  02:30 +01:00   01:30"
    assert [line[4:20] for line in day] == ["Sun 2027-10-31  "] * 3
    changed = "clocks go back: 03:00 +02:00 becomes 02:00 +01:00"
    assert [line[20:].rstrip("─ ") for line in day] == [first, changed, second]


def test_many_times_in_a_row_that_are_passed_by_take_three_lines(shell: Shell) -> None:
    told = preview(
        shell, "--cron", "*/10 * * * *", "--tz", "Europe/Berlin", "--after", "2027-10-31T02:45",
        "-n", "2", "--twice", "first",
    )  # fmt: skip
    assert [line.strip() for line in told[2:]] == [
        "Sun 2027-10-31  not fired: second of two 02:00, clocks go back",
        "4 more not fired",
        "Sun 2027-10-31  not fired: second of two 02:50, clocks go back",
        "Sun 2027-10-31  03:00 +01:00   02:00",
    ]


def test_a_preview_of_a_schedule_shows_what_it_will_do_in_any_zone(shell: Shell) -> None:
    add(shell, "nightly", *NIGHTLY, "--jitter", "5m", "--count", "2")
    text = shell.ok("schedule", "preview", "mail", "nightly", "--after", BEFORE_FORWARD).out
    title, _, heads, *lines, last = text.splitlines()
    assert title == "nightly: cron 30 2 * * * Europe/Berlin; jitter 5m"
    assert heads.split() == ["day", "Europe/Berlin", "UTC", "due"]
    assert re.search(r"02:30 \+01:00   01:30  02:3[0-4]:\d\d$", lines[0])
    assert last == "It never fires after that."
    told = preview(
        shell, "mail", "nightly", "--after", BEFORE_FORWARD, "--tz", "America/New_York", "-n", "1"
    )
    assert re.fullmatch(r"    Fri 2027-03-26  21:30 -04:00      01:30 Sat  21:3[0-4]:\d\d", told[0])
    with opened(shell) as queue:
        ahead = queue.schedules.preview("nightly", 2, "2027-03-27T00:00+01:00")
    lines = shell.ok(
        "schedule", "preview", "mail", "nightly", "--after", BEFORE_FORWARD, "--json"
    ).lines
    assert [one["local"] for one in lines] == [
        one.time.isoformat(timespec="milliseconds") for one in ahead
    ]
    assert [(one["fires"], one["why"]) for one in lines] == [(True, one.why) for one in ahead]


def test_a_preview_of_what_is_not_made_needs_no_store(shell: Shell) -> None:
    done = shell.run("schedule", "preview", "--every", "90m", "-n", "3", "--json", url="")
    assert (done.code, len(done.lines)) == (Exit.OK, 3)
    assert not (shell.directory / "jobs.db").exists()


def test_a_preview_of_what_fires_once_a_year_has_no_line_of_each_change(shell: Shell) -> None:
    told = preview(
        shell, "--cron", "0 12 1 7 *", "--tz", "Europe/Berlin", "--after", "2027-01-01", "-n", "3"
    )
    assert [line.split()[1] for line in told] == ["2027-07-01", "2028-07-01", "2029-07-01"]


def test_a_preview_fits_its_terminal_and_reasons_go_below(shell: Shell) -> None:
    lines = [
        re.sub(r"\x1b\[[\d;]*m", "", line)
        for line in shell.on_terminal(
            "schedule", "preview", *NIGHTLY, "--after", BEFORE_FORWARD, "-n", "2", columns=80
        )
    ]
    assert lines[-1].strip() == "02:30 does not exist, clocks go forward: moved to 03:30"
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mail"], "give the schedule's NAME as well, or --every or --cron alone."),
        ([], "give --every or --cron: when is it to fire?"),
        (["mail", "nightly", "--gap", "skip"], "--gap goes without QUEUE and NAME"),
        (["mail", "nightly", "--tz", "Mars/Phobos"], "there is no time zone 'Mars/Phobos'"),
        (["mail", "nightly", "-n", "0"], "'0' is not a whole number of 1 to 10,000."),
        (["mail", "nightly", "--after", "soon"], "--after 'soon' is not an ISO 8601 time"),
        (["--every", "10m", "--jitter", "1h"], "a jitter of 1h is longer"),
    ],
    ids=str,
)
def test_a_preview_that_cannot_be_is_refused(shell: Shell, words: list[str], said: str) -> None:
    add(shell, "nightly", *NIGHTLY)
    assert said in shell.fails(Exit.USAGE, "schedule", "preview", *words)


def test_a_preview_in_utc_has_one_column_of_times(shell: Shell) -> None:
    told = shell.ok(
        "schedule", "preview", "--every", "1h", "--start", "2090-01-01T00:30Z", "-n", "1"
    )
    assert told.out.splitlines()[2:] == [
        "    day             UTC",
        "    Sun 2090-01-01  00:30",
    ]


# Changing -----------------------------------------------------------------------------------------


def test_a_change_keeps_what_is_not_given_and_the_zone_of_a_cron(shell: Shell) -> None:
    add(shell, "nightly", *NIGHTLY, "--jitter", "5m", "--header", "a=b", body="report")
    done = shell.ok("schedule", "change", "mail", "nightly", "--cron", "0 3 * * *")
    assert re.match(r"nightly: changed; next \S+ 03:00 \+0[12]:00, in ", done.out)
    assert done.err == ""
    told = shown(shell, "nightly")
    assert told["trigger"] == "cron 0 3 * * * Europe/Berlin"
    assert (told["policies"], told["headers"], told["body"]) == (
        {"jitter": "5m"},
        {"a": "b"},
        "report",
    )
    shell.ok("schedule", "change", "mail", "nightly", "--body", "other", "--header", "c=d")
    told = shown(shell, "nightly")
    assert (told["body"], told["headers"]) == ("other", {"c": "d"})
    shell.ok("schedule", "change", "mail", "nightly", "--body", "-", stdin=b"piped")
    assert shown(shell, "nightly")["body"] == "piped"


def test_a_change_takes_back_what_is_given_empty(shell: Shell) -> None:
    add(
        shell, "x", "--every", "1h", "--window", "6h", "--group", "g", "--key", "k",
        "--unique-for", "1h", "--count", "3",
    )  # fmt: skip
    shell.ok(
        "schedule", "change", "mail", "x", "--window", "", "--group", "", "--key", "",
        "--unique-for", "", "--count", "0",
    )  # fmt: skip
    told = shown(shell, "x")
    assert told["policies"] == {}
    assert [told[name] for name in ("group", "key", "unique_for", "count")] == [None] * 4


def test_a_change_of_the_times_leaves_zone_start_and_end(shell: Shell) -> None:
    add(shell, "nightly", *NIGHTLY, "--start", "2090-01-01", "--end", "2091-01-01")

    def trigger(*changes: str) -> str:
        shell.ok("schedule", "change", "mail", "nightly", *changes)
        return str(shown(shell, "nightly")["trigger"])

    since, until = "from 2089-12-31T23:00:00.000Z", "until 2090-12-31T23:00:00.000Z"
    assert trigger("--cron", "0 3 * * *") == f"cron 0 3 * * * Europe/Berlin, {since}, {until}"
    assert trigger("--tz", "UTC") == f"cron 0 3 * * * UTC, {since}, {until}"
    later = "from 2090-02-01T00:00:00.000Z"
    assert trigger("--start", "2090-02-01") == f"cron 0 3 * * * UTC, {later}, {until}"
    assert trigger("--end", "") == f"cron 0 3 * * * UTC, {later}"
    assert trigger("--start", "") == "cron 0 3 * * * UTC"


def test_a_job_s_arguments_are_changed_and_its_task_stays(shell: Shell) -> None:
    shell.ok("schedule", "add", "crm", "sync", "--every", "1h", "--task", "app.sync")
    shell.ok("schedule", "change", "crm", "sync", "--args", '{"n": 1}', "--header", "a=b")
    told = shown(shell, "sync", "crm")
    assert (told["job"], told["headers"]) == ("app.sync(n=1)", {"task": "app.sync", "a": "b"})
    said = shell.fails(Exit.USAGE, "schedule", "change", "crm", "sync", "--body", "x")
    assert "it puts jobs, app.sync(n=1); give --args instead of --body." in said
    said = shell.fails(Exit.USAGE, "schedule", "change", "crm", "sync", "--args", "[1]")
    assert "--args by position need the names of the arguments; give an object." in said
    add(shell, "plain", "--every", "1h")
    said = shell.fails(Exit.USAGE, "schedule", "change", "mail", "plain", "--args", "{}")
    assert "it puts no jobs of a task; give --body instead of --args." in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give at least one thing to change."),
        (["--every", "1h", "--tz", "UTC"], "--tz goes with --cron"),
        (["--end", "2001-01-01"], "would never fire"),
        (["--cron", "0 0 30 2 *"], "would never fire"),
        (["--jitter", "2d"], "a jitter of 2d is longer than the 1d"),
        (["--missed", "never"], "'never' is not one of 'skip', 'once', 'all'"),
    ],
    ids=str,
)
def test_a_change_that_cannot_be_changes_nothing(
    shell: Shell, options: list[str], said: str
) -> None:
    add(shell, "nightly", *NIGHTLY)
    before = shown(shell, "nightly")
    assert said in shell.fails(Exit.USAGE, "schedule", "change", "mail", "nightly", *options)
    assert shown(shell, "nightly") == before


def test_a_paused_schedule_is_shown_as_such_until_it_is_resumed(shell: Shell) -> None:
    add(shell, "nightly", *NIGHTLY)
    assert shell.ok("schedule", "pause", "mail", "nightly").out == "nightly: paused\n"
    told = shown(shell, "nightly")
    assert (told["state"], told["next"]) == ("paused", None)
    line = shell.ok("schedule", "list", "mail").out.splitlines()[1]
    assert re.match(r"nightly +- +- +- +0 +0 +paused ", line)
    done = shell.ok("schedule", "preview", "mail", "nightly", "-n", "1")
    assert "`shardq schedule resume mail nightly`" in done.err
    assert shell.ok("schedule", "resume", "mail", "nightly").out.startswith(
        "nightly: resumed; next "
    )
    assert shell.ok("schedule", "resume", "mail", "nightly").out.startswith(
        "nightly: was not paused; next "
    )
    assert shown(shell, "nightly")["state"] == "waiting"


def test_run_puts_its_message_now_and_the_schedule_goes_on(shell: Shell) -> None:
    add(shell, "nightly", *NIGHTLY, "--header", "a=b", body="report")
    before = shown(shell, "nightly")
    name = shell.ok("schedule", "run", "mail", "nightly").out.strip()
    [line] = shell.ok("peek", "mail", "--json").lines
    assert (line["id"], line["body"]) == (name, "report")
    assert line["headers"] == {
        "a": "b", "schedule": "nightly", "schedule-time": name.removeprefix("nightly@"),
    }  # fmt: skip
    assert shown(shell, "nightly") == before
    [told] = shell.ok("schedule", "run", "mail", "nightly", "--json").lines
    assert told["id"].startswith("nightly@")


def test_a_span_is_filled_from_midnight_to_midnight_of_its_zone(shell: Shell) -> None:
    add(shell, "nightly", *NIGHTLY)
    span = ["--after", BEFORE_FORWARD, "--until", "2027-03-30"]
    backfill = ["schedule", "backfill", "mail", "nightly", *span]
    assert shell.ok(*backfill, "--dry-run").out == "would put 3 messages\n"
    assert shell.ok("peek", "mail", "--json").lines == []
    [told] = shell.ok(*backfill, "--dry-run", "--json").lines
    assert told == {"queue": "mail", "name": "nightly", "fire_times": 3, "put": 0}
    assert shell.ok(*backfill).out == (
        "put 3 messages into mail, by their fire times with ids nightly@TIME: see `shardq peek "
        "mail`\n"
    )
    lines = shell.ok("peek", "mail", "--json").lines
    assert [line["headers"]["schedule-time"] for line in lines] == [
        "2027-03-27T01:30:00.000Z", "2027-03-28T01:30:00.000Z", "2027-03-29T00:30:00.000Z",
    ]  # fmt: skip
    said = shell.fails(
        Exit.USAGE, "schedule", "backfill", "mail", "nightly", "--after", "2027-03-30", "--until",
        BEFORE_FORWARD,
    )  # fmt: skip
    assert f"--until '{BEFORE_FORWARD}' must be later than --after '2027-03-30'." in said


# Beside code --------------------------------------------------------------------------------------


def declare(queue: Queue, revision: int = 3) -> str:
    """What code does when it starts, with a schedule of its own."""
    make = chosen(cron="30 2 * * *", tz="Europe/Berlin")
    assert make is not None
    book = queue.schedules._home
    return declaring.declare(book, make, b"go", name="nightly", revision=revision).answer


def test_who_removes_what_code_declares_is_told_that_it_comes_back(shell: Shell) -> None:
    with opened(shell) as queue:
        declare(queue)
    assert (
        "\nmade      by code, revision 3\n" in shell.ok("schedule", "show", "mail", "nightly").out
    )
    done = shell.ok("schedule", "remove", "mail", "nightly")
    assert done.err == (
        "shardq: code declares nightly, with revision 3: the next worker that starts makes it "
        "again. Take it out of the code, or pause it: that lasts.\n"
    )
    with opened(shell) as queue:
        assert declare(queue) == "made"
    shell.ok("schedule", "pause", "mail", "nightly")
    with opened(shell) as queue:
        assert declare(queue) == "same"
    assert shown(shell, "nightly")["state"] == "paused"


def test_who_changes_what_code_declares_is_told_what_that_comes_to(shell: Shell) -> None:
    with opened(shell) as queue:
        declare(queue)
    done = shell.ok("schedule", "change", "mail", "nightly", "--jitter", "5m")
    assert done.err == (
        "shardq: code declares nightly, with revision 3: it stays as it is now until the code has "
        "a higher revision, which takes its place.\n"
    )
    with opened(shell) as queue:
        assert declare(queue) == "same"
    told = shown(shell, "nightly")
    assert (told["policies"], told["changed"]) == ({"jitter": "5m"}, True)
    text = shell.ok("schedule", "show", "mail", "nightly").out
    assert "\nmade      by code, revision 3; changed at run time since\n" in text
    with opened(shell) as queue:
        assert declare(queue, revision=4) == "changed"
    told = shown(shell, "nightly")
    assert (told["policies"], told["changed"]) == ({}, False)


# Damaged ones -------------------------------------------------------------------------------------


def test_a_damaged_schedule_hides_no_other_and_can_be_removed(shell: Shell) -> None:
    add(shell, "bad", "--every", "1h")
    add(shell, "good", "--every", "1h")
    with sqlite3.connect(shell.directory / "jobs.db") as other:
        other.execute("UPDATE schedules SET definition = '{' WHERE name = 'bad'")
        other.execute(
            "UPDATE messages SET body = X'7b' WHERE queue = 'mail.schedules' AND name = 'bad'"
        )
    other.close()
    done = shell.ok("schedule", "list", "mail")
    assert [line.split()[0] for line in done.out.splitlines()] == ["name", "good"]
    assert "schedule 'bad' of queue 'mail' is damaged: " in done.err
    assert shell.run("schedule", "show", "mail", "bad").code == Exit.STORE_CORRUPT
    assert shell.ok("queues").out.rstrip().endswith(" 2 schedules")
    shell.ok("schedule", "remove", "mail", "bad")
    done = shell.ok("schedule", "list", "mail")
    assert (len(done.out.splitlines()), done.err) == (2, "")
