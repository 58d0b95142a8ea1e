"""The contract of `shardq.stores.store`: one suite for SQLite in memory and in a file, for
Cassandra, and for the tables of a simulation.

On all but Cassandra a test moves the store's clock by hand. Cassandra keeps its own time, so there
the few tests of a time to live use a short one and ask the store, within a bound, until it has run
out. A fresh queue for each test keeps them apart.
"""

from __future__ import annotations

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pytest

from shardq import clock
from shardq.errors import StoreCorrupt, StoreError
from shardq.model.ids import RowIds, fixed, row_ids
from shardq.model.message import BODY_BYTES_MAX, Row
from shardq.model.shard import MINUTE_MS, Position, Shard
from shardq.stores import store_of
from shardq.stores.sqlite import SqliteStore
from shardq.stores.store import (
    MINUTE_US,
    NEVER,
    Entry,
    LeaseState,
    Mark,
    Move,
    QueueRecord,
    Slice,
    Tally,
)
from shardq.testing.simulation.cells import Cells
from shardq.testing.simulation.client import SimulatedStore
from shardq.testing.simulation.network import Network, Weather
from shardq.testing.simulation.scheduler import Process, Scheduler
from shardq.testing.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardq.stores.store import Store

BASE_MINUTE = 29_000_000
BASE_MS = BASE_MINUTE * MINUTE_MS
BASE_US = BASE_MS * 1_000
FOREVER_MS = 1 << 48
TTL_MS = 1_000
"""The shortest time to live that Cassandra has."""
LONG_MS = 600_000
LAPSE_POLLS = 600
LAPSE_POLL_SECONDS = 0.1


@dataclass
class Hands:
    """The hands of SQLite's clock, which a test moves."""

    us: int = BASE_US

    def __call__(self) -> int:
        return self.us

    def boot_time(self) -> clock.BootTime:
        return clock.BootTime(self.us - BASE_US, "test")


class Lapse(Protocol):
    """Lets a time to live run out, and checks that what it kept is then gone."""

    def __call__(self, ttl_ms: int, gone: Callable[[], bool]) -> None: ...


