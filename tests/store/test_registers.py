"""The contract of `Registers`: notes, written plainly, and records, by compare and set alone."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simulated.network import Weather
from simulated.simulation import Simulation

from shardq.errors import StoreError
from shardq.model.ids import row_ids
from shardq.model.shard import MINUTE_MS
from shardq.stores.sqlite import SqliteStore
from shardq.stores.sqlite import registers as sqlite
from shardq.stores.store import RowMove
from shardq.stores.tables import (
    LANES,
    MEMBERS,
    PLACES,
    QUEUES,
    RESULTS,
    STATS,
    TABLES,
    Change,
    Column,
    Kind,
    Lapse,
    Note,
    QueueRecord,
    ResultNote,
    Table,
)
from store.parts import BASE_MINUTE, BASE_MS, LONG_MS, TTL_MS, in_order, make_row, read_back
from store.parts import Lapse as Elapse

if TYPE_CHECKING:
    from simulated.scheduler import Process

    from shardq.stores.store import Store

CQL = "".join(path.read_text() for path in (Path(__file__).parents[2] / "cql").glob("*.cql"))


# Notes --------------------------------------------------------------------------------------------


def test_a_note_says_what_was_written_last(store: Store, queue: str) -> None:
    assert store.notes(MEMBERS, (queue,)) == {}
    long = '{"ü":"' + "x" * 4_000 + '"}'
    store.note(MEMBERS, (queue,), {"one": "{}", "two": long}, LONG_MS)
    store.note(MEMBERS, (queue + "x",), {"three": "{}"}, LONG_MS)
    store.note(MEMBERS, (queue,), {"one": '{"busy":1}'}, LONG_MS)
    assert store.notes(MEMBERS, (queue,)) == {"one": '{"busy":1}', "two": long}
    assert store.notes(MEMBERS, (queue,), ["two", "three"]) == {"two": long}
    assert store.notes(MEMBERS, (queue,), []) == {}


def test_notes_of_several_columns_and_keys_come_back(store: Store, queue: str) -> None:
    first, second = ("注文 7", "id-1"), ("b", "id-2")
    places = {first: ("here", BASE_MS), second: ("there", BASE_MS + 1)}
    store.note(PLACES, (queue, 1), places)
    store.note(PLACES, (queue, 2), {second: ("elsewhere", BASE_MS + 2)})
    store.note(PLACES, (queue + "x", 1), {("c", "id-3"): ("far", 1)})
    assert store.notes(PLACES, (queue, 1)) == places
    assert store.notes(PLACES, (queue, 2)) == {second: ("elsewhere", BASE_MS + 2)}
    assert store.notes(PLACES, (queue, 1), [second, ("c", "id-3")]) == {second: places[second]}
    assert store.notes(PLACES, (queue, 1), [("c", "id-3"), first]) == {first: places[first]}
    totals = {(8, "one"): "{}", (7, "two"): "{}", (100, "one"): '{"ü":"' + "x" * 16_000 + '"}'}
    store.note(STATS, (queue,), totals)
    assert store.notes(STATS, (queue,)) == totals
    asked = [(100, "one"), (7, "one"), (7, "two")]
    assert store.notes(STATS, (queue,), asked) == {
        key: totals[key] for key in asked if key in totals
    }


def test_notes_of_several_partitions_are_read_together(store: Store, queue: str) -> None:
    one, other, none = f"{queue}-1", f"{queue}-2", f"{queue}-3"
    store.note(MEMBERS, (one,), {"ada": "{}", "bob": "[]"}, 60_000)
    store.note(MEMBERS, (other,), {"ada": "1"}, 60_000)
    found = store.notes_of(MEMBERS, [(one,), (other,), (none,)])
    assert found == {
        (one,): {"ada": "{}", "bob": "[]"},
        (other,): {"ada": "1"},
        (none,): {},
    }
    assert store.notes_of(MEMBERS, []) == {}


def test_hundreds_of_notes_are_written_and_read_by_key(store: Store, queue: str) -> None:
    places = {(f"key-{number}", "id"): (f"at-{number}", number) for number in range(450)}
    store.note(PLACES, (queue, 0), places)
    assert store.notes(PLACES, (queue, 0), list(places)[1:]) == dict(list(places.items())[1:])
    assert store.notes(PLACES, (queue, 0)) == places
    store.erase(PLACES, (queue, 0), list(places)[2:])
    assert store.notes(PLACES, (queue, 0)) == dict(list(places.items())[:2])


def test_of_notes_with_a_latest_column_the_highest_stands(store: Store, queue: str) -> None:
    assert store.notes(LANES, (queue,)) == {}
    store.note(LANES, (queue,), {0: BASE_MINUTE, 3: BASE_MINUTE + 1})
    assert store.notes(LANES, (queue,)) == {0: BASE_MINUTE, 3: BASE_MINUTE + 1}
    store.note(LANES, (queue,), {0: BASE_MINUTE - 1, 3: BASE_MINUTE + 5, 1: 7})
    store.note(LANES, (queue,), {3: BASE_MINUTE + 5})
    assert store.notes(LANES, (queue,)) == {0: BASE_MINUTE, 1: 7, 3: BASE_MINUTE + 5}
    assert store.notes(LANES, (queue + "x",)) == {}


def test_an_erased_note_is_gone_alone_and_may_be_written_again(store: Store, queue: str) -> None:
    store.note(STATS, (queue,), dict.fromkeys([(7, "one"), (7, "two"), (8, "one")], "{}"))
    store.note(STATS, (queue + "x",), {(7, "one"): "{}"})
    store.erase(STATS, (queue,), [])
    for _ in range(2):
        store.erase(STATS, (queue,), [(7, "one"), (8, "one"), (9, "none")])
        assert store.notes(STATS, (queue,)) == {(7, "two"): "{}"}
    assert store.notes(STATS, (queue + "x",)) == {(7, "one"): "{}"}
    store.note(STATS, (queue,), {(7, "one"): '{"put":1}'})
    assert store.notes(STATS, (queue,)) == {(7, "one"): '{"put":1}', (7, "two"): "{}"}


@pytest.mark.parametrize("table", [MEMBERS, RESULTS], ids=["since boot", "wall clock"])
def test_a_note_ends_with_its_time_to_live(
    store: Store, queue: str, lapse: Elapse, table: Table[Any, Any]
) -> None:
    is_member = table is MEMBERS
    partition = (queue,) if is_member else ()
    silent, loud = ("silent", "loud") if is_member else ((queue, "silent"), (queue, "loud"))

    def value(written: int) -> object:
        return "{}" if is_member else ResultNote("done", 1, b"", "", "", 0, "", 0, written)

    store.note(table, partition, {silent: value(1), loud: value(1)}, TTL_MS)
    store.note(table, partition, {loud: value(2)}, LONG_MS)
    lapse(TTL_MS, lambda: silent not in store.notes(table, partition, [silent, loud]))
    both = [silent, loud]
    assert store.notes(table, partition, both) == {loud: value(2)}
    store.note(table, partition, {silent: value(3)}, LONG_MS)
    assert store.notes(table, partition, both) == {silent: value(3), loud: value(2)}


def result(state: str, written: int, value: bytes = b"") -> ResultNote:
    return ResultNote(state, 1, value, "", "", -1, "", BASE_MS, written)


def test_notes_whose_keys_are_partitions_are_found_by_their_whole_key(
    store: Store, queue: str
) -> None:
    large = bytes(range(256)) * 4_096
    notes = {
        (queue, "id-1"): result("done", BASE_MS, large),
        (queue, "注文 7"): ResultNote("retrying", 3, b"", "é", "tb", 500_000, "half", 7, BASE_MS),
        (f"{queue}x", "id-1"): result("running", BASE_MS),
    }
    store.note(RESULTS, (), notes, LONG_MS)
    assert store.notes(RESULTS, (), list(notes)) == notes
    asked = [(queue, "id-1"), (queue, "id-2"), (f"{queue}x", "注文 7")]
    assert store.notes(RESULTS, (), asked) == {(queue, "id-1"): notes[queue, "id-1"]}
    assert isinstance(store.notes(RESULTS, (), asked)[queue, "id-1"], ResultNote)
    assert store.notes(RESULTS, (), []) == {}


def test_of_such_notes_the_latest_stands_until_its_time_to_live_is_over(
    store: Store, queue: str, lapse: Elapse
) -> None:
    one, two = (queue, "one"), (queue, "two")
    store.note(RESULTS, (), {one: result("done", 7), two: result("running", 7)}, TTL_MS)
    store.note(RESULTS, (), {one: result("running", 6), two: result("done", 8)}, LONG_MS)
    assert store.notes(RESULTS, (), [one, two]) == {one: result("done", 7), two: result("done", 8)}
    lapse(TTL_MS, lambda: one not in store.notes(RESULTS, (), [one, two]))
    assert store.notes(RESULTS, (), [one, two]) == {two: result("done", 8)}


def test_nothing_is_asked_for_no_notes_and_no_changes(store: Store, queue: str) -> None:
    before = store.counters.copy()
    store.note(LANES, (queue,), {})
    store.erase(STATS, (queue,), [])
    assert store.write_records(STATS, []) == {}
    assert store.counters == before


def test_a_table_takes_no_write_of_the_other_kind(store: Store, queue: str) -> None:
    record = QueueRecord("{}", b"s" * 32, 1)
    with pytest.raises(ValueError, match="records alone"):
        store.note(QUEUES, (), {queue: record})
    with pytest.raises(ValueError, match="records alone"):
        store.erase(QUEUES, (), [queue])
    with pytest.raises(ValueError, match="notes alone"):
        store.write_records(MEMBERS, [Change((queue,), ("one",), {"info": None}, None)])
    assert store.records(QUEUES, (), [queue]) == {}


# Records ------------------------------------------------------------------------------------------


def write_queue(store: Store, name: str, record: QueueRecord, seen: int | None) -> int | None:
    """The version by which a change of one queue's record is refused; None where it is not."""
    refused = store.write_records(
        QUEUES, [Change((), (name,), {"version": seen}, record._asdict())]
    )
    assert refused.keys() <= {((), (name,))}
    return next((present["version"] or 0 for present in refused.values()), None)


