"""One thread that steps several, and forgets none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import shardq
from shardq.clock import SystemClock
from shardq.engine.news import Awaited
from shardq.engine.stepper import Stepper
from shardq.errors import StoreUnavailable
from shardq.model.message import Row
from shardq.model.shard import Shard
from shardq.records.together import Together
from shardq.stores.sqlite.store import SqliteStore
from shardq.stores.store import Slice
from shardq.stores.tables import MEMBERS, QUEUES, Change, QueueRecord

WAIT_S = 60


class Walker:
    """A stepped part; each of its turns does what the test says."""

    def __init__(self, *acts: Callable[[], float | None]) -> None:
        self._acts = list(acts)
        self.turns = 0
        self.ended = threading.Event()

    def turn(self) -> float | None:
        self.turns += 1
        if self._acts:
            return self._acts.pop(0)()
        self.ended.set()
        return None

    def on_change(self) -> bool:
        return False

    def take_in(self, noted: Together) -> bool:
        return False

    def awaited(self) -> None:
        """It is never at rest."""

    def wake(self) -> None:
        """What is never looked at for others is never woken."""


@pytest.fixture
def stepper() -> Iterator[Stepper]:
    with shardq.connect("sqlite://") as db:
        made = Stepper(db._home.store, db._home.clock, "shardq-walking")
        yield made
        made.close()


def test_one_that_is_added_while_its_last_turn_is_under_way_is_stepped_again(
    stepper: Stepper,
) -> None:
    def ask_meanwhile() -> None:
        adding = threading.Thread(target=stepper.add, args=(walker,))
        adding.start()
        adding.join(WAIT_S)

    def ask_after_it_was_removed() -> None:
        stepper.remove(walker)
        ask_meanwhile()

    walker = Walker(ask_meanwhile, ask_after_it_was_removed)
    stepper.add(walker)
    assert walker.ended.wait(WAIT_S)
    assert walker.turns == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_a_look_for_several_does_not_keep_them_from_their_turns(
    stepper: Stepper,
) -> None:
    class Resting(Walker):
        def awaited(self) -> None:
            raise ZeroDivisionError

    one, other = Resting(lambda: 0.05, lambda: 0.05), Resting(lambda: 0.05)
    stepper.add(one)
    stepper.add(other)
    assert one.ended.wait(WAIT_S)
    assert other.ended.wait(WAIT_S)


def test_a_write_for_one_queue_at_rest_is_news_for_that_one_alone(tmp_path: Path) -> None:
    class Resting(Walker):
        def __init__(self, queue: str) -> None:
            super().__init__(*[lambda: 60.0] * 2)
            self._awaited = Awaited(Slice(queue, [0], [0, 1], -1, 1_000, 1), queue, queue)
            self.told = threading.Event()
            self.rests = threading.Event()

        def turn(self) -> float | None:
            self.rests.set()
            return super().turn()

        def awaited(self) -> Awaited:
            return self._awaited

        def on_change(self) -> bool:
            self.told.set()
            return False

    here, there = (SqliteStore(tmp_path / "jobs.db") for _ in range(2))
    here.open()
    there.open()
    stepper = Stepper(here, SystemClock(0), "shardq-walking")
    mail, bills = Resting("mail"), Resting("bills")
    for one in (mail, bills):
        stepper.add(one)
    assert mail.rests.wait(WAIT_S)
    assert bills.rests.wait(WAIT_S)
    mail.told.clear()
    bills.told.clear()
    # Later than its queue's slice, then for the other queue.
    there.insert([Row(Shard("mail", 0, 0), 2_000, bytes(16), b"")])
    there.insert([Row(Shard("bills", 0, 1), 1_000, bytes(16), b"")])
    assert bills.told.wait(WAIT_S)
    stepper.close()
    assert not mail.told.is_set()
    there.close()
    here.close()


def test_the_records_and_heartbeats_of_all_at_rest_are_read_for_them(tmp_path: Path) -> None:
    class Resting(Walker):
        def __init__(self, queue: str) -> None:
            super().__init__(*[lambda: 60.0] * 2)
            self._awaited = Awaited(Slice(queue, [0], [0], -1, 1_000, 1), queue, f"of {queue}")
            self.found: list[object] = []
            self.woken = threading.Event()

        def awaited(self) -> Awaited:
            return self._awaited

        def take_in(self, noted: Together) -> bool:
            _, queue, members = self._awaited
            self.found.append((noted.notes(QUEUES, (), [queue]), noted.notes(MEMBERS, (members,))))
            return queue == "mail"

        def wake(self) -> None:
            self.woken.set()

    store = SqliteStore(tmp_path / "jobs.db")
    store.open()
    record = QueueRecord("{}", b"secret", 1)
    change = Change((), ("mail",), {"version": None}, record._asdict())
    assert not store.write_records(QUEUES, [change])
    store.note(MEMBERS, ("of mail",), {"me": "alive"}, 60_000)
    stepper = Stepper(store, SystemClock(0), "shardq-walking")
    mail, bills = Resting("mail"), Resting("bills")
    for one in (bills, mail):
        stepper.add(one)
    assert mail.woken.wait(WAIT_S)
    stepper.close()
    assert mail.found[0] == ({"mail": record}, {"me": "alive"})
    assert bills.found[0] == ({}, {})
    assert not bills.woken.is_set()
    store.close()


class Far(Walker):
    """One at rest whose next turn is far off."""

    def __init__(self, queue: str) -> None:
        super().__init__()
        self._rows = Slice(queue, [0], [0], -1, 1_000, 1)
        self.stepped = threading.Semaphore(0)
        self._looked = threading.Semaphore(0)

    def await_look(self, stepper: Stepper) -> None:
        """Wait until the stepper looks for its news."""
        while not stepper.is_looked_at(self):
            assert self._looked.acquire(timeout=WAIT_S)

    def take_in(self, noted: Together) -> bool:
        # A look has found no rows for it just now.
        self._looked.release()
        return super().take_in(noted)

    def turn(self) -> float:
        self.stepped.release()
        return 600.0

    def awaited(self) -> Awaited:
        return Awaited(self._rows, self._rows.queue, self._rows.queue)


def far_ones(stepper: Stepper) -> tuple[Far, Far]:
    """Two of them, once the stepper looks for their news."""
    mail, bills = Far("mail"), Far("bills")
    for one in (mail, bills):
        stepper.add(one)
        assert one.stepped.acquire(timeout=WAIT_S)
    for one in (mail, bills):
        one.await_look(stepper)
    return mail, bills


def test_one_that_is_left_alone_at_rest_is_stepped_at_once(stepper: Stepper) -> None:
    mail, bills = far_ones(stepper)
    stepper.remove(bills)
    assert mail.stepped.acquire(timeout=WAIT_S)
    assert not stepper.is_looked_at(mail)


def test_after_a_look_that_failed_all_are_stepped_and_looked_at_again(tmp_path: Path) -> None:
    class Failing(SqliteStore):
        is_away = False

        def occupied_queues(self, wanted: Sequence[Slice]) -> set[str]:
            if self.is_away:
                raise StoreUnavailable("the store is away.")
            return super().occupied_queues(wanted)

    store = Failing(tmp_path / "jobs.db")
    store.open()
    stepper = Stepper(store, SystemClock(0), "shardq-walking")
    both = far_ones(stepper)
    store.is_away = True
    for one in both:
        assert one.stepped.acquire(timeout=WAIT_S)
        assert not stepper.is_looked_at(one)
    store.is_away = False
    for one in both:
        one.await_look(stepper)
    stepper.close()
    store.close()


def test_one_that_is_removed_is_stepped_no_more(stepper: Stepper) -> None:
    def leave() -> float:
        stepper.remove(left)
        return 0.0

    left, other = Walker(leave), Walker()
    stepper.add(left)
    stepper.add(other, 0.05)
    assert other.ended.wait(WAIT_S)
    assert left.turns == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_one_turn_ends_the_turns_of_that_one_alone(stepper: Stepper) -> None:
    def fail() -> float:
        raise ZeroDivisionError

    broken, other = Walker(fail), Walker(lambda: 0.0, lambda: 0.05)
    stepper.add(other, 0.05)
    stepper.add(broken)
    assert other.ended.wait(WAIT_S)
    assert (broken.turns, other.turns) == (1, 3)
    stepper.add(broken)
    assert broken.ended.wait(WAIT_S)
