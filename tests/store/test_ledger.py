"""The contract of `Ledger`: what became of each message, and rows written with a line of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
from simulated.network import Weather
from simulated.scheduler import Process
from simulated.simulation import Simulation

from shardq.errors import StoreCorrupt, StoreError
from shardq.model.ids import RowIds, fixed
from shardq.model.message import Row
from shardq.model.shard import Position
from shardq.stores.store import (
    MINUTE_US,
    TRIES_MAX,
    Entry,
    Mark,
    RowMove,
    Try,
    WriteOnce,
)

if TYPE_CHECKING:
    from shardq.stores.store import Store

from store.parts import (
    BASE_MINUTE,
    BASE_MS,
    BASE_US,
    LONG_MS,
    TTL_MS,
    Lapse,
    in_order,
    make_row,
    read_back,
)


def make_entry(queue: str, after_us: int = 0) -> Entry:
    # A generator of its own: that of the process may be in the future of the ends by now.
    return Entry(queue, RowIds().next(BASE_US + after_us))


def a_put(entry: Entry, name: str | None = None) -> Mark:
    return Mark(entry, BASE_MS + 5, name)


def an_end(entry: Entry, fate: str = "acked", ended_ms: int = BASE_MS + 9) -> Mark:
    return Mark(entry, None, None, fate, ended_ms, 2, "me")


def both(put: Mark, end: Mark) -> Mark:
    return end._replace(due_ms=put.due_ms, name=put.name, task=put.task)


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


def test_the_task_of_a_put_is_told_with_and_without_a_name(store: Store, queue: str) -> None:
    puts = [
        a_put(make_entry(queue), name)._replace(task=task)
        for name in (None, "注文-7") for task in (None, "app.välkommen")
    ]  # fmt: skip
    ends = [an_end(put.entry) for put in puts]
    store.record([*puts, *ends], LONG_MS)
    told = {mark.entry: mark for mark in store.recorded([put.entry for put in puts])}
    assert [told[put.entry] for put in puts] == list(map(both, puts, ends))


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


def tries_of(store: Store, entry: Entry) -> set[str]:
    return {text for mark in store.recorded([entry]) for text in mark.tries}


def test_failed_attempts_are_told_beside_the_put_and_the_end(store: Store, queue: str) -> None:
    put = a_put(make_entry(queue), "order-7")
    failed = [
        Try(number, BASE_MS + number, 30 * number, f'{number}: \x00 "注文" null \\u0000\n')
        for number in (1, 2)
    ]
    tries = [Mark(put.entry, tries=(one.text(),)) for one in (*failed, Try(3, BASE_MS, None, ""))]
    # A consumer may be quicker than the producer: a try alone is no record yet.
    store.record(tries[:1], LONG_MS)
    assert store.recorded([put.entry]) == []
    assert list(store.history(queue, range(BASE_MINUTE, BASE_MINUTE + 1))) == []
    store.record([put, *tries[1:], tries[0]], LONG_MS)
    store.record([an_end(put.entry), tries[2]], LONG_MS)
    [mark] = store.recorded([put.entry])
    assert list(store.history(queue, range(BASE_MINUTE, BASE_MINUTE + 1))) == [mark]
    assert mark._replace(tries=()) == both(put, an_end(put.entry))
    assert set(mark.checked().tries) == {text for one in tries for text in one.tries}
    assert {Try.read(text) for text in mark.tries} >= set(failed)


def test_of_failed_attempts_the_last_hundred_are_kept(store: Store, queue: str) -> None:
    put = a_put(make_entry(queue))
    tries = [Try(number, BASE_MS + number, 5, "no").text() for number in range(1, TRIES_MAX + 3)]
    store.record([put, *(Mark(put.entry, tries=(one,)) for one in tries)], LONG_MS)
    assert tries_of(store, put.entry) == set(tries[2:])


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
    assert store.insert(rows, WriteOnce(line, LONG_MS, puts_of(rows), LONG_MS)) is None
    assert read_back(store, rows) == in_order(rows)
    assert store.recorded([line.entry]) == [line]
    assert sorted(store.recorded([mark.entry for mark in puts_of(rows)])) == sorted(puts_of(rows))


def test_what_has_a_line_is_not_written_again(store: Store, queue: str) -> None:
    rows, line = fixed_rows(queue, 20), a_line(queue)
    store.insert(rows, WriteOnce(line, LONG_MS))
    store.delete([row.position for row in rows[:10]])
    assert store.insert(rows, WriteOnce(line, LONG_MS, puts_of(rows), LONG_MS)) == line
    others = [make_row(queue, BASE_MS + 99)]
    assert store.insert(others, WriteOnce(line._replace(name="another"), LONG_MS)) == line
    assert read_back(store, [*rows, *others]) == in_order(rows[10:])
    assert store.recorded([mark.entry for mark in puts_of(rows)]) == []


def test_a_line_that_is_begun_is_not_written_yet(store: Store, queue: str) -> None:
    rows, line = fixed_rows(queue, 5), a_line(queue)
    begun = Mark(line.entry, None, None, "begun", BASE_MS + 3, 0, "me")
    store.record([begun], LONG_MS)
    assert store.insert(rows, WriteOnce(line, LONG_MS)) is None
    assert read_back(store, rows) == in_order(rows)
    told = both(line, begun)
    assert store.recorded([line.entry]) == [told]
    assert store.insert(rows, WriteOnce(line, LONG_MS)) == told


def test_what_was_written_in_part_is_completed(store: Store, queue: str) -> None:
    rows, line = fixed_rows(queue, 20), a_line(queue)
    store.insert(rows[:13])
    store.record(puts_of(rows[:7]), LONG_MS)
    assert store.insert(rows, WriteOnce(line, LONG_MS, puts_of(rows), LONG_MS)) is None
    assert read_back(store, rows) == in_order(rows)
    assert sorted(store.recorded([mark.entry for mark in puts_of(rows)])) == sorted(puts_of(rows))


def test_of_many_who_write_one_line_at_once_each_row_is_there_once(
    store: Store, queue: str
) -> None:
    rows, line = fixed_rows(queue, 100), a_line(queue)
    start = threading.Barrier(4)

    def write() -> Mark | None:
        start.wait()
        return store.insert(rows, WriteOnce(line, LONG_MS, puts_of(rows), LONG_MS))

    with ThreadPoolExecutor(4) as pool:
        told = [one.result() for one in [pool.submit(write) for _ in range(4)]]
    assert None in told
    assert set(told) <= {None, line}
    assert read_back(store, rows) == in_order(rows)


def moves_of(rows: list[Row], queue: str) -> list[RowMove]:
    """To another queue, at places that follow from the old ones."""
    return [
        RowMove(
            row.position, make_row(queue, row.due_ms + 7, row_id=fixed(BASE_US, f"to {row.name}"))
        )
        for row in rows
    ]


def marks_of(moves: list[RowMove]) -> dict[Position, list[Mark]]:
    """The end of each message in the one queue, and its put in the other."""
    return {
        move.old: [an_end(Entry(move.old.shard.queue, move.old.id)), *puts_of([move.new])]
        for move in moves
    }


def kept(queue: str) -> dict[str, int]:
    """How long both queues keep their marks."""
    return {queue: LONG_MS, queue + "x": LONG_MS}


def test_rows_move_with_their_marks(store: Store, queue: str) -> None:
    rows = fixed_rows(queue, 120)
    store.insert(rows)
    moves = moves_of(rows[20:], queue + "x")
    marks = marks_of(moves)
    assert store.move(moves, marks, kept(queue)) == set()
    assert read_back(store, rows) == in_order(rows[:20])
    new = [move.new for move in moves]
    assert read_back(store, new) == in_order(new)
    every = [mark for some in marks.values() for mark in some]
    assert sorted(store.recorded([mark.entry for mark in every])) == sorted(every)


def test_a_move_that_is_done_again_brings_back_nothing(store: Store, queue: str, kind: str) -> None:
    rows = fixed_rows(queue, 10)
    store.insert(rows)
    moves = moves_of(rows, queue + "x")
    store.move(moves, marks_of(moves), kept(queue))
    new = [move.new for move in moves]
    store.delete([row.position for row in new[:4]])
    gone = store.move(moves, marks_of(moves), kept(queue))
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
                        store.move(left, marks_of(left), {"dead": kept_ms, "mail": kept_ms})
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
                        store.insert(part, WriteOnce(line, kept_ms, puts_of(part), kept_ms))
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
    store.insert(rows[:1], WriteOnce(line, TTL_MS, puts_of(rows[:1]), LONG_MS))
    lapse(TTL_MS, lambda: not store.recorded([line.entry]))
    assert store.recorded([puts_of(rows)[0].entry]) == puts_of(rows[:1])
    assert store.insert(rows[1:], WriteOnce(line, LONG_MS)) is None
    assert read_back(store, rows) == in_order(rows)
    assert store.recorded([line.entry]) == [line]