def test_a_record_that_was_never_written_is_not_there(store: Store, queue: str) -> None:
    store.insert([make_row(queue)])
    assert store.records(QUEUES, (), [queue]) == {}
    assert queue not in store.notes(QUEUES, ())


def test_records_come_back_by_name_and_are_listed(store: Store, queue: str) -> None:
    record = QueueRecord('{"lanes":4,"ü":"注"}', bytes(range(32)), 1)
    names = [queue + suffix for suffix in ("", ".dead", "-b", "Z", "_a")]
    made = [Change((), (name,), {"version": None}, record._asdict()) for name in names]
    assert store.write_records(QUEUES, made) == {}
    found = store.records(QUEUES, (), [*names, queue + "no"])
    assert found == dict.fromkeys(names, record)
    assert isinstance(found[queue], QueueRecord)
    assert {name for name in store.notes(QUEUES, ()) if name.startswith(queue)} == set(names)


def test_a_record_is_changed_only_where_it_is_as_it_was_seen(store: Store, queue: str) -> None:
    def write(seen: int | None, settings: str) -> int | None:
        record = QueueRecord(settings, b"s" * 32, (seen or 0) + 1)
        return write_queue(store, queue, record, seen)

    assert write(1, "too new") == 0
    assert store.records(QUEUES, (), [queue]) == {}
    assert write(None, "a") is None
    assert write(None, "b") == 1
    assert write(None, "a") == 1, "the very same may be another's"
    assert write(2, "c") == 1
    assert write(1, "d") is None
    assert write(1, "e") == 2
    assert write(None, "f") == 2
    assert store.records(QUEUES, (), [queue]) == {queue: QueueRecord("d", b"s" * 32, 2)}


