"""The contract of `indexed`: every verb that places a row names its shard there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardq import clock
from shardq.model.ids import row_ids
from shardq.model.settings import FIRST_LANE_MAX
from shardq.stores.store import NEVER, Entry, Mark, RowMove, WriteOnce
from shardq.stores.tables import PLACES, STATS, Change, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.stores.store import Store

from store.parts import BASE_MINUTE, BASE_MS, LONG_MS, MINUTE_MS, make_row

LARGE = b"x" * 60_000
"""More than a batch across partitions takes."""


def indexed(store: Store, queue: str, minutes: range = range(NEVER)) -> list[Shard]:
    return list(store.indexed(queue, minutes))


def scattered(queue: str, count: int = 50, **columns: object) -> list[Row]:
    """Rows of as many shards, over hours and months."""
    return [
        make_row(queue, BASE_MS + n * n * MINUTE_MS * 37, n % 5, **columns) for n in range(count)
    ]


def shards_of(rows: Iterable[Row]) -> list[Shard]:
    return sorted({row.shard for row in rows})


def moves_of(old: list[Row], **columns: object) -> list[RowMove]:
    """Moves to a shard each, none of which has a row."""
    return [
        RowMove(row.position, make_row(row.shard.queue, row.due_ms + 90_000_000, 7, **columns))
        for row in old
    ]


# What is named ------------------------------------------------------------------------------------


def test_the_shards_with_rows_are_named_in_order(store: Store, queue: str) -> None:
    rows = scattered(queue)
    store.insert([*rows[::-1], make_row(queue + "x", BASE_MS, 3)])
    assert indexed(store, queue) == shards_of(rows)


def test_the_shards_of_some_minutes_are_named(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n * MINUTE_MS, n % 2) for n in range(4_000)]
    store.insert(rows)
    for start, stop in ((0, 5), (1_439, 1_442), (2_000, 2_000), (3_998, 9_000), (-9, 1)):
        minutes = range(BASE_MINUTE + start, BASE_MINUTE + stop)
        wanted = [row.shard for row in rows if row.shard.minute in minutes]
        assert indexed(store, queue, minutes) == wanted


def test_shards_of_any_number_are_named(store: Store, queue: str) -> None:
    rows = [
        make_row(queue, minute * MINUTE_MS, lane)
        for minute in (0, 1, 1_439, 1_440, (1 << 42) - 1)
        for lane in (0, FIRST_LANE_MAX + 4_096)
    ]
    store.insert(rows)
    assert indexed(store, queue) == shards_of(rows)


def test_an_empty_queue_has_no_shards(store: Store, queue: str) -> None:
    assert indexed(store, queue) == []
    store.mend_index()
    assert indexed(store, queue, range(0)) == []


# By which verb a row is placed --------------------------------------------------------------------


def by_insert(store: Store, queue: str) -> list[Row]:
    rows = [*scattered(queue), make_row(queue, BASE_MS, 9, body=LARGE)]
    rows += [make_row(queue, BASE_MS + n, 8) for n in range(250)]
    store.insert(rows)
    return rows


def by_single_inserts(store: Store, queue: str) -> list[Row]:
    rows = [*scattered(queue, 5), make_row(queue, BASE_MS, 9, body=LARGE)]
    for row in rows:
        store.insert((row,))
    return rows


def by_a_line(store: Store, queue: str) -> list[Row]:
    rows, line = scattered(queue), Entry(f"{queue}#runs", row_ids.next(BASE_MS * 1_000))
    store.insert(rows, WriteOnce(Mark(line, BASE_MS, "line"), LONG_MS))
    return rows


def by_moves(store: Store, queue: str) -> list[Row]:
    old = scattered(queue, 120)
    store.insert(old)
    moves = moves_of(old)
    store.move(moves)
    return [move.new for move in moves]


def by_large_moves(store: Store, queue: str) -> list[Row]:
    old = scattered(queue, 3)
    store.insert(old)
    moves = moves_of(old, body=LARGE)
    store.move(moves)
    return [move.new for move in moves]


def by_a_burial(store: Store, queue: str) -> list[Row]:
    old = make_row(queue)
    store.insert([old])
    dead = make_row(f"{queue}.dead", BASE_MS + 1)
    store.move([RowMove(old.position, dead)])
    return [dead]


def by_noted_moves(store: Store, queue: str) -> list[Row]:
    old = scattered(queue, 3)
    store.insert(old)
    moves = [
        move._replace(
            note=Note(PLACES, (queue, 1), (f"key-{n}", "1.1"), ("somewhere", n)),
        )
        for n, move in enumerate(moves_of(old))
    ]
    store.move(moves)
    return [move.new for move in moves]


def by_moves_of_old_rows_that_are_there(store: Store, queue: str) -> list[Row]:
    old = scattered(queue, 20)
    store.insert(old)
    moves = moves_of(old)
    store.move(moves, {}, LONG_MS)
    return [move.new for move in moves]


def by_a_change_of_records(store: Store, queue: str) -> list[Row]:
    row, other = scattered(queue, 2)
    new = {"totals": "{}"}
    changes = [
        Change((queue,), (1, name), {"totals": None}, new, insert=(one,))
        for name, one in (("a", row), ("b", other))
    ]
    assert store.write_records(STATS, changes) == {}
    return [row, other]


VERBS = [
    by_insert,
    by_single_inserts,
    by_a_line,
    by_moves,
    by_large_moves,
    by_a_burial,
    by_noted_moves,
    by_moves_of_old_rows_that_are_there,
    by_a_change_of_records,
]


@pytest.mark.parametrize("place", VERBS, ids=[verb.__name__ for verb in VERBS])
def test_where_a_row_is_placed_is_named_whatever_places_it(
    store: Store, queue: str, place: Callable[[Store, str], list[Row]]
) -> None:
    rows = place(store, queue)
    assert len(store.find([row.position for row in rows])) == len(rows)
    for name in {row.shard.queue for row in rows}:
        assert {row.shard for row in rows if row.shard.queue == name} <= set(indexed(store, name))


def test_what_an_iterable_gave_before_it_failed_is_named(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n % 3 * MINUTE_MS + n) for n in range(1_000)]

    def stream() -> Iterator[Row]:
        yield from rows
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        store.insert(stream())
    found = store.find([row.position for row in rows])
    assert {row.shard for row in found} <= set(indexed(store, queue))


# Mending ------------------------------------------------------------------------------------------


def rows_of_now(queue: str, count: int) -> list[Row]:
    """Rows that are born now: what is taken out of an index hides notes of earlier births."""
    now_us = clock.machine_us()
    return [
        make_row(queue, BASE_MS + n * MINUTE_MS, row_id=row_ids.next(now_us)) for n in range(count)
    ]


def test_an_empty_shard_is_taken_out_and_named_again_with_its_next_row(
    store: Store, queue: str
) -> None:
    kept, ended = rows_of_now(queue, 2)
    store.insert([kept, ended])
    store.delete([ended.position])
    store.mend_index(gone=[ended.shard])
    assert indexed(store, queue) == [kept.shard]
    again = rows_of_now(queue, 2)[1]
    store.insert([again])
    assert indexed(store, queue) == [kept.shard, again.shard]


def test_what_an_index_has_lost_is_put_back(store: Store, queue: str) -> None:
    rows = rows_of_now(queue, 3_000)
    store.insert(rows)
    store.mend_index(gone=[row.shard for row in rows[:2_500]])
    store.mend_index(there=store.shards(queue))
    assert indexed(store, queue) == shards_of(rows)
