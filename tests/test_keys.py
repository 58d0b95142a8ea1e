"""Keys at the level of rows: who has a name, where its message is, and who is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from naming import Names

from shardq.errors import StoreCorrupt
from shardq.model import ids
from shardq.model.ids import row_ids
from shardq.records import keyrow
from shardq.records.keys import note_of
from shardq.records.register import Register
from shardq.records.standing import Is, StartRefusal
from shardq.stores import store_of
from shardq.stores.sqlite import SqliteStore
from shardq.stores.store import Store
from shardq.stores.tables import KEYS, PLACES
from shardq.testing.clock import ManualClock

NOW_US = 1_780_000_000_000_000
"""In the past of any real store, whose own clock deletes notes."""
TIMEOUT_MS = 2_000


class _Elsewhere(SqliteStore):
    """SQLite in memory in the place of a database whose writes may take long."""

    write_timeout_ms = TIMEOUT_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US)


@pytest.fixture(scope="module")
def cassandra_store(cassandra_url: str) -> Iterator[Store]:
    store = store_of(cassandra_url)
    store.open()
    yield store
    store.close()


@pytest.fixture(params=["elsewhere", "cassandra"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    if request.param == "cassandra":
        yield request.getfixturevalue("cassandra_store")
        return
    made = _Elsewhere(machine_us=clock.true_us)
    made.open(create=True)
    yield made
    made.close()


@pytest.fixture
def register(store: Store, clock: ManualClock) -> Register:
    name = f"q-{uuid.uuid4().hex[:16]}"
    return Register.open(store, clock, name, {}, create=True, is_clock_known=True)


@pytest.fixture
def queue(store: Store, clock: ManualClock, register: Register) -> Names:
    return Names(store, clock, register)


# Puts ---------------------------------------------------------------------------------------------


def test_a_name_whose_putter_has_a_clock_ahead_is_taken_over_by_ones_own_watch(
    queue: Names,
) -> None:
    row = queue.row()
    ahead = row._replace(id=row_ids.next(queue.clock.now_us() + 60_000_000))
    queue.crashed(queue.keys.put(ahead))
    assert queue.of().state is Is.PENDING
    watched = queue.keys.seek(["order-7"], watched_ms=queue.keys.patience_ms)
    assert watched["order-7"].state is Is.ENDED


def test_who_looked_before_a_slow_puts_row_was_there_is_refused_once_it_has_reported(
    queue: Names,
) -> None:
    slow = queue.keys.put(queue.row())
    late = queue.crashed(slow)
    queue.wait(2)
    seen = queue.of()
    assert seen.state is Is.ENDED
    queue.store.insert([late])
    assert queue.keys.displaced([slow]) == {}
    taking = queue.keys.put(queue.row(body=b"second"), seen)
    assert queue.keys.write([taking]) == {"order-7": keyrow.live_of(late)}
    assert queue.begins(late)


def test_a_slow_put_whose_message_began_or_was_moved_meanwhile_is_a_success(queue: Names) -> None:
    row = queue.row()
    put = queue.put(row)
    queue.wait(2)
    assert queue.begins(row)
    assert queue.keys.displaced([put]) == {}
    assert not any(queue.settler.place([queue.command(row)]))
    assert queue.keys.displaced([put]) == {}


def test_a_put_that_took_no_longer_than_a_write_may_asks_nothing(queue: Names) -> None:
    put = queue.put(queue.row())
    queue.clock.advance(queue.store.write_timeout_ms / 1e3)
    before = queue.store.counters.total()
    assert queue.keys.displaced([put]) == {}
    assert queue.store.counters.total() == before


# Begins and ends ----------------------------------------------------------------------------------


def test_what_was_begun_ahead_is_given_back_unless_it_was_cancelled(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    begun = queue.keys.begin(row)
    queue.keys.write([begun])
    assert queue.of().state is Is.RUNNING
    assert queue.keys.write([queue.keys.give_back(begun)]) == {}
    assert queue.of().state is Is.WAITING
    begun = queue.keys.begin(row)
    queue.keys.write([begun])
    queue.keys.write([queue.keys.doom(queue.of().key)])
    refused = queue.keys.write([queue.keys.give_back(begun)])
    assert refused == {"order-7": keyrow.doomed(keyrow.live_of(row))}


def test_a_crash_between_a_rows_delete_and_its_names_end_holds_up_no_put(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    queue.begins(row)
    queue.store.delete([row.position])
    standing = queue.of()
    assert standing.state is Is.ENDED
    second = queue.row()
    assert queue.keys.write([queue.keys.put(second, standing)]) == {}
    queue.keys.end([row])
    assert queue.begins(second)


def test_a_message_that_is_not_there_any_more_is_cleared_unless_it_has_changed(
    queue: Names,
) -> None:
    queue.crashed(queue.keys.put(queue.row()))
    queue.wait(2)
    ended = queue.of()
    row = queue.row()
    queue.keys.write([queue.keys.put(row, ended)])
    assert queue.keys.write([queue.keys.clear(ended.key)]) == {"order-7": keyrow.live_of(row)}
    assert queue.is_there(row)


# Moves --------------------------------------------------------------------------------------------


def test_a_move_by_a_clock_that_is_behind_is_found_too(queue: Names) -> None:
    row = queue.row()
    row = row._replace(id=row_ids.next(queue.clock.now_us() + 400_000))
    queue.put(row)
    ahead = queue.move(row, 5_000)
    row_ids.turn_back(0)
    behind = queue.move(ahead, 5_000)
    assert ids.birth_us(behind.id) == ids.birth_us(ahead.id) + 1
    assert queue.of()[1:3] == (behind, Is.WAITING)


def test_a_move_that_crashed_between_its_steps_leaves_a_row_to_be_found(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    new = queue.moves_to(row, 5_000)
    queue.store.insert([new])
    assert queue.of()[1:3] == (row, Is.WAITING)
    queue.note(new)
    assert queue.of()[1:3] == (new, Is.WAITING)


def test_a_note_that_comes_late_hides_neither_the_next_generation_nor_the_next_message(
    queue: Names,
) -> None:
    row = queue.row()
    queue.put(row)
    stray = queue.moves_to(row, 90_000)._replace(id=row_ids.next(queue.clock.now_us() + 10_000_000))
    command = queue.command(row)
    queue.settler.place([command])
    queue.note(stray)
    assert queue.of()[1:3] == (command.change.insert[0], Is.WAITING)
    queue.begins(command.change.insert[0])
    retried = queue.move(command.change.insert[0], 5_000)
    assert queue.of()[1:3] == (retried, Is.WAITING)
    queue.store.delete([retried.position])
    queue.keys.end([retried])
    second = queue.row()
    queue.put(second)
    queue.note(stray)
    assert queue.of()[1:3] == (second, Is.WAITING)


# Commands by key ----------------------------------------------------------------------------------


def test_a_row_that_a_crashed_command_left_is_found_where_it_has_moved(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    queue.crashed(queue.command(row).change)
    queue.wait(2)
    shared = queue.move(row, 5_000)
    assert queue.of()[1:3] == (shared, Is.WAITING)
    assert queue.refusal(shared) is StartRefusal.STRANDED


def test_a_stranded_row_comes_back_and_the_slow_command_is_told(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    command = queue.command(row)
    late = queue.crashed(command.change)
    queue.wait(2)
    back = queue.keys.re_place(queue.of().key, row)
    assert not any(queue.settler.place([back]))
    queue.store.insert([late])
    assert queue.keys.displaced([command.change]).keys() == {"order-7"}
    assert not queue.begins(late)
    assert queue.refusal(late) is StartRefusal.COPY
    [new] = back.change.insert
    assert (new.body, new.due_ms, new.order) == (row.body, row.due_ms, row.order)
    assert queue.begins(new)


def test_a_replaced_row_is_a_copy_only_once_nobody_can_go_by_it_any_more(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    late = queue.crashed(queue.command(row).change)
    queue.wait(2)
    other = queue.command(row)
    queue.store.insert([late])
    assert queue.refusal(row) is StartRefusal.COPY
    assert queue.settler.place([other]).refused == {"order-7"}


def test_an_old_copy_of_what_has_begun_since_is_not_brought_back(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    command = queue.command(row)
    queue.settler.place([command])
    queue.store.insert([row])
    [new] = command.change.insert
    queue.begins(new)
    queue.store.delete([new.position])
    queue.wait(2)
    assert queue.refusal(row) is StartRefusal.COPY
    assert queue.of().state is Is.ENDED


# The tables ---------------------------------------------------------------------------------------


def test_a_damaged_note_says_which_and_what_to_do(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    note = note_of(row)
    queue.store.note(PLACES, note.partition, {note.key: ("nowhere", 1)})
    with pytest.raises(StoreCorrupt, match=r"the place of its message .* is 'nowhere'; delete"):
        queue.of()


def test_the_rows_of_both_tables_stay_apart(queue: Names) -> None:
    row = queue.row()
    queue.put(row)
    row = queue.move(row, 5_000)
    note = note_of(row)
    assert [*queue.store.records(KEYS, note.partition)] == ["order-7"]
