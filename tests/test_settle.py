"""Settling: what was settled stays settled, and a move is atomic or repeated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from reading import groups_in

from shardq import Consumer, Queue
from shardq.errors import StoreTimeout, StoreUnavailable, UsageError
from shardq.lifecycle.settle import Settler
from shardq.model.ids import birth_us
from shardq.model.message import Message, Row
from shardq.stores.tables import BLOCKED
from shardq.testing import Recorder, Stage


def settler_of(queue: Queue) -> Settler:
    return Settler(queue._home.store, queue._home.clock, queue._home.register)


def with_one_behind(queue: Queue, settler: Settler, wait_ms: int, text: str = "x") -> Row:
    """Put a message behind its group's head, which waits for so long; its row there."""
    row = queue.put(text, group="g")._row
    move = settler.planner.move(row, row.due_ms + wait_ms, attempt=0)
    groups_in(queue).block(0, "g", move.new.due_ms, "head")
    settler.carry_out([move])
    return move.new


def with_one_of_two_behind(queue: Queue, settler: Settler, until_ms: int) -> Callable[[], object]:
    """Put "first" and "second" of a group whose head waits, and "first" behind it.

    Returns:
        What their reader does then: it puts "second" there too.
    """
    rows = [queue.put(text, group="g")._row for text in ("first", "second")]
    first, second = (settler.planner.move(row, until_ms, attempt=0) for row in rows)
    groups_in(queue).block(0, "g", until_ms, "head")
    settler.carry_out([first])
    return lambda: settler_of(queue).carry_out([second])


def put(queue: Queue, **options: object) -> Message:
    return queue.put("x", **options)


