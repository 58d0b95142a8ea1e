"""The audit: it balances whatever happens, and names what was planted, no more and no less."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

import shardq
from shardq import Bury, Connection, Consumer, Queue, Snooze
from shardq.errors import BadTime, HistoryOff, StoreCorrupt
from shardq.inspection.audit import MisfitKind
from shardq.model import ids
from shardq.model.ids import row_ids
from shardq.model.message import Row
from shardq.model.times import iso, moment_of
from shardq.records.ledger import entry_of
from shardq.stores.store import Mark, Store
from shardq.testing import Faults, Stage


@pytest.fixture
def cassandra(cassandra_url: str) -> Iterator[Connection]:
    with shardq.connect(cassandra_url) as db:
        yield db


def rows_of(queue: Queue) -> list[Row]:
    return [row for page in queue._rows() for row in page]


def end_of(row: Row, fate: str = "acked") -> Mark:
    return Mark(entry_of(row), None, None, fate, row.due_ms, 1, "test")


# It balances --------------------------------------------------------------------------------------


def test_an_audit_of_nothing_is_even_and_says_that_it_is_of_nothing(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="1d")
    stage.clock.advance(1)
    audit = queue.audit()
    assert audit.is_even
    assert audit.is_empty
    assert (audit.line(), audit.minutes) == (
        "mail: nothing has entered in this time; there is nothing that could be audited.",
        [],
    )
    queue.put("one", delay="1h")
    assert not queue.audit().is_empty
    queue.alter(history="off")
    stage.clock.advance(1)
    queue.alter(history="1d")
    audit = queue.audit()
    assert (audit.is_even, audit.is_empty) == (True, True)
    begin = iso(queue.settings.history_from_ms)
    assert audit.line().startswith(f"mail: its history is whole only for what enters from {begin} ")
    stage.clock.advance(6)
    queue.put("two", delay="1h")
    assert queue.audit().line() == "mail balances: 1 put = 1 waiting."


def test_what_a_process_whose_clock_is_behind_enters_first_is_audited(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.connect(shift=-0.01, corrected=False).queue("mail").put("one", delay="1h")
    stage.clock.advance(1)
    assert queue.audit().line() == "mail balances: 1 put = 1 waiting."


def test_every_outcome_is_counted_in_the_minute_of_its_put(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)

    def handle(message: object) -> None:
        if message.text == "bad":
            raise ValueError

    queue.put_many(["good", "good", "bad", "later"])
    queue.cancel(queue.put("x", delay="1h"))
    stage.clock.advance(60)
    queue.put_many([{"body": "far", "delay": "2h"}, {"body": "far", "delay": "2h"}])
    consumer = Consumer(queue, handle)
    stage.drive(consumer, seconds=5)
    consumer.close()
    queue.put("claimed")
    assert len(queue.receive(wait="1s")) == 1
    audit = queue.audit()
    assert audit.line() == (
        "mail balances: 8 put = 3 acked + 1 dead + 1 cancelled + 2 waiting + 1 in flight."
    )
    first, second = (balance for _, balance in audit.minutes)
    assert (first.put, first.acked, first.dead, first.cancelled) == (5, 3, 1, 1)
    assert (second.put, second.waiting, second.in_flight) == (3, 2, 1)
    assert audit.minutes[0][0].second == 0
    assert queue.dead.audit().line() == "mail.dead balances: 1 put = 1 waiting."


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))]
)
def test_it_balances_through_all_that_can_happen_to_messages(stage: Stage, seed: int) -> None:
    chance = random.Random(seed)
    queue = stage.connect().queue("mail", attempts=3, backoff="500ms", bands=2, hold="1s")

    def handle(_message: object) -> None:
        what = chance.random()
        if what < 0.2:
            raise ValueError
        if what < 0.3:
            raise Snooze("2s")
        if what < 0.33:
            raise Bury("bad")
        if what < 0.36:
            stage.clock.advance(1.5)
            consumers[0]._engine.step()

    consumers = [Consumer(stage.connect().queue("mail"), handle) for _ in range(2)]
    steering = {4: partial(queue.alter, lanes=7), 6: queue.redrive, 8: queue.purge}
    sent = []
    for turn in range(12):
        queue.put_many(
            {
                "body": f"{turn}",
                "delay": f"{chance.randrange(20_000)}ms",
                "priority": chance.randrange(2),
                "group": chance.choice([None, None, "a", "b"]),
            }
            for _ in range(30)
        )
        sent.append(queue.put("to be cancelled", delay="3s"))
        stage.drive(*consumers, seconds=chance.randrange(1, 8), stride=0.01)
        for message in queue.receive(max=3, visibility="4s"):
            chance.choice([queue.ack, queue.retry, queue.bury, str])(message)
        queue.cancel(chance.choice(sent))
        steering.get(turn, str)()
        if turn == 9:
            # A crash: the rest is somebody else's.
            consumers[0] = Consumer(stage.connect().queue("mail"), handle)
        audit = queue.audit()
        assert audit.is_even, audit
        assert not audit.misfits
        assert queue.dead.audit().is_even
    stage.drain(queue, *consumers)
    stage.drive(*consumers, seconds=1)
    total = queue.audit().total
    assert total.put == total.acked + total.dead + total.cancelled + total.purged


# It finds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_of_many_messages_the_38_that_were_lost_are_named(stage: Stage, count: int) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many({"body": b"x", "delay": f"{n}ms"} for n in range(count))
    lost = random.Random(7).sample(rows_of(queue), 38)
    stage._store.delete([row.position for row in lost])
    audit = queue.audit()
    assert not audit.is_even
    told = f"mail does not balance: {count:,} put = {count - 38:,} waiting + 38 lost."
    assert audit.line() == told
    assert {(one.kind, one.id) for one in audit.misfits} == {
        (MisfitKind.LOST, row.message_id) for row in lost
    }
    assert len(audit.misfits) == audit.total.lost == 38


def test_what_has_ended_and_is_there_is_named(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    rows = [queue.put("x", delay="1h", id=f"order-{n}")._row for n in range(20)]
    stage._store.record([end_of(row, "cancelled") for row in rows[:3]], 3_600_000)
    audit = queue.audit()
    assert [(one.kind.value, one.id, one.fate) for one in audit.misfits] == [
        ("resurrected", f"order-{n}", "cancelled") for n in range(3)
    ]
    assert audit.line() == (
        "mail does not balance: 20 put = 3 cancelled + 17 waiting; 3 ended and yet there."
    )


def test_an_end_that_is_not_known_is_named_whether_its_row_is_there_or_not(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    rows = [queue.put("x", delay="1h", id=f"order-{n}")._row for n in range(6)]
    unrecorded = rows[2]._replace(id=row_ids.next(rows[2].entered_us + 10))
    # The name of a count is no end either; one of those below has lost the record of its put.
    ends = [*zip(rows, ["archived", "waiting"], strict=False), (unrecorded, "moved")]
    stage._store.record([end_of(row, fate) for row, fate in ends], 3_600_000)
    stage._store.delete([rows[0].position])
    audit = queue.audit()
    assert not audit.is_even
    assert {(one.kind.value, one.id, one.fate) for one in audit.misfits} == {
        ("unknown", "order-0", "archived"),
        ("resurrected", "order-1", "waiting"),
        ("unknown", ids.text(unrecorded.id), "moved"),
    }
    assert audit.line() == (
        "mail does not balance: 7 put = 4 waiting + 3 of an unknown end; 1 ended and yet there."
    )
    assert (audit.total.unknown, audit.total.unrecorded) == (3, 0)


def test_a_message_that_is_lost_at_first_and_then_ends_as_nobody_knows_is_named(
    stage: Stage,
) -> None:
    queue, calls = watched(stage)
    row = queue.put("x", delay="1h")._row
    stage._store.delete([row.position])
    # Only when it has been out of place for three looks, and is looked up for the last time.
    calls.call(
        "recorded", lambda: stage._store.record([end_of(row, "sold")], 1 << 40), nth=3, after=False
    )
    audit = queue.audit()
    queue.close()
    assert [(one.kind.value, one.fate) for one in audit.misfits] == [("unknown", "sold")]


DAMAGE = [
    ("due", "'x'", "due of message {} (minute {}, part {}) is 'x'; delete that row"),
    ("due", f"{1 << 62}", f"due of message {{}} (minute {{}}, part {{}}) is {1 << 62}; "),
    ("ended", "x'00'", "ended of message {} (minute {}, part {}) is b'\\x00'; "),
    ("ended", "-1", "ended of message {} (minute {}, part {}) is -1; "),
    ("attempt", "'many'", "attempt of message {} (minute {}, part {}) is 'many'; "),
    ("name", "x'ff'", "name of message {} (minute {}, part {}) is b'\\xff'; "),
    ("fate", "x'ff'", "fate of message {} (minute {}, part {}) is b'\\xff'; "),
    ("member", "x'ff'", "member of message {} (minute {}, part {}) is b'\\xff'; "),
    ("id", "substr(id, 1, 9)", "an id in it is b'\\x11"),
]


@pytest.mark.parametrize(("column", "value", "said"), DAMAGE)
def test_a_damaged_record_of_the_history_is_named_by_whoever_reads_it(
    stage: Stage, column: str, value: str, said: str
) -> None:
    queue = stage.connect().queue("mail")
    queue.put("fine")
    message = queue.put("x", delay="1h")
    entry = entry_of(message._row)
    stage._store.record([end_of(message._row)], 3_600_000)
    stage._sqlite._database.write(
        f"UPDATE history SET {column} = {value} WHERE id = ?", (entry_key(message._row),)
    )
    asks = [queue.audit, lambda: list(queue.history())]
    if column != "id":
        asks.append(lambda: list(queue.history(message.id)))
    for ask in asks:
        with pytest.raises(StoreCorrupt) as caught:
            ask()
        told = f"the history of queue 'mail' is damaged: {said}"
        assert str(caught.value).startswith(told.format(message.id, *entry.place[1:]))
        assert str(caught.value).endswith("delete that row, or restore the store from a copy.")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("id", "x'0102'", "id (minute {1}, lane {2}) is b'"),
        ("id", "5", "its id is none; "),
        ("body", "'text'", "body of message {0} (minute {1}, lane {2}) is 'text'; "),
        ("attempt", "-1", "attempt of message {0} (minute {1}, lane {2}) is -1; "),
        ("first", "x'01'", "first (minute {1}, lane {2}) is b'\\x01'; "),
        ("origin", "'x'", "origin_ms of message {0} (minute {1}, lane {2}) is 'x'; "),
        ("headers", "x'01'", "headers of message {0} (minute {1}, lane {2}) is b'\\x01'; "),
        ("claim", "x'01'", "claim of message {0} (minute {1}, lane {2}) is b'\\x01'; "),
        ("since", "'x'", "since_ms of message {0} (minute {1}, lane {2}) is 'x'; "),
        ("key", "x'01'", "key of message {0} (minute {1}, lane {2}) is b'\\x01'; "),
    ],
)
def test_a_damaged_row_is_named_by_who_looks_at_the_queue(
    stage: Stage, column: str, value: str, said: str
) -> None:
    queue = stage.connect().queue("mail")
    queue.put("fine", delay="1h")
    row = queue.put("x", delay="1h")._row
    stage._sqlite._database.write(
        f"UPDATE messages SET {column} = {value} WHERE id = ?", (entry_key(row),)
    )
    for ask in (queue.audit, queue.peek, lambda: list(queue._rows())):
        with pytest.raises(StoreCorrupt) as caught:
            ask()
        assert said.format(row.message_id, *row.shard[1:]) in str(caught.value)
        assert str(caught.value).startswith("a row of queue 'mail' ")
        assert str(caught.value).endswith("delete that row, or restore the store from a copy.")


def test_a_row_or_an_end_without_a_record_of_the_put_is_named_but_no_fault(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    rows = [queue.put("x", delay="1h", id=f"{n}")._row for n in range(4)]
    # Two that their producer stored and never recorded: one is there, the other was acked.
    there, acked = (
        row._replace(id=queue.put("y", delay="2h")._row.id, name=f"new-{n}")
        for n, row in enumerate(rows[:2])
    )
    for row in (there, acked):
        stage._sqlite._database.write("DELETE FROM history WHERE id = ?", (entry_key(row),))
        stage._sqlite._database.write("DELETE FROM messages WHERE id = ?", (entry_key(row),))
    stage._store.insert([there])
    stage._store.record([end_of(acked)], 3_600_000)
    audit = queue.audit()
    assert audit.is_even
    assert {(one.kind, one.id, one.fate) for one in audit.misfits} == {
        (MisfitKind.UNRECORDED, "new-0", None),
        (MisfitKind.UNRECORDED, ids.text(acked.id), "acked"),
    }
    assert audit.line() == (
        "mail balances: 4 put = 4 waiting; 2 without a record of the put, which is no fault."
    )


def entry_key(row: Row) -> bytes:
    return ids.order_key(row.id)


def test_the_first_of_the_dead_is_audited_whenever_their_queue_was_made(stage: Stage) -> None:
    queue, calls = watched(stage)
    queue.put("bad")
    [message] = queue.receive()
    # While it is asked for the queue of the dead, somebody else makes it.
    calls.call("records queues", lambda: stage.clock.advance(1), after=False)
    calls.call("write_records queues", partial(opened_dead, stage), after=False)
    queue.bury(message, "why")
    assert queue.dead.audit().line() == "mail.dead balances: 1 put = 1 waiting."


def opened_dead(stage: Stage) -> None:
    stage.clock.advance(1)
    assert stage.connect().queue("mail").dead.name == "mail.dead"


# While the queue runs -----------------------------------------------------------------------------


def watched(stage: Stage, **settings: object) -> tuple[Queue, Faults]:
    """A queue whose own calls, and nobody else's, can be made the moment for something."""
    calls = Faults()
    db = stage.connect(faults=calls)
    return db.queue("mail", history="1d", **settings), calls


