"""What counts as decay, and that it is drawn; the ten minutes themselves are `scripts/decay`."""

from __future__ import annotations

import cProfile
import gc
import json
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from proofs import chart, decay
from proofs.decay import Reading

from shardq import Consumer
from shardq.testing import Stage

DOCS = Path(__file__).parent.parent / "docs"
STEADY = [
    Reading(minute, 20_000, 60.0, 0.5, 5.0, 0.25, 8.0, 6, 100_000) for minute in range(20, 601, 20)
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
        ("drain", 18_001, 17_999),
        ("p99_ms", 5.49, 5.51),
        ("tombstones", 8.79, 8.81),
        ("sstables", 8, 9),
        ("bytes", 124_999, 125_001),
    ],
)
def test_each_figure_has_its_bound(name: str, still_good: float, bad: float) -> None:
    assert all(kept(from_minute(540, **{name: still_good})).values())
    found = kept(from_minute(540, **{name: bad}))
    assert [one for one, is_kept in found.items() if not is_kept] == [name]


def test_a_median_lateness_is_judged_by_that_of_a_process_which_only_sleeps() -> None:
    assert all(kept(from_minute(540, p50_ms=0.549)).values())
    assert not kept(from_minute(540, p50_ms=0.551))["by_bare"]
    assert kept(from_minute(540, p50_ms=0.98, bare_ms=0.45))["by_bare"]
    assert not kept(from_minute(540, bare_ms=0.22))["by_bare"]


def test_getting_better_is_no_decay() -> None:
    better = from_minute(
        540, drain=30_000, p50_ms=0.1, p99_ms=1.0, tombstones=1.0, sstables=1, bytes=10
    )
    assert all(kept(better).values())


def test_one_bad_reading_is_outvoted_and_two_of_the_last_hour_are_not() -> None:
    assert all(kept(from_minute(600, p99_ms=900.0)).values())
    assert not kept(from_minute(580, p99_ms=900.0))["p99_ms"]


def test_the_plot_and_its_judgement_can_be_had_again_from_the_readings_kept_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = tmp_path / "decay.svg"
    kept_in = str(DOCS / "decay.json")
    monkeypatch.setattr("sys.argv", ["decay", "--readings", kept_in, "--out", str(drawn)])
    assert decay.main() == 0
    for name in ("decay.svg", "decay.json"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text()
    table = capsys.readouterr().out
    assert table.count("  ok") == 6
    assert "NOT OK" not in table


@pytest.mark.parametrize("readings", ["", "[]", "{}", '[{"minute": 1}]', "short", "late"])
def test_readings_that_cannot_be_judged_are_refused_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    readings: str,
) -> None:
    some = {"short": STEADY[:9], "late": STEADY[9:]}.get(readings)
    kept_in = tmp_path / "kept.json"
    kept_in.write_text(readings if some is None else json.dumps([asdict(one) for one in some]))
    arguments = ["--readings", str(kept_in), "--out", str(tmp_path / "decay.svg")]
    monkeypatch.setattr("sys.argv", ["decay", *arguments])
    assert decay.main() == 1
    assert capsys.readouterr().err.startswith(f"decay: {kept_in} has no readings of ")


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


def test_what_a_consumer_does_and_keeps_does_not_grow_with_its_age() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail", minute="1s", offset="5s")
        consumer = Consumer(queue, lambda _: None)

        def work(minutes: int) -> None:
            for _ in range(minutes):
                queue.put_many([{"body": b"x", "delay": f"{200 * n}ms"} for n in range(5)])
                stage.drive(consumer, seconds=1)

        def calls(minutes: int) -> int:
            profile = cProfile.Profile()
            profile.runcall(work, minutes)
            return sum(entry.callcount for entry in profile.getstats())

        def memory() -> int:
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        # Sweeps of sealed shards come 4, 32 and 256 minutes later: the first are over at the end.
        tracemalloc.start()
        work(20)
        early = calls(20), memory()
        work(280)
        late = calls(20), memory()
        tracemalloc.stop()
    assert late[0] <= 1.02 * early[0]
    assert late[1] <= 1.05 * early[1]
