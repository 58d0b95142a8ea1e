"""An event loop by a clock: what it waits for really, and what it lets pass."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shardq.clock import SystemClock, pause
from shardq.tasks.clockloop import ClockLoop
from shardq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

WAIT_S = 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def loop(clock: ManualClock) -> Iterator[ClockLoop]:
    made = ClockLoop(clock)
    yield made
    made.close()


def passed_s(clock: ManualClock) -> float:
    return (clock.boot_us() - 1_000_000_000) / 1e6


def test_sleeps_pass_by_the_clock_in_the_order_of_their_ends(
    clock: ManualClock, loop: ClockLoop
) -> None:
    ends: list[tuple[str, float]] = []

    async def nap(name: str, seconds: float) -> None:
        await pause(seconds)
        ends.append((name, passed_s(clock)))

    async def both() -> None:
        await asyncio.gather(nap("long", 7_200), nap("short", 60))

    loop.run_until_complete(both())
    assert ends == [("short", 60), ("long", 7_200)]


def test_a_time_limit_is_over_by_the_clock(clock: ManualClock, loop: ClockLoop) -> None:
    async def wait() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 30)

    with pytest.raises(TimeoutError):
        loop.run_until_complete(wait())
    assert passed_s(clock) == 30


def waiting(work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
    return asyncio.wait_for(work, WAIT_S)


def test_a_thread_is_waited_for_really_and_the_clock_stands(
    clock: ManualClock, loop: ClockLoop
) -> None:
    may_end = threading.Event()

    async def work() -> bool:
        asyncio.get_running_loop().call_soon(may_end.set)
        return await waiting(asyncio.to_thread(may_end.wait, WAIT_S))

    assert loop.run_until_complete(work())
    assert passed_s(clock) == 0


def test_a_socket_is_waited_for_really_and_the_clock_stands(
    clock: ManualClock, loop: ClockLoop
) -> None:
    mine, others = socket.socketpair()
    with mine, others:
        mine.setblocking(False)

        async def work() -> bytes:
            asyncio.get_running_loop().call_soon(others.send, b"hello")
            return await waiting(asyncio.get_running_loop().sock_recv(mine, 10))

        assert loop.run_until_complete(work()) == b"hello"
    assert passed_s(clock) == 0


def test_what_is_awaited_really_for_too_long_lets_the_clock_pass_as_long(
    clock: ManualClock, loop: ClockLoop
) -> None:
    mine, others = socket.socketpair()
    with mine, others:
        mine.setblocking(False)

        async def work() -> None:
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(mine, 10), 0.05)

        with pytest.raises(TimeoutError):
            loop.run_until_complete(work())
    assert passed_s(clock) == pytest.approx(0.05, abs=0.001)


def test_on_the_machine_s_clock_it_takes_as_long_as_any_loop() -> None:
    clock = SystemClock()
    loop = ClockLoop(clock)
    begun_us = clock.boot_us()
    loop.run_until_complete(pause(0.05))
    loop.close()
    assert clock.boot_us() - begun_us >= 50_000
