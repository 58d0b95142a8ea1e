"""Shards of a lane that are older than what a member has of it."""

from __future__ import annotations

from reading import write

from shardq.engine.lane import Lane
from shardq.engine.lease import Leases
from shardq.engine.older import find_older
from shardq.testing import Stage


def test_shards_with_rows_due_by_now_are_given_unless_leased_here(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    layout, now_ms = queue._home.register.layout, stage.clock.now_ms()
    minute = layout.minute_of(now_ms)
    starts = [layout.start_ms(minute - back) for back in (40, 30, 20, 10)]
    firsts = [write(stage, queue, due_ms, b"first", lane=0) for due_ms in starts]
    for due_ms in starts:
        write(stage, queue, due_ms + 1, b"second", lane=0)
    write(stage, queue, now_ms + 1, b"later", lane=0)
    mine, other = (
        Leases(queue._home.store, stage.clock, name, window=1) for name in ("me", "other")
    )
    assert not mine.take([layout.shard(starts[1], 0)])
    assert not other.take([layout.shard(starts[2], 0)])
    lane = Lane.fresh(0, layout, minute - 31)
    found = find_older(queue._home.store, mine, layout, [lane], now_ms)
    # Of the first minute the lane is sealed, and the second is leased here.
    assert found == [(firsts[2], False), (firsts[3], True)]
