"""The records of SQS's queues, and the names under which messages are put once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from worlds import on_each_store

import shardq
from shardq.errors import StoreCorrupt, UsageError
from shardq.server.endpoints import Endpoint, EndpointAddress, Endpoints, MoveTask
from shardq.stores.tables import ENDPOINTS, SENT, Change, EndpointRecord

if TYPE_CHECKING:
    from worlds import World

MAIL = EndpointAddress("000000000000", "us-east-1", "mail")


@on_each_store
def test_an_endpoint_is_made_once_changed_listed_and_removed(world: World) -> None:
    endpoints = Endpoints(world.connect()._home.store)
    address = MAIL._replace(region=world.queue_name())
    made = Endpoint(queue="mail", made_ms=1, changed_ms=1, tasks=(MoveTask(id="a"),))
    assert endpoints.read(address) is None
    assert endpoints.make(address, made) == made
    assert endpoints.make(address, replace(made, queue="other")) == made
    tagged = endpoints.change(address, lambda now: replace(now, tags={"a": "b"}))
    assert tagged == endpoints.read(address) == replace(made, tags={"a": "b"})
    assert endpoints.all(*address[:2]) == {"mail": tagged}
    assert endpoints.remove(address, tagged.made_ms - 1) is None
    assert endpoints.read(address) == tagged
    assert endpoints.remove(address, tagged.made_ms) == tagged
    assert endpoints.remove(address, tagged.made_ms) is None
    assert endpoints.change(address, lambda now: now) is None
    assert endpoints.all(*address[:2]) == {}
    assert endpoints.make(address, made) == made


def test_a_damaged_endpoint_is_an_error_that_names_its_queue() -> None:
    with shardq.connect("sqlite://") as db:
        store = db._home.store
        record = EndpointRecord('{"queue": 1}', 1)._asdict()
        store.write_records(ENDPOINTS, [Change(MAIL[:2], ("mail",), {"version": None}, record)])
        with pytest.raises(StoreCorrupt, match="the endpoint of queue 'mail' is damaged"):
            Endpoints(store).read(MAIL)


@pytest.mark.parametrize(
    "arn", ["", "mail", "arn:aws:sns:a:1:b", "arn:aws:sqs:a:1", "arn:aws:sqs:a:1:", "a:b:c:d:e:f:g"]
)
def test_what_is_no_arn_of_a_queue_has_no_address(arn: str) -> None:
    assert EndpointAddress.of_arn(arn) is None


# Put once -----------------------------------------------------------------------------------------


def once(name: str, body: str = "x") -> dict[str, Any]:
    return {"body": body, "group": "g", "once": name}


@on_each_store
def test_a_message_is_put_once_under_a_name_while_it_waits_and_after_its_end(world: World) -> None:
    name = world.queue_name()
    ours, theirs = world.connect().queue(name), world.connect().queue(name)
    made = ours.put_many([once("1"), once("2"), once("1")], partial=True)
    ids = [one.id for one in made if isinstance(one, shardq.Message)]
    assert len({*ids}) == 2
    assert ids[0] == ids[2]
    [again] = theirs.put_many([once("1")], partial=True)
    assert isinstance(again, shardq.Message)
    assert again.id == ids[0]
    got = ours.receive(10, wait="20s", per_group=10)
    assert [one.id for one in got] == ids[:2]
    ours.ack(*got)
    [again] = theirs.put_many([once("1")], partial=True)
    assert isinstance(again, shardq.Message)
    assert again.id == ids[0]
    assert theirs.depth(exact=True).total == 0
    assert ours.receive(10) == []


def test_a_name_is_free_after_five_minutes_though_its_message_still_waits() -> None:
    clock = shardq.testing.ManualClock()
    with shardq.connect("sqlite://", clock=clock) as db:
        queue = db.queue("mail")
        queue.put_many([once("1")], partial=True)
        clock.advance(299)
        queue.put_many([once("1")], partial=True)
        assert queue.depth(exact=True).total == 1
        clock.advance(2)
        queue.put_many([once("1")], partial=True)
        assert queue.depth(exact=True).total == 2


def test_a_queue_made_anew_has_all_names_free() -> None:
    with shardq.connect("sqlite://") as db:
        db.queue("mail").put_many([once("1")], partial=True)
        db.queue("mail").drop()
        queue = db.queue("mail")
        queue.put_many([once("1")], partial=True)
        assert queue.depth(exact=True).total == 1


def test_a_put_once_is_counted_once_and_is_in_the_history() -> None:
    with shardq.connect("sqlite://") as db:
        queue = db.queue("mail", history="1d")
        queue.put_many([once("1"), once("1")], partial=True)
        queue.put_many([once("1")], partial=True)
        queue.close()
        assert queue.totals().put == 1
        assert len([*queue.history()]) == 1


def test_a_put_that_cannot_be_put_once_is_refused_and_the_others_are_put() -> None:
    with shardq.connect("sqlite://") as db:
        queue = db.queue("mail")
        answers = queue.put_many(
            [once("1"), once("2") | {"key": "k"}, once(""), {"body": "y"}], partial=True
        )
        kinds = [isinstance(one, UsageError) for one in answers]
        assert kinds == [False, True, True, False]
        with pytest.raises(UsageError, match="'once'"):
            queue.put_many([once("1")])


def test_a_damaged_name_is_an_error_that_says_which_row() -> None:
    with shardq.connect("sqlite://") as db:
        queue = db.queue("mail")
        queue.put_many([once("1")], partial=True)
        store = db._home.store
        for bucket in range(16):
            for name, place in store.records(SENT, ("mail", bucket)).items():
                change = Change(("mail", bucket), (name,), {"place": place}, {"place": "?"})
                store.write_records(SENT, [change])
        [answer] = queue.put_many([once("1")], partial=True)
        assert isinstance(answer, StoreCorrupt)


def test_a_put_that_finds_an_old_message_leaves_it_at_its_place_in_its_group() -> None:
    clock = shardq.testing.ManualClock()
    with shardq.connect("sqlite://", clock=clock) as db:
        queue = db.queue("mail")
        queue.put_many([once("1", "1")], partial=True)
        clock.advance(250)
        queue.put_many([once("1", "1"), once("2", "2")], partial=True)
        assert [one.text for one in queue.receive(10, per_group=10)] == ["1", "2"]
