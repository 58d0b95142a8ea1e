"""One group lane in memory: which row is a group's head, and what is left in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardq.engine.groups.heads import WaitingHeads
from shardq.engine.groups.lane import Group, GroupLane, place_of
from shardq.engine.handing.delivery import Delivery
from shardq.engine.leases.lease import Lease
from shardq.model.message import Row
from shardq.model.shard import Shard
from shardq.stores.store import NEVER
from shardq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

LEASE = Lease(Shard("mail", -1, 7), "lock", 0, 10_000_000, 0)


def row(due_ms: int, group: str = "a", number: int = 0) -> Row:
    return Row(Shard("mail", 0, 7), due_ms, bytes([number]) * 16, b"", group=group)


def lane(rows: Sequence[Row] = (), lease: Lease = LEASE) -> GroupLane:
    made = GroupLane(7, lease)
    take(made, rows)
    return made


def take(made: GroupLane, rows: Sequence[Row], *, room: int = 100) -> list[Row]:
    kept = [one for one in rows if made.keep(one.group or "", place_of(one), room)]
    for one in kept:
        made.groups[one.group or ""].add(place_of(one), Delivery(one, 0, LEASE, grouped=True))
    return kept


def head(made: GroupLane, name: str = "a") -> int:
    one = made.groups[name].next(0)
    assert one is not None
    return one.row.due_ms


def end(made: GroupLane, name: str = "a") -> None:
    made.groups[name].head = None


def test_the_head_of_a_group_is_its_first_row_whatever_order_they_are_added_in():
    made = lane([row(3), row(1), row(2)])
    assert head(made) == 1
    end(made)
    assert head(made) == 2


def test_rows_of_one_due_go_in_order_of_their_ids():
    made = lane([row(1, number=3), row(1, number=2)])
    one = made.groups["a"].next(0)
    assert one is not None
    assert one.row.id[0] == 2


def test_a_head_stays_the_head_until_it_has_ended():
    made = lane([row(1), row(2)])
    assert head(made) == head(made) == 1


def test_a_row_found_late_comes_before_a_head_that_no_handler_has():
    made = lane([row(5)])
    assert head(made) == 5
    take(made, [row(4)])
    group = made.groups["a"]
    assert group.is_passed()
    group.take_back()
    assert head(made) == 4


def test_without_room_a_group_keeps_its_first_row_and_goes_on_after_it():
    made = lane()
    assert take(made, [row(1), row(2), row(1, "b")], room=0) == [row(1), row(1, "b")]
    assert made.groups["a"].after == place_of(row(1))
    assert take(made, [row(3)]) == []


def test_one_group_leaves_room_to_others():
    made = lane()
    assert len(take(made, [row(due_ms) for due_ms in range(20)], room=20)) == 10
    assert len(take(made, [row(30, "b")], room=0)) == 1


def test_a_late_row_before_what_is_left_is_kept_without_room():
    made = lane([row(1), row(9)])
    take(made, [row(10)], room=0)
    assert take(made, [row(5)], room=0) == [row(5)]


def test_what_was_left_is_chosen_in_order_when_the_group_is_hungry():
    made = lane()
    take(made, [row(1), row(2), row(3), row(4)], room=0)
    head(made)
    assert list(made.hungry(10)) == ["a"]
    chosen = made.reread([row(2), row(3), row(4)], place_of(row(1)), place_of(row(4)), room=5)
    assert chosen == [row(2), row(3)]
    assert made.groups["a"].after == place_of(row(3))
    assert made.reread([row(4)], place_of(row(3)), None, room=9) == [row(4)]
    assert made.groups["a"].after is None


def test_a_hungry_group_gets_one_row_though_memory_is_full():
    made = lane()
    take(made, [row(1), row(2), row(3)], room=0)
    head(made)
    end(made)
    assert made.reread([row(2), row(3)], place_of(row(1)), None, room=0) == [row(2)]
    assert made.groups["a"].after == place_of(row(2))


def test_rereading_for_one_group_serves_the_others():
    made = lane()
    take(made, [row(1), row(2, "b"), row(3), row(4, "b")], room=0)
    chosen = made.reread([row(3), row(4, "b")], place_of(row(1)), None, room=10)
    assert chosen == [row(3), row(4, "b")]
    assert not made.hungry(10)


def test_a_pass_that_ends_early_lets_the_group_go_on_where_it_ended():
    made = lane()
    take(made, [row(1), row(5)], room=0)
    head(made)
    assert made.reread([row(2, "b")], place_of(row(1)), place_of(row(3)), room=10) == []
    assert made.groups["a"].after == place_of(row(3))
    assert take(made, [row(2)], room=0) == [row(2)]


def test_a_group_whose_head_waits_leaves_the_rest_and_is_not_hungry():
    made = lane([row(1), row(2)])
    head(made)
    group = made.groups["a"]
    group.waits = 1
    assert [one.row for one in group.leave()] == [row(2)]
    assert take(made, [row(3)]) == []
    assert not group.is_hungry
    group.waits = 0
    assert group.is_hungry


def test_an_idle_group_is_forgotten():
    made = lane([row(1)])
    head(made)
    made.forget("a")
    assert "a" in made.groups
    end(made)
    made.forget("a")
    assert not made.groups


@pytest.mark.parametrize(("due_ms", "needs"), [(100, [True, False]), (101, [False, False])])
def test_care_is_for_the_first_head_of_a_group_that_was_due_at_the_takeover(due_ms, needs):
    made = lane(lease=Lease(Shard("mail", -1, 7), "lock", 0, 10_000_000, 5, 100))
    assert [made.needs_care(row(due_ms)) for _ in needs] == needs
    assert made.needs_care(row(100, "b"))


def test_a_wait_that_was_ended_before_its_time_is_forgotten() -> None:
    clock = ManualClock()
    heads = WaitingHeads(clock)
    group = Group()
    group.head = Delivery(row(1), 0, LEASE, grouped=True)
    heads.wait(group, group.head, clock.now_ms() + 3_600_000)
    heads.tidy()
    assert (heads.far, heads.next_ms()) == (1, clock.now_ms() + 3_600_000)
    group.head, group.waits = None, 0
    heads.tidy()
    assert (heads.far, heads.next_ms()) == (0, NEVER)
