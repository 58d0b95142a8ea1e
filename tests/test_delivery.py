"""The life of a delivery: which steps exist, and that one of two threads takes a step."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shardq.engine.handing import delivery
from shardq.engine.handing.delivery import (
    CLAIMED,
    END,
    ENDED,
    FORGET,
    GONE,
    KEEP,
    LOSE,
    LOST,
    PARK,
    PARKED,
    RUN,
    RUNNING,
    SAVE,
    SAVING,
    STORED,
    WAITING,
    WITHDRAW,
    Delivery,
    DeliveryStage,
    Step,
)
from shardq.engine.leases.lease import Lease
from shardq.model.message import Row
from shardq.model.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARD = Shard("mail", 0, 0)
LEASE = Lease(SHARD, "lock", 0, 10_000_000, 0)
WAYS: dict[DeliveryStage, tuple[Step, ...]] = {
    WAITING: (),
    CLAIMED: (),
    RUNNING: (RUN,),
    PARKED: (RUN, PARK),
    LOST: (RUN, PARK, LOSE),
    SAVING: (RUN, SAVE),
    ENDED: (RUN, END),
    STORED: (RUN, SAVE, KEEP),
    GONE: (WITHDRAW,),
}
"""The steps that lead a claimed delivery to each stage."""
LEGAL = {
    RUN: {CLAIMED},
    WITHDRAW: {CLAIMED},
    PARK: {RUNNING, PARKED},
    LOSE: {PARKED},
    SAVE: {RUNNING},
    KEEP: {SAVING},
    END: {WAITING, CLAIMED, RUNNING, PARKED, LOST, SAVING},
}
LATE = {
    RUN: {GONE},
    WITHDRAW: {RUNNING, PARKED, SAVING, ENDED, STORED},
    PARK: {CLAIMED, SAVING, ENDED, STORED},
    LOSE: {ENDED},
    SAVE: {PARKED, LOST},
    KEEP: set(),
    END: {GONE},
}
"""Where another was first, or the step comes too early."""
NAMES = {id(step): name for name, step in vars(delivery).items() if isinstance(step, Step)}
PAIRS = [(step, stage) for step in LEGAL for stage in DeliveryStage]


def name_of(value: object) -> str:
    return value.name if isinstance(value, DeliveryStage) else NAMES[id(value)]


def at(stage: DeliveryStage, *, careful: bool = False) -> Delivery:
    """A delivery that has come so far."""
    row = Row(SHARD, 1, bytes(16), b"", attempt=2)
    one = Delivery(row, 0, LEASE, careful=careful)
    if stage is not WAITING:
        one.claim(5)
    for step in WAYS[stage]:
        assert one.take(step)
    assert one.stage is stage
    return one


@pytest.mark.parametrize(("step", "stage"), PAIRS, ids=name_of)
def test_a_step_is_taken_refused_or_does_not_exist(step: Step, stage: DeliveryStage) -> None:
    one = at(stage)
    if stage in LEGAL[step]:
        assert one.take(step)
        assert one.stage is step.after
    elif stage in LATE[step]:
        assert not one.take(step)
        assert one.stage is stage
    else:
        with pytest.raises(RuntimeError, match=f"is {stage.name}, .* to {step.after.name}"):
            one.take(step)
        assert one.stage is stage


@pytest.mark.parametrize("stage", DeliveryStage, ids=name_of)
def test_only_what_waits_is_claimed(stage: DeliveryStage) -> None:
    one = at(stage)
    if stage is WAITING:
        one.claim(7)
        assert (one.stage, one.begun_us, one.attempt) == (CLAIMED, 7, 3)
    else:
        with pytest.raises(RuntimeError, match=f"is {stage.name}, "):
            one.claim(7)


@pytest.mark.parametrize("stage", DeliveryStage, ids=name_of)
def test_what_a_handler_has_is_not_forgotten_before_it_has_ended(stage: DeliveryStage) -> None:
    one = at(stage)
    if stage in (RUNNING, PARKED, SAVING):
        with pytest.raises(RuntimeError, match=f"is {stage.name}, .* to {FORGET.after.name}"):
            one.forget()
    else:
        one.forget()
        # The handler of a lost delivery still runs.
        assert one.stage is (LOST if stage is LOST else GONE)


def test_a_delivery_is_waited_for_until_its_end_is_decided() -> None:
    ended = [stage for stage in DeliveryStage if at(stage).has_ended]
    assert ended == [ENDED, STORED, GONE]


def test_who_waits_for_a_careful_outcome_learns_when_it_is_forgotten() -> None:
    one = at(CLAIMED, careful=True)
    assert one.run(9)
    assert (one.begun_us, one.thread_id) == (9, threading.get_ident())
    assert one.settled is not None
    assert one.take(END)
    assert not one.settled.is_set()
    one.forget()
    assert one.settled.is_set()


def test_what_was_withdrawn_does_not_run() -> None:
    one = at(GONE)
    assert not one.run(9)
    assert one.thread_id == 0


class Slow(tuple[DeliveryStage, ...]):
    """Stages that take long to look through: another thread gets its turn meanwhile."""

    __slots__ = ()

    def __contains__(self, stage: object) -> bool:
        is_in = tuple.__contains__(self, stage)
        for _ in range(20):
            # A call is where Python lets other threads run.
            threading.get_ident()
        return is_in


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads that change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize(
    ("stage", "step", "other"),
    [
        (CLAIMED, RUN, WITHDRAW),
        (RUNNING, SAVE, PARK),
        (CLAIMED, END, WITHDRAW),
    ],
    ids=name_of,
)
def test_of_two_threads_one_takes_its_step(stage: DeliveryStage, step: Step, other: Step) -> None:
    ones = [at(stage) for _ in range(500)]
    ready = threading.Barrier(2)
    taken: dict[int, list[bool]] = {}

    def race(mine: Step) -> None:
        ready.wait()
        slow = replace(mine, before=Slow(mine.before))
        taken[id(mine)] = [one.take(slow) for one in ones]

    threads = [threading.Thread(target=race, args=(mine,)) for mine in (step, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, mine, theirs in zip(ones, taken[id(step)], taken[id(other)], strict=True):
        assert mine + theirs == 1
        assert one.stage is (step.after if mine else other.after)
