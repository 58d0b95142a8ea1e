"""A lane's cursor, and the ladder of sweeps behind now."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.engine.reading.lane import RUNGS, SEALED_RUNGS, Ladder, Lane
from shardq.model.shard import Layout, Position, Shard

LAYOUT = Layout("mail")
START_MS = 1_800_000_000_000
READS_MAX = 10


def test_a_fresh_lane_is_read_from_the_minute_after_its_seal() -> None:
    lane = Lane.fresh(3, Layout("mail", bands=2), sealed=9)
    assert lane.cursor_ms == 10 * 60_000 - 1
    assert lane.band == 1


@given(st.lists(st.tuples(st.integers(0, 1_000), st.none() | st.binary(min_size=16, max_size=16))))
def test_a_cursor_never_goes_back_by_reading(reads: list[tuple[int, bytes | None]]) -> None:
    lane = Lane.fresh(0, LAYOUT, sealed=-1)
    before = lane.cursor_ms
    for cursor_ms, cursor_id in reads:
        lane.advance(cursor_ms, cursor_id)
        assert lane.cursor_ms >= before
        before = lane.cursor_ms


def test_a_cursor_inside_a_millisecond_passes_it_when_all_of_it_is_read() -> None:
    lane = Lane.fresh(0, LAYOUT, sealed=-1)
    lane.advance(500, bytes(16))
    lane.advance(500, None)
    assert (lane.cursor_ms, lane.cursor_id) == (500, None)


def test_a_cursor_has_come_to_positions_in_the_order_of_due_and_id() -> None:
    lane = Lane.fresh(0, LAYOUT, sealed=-1)
    lane.advance(500, bytes([5]) * 16)
    places = [(499, 9), (500, 4), (500, 5), (500, 6), (501, 1)]
    at = [Position(Shard("mail", 0, 0), due_ms, bytes([of]) * 16) for due_ms, of in places]
    assert [lane.is_before(one) for one in at] == [False, False, False, True, True]
    lane.advance(500, None)
    assert [lane.is_before(one) for one in at] == [False, False, False, False, True]


def test_a_cursor_does_not_come_to_minutes_that_are_sealed_or_were_empty() -> None:
    lane = Lane.fresh(0, LAYOUT, sealed=9)
    at = [Position(Shard("mail", of, 0), of * 60_000, bytes(16)) for of in (8, 10, 11, 12, 13)]
    assert [lane.comes_to(one) for one in at] == [False, True, True, True, True]
    lane.behind, lane.behind_until_ms = deque([10, 12]), 12 * 60_000
    assert [lane.comes_to(one) for one in at] == [False, True, False, True, True]


def test_rows_given_up_are_before_the_cursor_again() -> None:
    lane = Lane.fresh(0, LAYOUT, sealed=-1)
    lane.advance(500, bytes(16))
    lane.full = True
    lane.rewind(500)
    assert (lane.cursor_ms, lane.cursor_id, lane.full) == (499, None, False)
    lane.rewind(700)
    assert lane.cursor_ms == 499


def sweep_sealed(ladder: Ladder, lane: Lane, now_ms: int) -> list[int]:
    """The minutes that are due, once they were swept."""
    due = ladder.sealed_due(lane, now_ms)
    lane.swept.update(due)
    return [minute for _, minute in due]


@pytest.mark.parametrize("seed", range(3))
def test_each_tombstone_is_read_at_most_ten_times_and_each_place_by_every_deep_rung(
    seed: int,
) -> None:
    chance = random.Random(seed)
    minutes = 300
    end_ms = START_MS + minutes * 60_000
    ladder = Ladder(LAYOUT, START_MS)
    lane = Lane.fresh(0, LAYOUT, LAYOUT.newest_sealable(START_MS))
    instants = [chance.randrange(START_MS + 120_000, START_MS + 180_000) for _ in range(40)]
    reads = dict.fromkeys(instants, 0)
    by_rung = {rung.purpose: dict.fromkeys(instants, 0) for rung in RUNGS}
    sealed = dict.fromkeys(instants, 0)
    now_ms = START_MS
    while now_ms < end_ms:
        rung = ladder.due(now_ms)
        if rung is not None:
            ladder.swept(rung, now_ms)
            for at_ms in instants:
                if now_ms - rung.depth_ms < at_ms <= now_ms:
                    reads[at_ms] += 1
                    by_rung[rung.purpose][at_ms] += 1
        lane.sealed = LAYOUT.newest_sealable(now_ms)
        for minute in sweep_sealed(ladder, lane, now_ms):
            for at_ms in instants:
                if LAYOUT.minute_of(at_ms) == minute:
                    reads[at_ms] += 1
                    sealed[at_ms] += 1
        is_near = now_ms < START_MS + 300_000
        now_ms += chance.choice((1, 10, 50, 50, 100)) if is_near else chance.choice((500, 5_000))
    for at_ms in instants:
        at_seal = 1
        assert reads[at_ms] + at_seal <= READS_MAX
        assert sealed[at_ms] == len(SEALED_RUNGS)
        assert by_rung["sweep 60 s"][at_ms] >= 1
        assert by_rung["sweep 0.5 s"][at_ms] + by_rung["sweep 5 s"][at_ms] >= 2


def test_every_sealed_minute_is_visited_once_by_each_of_its_rungs() -> None:
    ladder = Ladder(LAYOUT, START_MS)
    lane = Lane.fresh(0, LAYOUT, LAYOUT.newest_sealable(START_MS))
    seen: list[tuple[int, int]] = []
    for step in range(600):
        now_ms = START_MS + step * 60_000 + 30_000
        lane.sealed = LAYOUT.newest_sealable(now_ms)
        due = ladder.sealed_due(lane, now_ms)
        lane.swept.update(due)
        seen += due
    assert len(seen) == len(set(seen))
    first = LAYOUT.newest_sealable(START_MS)
    for rung in SEALED_RUNGS:
        minutes = [minute for back, minute in seen if back == rung]
        assert minutes == list(range(minutes[0], minutes[-1] + 1))
        assert minutes[0] <= first - rung + 1


def test_a_sweep_that_fails_stays_due_and_then_reaches_as_far_as_it_would_have() -> None:
    ladder = Ladder(LAYOUT, START_MS)
    first, second, third = RUNGS
    due_ms = START_MS + first.every_ms
    assert ladder.due(due_ms) == first
    assert ladder.due(due_ms + 1_000) == first._replace(depth_ms=first.depth_ms + 1_000)
    back_ms = START_MS + third.every_ms + 7_000
    rung = ladder.due(back_ms)
    assert rung == third._replace(depth_ms=third.depth_ms + 7_000)
    ladder.swept(rung, back_ms)
    # The deeper sweep did the work of the others.
    assert ladder.due(back_ms + first.every_ms) == first
    assert ladder.due(back_ms + second.every_ms) == second
