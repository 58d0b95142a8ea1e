"""Reading all rows of shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardq.inspection import scan
from shardq.model.ids import row_ids
from shardq.model.message import Row, note_of
from shardq.model.shard import Layout, Shard
from shardq.stores.sqlite import SqliteStore

LAYOUT = Layout("mail")


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    opened = SqliteStore()
    opened.open()
    yield opened
    opened.close()


def rows_in(minute: int, lane: int, count: int, body: bytes = b"x") -> list[Row]:
    """Many of them due at once, so that pages end between rows of the same due."""
    start_ms = LAYOUT.start_ms(minute)
    shard = Shard("mail", minute, lane)
    return [Row(shard, start_ms + n // 50, row_ids.next(n), body) for n in range(count)]


@pytest.mark.parametrize("together_max", [1, 3, 64])
def test_all_rows_of_the_shards_come_once(store: SqliteStore, together_max: int) -> None:
    wanted = [*rows_in(7, 0, 2_500), *rows_in(7, 1, 1), *rows_in(9, 3, 1_200), *rows_in(8, 2, 10)]
    notes = [
        note_of(row.position, row.shard, row.due_ms, row_ids.next(number))
        for number, row in enumerate(wanted[::7])
    ]
    store.insert([*wanted, *rows_in(10, 0, 5), *notes])
    shards = list(dict.fromkeys(row.shard for row in wanted))
    pages = scan.pages(store, LAYOUT, shards, purpose="test", together_max=together_max)
    found = [row for page in pages for row in page]
    assert len(found) == len(wanted)
    assert set(found) == set(wanted)
    if together_max == 1:
        assert found == wanted


def test_rows_come_without_their_bodies_where_nobody_needs_them(store: SqliteStore) -> None:
    wanted = [*rows_in(7, 0, 2_500, bytes(2_000)), *rows_in(8, 1, 3, bytes(2_000))]
    store.insert(wanted)
    shards = sorted({row.shard for row in wanted})
    pages = list(scan.pages(store, LAYOUT, shards, purpose="test", bodies=False))
    assert [row for page in pages for row in page] == [row._replace(body=b"") for row in wanted]


def test_pages_of_large_rows_shrink(store: SqliteStore) -> None:
    bodies = 400_000
    wanted = [*rows_in(7, 0, 40, bytes(bodies)), *rows_in(8, 0, 40, bytes(bodies))]
    store.insert(wanted)
    shards = sorted({row.shard for row in wanted})
    sizes = [
        sum(len(row.body) for row in page)
        for page in scan.pages(store, LAYOUT, shards, purpose="test")
    ]
    assert sum(sizes) == len(wanted) * bodies
    # Ten rows at first, at most twice as many as the last page had room for later.
    assert max(sizes) <= 20 * bodies
    assert len(sizes) > 5
