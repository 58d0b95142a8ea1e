"""The clock: corrected by the store, slewed, and refused where it is too wrong.

The operating system's clocks are played; nothing waits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from shardq import clock
from shardq.clock import SystemClock, forward_us
from shardq.errors import BadSetting, ClockError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

WALL_US = 1_800_000_000_000_000


@dataclass
class Machine:
    """The operating system's time, in the place of the module `time`."""

    true_us: int = WALL_US
    boot_us: int = 5_000_000
    wrong_us: int = 0
    slept: list[float] = field(default_factory=list)
    CLOCK_MONOTONIC = 1

    def time_ns(self) -> int:
        return (self.true_us + self.wrong_us) * 1_000

    def clock_gettime_ns(self, _which: int) -> int:
        return self.boot_us * 1_000

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def pass_us(self, micros: int) -> None:
        self.true_us += micros
        self.boot_us += micros


@dataclass
class Nodes:
    """A store whose nodes have wrong clocks, and whose requests and answers take a while."""

    machine: Machine
    wrong_us: dict[str, int]
    trips_us: list[tuple[int, int]] = field(default_factory=list)
    asked: int = 0
    silent: set[str] = field(default_factory=set)
    is_local: bool = False

    def clocks(self) -> dict[str, Callable[[], int]]:
        return {node: partial(self._time_us, node) for node in self.wrong_us}

    def _time_us(self, node: str) -> int:
        self.asked += 1
        if node in self.silent:
            raise StoreUnavailable(f"{node} is down")
        there, back = self.trips_us.pop(0) if self.trips_us else (0, 0)
        self.machine.pass_us(there)
        told = self.machine.true_us + self.wrong_us[node]
        self.machine.pass_us(back)
        return told


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    played = Machine()
    monkeypatch.setattr(clock, "time", played)
    return played


def test_now_is_the_stores_time_however_wrong_the_wall_clock_is(machine: Machine) -> None:
    for wrong_us in (-60_000_000, 0, 60_000_000):
        machine.wrong_us = wrong_us
        mine = SystemClock()
        mine.measure(Nodes(machine, {"a": 0}))
        assert mine.now_us() == machine.true_us
        assert mine.deviation_us == wrong_us
        machine.pass_us(1_234)
        assert mine.now_us() == machine.true_us
        assert mine.now_ms() == machine.true_us // 1_000


def test_the_wall_clock_is_read_at_measurements_only(machine: Machine) -> None:
    mine = SystemClock()
    mine.measure(Nodes(machine, {"a": 0}))
    machine.wrong_us = 3_600_000_000
    machine.pass_us(10_000)
    assert mine.now_us() == machine.true_us


def test_one_node_with_a_wrong_clock_is_outvoted(machine: Machine) -> None:
    mine = SystemClock()
    mine.measure(Nodes(machine, {"a": 1_000, "b": 0, "c": 3_600_000_000}))
    assert mine.now_us() == machine.true_us + 1_000


def test_a_node_that_does_not_answer_is_left_out(machine: Machine) -> None:
    mine = SystemClock(90_000_000)
    mine.measure(Nodes(machine, {"a": 0, "b": 0, "c": 0}, silent={"a", "c"}))
    assert mine.now_us() == machine.true_us


def test_where_no_node_answers_there_is_no_time_to_go_by(machine: Machine) -> None:
    with pytest.raises(StoreUnavailable, match="is down"):
        SystemClock().measure(Nodes(machine, {"a": 0, "b": 0}, silent={"a", "b"}))


def test_the_answer_that_was_soonest_back_decides(machine: Machine) -> None:
    # The slow ones are lopsided: half of their time would be wrong by 90 ms, and ahead for one.
    trips = [(0, 200_000), (190_000, 0), (1_000, 1_000), *[(0, 180_000)] * 5]
    mine = SystemClock()
    nodes = Nodes(machine, {"a": 0}, trips)
    mine.measure(nodes)
    assert nodes.asked == 8
    assert mine.now_us() == machine.true_us


