"""The contract of `Leases`: the static cells of a shard."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from shardq.model.shard import FIRST_GROUP_LANE, LANE_LEASE, MINUTE_MS, Shard
from shardq.stores.store import (
    LeaseState,
    RowMove,
)

if TYPE_CHECKING:
    from shardq.stores.store import Store

from store.parts import (
    BASE_MINUTE,
    BASE_MS,
    LONG_MS,
    TTL_MS,
    Lapse,
    everything,
    lease,
    lease_states,
    make_row,
    read_back,
)


@pytest.fixture(params=[BASE_MINUTE, LANE_LEASE], ids=["shard", "lane"])
def shard(request: pytest.FixtureRequest, queue: str) -> Shard:
    """What is leased: a shard, or a whole lane for groups."""
    return Shard(queue, request.param, FIRST_GROUP_LANE + 2)


def test_a_shard_never_leased_has_an_empty_state(store: Store, shard: Shard) -> None:
    assert lease_states(store, [shard]) == {shard: LeaseState(None, None, 0)}


def test_a_free_shard_is_leased(store: Store, shard: Shard) -> None:
    taken = LeaseState("lock-1", "member", 9)
    assert lease(store, shard, "lock-1") == taken
    assert lease_states(store, [shard]) == {shard: taken}


def test_a_held_shard_is_refused_and_its_state_is_told(store: Store, shard: Shard) -> None:
    held = lease(store, shard, "lock-1", holder="one", window=5)
    for seen in (None, "one", "two"):
        assert lease(store, shard, "lock-2", holder="two", seen=seen, window=8) == held
    assert lease_states(store, [shard]) == {shard: held}


def test_a_member_cannot_take_its_own_lease_a_second_time(store: Store, shard: Shard) -> None:
    held = lease(store, shard, "lock-1")
    assert lease(store, shard, "lock-2", seen="member") == held


def test_a_lease_that_ran_out_still_names_its_holder(
    store: Store, shard: Shard, lapse: Lapse
) -> None:
    lease(store, shard, "lock-1", holder="one", window=33, ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: lease_states(store, [shard])[shard].lock is None)
    assert lease_states(store, [shard]) == {shard: LeaseState(None, "one", 33)}


def test_a_lapsed_lease_goes_to_who_has_seen_its_holder(
    store: Store, shard: Shard, lapse: Lapse
) -> None:
    lease(store, shard, "lock-1", holder="one", window=33, ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: lease_states(store, [shard])[shard].lock is None)
    unclean = LeaseState(None, "one", 33)
    assert lease(store, shard, "lock-2", holder="two", seen=None) == unclean
    assert lease(store, shard, "lock-3", holder="two", seen="three") == unclean
    assert lease(store, shard, "lock-4", holder="two", seen="one") == LeaseState("lock-4", "two", 9)
    # Calls of the late holder have no effect.
    assert store.renew({shard: "lock-1"}, LONG_MS) == set()
    store.release({shard: "lock-1"})
    assert lease_states(store, [shard]) == {shard: LeaseState("lock-4", "two", 9)}


def test_who_expected_a_holder_is_refused_a_clean_shard(store: Store, shard: Shard) -> None:
    assert lease(store, shard, "lock-1", seen="somebody") == LeaseState()
    assert lease_states(store, [shard]) == {shard: LeaseState()}


def test_a_renewed_lease_outlives_its_first_time(store: Store, queue: str, lapse: Lapse) -> None:
    renewed, left = Shard(queue, BASE_MINUTE, 0), Shard(queue, BASE_MINUTE, 1)
    # Longer than any machine takes for two calls.
    ttl_ms = 10 * TTL_MS
    store.take({renewed: None, left: None}, lock="l", holder="m", window=4, ttl_ms=ttl_ms)
    assert store.renew({renewed: "l"}, LONG_MS) == {renewed}
    lapse(ttl_ms, lambda: lease_states(store, [left])[left].lock is None)
    assert lease_states(store, [renewed, left]) == {
        renewed: LeaseState("l", "m", 4),
        left: LeaseState(None, "m", 4),
    }


def test_only_a_lease_that_is_still_ours_is_renewed(store: Store, queue: str, lapse: Lapse) -> None:
    ours, others, lapsed, free = (Shard(queue, BASE_MINUTE, lane) for lane in range(4))
    lease(store, lapsed, "us", ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: lease_states(store, [lapsed])[lapsed].lock is None)
    lease(store, ours, "us")
    lease(store, others, "them", holder="other")
    assert store.renew(dict.fromkeys((ours, others, lapsed, free), "us"), LONG_MS) == {ours}
    assert lease_states(store, [others, lapsed, free]) == {
        others: LeaseState("them", "other", 9),
        lapsed: LeaseState(None, "member", 9),
        free: LeaseState(),
    }


def test_a_renewed_lease_runs_out_too(store: Store, shard: Shard, lapse: Lapse) -> None:
    lease(store, shard, "lock-1")
    assert store.renew({shard: "lock-1"}, TTL_MS) == {shard}
    lapse(TTL_MS, lambda: lease_states(store, [shard])[shard].lock is None)
    assert lease_states(store, [shard]) == {shard: LeaseState(None, "member", 9)}


def test_a_clean_release_leaves_nothing(store: Store, shard: Shard) -> None:
    lease(store, shard, "lock-1", holder="one")
    for _ in range(2):
        store.release({shard: "lock-1"})
        assert lease_states(store, [shard]) == {shard: LeaseState()}
    assert lease(store, shard, "lock-2", holder="two", seen=None).lock == "lock-2"


def test_only_a_lease_that_is_still_ours_is_released(
    store: Store, queue: str, lapse: Lapse
) -> None:
    others, lapsed = Shard(queue, BASE_MINUTE, 0), Shard(queue, BASE_MINUTE, 1)
    lease(store, lapsed, "us", ttl_ms=TTL_MS)
    lapse(TTL_MS, lambda: lease_states(store, [lapsed])[lapsed].lock is None)
    held = lease(store, others, "them")
    store.release({others: "us", lapsed: "us"})
    assert lease_states(store, [others, lapsed]) == {
        others: held,
        lapsed: LeaseState(None, "member", 9),
    }


def test_many_shards_are_leased_renewed_and_released_at_once(store: Store, queue: str) -> None:
    shards = [Shard(queue, BASE_MINUTE + n // 4, n % 4) for n in range(60)]
    lease(store, shards[5], "them", holder="other", window=1)
    ours = {shard: LeaseState("us", "m", 2) for shard in shards if shard != shards[5]}
    states = store.take(dict.fromkeys(shards), lock="us", holder="m", window=2, ttl_ms=LONG_MS)
    assert states == {**ours, shards[5]: LeaseState("them", "other", 1)}
    assert lease_states(store, shards) == states
    assert store.renew(dict.fromkeys(shards, "us"), LONG_MS) == set(ours)
    store.release(dict.fromkeys(shards, "us"))
    assert lease_states(store, shards) == {
        **dict.fromkeys(ours, LeaseState()),
        shards[5]: LeaseState("them", "other", 1),
    }


def test_of_many_who_take_at_once_one_wins(store: Store, shard: Shard) -> None:
    start = threading.Barrier(8)

    def race(n: int) -> LeaseState:
        start.wait(60)
        return lease(store, shard, f"lock-{n}", holder=f"member-{n}")

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(race, range(8)))
    assert len(set(states)) == 1
    assert lease_states(store, [shard]) == {shard: states[0]}


def test_a_lease_is_no_row(store: Store, queue: str) -> None:
    row = make_row(queue, lane=1)
    empty = Shard(queue, BASE_MINUTE, 0)
    lease(store, empty, "lock-1")
    lease(store, row.shard, "lock-1")
    assert store.read(everything([row])._replace(lanes=[0, 1])) == []
    assert store.occupied(queue, [BASE_MINUTE], [0, 1]) == []
    assert store.count(everything([row])._replace(lanes=[0, 1])) == {}
    assert list(store.shards(queue)) == []
    store.insert([row])
    assert store.occupied(queue, [BASE_MINUTE], [0, 1]) == [row.shard]
    assert list(store.shards(queue)) == [row.shard]


def test_rows_and_the_lease_of_their_shard_do_not_touch(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in range(3)]
    store.insert(rows)
    held = lease(store, rows[0].shard, "lock-1")
    assert read_back(store, rows) == rows
    store.delete([rows[0].position])
    store.edit([rows[1]._replace(attempt=1, serial=1)])
    store.move([RowMove(rows[2].position, make_row(queue, BASE_MS + MINUTE_MS))])
    assert lease_states(store, [rows[0].shard]) == {rows[0].shard: held}
    store.release({rows[0].shard: "lock-1"})
    assert store.find([rows[1].position]) == [rows[1]._replace(attempt=1, serial=1)]


def test_locks_are_read_beside_rows_and_left_out_where_the_row_is_gone(
    store: Store, queue: str
) -> None:
    leased, free, gone = (make_row(queue, lane=n) for n in range(3))
    store.insert([leased, free])
    held = lease(store, leased.shard, "lock-1", window=7)
    lease(store, gone.shard, "lock-2")
    assert store.locks([row.position for row in (leased, free, gone)]) == {
        leased.shard: held,
        free.shard: LeaseState(),
    }
    assert store.locks([]) == {}


def test_leases_and_records_cost_an_lwt_and_messages_none(store: Store, queue: str) -> None:
    rows = [make_row(queue, BASE_MS + n) for n in range(50)]
    before = store.counters["lwt"], store.counters["batches"]
    store.insert(rows)
    store.read(everything(rows))
    store.move([RowMove(rows[0].position, make_row(queue, BASE_MS + MINUTE_MS))])
    store.delete(row.position for row in rows)
    assert store.counters["lwt"] == before[0]
    assert 0 < store.counters["batches"] - before[1] < 50
    lease(store, rows[0].shard, "lock-1")
    assert store.counters["lwt"] > before[0]
