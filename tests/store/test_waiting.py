"""The contract of lanes for groups: one lease a lane, and its list of minutes with rows left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardq.model.shard import FIRST_GROUP_LANE, LANE_LEASE, Shard
from shardq.stores.store import LeaseState
from shardq.stores.tables import LANES

if TYPE_CHECKING:
    from shardq.stores.store import Store

from store.parts import BASE_MINUTE, BASE_MS, TTL_MS, Lapse, lease, lease_states

LANE = FIRST_GROUP_LANE + 7
OTHER = FIRST_GROUP_LANE + 8
NEVER = FIRST_GROUP_LANE + 9


@pytest.fixture
def lane(queue: str) -> Shard:
    return Shard(queue, LANE_LEASE, LANE)


def test_the_leases_of_lanes_are_read_together(store: Store, lane: Shard) -> None:
    queue = lane.queue
    assert store.lane_locks(queue, [LANE, OTHER]) == {}
    lease(store, lane, "l-1")
    lease(store, lane._replace(lane=OTHER), "l-2", holder="other", window=3)
    held = {LANE: LeaseState("l-1", "member", 9), OTHER: LeaseState("l-2", "other", 3)}
    assert store.lane_locks(queue, [LANE, OTHER, NEVER]) == held
    store.release({lane: "l-1"})
    assert store.lane_locks(queue, [LANE, OTHER, NEVER]) == {OTHER: held[OTHER]}


def test_the_lease_of_a_lane_and_those_of_its_shards_are_apart(store: Store, lane: Shard) -> None:
    of_shard = Shard(lane.queue, BASE_MINUTE, LANE)
    held = lease(store, lane, "l-1", holder="one")
    assert lease(store, of_shard, "l-2", holder="two") == LeaseState("l-2", "two", 9)
    store.release({of_shard: "l-2"})
    assert lease_states(store, [lane]) == {lane: held}


def test_the_holder_lists_minutes_and_erases_them(store: Store, lane: Shard) -> None:
    queue = lane.queue
    lease(store, lane, "l-1")
    assert store.waiting(queue, [LANE, OTHER]) == {}
    assert store.list_minutes(lane, "l-1", {9: BASE_MS, 7: BASE_MS + 1})
    assert store.list_minutes(lane, "l-1", {8: BASE_MS + 2})
    found = store.waiting(queue, [OTHER, LANE])
    assert found == {LANE: {7: BASE_MS + 1, 8: BASE_MS + 2, 9: BASE_MS}}
    assert list(found[LANE]) == [7, 8, 9]
    # At once: some go, some are told anew; what is not listed is erased as well.
    assert store.list_minutes(lane, "l-1", {9: BASE_MS + 5}, [7, 5])
    assert store.list_minutes(lane, "l-1", {9: BASE_MS + 5}, [7, 5])
    assert store.waiting(queue, [LANE]) == {LANE: {8: BASE_MS + 2, 9: BASE_MS + 5}}
    assert store.list_minutes(lane, "l-1", {}, [8, 9])
    assert store.waiting(queue, [LANE]) == {}
    assert store.list_minutes(lane, "l-1", {}, [])
    # The lease is as it was.
    assert store.lane_locks(queue, [LANE]) == {LANE: LeaseState("l-1", "member", 9)}


def test_who_does_not_hold_the_lane_changes_nothing_of_its_list(store: Store, lane: Shard) -> None:
    assert not store.list_minutes(lane, "l-1", {7: BASE_MS})
    lease(store, lane, "l-1")
    assert store.list_minutes(lane, "l-1", {7: BASE_MS})
    for listed, erased in (({8: BASE_MS}, []), ({}, [7]), ({7: BASE_MS + 1}, [])):
        assert not store.list_minutes(lane, "l-2", listed, erased)
    store.release({lane: "l-1"})
    assert not store.list_minutes(lane, "l-1", {8: BASE_MS}, [7])
    # The list outlives the lease: the next holder reads it.
    assert store.waiting(lane.queue, [LANE]) == {LANE: {7: BASE_MS}}
    lease(store, lane, "l-3", holder="next")
    assert store.list_minutes(lane, "l-3", {8: BASE_MS})
    assert store.waiting(lane.queue, [LANE]) == {LANE: {7: BASE_MS, 8: BASE_MS}}


def test_a_holder_whose_lease_has_lapsed_lists_no_more(
    store: Store, lane: Shard, lapse: Lapse
) -> None:
    lease(store, lane, "l-1", ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: lease_states(store, [lane])[lane].lock is None)
    assert not store.list_minutes(lane, "l-1", {7: BASE_MS})
    assert store.waiting(lane.queue, [LANE]) == {}
    # It still names its holder, however far the lane is sealed since.
    store.note(LANES, (lane.queue,), {LANE: BASE_MINUTE})
    assert store.lane_locks(lane.queue, [LANE]) == {LANE: LeaseState(None, "member", 9)}


def test_very_many_minutes_are_listed(store: Store, lane: Shard) -> None:
    lease(store, lane, "l-1")
    many = {minute: BASE_MS + minute for minute in range(250)}
    assert store.list_minutes(lane, "l-1", many)
    assert store.waiting(lane.queue, [LANE]) == {LANE: many}
    assert store.list_minutes(lane, "l-1", {}, range(1, 250))
    assert store.waiting(lane.queue, [LANE]) == {LANE: {0: BASE_MS}}
