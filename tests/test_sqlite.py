"""What SQLite alone promises: urls, files that are not ours, locks, forks, news of other writers.

What every store promises is in `test_store.py`.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardq.errors import (
    BadUrl,
    SchemaMissing,
    SchemaNewer,
    StoreCorrupt,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from shardq.ids import row_ids
from shardq.message import Row
from shardq.shard import Shard
from shardq.store import LeaseState, Move, Slice
from shardq.stores import sqlite_schema, store_of
from shardq.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARD = Shard("mail", 1, 0)
ALL = Slice("mail", [1], [0], -1, 1 << 48, 1_000_000)
CHILD_SECONDS_MAX = 60


def make_row(due_ms: int = 60_000, body: bytes = b"body") -> Row:
    return Row(SHARD, due_ms, row_ids.next(1), body)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path, busy_ms=20)
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def other(store: SqliteStore, path: Path) -> Iterator[SqliteStore]:
    """A second store on the same file, as another process has."""
    opened = SqliteStore(path)
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def stranger(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """A bare connection to the same file."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    yield connection
    connection.close()


def run_child(script: str, *arguments: object) -> str:
    """The output of a Python process that runs a script; it fails where the script does."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    assert store.describe() == "sqlite://"


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
    assert SqliteStore(path).describe() == f"sqlite:///{path}"
    assert SqliteStore.from_url(SqliteStore(path).describe()).path == path


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
    store.close()


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


def test_an_older_file_is_migrated_with_its_rows(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_row()
    store.insert([row])
    store.close()
    newer = (*sqlite_schema.MIGRATIONS, ("ALTER TABLE lanes ADD COLUMN note TEXT",))
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", newer)
    monkeypatch.setattr(sqlite_schema, "VERSION", len(newer))
    store.open()
    assert store.read(ALL) == [row]
    with store._database.reading() as reader:
        assert reader.execute("PRAGMA user_version").fetchone() == (len(newer),)
        assert reader.execute("SELECT note FROM lanes").fetchall() == []


def test_a_migration_that_fails_leaves_the_old_schema(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    before = path.read_bytes()
    broken = (*sqlite_schema.MIGRATIONS, ("CREATE TABLE more (x)", "CREATE TABLE lanes (y)"))
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", broken)
    monkeypatch.setattr(sqlite_schema, "VERSION", len(broken))
    with pytest.raises(StoreRefused, match="already exists"):
        store.open()
    monkeypatch.undo()
    assert path.read_bytes() == before
    store.open()


def test_a_newer_schema_is_refused_and_left_alone(
    store: SqliteStore, stranger: sqlite3.Connection, path: Path
) -> None:
    store.close()
    stranger.execute(f"PRAGMA user_version = {sqlite_schema.VERSION + 1}")
    for _ in range(2):
        with pytest.raises(SchemaNewer, match="upgrade shardq"):
            SqliteStore(path).open()


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"these are my notes, not a database\n" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="name another file"):
        SqliteStore(path).open()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_damaged_file_is_an_error_of_its_own(store: SqliteStore, path: Path) -> None:
    store.insert([make_row(60_000 + n, body=b"x" * 900) for n in range(200)])
    store.close()
    damaged = bytearray(path.read_bytes())
    damaged[4096 * 10 :] = b"\xa5" * (len(damaged) - 4096 * 10)
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
    assert store.queues() == []
    store.close()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "missing" / "jobs.db")
    with pytest.raises(StoreUnavailable, match=r"no directory .*missing exists; make it first"):
        store.open()
    assert not (tmp_path / "missing").exists()


def test_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is a directory"):
        SqliteStore(tmp_path).open()


def test_a_file_that_may_not_be_written_is_told_so(store: SqliteStore, path: Path) -> None:
    # As nobody, where the tests run as root, whom no permission holds back.
    store.close()
    path.chmod(0o444)
    script = """
        import os, sys
        from pathlib import Path
        from shardq.errors import StoreUnavailable
        from shardq.stores.sqlite import SqliteStore

        path = Path(sys.argv[1])
        os.chdir(path.parent)
        if os.getuid() == 0:
            os.setuid(65534)
        # Relative, since a test's directory is closed to nobody from above.
        store = SqliteStore()
        store._database.path = Path(path.name)
        try:
            store.open()
        except StoreUnavailable as error:
            print(error)
    """
    path.parent.chmod(0o755)
    assert "cannot be written by this user" in run_child(script, path)


def test_a_store_that_turns_read_only_is_unavailable(store: SqliteStore) -> None:
    with store._database.transaction() as writer:
        writer.execute("PRAGMA query_only = ON")
    for write in (
        lambda: store.insert([make_row()]),
        lambda: store.insert([make_row(), make_row()]),
        lambda: store.seal("mail", {0: 1}),
    ):
        with pytest.raises(StoreUnavailable, match="nothing was written"):
            write()


def test_a_store_that_is_not_open_says_so(path: Path) -> None:
    store = SqliteStore(path)
    for call in (
        lambda: store.read(ALL),
        lambda: store.insert([make_row()]),
        lambda: store.seal("mail", {0: 1}),
        store.changed,
    ):
        with pytest.raises(StoreUnavailable, match="is not open"):
            call()
    store.open()
    store.close()
    with pytest.raises(StoreUnavailable, match="is not open"):
        store.queues()


def test_tables_that_vanish_are_missed(store: SqliteStore, stranger: sqlite3.Connection) -> None:
    stranger.execute("DROP TABLE messages")
    with pytest.raises(SchemaMissing, match="no such table: messages"):
        store.insert([make_row()])


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
        store.move([Move(kept.position, make_row(body=b"x" * 100_000))])
    assert store.read(ALL) == [kept]


def test_a_disk_with_room_again_takes_writes_again(store: SqliteStore) -> None:
    fill(store)
    big = make_row(body=b"x" * 100_000)
    with pytest.raises(StoreFull):
        store.insert([big])
    with store._database.transaction() as writer:
        writer.execute("PRAGMA max_page_count = 100000")
    store.insert([big])
    assert store.read(ALL) == [big]


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
        with pytest.raises(StoreUnavailable, match=r"locked by another process.*0\.02 s"):
            write()
    assert store.read(ALL) == [kept]
    assert store.leases([SHARD]) == {SHARD: LeaseState()}
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
        reading.join(10)
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
        # Both would wait for ever, or to the end of their patience, on a lock that is held here.
        store.insert([between])
        other.insert([make_row(60_002)])
        yield make_row(60_003)

    store.insert(stream())
    store.delete(row.position for row in [*store.find(p for p in [between.position])])
    assert [row.due_ms for row in store.read(ALL)] == [60_000, 60_002, 60_003]


def test_an_insert_that_fails_half_way_is_taken_back_whole(store: SqliteStore) -> None:
    broken = [*(make_row(60_000 + n) for n in range(10)), make_row()._replace(attempt=None)]
    with pytest.raises(StoreRefused):
        store.insert(broken)
    assert store.read(ALL) == []
    store.insert(broken[:10])
    assert store.read(ALL) == broken[:10]


# Several connections and processes ---------------------------------------------------------------


def test_a_write_of_another_connection_is_news(store: SqliteStore, other: SqliteStore) -> None:
    quiet = store.changed()
    assert quiet is not None
    other.insert([make_row()])
    heard = store.changed()
    assert heard != quiet
    assert store.changed() == heard
    other.delete([row.position for row in store.read(ALL)])
    assert store.changed() != heard


def test_ones_own_write_and_anothers_read_are_no_news(
    store: SqliteStore, other: SqliteStore
) -> None:
    quiet = store.changed()
    store.insert([make_row()])
    store.insert([make_row(), make_row()])
    other.read(ALL)
    assert store.read(ALL)
    assert store.changed() == quiet


def test_news_is_the_same_in_every_thread(store: SqliteStore, other: SqliteStore) -> None:
    other.insert([make_row()])
    store.changed()
    with ThreadPoolExecutor(4) as pool:
        told = set(pool.map(lambda _: store.changed(), range(40)))
    assert told == {store.changed()}


def test_news_does_not_wait_for_a_write_under_way(store: SqliteStore) -> None:
    last = store.changed()
    told = []
    with store._database.transaction():
        asking = threading.Thread(target=lambda: told.append(store.changed()))
        asking.start()
        asking.join(10)
    assert told == [last]


def test_a_store_in_memory_has_no_news() -> None:
    store = SqliteStore()
    store.open()
    store.insert([make_row()])
    assert store.changed() is None
    store.close()


def test_two_stores_in_memory_are_two() -> None:
    one, two = SqliteStore(), SqliteStore()
    one.open()
    two.open()
    one.insert([make_row()])
    assert two.read(ALL) == []
    one.close()
    two.close()


def test_many_may_open_a_new_file_at_once(path: Path) -> None:
    stores = [SqliteStore(path) for _ in range(8)]
    start = threading.Barrier(len(stores))

    def first_steps(store: SqliteStore) -> None:
        start.wait(30)
        store.open()
        store.insert([make_row()])

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(first_steps, stores))
    assert len(stores[0].read(ALL)) == len(stores)
    for store in stores:
        store.close()


def test_writers_of_several_processes_all_get_through(path: Path) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from shardq.ids import row_ids
        from shardq.message import Row
        from shardq.shard import Shard
        from shardq.store import Slice
        from shardq.stores.sqlite import SqliteStore

        shard = Shard("mail", 1, 0)
        children = []
        for number in range(5):
            child = os.fork()
            if child == 0:
                store = SqliteStore(Path(sys.argv[1]))
                store.open()
                for n in range(100):
                    row = Row(shard, 60_000 + n, row_ids.next(n), bytes([number]))
                    bulk = [row._replace(id=row_ids.next(n)) for _ in range(n % 4)]
                    store.insert([row, *bulk])
                    if number == 4:
                        store.delete(one.position for one in [row, *bulk])
                store.close()
                os._exit(0)
            children.append(child)
        print([os.waitpid(child, 0)[1] for child in children])
    """
    assert run_child(script, path) == "[0, 0, 0, 0, 0]\n"
    store = SqliteStore(path)
    store.open()
    left = store.read(ALL)
    assert len(left) == 4 * 250
    assert {row.body for row in left} == {b"\x00", b"\x01", b"\x02", b"\x03"}
    store.close()


