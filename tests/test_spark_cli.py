"""`python -m pyspark_shardq`: what each job takes, prints and ends with."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyspark
import pytest
from click.testing import CliRunner
from jobs import Jobs, jobs
from test_cli_help import terminal_of
from test_docs import DOCS, rows

import pyspark_shardq
import shardq
from pyspark_shardq import QueueJobs, connect, views
from pyspark_shardq.cli import UNBALANCED, USAGE, exit_codes, program
from pyspark_shardq.options import Options
from pyspark_shardq.pieces import PiecesDone
from pyspark_shardq.runs import SparkRun
from shardq.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = 100
PAST, NEXT_YEAR, SOON = "2020-01-01T00:00Z", "2099-01-01T00:00:00+01:00", "2099-01-01T00:00:01Z"


def put_file(directory: Path, *lines: dict[str, Any]) -> str:
    path = directory / "people.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path.name


def schedule(*more: str, path: str = "people.jsonl") -> list[str]:
    given = ["--queue", "mail", "--input", path, "--key", "id", "--due", "at"]
    return ["schedule", *given, *more]


def depth(shell: Jobs, queue: str = "mail") -> int:
    with shardq.connect(shell.url) as db:
        return db.queue(queue, create=False).depth(exact=True).total


# What is asked ------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(program)
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        assert command is not None
        yield name, command


@pytest.mark.parametrize("name", [None, *(name for name, _ in commands())])
def test_a_job_s_help_fits_a_terminal_has_examples_and_whole_sentences(name: str | None) -> None:
    with terminal_of(COLUMNS):
        done = CliRunner().invoke(program, [*([name] if name else []), "--help"])
    command = program if name is None else dict(commands())[name]

    assert done.exit_code == 0
    assert [line for line in done.output.splitlines() if len(line) > COLUMNS] == []
    assert (
        f"Examples:\n    {'export' if name is None else f'python -m pyspark_shardq {name}'} "
        in (done.output)
    )
    for text in [command.help or "", *(getattr(one, "help", "") or "" for one in command.params)]:
        assert not text or re.match(r"[A-Z0-9`]", text), text
        assert not text or re.search(r"[.)]\Z", text.strip()), text


def test_the_help_lists_each_exit_code_once_with_two_of_its_own() -> None:
    codes = dict(line.strip().split(" ", 1) for line in exit_codes())

    assert codes["1"] == "a day could not be archived"
    assert codes["2"] == "an audit does not balance"
    assert codes["64"] == "wrong usage, nothing was done"
    assert str(int(Exit.UNBALANCED)) not in codes
    assert codes["3"] == "unknown queue"
    for name, command in commands():
        ends = re.findall(r"with\s+(\d+)\s+where", command.help or "")
        assert set(ends) <= set(codes), name


def test_the_page_of_spark_has_every_job_column_and_option() -> None:
    context = click.Context(program)
    told = rows("spark.md", "## Jobs")
    options = {name for cell in rows("spark.md", "## Options") for name in cell.split(", ")}

    assert list(told) == program.list_commands(context)
    for name, cells in told.items():
        for method in re.findall(r"(?<![.\w])(\w+)\(", cells[0]):
            assert hasattr(QueueJobs, method) or method == "run", name
    for view in ("messages", "history", "shards"):
        wanted = {one.name: one.type for one in views.VIEWS[view]}
        found = rows("spark.md", f"### Columns of {view}")
        assert {name: cells[0] for name, cells in found.items()} == wanted
    more = {one.name: one.type for one in views.DEAD if one not in views.MESSAGES}
    assert {n: cells[0] for n, cells in rows("spark.md", "### Columns of dead").items()} == more
    given = {"queue": "mail", "view": "dead", "numPartitions": "2", "maxMinutes": "1"}
    flags = dict.fromkeys(("bodies", "pushdown", "purged"), "true")
    assert Options.of_reader(dict.fromkeys(options, "1") | given | flags)


def test_the_reference_has_all_that_is_exported() -> None:
    text = (DOCS / "reference" / "spark.md").read_text()

    written = re.findall(r"^::: pyspark_shardq\.(\w+)$", text, re.MULTILINE)
    assert sorted(written) == sorted(pyspark_shardq.__all__)
    assert all(hasattr(pyspark_shardq, name) for name in written)


# What is done -------------------------------------------------------------------------------------


def test_rows_are_scheduled_resumed_and_taken_back_by_their_run(
    jobs: Jobs, spark: SparkSession
) -> None:
    put_file(jobs.directory, {"id": "a", "at": NEXT_YEAR}, {"id": "b", "at": SOON})
    shardq.init(jobs.url)

    missing = jobs.fails(Exit.UNKNOWN_QUEUE, *schedule("--dry-run"))
    assert "there is no queue 'mail'" in missing
    assert "--create makes the queue" in missing
    done = jobs.ok(*schedule("--create", "--json"))
    [report] = done.lines
    again = jobs.ok(*schedule("--run", report["run"]))

    store, run = connect(spark, "mail", jobs.url).place().store, SparkRun.read(report["run"])
    assert PiecesDone(store, "mail", run, 1).tally().rows == 2
    assert done.err == f"shardq: run {report['run']}; --run {report['run']} resumes it.\n"
    assert (report["rows"], report["found"], depth(jobs)) == (2, 0, 2)
    assert "scheduled 2 messages in mail, 2 of them before" in again.out
    assert "2 messages of" in jobs.ok(*schedule("--dry-run")).out
    assert "--run or the --as-of" in jobs.fails(USAGE, "un" + schedule()[0], *schedule()[1:])
    taken = jobs.ok("unschedule", *schedule()[1:], "--run", report["run"])
    assert taken.out == f"took back 2 messages of run {report['run']} in mail.\n"
    assert PiecesDone(store, "mail", run, 1, before="undo/").tally().cancelled == 2
    assert depth(jobs) == 0


def test_a_bad_row_ends_the_job_before_anything_is_put_unless_bad_rows_have_a_place(
    jobs: Jobs,
) -> None:
    good, bad = {"id": "a", "at": NEXT_YEAR}, {"id": "b", "at": "2099-01-01T00:00"}
    put_file(jobs.directory, good, bad, {"id": None, "at": SOON}, {"id": "d", "at": PAST})
    shardq.init(jobs.url)

    told = jobs.fails(USAGE, *schedule("--create"))
    assert "nothing was put" in told
    assert "--bad bad.jsonl" in told
    assert depth(jobs) == 0

    jobs.ok(*schedule("--bad", "bad.json"))
    lines = [
        json.loads(line)
        for path in (jobs.directory / "bad.json").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert depth(jobs) == 1
    assert len({line["reason"] for line in lines}) == len(lines) == 3
    assert bad | {"reason": "due has no offset from UTC"} in lines

    assert "'bad.json' already exists" in jobs.fails(USAGE, *schedule("--bad", "bad.json"))
    assert depth(jobs) == 1


def test_a_csv_with_quotes_and_line_ends_is_read_as_it_was_written(jobs: Jobs) -> None:
    (jobs.directory / "people.csv").write_text(
        f'id,at,text\n7,{SOON},"she said ""hi"",\nand left"\n', encoding="utf-8"
    )
    shardq.init(jobs.url)

    jobs.ok(*schedule("--create", "--body", "text", path="people.csv"))

    with shardq.connect(jobs.url) as db:
        [message] = db.queue("mail", create=False).peek()
    assert (message.id, message.text) == ("7", 'she said "hi",\nand left')


def test_files_without_numbers_or_maps_have_priorities_groups_and_headers(jobs: Jobs) -> None:
    headers = {"trace": "7f", "retries": 2}
    put_file(
        jobs.directory,
        {"id": "a", "at": NEXT_YEAR, "user": 7, "headers": headers},
        {"id": "b", "at": NEXT_YEAR, "user": None, "headers": {"trace": "80"}},
    )
    (jobs.directory / "people.csv").write_text(f"id,at,band\nc,{SOON},1\nd,{SOON},high\n")
    (jobs.directory / "empty.csv").touch()
    with shardq.connect(jobs.url) as db:
        db.queue("mail", bands=2)

    jobs.ok(*schedule("--group", "user", "--headers", "headers"))
    told = jobs.fails(USAGE, *schedule("--priority", "band", path="people.csv"))

    assert "(1 priority is not 0 to 1)" in told
    assert "it has none at all" in jobs.fails(USAGE, *schedule(path="empty.csv"))
    with shardq.connect(jobs.url) as db:
        found = {one.id: one for one in db.queue("mail", create=False).peek(10)}
    assert {name: one.group for name, one in found.items()} == {"a": "7", "b": None}
    assert dict(found["a"].headers) == {"trace": "7f", "retries": "2"}
    assert dict(found["b"].headers) == {"trace": "80"}


def test_what_cannot_be_read_is_named_and_a_line_of_it_is_a_bad_row(jobs: Jobs) -> None:
    put_file(jobs.directory, {"id": "a", "at": NEXT_YEAR})
    with (jobs.directory / "people.jsonl").open("a") as file:
        file.write('{"id": "b", "a')
    (jobs.directory / "pretty.json").write_text('{\n"id": "a"\n}\n')
    (jobs.directory / "ragged.csv").write_text(f"id,at,name\na,{SOON},Smith, John\nb,{SOON}\n")
    (jobs.directory / "no.parquet").write_bytes(b"PAR1" + b"x" * 30)
    (jobs.directory / "no.jsonl.gz").write_text('{"id": "a"}')
    with shardq.connect(jobs.url) as db:
        db.queue("mail")

    assert "(1 the line cannot be read)" in jobs.fails(USAGE, *schedule())
    assert "no line of 'pretty.json' is JSON" in jobs.fails(USAGE, *schedule(path="pretty.json"))
    assert "(2 the line cannot be read)" in jobs.fails(USAGE, *schedule(path="ragged.csv"))
    for name in ("no.parquet", "no.jsonl.gz"):
        assert f"'{name}' cannot be read: " in jobs.fails(USAGE, *schedule(path=name))
    assert depth(jobs) == 0


def test_an_audit_that_does_not_balance_ends_with_2_and_names_the_message(jobs: Jobs) -> None:
    with shardq.connect(jobs.url) as db:
        mail = db.queue("mail", history="1h")
        mail.put_many({"body": "x", "id": f"m{n}", "delay": "1h"} for n in range(5))
        db.queue("plain")
    with contextlib.closing(sqlite3.connect(jobs.directory / "jobs.db")) as file:
        file.execute("DELETE FROM messages WHERE name = 'm3'")
        file.commit()

    done = jobs.run("audit", "--queue", "mail")

    assert (done.code, done.err) == (UNBALANCED, "")
    assert done.out.startswith("lost: m3, entered 20")
    assert done.out.endswith("\nmail does not balance: 5 put = 4 waiting + 1 lost.\n")
    jobs.fails(Exit.HISTORY_OFF, "audit", "--queue", "plain")


def test_an_id_that_was_expected_and_never_entered_is_lost_without_a_time(jobs: Jobs) -> None:
    put_file(jobs.directory, {"id": "m0"}, {"id": "never"})
    with shardq.connect(jobs.url) as db:
        db.queue("mail", history="1h").put("x", id="m0", delay="1h")
    asked = ["audit", "--queue", "mail", "--expected", "people.jsonl"]

    assert jobs.run(*asked).out.startswith("lost: never\nmail does not balance: 2 expected = ")
    [told] = jobs.run(*asked, "--json").lines
    assert told["misfits"] == [{"kind": "lost", "id": "never", "entered": None, "fate": None}]


def test_dead_messages_are_chosen_by_sql_that_spark_reads(jobs: Jobs) -> None:
    with shardq.connect(jobs.url) as db:
        mail = db.queue("mail")
        for reason in ("timeout of host 1", "timeout of host 2", "no such user"):
            mail.bury(mail.put("x", delay="1h"), reason)
    dead = ["dead", "--queue", "mail"]
    chosen = [*dead, "--where", "reason LIKE '%timeout%'"]

    assert re.search(r"2 .*timeout of host <n>", jobs.ok(*dead).out)
    jobs.ok(*chosen, "--redrive", "--dry-run")
    assert (depth(jobs), depth(jobs, "mail.dead")) == (0, 3)
    jobs.ok(*chosen, "--redrive")
    jobs.ok(*dead, "--purge")
    assert (depth(jobs), depth(jobs, "mail.dead")) == (2, 0)
    jobs.fails(USAGE, *dead, "--redrive", "--purge")
    jobs.fails(USAGE, *dead, "--rate", "5")
    assert "`nope`" in jobs.fails(USAGE, *dead, "--where", "nope = 1")
    assert "Syntax error" in jobs.fails(USAGE, *dead, "--where", "id = ")


def test_a_report_is_a_page_and_a_plot_in_files_of_their_own(jobs: Jobs) -> None:
    with shardq.connect(jobs.url) as db:
        db.queue("mail").put("later", delay="1h")

    files = ["--plot", "a.png", "--report", "a.html"]
    [counted] = jobs.ok("backlog", "--queue", "mail", "--json", *files).lines

    assert counted["messages"] == 1
    assert (jobs.directory / "a.png").read_bytes().startswith(b"\x89PNG")
    text = (jobs.directory / "a.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "data:image/png;base64," in text


def test_an_archive_of_no_day_that_is_over_says_so(jobs: Jobs) -> None:
    with shardq.connect(jobs.url) as db:
        db.queue("mail", history="7d").put("x")

    assert jobs.ok("archive", "--queue", "mail", "--to", "kept").out
    assert not (jobs.directory / "kept").exists()


# What goes wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "arguments", "told"),
    [
        (USAGE, ["audit"], "--queue"),
        (USAGE, schedule("--bad", "x.txt"), "must end with one of .parquet"),
        (USAGE, schedule(path="people.xls"), "must end with one of .parquet"),
        (USAGE, schedule(path="none.jsonl"), "Path does not exist"),
        (USAGE, schedule("--body", "text"), "has no column 'text'"),
        (USAGE, schedule("--rate", "0"), "whole number"),
        (USAGE, ["simulate", "--shape", "round"], "shape"),
        (Exit.UNKNOWN_QUEUE, ["backlog", "--queue", "none"], "no queue 'none'"),
        (Exit.FILE, ["backlog", "--queue", "mail", "--report", "no/page.html"], "no/page.html"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    jobs: Jobs, code: int, arguments: list[str], told: str
) -> None:
    put_file(jobs.directory, {"id": "a", "at": NEXT_YEAR})
    with shardq.connect(jobs.url) as db:
        db.queue("mail")

    assert told in jobs.fails(code, *arguments)
    assert depth(jobs) == 0


def test_without_a_store_nothing_is_started(jobs: Jobs) -> None:
    assert "SHARDQ_STORE" in jobs.fails(USAGE, "backlog", "--queue", "mail", url="")
    assert "no file" in jobs.fails(Exit.UNKNOWN_QUEUE, "backlog", "--queue", "mail")


# Other processes ----------------------------------------------------------------------------------


def test_what_libraries_log_does_not_stand_beside_the_one_line() -> None:
    code = (
        "import logging; from pyspark_shardq.cli import run; "
        "code = run(['simulate', '--shape', 'round']); logging.error('noise'); exit(code)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (USAGE, "")
    assert re.fullmatch(r"shardq: shape must be .*\n", done.stderr)


@pytest.mark.nightly
def test_spark_submit_and_a_shell_run_jobs_as_programs(tmp_path: Path) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "pyspark_shardq", "--script"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    store = f"sqlite:///{tmp_path}/jobs.db"
    with shardq.connect(store) as db:
        db.queue("mail").put("x", delay="1h")
    job = ["backlog", "--queue", "mail", "--json"]

    for words in (
        [str(submit), "--master", "local[1]", script, *job],
        [sys.executable, "-m", "pyspark_shardq", *job, "--nice", "--master", "local[1]"],
    ):
        done = subprocess.run(
            words,
            # spark-submit takes the python3 of PATH otherwise.
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SHARDQ_STORE": store},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=True,
        )
        assert json.loads(done.stdout)["messages"] == 1, done