@pytest.fixture(params=["memory", "file", "simulated", "cassandra"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture(scope="module")
def cassandra_store(cassandra_url: str) -> Iterator[Store]:
    store = store_of(cassandra_url)
    store.init()
    store.open()
    yield store
    store.close()


@pytest.fixture
def store(
    kind: str, hands: Hands, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Store]:
    if kind == "cassandra":
        yield request.getfixturevalue("cassandra_store")
        return
    if kind == "simulated":
        yield SimulatedStore(Network(Scheduler(BASE_US), Cells(hands), Weather()))
        return
    path = None if kind == "memory" else tmp_path / "jobs.db"
    embedded = SqliteStore(path, machine_us=hands, boot_time=hands.boot_time)
    embedded.init()
    embedded.open()
    yield embedded
    embedded.close()


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def lapse(kind: str, hands: Hands) -> Lapse:
    def by_hand(ttl_ms: int, gone: Callable[[], bool]) -> None:
        hands.us += ttl_ms * 1_000 - 1
        assert not gone(), "gone a microsecond before its time"
        hands.us += 1
        assert gone()

    def for_real(ttl_ms: int, gone: Callable[[], bool]) -> None:
        polls = LAPSE_POLLS + round(ttl_ms / 1_000 / LAPSE_POLL_SECONDS)
        for _ in range(polls):
            if gone():
                return
            clock.SystemClock(0).sleep(LAPSE_POLL_SECONDS)
        pytest.fail(f"still there after {polls * LAPSE_POLL_SECONDS:.0f} s")

    return for_real if kind == "cassandra" else by_hand


def make_row(
    queue: str, due_ms: int = BASE_MS, lane: int = 0, *, row_id: bytes | None = None, **columns
) -> Row:
    """A row in the shard of its due, with a fresh id unless one is given."""
    shard = Shard(queue, due_ms // MINUTE_MS, lane)
    columns.setdefault("body", b"body")
    return Row(shard, due_ms, row_id or row_ids.next(BASE_US), **columns)


def everything(rows: list[Row]) -> Slice:
    """The slice that covers all shards of the rows and all dues."""
    return Slice(
        queue=rows[0].shard.queue,
        minutes=sorted({row.shard.minute for row in rows}),
        lanes=sorted({row.shard.lane for row in rows}),
        after_ms=-1,
        until_ms=FOREVER_MS,
        limit=1_000_000,
    )


def read_back(store: Store, rows: list[Row]) -> list[Row]:
    return store.read(everything(rows))


def in_order(rows: list[Row]) -> list[Row]:
    """Rows by (minute, lane), then (due, id); their ids come from one generator, oldest first."""
    return sorted(rows, key=lambda row: (row.shard.minute, row.shard.lane, row.order))


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
    )
    store.insert([row])
    assert read_back(store, [row]) == [row]
    assert store.find([row.position]) == [row]


def test_an_unset_column_comes_back_as_none(store: Store, queue: str) -> None:
    row = make_row(queue)
    store.insert([row])
    (found,) = read_back(store, [row])
    assert found == row
    assert (found.headers, found.first, found.name) == (None, None, None)
    assert (found.origin_ms, found.group, found.claim) == (None, None, None)
    assert (found.since_ms, found.wanted_ms) == (None, BASE_MS)
    assert found.attempt == 0


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


def test_bodies_of_1_mib_in_one_call_all_come_back(store: Store, queue: str) -> None:
    rows = [make_row(queue, body=bytes([n]) * BODY_BYTES_MAX) for n in range(6)]
    store.insert(rows)
    assert [row.body[:1] for row in read_back(store, rows)] == [bytes([n]) for n in range(6)]


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
    # 10 minutes apart: the low 32 bits of the ids wrap in between, so raw byte order is another.
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


def test_after_minus_one_reads_a_row_due_at_the_epoch(store: Store, queue: str) -> None:
    row = make_row(queue, 0)
    store.insert([row])
    assert store.read(everything([row])._replace(until_ms=0)) == [row]
    assert store.read(everything([row])._replace(after_ms=0)) == []


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


def test_an_attempt_of_an_absent_row_is_no_row_without_a_body(store: Store, queue: str) -> None:
    row, gone = make_row(queue), make_row(queue)
    store.insert([row, gone])
    store.delete([gone.position])
    store.record_attempt(gone.position, 1)
    assert store.read(everything([row])._replace(bodies=False)) == [row._replace(body=b"")]


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


def test_nothing_is_read_where_nothing_is(store: Store, queue: str) -> None:
    row = make_row(queue)
    wanted = everything([row])
    assert store.read(wanted) == []
    assert store.find([row.position]) == []
    assert store.count(wanted) == {}
    assert store.occupied(queue, [BASE_MINUTE], [0]) == []
    assert list(store.shards(queue)) == []


def test_a_call_for_nothing_does_nothing(store: Store, queue: str) -> None:
    store.insert([])
    store.delete([])
    store.move([])
    store.release({})
    store.seal(queue, {})
    assert store.find([]) == []
    assert store.occupied(queue, [], [0]) == []
    assert store.occupied(queue, [1], []) == []
    assert store.take({}, lock="l", holder="m", window=1, ttl_ms=LONG_MS) == {}
    assert store.renew({}, LONG_MS) == set()
    assert store.leases([]) == {}
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
        store.move([Move(old.position, new)])
        assert read_back(store, [old, new]) == [other, new]


def test_a_row_moves_into_another_queue(store: Store, queue: str) -> None:
    old, new = make_row(queue), make_row(queue + ".dead", name="x")
    store.insert([old])
    store.move([Move(old.position, new)])
    assert read_back(store, [old]) == []
    assert read_back(store, [new]) == [new]


@pytest.mark.parametrize("body_bytes", [30_000, 100_000, BODY_BYTES_MAX])
def test_rows_of_any_size_move(store: Store, queue: str, body_bytes: int) -> None:
    body = random.Random(body_bytes).randbytes(body_bytes)
    olds = [make_row(queue, body=body) for _ in range(3)]
    news = [make_row(queue, BASE_MS + MINUTE_MS, body=body) for _ in range(3)]
    store.insert(olds)
    store.move(Move(old.position, new) for old, new in zip(olds, news, strict=True))
    assert read_back(store, olds) == []
    assert read_back(store, news) == news


def test_hundreds_of_rows_move_at_once(store: Store, queue: str) -> None:
    olds = [make_row(queue, BASE_MS + n, lane=n % 2) for n in range(600)]
    news = [make_row(queue, BASE_MS + n * 3_000 + MINUTE_MS, lane=n % 4) for n in range(600)]
    store.insert(olds)
    store.move(Move(old.position, new) for old, new in zip(olds, news, strict=True))
    assert read_back(store, olds) == []
    assert set(read_back(store, news)) == set(news)


def test_a_move_writes_its_new_row_even_where_the_old_one_is_gone(store: Store, queue: str) -> None:
    old, new = make_row(queue), make_row(queue, BASE_MS + 5)
    store.move([Move(old.position, new)])
    assert read_back(store, [new]) == [new]


def test_a_move_keeps_each_column_of_its_new_row(store: Store, queue: str) -> None:
    old, new = make_row(queue), make_row(queue, BASE_MS + 5, 3, since_ms=BASE_MS)
    large = make_row(queue, BASE_MS + 6, 3, since_ms=BASE_MS + 1, body=b"x" * 100_000)
    store.insert([old])
    store.move([Move(old.position, new), Move(make_row(queue).position, large)])
    assert read_back(store, [old, new, large]) == [new, large]


def test_an_attempt_is_recorded_in_place(store: Store, queue: str) -> None:
    row = make_row(queue, body=b"\x00kept", headers='{"a":"b"}', group="g", claim="m")
    other = make_row(queue)
    store.insert([row, other])
    for attempt in (1, 2, 7):
        store.record_attempt(row.position, attempt)
        assert read_back(store, [row]) == [row._replace(attempt=attempt), other]


def test_an_attempt_of_an_absent_row_makes_no_row(store: Store, queue: str) -> None:
    never, gone = make_row(queue), make_row(queue)
    store.insert([gone])
    store.delete([gone.position])
    store.record_attempt(never.position, 1)
    store.record_attempt(gone.position, 2)
    assert read_back(store, [never]) == []
    assert store.find([never.position, gone.position]) == []
    assert store.count(everything([never])) == {}
    assert store.occupied(queue, [BASE_MINUTE], [0]) == []


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


# Leases -----------------------------------------------------------------------------------------


def lease(
    store: Store,
    shard: Shard,
    lock: str,
    *,
    holder: str = "member",
    seen: str | None = None,
    window: int = 9,
    ttl_ms: int = LONG_MS,
) -> LeaseState:
    """What `take` tells of one shard."""
    return store.take({shard: seen}, lock=lock, holder=holder, window=window, ttl_ms=ttl_ms)[shard]


@pytest.fixture
def shard(queue: str) -> Shard:
    return Shard(queue, BASE_MINUTE, 2)


def test_a_shard_never_leased_has_an_empty_state(store: Store, shard: Shard) -> None:
    assert store.leases([shard]) == {shard: LeaseState(None, None, 0)}


def test_a_free_shard_is_leased(store: Store, shard: Shard) -> None:
    taken = LeaseState("lock-1", "member", 9)
    assert lease(store, shard, "lock-1") == taken
    assert store.leases([shard]) == {shard: taken}


def test_a_held_shard_is_refused_and_its_state_is_told(store: Store, shard: Shard) -> None:
    held = lease(store, shard, "lock-1", holder="one", window=5)
    for seen in (None, "one", "two"):
        assert lease(store, shard, "lock-2", holder="two", seen=seen, window=8) == held
    assert store.leases([shard]) == {shard: held}


def test_a_member_cannot_take_its_own_lease_a_second_time(store: Store, shard: Shard) -> None:
    held = lease(store, shard, "lock-1")
    assert lease(store, shard, "lock-2", seen="member") == held


def test_a_lease_that_ran_out_still_names_its_holder(
    store: Store, shard: Shard, lapse: Lapse
) -> None:
    lease(store, shard, "lock-1", holder="one", window=33, ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: store.leases([shard])[shard].lock is None)
    assert store.leases([shard]) == {shard: LeaseState(None, "one", 33)}


def test_a_lapsed_lease_goes_to_who_has_seen_its_holder(
    store: Store, shard: Shard, lapse: Lapse
) -> None:
    lease(store, shard, "lock-1", holder="one", window=33, ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: store.leases([shard])[shard].lock is None)
    unclean = LeaseState(None, "one", 33)
    assert lease(store, shard, "lock-2", holder="two", seen=None) == unclean
    assert lease(store, shard, "lock-3", holder="two", seen="three") == unclean
    assert lease(store, shard, "lock-4", holder="two", seen="one") == LeaseState("lock-4", "two", 9)
    # What the late one still does is without effect.
    assert store.renew({shard: "lock-1"}, LONG_MS) == set()
    store.release({shard: "lock-1"})
    assert store.leases([shard]) == {shard: LeaseState("lock-4", "two", 9)}


def test_who_expected_a_holder_is_refused_a_clean_shard(store: Store, shard: Shard) -> None:
    assert lease(store, shard, "lock-1", seen="somebody") == LeaseState()
    assert store.leases([shard]) == {shard: LeaseState()}


def test_a_renewed_lease_outlives_its_first_time(store: Store, queue: str, lapse: Lapse) -> None:
    renewed, left = Shard(queue, BASE_MINUTE, 0), Shard(queue, BASE_MINUTE, 1)
    # Longer than any machine takes for two calls.
    ttl_ms = 10 * TTL_MS
    store.take({renewed: None, left: None}, lock="l", holder="m", window=4, ttl_ms=ttl_ms)
    assert store.renew({renewed: "l"}, LONG_MS) == {renewed}
    lapse(ttl_ms, lambda: store.leases([left])[left].lock is None)
    assert store.leases([renewed, left]) == {
        renewed: LeaseState("l", "m", 4),
        left: LeaseState(None, "m", 4),
    }


def test_only_a_lease_that_is_still_ours_is_renewed(store: Store, queue: str, lapse: Lapse) -> None:
    ours, others, lapsed, free = (Shard(queue, BASE_MINUTE, lane) for lane in range(4))
    lease(store, lapsed, "us", ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: store.leases([lapsed])[lapsed].lock is None)
    lease(store, ours, "us")
    lease(store, others, "them", holder="other")
    assert store.renew(dict.fromkeys((ours, others, lapsed, free), "us"), LONG_MS) == {ours}
    assert store.leases([others, lapsed, free]) == {
        others: LeaseState("them", "other", 9),
        lapsed: LeaseState(None, "member", 9),
        free: LeaseState(),
    }


def test_a_renewed_lease_runs_out_too(store: Store, shard: Shard, lapse: Lapse) -> None:
    lease(store, shard, "lock-1")
    assert store.renew({shard: "lock-1"}, TTL_MS) == {shard}
    lapse(TTL_MS, lambda: store.leases([shard])[shard].lock is None)
    assert store.leases([shard]) == {shard: LeaseState(None, "member", 9)}


def test_a_clean_release_leaves_nothing(store: Store, shard: Shard) -> None:
    lease(store, shard, "lock-1", holder="one")
    for _ in range(2):
        store.release({shard: "lock-1"})
        assert store.leases([shard]) == {shard: LeaseState()}
    assert lease(store, shard, "lock-2", holder="two", seen=None).lock == "lock-2"


def test_only_a_lease_that_is_still_ours_is_released(
    store: Store, queue: str, lapse: Lapse
) -> None:
    others, lapsed = Shard(queue, BASE_MINUTE, 0), Shard(queue, BASE_MINUTE, 1)
    lease(store, lapsed, "us", ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: store.leases([lapsed])[lapsed].lock is None)
    held = lease(store, others, "them")
    store.release({others: "us", lapsed: "us"})
    assert store.leases([others, lapsed]) == {others: held, lapsed: LeaseState(None, "member", 9)}


def test_many_shards_are_leased_renewed_and_released_at_once(store: Store, queue: str) -> None:
    shards = [Shard(queue, BASE_MINUTE + n // 4, n % 4) for n in range(60)]
    lease(store, shards[5], "them", holder="other", window=1)
    ours = {shard: LeaseState("us", "m", 2) for shard in shards if shard != shards[5]}
    states = store.take(dict.fromkeys(shards), lock="us", holder="m", window=2, ttl_ms=LONG_MS)
    assert states == {**ours, shards[5]: LeaseState("them", "other", 1)}
    assert store.leases(shards) == states
    assert store.renew(dict.fromkeys(shards, "us"), LONG_MS) == set(ours)
    store.release(dict.fromkeys(shards, "us"))
    assert store.leases(shards) == {
        **dict.fromkeys(ours, LeaseState()),
        shards[5]: LeaseState("them", "other", 1),
    }


def test_of_many_who_take_at_once_one_wins(store: Store, shard: Shard) -> None:
    start = threading.Barrier(8)

    def race(n: int) -> LeaseState:
        start.wait(60)
        return lease(store, shard, f"lock-{n}", holder=f"member-{n}")

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(race, range(8)))
    assert len(set(states)) == 1
    assert store.leases([shard]) == {shard: states[0]}


def test_a_lease_is_no_row(store: Store, queue: str) -> None:
    row = make_row(queue, lane=1)
    empty = Shard(queue, BASE_MINUTE, 0)
    lease(store, empty, "lock-1")
    lease(store, row.shard, "lock-1")
    assert store.read(everything([row])._replace(lanes=[0, 1])) == []
    assert store.occupied(queue, [BASE_MINUTE], [0, 1]) == []
    assert store.count(everything([row])._replace(lanes=[0, 1])) == {}
    assert list(store.shards(queue)) == []
    store.insert([row])
    assert store.occupied(queue, [BASE_MINUTE], [0, 1]) == [row.shard]
    assert list(store.shards(queue)) == [row.shard]


def test_rows_and_the_lease_of_their_shard_do_not_touch(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in range(3)]
    store.insert(rows)
    held = lease(store, rows[0].shard, "lock-1")
    assert read_back(store, rows) == rows
    store.delete([rows[0].position])
    store.record_attempt(rows[1].position, 1)
    store.move([Move(rows[2].position, make_row(queue, BASE_MS + MINUTE_MS))])
    assert store.leases([rows[0].shard]) == {rows[0].shard: held}
    store.release({rows[0].shard: "lock-1"})
    assert store.find([rows[1].position]) == [rows[1]._replace(attempt=1)]


# Registers --------------------------------------------------------------------------------------


def test_a_sealed_minute_only_rises(store: Store, queue: str) -> None:
    assert store.sealed(queue) == {}
    store.seal(queue, {0: BASE_MINUTE, 3: BASE_MINUTE + 1})
    assert store.sealed(queue) == {0: BASE_MINUTE, 3: BASE_MINUTE + 1}
    store.seal(queue, {0: BASE_MINUTE - 1, 3: BASE_MINUTE + 5, 1: 7})
    store.seal(queue, {3: BASE_MINUTE + 5})
    assert store.sealed(queue) == {0: BASE_MINUTE, 1: 7, 3: BASE_MINUTE + 5}
    assert store.sealed(queue + "x") == {}


def test_a_queue_that_was_never_made_has_no_record(store: Store, queue: str) -> None:
    assert store.queue(queue) is None
    assert queue not in store.queues()


def test_a_queues_record_comes_back(store: Store, queue: str) -> None:
    record = QueueRecord('{"lanes":4,"ü":"注"}', bytes(range(32)), 1)
    assert store.write_queue(queue, record)
    assert store.queue(queue) == record


def test_a_record_is_taken_only_where_it_follows_the_stored_one(store: Store, queue: str) -> None:
    def write(version: int, settings: str) -> bool:
        return store.write_queue(queue, QueueRecord(settings, b"s" * 32, version))

    assert not write(2, "too new")
    assert store.queue(queue) is None
    assert write(1, "a")
    assert not write(1, "b")
    assert not write(3, "c")
    assert write(2, "d")
    assert not write(2, "e")
    assert not write(1, "f")
    assert store.queue(queue) == QueueRecord("d", b"s" * 32, 2)


def test_of_many_who_change_a_record_at_once_one_wins_each_version(
    store: Store, queue: str
) -> None:
    start = threading.Barrier(8)

    def race(thread: int) -> list[bool]:
        outcomes = []
        for version in (1, 2, 3):
            start.wait(60)
            record = QueueRecord(f"{thread}", bytes([thread]) * 32, version)
            outcomes.append(store.write_queue(queue, record))
        return outcomes

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(race, range(8)))
    assert [sum(won) for won in zip(*outcomes, strict=True)] == [1, 1, 1]
    last = next(thread for thread in range(8) if outcomes[thread][2])
    assert store.queue(queue) == QueueRecord(f"{last}", bytes([last]) * 32, 3)


def test_queues_are_listed_by_name(store: Store, queue: str) -> None:
    names = [queue + suffix for suffix in ("", ".dead", "-b", "Z", "_a")]
    for name in names:
        assert store.write_queue(name, QueueRecord("{}", b"s" * 32, 1))
    store.insert([make_row(queue + ".unmade")])
    listed = store.queues()
    assert [name for name in listed if name.startswith(queue)] == sorted(names)
    assert listed == sorted(listed)


def test_members_are_listed_with_what_they_said_last(store: Store, queue: str) -> None:
    assert store.members(queue) == {}
    store.beat(queue, "one", "{}", LONG_MS)
    store.beat(queue, "two", '{"ü":"' + "x" * 4_000 + '"}', LONG_MS)
    store.beat(queue + "x", "three", "{}", LONG_MS)
    store.beat(queue, "one", '{"busy":1}', LONG_MS)
    assert store.members(queue) == {"one": '{"busy":1}', "two": '{"ü":"' + "x" * 4_000 + '"}'}


def test_a_member_that_left_is_listed_no_more(store: Store, queue: str) -> None:
    store.beat(queue, "one", "{}", LONG_MS)
    store.beat(queue, "two", "{}", LONG_MS)
    for _ in range(2):
        store.leave(queue, "one")
        assert store.members(queue) == {"two": "{}"}
    store.beat(queue, "one", "{}", LONG_MS)
    assert set(store.members(queue)) == {"one", "two"}


def test_a_member_that_stays_silent_is_listed_no_more(
    store: Store, queue: str, lapse: Lapse
) -> None:
    store.beat(queue, "loud", "{}", TTL_MS)
    store.beat(queue, "silent", "{}", TTL_MS)
    store.beat(queue, "loud", "{}", LONG_MS)
    lapse(TTL_MS, lambda: "silent" not in store.members(queue))
    assert store.members(queue) == {"loud": "{}"}


def test_a_blocked_group_is_told_with_its_head(store: Store, queue: str) -> None:
    assert store.blocked(queue, 1) == {}
    store.block(queue, 1, "注文 7", until_ms=BASE_MS, message="id-1", ttl_ms=LONG_MS)
    store.block(queue, 1, "b", until_ms=BASE_MS + 1, message="id-2", ttl_ms=LONG_MS)
    store.block(queue, 2, "b", until_ms=BASE_MS + 2, message="id-3", ttl_ms=LONG_MS)
    store.block(queue + "x", 1, "c", until_ms=1, message="id-4", ttl_ms=LONG_MS)
    assert store.blocked(queue, 1) == {"注文 7": (BASE_MS, "id-1"), "b": (BASE_MS + 1, "id-2")}
    store.block(queue, 1, "b", until_ms=BASE_MS + 9, message="id-5", ttl_ms=LONG_MS)
    assert store.blocked(queue, 1)["b"] == (BASE_MS + 9, "id-5")
    assert store.blocked(queue, 2) == {"b": (BASE_MS + 2, "id-3")}
    assert store.blocked(queue, 1, ["b", "c"]) == {"b": (BASE_MS + 9, "id-5")}
    assert store.blocked(queue, 1, ["c", "注文 7"]) == {"注文 7": (BASE_MS, "id-1")}
    assert store.blocked(queue, 1, ["b", "注文 7"]) == store.blocked(queue, 1)
    assert store.blocked(queue, 1, ["c"]) == {}
    assert store.blocked(queue, 1, []) == {}


def test_blocks_of_hundreds_of_groups_are_read_by_name(store: Store, queue: str) -> None:
    groups = [f"group-{number}" for number in range(250)]
    for number, group in enumerate(groups):
        store.block(queue, 0, group, until_ms=number, message=f"id-{number}", ttl_ms=LONG_MS)
    said = {group: (number, f"id-{number}") for number, group in enumerate(groups)}
    assert store.blocked(queue, 0, groups) == said
    assert store.blocked(queue, 0, groups[1:]) == {g: said[g] for g in groups[1:]}


def test_a_block_ends_with_its_time_to_live(store: Store, queue: str, lapse: Lapse) -> None:
    store.block(queue, 0, "a", until_ms=BASE_MS, message="id-1", ttl_ms=TTL_MS)
    store.block(queue, 0, "b", until_ms=BASE_MS, message="id-2", ttl_ms=LONG_MS)
    lapse(TTL_MS, lambda: "a" not in store.blocked(queue, 0))
    assert store.blocked(queue, 0) == {"b": (BASE_MS, "id-2")}
    assert store.blocked(queue, 0, ["a", "b"]) == {"b": (BASE_MS, "id-2")}


# The ledger -------------------------------------------------------------------------------------


def make_entry(queue: str, after_us: int = 0) -> Entry:
    # A generator of its own: that of the process may be in the future of the ends by now.
    return Entry(queue, RowIds().next(BASE_US + after_us))


def a_put(entry: Entry, name: str | None = None) -> Mark:
    return Mark(entry, BASE_MS + 5, name)


def an_end(entry: Entry, fate: str = "acked", ended_ms: int = BASE_MS + 9) -> Mark:
    return Mark(entry, None, None, fate, ended_ms, 2, "me")


def both(put: Mark, end: Mark) -> Mark:
    return end._replace(due_ms=put.due_ms, name=put.name)


def test_a_put_and_an_end_are_told_together_whatever_their_order(store: Store, queue: str) -> None:
    first, last = make_entry(queue), make_entry(queue)
    store.record([a_put(first, "注文-7"), an_end(last, "dead")], LONG_MS)
    assert sorted(store.recorded([first, last])) == sorted(
        [a_put(first, "注文-7"), an_end(last, "dead")], key=lambda mark: mark.entry
    )
    store.record([an_end(first), a_put(last)], LONG_MS)
    told = {mark.entry: mark for mark in store.recorded([last, first])}
    assert told[first] == both(a_put(first, "注文-7"), an_end(first))
    assert told[last] == both(a_put(last), an_end(last, "dead"))


def test_of_several_ends_the_first_stands_however_they_come(store: Store, queue: str) -> None:
    ends = [("acked", 9), ("dead", 7), ("cancelled", 30_000), ("purged", 86_400_000)]
    for order in (ends, ends[::-1], [*ends[1:], ends[0]]):
        entry = make_entry(queue)
        for fate, after_ms in order:
            store.record([an_end(entry, fate, BASE_MS + after_ms)], LONG_MS)
        assert store.recorded([entry]) == [an_end(entry, "dead", BASE_MS + 7)]


def test_an_end_is_told_in_the_words_in_which_it_was_recorded(store: Store, queue: str) -> None:
    put = a_put(make_entry(queue), "order-7")
    end = an_end(put.entry, "archived by a newer shardq")
    store.record([put, end], LONG_MS)
    assert store.recorded([put.entry]) == [both(put, end)]
    assert list(store.history(queue, range(BASE_MINUTE, BASE_MINUTE + 1))) == [both(put, end)]


def test_what_is_no_time_comes_back_as_it_is_for_its_reader_to_refuse(
    store: Store, queue: str
) -> None:
    put = a_put(make_entry(queue))._replace(due_ms=1 << 62)
    store.record([put], LONG_MS)
    [mark] = store.recorded([put.entry])
    assert mark == put
    with pytest.raises(
        StoreCorrupt, match=f"history of queue '{queue}' is damaged: due of message"
    ):
        mark.checked()


def test_a_record_may_be_repeated(store: Store, queue: str) -> None:
    entry = make_entry(queue)
    for mark in (a_put(entry, "x"), an_end(entry), a_put(entry, "x"), an_end(entry)):
        store.record([mark], LONG_MS)
    store.record([an_end(entry, "dead", BASE_MS + 60_000)], LONG_MS)
    assert store.recorded([entry, entry]) in (
        [both(a_put(entry, "x"), an_end(entry))],
        [both(a_put(entry, "x"), an_end(entry))] * 2,
    )


def test_an_end_at_once_or_by_a_clock_behind_is_kept(store: Store, queue: str) -> None:
    entry, earlier = make_entry(queue), make_entry(queue)
    store.record([a_put(entry), a_put(earlier)], LONG_MS)
    store.record([an_end(entry, ended_ms=BASE_MS), an_end(earlier, ended_ms=BASE_MS - 90)], LONG_MS)
    assert {mark.fate for mark in store.recorded([entry, earlier])} == {"acked"}


def test_what_was_never_recorded_is_not_told(store: Store, queue: str) -> None:
    entry = make_entry(queue)
    store.record([a_put(entry)], LONG_MS)
    for other in (make_entry(queue), make_entry(queue, 1), entry._replace(queue=queue + "x")):
        assert store.recorded([other]) == []
    assert store.recorded([]) == []
    store.record([], LONG_MS)


def test_the_ledger_is_told_by_minute_of_entry(store: Store, queue: str) -> None:
    to_the_minute = -BASE_US % MINUTE_US
    first, *entries, last = [
        make_entry(queue, to_the_minute + after_us)
        for after_us in (-1, 0, 70_000, MINUTE_US - 1, MINUTE_US, 2 * MINUTE_US - 1, 2 * MINUTE_US)
    ]
    stranger = make_entry(queue + "x", to_the_minute)
    store.record([a_put(entry) for entry in [first, *entries, last, stranger]], LONG_MS)
    minute = entries[0].minute
    assert [entry.minute - minute for entry in (first, *entries, last)] == [-1, 0, 0, 0, 1, 1, 2]
    told = store.history(queue, range(minute, minute + 2))
    assert sorted(mark.entry for mark in told) == sorted(entries)
    assert list(store.history(queue, range(minute, minute))) == []


def test_a_full_minute_is_told_whole_page_by_page(store: Store, queue: str) -> None:
    entries = [make_entry(queue, 3 * n) for n in range(10_500)]
    store.record((a_put(entry) for entry in entries), LONG_MS)
    store.record((an_end(entry) for entry in entries[::3]), LONG_MS)
    told = {
        mark.entry: mark.fate for mark in store.history(queue, range(BASE_MINUTE, BASE_MINUTE + 60))
    }
    assert told == {entry: None if n % 3 else "acked" for n, entry in enumerate(entries)}
    assert len(store.recorded(entries)) == 10_500


def test_marks_of_many_minutes_and_parts_are_all_kept(store: Store, queue: str) -> None:
    entries = [make_entry(queue, n % 97 * MINUTE_US + n * 50_000) for n in range(3_000)]
    assert len({entry.place for entry in entries}) > 1_000
    store.record((a_put(entry) for entry in entries), LONG_MS)
    assert {mark.entry for mark in store.recorded(entries)} == set(entries)


def test_the_ledger_is_kept_for_its_retention(store: Store, queue: str, lapse: Lapse) -> None:
    entry = make_entry(queue)
    store.record([a_put(entry), an_end(entry)], TTL_MS)
    lapse(TTL_MS, lambda: not store.recorded([entry]))
    assert list(store.history(queue, range(BASE_MINUTE, BASE_MINUTE + 1))) == []


def test_the_ledger_and_the_rows_do_not_touch(store: Store, queue: str) -> None:
    row = make_row(queue)
    entry = Entry(queue, row.id)
    store.insert([row])
    store.record([an_end(entry)], LONG_MS)
    assert read_back(store, [row]) == [row]
    store.delete([row.position])
    assert store.recorded([entry]) == [an_end(entry)]
    assert list(store.shards(queue)) == []


# Rows and the line that says that they are written ------------------------------------------------


def a_line(queue: str, part: str = "bin 0") -> Mark:
    """The put of a pseudo queue that says what was written."""
    return Mark(Entry(f"{queue}#runs", fixed(BASE_US, part)), BASE_MS, f'{{"part": "{part}"}}')


def puts_of(rows: list[Row]) -> list[Mark]:
    return [Mark(Entry(row.shard.queue, row.id), row.due_ms, row.name) for row in rows]


def fixed_rows(queue: str, count: int) -> list[Row]:
    return [
        make_row(queue, BASE_MS + n, n % 3, row_id=fixed(BASE_US, f"{n}"), name=f"{n}")
        for n in range(count)
    ]


def test_rows_their_puts_and_their_line_are_written_together(store: Store, queue: str) -> None:
    rows, line = fixed_rows(queue, 250), a_line(queue)
    assert store.insert_once(line, LONG_MS, rows, puts_of(rows), LONG_MS) is None
    assert read_back(store, rows) == in_order(rows)
    assert store.recorded([line.entry]) == [line]
    assert sorted(store.recorded([mark.entry for mark in puts_of(rows)])) == sorted(puts_of(rows))


def test_what_has_a_line_is_not_written_again(store: Store, queue: str) -> None:
    rows, line = fixed_rows(queue, 20), a_line(queue)
    store.insert_once(line, LONG_MS, rows)
    store.delete([row.position for row in rows[:10]])
    assert store.insert_once(line, LONG_MS, rows, puts_of(rows), LONG_MS) == line
    others = [make_row(queue, BASE_MS + 99)]
    assert store.insert_once(line._replace(name="another"), LONG_MS, others) == line
    assert read_back(store, [*rows, *others]) == in_order(rows[10:])
    assert store.recorded([mark.entry for mark in puts_of(rows)]) == []


def test_a_line_that_is_begun_is_not_written_yet(store: Store, queue: str) -> None:
    rows, line = fixed_rows(queue, 5), a_line(queue)
    begun = Mark(line.entry, None, None, "begun", BASE_MS + 3, 0, "me")
    store.record([begun], LONG_MS)
    assert store.insert_once(line, LONG_MS, rows) is None
    assert read_back(store, rows) == in_order(rows)
    told = both(line, begun)
    assert store.recorded([line.entry]) == [told]
    assert store.insert_once(line, LONG_MS, rows) == told


def test_what_was_written_in_part_is_completed(store: Store, queue: str) -> None:
    rows, line = fixed_rows(queue, 20), a_line(queue)
    store.insert(rows[:13])
    store.record(puts_of(rows[:7]), LONG_MS)
    assert store.insert_once(line, LONG_MS, rows, puts_of(rows), LONG_MS) is None
    assert read_back(store, rows) == in_order(rows)
    assert sorted(store.recorded([mark.entry for mark in puts_of(rows)])) == sorted(puts_of(rows))


def test_each_line_has_rows_of_its_own_and_may_have_none(store: Store, queue: str) -> None:
    rows = fixed_rows(queue, 3)
    lines = [a_line(queue, part) for part in ("a", "b", "c")]
    for line, part in zip(lines, (rows[:2], rows[2:], []), strict=True):
        assert store.insert_once(line, LONG_MS, part) is None
    assert read_back(store, rows) == in_order(rows)
    minutes = range(BASE_MINUTE, BASE_MINUTE + 1)
    assert sorted(store.history(f"{queue}#runs", minutes)) == sorted(lines)
    assert list(store.history(queue, minutes)) == []


def test_of_many_who_write_one_line_at_once_each_row_is_there_once(
    store: Store, queue: str
) -> None:
    rows, line = fixed_rows(queue, 100), a_line(queue)
    start = threading.Barrier(4)

    def write() -> Mark | None:
        start.wait()
        return store.insert_once(line, LONG_MS, rows, puts_of(rows), LONG_MS)

    with ThreadPoolExecutor(4) as pool:
        told = [one.result() for one in [pool.submit(write) for _ in range(4)]]
    assert None in told
    assert set(told) <= {None, line}
    assert read_back(store, rows) == in_order(rows)


def moves_of(rows: list[Row], queue: str) -> list[Move]:
    """To another queue, at places that follow from the old ones."""
    return [
        Move(row.position, make_row(queue, row.due_ms + 7, row_id=fixed(BASE_US, f"to {row.name}")))
        for row in rows
    ]


def marks_of(moves: list[Move]) -> dict[Position, list[Mark]]:
    """The end of each message in the one queue, and its put in the other."""
    return {
        move.old: [an_end(Entry(move.old.shard.queue, move.old.id)), *puts_of([move.new])]
        for move in moves
    }


def test_rows_move_with_their_marks(store: Store, queue: str) -> None:
    rows = fixed_rows(queue, 120)
    store.insert(rows)
    moves = moves_of(rows[20:], queue + "x")
    marks = marks_of(moves)
    assert store.move_once(moves, marks, LONG_MS) == set()
    assert read_back(store, rows) == in_order(rows[:20])
    new = [move.new for move in moves]
    assert read_back(store, new) == in_order(new)
    every = [mark for some in marks.values() for mark in some]
    assert sorted(store.recorded([mark.entry for mark in every])) == sorted(every)


def test_moves_without_marks_are_done_too_and_none_are_fine(store: Store, queue: str) -> None:
    rows = fixed_rows(queue, 2)
    store.insert(rows)
    assert store.move_once([], {}, 0) == set()
    assert store.move_once(moves_of(rows[:1], queue + "x"), {}, 0) == set()
    assert read_back(store, rows) == rows[1:]


def test_a_move_that_is_done_again_brings_back_nothing(store: Store, queue: str, kind: str) -> None:
    rows = fixed_rows(queue, 10)
    store.insert(rows)
    moves = moves_of(rows, queue + "x")
    store.move_once(moves, marks_of(moves), LONG_MS)
    new = [move.new for move in moves]
    store.delete([row.position for row in new[:4]])
    gone = store.move_once(moves, marks_of(moves), LONG_MS)
    if kind in ("memory", "file"):
        assert gone == {move.old for move in moves}
    assert read_back(store, new) == in_order(new[4:])
    assert read_back(store, rows) == []


@pytest.mark.parametrize("local", [False, True], ids=["nodes", "machine"])
@pytest.mark.parametrize("seed", range(5))
def test_twins_move_each_row_once_whatever_their_calls_meet(seed: int, local: bool) -> None:
    weather = Weather(refused=0.1, lost=0.1, unanswered=0.1, late=0.1, twice=0.1, parted=0.5)
    rows, told, kept_ms = fixed_rows("dead", 60), [], 10 * LONG_MS
    moves = moves_of(rows, "mail")
    with Simulation(seed, weather, local=local) as simulation:
        simulation.store(None).insert(rows)
        simulation.cells.on_write = told.append

        def write(process: Process) -> None:
            store = simulation.store(process)
            for n in range(0, 60, 20):
                part, is_done = moves[n : n + 20], False
                while not is_done:
                    with suppress(StoreError):
                        there = {row.position for row in store.find(move.old for move in part)}
                        left = [move for move in part if move.old in there]
                        store.move_once(left, marks_of(left), kept_ms)
                        is_done = True
                # A consumer has finished some; what the twin repeats brings none back.
                with suppress(StoreError):
                    store.delete(move.new.position for move in part[::2])

        for name in ("one", "twin"):
            process = simulation.process(name)
            simulation.spawn(process, partial(write, process))
        simulation.run(600)
        assert sorted(told) == sorted(move.new for move in moves)
        assert simulation.cells.risen == []
        store = simulation.store(None)
        store.delete(move.new.position for move in moves[::2])
        assert read_back(store, rows) == []
        assert read_back(store, told) == in_order([move.new for move in moves[1::2]])
        every = [mark.entry for some in marks_of(moves).values() for mark in some]
        assert len(store.recorded(every)) == 120


@pytest.mark.parametrize("local", [False, True], ids=["nodes", "machine"])
@pytest.mark.parametrize("seed", range(5))
def test_twins_write_each_row_once_whatever_their_calls_meet(seed: int, local: bool) -> None:
    weather = Weather(refused=0.1, lost=0.1, unanswered=0.1, late=0.1, twice=0.1, parted=0.5)
    rows, told, kept_ms = fixed_rows("mail", 60), [], 10 * LONG_MS
    with Simulation(seed, weather, local=local) as simulation:
        simulation.cells.on_write = told.append

        def write(process: Process) -> None:
            store = simulation.store(process)
            for n in range(0, 60, 20):
                part, line = rows[n : n + 20], a_line("mail", f"{n}")
                is_written = False
                while not is_written:
                    with suppress(StoreError):
                        store.insert_once(line, kept_ms, part, puts_of(part), kept_ms)
                        is_written = True
                # A consumer has finished some; what the twin repeats brings none back.
                with suppress(StoreError):
                    store.delete(row.position for row in part[::2])

        for name in ("one", "twin"):
            process = simulation.process(name)
            simulation.spawn(process, partial(write, process))
        simulation.run(600)
        assert sorted(told) == sorted(rows)
        assert simulation.cells.risen == []
        store = simulation.store(None)
        store.delete(row.position for row in rows[::2])
        assert read_back(store, rows) == in_order(rows[1::2])
        assert len(store.recorded([mark.entry for mark in puts_of(rows)])) == 60


def test_a_line_is_kept_for_its_time(store: Store, queue: str, lapse: Lapse) -> None:
    rows, line = fixed_rows(queue, 2), a_line(queue)
    store.insert_once(line, TTL_MS, rows[:1], puts_of(rows[:1]), LONG_MS)
    lapse(TTL_MS, lambda: not store.recorded([line.entry]))
    assert store.recorded([puts_of(rows)[0].entry]) == puts_of(rows[:1])
    assert store.insert_once(line, LONG_MS, rows[1:]) is None
    assert read_back(store, rows) == in_order(rows)
    assert store.recorded([line.entry]) == [line]


# Logs, time and news ----------------------------------------------------------------------------


def test_stats_are_told_in_order_and_the_last_word_counts(store: Store, queue: str) -> None:
    assert store.stats(queue) == []
    long = '{"ü":"' + "x" * 16_000 + '"}'
    store.write_stats(queue, 8, "one", "{}")
    store.write_stats(queue, 7, "two", "{}")
    store.write_stats(queue, 100, "one", '{"put":1}')
    store.write_stats(queue, 7, "one", '{"put":2}')
    store.write_stats(queue + "x", 7, "one", '{"put":3}')
    store.write_stats(queue, 8, "one", long)
    assert store.stats(queue) == [
        (7, "one", '{"put":2}'),
        (7, "two", "{}"),
        (8, "one", long),
        (100, "one", '{"put":1}'),
    ]


def test_a_row_of_totals_is_replaced_only_where_it_is_as_it_was_read(
    store: Store, queue: str
) -> None:
    assert not store.write_stats_if(queue, 0, "#", '{"put":1}', before="{}")
    assert store.stats(queue) == []
    assert store.write_stats_if(queue, 0, "#", '{"put":1}', before=None)
    assert not store.write_stats_if(queue, 0, "#", '{"put":2}', before=None)
    assert not store.write_stats_if(queue, 0, "#", '{"put":2}', before="{}")
    assert not store.write_stats_if(queue + "x", 0, "#", '{"put":2}', before='{"put":1}')
    assert store.stats(queue) == [(0, "#", '{"put":1}')]
    long = '{"ü":"' + "x" * 32_000 + '"}'
    assert store.write_stats_if(queue, 0, "#", long, before='{"put":1}')
    assert store.write_stats_if(queue, 0, "#", "{}", before=long)
    assert store.stats(queue) == [(0, "#", "{}")]


def test_of_writers_that_read_the_same_totals_one_replaces_them(store: Store, queue: str) -> None:
    store.write_stats_if(queue, 0, "#", "{}", before=None)

    def replace(number: int) -> bool:
        return store.write_stats_if(queue, 0, "#", f'{{"put":{number}}}', before="{}")

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(replace, range(8)))
    assert told.count(True) == 1
    assert store.stats(queue) == [(0, "#", f'{{"put":{told.index(True)}}}')]


def test_deleted_totals_are_gone_alone_and_may_be_written_again(store: Store, queue: str) -> None:
    for minute, member in ((7, "one"), (7, "two"), (8, "one")):
        store.write_stats(queue, minute, member, "{}")
    store.write_stats(queue + "x", 7, "one", "{}")
    store.delete_stats(queue, [])
    store.delete_stats(queue, [(7, "one"), (8, "one"), (9, "none")])
    assert store.stats(queue) == [(7, "two", "{}")]
    assert store.stats(queue + "x") == [(7, "one", "{}")]
    store.delete_stats(queue, [(7, "one")])
    store.write_stats(queue, 7, "one", '{"put":1}')
    assert store.stats(queue) == [(7, "one", '{"put":1}'), (7, "two", "{}")]


def test_each_node_tells_its_time(store: Store, kind: str, hands: Hands) -> None:
    nodes = store.nodes()
    assert nodes
    assert len(set(nodes)) == len(nodes)
    for node in nodes:
        told = store.time_us(node)
        true = clock.machine_us() if kind == "cassandra" else hands.us
        assert isinstance(told, int)
        assert abs(told - true) < 60_000_000


def test_nothing_has_changed_while_nobody_wrote(store: Store, queue: str) -> None:
    first = store.changed()
    assert first is None or isinstance(first, int)
    store.read(everything([make_row(queue)]))
    assert store.changed() == first


def test_a_store_describes_itself(store: Store, kind: str) -> None:
    shown = store.describe()
    named = {"cassandra": "cassandra", "simulated": "simulated"}.get(kind, "sqlite")
    assert named in shown.lower()


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


def test_leases_and_records_cost_an_lwt_and_messages_none(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in range(50)]
    before = store.counters["lwt"], store.counters["batches"]
    store.insert(rows)
    store.read(everything(rows))
    store.move([Move(rows[0].position, make_row(queue, BASE_MS + MINUTE_MS))])
    store.delete(row.position for row in rows)
    assert store.counters["lwt"] == before[0]
    assert 0 < store.counters["batches"] - before[1] < 50
    lease(store, rows[0].shard, "lock-1")
    assert store.counters["lwt"] > before[0]


def test_a_position_is_all_that_names_a_row(store: Store, queue: str) -> None:
    row_id = row_ids.next(BASE_US)
    twins = [make_row(queue, BASE_MS, 0, row_id=row_id), make_row(queue, BASE_MS, 1, row_id=row_id)]
    store.insert(twins)
    store.delete([Position(twins[0].shard, BASE_MS, row_id)])
    assert read_back(store, twins) == [twins[1]]


def test_locks_are_read_beside_rows_and_left_out_where_the_row_is_gone(
    store: Store, queue: str
) -> None:
    leased, free, gone = (make_row(queue, lane=n) for n in range(3))
    store.insert([leased, free])
    held = lease(store, leased.shard, "lock-1", window=7)
    lease(store, gone.shard, "lock-2")
    assert store.locks([row.position for row in (leased, free, gone)]) == {
        leased.shard: held,
        free.shard: LeaseState(),
    }
    assert store.locks([]) == {}