def test_a_store_is_used_on_both_sides_of_a_fork(path: Path) -> None:
    script = """
        import os, sys, threading
        from pathlib import Path
        from shardq.ids import row_ids
        from shardq.message import Row
        from shardq.shard import Shard
        from shardq.store import Slice
        from shardq.stores.sqlite import SqliteStore

        def files():
            names = map(target_of, os.listdir("/proc/self/fd"))
            return [name for name in names if "jobs.db" in name]

        def target_of(descriptor):
            try:
                return os.readlink("/proc/self/fd/" + descriptor)
            except FileNotFoundError:
                return ""

        store = SqliteStore(Path(sys.argv[1]))
        store.open()
        rows = [Row(Shard("mail", 1, 0), 60_000 + n, row_ids.next(n), b"") for n in range(4)]
        everything = Slice("mail", [1], [0], -1, 1 << 48, 100)
        store.insert(rows[:1])
        assert store.read(everything) == rows[:1]
        assert files() or not os.path.isdir("/proc/self/fd")
        child = os.fork()
        if child == 0:
            # What it had open has been closed before: nothing of it was inherited.
            inherited = files() if os.path.isdir("/proc/self/fd") else []
            before = store.changed()
            store.insert(rows[1:2])
            store.close()
            os._exit(bool(inherited))
        store.insert(rows[2:3])
        assert os.waitpid(child, 0)[1] == 0
        store.insert(rows[3:])
        assert store.read(everything) == rows
        store.close()
    """
    assert run_child(script, path) == ""


