"""What is stored is counted and recorded, whatever ends a call that puts many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from worlds import World, on_each_store

from shardq.errors import (
    BadBody,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
)
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import Queue


READ = 2_500


def items_until(error: BaseException, count: int = READ) -> Iterator[Any]:
    """Timers and plain bodies in turn, and then an error."""
    for n in range(count):
        yield {"body": str(n), "delay": f"{n % 100}m"} if n % 2 else str(n).encode()
    raise error


def texts_of(queue: Queue) -> list[str]:
    return sorted((message.text for message in queue.peek(10_000)), key=int)


def check_books(queue: Queue, count: int) -> None:
    """The first `count` messages are stored, and totals and history have all of them."""
    assert texts_of(queue) == [str(n) for n in range(count)]
    assert queue.totals().put == count
    audit = queue.audit()
    assert audit.is_even
    assert audit.total.put == count


@on_each_store
def test_all_that_an_iterable_yielded_before_it_raised_is_stored_and_counted(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), history="7d")
    error = RuntimeError("no more")
    with pytest.raises(RuntimeError) as caught:
        queue.put_many(items_until(error))
    assert caught.value is error
    assert error.__notes__ == ["2,500 messages before it were put."]
    check_books(queue, READ)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, StoreTimeout, GeneratorExit])
def test_whatever_ends_the_iterable_comes_out_as_it_is(
    queue: Queue, kind: type[BaseException], *, ids: bool
) -> None:
    error = kind("no more")
    with pytest.raises(kind) as caught:
        queue.put_many(items_until(error, 10), ids=ids)
    assert caught.value is error
    assert error.__notes__ == ["10 messages before it were put."]
    check_books(queue, 10)


def test_all_before_an_item_that_cannot_be_used_is_stored_and_counted(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), history="7d")
    items = [*(str(n) for n in range(READ)), 7, "never"]
    with pytest.raises(BadBody) as caught:
        queue.put_many({"body": item} for item in items)
    assert caught.value.__notes__ == ["2,500 messages before it were put."]
    check_books(queue, READ)


class Unreadable:
    """An item that fails when it is looked at."""

    def keys(self) -> Any:
        raise LookupError("not now")


def test_an_error_of_the_users_own_in_an_item_ends_like_one_of_the_iterable(queue: Queue) -> None:
    items = [b"0", b"1", Unreadable()]
    with pytest.raises(LookupError) as caught:
        queue.put_many(items)
    assert caught.value.__notes__ == ["2 messages before it were put."]
    check_books(queue, 2)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("verb", ["insert", "record"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_in_the_store_leaves_books_that_balance(
    stage: Stage, queue: Queue, verb: str, *, after: bool
) -> None:
    stage.faults.call(verb, interrupt, after=after)
    with pytest.raises(KeyboardInterrupt) as caught:
        queue.put_many(str(n).encode() for n in range(READ))
    is_read = verb == "record" or after
    assert bool(getattr(caught.value, "__notes__", [])) == is_read
    check_books(queue, READ if is_read else 0)


def test_a_store_that_fails_midway_says_what_came_before_and_carries_the_rest(
    stage: Stage,
    queue: Queue,
) -> None:

    def items() -> Iterator[bytes]:
        for n in range(10):
            if n == 6:
                # The first chunk waits no longer.
                stage.clock.advance(1.1)
            yield str(n).encode()

    stage.faults.fail("insert", nth=2, applied=True)
    with pytest.raises(StoreTimeout) as caught:
        queue.put_many(items())
    assert caught.value.__notes__ == ["7 messages before it were put."]
    assert len(caught.value.messages) == 3
    assert queue.put_many(caught.value.messages) == 3
    check_books(queue, 10)


def test_a_full_disk_says_what_was_being_put(stage: Stage, queue: Queue) -> None:
    stage.faults.fail("insert", applied=True, error=StoreFull("the disk is full"))
    with pytest.raises(StoreFull) as caught:
        queue.put_many([b"0", b"1"])
    assert queue.put_many(caught.value.messages) == 2
    check_books(queue, 2)


def test_where_the_store_fails_as_well_its_error_carries_what_was_read(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.faults.fail("record")
    with pytest.raises(StoreTimeout) as caught:
        queue.put_many(items_until(RuntimeError("no more"), 10))
    assert caught.value.__notes__ == [
        "Before that, the items had ended with RuntimeError('no more')."
    ]
    assert queue.put_many(caught.value.messages) == 10
    check_books(queue, 10)


def test_a_queue_that_is_dropped_meanwhile_says_what_was_put_before(stage: Stage) -> None:
    queue = stage.connect().queue("mail")

    def items() -> Iterator[bytes]:
        for n in range(10):
            if n == 6:
                stage.connect().queue("mail").drop()
                stage.clock.advance(3.1)
            yield b"x"

    with pytest.raises(UnknownQueue, match="has been dropped") as caught:
        queue.put_many(items())
    assert caught.value.__notes__ == ["7 messages before it were put."]


def test_a_redrive_that_fails_says_how_many_it_has_put_back(stage: Stage, queue: Queue) -> None:
    for n in range(3):
        queue.bury(queue.put(str(n)))
        # Now each message is put back into a shard of its own, and read by itself.
        stage.clock.advance(3_600)
    refusing = {"1"}

    def where(message: Any) -> bool:
        if message.text in refusing:
            raise RuntimeError("cannot say")
        return True

    with pytest.raises(RuntimeError) as caught:
        queue.redrive(where=where)
    assert caught.value.__notes__ == ["1 messages were moved before it."]
    assert (queue.totals().put, queue.dead.totals().forwarded) == (4, 1)
    stage.faults.fail("find", times=100)
    with pytest.raises(StoreUnavailable) as failed:
        queue.redrive()
    assert failed.value.__notes__ == [
        "0 messages were moved before it, and of the next 1 maybe some."
    ]


def test_a_visit_counts_what_it_purges(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": b"x", "delay": "10d"} for _ in range(5))
    stage.clock.advance(1)
    queue.purge()
    assert (queue.totals().present, queue.depth().total) == (5, 0)
    assert queue.check_all().purged == 5
    assert (queue.totals().purged, queue.totals().present, queue.depth().total) == (5, 0, 0)


def test_settings_changed_of_one_queue_of_two_are_not_called_unchanged(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.bury(queue.put("x"))
    stage.faults.fail("write_records queues", nth=2)
    with pytest.raises(StoreTimeout, match=r"^the settings of queue 'mail' are changed, the rest"):
        queue.alter(history="3d")
    queue.alter(history="3d")
    assert (queue.settings.history_ms, queue.dead.settings.history_ms) == (259_200_000,) * 2
