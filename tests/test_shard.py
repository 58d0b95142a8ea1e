"""Where rows live: pure arithmetic."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st

from shardq.model.shard import FIRST_GROUP_LANE, Layout, Shard

MS = st.integers(0, 10_000_000_000_000)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    written = draw(st.integers(1, 256))
    return Layout(
        draw(st.sampled_from(["mail", "a.b-c", "x" * 100])),
        minute_ms=draw(st.integers(100, 86_400_000)),
        bands=draw(st.integers(1, 16)),
        lanes_written=written,
        lanes_read=draw(st.integers(written, 256)),
        group_lanes=draw(st.integers(1, 256)),
        offset_ms=draw(st.integers(100, 86_400_000)),
    )


@given(layouts(), MS)
def test_every_due_lives_in_exactly_one_minute(layout: Layout, due_ms: int) -> None:
    minute = layout.minute_of(due_ms)
    assert layout.start_ms(minute) <= due_ms < layout.end_ms(minute)
    assert layout.end_ms(minute) == layout.start_ms(minute + 1)
    assert layout.shard(due_ms, 0) == Shard(layout.queue, minute, 0)


@given(layouts(), st.data())
def test_a_lane_is_its_band_and_index_and_nothing_else(layout: Layout, data: st.DataObject) -> None:
    band = data.draw(st.integers(0, layout.bands - 1))
    index = data.draw(st.integers(0, layout.lanes_written - 1))
    lane = layout.lane(band, index)
    assert (layout.band_of(lane), layout.index_of(lane)) == (band, index)
    assert lane in layout.lanes()


@given(layouts(), st.text(min_size=1, max_size=50))
def test_a_group_lane_is_read_and_is_none_of_the_others(layout: Layout, group: str) -> None:
    lane = layout.group_lane(group)
    assert lane in layout.lanes_of_groups()
    assert lane in layout.all_lanes()
    assert layout.is_of_groups(lane)
    assert layout.has_lane(lane)
    assert lane not in layout.lanes()
    assert not any(map(layout.is_of_groups, layout.lanes()))


@given(layouts(), st.text(max_size=50), st.data())
def test_a_named_lane_is_one_that_is_written(
    layout: Layout, name: str, data: st.DataObject
) -> None:
    band = data.draw(st.integers(0, layout.bands - 1))
    lane = layout.named_lane(name, band)
    whole = zlib.crc32(f"{layout.queue}\0{name}".encode())
    assert (layout.band_of(lane), layout.index_of(lane)) == (band, whole % layout.lanes_written)


@given(st.text(min_size=1, max_size=50), st.integers(1, 256))
def test_a_group_lane_is_crc32_of_queue_zero_byte_and_group(group: str, lanes: int) -> None:
    layout = Layout("mail", group_lanes=lanes)
    expected = zlib.crc32(b"mail\0" + group.encode()) % lanes
    assert layout.group_lane(group) == FIRST_GROUP_LANE + expected


def test_a_group_lane_is_the_same_in_a_process_with_another_hash_seed() -> None:
    groups = ["order-7", "größe", "日本", "x" * 256]
    program = (
        "import sys; from shardq.model.shard import Layout; "
        "layout = Layout('mail', bands=3); "
        "print([layout.group_lane(g) for g in sys.argv[1:]])"
    )
    layout = Layout("mail", bands=3)
    for seed in ("1", "4711"):
        told = subprocess.run(
            [sys.executable, "-c", program, *groups],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == str([layout.group_lane(group) for group in groups])


def test_equal_groups_of_two_queues_are_seeded_apart() -> None:
    one = Layout("one", group_lanes=256)
    two = Layout("two", group_lanes=256)
    groups = [f"order-{n}" for n in range(200)]
    assert [one.group_lane(g) for g in groups] != [two.group_lane(g) for g in groups]


@given(layouts(), MS)
def test_the_newest_sealable_minute_is_the_last_that_may_be_sealed(
    layout: Layout, now_ms: int
) -> None:
    newest = layout.newest_sealable(now_ms)
    assert layout.may_seal(newest, now_ms)
    assert not layout.may_seal(newest + 1, now_ms)


@given(layouts(), MS)
def test_a_minute_is_late_before_it_may_be_sealed_and_never_while_it_runs(
    layout: Layout, now_ms: int
) -> None:
    assert not layout.is_late(layout.minute_of(now_ms), now_ms)
    assert layout.is_late(layout.newest_sealable(now_ms), now_ms)
