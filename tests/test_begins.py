"""Keyed deliveries begin by LWT: what was cancelled or replaced before that never runs."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from crashing import crash, run_until_crash
from keyed_rows import Names
from worlds import on_both_stores

import shardq
from shardq import Consumer, Message, Queue, Retry
from shardq.records.keyrow import Does, live_of
from shardq.records.standing import Is
from shardq.stores.tables import KEYS, Change
from shardq.testing import Recorder, Stage

WRITE = "write_records keys"
TIMEOUT_MS = 2_000
PATIENCE_S = 2 * TIMEOUT_MS / 1e3 + 0.1


@pytest.fixture(params=["elsewhere", "local"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with Stage(local=request.param == "local") as made:
        if request.param == "elsewhere":
            # Like a database whose writes may take long.
            made._sqlite.write_timeout_ms = TIMEOUT_MS
        yield made


def begins_of(consumer: Consumer) -> list[str]:
    """The names that a consumer's begins go by, as they are written."""
    return _written(consumer, lambda change: "begun" in str((change.new or {}).get("state")))


def _written(consumer: Consumer, is_one: Callable[[Change], bool]) -> list[str]:
    keys = consumer._engine.starts._keys
    write, names = keys.write, []

    def keep(changes: Sequence[Change]) -> dict[str, str | None]:
        names.extend(str(change.key[0]) for change in changes if is_one(change))
        return write(changes)

    keys.write = keep  # type: ignore[method-assign]
    return names


