"""The contract of `Rows`: messages, written, read, moved and counted."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from shardq.model.ids import RowIds, row_ids
from shardq.model.message import BODY_BYTES_MAX, SERIAL_MAX, Row, note_of
from shardq.model.shard import FIRST_GROUP_LANE, MINUTE_MS, Position, Shard
from shardq.stores.store import (
    NEVER,
    RowMove,
    Slice,
    Tally,
    Total,
)
from shardq.stores.tables import LANES, PLACES, Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.stores.store import Store

from store.parts import (
    BASE_MINUTE,
    BASE_MS,
    BASE_US,
    FOREVER_MS,
    LONG_MS,
    everything,
    in_order,
    lease_states,
    make_row,
    read_back,
)

# Rows: what is written is read ------------------------------------------------------------------


def test_every_column_comes_back(store: Store, queue: str) -> None:
    row = make_row(
        queue,
        BASE_MS + 1_234,
        lane=7,
        body=b"\x00\xff body",
        headers='{"a":"b"}',
        attempt=3,
        first=row_ids.next(BASE_US),
        name="order-7",
        origin_ms=BASE_MS - 5,
        group="customer-9",
        claim="member-1",
        since_ms=BASE_MS + 4,
        key="1::order-7",
        not_before_ms=BASE_MS + 5_678,
        error="1700000000000:f:refused",
        note="7:8:x",
        priority=2,
        received="1700000000000:n",
    )
    store.insert([row])
    assert read_back(store, [row]) == [row]
    assert store.find([row.position]) == [row]


def test_what_comes_back_is_of_the_types_that_were_put(store: Store, queue: str) -> None:
    row = make_row(queue, first=row_ids.next(BASE_US), origin_ms=0, since_ms=0)
    store.insert([row])
    (found,) = read_back(store, [row])
    assert isinstance(found, Row)
    assert isinstance(found.shard, Shard)
    assert type(found.id) is bytes
    assert type(found.first) is bytes
    assert type(found.body) is bytes
    assert type(found.due_ms) is int
    assert (found.origin_ms, found.since_ms, found.wanted_ms) == (0, 0, 0)
    assert (type(found.origin_ms), type(found.since_ms)) == (int, int)


@pytest.mark.parametrize(
    "body",
    [b"", bytes(range(256)), b"\x00", random.Random(3).randbytes(BODY_BYTES_MAX)],
    ids=["empty", "every byte", "zero byte", "1 MiB"],
)
def test_any_body_comes_back(store: Store, queue: str, body: bytes) -> None:
    row = make_row(queue, body=body)
    store.insert([row])
    (found,) = read_back(store, [row])
    assert found.body == body


@pytest.mark.parametrize(
    "text",
    [
        "Ünïcödé",
        "注文-7",
        "🎈 with space",
        "a'b\"c;--",
        "%_\\",
        "👩\u200d🚀 ❤\ufe0f",
        "e\u0301" * 128,
    ],
)
def test_any_printable_text_comes_back(store: Store, queue: str, text: str) -> None:
    row = make_row(queue, group=text, name=text, claim=text, headers=f'{{"{text[0]}":"x"}}')
    store.insert([row])
    assert read_back(store, [row]) == [row]


def test_dues_from_the_epoch_to_the_far_future_come_back(store: Store, queue: str) -> None:
    rows = [make_row(queue, due) for due in (0, 1, BASE_MS, BASE_MS + 100 * 365 * 86_400_000)]
    store.insert(rows)
    assert read_back(store, rows) == rows


# Rows: order and bounds -------------------------------------------------------------------------


def test_rows_come_by_due_and_those_of_one_due_by_birth(store: Store, queue: str) -> None:
    # 10 minutes apart: the low 32 bits of the ids wrap in between, so the ids' byte order differs
    # from the order of their births.
    births = [RowIds().next(BASE_US + n * 600_000_000) for n in range(12)]
    assert sorted(births) != births
    rows = [make_row(queue, BASE_MS + due, row_id=birth) for due in (0, 5, 6) for birth in births]
    shuffled = random.Random(1).sample(rows, len(rows))
    for part in (shuffled[:20], shuffled[20:]):
        store.insert(part)
    assert read_back(store, rows) == rows


def test_after_is_left_out_and_until_is_read(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + due) for due in (0, 1, 2, 3, 4)]
    store.insert(rows)
    wanted = everything(rows)._replace(after_ms=BASE_MS + 1, until_ms=BASE_MS + 3)
    assert store.read(wanted) == rows[2:4]


def test_after_id_reads_on_within_one_due(store: Store, queue: str) -> None:
    births = [RowIds().next(BASE_US + n * 600_000_000) for n in range(5)]
    rows = [make_row(queue, BASE_MS + 1, row_id=birth) for birth in births]
    rows.append(make_row(queue, BASE_MS + 2))
    store.insert([make_row(queue, BASE_MS), *rows])
    wanted = everything(rows)._replace(after_ms=BASE_MS + 1, after_id=rows[1].id)
    assert store.read(wanted) == rows[2:]
    assert store.read(wanted._replace(until_ms=BASE_MS + 1)) == rows[2:5]
    assert store.read(wanted._replace(after_id=rows[4].id, until_ms=BASE_MS + 1)) == []
    assert store.read(wanted._replace(after_id=None)) == rows[5:]


def test_pages_joined_by_their_last_row_miss_and_repeat_nothing(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n // 9) for n in range(100)]
    store.insert(rows)
    pages, wanted = [], everything(rows)._replace(limit=7)
    while page := store.read(wanted):
        assert len(page) <= 7
        pages += page
        wanted = wanted._replace(after_ms=page[-1].due_ms, after_id=page[-1].id)
    assert pages == rows


def test_an_id_bound_holds_in_each_of_several_shards(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + due, lane) for lane in (0, 1) for due in (1, 1, 2)]
    store.insert(rows)
    wanted = everything(rows)._replace(after_ms=BASE_MS + 1, after_id=rows[0].id)
    # Lane 1's rows were born after lane 0's first, so that only that one is left out.
    assert store.read(wanted) == rows[1:]


def test_the_limit_is_each_shards_own(store: Store, queue: str) -> None:
    rows = [
        make_row(queue, BASE_MS + minute * MINUTE_MS + due, lane)
        for minute in (0, 1)
        for lane in (0, 3)
        for due in range(5)
    ]
    store.insert(rows)
    assert store.read(everything(rows)._replace(limit=2)) == [
        row for n, row in enumerate(rows) if n % 5 < 2
    ]


def test_rows_are_read_without_their_bodies(store: Store, queue: str) -> None:
    rows = [
        make_row(queue, BASE_MS, body=random.Random(3).randbytes(100_000)),
        make_row(queue, BASE_MS, 1, body=b"", headers='{"a":"b"}', name="n", group="g", claim="m"),
        make_row(queue, BASE_MS, 1, body=b"passed on", since_ms=BASE_MS - 7),
        make_row(queue, BASE_MS, 1, body=b"x" * BODY_BYTES_MAX, attempt=3, origin_ms=BASE_MS - 5),
    ]
    store.insert(rows)
    bare = [row._replace(body=b"") for row in rows]
    wanted = everything(rows)._replace(bodies=False)
    assert store.read(wanted) == bare
    assert store.read(wanted._replace(after_ms=BASE_MS, after_id=rows[0].id)) == bare[1:]
    assert store.read(*(wanted._replace(lanes=[lane]) for lane in (1, 0))) == bare
    assert {type(row.body) for row in store.read(wanted)} == {bytes}
    assert read_back(store, rows) == rows


def test_slices_are_read_together_each_within_its_bounds(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + due, lane) for lane in (0, 1, 2) for due in range(5)]
    store.insert(rows)
    whole = everything(rows)
    slices = [
        whole._replace(lanes=[2], after_ms=BASE_MS + 3),
        whole._replace(lanes=[0], until_ms=BASE_MS + 4, limit=1),
        whole._replace(lanes=[1], after_ms=BASE_MS + 1, after_id=rows[6].id, limit=2),
    ]
    assert store.read(*slices) == [rows[0], rows[7], rows[8], rows[14]]


def test_many_shards_are_read_in_order(store: Store, queue: str) -> None:
    rows = [
        make_row(queue, BASE_MS + minute * MINUTE_MS + due, lane)
        for minute in range(24)
        for lane in range(8)
        for due in range(2)
        if (minute + lane) % 3
    ]
    store.insert(random.Random(2).sample(rows, len(rows)))
    found = read_back(store, rows)
    assert [(row.shard, row.due_ms) for row in found] == [(row.shard, row.due_ms) for row in rows]
    assert set(found) == set(rows)


def test_only_the_asked_shards_are_read(store: Store, queue: str) -> None:
    rows = [
        make_row(queue, BASE_MS + minute * MINUTE_MS, lane)
        for minute in range(4)
        for lane in range(4)
    ]
    stranger = make_row(queue + "x", BASE_MS + MINUTE_MS, 1)
    store.insert([*rows, stranger])
    wanted = everything(rows)._replace(minutes=[BASE_MINUTE + 1, BASE_MINUTE + 3], lanes=[1, 2])
    assert store.read(wanted) == [rows[5], rows[6], rows[13], rows[14]]


def test_a_call_for_nothing_does_nothing(store: Store, queue: str) -> None:
    store.insert([])
    store.delete([])
    store.move([])
    store.release({})
    store.note(LANES, (queue,), {})
    assert store.find([]) == []
    assert store.occupied(queue, [], [0]) == []
    assert store.occupied(queue, [1], []) == []
    assert store.take({}, lock="l", holder="m", window=1, ttl_ms=LONG_MS) == {}
    assert store.renew({}, LONG_MS) == set()
    assert lease_states(store, []) == {}
    nowhere = Slice(queue, [], [], -1, FOREVER_MS, 10)
    assert store.read(nowhere) == []
    assert store.count(nowhere) == {}


# Rows: insert -----------------------------------------------------------------------------------


def test_inserting_again_changes_nothing(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n, n % 2) for n in range(4)]
    store.insert(rows)
    store.insert(rows[::-1])
    store.insert([rows[0]])
    store.insert([rows[1], rows[1]])
    assert read_back(store, rows) == in_order(rows)


def test_thousands_of_rows_over_hundreds_of_shards_are_all_there(store: Store, queue: str) -> None:
    rows = [
        make_row(queue, BASE_MS + shard * MINUTE_MS + n, shard % 4)
        for n in range(10)
        for shard in range(300)
    ]
    store.insert(row for row in rows)
    assert set(store.shards(queue)) == {row.shard for row in rows}
    assert set(read_back(store, rows)) == set(rows)


def test_a_long_stream_is_written_while_it_is_still_being_made(store: Store, queue: str) -> None:
    first = make_row(queue)
    seen_at_the_end = []

    def stream() -> Iterator[Row]:
        yield first
        for n in range(20_000):
            yield make_row(queue, BASE_MS + n % 50_000, n % 2)
        seen_at_the_end.extend(store.find([first.position]))

    store.insert(stream())
    assert seen_at_the_end == [first]
    total = sum(
        tally.rows
        for tally in store.count(Slice(queue, [BASE_MINUTE], [0, 1], -1, FOREVER_MS, 1)).values()
    )
    assert total == 20_001


def test_an_error_of_the_stream_comes_through(store: Store, queue: str) -> None:
    row = make_row(queue)

    def stream() -> Iterator[Row]:
        yield row
        raise LookupError("the file ended")

    with pytest.raises(LookupError, match="the file ended"):
        store.insert(stream())
    store.insert([row])
    assert read_back(store, [row]) == [row]


def test_rows_put_from_several_threads_are_all_there(store: Store, queue: str) -> None:
    rows = [[make_row(queue, BASE_MS + n, thread) for n in range(50)] for thread in range(8)]

    def put(mine: list[Row]) -> None:
        store.insert(mine[:-5])
        for row in mine[-5:]:
            store.insert([row])
        store.delete([mine[0].position])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, rows))
    kept = [row for mine in rows for row in mine[1:]]
    assert read_back(store, kept) == kept


def test_rows_of_a_group_that_are_due_at_once_are_stored_in_their_order(
    store: Store, queue: str
) -> None:
    ids = RowIds()
    first_ms = BASE_MS + MINUTE_MS - 3_000
    rows = [
        make_row(
            queue, due_ms, FIRST_GROUP_LANE, row_id=ids.next(due_ms * 1_000), group=f"customer-{n}"
        )
        for n, due_ms in enumerate(range(first_ms, first_ms + 6_000))
    ]
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(store.insert, rows)
        while not put.done():
            # Read the later minute first. If it has a row, all earlier rows were stored before.
            later = read_back(store, rows[3_000:])
            earlier = read_back(store, rows[:3_000])
            assert earlier == rows[: len(earlier)]
            assert not later or len(earlier) == 3_000
            assert later == rows[3_000 : 3_000 + len(later)]
    put.result()
    assert read_back(store, rows) == rows


# Rows: delete, find, move, attempts -------------------------------------------------------------


def test_a_delete_removes_its_rows_alone(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n // 3, lane=n % 2) for n in range(20)]
    store.insert(rows)
    store.delete(row.position for row in rows[::3])
    left = [row for n, row in enumerate(rows) if n % 3]
    assert read_back(store, rows) == in_order(left)


def test_deleting_again_or_what_was_never_there_changes_nothing(store: Store, queue: str) -> None:
    kept, gone, never = make_row(queue), make_row(queue), make_row(queue)
    store.insert([kept, gone])
    for _ in range(2):
        store.delete([gone.position, never.position])
        store.delete([gone.position])
    assert read_back(store, [kept]) == [kept]


def test_a_delete_needs_due_and_id_of_the_same_row(store: Store, queue: str) -> None:
    one, other = make_row(queue, BASE_MS), make_row(queue, BASE_MS + 1)
    store.insert([one, other])
    store.delete([one.position._replace(id=other.id), other.position._replace(due_ms=one.due_ms)])
    store.delete([one.position._replace(shard=Shard(queue, BASE_MINUTE, 1))])
    assert read_back(store, [one]) == [one, other]


def test_hundreds_of_rows_are_deleted_at_once(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n, lane=n % 3) for n in range(2_100)]
    store.insert(rows)
    store.delete([row.position for row in rows if row.due_ms % 7])
    left = [row for row in rows if row.due_ms % 7 == 0]
    assert read_back(store, rows) == in_order(left)


def test_find_returns_those_that_are_there(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n * 10_000, lane=n % 3) for n in range(500)]
    store.insert(rows)
    store.delete(row.position for row in rows[::5])
    found = store.find(row.position for row in rows)
    assert len(found) == 400
    assert set(found) == {row for n, row in enumerate(rows) if n % 5}


def test_find_needs_shard_due_and_id_of_the_same_row(store: Store, queue: str) -> None:
    one, other = make_row(queue, BASE_MS), make_row(queue, BASE_MS + 1)
    store.insert([one, other])
    crossed = [
        one.position._replace(id=other.id),
        other.position._replace(due_ms=one.due_ms),
        one.position._replace(shard=Shard(queue, BASE_MINUTE, 1)),
        one.position._replace(shard=Shard(queue + "x", BASE_MINUTE, 0)),
    ]
    assert store.find(crossed) == []
    assert store.find([*crossed, other.position]) == [other]


def test_find_looks_into_several_queues(store: Store, queue: str) -> None:
    rows = [make_row(queue), make_row(queue + ".dead")]
    store.insert(rows)
    assert set(store.find(row.position for row in rows)) == set(rows)


@pytest.mark.parametrize("later_ms", [1, MINUTE_MS], ids=["within its shard", "to another shard"])
def test_a_moved_row_is_at_its_new_place_alone(store: Store, queue: str, later_ms: int) -> None:
    old, other = make_row(queue, group="g"), make_row(queue)
    new = make_row(queue, BASE_MS + later_ms, group="g", first=old.id, attempt=1)
    store.insert([old, other])
    for _ in range(2):
        store.move([RowMove(old.position, new)])
        assert read_back(store, [old, new]) == [other, new]


def test_a_row_moves_into_another_queue(store: Store, queue: str) -> None:
    old, new = make_row(queue), make_row(queue + ".dead", name="x")
    store.insert([old])
    store.move([RowMove(old.position, new)])
    assert read_back(store, [old]) == []
    assert read_back(store, [new]) == [new]


@pytest.mark.parametrize("body_bytes", [30_000, 100_000, BODY_BYTES_MAX])
def test_rows_of_any_size_move(store: Store, queue: str, body_bytes: int) -> None:
    body = random.Random(body_bytes).randbytes(body_bytes)
    olds = [make_row(queue, body=body) for _ in range(3)]
    news = [make_row(queue, BASE_MS + MINUTE_MS, body=body) for _ in range(3)]
    store.insert(olds)
    store.move(RowMove(old.position, new) for old, new in zip(olds, news, strict=True))
    assert read_back(store, olds) == []
    assert read_back(store, news) == news


def test_hundreds_of_rows_move_at_once(store: Store, queue: str) -> None:
    olds = [make_row(queue, BASE_MS + n, lane=n % 2) for n in range(600)]
    news = [make_row(queue, BASE_MS + n * 3_000 + MINUTE_MS, lane=n % 4) for n in range(600)]
    store.insert(olds)
    store.move(RowMove(old.position, new) for old, new in zip(olds, news, strict=True))
    assert read_back(store, olds) == []
    assert set(read_back(store, news)) == set(news)


def test_a_move_with_a_note_writes_both_and_a_plain_one_beside_it(store: Store, queue: str) -> None:
    old, plain = make_row(queue, key="1::a"), make_row(queue)
    new = make_row(queue, BASE_MS + MINUTE_MS, key="1::a", first=old.id)
    elsewhere = make_row(queue, BASE_MS + 9)
    note = Note(PLACES, (queue, 0), ("a", "x"), ("there", BASE_US))
    store.insert([old, plain])
    store.move([RowMove(old.position, new, note), RowMove(plain.position, elsewhere)])
    assert set(read_back(store, [old, plain, new, elsewhere])) == {new, elsewhere}
    assert store.notes(PLACES, (queue, 0)) == {("a", "x"): ("there", BASE_US)}


def test_a_move_keeps_each_column_of_its_new_row(store: Store, queue: str) -> None:
    old, new = make_row(queue), make_row(queue, BASE_MS + 5, 3, since_ms=BASE_MS)
    small, large = make_row(queue), make_row(queue, BASE_MS + 6, 3, body=b"x" * 100_000)
    store.insert([old, small])
    store.move([RowMove(old.position, new), RowMove(small.position, large)])
    assert read_back(store, [old, new, small, large]) == [new, large]


# Rows: edits in place ----------------------------------------------------------------------------


def test_an_edit_changes_a_rows_state_in_place_and_nothing_else(store: Store, queue: str) -> None:
    row = make_row(queue, body=b"\x00kept", headers='{"a":"b"}', group="g", key="1::k", priority=3)
    other = make_row(queue)
    store.insert([row, other])
    waits = row._replace(serial=1, attempt=2, not_before_ms=BASE_MS + 9, error="7:f:\u00e9 \0 x")
    for edited in (
        waits,
        waits._replace(serial=2, claim="m", received="1700000000000"),
        waits._replace(serial=9, claim="m", attempt=1, error=None),
        row._replace(serial=SERIAL_MAX),
    ):
        store.edit([edited._replace(body=b"other", headers=None, group=None, priority=0)])
        assert read_back(store, [row]) == [edited, other]
        assert store.find([row.position]) == [edited]
        assert store.read(everything([row])._replace(bodies=False))[0] == edited._replace(body=b"")
        counts = (edited.claim is not None, edited.not_before_ms is not None)
        assert store.count(everything([row])) == {row.shard: Tally(2, *counts)}


def test_insert_edit_and_delete_end_in_nothing_in_every_order(store: Store, queue: str) -> None:
    row = make_row(queue)
    for order in permutations(["insert", "edit", "delete"]):
        if store.is_local and order.index("delete") < order.index("insert"):
            # No write is late there.
            continue
        row = make_row(queue, claim="m")
        for step in order:
            if step == "insert":
                store.insert([row])
            elif step == "edit":
                store.edit([row._replace(serial=SERIAL_MAX, attempt=1)])
            else:
                store.delete([row.position])
    assert_nothing_is_there(store, row)


def test_an_edit_of_an_absent_row_makes_no_row(store: Store, queue: str) -> None:
    never, gone = make_row(queue), make_row(queue)
    store.insert([gone])
    store.delete([gone.position])
    store.edit([one._replace(serial=1, attempt=1, claim="m") for one in (never, gone)])
    for row in (never, gone):
        assert_nothing_is_there(store, row)


def assert_nothing_is_there(store: Store, row: Row) -> None:
    queue, minute, lane = row.shard
    assert read_back(store, [row]) == []
    assert store.read(everything([row])._replace(bodies=False)) == []
    assert store.find([row.position]) == []
    assert store.count(everything([row])) == {}
    assert store.occupied(queue, [minute], [lane]) == []
    assert list(store.shards(queue)) == []


def test_the_edit_of_the_highest_serial_stands_in_whatever_order(store: Store, queue: str) -> None:
    rows = [make_row(queue) for _ in range(6)]
    store.insert(rows)
    for row, order in zip(rows, permutations([1, 2, 3]), strict=True):
        for serial in order:
            store.edit([row._replace(serial=serial, attempt=4 - serial, error=f"{serial}:f:x")])
    expected = [row._replace(serial=3, attempt=1, error="3:f:x") for row in rows]
    assert read_back(store, rows) == expected
    # The insert once more, too.
    store.insert(rows)
    assert read_back(store, rows) == expected


def test_of_two_edits_with_one_serial_one_stands_whole(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in range(20)]
    store.insert(rows)
    one = [row._replace(serial=4, attempt=1, claim="a") for row in rows]
    state = {"serial": 4, "attempt": 2, "not_before_ms": BASE_MS, "error": "2:s:b"}
    other = [row._replace(**state) for row in rows]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(store.edit, (one, other)))
    found = read_back(store, rows)
    store.edit(one)
    store.edit(other)
    assert read_back(store, rows) == found
    assert set(found) <= {*one, *other}


def test_many_rows_are_edited_at_once_near_and_far(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n, n % 2) for n in range(450)]
    rows += [make_row(queue, BASE_MS + n * MINUTE_MS, 2, claim="m") for n in range(1, 60)]
    store.insert(rows)
    error = "1:f:" + "\U0001f600" * 1_000
    edited = [
        row._replace(serial=1, attempt=n % 5, error=error if n % 3 else None, claim=None)
        for n, row in enumerate(rows)
    ]
    before = store.counters["batches"]
    store.edit(iter(edited))
    assert store.counters["batches"] - before < 60
    assert set(read_back(store, rows)) == set(edited)
    store.edit([])


# Rows: notes -------------------------------------------------------------------------------------


def test_a_note_is_read_and_found_as_rows_are_and_not_counted(store: Store, queue: str) -> None:
    lane = FIRST_GROUP_LANE + 1
    row = make_row(queue, BASE_MS, lane, group="g", claim="m")
    elsewhere = make_row(queue, BASE_MS - 5 * MINUTE_MS, lane, group="g")
    note = note_of(elsewhere.position, row.shard, BASE_MS + 1, row_ids.next(BASE_US))
    assert (note.is_note, note.noted, row.is_note) == (True, elsewhere.position, False)
    store.insert([row, note])
    assert read_back(store, [row]) == [row, note]
    bare = store.read(everything([row])._replace(bodies=False))
    assert bare == [row._replace(body=b""), note]
    assert store.find([note.position]) == [note]
    assert store.count(everything([row])) == {row.shard: Tally(1, 1)}
    store.delete([row.position])
    assert store.count(everything([row])) == {}
    # Its owner is to meet it: so a minute with a note alone is not passed.
    assert store.occupied(queue, [BASE_MINUTE], [lane]) == [row.shard]
    assert list(store.shards(queue)) == [row.shard]
    store.delete([note.position])
    assert_nothing_is_there(store, row)


def test_a_note_behind_the_stub_of_a_late_edit_is_seen(store: Store, queue: str) -> None:
    gone = make_row(queue)
    note = note_of(gone.position, gone.shard, BASE_MS + 1, row_ids.next(BASE_US))
    store.insert([gone, note])
    store.delete([gone.position])
    never = make_row(queue, BASE_MS - 1)
    store.edit([one._replace(serial=1, attempt=1) for one in (gone, never)])
    assert read_back(store, [gone]) == [note]
    assert store.occupied(queue, [BASE_MINUTE], [0]) == [gone.shard]


# Rows: counting and looking round ---------------------------------------------------------------


def test_count_tells_rows_and_claims_of_each_shard(store: Store, queue: str) -> None:
    rows = [
        make_row(queue, BASE_MS + n, lane, claim="m" if n < lane else None)
        for lane in (0, 1, 3)
        for n in range(4)
    ]
    store.insert(rows)
    counted = store.count(everything(rows)._replace(limit=1, lanes=[0, 1, 2, 3]))
    assert counted == {
        Shard(queue, BASE_MINUTE, lane): Tally(rows=4, claims=lane) for lane in (0, 1, 3)
    }
    assert all(isinstance(tally, Tally) for tally in counted.values())


def test_count_keeps_to_the_bounds_of_its_slice(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in (0, 1, 2, 2, 3)]
    store.insert(rows)
    shard = rows[0].shard
    wanted = everything(rows)._replace(after_ms=BASE_MS, until_ms=BASE_MS + 2)
    assert store.count(wanted) == {shard: Tally(3, 0)}
    assert store.count(wanted._replace(after_ms=BASE_MS + 2, after_id=rows[2].id)) == {
        shard: Tally(1, 0)
    }
    assert store.count(wanted._replace(after_ms=BASE_MS + 9)) == {}


def test_occupied_finds_the_shards_with_rows_in_order(store: Store, queue: str) -> None:
    minutes = range(BASE_MINUTE, BASE_MINUTE + 1_440)
    rows = [
        make_row(queue, BASE_MS + minute * MINUTE_MS + n, lane)
        for minute, lane in ((1_439, 0), (7, 2), (7, 1), (0, 3), (700, 0))
        for n in range(3)
    ]
    store.insert([*rows, make_row(queue, BASE_MS + 1_440 * MINUTE_MS), make_row(queue, BASE_MS, 4)])
    expected = [(0, 3), (7, 1), (7, 2), (700, 0), (1_439, 0)]
    assert store.occupied(queue, minutes, range(4)) == [
        Shard(queue, BASE_MINUTE + minute, lane) for minute, lane in expected
    ]
    assert store.occupied(queue, [BASE_MINUTE + 7, BASE_MINUTE + 700], [0, 2]) == [
        Shard(queue, BASE_MINUTE + 7, 2),
        Shard(queue, BASE_MINUTE + 700, 0),
    ]


def test_occupied_queues_names_the_queues_with_a_row_in_their_slice(
    store: Store, queue: str
) -> None:
    late, other, empty = (f"{queue}-{name}" for name in ("late", "other", "empty"))
    store.insert([make_row(queue), make_row(late, BASE_MS + 9), make_row(other, lane=3)])
    wanted = [
        Slice(name, [BASE_MINUTE], lanes, BASE_MS - 1, BASE_MS + 5, limit=1)
        for name, lanes in ((queue, [0, 1]), (late, [0]), (other, [0, 1]), (empty, [0]))
    ]
    assert store.occupied_queues(wanted) == {queue}
    assert store.occupied_queues([wanted[2]._replace(lanes=[3])]) == {other}
    next_one = wanted[0]._replace(minutes=[BASE_MINUTE + 1])
    assert store.occupied_queues([next_one, wanted[2]._replace(lanes=[3])]) == {other}
    store.delete([row.position for row in store.read(wanted[0])])
    assert store.occupied_queues(wanted) == set()


def test_an_index_tells_the_next_minute_with_rows_in_whatever_lane(
    store: Store, queue: str, kind: str
) -> None:
    assert store.is_local == (kind in ("memory", "file"))
    if not store.is_local:
        assert store.next_minute(queue, 0) is None
        return
    assert store.next_minute(queue, 0) == NEVER
    store.insert(make_row(queue, BASE_MS + n * MINUTE_MS, lane) for n, lane in ((700, 3), (7, 1)))
    store.insert([make_row(f"{queue}-2"), make_row(f"{queue[:-1]}")])
    found = [store.next_minute(queue, BASE_MINUTE + n) for n in (-9, 7, 8, 700, 701)]
    assert found == [BASE_MINUTE + n for n in (7, 7, 700, 700)] + [NEVER]
    assert store.next_minute(queue, NEVER) == NEVER


def test_all_rows_of_a_slice_are_counted_together_where_an_index_does_so(
    store: Store, queue: str
) -> None:
    rows = [make_row(queue, BASE_MS + n * MINUTE_MS, n % 2) for n in range(10)]
    claimed = make_row(queue, BASE_MS + 5, claim="m", not_before_ms=BASE_MS + 9)
    store.insert([*rows, claimed, make_row(queue, BASE_MS, 7), make_row(f"{queue}-2")])
    all_of_it = Slice(queue, range(NEVER), [0, 1], -1, FOREVER_MS, 0)
    if not store.is_local:
        assert store.total(all_of_it) is None
        assert store.rows_in(queue, range(NEVER), 5) is None
        return
    assert store.total(all_of_it) == Total(Tally(11, 1, 1))
    assert store.total(all_of_it._replace(lanes=[1])) == Total(Tally(5, 0, 0))
    due = all_of_it._replace(after_ms=BASE_MS, until_ms=BASE_MS + 3 * MINUTE_MS)
    assert store.total(due) == Total(Tally(4, 1, 1))
    minutes = range(BASE_MINUTE + 1, BASE_MINUTE + 3)
    assert store.total(all_of_it._replace(minutes=minutes)) == Total(Tally(2, 0, 0))
    # The count ends with the whole minute before the one in which the limit is reached.
    assert store.total(all_of_it._replace(limit=5)) == Total(Tally(4, 1, 1), BASE_MINUTE + 3)
    assert store.total(all_of_it._replace(limit=1)) == Total(Tally(0, 0, 0), BASE_MINUTE)
    assert store.total(all_of_it._replace(limit=50)) == Total(Tally(11, 1, 1))
    assert [store.rows_in(queue, range(NEVER), most) for most in (5, 12, 50)] == [6, 12, 12]
    assert store.rows_in(queue, minutes, 50) == 2
    each = store.count(all_of_it._replace(minutes=range(NEVER)))
    assert each == store.count(all_of_it._replace(minutes=[BASE_MINUTE + n for n in range(10)]))
    assert sum(one.rows for one in each.values()) == 11


def test_a_row_is_sought_by_the_ids_of_its_message(store: Store, queue: str) -> None:
    first = row_ids.next(BASE_US)
    moved = make_row(queue, BASE_MS + 90 * MINUTE_MS, 3, first=first)
    named = make_row(queue, BASE_MS, 1, name="order-7", body=b"large")
    plain = make_row(queue, BASE_MS + 5, 0)
    store.insert([moved, named, plain, make_row(f"{queue}-2", name="order-7")])
    if not store.is_local:
        assert store.seek(queue, plain.id, "x") is None
        return
    assert store.seek(queue, first, "x") == [moved._replace(body=b"")]
    assert store.seek(queue, plain.id, "x") == [plain._replace(body=b"")]
    assert store.seek(queue, None, "order-7") == [named._replace(body=b"")]
    assert store.seek(queue, row_ids.next(BASE_US), "order-8") == []


def test_an_emptied_shard_is_occupied_no_more(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in range(30)]
    store.insert(rows)
    store.delete(row.position for row in rows)
    assert store.occupied(queue, [BASE_MINUTE], [0]) == []
    assert list(store.shards(queue)) == []
    assert store.count(everything(rows)) == {}


def test_shards_finds_the_near_and_the_far_once_each(store: Store, queue: str) -> None:
    rows = [
        make_row(queue, due, lane)
        for due in (0, BASE_MS, BASE_MS + 90 * 365 * 86_400_000)
        for lane in (0, 255)
        for _ in range(3)
    ]
    store.insert([*rows, make_row(queue + "x"), make_row(queue + ".dead")])
    found = list(store.shards(queue))
    assert len(found) == 6
    assert set(found) == {row.shard for row in rows}


def test_shards_may_be_emptied_while_they_are_listed(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n * MINUTE_MS) for n in range(40)]
    store.insert(rows)
    by_shard = {row.shard: row for row in rows}
    listed = []
    for shard in store.shards(queue):
        listed.append(shard)
        store.delete([by_shard[shard].position])
    assert sorted(listed) == sorted(by_shard)
    assert list(store.shards(queue)) == []


def test_a_position_is_all_that_names_a_row(store: Store, queue: str) -> None:
    row_id = row_ids.next(BASE_US)
    twins = [make_row(queue, BASE_MS, 0, row_id=row_id), make_row(queue, BASE_MS, 1, row_id=row_id)]
    store.insert(twins)
    store.delete([Position(twins[0].shard, BASE_MS, row_id)])
    assert read_back(store, twins) == [twins[1]]


def test_reads_are_counted_by_their_purpose(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in range(3)]
    store.insert(rows)
    before = store.counters.copy()
    for _ in range(2):
        store.read(everything(rows)._replace(purpose="sweep 5 s"))
    store.read(everything(rows)._replace(purpose="poll", limit=1))
    counted = store.counters - before
    assert counted["reads:sweep 5 s"] >= 2
    assert counted["rows_read:sweep 5 s"] == 6
    assert counted["rows_read:poll"] == 1
    assert counted["rows_read"] == 7
    assert counted["reads"] >= 3