def test_of_many_who_change_a_record_at_once_one_wins_each_version(
    store: Store, queue: str
) -> None:
    start = threading.Barrier(8)

    def race(thread: int) -> list[bool]:
        outcomes = []
        for seen in (None, 1, 2):
            start.wait(60)
            record = QueueRecord(f"{thread}", bytes([thread]) * 32, (seen or 0) + 1)
            outcomes.append(write_queue(store, queue, record, seen) is None)
        return outcomes

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(race, range(8)))
    assert [sum(won) for won in zip(*outcomes, strict=True)] == [1, 1, 1]
    last = next(thread for thread in range(8) if outcomes[thread][2])
    assert store.records(QUEUES, (), [queue])[queue] == QueueRecord(
        f"{last}", bytes([last]) * 32, 3
    )


def change(queue: str, member: str, seen: str | None, new: str | None, **more: Any) -> Change:
    """A change of a row of totals."""
    totals = None if new is None else {"totals": new}
    return Change((queue,), (7, member), {"totals": seen}, totals, **more)


def test_several_records_are_written_by_one_call(store: Store, queue: str) -> None:
    long = '{"ü":"' + "x" * 32_000 + '"}'
    made = [change(queue, name, None, new) for name, new in (("a", "a1"), ("b", "b1"), ("c", long))]
    elsewhere = change(queue + "x", "a", None, "x1")
    assert store.write_records(STATS, [*made, elsewhere]) == {}
    assert store.records(STATS, (queue,)) == {(7, "a"): "a1", (7, "b"): "b1", (7, "c"): long}
    more = [
        change(queue, "a", "a1", "a2"),
        change(queue + "x", "a", "x1", "x2"),
        change(queue, "c", long, "c2"),
        change(queue, "d", None, "d2"),
    ]
    assert store.write_records(STATS, more) == {}
    wanted = {(7, "a"): "a2", (7, "b"): "b1", (7, "c"): "c2", (7, "d"): "d2"}
    assert store.records(STATS, (queue,)) == wanted
    assert store.records(STATS, (queue,), [(7, "d"), (8, "d"), (7, "a")]) == {
        (7, "a"): "a2",
        (7, "d"): "d2",
    }
    assert store.records(STATS, (queue + "x",)) == {(7, "a"): "x2"}


