"""What totals miss of processes that crashed is found and put right, on both kinds of store."""

from __future__ import annotations

import json
import os
import signal
import uuid
from functools import partial
from typing import TYPE_CHECKING

import pytest
from forked import Process
from stages import either_stage  # noqa: F401 - a fixture

from shardq import Consumer, Depth, connect
from shardq.errors import StoreCorrupt, StoreUnavailable
from shardq.inspection.mend import Upkeep
from shardq.records.folded import stored_totals
from shardq.records.membership import Heartbeat
from shardq.stores.tables import LANES, MEMBERS, STATS
from shardq.testing import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from shardq import Message, Queue
    from shardq.records.folded import Stored


def stored(queue: Queue) -> Stored:
    return stored_totals(queue._home.store, queue.name)


def count_open(queue: Queue, member: str, **counts: int) -> None:
    """Store totals as a process does that counts: what it does from then on is in no total yet."""
    told = {**counts, "at_ms": queue._home.clock.now_ms(), "open": 1}
    queue._home.store.note(STATS, ("mail",), {(0, member): json.dumps(told)})


def upkeep(queue: Queue, member: str) -> Upkeep:
    """The upkeep of a consumer, which writes heartbeats."""
    home = queue._home
    home.store.note(MEMBERS, ("mail",), {member: Heartbeat(threads=8).to_json()}, 3_600_000)
    return Upkeep(home, member)


def run(stage: Stage, one: Upkeep, seconds: float) -> None:
    until_us = stage.clock.boot_us() + round(seconds * 1e6)
    while stage.clock.boot_us() < until_us:
        stage.clock.advance(max(one.step() or 0, 0.01))


