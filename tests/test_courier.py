"""Errands: in the courier's thread or in the caller's, and what becomes of what they meet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from shardq.engine.storing.courier import Courier
from shardq.errors import ShardqError, StoreTimeout

WAIT_S = 60


@pytest.fixture
def returned() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def courier(returned: threading.Semaphore) -> Iterator[Courier]:
    made = Courier("courier", on_return=returned.release)
    yield made
    made.stop()


def lose() -> None:
    raise StoreTimeout("the answer was lost")


def test_without_a_thread_an_errand_is_over_when_it_is_sent(courier: Courier) -> None:
    done: list[str] = []
    errand = courier.send(lambda: done.append(threading.current_thread().name))
    assert errand.over.is_set()
    assert errand.failure is None
    assert done == [threading.current_thread().name]


def test_a_thread_runs_errands_one_after_another(
    courier: Courier, returned: threading.Semaphore
) -> None:
    courier.start()
    gate = threading.Event()
    done: list[int] = []
    first = courier.send(lambda: gate.wait(WAIT_S) and done.append(1))
    second = courier.send(lambda: done.append(2))
    assert not first.over.is_set()
    assert not second.over.is_set()
    gate.set()
    assert second.over.wait(WAIT_S)
    assert done == [1, 2]
    assert returned.acquire(timeout=WAIT_S)
    assert returned.acquire(timeout=WAIT_S)


def test_what_an_errand_meets_is_kept_and_the_next_one_runs(courier: Courier) -> None:
    courier.start()
    lost, fine = courier.send(lose), courier.send(lambda: None)
    assert fine.over.wait(WAIT_S)
    assert isinstance(lost.failure, StoreTimeout)
    assert fine.failure is None


def test_a_fault_of_our_own_is_no_success(courier: Courier) -> None:
    done: list[int] = []
    with pytest.raises(ZeroDivisionError):
        courier.send(lambda: done.append(1 // 0))
    errand = courier.send(lambda: None)
    assert errand.failure is None
    assert done == []


def test_a_fault_in_the_thread_is_told_and_leaves_nobody_waiting(
    courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: SimpleQueue[threading.ExceptHookArgs] = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", told.put)
    courier.start()
    gate = threading.Event()
    done: list[int] = []
    errands = [
        courier.send(lambda: gate.wait(WAIT_S) and done.append(1 // 0)),
        courier.send(lambda: done.append(2)),
    ]
    gate.set()
    for errand in errands:
        assert errand.over.wait(WAIT_S)
        assert isinstance(errand.failure, ShardqError)
    assert told.get(timeout=WAIT_S).exc_type is ZeroDivisionError
    assert courier.send(lambda: done.append(3)).failure is None
    assert done == [3]
