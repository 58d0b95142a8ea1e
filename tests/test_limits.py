"""Time limits of functions that cannot be stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from shardq.tasks import limits
from shardq.tasks.limits import LimitWatch
from shardq.testing import ManualClock

WAIT_S = 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(threaded=True)


@pytest.fixture
def watch(clock: ManualClock) -> Iterator[LimitWatch]:
    made = LimitWatch(clock)
    yield made
    made.stop()


class Told:
    """What was told, and by which thread."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.threads: set[str] = set()
        self._news = threading.Condition()

    def __call__(self, name: str) -> None:
        with self._news:
            self.names.append(name)
            self.threads.add(threading.current_thread().name)
            self._news.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.names) >= count, WAIT_S)
            return list(self.names)


def wait_until(is_so: object) -> None:
    assert callable(is_so)
    over = threading.Event()
    for _ in range(10_000):
        if is_so():
            return
        over.wait(0.002)
    raise AssertionError("it did not come to that")


def test_each_limit_is_told_once_when_it_is_over_and_the_first_first(
    clock: ManualClock, watch: LimitWatch
) -> None:
    told = Told()
    for name, seconds in (("c", 30.0), ("a", 10.0), ("b", 20.0)):
        watch.begin(seconds, partial(told, name))
    clock.advance(9.9)
    assert told.names == []
    clock.advance(0.2)
    assert told.wait_for(1) == ["a"]
    clock.advance(30)
    assert told.wait_for(3) == ["a", "b", "c"]
    assert told.threads == {"shardq-limits"}


def test_one_that_has_ended_is_not_told(clock: ManualClock, watch: LimitWatch) -> None:
    told = Told()
    first, second = (watch.begin(10, partial(told, name)) for name in "ab")
    first.end()
    first.end()
    clock.advance(11)
    assert told.wait_for(1) == ["b"]
    # Too late: it was told.
    second.end()
    assert told.names == ["b"]


def test_a_shorter_limit_that_comes_later_is_told_in_time() -> None:
    # By the real clock, whose wait ends by a notice alone.
    watch, told = LimitWatch(), Told()
    watch.begin(10_000, partial(told, "long"))
    watch.begin(0.01, partial(told, "short"))
    assert told.wait_for(1) == ["short"]
    watch.stop()


def test_what_raises_when_it_is_told_ends_no_other_s_limit(
    clock: ManualClock, watch: LimitWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: raised.append(given.exc_type))
    told = Told()
    watch.begin(1, lambda: 1 // 0)
    watch.begin(2, partial(told, "next"))
    clock.advance(3)
    assert told.wait_for(1) == ["next"]
    assert raised == [ZeroDivisionError]


def test_without_limits_there_is_no_thread(clock: ManualClock, watch: LimitWatch) -> None:
    assert watch._thread is None
    watch.begin(10, print).end()
    thread = watch._thread
    assert thread is not None
    for _ in range(200):
        clock.advance(1)
        thread.join(0.05)
        if not thread.is_alive():
            break
    assert watch._thread is None
    told = Told()
    watch.begin(1, partial(told, "again"))
    clock.advance(1)
    assert told.wait_for(1) == ["again"]


def test_one_that_finds_no_thread_is_not_watched_and_the_next_one_is(
    clock: ManualClock, watch: LimitWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told = Told()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            watch.begin(1, partial(told, "refused"))
    watch.begin(1, partial(told, "next"))
    clock.advance(1)
    assert told.wait_for(1) == ["next"]


def test_what_has_ended_is_not_kept_until_its_limit(clock: ManualClock, watch: LimitWatch) -> None:
    told = Told()
    watch.begin(3_600, partial(told, "hour"))
    for _ in range(20_000):
        watch.begin(86_400, print).end()
    assert len(watch._limits) <= 2 * limits._ENDED_MAX + 2
    clock.advance(3_600)
    assert told.wait_for(1) == ["hour"]


def test_a_watch_that_was_stopped_tells_nothing(clock: ManualClock, watch: LimitWatch) -> None:
    told = Told()
    watch.begin(1, partial(told, "a"))
    thread = watch._thread
    watch.stop()
    watch.begin(1, partial(told, "b")).end()
    assert thread is not None
    thread.join(WAIT_S)
    clock.advance(10)
    assert told.names == []
    assert watch._limits == []
    wait_until(lambda: watch._thread is None)