def test_it_is_measured_once_a_minute(machine: Machine) -> None:
    mine = SystemClock()
    nodes = Nodes(machine, {"a": 0})
    mine.measure(nodes)
    machine.pass_us(59_999_999)
    mine.measure(nodes)
    assert nodes.asked == 8
    machine.pass_us(1)
    mine.measure(nodes)
    assert nodes.asked == 16


def test_a_small_error_is_slewed_and_time_never_goes_backwards(machine: Machine) -> None:
    mine = SystemClock()
    nodes = Nodes(machine, {"a": 0})
    mine.measure(nodes)
    machine.pass_us(60_000_000)
    nodes.wrong_us["a"] = -500_000
    before = mine.now_us()
    mine.measure(nodes)
    assert mine.now_us() == before
    for _ in range(100):
        machine.pass_us(100_000)
        now = mine.now_us()
        assert before < now
        before = now
    assert mine.now_us() == machine.true_us - 500_000
    machine.pass_us(20_000_000)
    assert mine.now_us() == machine.true_us - 500_000


def test_a_slew_that_is_measured_half_way_is_not_counted_twice(machine: Machine) -> None:
    mine = SystemClock()
    nodes = Nodes(machine, {"a": 0})
    mine.measure(nodes)
    for wrong_us in (400_000, -400_000, 100_000):
        machine.pass_us(60_000_000)
        nodes.wrong_us["a"] = wrong_us
        mine.measure(nodes)
        machine.pass_us(30_000_000)
        assert mine.now_us() == machine.true_us + wrong_us


