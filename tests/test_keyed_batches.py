"""Batches of puts under keys: names are taken together, and conflicts are settled together."""

from __future__ import annotations

import pickle

import pytest
from keyed import standing, texts

from shardq import Queue
from shardq.errors import (
    KeyTaken,
    StoreTimeout,
    StoreUnavailable,
)
from shardq.lifecycle.keyedputs import OnConflict
from shardq.testing import Stage

pytest_plugins = ["keyed_stages"]


def test_put_many_takes_the_keys_of_a_batch_together(queue: Queue) -> None:
    there = queue.put("there", key="k-3", delay="1h")
    made = queue.put_many(
        ({"body": str(n), "key": f"k-{n}", "delay": "1h"} for n in range(1_000)), ids=True
    )
    assert (len(set(made)), made[3]) == (1_000, there.id)
    found = queue._settler.keys.seek([f"k-{n}" for n in range(1_000)])
    for n in range(1_000):
        row = found[f"k-{n}"].row
        assert (row.message_id, row.body) == (made[n], b"there" if n == 3 else b"%d" % n)
    assert queue.totals().put == 1_000


def test_of_a_key_that_is_twice_in_a_batch_the_later_item_finds_the_earlier(queue: Queue) -> None:
    made = queue.put_many(
        [
            {"body": "1", "key": "k"},
            {"body": "2", "key": "l"},
            b"plain",
            {"body": "3", "key": "k"},
            {"body": "4", "key": "l", "on_conflict": "replace"},
            {"body": "5", "key": "l", "on_conflict": "replace", "delay": "1h"},
            {"body": "6", "key": "l"},
        ],
        ids=True,
    )
    assert made[0] == made[3]
    assert made[1] == made[4] == made[5] == made[6]
    assert texts(queue) == ["1", "5", "plain"]
    assert queue.totals().put == 3


@pytest.mark.parametrize("choice", ["keep", "replace", "debounce", "reject"])
def test_a_batch_settles_its_conflicts_together(either: Stage, choice: OnConflict) -> None:
    queue = either.connect().queue("mail")
    calls: list[int] = []
    for count in (150, 300):
        items = [{"body": "a", "key": f"k-{count}-{n}", "delay": "1h"} for n in range(count)]
        made = queue.put_many(items, ids=True)
        before = sum(either.faults.calls.values())
        again = [item | {"body": "b", "on_conflict": choice} for item in items]
        if choice == "reject":
            with pytest.raises(KeyTaken, match=f"key 'k-{count}-0'"):
                queue.put_many(again)
        else:
            assert queue.put_many(again, ids=True) == made
        calls.append(sum(either.faults.calls.values()) - before)
        body = "b" if choice in {"replace", "debounce"} else "a"
        assert {queue.get(item["key"]).text for item in items} == {body}  # type: ignore[union-attr]
    assert calls[0] == calls[1]
    assert (len(queue.peek(1_000)), queue.totals().present) == (450, 450)


def test_of_a_batch_others_change_keys_that_meanwhile_run_are_taken_and_the_rest_replaced(
    either: Stage,
) -> None:
    queue, other = (either.connect().queue("mail") for _ in range(2))
    items = [{"body": "a", "key": f"k-{n}", "delay": "1h"} for n in range(6)]
    ids = queue.put_many(items, ids=True)
    again = [item | {"body": "b", "on_conflict": "replace"} for item in items]

    def meanwhile() -> None:
        other.cancel(key="k-0")
        other.move("k-1", delay="2h")
        other.move("k-2", delay="0s")
        [taken] = other.receive()
        assert taken.id == ids[2]

    either.faults.call("find", meanwhile)
    with pytest.raises(KeyTaken, match=r"key 'k-2' .* runs now") as error:
        queue.put_many(again)
    assert error.value.__notes__ == ["5 other messages were put."]
    assert texts(queue) == ["a", "b", "b", "b", "b", "b"]
    assert queue.get("k-0").id != ids[0]  # type: ignore[union-attr]
    assert {queue.get(f"k-{n}").id for n in (1, 3, 4, 5)} == {ids[n] for n in (1, 3, 4, 5)}  # type: ignore[union-attr]


def test_a_key_that_is_taken_is_an_error_once_all_others_of_the_batch_are_stored(
    queue: Queue,
) -> None:
    there = queue.put("there", key="k-1", delay="1h")
    items = [{"body": str(n), "key": f"k-{n}", "on_conflict": "reject"} for n in range(4)]
    with pytest.raises(KeyTaken, match="key 'k-1'") as error:
        queue.put_many([*items, b"plain"])
    assert error.value.message.id == there.id
    assert error.value.__notes__ == ["4 other messages were put."]
    assert error.value.put == 4
    assert texts(queue) == ["0", "2", "3", "plain", "there"]


def test_a_batch_that_failed_is_put_again_by_what_the_error_carries(either: Stage) -> None:
    queue = either.connect().queue("mail")
    queue.put("old", key="k-1", delay="1h")
    items = [
        {"body": str(n), "key": f"k-{n}", "on_conflict": "replace", "delay": "1h"} for n in range(5)
    ]
    for applied in (False, True):
        either.faults.fail("write_records keys", applied=applied)
        with pytest.raises((StoreTimeout, StoreUnavailable)) as error:
            queue.put_many([*items, {"body": "plain", "delay": "1h"}])
        carried = pickle.loads(pickle.dumps(error.value.messages))
        assert [message.key for message in carried] == [*[f"k-{n}" for n in range(5)], None]
        assert queue.put_many(carried) == 6
        assert texts(queue) == ["0", "1", "2", "3", "4", "plain"]
        queue.cancel(queue.peek(100)[-1])
        for message in queue.peek(100):
            if message.text == "plain":
                queue.cancel(message)


def test_a_batch_that_ctrl_c_breaks_off_leaves_one_message_a_key(stage: Stage) -> None:
    queue = stage.connect().queue("mail")

    def interrupt() -> None:
        raise KeyboardInterrupt

    stage.faults.call("write_records keys", interrupt)
    with pytest.raises(KeyboardInterrupt) as error:
        queue.put_many([{"body": str(n), "key": f"k-{n}"} for n in range(3)])
    assert error.value.__notes__ == ["3 messages before it were put."]
    assert texts(queue) == ["0", "1", "2"]
    assert queue.totals().put == 3


def test_what_a_batch_has_replaced_is_not_late_when_all_of_it_is_stored(either: Stage) -> None:
    queue = either.connect().queue("mail")
    queue.put("old", key="k-0", delay="1h")
    either.faults.call("record", lambda: either.clock.advance(300))
    queue.put_many([{"body": "a", "key": "k-0", "on_conflict": "replace"}, {"body": "b"}])
    assert texts(queue) == ["a", "b"]
    row = standing(queue, "k-0").row
    assert row.due_ms >= either.clock.now_ms()
