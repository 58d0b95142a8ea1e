"""What several connections, processes and threads have of one SQLite file, and what it keeps."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlite_file import ALL, SHARD, make_row, other, path, run_child, store, stranger

from shardq.clock import BootTime, SystemClock
from shardq.model.shard import Shard
from shardq.stores.sqlite import SqliteStore, turn
from shardq.stores.store import LeaseState
from shardq.stores.tables import LANES, MEMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        asking.join(60)
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
        start.wait(60)
        store.open()
        store.insert([make_row()])

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(first_steps, stores))
    assert len(stores[0].read(ALL)) == len(stores)
    for opened in stores:
        opened.close()


def test_writers_of_several_processes_all_get_through(path: Path) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from shardq.model.ids import row_ids
        from shardq.model.message import Row
        from shardq.model.shard import Shard
        from shardq.stores.store import Slice
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


@pytest.mark.parametrize("is_linux", [True, False])
def test_of_those_that_write_all_the_time_none_waits_for_many_of_the_others(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_linux: bool
) -> None:
    monkeypatch.setattr(turn, "_HAS_NEXT", is_linux)
    opened = [SqliteStore(path) for _ in range(4)]
    counts = [0] * len(opened)
    start = threading.Barrier(len(opened))
    for one in opened:
        one.open()

    def write(me: int) -> None:
        start.wait(60)
        while max(counts) < 1_000:
            opened[me].insert([make_row()])
            counts[me] += 1

    with ThreadPoolExecutor(len(opened)) as pool:
        list(pool.map(write, range(len(opened))))
    assert min(counts) > 300, counts
    for one in opened:
        one.close()


class Others:
    """A process that has the turn of a store's file and stands still, and one that is next."""

    def __init__(self, path: Path, store: SqliteStore) -> None:
        self.turn, self.next = (os.open(f"{path}-wal", os.O_RDWR) for _ in range(2))
        self._store = store

    def come(self) -> None:
        """Take both locks, once the store's own threads have released them."""
        for _ in range(6_000):
            with suppress(BlockingIOError):
                turn._be_next(self.next)
                fcntl.flock(self.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            SystemClock().sleep(0.01)
        raise AssertionError("the store keeps a lock")

    def go(self) -> None:
        turn._be_next_no_more(self.next)
        fcntl.flock(self.turn, fcntl.LOCK_UN)

    def await_follower(self) -> None:
        """Wait until the store waits, as the next or for that."""
        while not (self._store._database._turn._waiter or turn._is_another_next(self.next)):
            os.sched_yield()


@pytest.fixture
def others(path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Others]:
    monkeypatch.setattr(turn, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(turn, "_REST_S", 0.01)
    made = Others(path, store)
    made.come()
    yield made
    for descriptor in (made.turn, made.next):
        os.close(descriptor)


@pytest.mark.parametrize("has_next", [False, True])
def test_a_writer_goes_on_without_its_turn_where_another_keeps_it(
    store: SqliteStore, others: Others, has_next: bool
) -> None:
    if not has_next:
        turn._be_next_no_more(others.next)
    store.insert([make_row()])
    store.insert([make_row(), make_row()])
    assert len(store.read(ALL)) == 3
    others.go()
    others.come()


def test_one_wait_for_a_turn_is_left_however_much_is_written_meanwhile(
    store: SqliteStore, others: Others
) -> None:
    def used() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = used()
    store.insert([make_row()])
    left = used()
    assert left[1] == before[1] + 1
    for _ in range(20):
        store.insert([make_row()])
    assert used() == left
    others.go()
    while used()[1] > before[1]:
        os.sched_yield()
    store.insert([make_row()])
    assert store._database._turn._waiter is None


def test_who_has_waited_in_vain_for_a_turn_waits_again_once_it_was_free(
    store: SqliteStore, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn._be_next_no_more(others.next)
    store.insert([make_row()])
    monkeypatch.setattr(turn, "_PATIENCE_S", 60.0)
    for _ in range(20):
        store.insert([make_row()])
    others.go()
    store.insert([make_row()])
    others.come()
    turn._be_next_no_more(others.next)
    writer = threading.Thread(target=store.insert, args=([make_row()],))
    writer.start()
    others.await_follower()
    others.go()
    writer.join(60)
    assert len(store.read(ALL)) == 23


@pytest.mark.parametrize("has_next", [False, True])
def test_an_interrupt_when_a_turn_has_just_come_does_not_keep_it(
    store: SqliteStore, others: Others, monkeypatch: pytest.MonkeyPatch, has_next: bool
) -> None:
    monkeypatch.setattr(turn, "_PATIENCE_S", 60.0)
    if not has_next:
        turn._be_next_no_more(others.next)

    has_raised = threading.Event()

    def come_and_raise(*_: object) -> None:
        if not has_raised.is_set():
            has_raised.set()
            others.go()
            raise KeyboardInterrupt

    def interrupt() -> None:
        others.await_follower()
        # Once may be just before the thread begins to wait, where no signal wakes it.
        while not has_raised.wait(0.01):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, come_and_raise)
    interrupter = threading.Thread(target=interrupt, daemon=True)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        store.insert([make_row()])
    interrupter.join(60)
    signal.signal(signal.SIGUSR1, before)
    others.come()


def write_while_another_comes(store: SqliteStore, others: Others) -> None:
    """A write, in the middle of which another process begins to wait for its turn."""
    others.go()
    with store._database.transaction():
        turn._be_next(others.next)


def test_one_that_writes_on_keeps_its_turn_until_its_time_is_over(
    store: SqliteStore, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "_LINGER_S", 60.0)
    monkeypatch.setattr(turn, "_KEPT_US", 60_000_000)
    write_while_another_comes(store, others)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            fcntl.flock(others.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        store.insert([make_row()])
    monkeypatch.setattr(turn, "_KEPT_US", 0)
    store.insert([make_row()])
    fcntl.flock(others.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_one_that_writes_no_more_loses_its_turn_and_keeps_few_until_it_writes_on_again(
    store: SqliteStore, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_kept() -> bool:
        write_while_another_comes(store, others)
        is_locked = False
        try:
            fcntl.flock(others.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_locked = True
            fcntl.flock(others.turn, fcntl.LOCK_EX)
        return is_locked

    monkeypatch.setattr(turn, "_AGAIN_US", 20_000)
    monkeypatch.setattr(turn, "_LINGER_S", 0.02)
    kept = [is_kept() for _ in range(2 * turn._TRIED_EVERY)]
    assert kept[0]
    assert 1 <= kept[8:].count(True) <= 3, kept
    monkeypatch.setattr(turn, "_AGAIN_US", 60_000_000)
    monkeypatch.setattr(turn, "_LINGER_S", 60.0)
    monkeypatch.setattr(turn, "_KEPT_US", 60_000_000)
    for _ in range(turn._TRIED_EVERY):
        if not store._database._turn._is_here:
            write_while_another_comes(store, others)
    store.insert([make_row()])
    with pytest.raises(BlockingIOError):
        fcntl.flock(others.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_turn_that_is_kept_is_over_when_the_store_is_closed_or_its_process_forks(
    store: SqliteStore, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "_LINGER_S", 60.0)
    write_while_another_comes(store, others)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    fcntl.flock(others.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    write_while_another_comes(store, others)
    store.close()
    fcntl.flock(others.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_watches_a_turn_ends_once_none_is_kept(
    store: SqliteStore, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watchers() -> list[threading.Thread]:
        named = [one for one in threading.enumerate() if one.name == "shardq-turn-kept"]
        return [one for one in named if one not in of_others]

    of_others: list[threading.Thread] = []
    of_others = watchers()
    write_while_another_comes(store, others)
    for one in watchers():
        one.join(60)
    assert watchers() == []
    turn._be_next_no_more(others.next)
    store.insert([make_row()])
    write_while_another_comes(store, others)
    fcntl.flock(others.turn, fcntl.LOCK_EX)


def test_a_store_is_used_on_both_sides_of_a_fork(path: Path) -> None:
    script = """
        import os, sys, threading
        from pathlib import Path
        from shardq.model.ids import row_ids
        from shardq.model.message import Row
        from shardq.model.shard import Shard
        from shardq.stores.store import Slice
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
        from shardq.model.ids import row_ids
        from shardq.model.message import Row
        from shardq.model.shard import Shard
        from shardq.stores.store import Slice
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
    store = SqliteStore(path, machine_us=lambda: now_us, boot_time=lambda: BootTime(now_us, "here"))
    store.open()
    shards = [Shard("mail", minute, lane) for minute in (1, 900, 1_000) for lane in (0, 1)]
    held = Shard("mail", 2, 0)
    store.take(dict.fromkeys(shards), lock="l", holder="m", window=1, ttl_ms=1_000)
    store.take({held: None}, lock="l", holder="m", window=1, ttl_ms=60_000)
    now_us += 1_000_000
    store.note(LANES, ("mail",), {0: 1_000})
    unclean, none = LeaseState(None, "m", 1), LeaseState()
    assert list(store.lease_states(shards).values()) == [none, *[unclean] * 5]
    assert store.lease_states([held])[held].lock == "l"
    store.close()


def test_the_unclean_end_of_a_long_sealed_shard_is_remembered_while_it_has_a_row(
    path: Path,
) -> None:
    now_us = 1_000_000
    store = SqliteStore(path, machine_us=lambda: now_us, boot_time=lambda: BootTime(now_us, "here"))
    store.open()
    row = make_row()
    store.insert([row])
    store.take({row.shard: None}, lock="l", holder="m", window=1, ttl_ms=1_000)
    now_us += 1_000_000
    newest = row.shard.minute + 1_000
    for state in (LeaseState(None, "m", 1), LeaseState()):
        store.note(LANES, ("mail",), {row.shard.lane: newest})
        assert store.lease_states([row.shard])[row.shard] == state
        store.delete([row.position])
        newest += 1
    store.close()


def test_a_clean_release_leaves_no_row(store: SqliteStore, stranger: sqlite3.Connection) -> None:
    store.take({SHARD: None}, lock="l", holder="m", window=1, ttl_ms=1_000)
    store.release({SHARD: "l"})
    assert stranger.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_members_and_blocks_that_ran_out_leave_no_row(path: Path) -> None:
    now_us = 1_000_000
    store = SqliteStore(path, machine_us=lambda: now_us, boot_time=lambda: BootTime(now_us, "here"))
    store.open()
    store.note(MEMBERS, ("mail",), {"gone": "{}"}, 1_000)
    now_us += 1_000_000
    store.note(MEMBERS, ("mail",), {"here": "{}"}, 1_000)
    with store._database.reading() as reader:
        assert reader.execute("SELECT member FROM members").fetchall() == [("here",)]
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
    assert store.counters["batches"] == 1 + 2
