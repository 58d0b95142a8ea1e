"""Coroutines of all threads in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlite_file import run_child
from supervised import wait_for

from shardq import Snooze
from shardq.tasks import loop as module
from shardq.tasks.limits import TimeLimit
from shardq.tasks.loop import Loop

WAIT_S = 60


class Ends:
    """The ends that a loop has told, by name, and what it said of coroutines that run on."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[Any, BaseException | None]]] = {}
        self.threads: dict[str, str] = {}
        self.overruns: list[str] = []
        self._news = threading.Condition()

    def of(self, name: str) -> Callable[[Any, BaseException | None], None]:
        def done(value: Any, error: BaseException | None) -> None:
            with self._news:
                self.told.setdefault(name, []).append((value, error))
                self.threads[name] = threading.current_thread().name
                self._news.notify_all()

        return done

    def overrun(self, said: str) -> None:
        with self._news:
            self.overruns.append(said)
            self._news.notify_all()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(is_so, WAIT_S)

    def wait(self, name: str) -> tuple[Any, BaseException | None]:
        """The one end of this name, once it is told."""
        self.wait_until(lambda: name in self.told)
        [end] = self.told[name]
        return end


class Run:
    """A loop, and what it has told."""

    def __init__(self, at_once: int) -> None:
        self.ends = Ends()
        self.loop = Loop(at_once, on_overrun=self.ends.overrun)

    def submit(
        self,
        work: Callable[[], Awaitable[Any]],
        name: str = "a",
        *,
        limit_s: float | None = None,
        context: contextvars.Context | None = None,
    ) -> Callable[[], str]:
        async def run() -> Any:
            return await work()

        where = self.loop.submit(
            run,
            self.ends.of(name),
            context=context or contextvars.copy_context(),
            limit_s=limit_s,
            name=name,
        )
        assert where is not None
        return where

    def wait(self, name: str = "a") -> tuple[Any, BaseException | None]:
        return self.ends.wait(name)

    def wait_for_slots(self) -> None:
        """Wait until no slot is taken. A slot is freed one turn after its coroutine's end."""
        over = threading.Event()
        for _ in range(6_000):
            if not self.loop._in_flight:
                return
            over.wait(0.01)
        raise AssertionError(f"{self.loop._in_flight} slots stay taken")


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run(at_once=500)
    yield made
    made.loop.stop()


