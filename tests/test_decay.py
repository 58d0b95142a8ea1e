"""What counts as decay, and that it is drawn; the ten minutes themselves are `scripts/decay`."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from proofs import chart, decay
from proofs.decay import Reading

STEADY = [
    Reading(minute, 20_000, 40_000, 0.5, 60.0, 30.0, 2.0, 0.5, 5.0, 8.0, 6, 100_000)
    for minute in range(20, 601, 20)
]


def kept(readings: list[Reading]) -> dict[str, bool]:
    names = [bound.name for bound in decay.BOUNDS]
    verdicts = zip(names, decay.judge(readings), strict=True)
    return {name: verdict.kept for name, verdict in verdicts if verdict.kept is not None}


def growing(**late: float) -> list[Reading]:
    """Readings of which some go in a line from what they are to what they are in the last hour."""

    def at(one: Reading, name: str) -> float:
        early = getattr(one, name)
        return early + (late[name] - early) * (one.minute - 150) / (570 - 150)

    return [replace(one, **{name: at(one, name) for name in late}) for one in STEADY]


def test_what_stays_as_it_was_has_not_decayed() -> None:
    assert all(kept(STEADY).values())


@pytest.mark.parametrize(
    ("name", "still_good", "bad"),
    [
        ("part", 0.451, 0.449),
        ("cpu_times", 2.19, 2.21),
        ("p50_ms", 0.59, 0.61),
        ("p99_ms", 6.9, 7.1),
        ("tombstones", 8.79, 8.81),
        ("sstables", 7.9, 8.1),
        ("bytes", 124_999, 125_001),
    ],
)
def test_each_figure_has_its_bound(name: str, still_good: float, bad: float) -> None:
    assert all(kept(growing(**{name: still_good})).values())
    found = kept(growing(**{name: bad}))
    assert [one for one, is_kept in found.items() if not is_kept] == [name]


def test_a_drain_that_is_as_much_slower_as_the_machine_is_has_not_decayed() -> None:
    assert all(kept(growing(drain=10_000, bare=20_000)).values())


def test_getting_better_is_no_decay() -> None:
    better = growing(
        part=0.9, cpu_times=1.0, p50_ms=0.1, p99_ms=1.0, tombstones=1.0, sstables=1, bytes=10
    )
    assert all(kept(better).values())


def test_single_bad_readings_are_outvoted() -> None:
    shaken = [replace(one, p99_ms=900.0) if one.minute > 540 else one for one in STEADY]
    assert all(kept(shaken).values())
    assert not kept([replace(one, p99_ms=one.minute) for one in STEADY])["p99_ms"]


def test_what_comes_before_minute_120_is_no_measure() -> None:
    assert all(kept([replace(o, part=5.0) if o.minute < 120 else o for o in STEADY]).values())


def test_a_chart_is_whole_and_its_line_stays_inside() -> None:
    panels = [
        chart.Panel("a < b", [0, 1, 2], [0, 5, 3], [(0, 2), (2, 4)]),
        chart.Panel("none", [0, 2], [0, 0]),
    ]
    root = ElementTree.fromstring(chart.svg(panels, "minutes", shaded=(0.5, 1)))
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3
    for line in lines:
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 380
            assert 0 <= y <= 190