def test_each_change_holds_by_itself_and_those_refused_are_told(store: Store, queue: str) -> None:
    store.write_records(STATS, [change(queue, name, None, f"{name}1") for name in "abcd"])
    asked = [
        change(queue, "a", "a1", "a2"),
        change(queue, "b", "old", "b2"),
        change(queue, "c", None, "c2"),
        change(queue, "d", "d1", None),
        change(queue, "e", "gone", "e2"),
        change(queue, "f", None, "f2"),
    ]
    told = {"b": "b1", "c": "c1", "e": None}
    assert store.write_records(STATS, asked) == {
        ((queue,), (7, name)): {"totals": there} for name, there in told.items()
    }
    wanted = {(7, "a"): "a2", (7, "b"): "b1", (7, "c"): "c1", (7, "f"): "f2"}
    assert store.records(STATS, (queue,)) == wanted


def test_of_hundreds_each_that_is_as_seen_is_changed(store: Store, queue: str) -> None:
    taken = [f"m{number}" for number in range(0, 330, 7)]
    store.write_records(STATS, [change(queue, name, None, "taken") for name in taken])
    asked = [change(f"{queue}{n % 2 or ''}", f"m{n}", None, f"{n}") for n in range(330)]
    refused = store.write_records(STATS, asked)
    assert refused == {
        ((queue,), (7, name)): {"totals": "taken"} for name in taken if int(name[1:]) % 2 == 0
    }
    wanted = {(7, f"m{n}"): f"{n}" for n in range(0, 330, 2)} | {
        (7, name): "taken" for name in taken
    }
    assert store.records(STATS, (queue,)) == wanted
    assert store.records(STATS, (f"{queue}1",)) == {(7, f"m{n}"): f"{n}" for n in range(1, 330, 2)}