def test_a_large_error_is_stepped_at_once_and_logged(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    mine = SystemClock()
    nodes = Nodes(machine, {"a": 0})
    mine.measure(nodes)
    machine.pass_us(60_000_000)
    nodes.wrong_us["a"] = 5_000_000
    with caplog.at_level(logging.WARNING):
        mine.measure(nodes)
    assert mine.now_us() == machine.true_us + 5_000_000
    assert "stepped by +5.000 s" in caplog.text
    assert [by for _, by in mine.steps] == [5_000_000]


def test_with_the_correction_off_the_wall_clock_is_taken_and_its_error_still_told(
    machine: Machine,
) -> None:
    machine.wrong_us = 60_000_000
    mine = SystemClock(corrected=False)
    mine.measure(Nodes(machine, {"a": 0}))
    assert mine.now_us() == machine.true_us + 60_000_000
    assert mine.deviation_us == 60_000_000


def test_the_environment_shifts_the_clock_and_switches_its_correction_off(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDQ_CLOCK_OFFSET", "-60")
    corrected = SystemClock()
    assert corrected.now_us() == machine.true_us - 60_000_000
    corrected.measure(Nodes(machine, {"a": 0}))
    assert corrected.now_us() == machine.true_us
    monkeypatch.setenv("SHARDQ_CLOCK_CORRECTION", "off")
    wrong = SystemClock()
    wrong.measure(Nodes(machine, {"a": 0}))
    assert wrong.now_us() == machine.true_us - 60_000_000


@pytest.mark.parametrize("text", ["soon", "", "nan", "inf"])
def test_an_offset_that_is_no_number_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SHARDQ_CLOCK_OFFSET", text)
    with pytest.raises(BadSetting, match="SHARDQ_CLOCK_OFFSET"):
        SystemClock()


@pytest.mark.parametrize(
    ("wrong_s", "warned"), [(0, False), (60, False), (61, True), (-61, True), (120, True)]
)
def test_half_the_offset_is_warned_of(
    machine: Machine, caplog: pytest.LogCaptureFixture, wrong_s: int, warned: bool
) -> None:
    machine.wrong_us = wrong_s * 1_000_000
    mine = SystemClock()
    mine.measure(Nodes(machine, {"a": 0}))
    with caplog.at_level(logging.WARNING):
        mine.check(120_000)
    assert ("clock" in caplog.text) == warned


@pytest.mark.parametrize("wrong_s", [121, -121])
def test_a_clock_wrong_by_more_than_the_offset_is_refused(machine: Machine, wrong_s: int) -> None:
    machine.wrong_us = wrong_s * 1_000_000
    mine = SystemClock()
    mine.measure(Nodes(machine, {"a": 0}))
    with pytest.raises(ClockError, match="set the clock"):
        mine.check(120_000)


def test_a_store_without_nodes_leaves_the_wall_clock(machine: Machine) -> None:
    machine.wrong_us = 7
    mine = SystemClock()
    mine.measure(Nodes(machine, {}))
    assert mine.now_us() == machine.true_us + 7


def test_only_the_clock_sleeps(machine: Machine) -> None:
    SystemClock().sleep(1.5)
    assert machine.slept == [1.5]


# A store of this machine --------------------------------------------------------------------------


def local(machine: Machine) -> Nodes:
    return Nodes(machine, {}, is_local=True)


@pytest.mark.parametrize("by_us", [-600_000_000, -700_000, 700_000, 3_600_000_000])
def test_on_a_local_store_now_is_the_wall_clock_and_a_step_is_counted_once(
    machine: Machine, caplog: pytest.LogCaptureFixture, by_us: int
) -> None:
    mine, store = SystemClock(), local(machine)
    mine.measure(store)
    machine.wrong_us = by_us
    assert mine.now_us() == WALL_US + by_us
    assert mine.now_ms() == (WALL_US + by_us) // 1_000
    assert not mine.steps
    for _ in range(3):
        machine.pass_us(5_000_000)
        mine.measure(store)
        assert [by for _, by in mine.steps] == [by_us]
    assert "clock was set" in caplog.text
    assert mine.deviation_us == 0
    assert store.asked == 0


def test_a_clock_that_is_set_by_little_is_no_step_until_it_adds_up(machine: Machine) -> None:
    mine, store = SystemClock(), local(machine)
    mine.measure(store)
    for count in range(1, 8):
        machine.wrong_us = -100_000 * count
        mine.measure(store)
        assert len(mine.steps) == (count >= 6)
    machine.wrong_us -= 100_000
    mine.measure(store)
    assert [by for _, by in mine.steps] == [-600_000]


def test_what_was_set_forward_counts_less_what_was_set_back_until_it_is_long_past(
    machine: Machine,
) -> None:
    mine, store = SystemClock(), local(machine)
    mine.measure(store)
    for wrong_s, forward_s in ((100, 100), (-100, 0), (50, 150), (20, 120), (80, 180)):
        machine.wrong_us = wrong_s * 1_000_000
        mine.measure(store)
        assert forward_us(mine, 600_000_000) == forward_s * 1_000_000
        machine.pass_us(100_000_000)
    assert forward_us(mine, 200_000_000) == 60_000_000
    machine.pass_us(600_000_000)
    assert forward_us(mine, 200_000_000) == 0


def test_a_process_that_stands_still_between_two_readings_sees_no_step(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, store = SystemClock(), local(machine)
    mine.measure(store)
    read = clock.machine_us

    def stopped() -> int:
        told = read()
        machine.pass_us(60_000_000)
        return told

    monkeypatch.setattr(clock, "machine_us", stopped)
    mine.measure(store)
    monkeypatch.undo()
    monkeypatch.setattr(clock, "time", machine)
    mine.measure(store)
    assert not mine.steps


def test_a_clock_that_is_played_wrong_is_put_right_on_a_local_store(machine: Machine) -> None:
    mine, uncorrected = SystemClock(60_000_000), SystemClock(60_000_000, corrected=False)
    for one in (mine, uncorrected):
        one.measure(local(machine))
        assert one.deviation_us == 60_000_000
    assert (mine.now_us(), uncorrected.now_us()) == (WALL_US, WALL_US + 60_000_000)