def settle_one(queue: Queue) -> None:
    queue.ack(queue.receive(max=1)[0])


def snooze_one(queue: Queue) -> None:
    queue.snooze(queue.receive(max=1)[0], "10m")


def hurry_one(queue: Queue) -> None:
    [message] = queue.receive(max=1, visibility="20m")
    queue.retry(message, "0s")


def put_one(queue: Queue) -> None:
    queue.put("new")


@pytest.mark.parametrize("act", [settle_one, snooze_one, hurry_one, put_one])
@pytest.mark.parametrize("verb", ["shards", "read", "occupied", "history", "recorded"])
def test_what_happens_while_it_reads_is_no_finding(
    stage: Stage, verb: str, act: Callable[[Queue], None]
) -> None:
    queue, calls = watched(stage, lanes=2)
    other = stage.connect().queue("mail")
    other.put_many(f"{n}" for n in range(200))
    lost = other.put("lost")._row
    stage._store.delete([lost.position])
    assert len(other.receive(max=3)) == 3
    for nth in range(1, 20):
        calls.call(verb, lambda: act(other), nth=nth, after=nth % 2 == 0)
    audit = queue.audit()
    queue.close()
    assert [(one.kind, one.id) for one in audit.misfits] == [(MisfitKind.LOST, lost.message_id)]
    assert audit.total.resurrected == audit.total.unrecorded == 0


