"""What SQLite alone promises: urls, files that are not ours, locks, forks, news of other writers.

What every store promises is in `store/`.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlite_file import ALL, SHARD, make_row, other, path, run_child, store, stranger

import shardq
from shardq.clock import OFFSET_VARIABLE
from shardq.errors import (
    BadSetting,
    BadUrl,
    SchemaMissing,
    SchemaNewer,
    StoreCorrupt,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from shardq.model import formats, ids
from shardq.model.ids import order_key, row_ids
from shardq.model.message import Row
from shardq.stores import store_of
from shardq.stores.sqlite import SqliteStore, schema
from shardq.stores.sqlite import file as sqlite_names
from shardq.stores.sqlite import store as sqlite_store
from shardq.stores.store import Entry, LeaseState, Mark, RowMove, WriteOnce
from shardq.stores.tables import LANES, MEMBERS, QUEUES, RESULTS, Change, ResultNote

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_open(path: Path) -> bool:
    """True if this process has the file open."""
    stats = []
    for number in os.listdir("/dev/fd"):
        # The descriptor of the listing itself is closed by now.
        with suppress(OSError):
            stats.append(os.fstat(int(number)))
    return any(os.path.samestat(one, path.stat()) for one in stats)


# Urls --------------------------------------------------------------------------------------------


def test_three_slashes_name_a_file_beside_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SqliteStore.from_url("sqlite:///jobs.db").path == tmp_path / "jobs.db"
    assert SqliteStore.from_url("sqlite:///a/b%20c.db").path == tmp_path / "a" / "b c.db"


def test_a_relative_file_stays_the_same_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore.from_url("sqlite:///jobs.db")
    monkeypatch.chdir("/")
    store.open()
    store.close()
    assert (tmp_path / "jobs.db").exists()


def test_four_slashes_name_an_absolute_file() -> None:
    assert SqliteStore.from_url("sqlite:////var/jobs.db").path == Path("/var/jobs.db")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite://?synchronous=full"])
def test_no_file_is_a_database_in_memory(url: str) -> None:
    store = store_of(url)
    assert isinstance(store, SqliteStore)
    assert store.path is None
    assert store.shown == "sqlite://"


def test_options_are_read_and_have_defaults() -> None:
    chosen = SqliteStore.from_url("sqlite:///jobs.db?synchronous=NORMAL&busy=1m30s")
    assert (chosen.synchronous, chosen.busy_ms) == ("normal", 90_000)
    default = SqliteStore.from_url("sqlite:///jobs.db")
    assert (default.synchronous, default.busy_ms) == ("full", 10_000)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///",
        "sqlite:///dir/",
        "sqlite:jobs.db",
        "sqlite:/jobs.db",
        "sqlite://jobs.db",
        "sqlite://host/jobs.db",
        "sqlite:///a%00b",
        "sqlite:///jobs#1.db",
        "sqlite:///jobs.db?busy=soon",
        "sqlite:///jobs.db?busy=-1s",
        "sqlite:///jobs.db?busy=20d",
        "sqlite:///jobs.db?busy=",
    ],
)
def test_a_url_that_names_no_file_or_time_is_refused(url: str) -> None:
    with pytest.raises(BadUrl, match="sqlite"):
        store_of(url)


@pytest.mark.parametrize("option", ["wal=on", "synchronous=off", "Busy=1s", "synchronous"])
def test_an_unknown_option_is_answered_with_those_there_are(option: str) -> None:
    with pytest.raises(BadUrl, match=r"synchronous=full\|normal, busy=10s"):
        store_of(f"sqlite:///jobs.db?{option}")


def test_describe_names_the_file(path: Path) -> None:
    assert SqliteStore(path).shown == f"sqlite:///{path}"
    assert SqliteStore.from_url(SqliteStore(path).shown).path == path


# Opening -----------------------------------------------------------------------------------------


def test_a_file_is_made_and_kept(path: Path) -> None:
    row = make_row()
    for _ in range(2):
        store = SqliteStore(path)
        store.open()
        store.open()
        store.insert([row])
        assert store.read(ALL) == [row]
        store.close()
        store.close()


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
def test_the_log_is_written_ahead_and_synced_as_asked(
    path: Path, synchronous: str, level: int
) -> None:
    store = SqliteStore(path, synchronous=synchronous)
    store.open()
    with store._database.transaction() as writer:
        assert writer.execute("PRAGMA synchronous").fetchone() == (level,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with store._database.transaction(is_lasting=False) as writer:
        assert writer.execute("PRAGMA synchronous").fetchone() == (1,)
    assert writer.execute("PRAGMA synchronous").fetchone() == (level,)
    store.close()


def test_a_heartbeat_waits_for_no_disk(store: SqliteStore) -> None:
    said: list[str] = []
    with store._database.transaction() as writer:
        writer.set_trace_callback(said.append)
    store.note(LANES, ("mail",), {0: 1})
    assert not [one for one in said if "synchronous" in one]
    store.note(MEMBERS, ("mail",), {"a:1": "{}"}, 9_000)
    levels = [one for one in said if "synchronous" in one]
    assert levels == ["PRAGMA synchronous = NORMAL", "PRAGMA synchronous = FULL"]


def test_the_schema_that_is_printed_is_the_one_that_is_made(store: SqliteStore, path: Path) -> None:
    printed = sqlite3.connect(":memory:")
    made = sqlite3.connect(path)
    printed.executescript(SqliteStore.schema_text())
    for question in (
        "SELECT name, sql FROM sqlite_master ORDER BY name",
        "PRAGMA application_id",
        "PRAGMA user_version",
    ):
        assert printed.execute(question).fetchall() == made.execute(question).fetchall()
    printed.close()
    made.close()


def test_each_column_of_a_row_is_kept_whatever_others_hold(store: SqliteStore) -> None:
    bare = make_row()
    numbers, row_ids = {"origin_ms", "since_ms", "not_before_ms", "priority", "attempt"}, {"first"}
    columns = {
        name: 7 if name in numbers else bytes(range(16)) if name in row_ids else "x"
        for name in Row._fields[4:-1]
    }
    changes = [{}, columns, *({name: value} for name, value in columns.items())]
    rows = [bare._replace(due_ms=bare.due_ms + number, **one) for number, one in enumerate(changes)]
    store.insert(rows)
    assert sorted(store.find(row.position for row in rows), key=lambda one: one.due_ms) == rows


def test_a_record_of_a_table_in_which_nothing_runs_out_takes_no_time_to_live(
    store: SqliteStore,
) -> None:
    change = Change((), ("mail",), {"version": None}, {"version": 1}, ttl_ms=1_000)
    with pytest.raises(ValueError, match="keeps no time to live"):
        store.write_records(QUEUES, [change])
    assert store.records(QUEUES, ()) == {}


def test_results_whose_time_is_up_leave_the_file(path: Path) -> None:
    now_us = [1_000_000_000]
    store = SqliteStore(path, machine_us=lambda: now_us[0])
    store.open()

    def rows() -> int:
        with store._database.reading() as reader:
            return reader.execute("SELECT count(*) FROM results").fetchone()[0]

    def write(count: int, ttl_ms: int) -> None:
        note = ResultNote("done", 1, b"1", "", "", -1, "", 0, now_us[0])
        made = [(f"q-{number % 3}", row_ids.next(0).hex()) for number in range(count)]
        store.note(RESULTS, (), dict.fromkeys(made, note), ttl_ms)

    write(100, 60_000)
    write(7, 600_000)
    now_us[0] += 59_999_999
    write(1, 600_000)
    assert rows() == 108
    now_us[0] += 1
    for left in (99, 90, 81):
        write(1, 600_000)
        assert rows() == left, "a few go with each that is written, of whatever queue"
    write(8, 600_000)
    assert rows() == 7 + 1 + 3 + 8
    store.close()


def test_what_has_outlived_its_retention_leaves_the_file(path: Path) -> None:
    now_us = [1_000_000_000]
    store = SqliteStore(path, machine_us=lambda: now_us[0])
    store.open()

    def rows() -> int:
        with store._database.reading() as reader:
            return reader.execute("SELECT count(*) FROM history").fetchone()[0]

    def record(count: int) -> None:
        ids = [row_ids.next(now_us[0]) for _ in range(count)]
        store.record([Mark(Entry("mail", row_id), 5) for row_id in ids], 600_000)

    record(50_000)
    now_us[0] += 700_000_000
    assert rows() == 50_000
    for left in (30_001, 10_002, 3, 4):
        record(1)
        assert rows() == left
    store.close()


def test_a_migration_that_fails_leaves_the_old_tables(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    before = path.read_bytes()
    broken = {formats.BASE + 1: ("CREATE TABLE more (x)", "CREATE TABLE lanes (y)")}
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    monkeypatch.setattr(formats, "FORMAT", formats.BASE + 1)
    with pytest.raises(StoreRefused, match="already exists"):
        store.open()
    monkeypatch.undo()
    assert path.read_bytes() == before
    store.open()


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"these are my notes, not a database\n" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="name another file"):
        SqliteStore(path).open()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_is_refused_is_closed_while_its_error_is_kept(path: Path) -> None:
    path.write_bytes(b"these are my notes, not a database\n" * 100)
    with pytest.raises(StoreCorrupt) as kept:
        SqliteStore(path).open()
    assert not is_open(path)
    del kept


def test_a_connection_that_is_refused_for_its_clock_leaves_no_file_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OFFSET_VARIABLE, "soon")
    with pytest.raises(BadSetting, match="must be seconds such as -60") as kept:
        shardq.connect(f"sqlite:///{path}")
    assert kept.value.__traceback__ is not None
    assert path.exists()
    assert not is_open(path)


def test_a_damaged_file_is_an_error_of_its_own(store: SqliteStore, path: Path) -> None:
    store.insert([make_row(60_000 + n, body=b"x" * 900) for n in range(200)])
    store.close()
    damaged = bytearray(path.read_bytes())
    # Where the rows are: how many pages the schema takes grows with it.
    half = len(damaged) // 2
    damaged[half:] = b"\xa5" * (len(damaged) - half)
    path.write_bytes(damaged)
    store.open()
    with pytest.raises(StoreCorrupt, match=r"jobs\.db"):
        store.read(ALL)


@pytest.mark.parametrize(
    "made_by",
    [
        "CREATE TABLE customers (name TEXT)",
        "PRAGMA application_id = 77; CREATE TABLE messages (x)",
        "PRAGMA application_id = 77",
        "PRAGMA user_version = 1",
    ],
)
def test_a_database_of_another_program_is_refused_and_left_alone(path: Path, made_by: str) -> None:
    foreign = sqlite3.connect(path)
    foreign.executescript(made_by)
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(SchemaMissing, match="another program"):
        SqliteStore(path).open()
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    store = SqliteStore(path)
    store.open()
    assert store.notes(QUEUES, ()) == {}
    store.close()


def test_a_sqlite_that_is_too_old_is_refused_with_the_least_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 26, 0))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.26.0")
    with pytest.raises(
        StoreRefused, match=r"needs SQLite 3\.32 or newer, and this Python has 3\.26"
    ):
        SqliteStore(path).open()
    assert not path.exists()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "missing" / "jobs.db")
    with pytest.raises(StoreUnavailable, match=r"no directory .*missing exists; make it first"):
        store.open()
    assert not (tmp_path / "missing").exists()


def test_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is a directory"):
        SqliteStore(tmp_path).open()


def test_a_file_name_that_the_system_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="name another file"):
        SqliteStore(tmp_path / ("a" * 300)).open()


def test_a_file_name_is_its_bytes_and_is_shown_so_that_it_can_be_read_again(tmp_path: Path) -> None:
    name = "%1b[2J%0a%25.db"
    store = SqliteStore.from_url(f"sqlite:///{tmp_path}/{name}")
    store.open()
    store.close()
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [b"\x1b[2J\n%.db"]
    assert store.shown.isprintable()
    assert SqliteStore.from_url(store.shown).path == store.path
    assert os.fsencode(SqliteStore.from_url("sqlite:///%ff.db").shown).endswith(b"%FF.db")


def test_a_store_that_turns_read_only_is_unavailable(store: SqliteStore) -> None:
    with store._database.transaction() as writer:
        writer.execute("PRAGMA query_only = ON")
    for write in (
        lambda: store.insert([make_row()]),
        lambda: store.insert([make_row(), make_row()]),
        lambda: store.note(LANES, ("mail",), {0: 1}),
    ):
        with pytest.raises(StoreUnavailable, match="nothing was written"):
            write()


def test_a_store_that_is_not_open_says_so(path: Path) -> None:
    store = SqliteStore(path)
    for call in (
        lambda: store.read(ALL),
        lambda: store.insert([make_row()]),
        lambda: store.note(LANES, ("mail",), {0: 1}),
        store.changed,
    ):
        with pytest.raises(StoreUnavailable, match="is not open"):
            call()
    store.open()
    store.close()
    with pytest.raises(StoreUnavailable, match="is not open"):
        sorted(store.notes(QUEUES, ()))


def test_tables_that_vanish_are_missed(store: SqliteStore, stranger: sqlite3.Connection) -> None:
    stranger.execute("DROP TABLE messages")
    with pytest.raises(SchemaMissing, match="no such table: messages"):
        store.insert([make_row()])


def test_tables_that_a_newer_shardq_has_replaced_meanwhile_are_said_to_be_newer(
    store: SqliteStore, stranger: sqlite3.Connection
) -> None:
    stranger.execute("DROP TABLE messages")
    stranger.execute(f"PRAGMA user_version = {formats.FORMAT + 1}")
    told = (
        f"has format {formats.FORMAT + 1}, made by a newer shardq; this one knows {formats.FORMAT}"
    )
    with pytest.raises(SchemaNewer, match=told):
        store.insert([make_row()])
    with pytest.raises(SchemaNewer, match=told):
        store.read(ALL)


def test_a_row_that_breaks_the_schema_is_refused_not_dropped(store: SqliteStore) -> None:
    broken = make_row()._replace(attempt=None)
    for rows in ([broken], [make_row(), broken]):
        with pytest.raises(StoreRefused, match="NOT NULL"):
            store.insert(rows)
    assert store.read(ALL) == []


# A full disk, a held lock ------------------------------------------------------------------------


def fill(store: SqliteStore) -> None:
    """Let the file grow by a few pages only."""
    with store._database.transaction() as writer:
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages + 3}")


def test_a_full_disk_is_told_and_nothing_is_half_written(store: SqliteStore) -> None:
    kept = make_row()
    store.insert([kept])
    fill(store)
    big = [make_row(60_001 + n, body=b"x" * 3_000) for n in range(50)]
    with pytest.raises(StoreFull, match=r"disk under .* is full"):
        store.insert(big)
    with pytest.raises(StoreFull, match=r"disk under .* is full"):
        store.insert([make_row(body=b"x" * 100_000)])
    with pytest.raises(StoreFull, match=r"disk under .* is full"):
        store.move([RowMove(kept.position, make_row(body=b"x" * 100_000))])
    assert store.read(ALL) == [kept]


def test_what_is_deleted_from_a_full_disk_needs_no_more_of_it(
    store: SqliteStore, path: Path
) -> None:
    kept = [make_row(60_001 + n) for n in range(3)]
    store.insert(kept)
    store.take({SHARD: None}, lock="l", holder="m", window=1, ttl_ms=60_000)
    fill(store)
    with pytest.raises(StoreFull):
        store.insert([make_row(body=b"x" * 100_000)])
    log = path.with_name("jobs.db-wal")
    log_bytes = log.stat().st_size
    store.delete([row.position for row in kept])
    store.release({SHARD: "l"})
    assert log.stat().st_size == log_bytes
    assert store.read(ALL) == []


def test_a_limit_on_the_size_of_files_is_told_from_a_failing_disk(path: Path) -> None:
    script = """
        import resource, sys
        import shardq
        with shardq.connect(f"sqlite:///{sys.argv[1]}") as db:
            mail = db.queue("mail")
            mail.put("hello", delay="1h")
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, resource.RLIM_INFINITY))
            try:
                mail.put("x" * 200_000)
            except shardq.errors.StoreFull as error:
                print(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            print([message.text for message in mail.peek()])
    """
    told, kept = run_child(script, path).splitlines()
    assert "is reached; nothing was written, raise it (ulimit -f)" in told
    assert kept == "['hello']"


def test_a_lock_held_too_long_is_an_error_and_no_write(
    store: SqliteStore, stranger: sqlite3.Connection
) -> None:
    kept, refused = make_row(), [make_row(60_001), make_row(60_002)]
    store.insert([kept])
    stranger.execute("BEGIN IMMEDIATE")
    for write in (
        lambda: store.insert(refused[:1]),
        lambda: store.insert(refused),
        lambda: store.delete([kept.position]),
        lambda: store.take({SHARD: None}, lock="l", holder="m", window=1, ttl_ms=1_000),
    ):
        with pytest.raises(StoreUnavailable, match=r"locked by another process.*20ms"):
            write()
    assert store.read(ALL) == [kept]
    assert store.lease_states([SHARD]) == {SHARD: LeaseState()}
    stranger.execute("ROLLBACK")
    store.insert(refused)
    assert store.read(ALL) == [kept, *refused]


def test_a_writer_that_is_held_up_holds_no_reader_back(
    store: SqliteStore, stranger: sqlite3.Connection
) -> None:
    kept = make_row()
    store.insert([kept])
    stranger.execute("BEGIN IMMEDIATE")
    stranger.execute("DELETE FROM messages")
    assert store.read(ALL) == [kept]
    stranger.execute("COMMIT")
    assert store.read(ALL) == []


def test_a_thread_that_writes_holds_no_thread_back_that_reads(store: SqliteStore) -> None:
    row = make_row()
    store.insert([row])
    found = []
    with store._database.transaction() as writer:
        writer.execute("DELETE FROM messages")
        reading = threading.Thread(target=lambda: found.extend(store.read(ALL)))
        reading.start()
        reading.join(60)
        assert found == [row]
    assert store.read(ALL) == []


def test_a_transaction_keeps_other_writers_out_from_its_first_read(
    store: SqliteStore, stranger: sqlite3.Connection
) -> None:
    with (
        store._database.transaction(),
        pytest.raises(sqlite3.OperationalError, match="database is locked"),
    ):
        stranger.execute("BEGIN IMMEDIATE")


def test_a_slow_stream_holds_no_other_writer_back(store: SqliteStore, other: SqliteStore) -> None:
    between = make_row(60_001)

    def stream() -> Iterator[Row]:
        yield make_row(60_000)
        # If the stream held a write lock here, the first insert would wait for ever, and the
        # second until its timeout.
        store.insert([between])
        other.insert([make_row(60_002)])
        yield make_row(60_003)

    store.insert(stream())
    store.delete(row.position for row in [*store.find(p for p in [between.position])])
    assert [row.due_ms for row in store.read(ALL)] == [60_000, 60_002, 60_003]


def test_rows_puts_and_a_line_that_fail_half_way_are_taken_back_whole(store: SqliteStore) -> None:
    rows = [make_row(60_000 + n) for n in range(10)]
    puts = [Mark(Entry("mail", row.id), row.due_ms) for row in rows]
    line = Mark(Entry("mail#runs", ids.fixed(1, "bin 0")), 60_000, "10 rows")
    broken = make_row(60_010)._replace(attempt=None)
    unsayable = line._replace(name=object())  # type: ignore[arg-type]
    with pytest.raises(StoreRefused):
        store.insert([*rows, broken], WriteOnce(line, 60_000, puts, 60_000))
    with pytest.raises(StoreRefused):
        store.insert(rows, WriteOnce(unsayable, 60_000, puts, 60_000))
    assert store.read(ALL) == []
    assert store.recorded([mark.entry for mark in (*puts, line)]) == []
    assert store.insert(rows, WriteOnce(line, 60_000, puts, 60_000)) is None
    assert store.read(ALL) == rows


# Names --------------------------------------------------------------------------------------------


def test_a_file_with_two_names_is_refused_under_both(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    url = f"sqlite:///{path}"
    with shardq.connect(url) as db:
        db.queue("mail").put("x")
    other = tmp_path / "other.db"
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(StoreUnavailable, match=r"has 2 names \(hard links\); remove all but"):
            shardq.connect(f"sqlite:///{name}")
    other.unlink()
    with shardq.connect(url) as db:
        assert db.queue("mail").depth(exact=True).total == 1


@pytest.mark.parametrize("name", ["jobs.db", "my jobs\\.db"])
def test_a_file_that_is_mounted_alone_is_refused_and_one_in_a_mounted_directory_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mounts = tmp_path / "mountinfo"
    octal = name.replace("\\", "\\134").replace(" ", "\\040")
    line = "36 35 98:0 /jobs {} rw,noatime master:1 - ext4 /dev/root rw"
    monkeypatch.setattr(sqlite_names, "_MOUNTS", mounts)
    mounts.write_text(f"{line.format(tmp_path)}\n")
    url = f"sqlite:///{tmp_path}/{name}"
    shardq.init(url)
    mounts.write_text(f"{line.format(tmp_path)}\n{line.format(tmp_path / octal)}\n")
    with pytest.raises(StoreUnavailable, match=r"is mounted by itself, .*; mount its directory, "):
        shardq.connect(url)


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can mount")
def test_a_real_mount_of_a_file_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    for one in (tmp_path / "jobs.db", tmp_path / "inside" / "jobs.db"):
        one.touch()
    # In a space of its own, so that nothing is left mounted.
    script = (
        'mount --bind "$1/jobs.db" "$1/inside/jobs.db" && '
        'exec "$2" -m shardq put mail x --store "sqlite:///$1/inside/jobs.db"'
    )
    words = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "inside/jobs.db is mounted by itself, as by `docker run -v`; mount" in done.stderr
    assert (tmp_path / "jobs.db").stat().st_size == 0
