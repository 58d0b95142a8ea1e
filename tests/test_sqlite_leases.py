"""Leases and members in SQLite lapse by time since boot, which nobody sets."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from sqlite_file import SHARD, path, run_child

from shardq import clock
from shardq.stores.sqlite import SqliteStore
from shardq.stores.store import LeaseState
from shardq.stores.tables import MEMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TTL_MS = 10_000
HELD = LeaseState("lock", "m", 5)
UNCLEAN = LeaseState(None, "m", 5)
STEPS_S = [-600, -1, 0, 1, 86_400, -50 * 365 * 86_400]


@dataclass
class Machine:
    """The clocks of a machine."""

    wall_us: int = 1_800_000_000_000_000
    boot_us: int = 1_000_000_000
    space: str | None = "first"

    def open(self, path: Path) -> SqliteStore:
        store = SqliteStore(path, machine_us=lambda: self.wall_us, boot_time=self.boot_time)
        store.open()
        return store

    def boot_time(self) -> clock.BootTime:
        return clock.BootTime(self.boot_us, self.space)

    def pass_us(self, us: int) -> None:
        self.wall_us += us
        self.boot_us += us

    def set(self, seconds: float) -> None:
        self.wall_us += round(seconds * 1e6)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def store(machine: Machine, path: Path) -> Iterator[SqliteStore]:
    """A store in which a lease has been taken, and a member has come."""
    opened = machine.open(path)
    opened.take({SHARD: None}, lock="lock", holder="m", window=5, ttl_ms=TTL_MS)
    opened.note(MEMBERS, ("mail",), {"m": "{}"}, TTL_MS)
    yield opened
    opened.close()


def ahead_ms(store: SqliteStore) -> int:
    return store.lease_states([SHARD])[SHARD].ahead_ms


def is_there(store: SqliteStore) -> bool:
    """True if both are in force; they never differ."""
    state = store.lease_states([SHARD])[SHARD]._replace(ahead_ms=0)
    members = store.notes(MEMBERS, ("mail",))
    taken = store.take({SHARD: "m"}, lock="other", holder="n", window=5, ttl_ms=TTL_MS)[SHARD]
    assert (state, members, taken.lock) in (
        (HELD, {"m": "{}"}, "lock"),
        (UNCLEAN, {}, "other"),
    )
    return state == HELD


@pytest.mark.parametrize("seconds", STEPS_S)
def test_what_is_held_is_held_on_when_the_wall_clock_is_set(
    store: SqliteStore, machine: Machine, seconds: int
) -> None:
    machine.set(seconds)
    machine.pass_us(TTL_MS * 1_000 - 1)
    assert is_there(store)
    assert store.renew({SHARD: "lock"}, TTL_MS) == {SHARD}
    store.note(MEMBERS, ("mail",), {"m": "{}"}, TTL_MS)
    machine.set(-seconds)
    machine.pass_us(TTL_MS * 1_000 - 1)
    assert is_there(store)


@pytest.mark.parametrize("seconds", STEPS_S)
def test_what_a_crashed_holder_has_ends_in_its_time_when_the_wall_clock_is_set(
    store: SqliteStore, machine: Machine, seconds: int
) -> None:
    machine.set(seconds)
    machine.pass_us(TTL_MS * 1_000)
    assert store.renew({SHARD: "lock"}, TTL_MS) == set()
    store.release({SHARD: "lock"})
    assert not is_there(store)


@pytest.mark.parametrize("up_s", [1, 900, 998, 1_010, 100_000])
def test_what_was_held_when_the_machine_went_down_is_over_once_it_is_up(
    store: SqliteStore, machine: Machine, up_s: int
) -> None:
    machine.boot_us = up_s * 1_000_000
    machine.set(-3_600)  # its clock has no battery
    assert not is_there(store)


def test_by_how_much_the_clock_was_set_back_since_a_shard_was_held_is_told_until_it_is_released(
    store: SqliteStore, machine: Machine
) -> None:
    assert ahead_ms(store) == 0
    machine.set(600)
    assert ahead_ms(store) == 0
    store.renew({SHARD: "lock"}, TTL_MS)
    machine.set(-900)
    store.renew({SHARD: "lock"}, TTL_MS)
    assert ahead_ms(store) == 900_000
    machine.pass_us(TTL_MS * 1_000)
    store.take({SHARD: "m"}, lock="other", holder="n", window=5, ttl_ms=TTL_MS)
    assert ahead_ms(store) == 900_000
    machine.space, machine.boot_us = "second", 5
    machine.set(-60)
    assert ahead_ms(store) == TTL_MS + 60_000
    machine.pass_us(TTL_MS * 1_000 + 60_000_000)
    store.take({SHARD: "n"}, lock="third", holder="o", window=5, ttl_ms=TTL_MS)
    machine.set(-60)
    assert ahead_ms(store) == 60_000
    store.release({SHARD: "third"})
    assert ahead_ms(store) == 0


def test_another_time_namespace_goes_by_the_wall_clock(
    store: SqliteStore, machine: Machine
) -> None:
    machine.space = "second"
    machine.boot_us = 5
    machine.pass_us(TTL_MS * 1_000 - 1)
    assert is_there(store)
    machine.pass_us(1)
    assert not is_there(store)


def test_a_space_that_is_not_known_goes_by_the_wall_clock(path: Path) -> None:
    machine = Machine(space=None)
    store = machine.open(path)
    store.take({SHARD: None}, lock="lock", holder="m", window=5, ttl_ms=TTL_MS)
    store.note(MEMBERS, ("mail",), {"m": "{}"}, TTL_MS)
    machine.pass_us(TTL_MS * 1_000 - 1)
    assert is_there(store)
    machine.pass_us(1)
    assert not is_there(store)
    store.close()


def test_a_look_that_began_a_moment_before_sees_what_was_written_since(
    store: SqliteStore, machine: Machine
) -> None:
    machine.boot_us -= 900_000
    assert is_there(store)


def test_all_processes_of_a_machine_have_one_time_since_boot() -> None:
    before = clock.boot_time()
    script = "from shardq.clock import boot_time; print(*boot_time())"
    us, _, space = run_child(script).strip().partition(" ")
    assert before.us < int(us) < clock.boot_time().us
    assert space == before.space