def test_a_move_writes_a_fresh_row_and_deletes_the_old_one(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    row = put(queue)._row
    stage.clock.advance(1)
    move = settler_of(queue).planner.move(row, stage.clock.now_ms() + 5_000, attempt=1)
    assert settler_of(queue).carry_out([move]) == (set(), {})
    assert stage._store.find([row.position]) == []
    [new] = stage._store.find([move.new.position])
    assert new == move.new
    assert new.id != row.id
    assert birth_us(new.id) >= stage.clock.now_us()
    assert (new.message_id, new.order, new.attempt) == (row.message_id, row.order, 1)


def test_a_move_never_goes_into_the_past(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    row = put(queue)._row
    stage.clock.advance(1.0000004)
    move = settler_of(queue).planner.move(row, 0, attempt=0)
    assert move.new.due_ms * 1_000 >= stage.clock.now_us()


def test_a_row_that_somebody_settled_is_not_moved_back_to_life(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    kept, gone = put(queue)._row, put(queue)._row
    settler = settler_of(queue)
    moves = [settler.planner.move(row, 0, attempt=1) for row in (kept, gone)]
    stage._store.delete([gone.position])
    assert settler.carry_out(moves) == ({gone.position}, {})
    assert [found._row for found in queue.peek()] == [moves[0].new]


def test_a_move_repeated_after_its_answer_was_lost_leaves_one_row(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    settler = settler_of(queue)
    move = settler.planner.move(put(queue)._row, stage.clock.now_ms() + 1_000, attempt=1)
    stage.faults.fail("move", applied=True)
    with pytest.raises(StoreTimeout):
        settler.carry_out([move])
    settler.carry_out([move])
    assert [found._row for found in queue.peek()] == [move.new]


def test_a_move_that_arrives_late_is_repaired_by_its_writer(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    settler = settler_of(queue)
    move = settler.planner.move(put(queue)._row, stage.clock.now_ms() + 1_000, attempt=1)
    stage.faults.call("move", lambda: stage.clock.advance(300))
    gone, repaired = settler.carry_out([move])
    [row] = [found._row for found in queue.peek()]
    assert not gone
    assert repaired == {move.new.id: row}
    assert row.due_ms >= stage.clock.now_ms()
    assert (row.attempt, row.message_id) == (1, move.new.message_id)


def test_a_burial_enters_the_dead_letter_queue_anew_under_the_old_id(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    row = put(queue, id="order-7")._row
    stage.clock.advance(100)
    move = settler_of(queue).planner.burial(row, "why", attempt=3, traceback="t" * 20_000)
    settler_of(queue).carry_out([move])
    [dead] = queue.dead.peek()
    assert dead.id == "order-7"
    assert dead._row.entered_us >= stage.clock.now_us()
    assert dead._row.attempt == 0
    assert len(dead.headers["shardq-traceback"]) == 8_000
    assert stage.is_empty(queue)


def test_a_burial_keeps_headers_that_fill_their_bound(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    row = put(queue, headers={"k": "v" * 16_000})._row
    settler = settler_of(queue)
    settler.carry_out([settler.planner.burial(row, "w" * 9_000, attempt=1, traceback="t" * 9_000)])
    [dead] = queue.dead.peek()
    assert dead.headers["k"] == "v" * 16_000


def test_what_is_dead_cannot_be_buried_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.bury(put(queue))
    [dead] = queue.dead.peek()
    with pytest.raises(UsageError, match="dead"):
        queue.dead.bury(dead)


def test_rows_just_put_behind_a_head_are_left_to_it_while_it_waits(stage: Stage) -> None:
    # The head may be moving them along just now: moved by two, a row would be there twice.
    queue = stage.connect().queue("mail")
    row = queue.put("behind", delay="1m", group="g")._row
    settler = Settler(queue._home.store, queue._home.clock, queue._home.register)
    groups = groups_in(queue)
    move = settler.planner.move(row, row.due_ms + 60_000, attempt=0)
    settler.carry_out([move])
    groups.block(row.shard.lane, "g", row.due_ms + 120_000, "head")
    groups.free([move.new], {})
    assert [message._row for message in queue.peek()] == [move.new]


def test_pulling_a_group_forward_moves_only_what_waited_behind_that_head(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    until_ms = stage.clock.now_ms() + 600_000
    rows = [put(queue, group=group)._row for group in ("g", "g", "h")]
    later = put(queue, group="g", delay="1h")._row
    groups.block(0, "g", until_ms, "head")
    settler.carry_out([settler.planner.move(row, until_ms, attempt=0) for row in rows])
    groups.unblock(0, "g", "somebody else")
    assert {m.due_ms for m in queue.peek()} == {until_ms, later.due_ms}
    groups.unblock(0, "g", "head")
    now_ms = stage.clock.now_ms()
    dues = {(m.group, m._row.message_id): m.due_ms for m in queue.peek()}
    assert sorted(due for (group, _), due in dues.items() if group == "g")[:2] == [now_ms, now_ms]
    assert dues["h", rows[2].message_id] == until_ms
    assert dues["g", later.message_id] == later.due_ms
    # For a while, so that who lags reads up to there first.
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (now_ms, "head")}
    stage.clock.advance(60)
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {}


def test_what_is_pulled_forward_goes_before_what_has_come_due_since(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = queue.put("first", group="g")._row
    queue.put("last", delay="59s", group="g")
    groups.block(0, "g", row.due_ms + 600_000, "head")
    settler.carry_out([settler.planner.move(row, row.due_ms + 600_000, attempt=0)])
    stage.clock.advance(60)
    groups.unblock(0, "g", "head")
    seen = Recorder(stage.clock)
    # It reads minute by minute, and they are in two.
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == ["first", "last"]
    stage.clock.advance(60)
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {}


def test_what_comes_too_near_to_be_pulled_while_it_is_looked_for_is_still_waited_for(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    until_ms = with_one_behind(queue, settler, 10_000, "first").due_ms
    stage.clock.advance(6.95)
    stage.faults.call("read", lambda: stage.clock.advance(0.1))
    groups.unblock(0, "g", "head")
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (until_ms, "head")}
    queue.put("second", group="g")
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == ["first", "second"]


def test_what_is_put_behind_a_head_too_near_to_go_along_with_the_rest_is_waited_for(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler, until_ms = settler_of(queue), stage.clock.now_ms() + 10_000
    follow = with_one_of_two_behind(queue, settler, until_ms)

    def keep_up() -> None:
        follow()
        stage.clock.advance(7)

    stage.clock.advance(1)
    stage.faults.call("move", keep_up)
    groups_in(queue).unblock(0, "g", "head")
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (until_ms, "head")}
    queue.put("third", group="g")
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == ["first", "second", "third"]


def test_what_is_pulled_forward_too_late_for_its_minute_is_waited_for_where_it_comes(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, offset="2s")
    settler = settler_of(queue)
    groups = groups_in(queue)
    with_one_behind(queue, settler, 600_000)
    stage.faults.call("move", lambda: stage.clock.advance(70))
    groups.unblock(0, "g", "head")
    [pulled] = queue.peek()
    assert pulled.due_ms == stage.clock.now_ms()
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (pulled.due_ms, "head")}


def test_a_group_that_could_not_follow_its_head_does_so_when_that_is_put_off_anew(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = queue.put("first", group="g")._row
    untils_ms = [stage.clock.now_ms() + 600_000 + extra for extra in (0, 10, 20)]
    groups.block(0, "g", untils_ms[0], "head")
    settler.carry_out([settler.planner.move(row, untils_ms[0], attempt=0)])
    stage.faults.fail("find")
    with pytest.raises(StoreUnavailable):
        groups.block(0, "g", untils_ms[1], "head")
    # The block says so already, but the row is where it was.
    assert [message.due_ms for message in queue.peek()] == untils_ms[:1]
    groups.block(0, "g", untils_ms[2], "head")
    assert [message.due_ms for message in queue.peek()] == untils_ms[2:]
    groups.unblock(0, "g", "head")
    assert [message.due_ms for message in queue.peek()] == [stage.clock.now_ms()]


def test_what_was_put_to_where_a_head_was_to_be_just_before_goes_on_with_the_rest(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    now_ms = stage.clock.now_ms()
    follow = with_one_of_two_behind(queue, settler, now_ms + 600_000)
    # Its handler runs on, and "second" is on its way to where it was parked before.
    groups.block(0, "g", now_ms + 660_000, "head")
    follow()
    groups.unblock(0, "g", "head")
    assert {message.due_ms for message in queue.peek()} == {stage.clock.now_ms()}


def test_what_is_put_behind_a_head_while_the_rest_is_pulled_forward_goes_along(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    follow = with_one_of_two_behind(queue, settler, stage.clock.now_ms() + 600_000)

    def keep_up() -> None:
        # Their reader, who goes by the block, has no reason to look at it once more.
        follow()
        stage.clock.advance(3)

    stage.faults.call("move", keep_up)
    groups.unblock(0, "g", "head")
    seen = Recorder(stage.clock)
    queue.put("third", group="g")
    stage.drain(queue, Consumer(queue, seen))
    assert seen.texts == ["first", "second", "third"]


def test_a_group_s_rows_wait_as_long_as_any_of_them_does_whatever_head_is_named(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = put(queue, group="g")._row
    now_ms = stage.clock.now_ms()
    assert groups.block(0, "g", now_ms + 600_000, "first") == now_ms + 600_000
    settler.carry_out([settler.planner.move(row, now_ms + 600_000, attempt=0)])
    assert groups.block(0, "g", now_ms + 60_000, "second") == now_ms + 600_000
    assert groups.block(0, "g", now_ms + 900_000, "third") == now_ms + 900_000
    assert [found.due_ms for found in queue.peek()] == [now_ms + 900_000]
    groups.unblock(0, "g", "third")
    assert [found.due_ms for found in queue.peek()] == [now_ms]


def test_what_was_put_off_at_different_times_comes_back_in_order(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    rows = [queue.put(str(number), group="g")._row for number in range(3)]
    soon_ms = stage.clock.now_ms() + 10_000
    late_ms = soon_ms + 20_000
    groups.block(0, "g", soon_ms, "head")
    settler.carry_out([settler.planner.move(rows[0], soon_ms, attempt=0)])
    stage.clock.advance(8)
    # The head goes on; what comes due in two seconds may be in a reader's hands by now.
    groups.block(0, "g", late_ms, "head")
    settler.carry_out([settler.planner.move(row, late_ms, attempt=0) for row in rows[1:]])
    groups.unblock(0, "g", "head")
    assert {found.due_ms for found in queue.peek()} == {soon_ms}
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (soon_ms, "head")}
    # Nor does one that comes now go before them.
    queue.put("3", group="g")
    handed = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, handed), within="1m")
    assert handed.texts == ["0", "1", "2", "3"]


def test_a_row_that_goes_along_with_its_head_is_not_moved_by_its_reader_too(stage: Stage) -> None:
    queue, reader = (stage.connect().queue("mail") for _ in range(2))
    queue.put("head", group="g")
    queue.put("waits", group="g")
    [head] = queue.receive(1, visibility="30s", wait="1s")
    waiting = [found._row for found in queue.peek() if found._row.body == b"waits"]

    # The reader looks again at what it has put off, just before it is moved with its head.
    stage.faults.call("move", lambda: groups_in(reader).free(waiting, {}), after=False)
    queue.retry(head, delay="5s")
    assert sorted(found._row.body for found in queue.peek()) == [b"head", b"waits"]


def test_what_was_pulled_forward_and_put_off_since_waits_though_its_pull_is_slow(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = with_one_behind(queue, settler, 60_000, "next")
    until_ms = row.due_ms

    # Its reader has run it, and puts it off to be tried again, before the pull's answer is there.
    stage.faults.call(
        "move", lambda: groups_in(queue).block(0, "g", until_ms + 5_000, row.message_id)
    )
    groups.unblock(0, "g", "head")
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (until_ms + 5_000, row.message_id)}


def test_what_its_reader_pulls_forward_late_is_waited_for_by_what_was_put_since(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = queue.put("first", group="g")._row
    move = settler.planner.move(row, stage.clock.now_ms() + 60_000, attempt=0)
    settler.carry_out([move])
    # Its head has ended since, and what was put then has come due by now.
    groups.block(0, "g", stage.clock.now_ms(), "head")
    since = queue.put("since", group="g")._row
    stage.clock.advance(1)
    groups.free([move.new], {})
    pulled, _ = sorted(queue.peek(), key=lambda one: one._row.order)
    assert pulled.due_ms > since.due_ms
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (pulled.due_ms, "head")}


def test_what_others_have_pulled_forward_they_speak_of_themselves(stage: Stage) -> None:
    # Said again, it would stand where the first of it has been put off since.
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    until_ms = stage.clock.now_ms() + 60_000
    row = queue.put("first", group="g")._row
    move = settler.planner.move(row, until_ms, attempt=0)
    settler.carry_out([move])
    groups.block(0, "g", until_ms, "head")
    groups.unblock(0, "g", "head")
    said = stage._store.notes(BLOCKED, ("mail", 0))
    stage.clock.advance(0.5)
    groups_in(queue).free([move.new], {})
    assert stage._store.notes(BLOCKED, ("mail", 0)) == said


def test_what_has_come_near_while_its_block_was_read_is_left_to_who_may_run_it(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    row = put(queue, group="g")._row
    move = settler.planner.move(row, stage.clock.now_ms() + 3_500, attempt=0)
    settler.carry_out([move])
    stage.faults.call("notes blocked", lambda: stage.clock.advance(1), after=False)
    assert groups_in(queue).free([move.new], {}) == []
    assert [found.due_ms for found in queue.peek()] == [move.new.due_ms]
    # What was put since waits for it.
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {"g": (move.new.due_ms, "")}


def test_what_was_put_off_and_has_come_due_is_left_to_who_may_run_it(stage: Stage) -> None:
    # Its head's time was over, so it was put to now; another reads that shard and runs it.
    queue = stage.connect().queue("mail", lanes=1, backoff="1s")
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = put(queue, group="g")._row
    stage.clock.advance(0.1)
    move = settler.planner.move(row, 0, attempt=0)
    settler.carry_out([move])
    stage.clock.advance(0.01)
    running: list[Message] = []

    def fail(message: Message) -> None:
        running.append(message)
        if len(running) == 1:
            groups.free([move.new], {})
            raise LookupError("once")

    stage.drain(queue, Consumer(queue, fail))
    assert [message.attempt for message in running] == [1, 2]


def test_what_waits_is_moved_by_the_very_same_move_when_that_is_repeated(stage: Stage) -> None:
    # A large one is inserted, then deleted: where the latter failed, another move would leave two.
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    with_one_behind(queue, settler, 600_000)
    planned: list[bytes] = []
    stage.faults.call(
        "find", lambda: planned.extend(m.new.id for m in groups._begun._moves.values())
    )
    stage.faults.fail("move")
    stage.clock.advance(1)
    with pytest.raises(StoreUnavailable):
        groups.unblock(0, "g", "head")
    stage.clock.advance(1)
    groups.unblock(0, "g", "head")
    assert [found._row.id for found in queue.peek()] == planned


def test_a_group_pulled_forward_is_known_to_be_though_that_could_not_be_said_at_once(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    with_one_behind(queue, settler, 600_000, "first")
    stage.clock.advance(60)
    stage.faults.fail("note blocked")
    with pytest.raises(StoreUnavailable):
        groups.unblock(0, "g", "head")
    stage.clock.advance(0.1)
    groups.unblock(0, "g", "head")
    # Who reads from further back waits with what is due before.
    [pulled] = queue.peek()
    assert stage._store.notes(BLOCKED, ("mail", 0))["g"][0] >= pulled.due_ms


@pytest.mark.parametrize("verb", ["note blocked", "move"])
def test_a_group_whose_head_is_acked_goes_on_though_the_store_failed_to_pull_it_once(
    stage: Stage, verb: str
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    row = queue.put("head", group="g", delay="10m")._row
    with_one_behind(queue, settler_of(queue), 600_000)
    groups_in(queue).block(0, "g", row.due_ms, row.message_id)
    stage.faults.fail(verb)
    queue.ack(next(message for message in queue.peek() if message.text == "head"))
    assert [message.due_ms for message in queue.peek()] == [stage.clock.now_ms()]
    assert stage._store.notes(BLOCKED, ("mail", 0))["g"][0] == stage.clock.now_ms()


def test_what_was_put_off_too_late_for_its_minute_is_waited_for_where_its_repair_puts_it(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, minute="1s", offset="1s")
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = queue.put("first", group="g")._row
    move = settler.planner.move(row, row.due_ms + 100, attempt=0)
    groups.block(0, "g", move.new.due_ms, "head")
    stage.clock.advance(10)
    settler.carry_out([move])
    [repaired] = queue.peek()
    assert repaired.due_ms > move.new.due_ms
    assert stage._store.notes(BLOCKED, ("mail", 0))["g"] == (repaired.due_ms, "head")


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_repeat_tells_where_the_repair_of_a_try_before_put_a_row_that_is_there(
    stage: Stage, *, is_settled: bool
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    row = put(queue)._row
    move = settler.planner.move(row, row.due_ms + 1_000, attempt=1, claim="me")
    stage.faults.call("move", lambda: stage.clock.advance(200), nth=1)
    # All answers about its repair are lost.
    for nth in range(2, 9):
        stage.faults.fail("move", nth=nth, applied=True)
    with pytest.raises(StoreTimeout):
        settler.carry_out([move])
    [claim] = queue.peek()
    assert claim.due_ms > move.new.due_ms
    if is_settled:
        settler.delete([claim._row.position])
    _, repaired = settler.carry_out([move])
    assert repaired == ({} if is_settled else {move.new.id: claim._row})
