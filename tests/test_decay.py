"""What counts as decay, and that it is drawn; the ten minutes themselves are `scripts/decay`."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from proofs import chart, decay
from proofs.decay import Reading

STEADY = [
    Reading(minute, 20_000, 40_000, 0.5, 60.0, 0.5, 5.0, 8.0, 6, 100_000)
    for minute in range(20, 601, 20)
]


def kept(readings: list[Reading]) -> dict[str, bool]:
    names = [bound.name for bound in decay.BOUNDS]
    verdicts = zip(names, decay.judge(readings), strict=True)
    return {name: verdict.kept for name, verdict in verdicts if verdict.kept is not None}


def from_minute(minute: int, **worse: float) -> list[Reading]:
    return [replace(one, **worse) if one.minute >= minute else one for one in STEADY]


def test_what_stays_as_it_was_has_not_decayed() -> None:
    assert all(kept(STEADY).values())


@pytest.mark.parametrize(
    ("name", "still_good", "bad"),
    [
        ("part", 0.451, 0.449),
        ("cpu_us", 65.9, 66.1),
        ("p50_ms", 0.59, 0.61),
        ("p99_ms", 6.9, 7.1),
        ("tombstones", 8.79, 8.81),
        ("sstables", 8, 9),
        ("bytes", 124_999, 125_001),
    ],
)
def test_each_figure_has_its_bound(name: str, still_good: float, bad: float) -> None:
    assert all(kept(from_minute(400, **{name: still_good})).values())
    found = kept(from_minute(400, **{name: bad}))
    assert [one for one, is_kept in found.items() if not is_kept] == [name]


def test_a_drain_that_is_as_much_slower_as_the_machine_is_has_not_decayed() -> None:
    assert all(kept(from_minute(400, drain=10_000, bare=20_000)).values())


def test_getting_better_is_no_decay() -> None:
    better = from_minute(
        400, part=0.9, cpu_us=30, p50_ms=0.1, p99_ms=1.0, tombstones=1.0, sstables=1, bytes=10
    )
    assert all(kept(better).values())


def test_one_bad_reading_is_outvoted() -> None:
    assert all(kept(from_minute(600, p99_ms=900.0)).values())


def test_a_chart_is_whole_and_its_line_stays_inside() -> None:
    panels = [chart.Panel("a < b", [0, 1, 2], [0, 5, 3]), chart.Panel("none", [0, 2], [0, 0])]
    root = ElementTree.fromstring(chart.svg(panels, "minutes", shaded=(0.5, 1)))
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    for line in lines:
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 380
            assert 0 <= y <= 190