def test_changes_of_one_record_in_one_call_follow_each_other(store: Store, queue: str) -> None:
    twins = [change(queue, "a", None, "first"), change(queue, "a", None, "second")]
    assert store.write_records(STATS, twins) == {((queue,), (7, "a")): {"totals": "first"}}
    assert store.records(STATS, (queue,)) == {(7, "a"): "first"}
    chain = [change(queue, "a", "first", "second"), change(queue, "a", "second", "third")]
    assert store.write_records(STATS, chain) == {}
    assert store.records(STATS, (queue,)) == {(7, "a"): "third"}


def test_a_deleted_record_is_gone_and_its_name_is_free(store: Store, queue: str) -> None:
    store.write_records(STATS, [change(queue, name, None, f"{name}1") for name in "ab"])
    both = [change(queue, "a", "a1", None), change(queue, "b", "b1", "b2")]
    assert store.write_records(STATS, both) == {}
    assert store.records(STATS, (queue,)) == store.notes(STATS, (queue,)) == {(7, "b"): "b2"}
    gone = {((queue,), (7, "a")): {"totals": None}}
    assert store.write_records(STATS, [change(queue, "a", "a1", "a2")]) == gone
    assert store.write_records(STATS, [change(queue, "a", "a1", None)]) == {}, "gone is gone"
    assert store.write_records(STATS, [change(queue, "a", None, "a2")]) == {}
    assert store.write_records(STATS, [change(queue, "a", "a1", None)]) == {
        ((queue,), (7, "a")): {"totals": "a2"}
    }
    assert store.write_records(STATS, [change(queue, "a", "a2", None)]) == {}
    assert store.write_records(STATS, [change(queue, "b", "b2", None)]) == {}
    assert store.records(STATS, (queue,)) == {}


def test_a_change_that_is_repeated_counts_as_applied(store: Store, queue: str) -> None:
    made = [change(queue, name, None, f"{name}1") for name in "ab"]
    for _ in range(2):
        assert store.write_records(STATS, made) == {}
    other = [change(queue, name, None, f"{name}2") for name in "ab"]
    assert len(store.write_records(STATS, other)) == 2
    # A change to the value that was there before proves nothing.
    same = change(queue, "a", "a1", "a1")
    assert store.write_records(STATS, [same]) == {}
    store.write_records(STATS, [change(queue, "a", "a1", "a9")])
    assert store.write_records(STATS, [same]) == {((queue,), (7, "a")): {"totals": "a9"}}


def test_rows_go_with_the_changes_that_are_applied_and_with_no_other(
    store: Store, queue: str
) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in range(6)]
    store.insert(rows[:2])
    store.write_records(STATS, [change(queue, "taken", None, "1")])
    asked = [
        change(queue, "a", None, "a1", insert=(rows[2],), delete=(rows[0].position,)),
        change(queue, "taken", None, "2", insert=(rows[3],), delete=(rows[1].position,)),
        change(queue, "b", None, "b1", insert=(rows[4],)),
        change(queue, "b", None, "b2", insert=(rows[5],)),
    ]
    assert set(store.write_records(STATS, asked)) == {
        ((queue,), (7, "taken")),
        ((queue,), (7, "b")),
    }
    assert read_back(store, rows) == [rows[1], rows[2], rows[4]]
    # A repeat of the changes changes nothing.
    assert len(store.write_records(STATS, asked)) == 2
    assert read_back(store, rows) == [rows[1], rows[2], rows[4]]


