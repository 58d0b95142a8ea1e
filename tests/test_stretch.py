"""Halves of what a read covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.model import ids
from shardq.model.ids import RowIds, order_key
from shardq.stores.cassandra.stretch import Stretch

DUE_MS = 1_800_000_000_000
HOUR_US = 3_600_000_000


def holds(stretch: Stretch, due_ms: int, row_id: bytes) -> bool:
    """True if a row is in it, as the server would say."""
    after, until = (-1, b""), (1 << 63, b"")
    place = due_ms, order_key(row_id)
    if stretch.after_id is not None:
        after = stretch.after_ms, order_key(stretch.after_id)
    elif due_ms <= stretch.after_ms:
        return False
    if stretch.until_id is not None:
        until = stretch.until_ms, order_key(stretch.until_id)
    elif due_ms > stretch.until_ms:
        return False
    return after < place <= until


def parts_of(stretch: Stretch, depth: int) -> list[Stretch]:
    halves = stretch.halves() if depth else ()
    return [part for half in halves for part in parts_of(half, depth - 1)] or [stretch]


@given(
    spans=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    births=st.lists(st.integers(-HOUR_US, HOUR_US), min_size=1, max_size=20),
    depth=st.integers(1, 9),
    begins_inside=st.booleans(),
)
def test_each_row_is_in_one_part(
    spans: tuple[int, int], births: list[int], depth: int, *, begins_inside: bool
) -> None:
    before, later = spans
    made = RowIds()
    rows = [
        (DUE_MS + n % (before + later + 1) - before, made.next(DUE_MS * 1_000 + birth))
        for n, birth in enumerate(births)
    ]
    first = rows[0]
    after_ms, after_id = first if begins_inside else (DUE_MS - before - 1, None)
    whole = Stretch("mail", [7], [3], after_ms, after_id, DUE_MS + later)
    parts = parts_of(whole, depth)
    for row in rows:
        assert sum(holds(part, *row) for part in parts) == holds(whole, *row)


def test_places_are_cut_before_dues_and_dues_before_births() -> None:
    stretch = Stretch("mail", range(10, 13), [0, 1], -1, None, 5)
    first, second = stretch.halves()
    assert (list(first.minutes), list(second.minutes)) == ([10], [11, 12])
    assert [half.lanes for half in first.halves()] == [[0], [1]]
    [one, two] = Stretch("mail", [10], [0], 0, None, 4).halves()
    assert (one.after_ms, one.until_ms, two.after_ms, two.until_ms) == (0, 2, 2, 4)
    [one, two] = Stretch("mail", [10], [0], DUE_MS - 1, None, DUE_MS).halves()
    assert one.until_id == two.after_id is not None
    assert one.until_ms == two.after_ms == two.until_ms == DUE_MS


@given(depth=st.integers(1, 6), within=st.booleans())
def test_what_covers_a_part_covers_its_parts(depth: int, *, within: bool) -> None:
    whole = Stretch("mail", [7], [3], DUE_MS - 1, None, DUE_MS + (0 if within else 9))
    parts = parts_of(whole, depth)
    wide = whole._replace(minutes=[6, 7], lanes=[2, 3])
    for one in parts:
        assert one.covers(one)
        assert whole.covers(one)
        assert wide.covers(one)
        assert not one.covers(whole)
        assert not one._replace(queue="other").covers(one)
        assert not one._replace(minutes=[8]).covers(one)
    assert not any(one.covers(two) for one in parts for two in parts if one is not two)


def test_a_microsecond_of_births_is_not_cut() -> None:
    a, b = ids.bound(DUE_MS * 1_000), ids.bound(DUE_MS * 1_000 + 1)
    assert Stretch("mail", [10], [0], DUE_MS, a, DUE_MS, b).halves() == ()


@pytest.mark.parametrize("birth_us", [1, (DUE_MS - 10_000) * 1_000, DUE_MS * 1_000 + HOUR_US])
def test_a_stretch_of_one_millisecond_is_cut_down_to_the_births_around_any(birth_us: int) -> None:
    row_id = RowIds().next(birth_us)
    stretch, cuts = Stretch("mail", [7], [3], DUE_MS - 1, None, DUE_MS), 0
    while halves := stretch.halves():
        [stretch] = [half for half in halves if holds(half, DUE_MS, row_id)]
        cuts += 1
    assert stretch.after_id is not None
    assert stretch.until_id is not None
    assert ids.birth_us(stretch.until_id) - ids.birth_us(stretch.after_id) == 1
    assert cuts < 100


def test_what_has_no_end_is_cut_where_no_deleted_rows_are_beyond() -> None:
    one, two = Stretch("mail", [10], [0], -1, None, (1 << 63) - 1).halves()
    assert one.until_ms == two.after_ms == 1 << 41