@pytest.fixture
def watched(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A loop that is looked at often, and is blocked after 50 ms."""
    monkeypatch.setattr(module, "_LOOK_S", 0.02)
    monkeypatch.setattr(module, "_BLOCKED_US", 50_000)
    run.loop._tell_us = 50_000
    return run


async def forever() -> None:
    await asyncio.Event().wait()


async def seven() -> int:
    return 7


def test_what_a_coroutine_returns_is_told_in_the_thread_of_the_loop(run: Run) -> None:
    run.submit(seven)
    assert run.wait() == (7, None)
    assert run.ends.threads == {"a": "shardq-loop"}


def test_there_is_no_thread_before_the_first_coroutine_nor_after_the_stop() -> None:
    before = threading.active_count()
    run = Run(at_once=1)
    assert threading.active_count() == before
    run.submit(seven)
    run.wait()
    thread = run.loop._thread
    assert thread is not None
    run.loop.stop()
    assert not thread.is_alive()
    # Later than the stop, and not told.
    run.submit(seven, "late")
    assert "late" not in run.ends.told


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr
)
def test_what_a_coroutine_raises_ends_it_alone(run: Run, error: BaseException) -> None:
    async def fail() -> None:
        raise error

    go = asyncio.Event()
    run.submit(go.wait, "other")
    run.submit(fail)
    assert run.wait() == (None, error)

    async def let_go() -> None:
        go.set()

    run.submit(let_go, "go")
    assert run.wait("other") == (True, None)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_what_a_task_of_a_coroutine_raises_does_not_end_the_loop(
    run: Run, error: BaseException
) -> None:
    async def fail() -> None:
        raise error

    async def work() -> None:
        await asyncio.create_task(fail())

    run.submit(work)
    assert run.wait() == (None, error)
    run.submit(seven, "next")
    assert run.wait("next") == (7, None)


def test_what_makes_no_coroutine_is_an_error_of_its_job(run: Run) -> None:
    run.submit(lambda: None)  # type: ignore[arg-type,return-value]
    value, error = run.wait()
    assert value is None
    assert isinstance(error, TypeError)


def test_an_end_that_cannot_be_told_is_logged_and_keeps_nothing_from_the_others(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def done(_value: object, _error: object) -> None:
        raise SystemExit(3)

    run.loop.submit(
        seven, done, context=contextvars.copy_context(), limit_s=None, name="mail.welcome 1"
    )
    run.submit(seven)
    assert run.wait() == (7, None)
    assert "the end of task mail.welcome 1 could not be told" in caplog.text
    run.wait_for_slots()


def test_context_variables_are_carried_and_what_a_coroutine_sets_is_its_own(run: Run) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    async def work() -> str:
        before = variable.get()
        variable.set("inside")
        return before

    for name in "ab":
        context = contextvars.copy_context()
        context.run(variable.set, name)
        run.submit(work, name, context=context)
    assert [run.wait(name)[0] for name in "ab"] == ["a", "b"]
    assert variable.get() == "none"


def test_submit_waits_while_as_many_run_as_may_at_once() -> None:
    run = Run(at_once=3)
    gates = [asyncio.Event() for _ in range(4)]
    begun: list[int] = []
    has_begun = threading.Event()

    def submit(n: int) -> None:
        async def work() -> None:
            begun.append(n)
            if n == 3:
                has_begun.set()
            await gates[n].wait()

        run.submit(work, f"{n}")

    for n in range(3):
        submit(n)
    fourth = threading.Thread(target=submit, args=(3,), daemon=True)
    fourth.start()
    assert not has_begun.wait(0.05)
    assert fourth.is_alive()
    assert run.loop._loop is not None
    run.loop._loop.call_soon_threadsafe(gates[0].set)
    assert has_begun.wait(WAIT_S)
    fourth.join(WAIT_S)
    assert run.wait("0") == (None, None)
    run.loop.stop()


def test_a_stop_frees_who_waits_to_submit_cancels_what_runs_and_tells_no_end() -> None:
    run = Run(at_once=2)
    cancelled: list[str] = []

    async def work() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.append("x")
            raise

    for name in "ab":
        run.submit(work, name)
    waits = threading.Thread(target=run.submit, args=(work, "c"), daemon=True)
    waits.start()
    run.loop.stop()
    waits.join(WAIT_S)
    assert not waits.is_alive()
    assert run.loop._thread is not None
    run.loop._thread.join(WAIT_S)
    assert not run.loop._thread.is_alive()
    # The coroutines that had not begun were not begun.
    assert len(cancelled) <= 2
    assert run.ends.told == {}


def test_a_coroutine_over_its_limit_is_cancelled_and_ends_by_that(run: Run) -> None:
    cleaned = threading.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            cleaned.set()

    run.submit(work, limit_s=0.02)
    value, error = run.wait()
    assert value is None
    assert isinstance(error, TimeLimit)
    assert isinstance(error, TimeoutError)
    assert str(error) == "took longer than 20ms"
    assert cleaned.is_set()
    assert run.ends.overruns == []
    assert run.loop._jobs == set()


def test_one_that_ends_within_its_limit_leaves_no_timer(run: Run) -> None:
    run.submit(seven, limit_s=3_600)
    assert run.wait() == (7, None)
    assert run.loop._jobs == set()
    assert all(timer.cancelled() for timer in getattr(run.loop._loop, "_scheduled", ()))


def test_one_that_returns_though_it_was_cancelled_has_done_its_work(run: Run) -> None:
    async def work() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            return "committed"
        return ""

    run.submit(work, limit_s=0.02)
    assert run.wait() == ("committed", None)


def test_what_one_raises_as_it_is_cancelled_is_the_cause_of_its_end(run: Run) -> None:
    async def work() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            raise ValueError("half written") from None

    run.submit(work, limit_s=0.02)
    _, error = run.wait()
    assert isinstance(error, TimeLimit)
    assert isinstance(error.__cause__, ValueError)


def test_a_cancellation_of_its_own_is_a_failure_like_any_other(run: Run) -> None:
    async def work() -> None:
        raise asyncio.CancelledError("by itself")

    run.submit(work)
    _, error = run.wait()
    assert isinstance(error, asyncio.CancelledError)


def test_one_that_swallows_its_cancellation_ends_all_the_same_and_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SWALLOW_S", 0.05)
    over = asyncio.Event()

    async def swallow() -> int:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()
        return 7

    where = run.submit(swallow, "mail.welcome 1", limit_s=0.02)
    _, error = run.wait("mail.welcome 1")
    assert isinstance(error, TimeLimit)
    run.ends.wait_until(lambda: bool(run.ends.overruns))
    [said] = run.ends.overruns
    assert said.startswith(
        "task mail.welcome 1 took longer than 20ms, and goes on though cancelled; it stands at:\n"
    )
    assert ", in swallow" in said
    assert "shardq/tasks" not in said
    assert ", in swallow" in where()
    # Its slot stays taken, and what it returns later is told to nobody.
    assert run.loop._in_flight == 1
    assert run.loop._loop is not None
    run.loop._loop.call_soon_threadsafe(over.set)
    run.submit(seven, "next")
    assert run.wait("next") == (7, None)
    assert len(run.ends.told["mail.welcome 1"]) == 1


def test_where_a_coroutine_waits_is_told_from_the_user_s_code_on(run: Run) -> None:
    has_begun = threading.Event()

    async def inner() -> None:
        has_begun.set()
        await forever()

    async def outer() -> None:
        await inner()

    where = run.submit(outer)
    assert has_begun.wait(WAIT_S)
    run.submit(seven, "turn")
    run.wait("turn")
    lines = [line for line in where().splitlines() if line.startswith("  File")]
    assert [line.rpartition(", in ")[2] for line in lines[-4:]] == [
        "outer",
        "inner",
        "forever",
        "wait",
    ]
    assert not any(f"{os.sep}tasks{os.sep}loop.py" in line for line in lines)
    run.loop.stop()
    assert where() == ""


def test_a_loop_that_is_blocked_is_said_where_and_what_it_holds_ends_or_runs_elsewhere(
    watched: Run, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    def block() -> None:
        assert go.wait(WAIT_S)

    async def work() -> str:
        block()
        return "late"

    begun: list[str] = []

    async def begin() -> None:
        begun.append("begun")

    with caplog.at_level(logging.WARNING, logger="shardq"):
        watched.submit(forever, "limited", limit_s=0.1)
        watched.submit(work, "blocks", limit_s=0.1)
        watched.submit(begin, "waits")
        watched.submit(begin, "waits too", limit_s=0.1)
        for name in ("limited", "blocks"):
            value, error = watched.wait(name)
            assert value is None
            assert isinstance(error, TimeLimit)
        for name in ("waits", "waits too"):
            value, error = watched.wait(name)
            assert isinstance(error, Snooze)
            assert "the event loop is blocked for" in error.reason
        watched.ends.wait_until(lambda: bool(watched.ends.overruns))
        go.set()
        watched.submit(seven, "next")
        assert watched.wait("next") == (7, None)
        assert begun == []
    assert watched.ends.threads["blocks"] == "shardq-guard"
    [said] = watched.ends.overruns
    assert said.startswith("the event loop is blocked for ")
    assert " by task blocks; it stands at:\n" in said
    assert ", in block" in said
    assert f"{os.sep}asyncio{os.sep}" not in said
    blocked = [text for text in caplog.messages if text.startswith("the event loop is blocked")]
    assert all(", in block" in text for text in blocked)
    # The late result is reported to nobody.
    assert [len(told) for told in watched.ends.told.values()] == [1] * len(watched.ends.told)


def test_a_blocked_loop_that_is_not_lost_is_in_the_log_alone(
    watched: Run, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    async def work() -> None:
        assert go.wait(WAIT_S)

    watched.submit(work, "blocks")
    wait_for(lambda: " by task blocks; it stands at:\n" in caplog.text, "it is in the log")
    go.set()
    assert watched.wait("blocks") == (None, None)
    assert ", in work" in caplog.text
    assert watched.ends.overruns == []


def test_a_blocked_loop_that_is_lost_at_once_is_said_once(
    watched: Run, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    async def work() -> None:
        assert go.wait(WAIT_S)

    watched.submit(work, "blocks", limit_s=0.01)
    watched.ends.wait_until(lambda: bool(watched.ends.overruns))
    blocked = [text for text in caplog.messages if text.startswith("the event loop is blocked")]
    go.set()
    assert blocked == []
    assert len(watched.ends.overruns) == 1


def test_a_loop_that_is_blocked_again_is_seen_again_though_telling_it_has_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.02)
    monkeypatch.setattr(module, "_BLOCKED_US", 50_000)
    run = Run(at_once=10)

    def overrun(told: str) -> None:
        run.ends.overrun(told)
        raise OSError("nobody listens")

    run.loop._on_overrun = overrun
    for name in "ab":
        go = threading.Event()

        async def work(go: threading.Event = go) -> None:
            assert go.wait(WAIT_S)

        run.submit(work, name, limit_s=0.05)
        assert isinstance(run.wait(name)[1], TimeLimit)
        said = f"by task {name}; it stands at"
        run.ends.wait_until(lambda said=said: said in "".join(run.ends.overruns))  # type: ignore[misc]
        go.set()
        run.submit(seven, f"after {name}")
        run.wait(f"after {name}")
    run.loop.stop()
    assert caplog.text.count("could not be told: the event loop is blocked") == 2


@pytest.mark.parametrize("refused", ["shardq-loop", "shardq-guard"])
def test_one_that_finds_no_thread_fails_and_the_next_one_runs(
    run: Run, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            run.submit(seven)
    run.submit(seven, "next")
    assert run.wait("next") == (7, None)
    assert "a" not in run.ends.told
    run.wait_for_slots()


def test_many_of_many_threads_end_each_once_and_all_slots_are_free_again() -> None:
    threads, each, at_once = 8, 250, 50
    run = Run(at_once)
    most = running = 0

    async def work() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        # Wait for the loop's next turn.
        await asyncio.wait([asyncio.create_task(seven())])
        running -= 1

    def feed(thread: int) -> None:
        for n in range(each):
            run.submit(work, f"{thread}-{n}", limit_s=60 if n % 2 else None)

    feeders = [threading.Thread(target=feed, args=(n,), daemon=True) for n in range(threads)]
    for feeder in feeders:
        feeder.start()
    run.ends.wait_until(lambda: len(run.ends.told) == threads * each)
    assert {tuple(told) for told in run.ends.told.values()} == {((None, None),)}
    assert most <= at_once
    run.submit(seven, "last")
    run.wait("last")
    run.wait_for_slots()
    run.loop.stop()


def test_what_has_failed_is_forgotten_without_a_garbage_collection(run: Run) -> None:
    class Refused(Exception):
        pass

    async def fail() -> None:
        raise Refused

    left: list[weakref.ref[BaseException]] = []

    def done(_value: object, error: BaseException | None) -> None:
        assert error is not None
        left.append(weakref.ref(error))

    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            run.loop.submit(fail, done, context=contextvars.Context(), limit_s=60, name="fail")
        run.submit(seven)
        run.wait()
        run.wait_for_slots()
        assert [ref() for ref in left] == [None] * 20
    finally:
        gc.enable()


FORK = """
import asyncio, contextvars, os, sys, threading
from shardq.tasks.loop import Loop

loop = Loop(10, on_overrun=print)
told, over, pids = [], threading.Event(), []

def done(name):
    def tell(value, error):
        told.append(name)
        os.write(1, f"{name} {value} {error} {os.getpid() == parent}\\n".encode())
        if len(told) == 3:
            over.set()
    return tell

async def other():
    await gate.wait()
    return 1

async def note():
    os.write(1, f"task {os.getpid() == parent}\\n".encode())

async def forks(awaits):
    tasks = [asyncio.create_task(note()) for _ in range(3)]
    child = os.fork()
    if child == 0:
        os.write(1, b"child\\n")
        if awaits:
            await asyncio.sleep(0)
            os.write(1, b"never\\n")
        return "child's"
    await asyncio.wait(tasks)
    pids.append(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not awaits:
        return status
    gate.set()
    return status

parent, gate = os.getpid(), asyncio.Event()
makes = {"other": other, "ends": lambda: forks(False), "awaits": lambda: forks(True)}
for name, make in makes.items():
    loop.submit(make, done(name), context=contextvars.copy_context(), limit_s=60, name=name)
assert over.wait(60)

# A child of another thread has a loop of its own.
child = os.fork()
if child == 0:
    mine = threading.Event()
    async def seven():
        return 7
    def tell(value, error):
        os.write(1, f"in child {value}\\n".encode())
        mine.set()
    loop.submit(seven, tell, context=contextvars.copy_context(), limit_s=None, name="c")
    os._exit(0 if mine.wait(60) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
loop.stop()
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="forks beside threads are not safe there")
def test_a_child_that_a_coroutine_forks_runs_nothing_of_its_parent_s() -> None:
    said = run_child("import warnings; warnings.simplefilter('ignore')\n" + FORK).splitlines()
    assert sorted(said) == sorted(
        [
            "child",
            "child",
            *["task True"] * 6,
            "ends 0 None True",
            "awaits 0 None True",
            "other 1 None True",
            "in child 7",
            "0",
        ]
    )
