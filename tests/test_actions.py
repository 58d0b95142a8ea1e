"""Commands that change something are recorded, on both stores: who, what, and its outcome."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq.records.actions import KEPT_DAYS, Actions, What
from shardq.testing import Stage

if TYPE_CHECKING:
    from shardq.connection import Connection

DAY_S = 86_400


def actions_of(db: Connection) -> Actions:
    return Actions(db._home.store, db._home.clock)


@on_each_store
def test_commands_are_listed_the_last_one_first(world: World) -> None:
    one, other = (actions_of(world.connect()) for _ in range(2))
    who = f"ada-{uuid.uuid4().hex}"
    one.record(who, "shell", What.DROP, "orders")
    world.pass_time(0.01)
    other.record(who, "sqs", What.PURGE, "mail \ud83d" + "x" * 1_000, "StoreTimeout")
    world.pass_time(0.01)
    one.record("another", "shell", What.DROP, "orders")
    found = one.last(10, where=lambda action: action.who == who)
    assert [(a.via, a.what, a.outcome) for a in found] == [
        ("sqs", "purge", "StoreTimeout"),
        ("shell", "drop", "done"),
    ]
    assert found[0].at_ms > found[1].at_ms
    assert found[0].object.startswith(r"mail \ud83dxxx")
    assert len(found[0].object) == 200
    assert one.last(1)[0].who == "another"
    since = one.last(10, since_ms=found[0].at_ms, where=lambda action: action.who == who)
    assert since == found[:1]


def test_commands_of_many_days_are_kept_for_90(stage: Stage) -> None:
    actions = actions_of(stage.connect())
    for day in range(100):
        actions.record("ada", "shell", What.PAUSE, str(day))
        stage.clock.sleep(DAY_S)
    found = actions.last(1_000)
    assert [int(one.object) for one in found] == list(range(99, 99 - KEPT_DAYS + 1, -1))
    assert [one.object for one in actions.last(3)] == ["99", "98", "97"]
    with stage._sqlite._database.reading() as connection:
        (rows,) = connection.execute("SELECT count(*) FROM actions").fetchone()
    # Expired commands are deleted, though nobody writes to their days any more.
    assert rows == KEPT_DAYS


def test_a_command_that_cannot_be_recorded_is_carried_out_and_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    actions = actions_of(stage.connect())
    stage.faults.fail("note actions")
    with caplog.at_level(logging.WARNING):
        actions.record("ada", "shell", What.DROP, "orders")
    assert "drop of orders by ada is not recorded" in caplog.text
    assert actions.last(1) == []
