"""Measure thousands of pages at once, and report when the last one has ended."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from shardq import App, Message

app = App()


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """A transaction in the database that you have: here, a file."""
    with closing(sqlite3.connect("parts.db", timeout=60)) as db, db:
        yield db


def set_up() -> None:
    with database() as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE batches (name TEXT PRIMARY KEY, missing INTEGER)")
        db.execute("CREATE TABLE parts (batch TEXT, page INTEGER, size INTEGER,"
                   " PRIMARY KEY (batch, page))")  # fmt: skip


def start(batch: str, pages: int) -> None:
    """Put all parts, and the report on what there is in an hour; the last part calls it sooner."""
    with database() as db:
        db.execute("INSERT INTO batches VALUES (?, ?) ON CONFLICT DO NOTHING", (batch, pages))
    report.using(delay="1h").put(batch)
    measure.put_many((batch, page) for page in range(pages))


def count_off(batch: str, page: int, size: int | None) -> None:
    """A part has ended. One that runs twice counts once, and calls the report again if need be."""
    with database() as db:
        part = "INSERT INTO parts VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        new = db.execute(part, (batch, page, size)).rowcount
        db.execute("UPDATE batches SET missing = missing - ? WHERE name = ?", (new, batch))
        missing = db.execute("SELECT missing FROM batches WHERE name = ?", (batch,)).fetchone()
    if missing == (0,):
        app.move(f"report-{batch}", delay="0s", queue="reports")


def give_up(job: Message) -> None:
    """A part has died: the report does not wait for it."""
    arguments = json.loads(job.body)
    count_off(arguments["batch"], arguments["page"], None)


@app.task(queue="pages", attempts=2, backoff="10ms", on_dead=give_up)
def measure(batch: str, page: int) -> None:
    if page == 13:
        raise ValueError("no such page")
    count_off(batch, page, 100 + page)


@app.task(queue="reports", key="report-{batch}")
def report(batch: str) -> None:
    with database() as db:
        counted = "SELECT count(size), count(*), total(size) FROM parts WHERE batch = ?"
        done, ended, size = db.execute(counted, (batch,)).fetchone()
    print(f"{batch}: {done:,} pages of {size:,.0f} bytes, {ended - done:,} failed")
