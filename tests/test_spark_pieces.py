"""Pieces of a run: each is written once, however often it is tried; what has ended stays so."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pyspark_shardq import pieces as room
from pyspark_shardq import runs
from pyspark_shardq.options import Options
from pyspark_shardq.pieces import Cutter, Pieces, WritePace, WritePiece, WriteTally, raised
from pyspark_shardq.runs import PLAN, UNDONE, SparkRun
from pyspark_shardq.writing import _Writer
from shardq.errors import StoreUnavailable, UsageError
from shardq.inspection.depth import DepthCounter
from shardq.inspection.mend import Mender, result_of
from shardq.lifecycle.home import Home
from shardq.lifecycle.settle import Settler
from shardq.model import ids
from shardq.model.message import Row
from shardq.records.folded import stored_totals
from shardq.records.ledger import End, entry_of
from shardq.records.register import Register
from shardq.records.stats import Totals
from shardq.stores import store_of
from shardq.stores.store import Mark
from shardq.testing import Stage
from shardq.testing.clock import ManualClock

pytestmark = pytest.mark.spark

_SECOND = 1_000
_HOUR = 3_600_000


class Bench:
    """A queue, and whoever writes a run into it."""

    def __init__(self, here: Home, name: str, history: str = "off") -> None:
        self.here = here
        self.clock: ManualClock = here.clock  # type: ignore[assignment]
        given = {"lanes": 2, "history": history}
        self.register = Register.open(here.store, here.clock, name, given, create=True)
        self.run = SparkRun.new(here.clock.now_us())
        self.settler = Settler(here.store, here.clock, self.register, "consumer")

    def rows(self, *after_ms: int, body: bytes = b"body") -> list[Row]:
        """A row for each delay after now, in the order of a bin."""
        made = []
        for number, later in enumerate(after_ms):
            key, due_ms = f"key-{number}", self.clock.now_ms() + later
            layout = self.register.layout
            shard = layout.shard(due_ms, layout.named_lane(key, 0))
            row_id = ids.fixed(self.run.as_of_us, f"{key}\0{due_ms}")
            made.append(Row(shard, due_ms, row_id, body, None, 0, None, key))
        return sorted(made, key=lambda row: row[:3])

    def write(self, rows: list[Row]) -> WriteTally:
        """What another task that tries the same piece does."""
        return Pieces(self.here, self.register, self.run).write(WritePiece("0", 0, rows, 0))

    def undo(self, rows: list[Row]) -> WriteTally:
        return Pieces(self.here, self.register, self.run).undo(WritePiece("0", 0, rows, 0))

    def stored(self) -> list[Row]:
        store = self.here.store
        found = []
        for shard in store.shards(self.register.name):
            found += store.read(_all_of(shard))
        return sorted(found, key=lambda row: row[:3])

    def finish(self, rows: list[Row]) -> None:
        """Finish messages as a consumer does."""
        self.settler.finish(rows, End.ACKED)


def _all_of(shard):  # type: ignore[no-untyped-def]
    from shardq.stores.store import Slice

    return Slice(shard.queue, [shard.minute], [shard.lane], -1, 1 << 60, 1_000)


@pytest.fixture(params=["local", "remote", "cassandra"])
def bench(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    """Makes queues: on SQLite, on a store like Cassandra in memory, and on Cassandra."""
    name = f"mail-{uuid.uuid4().hex[:8]}"
    if request.param == "cassandra":
        store = store_of(request.getfixturevalue("cassandra_url"))
        store.open()
        yield lambda **given: Bench(Home(store, ManualClock()), name, **given)
        store.close()
        return
    with Stage(local=request.param == "local") as stage:
        yield lambda **given: Bench(Home(stage._store, stage.clock), name, **given)


# A piece ------------------------------------------------------------------------------------------


def test_a_piece_is_written_once_whoever_tries_how_often(bench: Callable[..., Bench]) -> None:
    here = bench(history="1d")
    rows = here.rows(60_000, 61_000, 200_000)

    first, again = here.write(rows), here.write(rows)

    assert (first.rows, first.found, first.bytes) == (3, 0, 12)
    assert (again.rows, again.found, again.bytes) == (3, 3, 12)
    assert here.stored() == rows
    marks = here.here.store.recorded([entry_of(row) for row in rows])
    assert {(mark.entry.id, mark.due_ms, mark.name) for mark in marks} == {
        (row.id, row.due_ms, row.name) for row in rows
    }


def test_rows_due_before_their_piece_was_begun_are_placed_then_by_every_try(
    bench: Callable[..., Bench],
) -> None:
    here = bench()
    rows = here.rows(0, 40, 90_000)
    here.clock.advance(10)
    now_ms = here.clock.now_ms()

    here.write(rows)
    first = here.stored()
    here.clock.advance(100)
    # Now it looks as if the first try had been killed before it wrote its line.
    entry = here.run.entry(here.register.name, "0/0")
    if not here.here.store.is_local:
        _forget_line(here, entry)
    here.write(rows)

    assert here.stored() == first
    assert {row.id for row in first} == {row.id for row in rows}
    for row in first:
        asked = row.due_ms if row.origin_ms is None else row.origin_ms
        assert row.due_ms == max(asked, min(one.due_ms for one in first))
    assert now_ms <= first[0].due_ms <= now_ms + _SECOND


def _forget_line(here: Bench, entry: runs.Entry) -> None:
    """What was begun stays recorded; that it was done is not."""
    begun = runs.line_of(here.here.store, entry).begun_ms
    assert begun is not None
    # Another run of the same time and rows, begun at the same moment.
    here.run = SparkRun(here.run.id[:-4] + "beef", here.run.as_of_us)
    runs.begin(here.here.store, here.run.entry(here.register.name, "0/0"), begun)


def test_what_a_consumer_has_finished_stays_finished_after_a_late_retry(
    bench: Callable[..., Bench],
) -> None:
    here = bench(history="1d")
    rows = here.rows(0, 1, 120_000, 130_000)
    if here.here.store.is_local or not isinstance(here.here.store, _cassandra()):
        # SQLite writes a piece whole or not at all.
        here.write(rows)
        here.finish(here.stored()[:3])
        left = here.stored()
    else:
        # A task that was killed after it had written rows, before it wrote their line.
        runs.begin(here.here.store, here.run.entry(here.register.name, "0/0"), here.clock.now_ms())
        here.here.store.insert(rows[:3])
        here.finish(rows[:3])
        left = rows[3:]
    here.clock.advance(600)

    here.write(rows)

    # The one that is left came late, and was moved to now.
    assert [row.first or row.id for row in here.stored()] == [row.id for row in left]


def _cassandra() -> type:
    from shardq.stores.cassandra import CassandraStore

    return CassandraStore


@pytest.mark.parametrize("history", ["off", "1d"])
def test_a_try_over_an_hour_later_reports_what_is_in_doubt_and_writes_none_of_it(
    bench: Callable[..., Bench], history: str
) -> None:
    here = bench(history=history)
    store = here.here.store
    rows = here.rows(1_000, 2_000, 3_000, 4_000, 5_000, 3 * _HOUR)
    if store.is_local:
        # If there is no line, no row was written.
        here.clock.advance(2 * 3_600)
        assert here.write(rows).rows == 6
        assert {row.id for row in here.stored()} == {row.id for row in rows}
        return
    by_due = sorted(rows, key=lambda row: row.due_ms)
    runs.begin(store, here.run.entry(here.register.name, "0/0"), here.clock.now_ms())
    # The killed try had written two rows; one of the two messages was finished since.
    store.insert(by_due[:2])
    here.settler.ledger.enter(by_due[:2])
    here.finish(by_due[:1])
    here.clock.advance(2 * 3_600)

    tally = here.write(rows)

    doubtful = by_due[2:5] if history == "1d" else [by_due[0], *by_due[2:5]]
    assert tally.doubtful == len(doubtful)
    assert set(tally.doubtful_ids) == {row.name for row in doubtful}
    assert tally.rows == 6 - len(doubtful)
    written = {row.first or row.id for row in here.stored()}
    assert written == {by_due[1].id, by_due[5].id}
    assert here.write(rows).doubtful == len(doubtful)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("verb", ["recorded", "record", "insert"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_piece_is_written_though_the_store_fails_for_a_while(
    verb: str, applied: bool, local: bool
) -> None:
    with Stage(local=local) as stage:
        here = Bench(Home(stage._store, stage.clock), "mail")
        rows = here.rows(0, 60_000)
        stage.faults.fail(verb, times=2, applied=applied)
        assert here.write(rows).rows == 2
        assert {row.id for row in here.stored()} == {row.id for row in rows}
        stage.faults.fail("recorded", times=10)
        with pytest.raises(StoreUnavailable):
            here.write(rows)


@pytest.mark.parametrize(
    ("local", "verb"),
    [
        (False, "recorded"),
        (False, "record"),
        (False, "insert"),
        (True, "recorded"),
        (True, "insert"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_of_twins_that_write_a_piece_at_once_each_writes_the_same_rows(
    verb: str, after: bool, local: bool
) -> None:
    with Stage(local=local) as stage:
        here = Bench(Home(stage._store, stage.clock), "mail", history="1d")
        rows = here.rows(0, 30, 60_000)
        told: list[WriteTally] = []

        def twin() -> None:
            stage.clock.advance(0.02)
            told.append(here.write(rows))
            stage.clock.advance(0.02)

        stage.faults.call(verb, twin, after=after)
        told.append(here.write(rows))

        assert [one.rows for one in told] == [3, 3]
        assert sorted(row.id for row in here.stored()) == sorted(row.id for row in rows)
        here.finish(here.stored())
        here.write(rows)
        assert here.stored() == []


def test_a_piece_with_other_rows_than_before_is_refused(bench: Callable[..., Bench]) -> None:
    here = bench()
    rows = here.rows(60_000, 70_000)
    here.write(rows)
    changed = [rows[0], rows[1]._replace(body=b"other")]

    with pytest.raises(UsageError, match="has written other rows"):
        here.write(changed)

    assert here.stored() == rows


def test_what_is_written_while_its_run_is_undone_does_not_stay(
    bench: Callable[..., Bench],
) -> None:
    here = bench(history="1d")
    rows = here.rows(60_000, 70_000)

    class Overtaken(Pieces):
        """Undone by another process after it has looked, and before it has written."""

        def _insert(self, line: Mark, rows: list[Row]) -> Mark | None:
            runs.agreed(here.here.store, here.run.entry(here.register.name, UNDONE), {"rows": 2})
            here.undo(rows)
            return super()._insert(line, rows)

    with pytest.raises(UsageError, match="was unscheduled"):
        Overtaken(here.here, here.register, here.run).write(WritePiece("0", 0, rows, 0))

    assert here.stored() == []
    marks = here.here.store.recorded([entry_of(row) for row in rows])
    assert [mark.fate for mark in marks] == ["cancelled"] * 2


def test_undoing_deletes_the_rows_of_the_run_and_no_others(bench: Callable[..., Bench]) -> None:
    here = bench(history="1d")
    rows = here.rows(0, 40, 90_000, 95_000)
    here.clock.advance(5)
    here.write(rows)
    first, *_, last = here.stored()
    # One is delivered and comes again later, one was finished.
    move = here.settler.planner.move(first, here.clock.now_ms() + 600_000, attempt=1)
    here.settler.carry_out([move])
    here.finish([last])
    # Another run writes the same messages as rows of another time.
    other = Bench(here.here, here.register.name)
    other.run = SparkRun.new(here.run.as_of_us + 1)
    theirs = other.rows(90_000, 95_000)
    other.write(theirs)

    undone = here.undo(rows)

    assert undone.cancelled == 2
    assert {row.id for row in here.stored()} == {move.new.id, *(row.id for row in theirs)}
    assert here.undo(rows).cancelled == 2
    fates = [mark.fate for mark in here.here.store.recorded([entry_of(row) for row in rows])]
    assert sorted(map(str, fates)) == ["None", "acked", "cancelled", "cancelled"]


def test_what_came_too_late_for_its_minute_is_moved_to_now(bench: Callable[..., Bench]) -> None:
    here = bench()
    store = here.here.store
    rows = here.rows(0, 1, 900_000)
    runs.begin(store, here.run.entry(here.register.name, "0/0"), here.clock.now_ms() + 2)
    here.clock.advance(600)

    tally = here.write(rows)

    # On SQLite a try begins the piece anew, for nothing of it was written.
    assert tally.late == (0 if store.is_local else 2)
    stored = here.stored()
    assert {row.first or row.id for row in stored} == {row.id for row in rows}
    assert min(row.due_ms for row in stored) >= here.clock.now_ms() - _SECOND


@pytest.mark.parametrize("verb", ["find", "move", "insert", "recorded"])
def test_what_came_too_late_is_moved_to_now_though_the_store_fails_for_a_while(verb: str) -> None:
    with Stage() as stage:
        here = Bench(Home(stage._store, stage.clock), "mail")
        rows = here.rows(0, 1, 900_000)
        entry = here.run.entry(here.register.name, "0/0")
        runs.begin(here.here.store, entry, here.clock.now_ms() + 2)
        here.clock.advance(600)
        stage.faults.fail(verb, times=1, applied=True)

        assert here.write(rows).late == 2

        stored = here.stored()
        assert {row.first or row.id for row in stored} == {row.id for row in rows}
        assert min(row.due_ms for row in stored) >= here.clock.now_ms() - 2 * _SECOND


# Cutting ------------------------------------------------------------------------------------------


def _numbered(count: int, body: bytes = b"") -> list[Row]:
    with Stage() as stage:
        here = Bench(Home(stage._store, stage.clock), "mail")
        here.run = SparkRun.at(1_800_000_000_000_000)
        rows = here.rows(*range(60_000, 60_000 + count))
    return [row._replace(body=body) for row in rows]


@pytest.mark.parametrize("seed", range(5))
def test_pieces_are_the_same_however_rows_come_and_each_message_is_in_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PIECE_BYTES", 500)
    chance = random.Random(seed)
    rows = _numbered(100)
    for number in chance.sample(range(100), 10):
        rows[number] = rows[number]._replace(body=b"x" * 300)
    doubled = sorted([*rows, *chance.choices(rows, k=40)], key=lambda row: row[:3])

    def pieces() -> list[WritePiece]:
        cutter, found, left = Cutter("7", 13), [], list(doubled)
        while left:
            size = chance.randint(1, 30)
            found += cutter.add(left[:size])
            del left[:size]
        return [*found, *cutter.end()]

    first = pieces()
    assert [row for piece in first for row in piece.rows] == rows
    assert sum(piece.duplicates for piece in first) == 40
    assert [piece.part for piece in first] == [f"7/{number}" for number in range(len(first))]
    assert max(len(piece.rows) for piece in first) <= 13
    assert all(sum(len(row.body) for row in piece.rows) <= 500 for piece in first)
    # Which of a piece's rows was twice may follow from how they came; the rows may not.
    assert [piece.rows for piece in pieces()] == [piece.rows for piece in first]


def test_no_more_is_held_than_a_piece_has_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PIECE_BYTES", 1_000)
    cutter, rows = Cutter("0"), _numbered(100, b"x" * 300)
    # A row that comes twice is kept in memory once.
    doubled = [row for row in rows for _ in range(3)]
    cut = 0
    for number, row in enumerate(doubled):
        cut += sum(len(piece.rows) for piece in cutter.add([row]))
        assert number // 3 + 1 - cut <= 5
    assert cut + sum(len(piece.rows) for piece in cutter.end()) == 100


def test_of_two_rows_of_one_message_the_same_one_is_kept_whichever_comes_first() -> None:
    [row] = _numbered(1)
    other = row._replace(body=b"other", headers='{"a":"b"}')
    kept = []
    for pair in ([row, other], [other, row]):
        cutter = Cutter("0")
        kept += [piece.rows for piece in [*cutter.add(pair), *cutter.end()]]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 1


def test_a_body_larger_than_a_piece_is_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PIECE_BYTES", 100)
    cutter = Cutter("0", 10)
    rows = _numbered(3, b"x" * 101)
    assert [piece.rows for piece in [*cutter.add(rows), *cutter.end()]] == [[row] for row in rows]


def test_raised_rows_are_in_order_and_keep_the_due_that_was_asked_for() -> None:
    with Stage() as stage:
        here = Bench(Home(stage._store, stage.clock), "mail")
        rows = here.rows(0, 1, 59_000, 60_000, 61_000)
        at_ms = rows[0].due_ms + 60_000
        found = raised(rows, at_ms, here.register.layout)
    assert found == sorted(found, key=lambda row: row[:3])
    assert sorted(row.due_ms for row in found) == [at_ms] * 4 + [at_ms + 1_000]
    assert sorted(row.origin_ms or row.due_ms for row in found) == sorted(
        row.due_ms for row in rows
    )
    assert all(row.shard.minute == here.register.layout.minute_of(row.due_ms) for row in found)


# Rates, names -------------------------------------------------------------------------------------


def test_a_rate_holds_over_pieces_of_any_size() -> None:
    clock = ManualClock()
    pace = WritePace(clock, 100)
    begun_us = clock.boot_us()
    for rows in (10, 90, 1, 399, 500):
        pace.wait()
        pace.spend(rows)
    # The last piece has just begun: the 500 before it took 5 s.
    assert clock.boot_us() - begun_us == 5_000_000
    # An idle minute earns no extra rate.
    clock.advance(60)
    for rows in (100, 0, 100):
        pace.wait()
        pace.spend(rows)
    assert clock.boot_us() - begun_us == 66_000_000
    unbound = WritePace(clock, None)
    unbound.spend(1_000_000)
    unbound.wait()
    assert clock.boot_us() - begun_us == 66_000_000


def test_a_run_that_is_resumed_does_not_wait_for_what_it_finds_written() -> None:
    class Unopened(_Writer):
        def __init__(self) -> None:
            self._options = Options("sqlite://", "mail")

    with Stage() as stage:
        here = Bench(Home(stage._store, stage.clock), "mail")
        rows = here.rows(60_000, 70_000)
        written = [WritePiece("0", number, [row], 0) for number, row in enumerate(rows)]
        waits = []
        for _ in range(2):
            pace = WritePace(here.clock, 0.1)
            pieces = Pieces(here.here, here.register, here.run)
            begun_us = here.clock.boot_us()
            for piece in written:
                Unopened()._write_at(pace, pieces, piece)
            waits.append(here.clock.boot_us() - begun_us)
    assert waits == [10_000_000, 0]


def test_a_run_is_found_again_by_its_name_to_the_microsecond() -> None:
    run = SparkRun.new(1_800_000_000_123_456)
    assert SparkRun.read(run.id) == run
    assert run.id.startswith("20270115T080000.123456Z-")
    assert SparkRun.new(run.as_of_us) != run
    assert SparkRun.read("20270115T080000.123456Z") == SparkRun.at(run.as_of_us)
    for text in ("", "today", "20270115T080000Z", "20271315T080000.000000Z", run.id + "0"):
        with pytest.raises(UsageError, match="names no run"):
            SparkRun.read(text)


# Totals -------------------------------------------------------------------------------------------


def test_what_a_full_count_has_found_of_a_run_that_goes_on_is_counted_once(
    bench: Callable[..., Bench],
) -> None:
    here = bench()
    store, key = here.here.store, here.register.totals_key
    mender = Mender(store, here.clock, here.register)

    def count() -> int:
        counting = DepthCounter(store, here.clock, here.register).inventory()
        return result_of(mender.mend(counting), here.clock)[0]

    here.write(here.rows(7_200_000, 7_300_000))
    here.clock.advance(10)
    assert count() == 2
    runs.write_totals(store, here.register, here.run, Totals(put=2))
    assert [row.late_ms > 0 for row in stored_totals(store, key).gaps(here.clock.now_ms())] == [
        True
    ]
    here.clock.advance(10)
    assert count() == -2
    stored = stored_totals(store, key)
    assert (stored.totals.present, stored.gaps(here.clock.now_ms())) == (2, [])
