"""A SQLite file that loses its name, or whose name another file gets, while it is open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest
from sqlite_file import ALL, make_row, path, run_child

import shardq
from shardq.errors import StoreCorrupt, StoreUnavailable
from shardq.stores.sqlite import SqliteStore, file
from shardq.stores.tables import LANES, QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GONE = "removed, moved or replaced while it was open"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file in a directory of its own, which a test may move."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "jobs.db"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked up each time."""
    monkeypatch.setattr(file, "_LOOK_US", -1)


@pytest.fixture
def store(path: Path, looks: None) -> Iterator[SqliteStore]:
    opened = SqliteStore(path)
    opened.open()
    opened.insert([make_row()])
    assert opened.read(ALL)
    yield opened
    opened.close()


def all_of(path: Path) -> list[Path]:
    return sorted(one for one in path.parent.glob(f"{path.name}*") if one.is_file())


def remove(path: Path) -> None:
    for one in all_of(path):
        one.unlink()


def replace(path: Path) -> None:
    other = SqliteStore(path.with_name("other.db"))
    other.open()
    other.close()
    path.with_name("other.db").rename(path)


def move(path: Path) -> None:
    for one in all_of(path):
        one.rename(one.with_name(f"away-{one.name}"))


LOSSES: list[Callable[[Path], object]] = [
    remove,
    replace,
    move,
    lambda path: path.unlink(),
    lambda path: path.with_name("jobs.db-wal").unlink(),
    lambda path: path.with_name("jobs.db-shm").unlink(),
    lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
]


@pytest.mark.parametrize("lose", LOSSES)
def test_no_call_succeeds_on_a_file_that_nobody_else_finds(
    store: SqliteStore, path: Path, lose: Callable[[Path], object]
) -> None:
    lose(path)
    left = all_of(path)
    for call in (
        lambda: store.insert((make_row(),)),
        lambda: store.insert([make_row(), make_row()]),
        lambda: store.note(LANES, ("mail",), {0: 1}),
        lambda: store.read(ALL),
        lambda: store.notes(QUEUES, ()),
    ):
        with pytest.raises(StoreCorrupt, match=GONE):
            call()
    assert all_of(path) == left


def test_no_call_succeeds_after_one_that_has_found_the_log_gone(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Outside of tests the last look is long ago.
    monkeypatch.setattr(file, "_LOOK_US", 600_000_000)
    store._database._writer.looked_us = 0
    path.with_name("jobs.db-wal").unlink()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=GONE):
            store.insert((make_row(),))


def test_what_was_put_before_its_log_was_removed_is_in_the_file(
    store: SqliteStore, path: Path
) -> None:
    put = [make_row(60_001 + n) for n in range(3)]
    store.insert(put)
    path.with_name("jobs.db-wal").unlink()
    with pytest.raises(StoreCorrupt, match=GONE):
        store.insert((make_row(60_005),))
    copy = path.with_name("copy.db")
    # The file alone, for whoever has it open may die without closing it.
    shutil.copy(path, copy)
    again = SqliteStore(copy)
    again.open()
    assert len(again.read(ALL)) == 5
    again.close()


@pytest.mark.parametrize("lose", [remove, replace])
def test_what_is_lost_before_its_first_use_is_not_made_anew(
    path: Path, lose: Callable[[Path], object]
) -> None:
    store = SqliteStore(path)
    store.open()
    lose(path)
    left = all_of(path)
    for call in (lambda: store.notes(QUEUES, ()), lambda: store.insert((make_row(),))):
        with pytest.raises(StoreCorrupt, match=GONE):
            call()
    store.close()
    assert all_of(path) == left


def test_a_link_that_is_turned_to_another_file_is_noticed(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    link, other = tmp_path / "link.db", tmp_path / "other.db"
    link.symlink_to(path)
    linked = SqliteStore(link)
    linked.open()
    assert len(linked.read(ALL)) == 1
    other.touch()
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(StoreCorrupt, match=GONE):
        linked.insert((make_row(),))
    linked.close()
    assert other.read_bytes() == b""


def test_a_file_that_is_back_under_its_name_is_used_again(store: SqliteStore, path: Path) -> None:
    away = path.rename(path.with_name("away.db"))
    with pytest.raises(StoreCorrupt, match=GONE):
        store.notes(QUEUES, ())
    away.rename(path)
    store.insert((make_row(),))
    assert len(store.read(ALL)) == 2


def test_neither_side_of_a_fork_makes_a_lost_file_anew(path: Path) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from shardq.errors import StoreCorrupt
        from shardq.stores.sqlite import SqliteStore
        from shardq.stores.tables import QUEUES
        path = Path(sys.argv[1])
        store = SqliteStore(path)
        store.open()
        path.unlink()
        child = os.fork()
        try:
            store.notes(QUEUES, ())
        except StoreCorrupt:
            if child == 0:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not path.exists()
    """
    assert run_child(script, path) == ""


def test_whoever_only_looks_follows_the_name(store: SqliteStore, path: Path) -> None:
    looking = SqliteStore(path, read_only=True)
    looking.open()
    assert len(looking.read(ALL)) == 1
    move(path)
    with pytest.raises(StoreUnavailable, match="No such file"):
        looking.read(ALL)
    replace(path)
    assert looking.read(ALL) == []
    looking.close()


def test_what_is_written_into_a_file_through_sqlite_is_no_loss(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    copy = sqlite3.connect(tmp_path / "copy.db")
    live = sqlite3.connect(path)
    live.backup(copy)
    store.insert((make_row(),))
    copy.backup(live)
    live.execute("VACUUM")
    live.close()
    copy.close()
    assert len(store.read(ALL)) == 1
    store.insert((make_row(),))


@pytest.mark.usefixtures("looks")
def test_a_consumer_whose_file_is_gone_ends_and_says_what_is_not_stored(path: Path) -> None:
    with shardq.connect(f"sqlite:///{path}") as db:
        queue = db.queue("mail")
        queue.put("hello")
        went = threading.Event()

        def handle(message: shardq.Message) -> None:
            remove(path)
            went.set()

        consumer = shardq.Consumer(queue, handle, threads=1)
        consumer.start()
        with pytest.raises(StoreCorrupt, match=GONE) as told:
            consumer.join(60)
        assert went.is_set()
        assert told.value.__notes__ == ["Deliveries here whose outcome could not be stored: 1."]
    assert all_of(path) == []


@pytest.mark.usefixtures("looks")
def test_what_follows_from_the_error_that_is_raised_is_not_warned_of(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        with shardq.connect(f"sqlite:///{path}") as db:
            queue = db.queue("mail")
            queue.put("hello")
            remove(path)
            queue.put("hello")

    with pytest.raises(StoreCorrupt, match=GONE):
        work()
    assert caplog.records == []


def test_an_idle_consumer_and_a_caller_of_receive_notice_a_file_that_is_gone(path: Path) -> None:
    with shardq.connect(f"sqlite:///{path}") as db:
        queue = db.queue("mail")
        consumer = shardq.Consumer(queue, lambda _: None)
        consumer.start()
        assert queue.receive() == []
        shutil.rmtree(path.parent)
        with pytest.raises(StoreCorrupt, match=GONE):
            queue.receive(wait="1m")
        with pytest.raises(StoreCorrupt, match=GONE):
            # Writers check the file every 0.1 s, on another connection than the reads.
            list(map(queue.put, ["hello"] * 100_000))
        with pytest.raises(StoreCorrupt, match=GONE):
            consumer.join(60)
    assert not os.path.exists(path.parent)