def test_check_all_mends_what_a_crashed_process_has_ended_and_not_counted(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    messages = [queue.put("x", delay="3h") for _ in range(6)]
    queue.totals()
    crashed = stage.connect().queue("mail")
    for message in messages[:4]:
        crashed.cancel(message)
    assert queue.check_all().mended == -4
    assert queue.depth().waiting == 2


def test_what_a_redrive_has_put_back_by_the_time_of_a_full_count_is_counted_once(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail")
    for _ in range(2):
        queue.put("x")
        queue.bury(queue.peek(1)[0])
        # A page of the dead is of one stretch of them.
        stage.clock.advance(7_200)
    found = []

    def is_wanted(message: Message) -> bool:
        found.append(queue.check_all().mended)
        return True

    assert queue.redrive(where=is_wanted) == 2
    assert found == [0, 0]
    assert (queue.totals().present, queue.dead.totals().forwarded) == (2, 2)


def test_check_all_counts_once_what_it_moves_and_what_it_deletes(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many([{"body": "x", "delay": "3h"}] * 3)
    stage.clock.advance(1)
    queue.purge()
    stage.clock.advance(1)
    queue.put_many(["x"] * 2 + [{"body": "x", "delay": "4h"}] * 2)
    lanes = queue._home.register.layout.lanes()
    queue._home.store.note(LANES, ("mail",), dict.fromkeys(lanes, stage.clock.now_ms() // 60_000))
    check = queue.check_all()
    assert (check.moved, check.purged, check.mended) == (2, 3, 0)
    assert queue.totals().present == 4


def test_what_happens_during_a_count_is_no_proof_of_a_gap(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.put_many([{"body": "x", "delay": "3h"}] * 3)

    def put_and_store() -> None:
        other.put_many([{"body": "x", "delay": "1h"}] * 5)
        other.totals()

    stage.faults.call("shards", put_and_store, after=True)
    assert queue.check_all().mended == 0
    assert queue.totals().present == 8


def test_what_is_moved_by_key_during_a_count_is_no_proof_of_a_gap(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    for number in range(4):
        queue.put("x", key=f"order-{number}", delay="3h")
    queue.totals()

    def move_and_store() -> None:
        # The first was counted where it was, and is counted again.
        other.move("order-0", delay="5h")
        other.put("y", key="order-1", delay="6h", on_conflict="replace")
        other.put_many(
            {"body": "y", "key": f"order-{n}", "delay": "7h", "on_conflict": "replace"}
            for n in (2, 3)
        )
        other.totals()

    stage.faults.call("read", move_and_store, after=True)
    assert queue.check_all().mended == 0
    assert (queue.totals().replaced, queue.totals().mended) == (4, 0)


def test_check_all_waits_for_the_totals_of_who_counts(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    other.put_many([{"body": "x", "delay": "3h"}] * 4)
    count_open(queue, "other", put=1)
    began_us = stage.clock.boot_us()
    assert queue.check_all().mended == 3
    assert 2_000_000 <= stage.clock.boot_us() - began_us < 3_000_000


def test_what_is_not_stored_yet_does_not_hide_a_gap_of_as_many(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    crashed, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    first, _ = (queue.put("x", delay="3h") for _ in range(2))
    queue.totals()
    crashed.put("x", delay="3h")
    other.cancel(first)
    count_open(queue, "web:2")
    # This count is stored after the check has read the totals.
    stage.faults.call("notes stats", partial(count_open, queue, "web:2", cancelled=1), nth=3)
    assert queue.check_all().mended == 1
    assert queue.totals().present == 2


def test_a_consumer_mends_what_a_crashed_process_has_not_counted(stage: Stage) -> None:
    queue, crashed = stage.connect().queue("mail"), stage.connect().queue("mail")
    crashed.put_many([{"body": "x", "delay": "3h"}] * 6)
    count_open(queue, "web:1", put=2)
    chore = upkeep(queue, "reader")
    run(stage, chore, 4)
    assert stored(queue).totals.present == 2
    run(stage, chore, 6)
    assert stored(queue).totals.present == 6
    assert not stored(queue).gaps(stage.clock.now_ms())


def test_a_consumer_at_rest_finds_what_left_no_trace(stage: Stage) -> None:
    queue, crashed = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.totals()
    crashed.put("x", delay="3d")
    chore = upkeep(queue, "reader")
    run(stage, chore, 40)
    assert stored(queue).totals.present == 1
    stage.connect().queue("mail").put("x", delay="3d")
    run(stage, chore, 3_500)
    assert stored(queue).totals.present == 1
    run(stage, chore, 200)
    assert (stored(queue).totals.present, queue.depth().waiting) == (2, 2)


def put_during_a_count(stage: Stage, queue: Queue, verb: str) -> None:
    """Let another process put 4 just after rows were counted, and count 4 that it has put."""

    def put_and_store() -> None:
        other = stage.connect().queue("mail")
        other.put_many([{"body": "x", "delay": "2h"}] * 4)
        count_open(queue, "web:2", put=4)

    stage.faults.call(verb, put_and_store, after=True)


def test_a_consumer_counts_again_beside_those_that_never_rest_where_that_is_quick(
    stage: Stage,
) -> None:
    queue, crashed = stage.connect().queue("mail"), stage.connect().queue("mail")
    crashed.put_many([{"body": "x", "delay": "3h"}] * 6)
    count_open(queue, "web:1")
    stage.clock.advance(6)
    chore = upkeep(queue, "reader")
    put_during_a_count(stage, queue, "count")
    run(stage, chore, 3)
    assert stored(queue).folded.rough
    for _ in range(10):
        count_open(queue, "web:2", put=4)
        run(stage, chore, 1)
    assert (stored(queue).totals.present, stored(queue).folded.rough) == (10, 0)


def test_counting_takes_a_consumer_at_most_one_part_in_twenty_of_the_time(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x", delay="3h")
    counts = 0

    def count_for_long() -> None:
        nonlocal counts
        counts += 1
        stage.clock.advance(2)
        count_open(queue, "web:2", put=counts)
        stage.faults.call("count", count_for_long)

    stage.faults.call("count", count_for_long)
    run(stage, upkeep(queue, "reader"), 1_800)
    assert 5 < counts <= 1_800 / (20 * 2)


def test_check_all_counts_again_where_others_put_meanwhile(stage: Stage) -> None:
    queue, crashed = stage.connect().queue("mail"), stage.connect().queue("mail")
    crashed.put_many([{"body": "x", "delay": "3h"}] * 6)
    put_during_a_count(stage, queue, "read")
    check = queue.check_all()
    assert (check.mended, check.is_proven, queue.totals().present) == (6, True, 10)


def test_check_all_says_so_where_others_put_all_the_time(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x", delay="3h")
    put_during_a_count(stage, queue, "read")
    for nth in (1, 2, 3):
        stage.faults.call("count", partial(count_open, queue, "web:2", put=4 + nth), nth=nth)
    assert not queue.check_all().is_proven


def test_of_several_consumers_one_mends(stage: Stage) -> None:
    queue, crashed = stage.connect().queue("mail"), stage.connect().queue("mail")
    crashed.put("x", delay="3h")
    count_open(queue, "web:1")
    upkeep(queue, "a")
    second = upkeep(queue, "b")
    run(stage, second, 60)
    assert stored(queue).totals.present == 0
    queue._home.store.erase(MEMBERS, ("mail",), ["a"])
    run(stage, second, 60)
    assert stored(queue).totals.present == 1


def test_the_next_consumer_mends_where_the_first_has_crashed(stage: Stage) -> None:
    queue, crashed = stage.connect().queue("mail"), stage.connect().queue("mail")
    crashed.put("x", delay="3h")
    upkeep(queue, "a")
    count_open(queue, "a", delivered=1)
    run(stage, upkeep(queue, "b"), 9)
    assert stored(queue).totals.present == 1


def test_a_consumer_at_rest_reads_little_for_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x")
    queue.totals()
    chore = upkeep(queue, "reader")
    run(stage, chore, 120)
    steps = 0
    until_us = stage.clock.boot_us() + 600_000_000
    while stage.clock.boot_us() < until_us:
        stage.clock.advance(chore.step() or 0)
        steps += 1
    assert steps <= 61


def test_a_consumer_that_stops_ends_a_long_count(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many({"body": "x", "delay": f"{minute}m"} for minute in range(1_100))
    chore = upkeep(queue, "reader")
    assert chore.step() == 0
    stage.faults.call("indexed", chore.stop)
    assert chore.step() is None
    # The first of them, and none of a thousand others.
    assert stage.faults.calls["count"] <= 8


def test_a_store_that_fails_is_asked_again(stage: Stage) -> None:
    queue, crashed = stage.connect().queue("mail"), stage.connect().queue("mail")
    crashed.put("x", delay="3h")
    count_open(queue, "web:1")
    stage.clock.advance(10)
    chore = upkeep(queue, "reader")
    assert chore.step() == 0
    stage.faults.fail("indexed")
    with pytest.raises(StoreUnavailable):
        chore.step()
    stage.faults.heal()
    run(stage, chore, 10)
    assert stored(queue).totals.present == 1


def test_two_that_mend_at_once_mend_once(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    stage.connect().queue("mail").put_many([{"body": "x", "delay": "3h"}] * 6)
    stage.faults.call("write_records stats", other.check_all, after=False)
    queue.check_all()
    assert stored(queue).totals.present == 6


def test_a_consumer_counts_what_a_purge_has_left(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many([{"body": "x", "delay": "3h"}] * 3 + [{"body": "x", "delay": "1m"}] * 2)
    stage.clock.advance(1)
    queue.purge()
    assert stored(queue).doomed == 5
    stage.clock.advance(1)
    queue.put("x", delay="4h")
    queue.totals()
    run(stage, upkeep(queue, "reader"), 40)
    assert (stored(queue).doomed, queue.depth()) == (5, Depth(0, 1, 0, exact=False))
    consumer = Consumer(queue, lambda _message: None)
    stage.drive(consumer, seconds=120, stride=0.1)
    assert (stored(queue).doomed, queue.depth()) == (3, Depth(0, 1, 0, exact=False))
    assert queue.check_all().purged == 3
    assert (stored(queue).doomed, queue.depth()) == (0, Depth(0, 1, 0, exact=False))


def test_what_is_left_of_a_dropped_queue_counts_for_nobody(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail")
    queue.put_many([{"body": "x", "delay": "3h"}] * 3 + [{"body": "x", "delay": "30m"}] * 2)
    stage.clock.advance(1)
    queue.drop()
    stage.clock.advance(1)
    again = db.queue("mail")
    again.put("x", delay="4h")
    assert again.depth() == Depth(0, 1, 0, exact=False)
    home = again._home
    chore = Upkeep(home, "reader")
    home.store.note(
        MEMBERS, (home.register.members_key,), {"reader": Heartbeat(threads=8).to_json()}, 3_600_000
    )
    run(stage, chore, 60)
    found = stored_totals(home.store, home.register.totals_key)
    assert (found.folded.former, found.totals.present) == (5, 1)
    assert again.depth() == Depth(0, 1, 0, exact=False)


@pytest.mark.parametrize("text", ["{", '{"put":-1}', '{"put":"six"}', "[]"])
def test_check_all_replaces_totals_that_are_damaged_by_what_is_there(
    stage: Stage, text: str
) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many([{"body": "x", "delay": "3h"}] * 3)
    queue.totals()
    queue._home.store.note(STATS, ("mail",), {(7, "web:1"): text})
    with pytest.raises(StoreCorrupt, match="check --all mail"):
        queue.depth()
    check = queue.check_all()
    assert len(check.damaged) == 1
    assert "web:1" in check.damaged[0]
    assert queue.depth() == Depth(0, 3, 0, exact=False)


COUNTING = """
import sys
import shardq

queue = shardq.connect(sys.argv[1]).queue(sys.argv[2], lanes=1)
for number in range(1, 100_000):
    messages = [queue.put("x", delay="1d") for _ in range(5)]
    queue.cancel(messages[0])
    print(number, flush=True)
"""
"""A process that puts five messages for tomorrow, cancels one, and so on."""


@pytest.mark.parametrize("kind", ["file", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def test_totals_are_right_again_after_a_process_was_killed_as_it_counted(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url, name = f"sqlite:///{tmp_path}/jobs.db", f"q-{uuid.uuid4().hex[:16]}"
    if kind == "cassandra":
        url = request.getfixturevalue("cassandra_url")
    with Process(["-c", COUNTING, url, name], cwd=tmp_path, env=os.environ) as counting:
        assert counting.stdout is not None
        while b"40\n" not in counting.stdout.readline():
            pass
        counting.send_signal(signal.SIGKILL)
        left = [int(line) for line in counting.communicate()[0].split()]
    steps = max(left, default=40)
    with connect(url) as db:
        queue = db.queue(name)
        rows = queue.depth(exact=True).waiting
        before = queue.totals()
        assert 4 * steps <= rows <= 4 * steps + 5
        # The totals have the counts that the killed process had stored.
        assert before.put <= 5 * steps + 5
        check, totals = queue.check_all(), queue.totals()
        assert (check.mended, check.is_proven) == (rows - before.present, True)
        assert (totals.present, queue.depth().waiting) == (rows, rows)
        assert (totals.put, totals.cancelled) == (before.put, before.cancelled)
        assert queue.check_all().mended == 0
