"""What the second schema records by lane, carried over to the ledger, which is by message."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardq import clock
from shardq.errors import SchemaMissing, StoreOverread
from shardq.model.ids import RowIds, birth_us, order_key, row_ids
from shardq.stores.cassandra import CassandraStore, cells
from shardq.stores.cassandra import schema as cassandra_schema
from shardq.stores.cassandra.former import SLICES
from shardq.stores.sqlite import SqliteStore
from shardq.stores.sqlite import schema as sqlite_schema
from shardq.stores.store import Entry, Mark, Store

OLD_SCHEMA = 2
LONG_S = 600
LAPSE_POLLS = 600

SQLITE_PUT = """
INSERT INTO history (queue, minute, lane, id, due, name, until_ms) VALUES (?, ?, ?, ?, ?, ?, ?)"""
SQLITE_END = """
INSERT INTO history (queue, minute, lane, id, fate, ended, attempt, member, until_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, minute, lane, id) DO UPDATE SET fate = excluded.fate, ended = excluded.ended,
    attempt = excluded.attempt, member = excluded.member,
    until_ms = max(until_ms, excluded.until_ms)"""
CASSANDRA_PUT = (
    "INSERT INTO {}.history (queue, minute, lane, id, due, name) VALUES (%s, %s, %s, %s, %s, %s) "
    "USING TIMESTAMP %s AND TTL %s"
)
CASSANDRA_END = (
    "INSERT INTO {}.history (queue, minute, lane, id, fate, ended, attempt, member) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) USING TIMESTAMP %s AND TTL %s"
)

BRIEF = "INSERT INTO {}.history (queue, minute, lane, id, due) VALUES (?, ?, ?, ?, ?) USING TTL 1"
PARTITION = "SELECT id FROM {}.history WHERE queue ="


class Former:
    """A store of the second schema, with the writes of a process of that release."""

    store: Store

    def put(self, mark: Mark, lane: int, ttl_s: int = LONG_S) -> None:
        raise NotImplementedError

    def end(self, mark: Mark, lane: int, ttl_s: int = LONG_S) -> None:
        raise NotImplementedError

    def init(self) -> None:
        self.store.open(create=True)

    def pass_seconds(self) -> None:
        """Let some of the shortest time to live pass, or a second."""

    def close(self) -> None:
        self.store.close()


class OfSqlite(Former):
    def __init__(self, path: Path) -> None:
        self.now_us = clock.machine_us()
        self.store = SqliteStore(path, machine_us=lambda: self.now_us)
        self._old = sqlite3.connect(path, isolation_level=None)
        for statements in sqlite_schema.MIGRATIONS[:OLD_SCHEMA]:
            for statement in statements:
                self._old.execute(statement)
        self._old.execute(f"PRAGMA application_id = {sqlite_schema.APPLICATION_ID}")
        self._old.execute(f"PRAGMA user_version = {OLD_SCHEMA}")

    def put(self, mark: Mark, lane: int, ttl_s: int = LONG_S) -> None:
        key = self._key(mark, lane)
        self._old.execute(SQLITE_PUT, (*key, mark.due_ms, mark.name, self._until_ms(ttl_s)))

    def end(self, mark: Mark, lane: int, ttl_s: int = LONG_S) -> None:
        key = self._key(mark, lane)
        self._old.execute(SQLITE_END, (*key, *mark[3:], self._until_ms(ttl_s)))

    def pass_seconds(self) -> None:
        self.now_us += 1_000_000

    def close(self) -> None:
        super().close()
        self._old.close()

    @staticmethod
    def _key(mark: Mark, lane: int) -> tuple[Any, ...]:
        queue, row_id = mark.entry
        return queue, birth_us(row_id) // 60_000_000, lane, order_key(row_id)

    def _until_ms(self, ttl_s: int) -> int:
        return self.now_us // 1_000 + ttl_s * 1_000


class OnCassandra(Former):
    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keyspace = f"shardq_{uuid.uuid4().hex[:12]}"
        self.url = re.sub(r"(://[^/?]+)(/[^?]*)?", rf"\1/{self.keyspace}", url)
        self.store = CassandraStore.from_url(self.url)
        every = cassandra_schema.migrations()
        with monkeypatch.context() as older:
            older.setattr(cassandra_schema, "migrations", lambda: every[:OLD_SCHEMA])
            self.store.open(create=True)

    def put(self, mark: Mark, lane: int, ttl_s: int = LONG_S) -> None:
        at_us = birth_us(mark.entry.id)
        self.ask(CASSANDRA_PUT, *self._key(mark, lane), mark.due_ms, mark.name, at_us, ttl_s)

    def end(self, mark: Mark, lane: int, ttl_s: int = LONG_S) -> None:
        born_us = birth_us(mark.entry.id)
        at_us = born_us - (mark.ended_ms * 1_000 - born_us)
        self.ask(CASSANDRA_END, *self._key(mark, lane), *mark[3:], at_us, ttl_s)

    def pass_seconds(self) -> None:
        clock.SystemClock(0).sleep(0.1)

    def close(self) -> None:
        self.ask("DROP KEYSPACE IF EXISTS {}")
        super().close()

    def ask(self, statement: str, *values: Any) -> list[Any]:
        return self.store._session.ask(statement.format(self.keyspace), values or None)

    @staticmethod
    def _key(mark: Mark, lane: int) -> tuple[Any, ...]:
        queue, row_id = mark.entry
        return queue, birth_us(row_id) // 60_000_000, lane, uuid.UUID(bytes=row_id)


@pytest.fixture
def on_cassandra(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnCassandra]:
    made = OnCassandra(cassandra_url, monkeypatch)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "cassandra"])
def former(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Former]:
    if request.param == "cassandra":
        yield request.getfixturevalue("on_cassandra")
        return
    made = OfSqlite(tmp_path / "jobs.db")
    yield made
    made.close()


def a_put(queue: str = "mail", name: str | None = None, minutes_ago: int = 0) -> Mark:
    born_us = clock.machine_us() - minutes_ago * 60_000_000
    row_ids._last_us = 0
    row_id = row_ids.next(born_us)
    return Mark(Entry(queue, row_id), born_us // 1_000 + 5, name)


def an_end(put: Mark, fate: str = "acked", after_ms: int = 9) -> Mark:
    ended_ms = birth_us(put.entry.id) // 1_000 + after_ms
    return Mark(put.entry, None, None, fate, ended_ms, 2, "me")


def both(put: Mark, end: Mark) -> Mark:
    return end._replace(due_ms=put.due_ms, name=put.name)


def test_what_is_recorded_by_lane_is_kept(former: Former) -> None:
    waiting, acked, moved, twice, of_others = (
        a_put(),
        a_put(name="order-7", minutes_ago=3_000),
        a_put(name="moved"),
        a_put(),
        a_put(queue="mail.dead"),
    )
    unrecorded = an_end(a_put(), "cancelled")
    for lane, put in enumerate((waiting, acked, moved, twice, of_others)):
        former.put(put, lane)
    former.end(unrecorded, 1)
    former.end(an_end(acked), 1)
    # These are in another lane by now.
    former.end(an_end(moved, "dead"), 7)
    former.end(an_end(twice, "acked", 90), 3)
    former.end(an_end(twice, "dead", 70), 8)
    expected = {
        waiting,
        both(acked, an_end(acked)),
        both(moved, an_end(moved, "dead")),
        both(twice, an_end(twice, "dead", 70)),
        unrecorded,
        of_others,
    }
    for _ in range(2):
        former.init()
        told = former.store.recorded([mark.entry for mark in expected])
        assert (len(told), set(told)) == (len(expected), expected)
        minute = waiting.entry.minute
        told = former.store.history("mail", range(minute - 5_000, minute + 5))
        assert {mark.entry for mark in told} == {mark.entry for mark in expected - {of_others}}
    # As before, the first end stands.
    former.store.record([an_end(acked, "purged", 10), an_end(moved, "acked", 8)], LONG_S * 1_000)
    told = former.store.recorded([acked.entry, moved.entry])
    assert {mark.fate for mark in told} == {"acked"}
    assert {mark.ended_ms for mark in told} == {
        an_end(acked).ended_ms,
        an_end(moved, after_ms=8).ended_ms,
    }


def test_what_is_carried_over_is_kept_no_longer_than_it_was_to_be(former: Former) -> None:
    brief, long = a_put(), a_put()
    former.put(brief, 0, ttl_s=2)
    former.put(long, 0)
    former.end(an_end(long), 0, ttl_s=2)
    former.init()
    for _ in range(LAPSE_POLLS):
        told = former.store.recorded([brief.entry, long.entry])
        if len(told) == 1:
            break
        former.pass_seconds()
    assert [mark.entry for mark in told] == [long.entry]


def test_what_an_older_process_records_later_is_carried_over_by_the_next_init(
    on_cassandra: OnCassandra,
) -> None:
    first, late = a_put(), a_put()
    on_cassandra.put(first, 2)
    on_cassandra.init()
    on_cassandra.put(late, 1)
    on_cassandra.end(an_end(first), 2)
    on_cassandra.end(an_end(late), 3)
    store = on_cassandra.store
    assert store.recorded([first.entry, late.entry]) == [first]
    on_cassandra.init()
    assert set(store.recorded([first.entry, late.entry])) == {
        both(first, an_end(first)),
        both(late, an_end(late)),
    }


@pytest.mark.nightly
def test_what_has_run_out_keeps_nobody_from_carrying_over_the_rest(
    on_cassandra: OnCassandra,
) -> None:
    kept = [a_put(minutes_ago=90) for _ in range(3)]
    first_us = birth_us(kept[0].entry.id) // 60_000_000 * 60_000_000
    for mark in kept:
        on_cassandra.put(mark, 0)
    session, ids = on_cassandra.store._session, RowIds()
    marks = [Mark(Entry("mail", ids.next(first_us + n * 400)), 5) for n in range(120_000)]
    keys = [on_cassandra._key(mark, 0) for mark in marks]
    writes = [
        (BRIEF, [key[0].encode(), cells.bigint(key[1]), cells.int_(0), mark.entry.id, bytes(8)])
        for key, mark in zip(keys, marks, strict=True)
    ]
    session.write(session.bundle(writes[n : n + 200]) for n in range(0, len(writes), 200))
    queue, minute, _, _ = on_cassandra._key(kept[0], 0)
    for _ in range(LAPSE_POLLS):
        try:
            on_cassandra.ask(f"{PARTITION} '{queue}' AND minute = {minute} AND lane = 0")
        except StoreOverread:
            break
        on_cassandra.pass_seconds()
    else:
        pytest.fail("what has run out can be read past")
    on_cassandra.init()
    assert set(on_cassandra.store.recorded([mark.entry for mark in kept])) == set(kept)


def test_a_migration_that_is_cut_short_is_resumed_where_it_stopped(
    on_cassandra: OnCassandra,
) -> None:
    marks = [a_put(minutes_ago=n) for n in range(400)]
    for n, mark in enumerate(marks):
        on_cassandra.put(mark, n % 4)
    told: list[int] = []

    def cut_short(_what: str, done: int, _of: int | None) -> None:
        told.append(done)
        if done == SLICES // 2:
            raise KeyboardInterrupt

    store = on_cassandra.store
    with pytest.raises(KeyboardInterrupt):
        store.open(create=True, on_progress=cut_short)
    # Nobody works with a part of it.
    with pytest.raises(SchemaMissing, match="shardq init"):
        store.open()
    carried = len(store.recorded([mark.entry for mark in marks]))
    assert 0 < carried < len(marks)
    store.open(create=True, on_progress=lambda _what, done, _of: told.append(done))
    store.open()
    assert told == [*range(1, SLICES + 1)]
    assert set(store.recorded([mark.entry for mark in marks])) == set(marks)
    # Once all was carried over, an older process may have recorded anywhere since.
    told.clear()
    with pytest.raises(KeyboardInterrupt):
        store.open(create=True, on_progress=cut_short)
    store.open(create=True, on_progress=lambda _what, done, _of: told.append(done))
    assert told == [*range(1, SLICES // 2 + 1), *range(1, SLICES + 1)]