def test_a_message_that_moves_in_each_look_to_where_it_has_just_read_is_found(
    stage: Stage,
) -> None:
    queue, calls = watched(stage, lanes=1)
    other = stage.connect().queue("mail")
    other.put("hops", delay="2h")
    other.put_many({"body": "b", "delay": f"{n}m"} for n in range(5))

    def hop(delay: str) -> None:
        [message] = [one for one in other.peek(10) if one.text == "hops"]
        other.snooze(message, delay)

    for nth in range(1, 30):
        # The near shards are read first, and after them the ledger.
        calls.call("read", lambda: hop("0s"), nth=nth)
        calls.call("history", lambda: hop("2h"), nth=nth, after=False)
        calls.call("recorded", lambda: hop("2h"), nth=nth, after=False)
    audit = queue.audit()
    queue.close()
    assert audit.line() == "mail balances: 6 put = 6 waiting."


# What is looked at --------------------------------------------------------------------------------


def test_an_end_in_the_far_future_is_now(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="1d")
    queue.put("a")
    stage.clock.advance(1)
    books = queue.audit(until="9999-12-31T23:59:59Z")
    assert (books.total.put, books.until) == (1, moment_of(stage.clock.now_ms()))


def test_what_has_nothing_in_it_is_not_asked_about(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="1d")
    queue.put("a")
    stage.clock.advance(7_200)
    for ask in (queue.audit, queue.history):
        with pytest.raises(BadTime, match=r"since .* is ahead of now"):
            ask(since=datetime.max.replace(tzinfo=UTC))
        with pytest.raises(BadTime, match=r"between since, .*, and until, "):
            ask(since="1h", until="2h")
        with pytest.raises(BadTime, match="between since, "):
            ask(since="1h", until="1h")
        with pytest.raises(BadTime, match="between the history's begin, "):
            ask(until="1970-01-01T00:00Z")
        with pytest.raises(BadTime, match="between the history's begin, "):
            ask(since="30d", until="2d")
        with pytest.raises(BadTime, match=r"^until '5' is not .* duration such as '1h'"):
            ask(until="5")