def test_a_fork_waits_for_no_lock_and_memory_stays_with_the_parent() -> None:
    script = """
        import os
        from shardq.errors import StoreUnavailable
        from shardq.ids import row_ids
        from shardq.message import Row
        from shardq.shard import Shard
        from shardq.store import Slice
        from shardq.stores.sqlite import SqliteStore

        store = SqliteStore()
        store.open()
        row = Row(Shard("mail", 1, 0), 60_000, row_ids.next(1), b"")
        child = os.fork()
        if child == 0:
            try:
                store.insert([row])
            except StoreUnavailable as error:
                fine = "in the memory of the process that opened it" in str(error)
                store.open()
                store.insert([row])
                os._exit(not fine)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        store.insert([row])
        assert store.read(Slice("mail", [1], [0], -1, 1 << 48, 100)) == [row]
        store.close()
    """
    assert run_child(script) == ""


# What is kept, and what it costs -----------------------------------------------------------------


def test_leases_of_long_sealed_shards_are_forgotten(path: Path) -> None:
    now_us = 1_000_000
    store = SqliteStore(path, machine_us=lambda: now_us)
    store.open()
    shards = [Shard("mail", minute, lane) for minute in (1, 900, 1_000) for lane in (0, 1)]
    held = Shard("mail", 2, 0)
    store.take(dict.fromkeys(shards), lock="l", holder="m", window=1, ttl_ms=1_000)
    store.take({held: None}, lock="l", holder="m", window=1, ttl_ms=60_000)
    now_us += 1_000_000
    store.seal("mail", {0: 1_000})
    unclean, none = LeaseState(None, "m", 1), LeaseState()
    assert list(store.leases(shards).values()) == [none, *[unclean] * 5]
    assert store.leases([held])[held].lock == "l"
    store.close()