def test_a_keyed_message_is_delivered_once_and_its_begin_is_one_lwt(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    names.put("order-7")
    written = stage.faults.calls[WRITE]
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    begun = begins_of(consumer)
    stage.drain(queue, consumer)
    assert seen.texts == ["order-7"]
    assert seen.messages[0].key == "order-7"
    assert (written, begun) == (1, ["order-7"])


def test_messages_without_keys_ask_for_none(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many([f"{n}" for n in range(20)])
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert len(seen) == 20
    assert not any(seen.messages[0].is_cancelled for _ in range(2))
    assert not [verb for verb in stage.faults.calls if verb.endswith((" keys", " places"))]


# Cancelled ----------------------------------------------------------------------------------------


def test_what_was_cancelled_in_memory_never_runs_and_counts_once(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    names.put("order-7", delay_ms=1_500)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=1.2)
    assert len(consumer._engine.memory.known) == 1
    assert names.cancel("order-7") is Is.WAITING
    stage.drive(consumer, seconds=5)
    assert len(seen) == 0
    assert stage.is_empty(queue)
    consumer.close()
    assert queue.totals().cancelled == 1


def test_a_cancel_that_crashed_after_its_word_is_ended_by_the_consumer(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    queue.put("other")
    names.put("order-7", delay_ms=1_000)
    assert names.cancel("order-7", deletes=False) is Is.WAITING
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drain(queue, consumer)
    consumer.close()
    assert seen.texts == ["other"]
    # The process that has cancelled the message counts it.
    assert (queue.totals().cancelled, queue.totals().dropped) == (0, 1)
    assert names.of("order-7").state.is_absent
    assert queue.audit().is_even


def test_a_message_cancelled_as_it_runs_is_told_so_and_not_retried(stage: Stage) -> None:
    queue = stage.connect().queue("mail", backoff="1s")
    names = Names(queue)
    names.put("order-7")
    told: list[bool] = []

    def handle(message: Message) -> None:
        told.append(message.is_cancelled)
        assert names.cancel("order-7") is Is.RUNNING
        stage.clock.advance(0.3)
        told.append(message.is_cancelled)
        raise Retry

    consumer = Consumer(stage.connect().queue("mail"), handle)
    stage.drain(queue, consumer)
    consumer.close()
    assert told == [False, True]
    assert queue.totals().cancelled == 1
    assert names.of("order-7").state.is_absent
    assert queue.audit().is_even


def test_a_cancelled_message_without_attempts_is_not_buried(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1, hold="1s")
    names = Names(queue)
    names.put("order-7")
    assert run_until_crash(stage, Consumer(queue, crash), seconds=1)
    # It dies again while its attempt is recorded: none is left.
    stage.clock.advance(20)
    assert run_until_crash(stage, Consumer(stage.connect().queue("mail"), crash), seconds=1)
    [row] = [found._row for found in queue.peek()]
    assert row.attempt == 1
    assert names.cancel("order-7") is Is.RUNNING
    stage.clock.advance(20)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drain(queue, consumer)
    consumer.close()
    assert len(seen) == 0
    assert (queue.totals().cancelled, queue.totals().buried) == (1, 0)
    assert queue.dead.peek() == []


def test_a_row_that_appears_after_its_cancel_never_runs(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    row = names.row("order-7")
    assert names.keys.write([names.keys.put(row)._replace(insert=())]) == {}
    # On this machine no row is ever under way: there the name is free already.
    found = names.of("order-7")
    assert found.state is (Is.PENDING if names.keys.patience_ms else Is.ENDED)
    names.keys.write([names.keys.cancel(found)])
    names.store.insert([row])
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert len(seen) == 0


# Replaced -----------------------------------------------------------------------------------------


def test_an_older_generation_never_runs_and_is_not_counted(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    old = names.put("order-7", delay_ms=1_500)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=1)
    assert not any(queue._settler.place([names.move("order-7", delay_ms=5_000, body=b"new")]))
    stage.drive(consumer, seconds=10)
    consumer.close()
    assert seen.texts == ["new"]
    assert seen.messages[0].id == Message(old, 0, queue._home.register.signer).id
    totals = queue.totals()
    assert (totals.acked, totals.cancelled, totals.dropped) == (1, 0, 0)


def test_a_copy_that_a_command_has_left_is_deleted_uncounted(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    old = names.put("order-7", delay_ms=1_000)
    command = names.move("order-7", delay_ms=5_000, body=b"new")
    # The process dies before it deletes the old row.
    change = command.change._replace(delete=())
    assert names.keys.write([change]) == {}
    assert len(names.store.find([old.position])) == 1
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=10)
    consumer.close()
    assert seen.texts == ["new"]
    assert min(seen.late_ms) >= 0
    assert stage.is_empty(queue)
    assert (queue.totals().acked, queue.totals().cancelled) == (1, 0)


def test_a_row_whose_command_is_under_way_waits_for_it_without_haste(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    old = names.put("order-7")
    command = names.move("order-7", delay_ms=20_000, body=b"new")
    names.take(command)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    if not names.keys.patience_ms:
        # On this machine nothing is under way: it is undone at once.
        stage.drive(consumer, seconds=2)
        assert seen.texts == ["order-7"]
        return
    begun = begins_of(consumer)
    stage.drive(consumer, seconds=3)
    assert len(seen) == 0
    assert 2 <= len(begun) <= 8
    names.store.insert(command.change.insert)
    names.store.delete([old.position])
    stage.drive(consumer, seconds=30)
    assert seen.texts == ["new"]
    assert seen.messages[0].id == Message(old, 0, queue._home.register.signer).id


def test_a_row_whose_command_has_crashed_runs_as_it_was(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    old = names.put("order-7", delay_ms=2_000)
    names.take(names.move("order-7", delay_ms=60_000, body=b"new"))
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drain(queue, consumer)
    assert seen.texts == ["order-7"]
    [message] = seen.messages
    assert message.id == Message(old, 0, queue._home.register.signer).id
    assert message.first_due == Message(old, 0, queue._home.register.signer).due
    assert 0 <= seen.late_ms[0] < 1e3 * PATIENCE_S + 1_000


# Many ---------------------------------------------------------------------------------------------


def test_many_that_are_due_begin_by_few_lwts(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    wanted = names.put_many(2_000)
    before = stage.faults.calls[WRITE]
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    begun = begins_of(consumer)
    stage.drain(queue, consumer)
    assert Counter(seen.texts) == dict.fromkeys(wanted, 1)
    assert len(begun) == 2_000
    # Most of these are ends.
    assert stage.faults.calls[WRITE] - before < 100


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    """One of a real store and a real clock."""
    with shardq.connect(url) as db:
        queue = db.queue(f"q-{uuid.uuid4().hex[:16]}")
        yield queue
        queue.drop()


@on_both_stores
def test_what_is_cancelled_while_threads_run_has_run_or_never_does(queue: Queue) -> None:
    names = Names(queue)
    rows = [names.row(f"order-{n}", delay_ms=500 + 3 * n, lane=n % 4 * 3) for n in range(200)]
    assert names.keys.write([names.keys.put(row) for row in rows]) == {}
    seen: Counter[str] = Counter()
    asked: dict[str, bool] = {}
    lock = threading.Lock()

    def handle(message: Message) -> None:
        with lock:
            seen[message.text] += 1
        asked[message.text] = message.is_cancelled

    consumers = [Consumer(queue, handle, threads=3) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    done = []
    for n in range(0, 200, 4):
        found = names.of(f"order-{n}")
        if found.state is Is.WAITING and names.keys.write([names.keys.cancel(found)]) == {}:
            done.append(f"order-{n}")
    Consumer(queue, handle, threads=2).run(until_empty=True)
    for consumer in consumers:
        consumer.stop()
    for consumer in consumers:
        consumer.join()
    assert seen == {f"order-{n}": 1 for n in range(200) if f"order-{n}" not in done}
    assert not any(asked.values())
    assert done


# Given back ---------------------------------------------------------------------------------------


def begin_ahead(stage: Stage, queue: Queue, count: int) -> tuple[Consumer, list[str]]:
    """A consumer that has begun some of `count` messages in advance, and the names of these."""
    names = Names(queue)
    names.put_many(count)
    consumer = Consumer(stage.connect().queue(queue.name), crash)
    engine = consumer._engine
    while len(engine.ready) < count:
        stage.clock.advance(max(engine.step(), 0.001))
    ahead = engine.starts._ahead
    while not ahead:
        one = engine.ready.take()
        assert one is not None
        assert engine.starts.begin(one) is not None
    return consumer, [start.name for start in ahead.values()]


def test_what_is_begun_and_not_taken_within_a_second_is_given_back(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer, ahead = begin_ahead(stage, queue, 100)
    names = Names(queue)
    states = {name: names.of(name).state for name in ahead}
    assert set(states.values()) == {Is.RUNNING}
    stage.clock.advance(0.5)
    consumer._engine.step()
    assert names.of(ahead[0]).state is Is.RUNNING
    stage.clock.advance(0.6)
    consumer._engine.step()
    assert {names.of(name).state for name in ahead} == {Is.WAITING}
    # So a cancel answers `done`, and the other messages run.
    assert names.cancel(ahead[0], deletes=False) is Is.WAITING
    seen = Recorder(stage.clock)
    consumer._deliverer._call._function = seen
    stage.drive(consumer, seconds=1)
    assert set(ahead[1:]) <= set(seen.texts)
    assert ahead[0] not in seen.texts


def test_a_cancel_of_what_is_begun_in_advance_says_that_it_runs(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer, ahead = begin_ahead(stage, queue, 100)
    names = Names(queue)
    assert names.cancel(ahead[0]) is Is.RUNNING
    # Given back, it is not what it was: it never runs.
    stage.clock.advance(1.1)
    consumer._engine.step()
    seen = Recorder(stage.clock)
    consumer._deliverer._call._function = seen
    stage.drive(consumer, seconds=3)
    assert ahead[0] not in seen.texts
    assert set(ahead[1:]) <= set(seen.texts)


@pytest.mark.parametrize("how", ["close", "pause", "leave", "retire"])
def test_what_is_begun_in_advance_is_given_back_when_nothing_is_taken(
    stage: Stage, how: str
) -> None:
    queue = stage.connect().queue("mail")
    consumer, ahead = begin_ahead(stage, queue, 100)
    engine = consumer._engine
    if how == "close":
        consumer.close()
    elif how == "retire":
        # Retiring waits for running handlers, perhaps long.
        engine.retire()
    elif how == "pause":
        queue.pause()
        stage.clock.advance(0.1)
        engine._register.refresh(force=True)
        engine.step()
    else:
        engine.begin_to_leave()
        engine.step()
    names = Names(queue)
    assert {names.of(name).state for name in ahead} == {Is.WAITING}


def test_what_is_begun_in_advance_is_not_shared(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer, ahead = begin_ahead(stage, queue, 100)
    may_go = consumer._engine.sharing._may_go
    known = consumer._engine.memory.known.values()
    kept = {one.row.body.decode() for one in known if not one.begun_us and not may_go(one)}
    assert kept == set(ahead)


def test_a_lease_that_ends_while_a_begin_is_written_hands_nothing_out(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    names.put("order-7", delay_ms=1_000)
    leases: list[bool] = []

    def handle(message: Message) -> None:
        lease = consumer._engine.leases.get(message._row.shard)
        leases.append(lease is not None and consumer._engine.leases.is_valid(lease))

    consumer = Consumer(stage.connect().queue("mail"), handle)
    stage.faults.call(WRITE, lambda: stage.clock.advance(9))
    stage.drain(queue, consumer)
    assert leases == [True]


# Who else begins ----------------------------------------------------------------------------------


def test_received_messages_begin_together_and_without_those_cancelled(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    wanted = names.put_many(200)
    names.cancel("order-3", deletes=False)
    other = stage.connect().queue("mail")
    before = stage.faults.calls[WRITE]
    received: list[Message] = []
    while len(received) < 199:
        received += other.receive(200, wait="5s")
    assert stage.faults.calls[WRITE] - before <= 6
    assert sorted(one.text for one in received) == sorted(set(wanted) - {"order-3"})
    names.note(received)
    assert {names.of(one.text).state for one in received[:9]} == {Is.RUNNING}
    assert not received[0].is_cancelled
    stage.clock.advance(0.3)
    assert names.cancel(received[0].text) is Is.RUNNING
    assert received[0].is_cancelled
    assert not received[1].is_cancelled
    assert not pickle.loads(pickle.dumps(received[0])).is_cancelled


def test_a_claim_that_fails_gives_back_what_had_begun(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    names.put("order-7")
    other = stage.connect().queue("mail")
    stage.faults.fail("move")
    with pytest.raises(shardq.errors.StoreError):
        other.receive(1, wait="1s")
    [message] = other.receive(1, wait="5s")
    assert message.text == "order-7"


def test_a_careful_row_begins_before_its_attempt_is_recorded(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    names = Names(queue)
    names.put("order-7")
    names.put("order-8")
    assert run_until_crash(stage, Consumer(queue, crash), seconds=1)
    [running] = [name for name in ("order-7", "order-8") if names.of(name).key.does is Does.BEGUN]
    assert names.cancel(running) is Is.RUNNING
    stage.clock.advance(20)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drain(queue, consumer)
    consumer.close()
    # A message that was cancelled after its begin has no recorded end, and does not run again.
    assert seen.texts == [name for name in ("order-7", "order-8") if name != running]
    assert stage.faults.calls["edit"] == 1
    assert queue.totals().cancelled == 1


def test_what_kills_its_process_is_buried_though_it_has_a_key(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=2, lanes=1)
    names = Names(queue)
    names.put("order-7")
    for _ in range(3):
        assert run_until_crash(stage, Consumer(stage.connect().queue("mail"), crash), seconds=1)
        stage.clock.advance(20)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), crash))
    assert [one.key for one in queue.dead.peek()] == ["order-7"]


def test_a_group_goes_on_behind_a_head_that_was_cancelled(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue._home.register.use_groups()
    names = Names(queue)
    for n in range(4):
        names.put(f"order-{n}", group="user-1")
    names.cancel("order-0", deletes=False)
    names.cancel("order-2")
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert seen.texts == ["order-1", "order-3"]


def test_a_group_waits_for_its_head_and_goes_on_when_that_is_cancelled(stage: Stage) -> None:
    queue = stage.connect().queue("mail", backoff="5s")
    queue._home.register.use_groups()
    names = Names(queue)
    for n in range(3):
        names.put(f"order-{n}", group="user-1")

    def fail_first(message: Message) -> None:
        if message.text == "order-0":
            names.cancel("order-0")
            raise Retry

    seen = Recorder(stage.clock, fail_first)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drain(queue, consumer)
    consumer.close()
    assert seen.texts == ["order-0", "order-1", "order-2"]
    assert queue.totals().cancelled == 1


def test_dead_messages_are_delivered_without_their_names(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    names = Names(queue)
    names.put("order-7")
    stage.drain(queue, Consumer(stage.connect().queue("mail"), _fail))
    # The name is another message's by now.
    found = names.of("order-7")
    row = names.row("order-7", delay_ms=3_600_000)
    if found.state.is_absent:
        names.keys.write([names.keys.put(row, found)])
    seen = Recorder(stage.clock)
    dead = stage.connect().queue("mail").dead
    stage.drain(dead, Consumer(dead, seen))
    assert seen.texts == ["order-7"]
    assert not seen.messages[0].is_cancelled


def _fail(_message: Message) -> None:
    raise ValueError


# Trouble ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("verb", ["write_records keys", "records keys", "find", "delete"])
def test_a_store_that_fails_as_messages_begin_loses_none(
    stage: Stage, verb: str, applied: bool
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    names = Names(queue)
    wanted = names.put_many(20)
    names.cancel("order-3", deletes=False)
    names.cancel("order-5")
    stage.faults.fail(verb, times=3, applied=applied)
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drain(queue, consumer)
    ran = Counter(seen.texts)
    assert set(ran) == set(wanted) - {"order-3", "order-5"}
    assert max(ran.values()) == 1


def test_a_damaged_key_keeps_nobody_else(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    names.put("order-7")
    damaged = names.row("order-8")._replace(key="damaged")
    names.store.insert([damaged])
    names.put("order-9")
    doomed = names.put("order-10")
    broken = names.keys.put(doomed)._replace(seen={}, new={"live": "no", "state": "none"})
    names.store.write_records(KEYS, [broken._replace(insert=(), seen={"live": live_of(doomed)})])
    seen = Recorder(stage.clock)
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=5)
    assert sorted(seen.texts) == ["order-7", "order-9"]
    errors = [one.message for one in caplog.records if one.levelname == "ERROR"]
    assert len(errors) == 2
    assert all("is damaged" in error for error in errors)


def test_is_cancelled_reads_its_key_four_times_a_second_at_most(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    names.put("order-7")
    asked: list[tuple[int, bool]] = []

    def handle(message: Message) -> None:
        before = stage.faults.calls.get("records keys", 0)
        for _ in range(100):
            stage.clock.advance(0.01)
            assert not message.is_cancelled
        stage.faults.fail("records keys")
        stage.clock.advance(0.3)
        asked.append((stage.faults.calls["records keys"] - before, message.is_cancelled))

    stage.drain(queue, Consumer(stage.connect().queue("mail"), handle))
    [(reads, is_cancelled)] = asked
    assert 3 <= reads <= 4
    assert not is_cancelled


def test_what_has_begun_is_not_given_back_where_the_refusals_of_others_cannot_be_read(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail")
    names = Names(queue)
    wanted = names.put_many(10)
    engine = Consumer(stage.connect().queue("mail"), crash)._engine
    while len(engine.ready) < 10:
        stage.clock.advance(max(engine.step(), 0.001))
    taken = [one for _ in range(10) if (one := engine.ready.take()) is not None]
    names.cancel("order-3")
    stage.faults.fail("records keys", applied=True)
    begun = engine.starts.begin_all(taken)
    engine.starts.keep()
    assert sorted(one.row.body.decode() for one in begun) == sorted({*wanted} - {"order-3"})
    assert {names.of(name).state for name in wanted if name != "order-3"} == {Is.RUNNING}