def test_a_history_that_was_just_turned_on_can_be_asked(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="off")
    queue.alter(history="1d")
    assert queue.audit().total.put == queue.audit(since="1h").total.put == 0
    assert list(queue.history(since="1h")) == []


def test_since_and_until_choose_by_entry(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    begun = moment_of(stage.clock.true_ms())
    for n in range(6):
        queue.put(f"{n}", delay="1d")
        stage.clock.advance(30)
    assert queue.audit().total.put == 6
    assert queue.audit(since="75s").total.put == 2
    assert queue.audit(since=timedelta(seconds=95), until="40s").total.put == 2
    assert queue.audit(since=begun, until=begun + timedelta(seconds=31)).total.put == 2
    assert queue.audit(since=begun.isoformat(), until="0s").total.put == 6
    assert queue.audit(since="0s").total.put == 0
    assert queue.audit(since="1000d").since == begun - timedelta(minutes=2)
    with pytest.raises(BadTime):
        queue.audit(since="yesterday")


def test_what_has_outlived_the_retention_is_not_looked_at(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="1h")
    queue.put("old", delay="1d")
    stage.clock.advance(3_000)
    queue.put("new", delay="1d")
    stage.clock.advance(1_000)
    assert queue.audit().line() == "mail balances: 1 put = 1 waiting."


def test_a_queue_without_a_history_cannot_be_audited(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="off")
    # The history of the dead is turned on with that of those who live.
    for one in (queue, queue.dead):
        with pytest.raises(HistoryOff, match=r"'7d'\), .*`shardq queues alter mail --history 7d`"):
            one.audit()


def test_it_tells_how_far_it_is(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many(["a", "b"])
    stage.clock.advance(7_200)
    told = []
    queue.audit(on_progress=lambda *said: told.append(said))
    assert ("rows of the queue", 2, None) in told
    assert [done for what, done, _ in told if what == "minutes of the ledger"] == [
        0,
        30,
        60,
        90,
        120,
    ]


def test_bodies_stay_in_the_store(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many(b"x" * 1_000_000 for _ in range(60))
    tracemalloc.start()
    try:
        assert queue.audit().total.waiting == 60
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1_000_000


# On Cassandra -------------------------------------------------------------------------------------


def test_the_books_of_a_queue_on_cassandra_balance_and_show_what_is_lost(
    cassandra: Connection, request: pytest.FixtureRequest
) -> None:
    queue = cassandra.queue(f"audit-{cassandra._home.clock.now_us()}", history="1h", attempts=1)
    queue.put_many({"body": f"{n}", "delay": f"{n % 3}s"} for n in range(600))
    far = [queue.put("far", delay=f"{n + 1}h", id=f"far-{n}") for n in range(40)]
    assert queue.cancel(far[7])
    assert queue.audit().line() == f"{queue.name} balances: 640 put = 1 cancelled + 639 waiting."

    def handle(message: shardq.Message) -> None:
        if message.text.endswith("77"):
            raise ValueError

    consumer = Consumer(queue, handle, threads=2)
    consumer.start()
    for _ in range(600):
        cassandra._home.clock.sleep(0.1)
        if consumer._engine.home.stats.totals.gone >= 600:
            break
    consumer.stop()
    consumer.join()
    store: Store = cassandra._home.store
    assert queue.audit().line() == (
        f"{queue.name} balances: 640 put = 594 acked + 6 dead + 1 cancelled + 39 waiting."
    )
    store.delete([message._row.position for message in far[:5]])
    store.record([end_of(message._row) for message in far[10:12]], 3_600_000)
    audit = queue.audit()
    assert {(one.kind.value, one.id) for one in audit.misfits} == {
        *(("lost", f"far-{n}") for n in range(5)),
        *(("resurrected", f"far-{n}") for n in (10, 11)),
    }
    assert queue.dead.audit().line() == f"{queue.name}.dead balances: 6 put = 6 waiting."
    assert queue.redrive() == 6
    assert queue.dead.audit().line() == f"{queue.name}.dead balances: 6 put = 6 forwarded."
    # A word that a newer shardq has, and a time after all years.
    store.record([end_of(far[12]._row, "archived")], 3_600_000)
    store.delete([far[12]._row.position])
    assert ("unknown", "far-12") in {(one.kind.value, one.id) for one in queue.audit().misfits}
    entry = entry_of(far[13]._row)
    whose = ids.text(entry.id)
    store.record([Mark(entry, 1 << 62, "far-13")], 3_600_000)
    for ask in (queue.audit, lambda: list(queue.history())):
        with pytest.raises(StoreCorrupt, match=rf"damaged: due of message {whose} \(minute"):
            ask()