def test_a_clean_release_leaves_no_row(store: SqliteStore, stranger: sqlite3.Connection) -> None:
    store.take({SHARD: None}, lock="l", holder="m", window=1, ttl_ms=1_000)
    store.release({SHARD: "l"})
    assert stranger.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_members_and_blocks_that_ran_out_leave_no_row(path: Path) -> None:
    now_us = 1_000_000
    store = SqliteStore(path, machine_us=lambda: now_us)
    store.open()
    store.beat("mail", "gone", "{}", 1_000)
    store.block("mail", 0, "gone", until_ms=5, message="m", ttl_ms=1_000)
    now_us += 1_000_000
    store.beat("mail", "here", "{}", 1_000)
    store.block("mail", 0, "here", until_ms=5, message="m", ttl_ms=1_000)
    with store._database.reading() as reader:
        assert reader.execute("SELECT member FROM members").fetchall() == [("here",)]
        assert reader.execute("SELECT in_group FROM blocked").fetchall() == [("here",)]
    store.close()


@pytest.mark.parametrize("after_id", [None, b"\x00" * 16])
def test_a_read_starts_at_its_cursor(store: SqliteStore, after_id: bytes | None) -> None:
    seen: list[str] = []
    with store._database.reading() as reader:
        reader.set_trace_callback(seen.append)
    store.read(ALL._replace(after_ms=70_000, after_id=after_id))
    with store._database.reading() as reader:
        reader.set_trace_callback(None)
        (plan,) = reader.execute("EXPLAIN QUERY PLAN " + seen[-1]).fetchall()
    # One search by the key down to the due, and no sorting.
    assert plan[3].startswith("SEARCH messages USING PRIMARY KEY (queue=? AND minute=? AND lane=?")
    assert "due" in plan[3]


def test_a_batch_of_rows_is_one_transaction(store: SqliteStore) -> None:
    store.insert(make_row(60_000 + n) for n in range(4_000))
    assert store.counters["batches"] == 1
    store.insert(make_row(body=b"x" * (1 << 20)) for _ in range(9))
    assert store.counters["batches"] == 1 + 3