def test_a_row_moves_with_its_note(store: Store, queue: str) -> None:
    olds = [make_row(queue, BASE_MS + n) for n in range(30)]
    news = [make_row(queue, BASE_MS + MINUTE_MS + n) for n in range(30)]
    store.insert(olds)
    store.move(
        RowMove(old.position, new, Note(STATS, (queue,), (7, f"{n}"), f"{n}") if n % 3 else None)
        for n, (old, new) in enumerate(zip(olds, news, strict=True))
    )
    assert read_back(store, [*olds, *news]) == news
    assert store.notes(STATS, (queue,)) == {(7, f"{n}"): f"{n}" for n in range(30) if n % 3}
    seals = [Note(LANES, (queue,), 1, minute) for minute in (7, 9, 8)]
    back = [make_row(queue, BASE_MS + n) for n in range(3)]
    moves = [RowMove(news[n].position, back[n], note) for n, note in enumerate(seals)]
    for move in moves:
        store.move([move])
    assert store.notes(LANES, (queue,)) == {1: 9}
    again = [RowMove(one.new.position, make_row(queue, BASE_MS, 3), one.note) for one in moves[:1]]
    assert store.move(again) == set()
    assert read_back(store, [*olds, *news, again[0].new]) == [
        *in_order([*back[1:], *news[3:], again[0].new])
    ]


def test_of_writers_that_have_seen_the_same_one_writes(store: Store, queue: str) -> None:
    store.write_records(STATS, [change(queue, name, None, "0") for name in "ab"])
    start = threading.Barrier(8)

    def write(number: int) -> set[str]:
        mine = [change(queue, name, "0", f"{name}{number}") for name in "ab"]
        start.wait(60)
        refused = store.write_records(STATS, mine if number % 2 else mine[::-1])
        return {"a", "b"} - {str(key[1]) for _, key in refused}

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(write, range(8)))
    for name in "ab":
        [won] = [number for number in range(8) if name in told[number]]
        assert store.records(STATS, (queue,))[7, name] == f"{name}{won}"


def test_changes_of_a_partition_cost_one_lwt(store: Store, queue: str) -> None:
    before = store.counters["lwt"]
    many = [change(queue, f"m{number}", None, f"{number}") for number in range(50)]
    assert store.write_records(STATS, many) == {}
    assert store.counters["lwt"] == before + 1
    assert len(store.records(STATS, (queue,))) == 50


NAMES: Table[str, tuple[bytes | None, str | None, int | None, int | None]] = Table(
    "contract",
    partition=(Column("queue"), Column("bucket", Kind.INT)),
    key=(Column("key"),),
    values=(
        Column("message", Kind.TIMEUUID),
        Column("state"),
        Column("due", Kind.TIMESTAMP, local="due_ms"),
        Column("generation", Kind.INT),
    ),
    has_notes=False,
    has_records=True,
    nonce="nonce",
    lapse=Lapse.WALL,
)
"""A table of the kinds that the others lack: records that run out, and columns without a value."""
SQL = """\
CREATE TABLE contract (queue TEXT NOT NULL, bucket INTEGER NOT NULL, key TEXT NOT NULL,
    message BLOB, state TEXT, due_ms INTEGER, generation INTEGER,
    until_us INTEGER, PRIMARY KEY (queue, bucket, key)) WITHOUT ROWID"""
CQL_MADE = """\
CREATE TABLE IF NOT EXISTS {}.contract (queue text, bucket int, key text, message timeuuid,
    state text, due timestamp, generation int, nonce text, PRIMARY KEY ((queue, bucket), key))"""


