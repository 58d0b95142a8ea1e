"""What coroutines call in threads: of whose job it is, and what becomes of it after that."""

from __future__ import annotations

import asyncio
import decimal
import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from sqlite_file import run_child
from test_loop import WAIT_S, Run

from shardq.tasks import executor
from shardq.tasks import loop as module
from shardq.tasks.limits import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(module, "_SWALLOW_S", 0.02)
    monkeypatch.setattr(executor, "_THREADS_MAX", 2)
    made = Run(at_once=100)
    yield made
    made.loop.stop()


async def me() -> str:
    return await asyncio.to_thread(lambda: threading.current_thread().name)


def test_a_thread_that_outlives_its_job_s_limit_is_replaced_and_told(run: Run) -> None:
    go = threading.Event()

    def block() -> None:
        assert go.wait(WAIT_S)

    async def blocks() -> None:
        await asyncio.to_thread(block)

    for n in range(4):
        run.submit(blocks, f"stuck {n}", limit_s=0.05)
    for n in range(4):
        assert isinstance(run.wait(f"stuck {n}")[1], TimeLimit)
    run.submit(me, "quick", limit_s=WAIT_S)
    assert run.wait("quick") == ("shardq-to-thread", None)
    # Some calls had no thread before they were cancelled.
    run.ends.wait_until(lambda: len(run.ends.overruns) >= 2)
    for said in run.ends.overruns:
        assert said.partition(", and ")[2].startswith(
            "what it calls in a thread cannot be stopped; it stands at:\n"
        )
        assert ", in block" in said
        assert f"{os.sep}shardq{os.sep}" not in said
    go.set()
    run.submit(me, "after")
    assert run.wait("after") == ("shardq-to-thread", None)


def test_where_no_thread_takes_the_place_of_a_lost_one_what_waits_fails_and_slots_are_free(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, start, stuck = threading.Event(), threading.Thread.start, threading.Barrier(3)

    def block() -> None:
        stuck.wait(WAIT_S)
        assert go.wait(WAIT_S)

    async def blocks() -> None:
        await asyncio.to_thread(block)

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "shardq-to-thread":
            raise RuntimeError("can't start new thread")
        start(thread)

    for name in ("stuck", "stuck too"):
        run.submit(blocks, name, limit_s=0.2)
    stuck.wait(WAIT_S)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        run.submit(me, "waits")
        value, error = run.wait("waits")
        assert (value, str(error)) == (None, "can't start new thread")
        run.wait_for_slots()
    assert isinstance(run.wait("stuck")[1], TimeLimit)
    run.submit(me, "next")
    assert run.wait("next") == ("shardq-to-thread", None)
    go.set()


def test_a_thread_that_ends_soon_after_its_job_s_limit_is_not_told(run: Run) -> None:
    is_over = threading.Event()

    def heeds() -> None:
        assert is_over.wait(WAIT_S)

    async def work() -> None:
        try:
            await asyncio.to_thread(heeds)
        finally:
            is_over.set()

    run.submit(work, "heeds", limit_s=0.02)
    assert isinstance(run.wait("heeds")[1], TimeLimit)

    async def turn() -> None:
        await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.1)

    run.submit(turn, "later")
    run.wait("later")
    assert run.ends.overruns == []


def test_what_a_call_in_a_thread_raises_reaches_who_awaits_it(run: Run) -> None:
    async def work() -> None:
        await asyncio.get_running_loop().run_in_executor(None, sys.exit, 3)

    run.submit(work)
    value, error = run.wait()
    assert value is None
    assert isinstance(error, SystemExit)


def test_a_call_in_a_thread_has_a_context_of_its_own(run: Run) -> None:
    def sets() -> int:
        before = decimal.getcontext().prec
        decimal.getcontext().prec = 3
        return before

    async def work() -> list[int]:
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(None, sets) for _ in range(4)]

    run.submit(work)
    assert run.wait() == ([28] * 4, None)


FORKS = """
import asyncio, contextvars, os, threading, warnings
from shardq.tasks.loop import Loop

warnings.simplefilter("ignore")
over = threading.Event()

def fork():
    child = os.fork()
    if child == 0:
        return None
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def work():
    return await asyncio.to_thread(fork)

def done(value, error):
    print(value, error, flush=True)
    over.set()

loop = Loop(10, on_overrun=print)
loop.submit(work, done, context=contextvars.copy_context(), limit_s=60, name="forks")
assert over.wait(60)
loop.stop()
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="forks beside threads are not safe there")
def test_a_child_that_a_call_in_a_thread_forks_ends_when_the_call_does() -> None:
    assert run_child(FORKS) == "0 None\n"