@pytest.fixture
def named(store: Store, kind: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store, with that table."""
    if isinstance(store, SqliteStore):
        monkeypatch.setitem(sqlite.STATEMENTS, NAMES, sqlite.statements_of(NAMES))
        with store._database.transaction() as connection:
            connection.execute(SQL)
    elif kind == "cassandra":
        from shardq.stores.cassandra import CassandraStore, statements

        assert isinstance(store, CassandraStore)
        monkeypatch.setitem(statements.STATEMENTS, NAMES, statements.statements_of(NAMES))
        store._session.ask(CQL_MADE.format(store.address.keyspace))
    return store


def name(key: str, seen: dict[str, Any], new: dict[str, Any] | None, **more: Any) -> Change:
    return Change((more.pop("queue"), 5), (key,), seen, new, **more)


def test_records_of_every_kind_of_column_come_back_and_are_told(named: Store, queue: str) -> None:
    change, one, two = partial(name, queue=queue), row_ids.next(1), row_ids.next(2)
    place, columns = (queue, 5), ("message", "state", "due", "generation")
    first = {"a": (one, "waits", BASE_MS, 1), "b": (None, "free", None, 7)}
    made = [
        change(key, {"state": None}, dict(zip(columns, values, strict=True)))
        for key, values in first.items()
    ]
    assert named.write_records(NAMES, made) == {}
    assert named.records(NAMES, place) == named.notes(NAMES, place, ["b", "a"]) == first
    assert named.records(NAMES, (queue, 6)) == {}
    wrong = [
        change("a", {"message": two, "due": BASE_MS}, {"state": "runs"}),
        change("b", {"message": None, "state": "free", "generation": 8}, {"due": 5}),
        change("c", {"state": "waits", "due": 7}, {"state": "runs"}),
    ]
    told = {
        "a": {"message": one, "due": BASE_MS},
        "b": {"message": None, "state": "free", "generation": 7},
        "c": {"state": None, "due": None},
    }
    refused = {(place, (key,)): present for key, present in told.items()}
    assert named.write_records(NAMES, wrong) == refused
    for one_wrong in wrong:
        assert named.write_records(NAMES, [one_wrong]) == {
            one_wrong.place: refused[one_wrong.place]
        }
    right = [
        change("a", {"message": one, "due": BASE_MS}, {"state": "runs", "message": two}),
        change("b", {"message": None, "generation": 7}, None),
        change("c", {"state": None}, {"state": "waits", "generation": 1}),
    ]
    assert named.write_records(NAMES, right) == {}
    assert named.records(NAMES, place) == {
        "a": (two, "runs", BASE_MS, 1),
        "c": (None, "waits", None, 1),
    }


def test_whoever_writes_the_very_same_is_told_apart_by_the_nonce(named: Store, queue: str) -> None:
    same = [name(key, {"state": None}, {"state": "free"}, queue=queue) for key in "ab"]
    assert named.write_records(NAMES, same) == {}
    refused = {one.place: {"state": "free"} for one in same}
    assert named.write_records(NAMES, same) == refused
    assert named.write_records(NAMES, same[:1]) == {same[0].place: {"state": "free"}}


def test_a_record_ends_with_its_time_to_live_and_leaves_no_row(
    named: Store, queue: str, lapse: Elapse
) -> None:
    change, place = partial(name, queue=queue), (queue, 5)
    columns = ("message", "state", "due", "generation")

    def all_of(state: str) -> dict[str, Any]:
        return dict(zip(columns, (None, state, BASE_MS, 1), strict=True))

    def texts() -> dict[str, Any]:
        return {key: values[1] for key, values in named.records(NAMES, place).items()}

    made = [change(key, {"state": None}, all_of("waits")) for key in "ab"]
    assert named.write_records(NAMES, made) == {}
    brief = [
        change("a", {"state": "waits"}, all_of("free"), ttl_ms=TTL_MS),
        change("c", {"state": None}, all_of("free"), ttl_ms=TTL_MS),
    ]
    assert named.write_records(NAMES, brief) == {}
    lapse(TTL_MS, lambda: not {"a", "c"} & texts().keys())
    assert texts() == {"b": "waits"}
    # Not before: of two reads beside a time to live that ends, only the second may find it ended.
    assert named.notes(NAMES, place) == named.records(NAMES, place)
    assert named.records(NAMES, place, ["a", "c"]) == {}
    late = change("a", {"state": "free"}, all_of("waits"))
    assert named.write_records(NAMES, [late]) == {late.place: {"state": None}}
    assert named.write_records(NAMES, [change("a", {"state": None}, all_of("new"))]) == {}
    # A value without a TTL stays, though an earlier one had a TTL.
    more = [
        change("b", {"state": "waits"}, all_of("free"), ttl_ms=TTL_MS),
        change("b", {"state": "free"}, all_of("waits")),
        change("d", {"state": None}, all_of("free"), ttl_ms=TTL_MS),
    ]
    assert named.write_records(NAMES, more) == {}
    lapse(TTL_MS, lambda: "d" not in texts())
    assert texts() == {"a": "new", "b": "waits"}


@pytest.mark.parametrize("local", [False, True], ids=["nodes", "machine"])
@pytest.mark.parametrize("seed", range(5))
def test_twins_count_each_change_once_whatever_their_calls_meet(seed: int, local: bool) -> None:
    weather = Weather(refused=0.1, lost=0.1, unanswered=0.1, late=0.1, twice=0.1)
    applied: list[str] = []

    with Simulation(seed, weather, local=local) as simulation:

        def count(process: Process) -> None:
            store = simulation.store(process)
            for turn in range(20):
                with suppress(StoreError):
                    seen = store.records(STATS, ("mail",)).get((7, "a"))
                    mine = f"{process.name}/{turn}"
                    if not store.write_records(STATS, [change("mail", "a", seen, mine)]):
                        applied.append(mine)

        told: list[str] = []
        simulation.cells.on_note = lambda _table, _partition, _key, new: told.append(new)
        for one in ("one", "twin"):
            process = simulation.process(one)
            simulation.spawn(process, partial(count, process))
        simulation.run(600)
        assert len(told) == len(set(told)), "no change is applied twice"
        assert set(applied) <= set(told), "what is told to be written was written"
        assert len(applied) > 3
        found = simulation.store(None).records(STATS, ("mail",))
        assert found == {(7, "a"): told[-1]}


# What the tables are ------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_a_table_is_what_cql_makes(table: Table[object, object]) -> None:
    [made] = re.findall(rf"CREATE TABLE IF NOT EXISTS {table.name} \((.*?)\n\)", CQL, re.DOTALL)
    kinds = dict(re.findall(r'^ {4}"?(\w+)"? (\w+)(?: PRIMARY KEY)?,', made, re.MULTILINE))
    kinds |= dict(re.findall(r'^ {4}"?(\w+)"? (\w+) +-- ', made, re.MULTILINE))
    columns = {one.name: one.kind.value for one in (*table.partition, *table.key, *table.values)}
    if table.nonce:
        columns[table.nonce] = "text"
    assert kinds == columns
    names = [f'"{one.name}"' if one.name == "group" else one.name for one in table.key]
    place = f"PRIMARY KEY (({', '.join(one.name for one in table.partition)}), {', '.join(names)})"
    if not table.partition:
        key = f"PRIMARY KEY (({', '.join(names)}))"
        place = f"{names[0]} text PRIMARY KEY" if len(names) == 1 else key
    assert place in made


@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_a_table_is_what_sqlite_has(table: Table[object, object]) -> None:
    store = SqliteStore()
    store.open()
    with store._database.reading() as connection:
        made = connection.execute(f"PRAGMA table_info({table.name})").fetchall()
    store.close()
    kinds = {"int": "INTEGER", "bigint": "INTEGER", "timestamp": "INTEGER", "text": "TEXT"}
    lapse = {"never": 0, "wall": 1, "boot": 4}[table.lapse.value]

    def said(columns: tuple[Column, ...]) -> list[tuple[str, str]]:
        return [(one.local or one.name, kinds.get(one.kind.value, "BLOB")) for one in columns]

    told = [(name, kind) for _, name, kind, *_ in made]
    written = said((*table.partition, *table.key, *table.values))
    assert told[: len(written)] == written
    assert len(told) == len(written) + lapse
    keys = [name for _, name, _, _, _, place in made if place]
    assert keys == [name for name, _ in said((*table.partition, *table.key))]
