"""The lines of a server's queues: batches, and an answer for each call."""

from __future__ import annotations

import asyncio

import pytest

import shardq
from shardq.aio.threads import Threads
from shardq.errors import BadName, BadSetting, StaleReceipt
from shardq.server.hub import CallLine, Served


def test_calls_that_arrive_during_a_batch_are_the_next_batch() -> None:
    batches: list[list[int]] = []

    def carry_out(calls: list[int]) -> list[int]:
        batches.append(list(calls))
        return [2 * call for call in calls]

    async def run() -> list[int]:
        line = CallLine(carry_out, Threads(2))
        return await asyncio.gather(*(line.do(number) for number in range(50)))

    assert asyncio.run(run()) == [2 * number for number in range(50)]
    assert [len(batch) for batch in batches] == [50]


def test_an_error_that_nobody_foresaw_is_that_of_each_call_and_the_line_goes_on() -> None:
    def carry_out(calls: list[int]) -> list[float]:
        return [1 / call for call in calls]

    async def run() -> None:
        line = CallLine(carry_out, Threads(2))
        calls = (line.do(number) for number in (1, 0, 2))
        async with asyncio.timeout(60):
            failed = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(one) for one in failed] == [ZeroDivisionError] * 3
            assert await line.do(4) == 0.25

    asyncio.run(run())


def test_each_put_and_ack_gets_its_own_answer() -> None:
    async def run() -> None:
        with shardq.connect("sqlite://") as db:
            served = Served(db, Threads(4))
            mail = await served.queue("mail", create=True)
            answers = await mail.put_all(
                [
                    {"body": b"1"},
                    {"body": b"2", "priority": 7},
                    {"body": b"3", "group": "g"},
                    {"body": b"4", "group": ""},
                    {"body": b"5", "key": "k"},
                ]
            )
            kinds = [type(one) for one in answers]
            message = shardq.Message
            assert kinds == [message, BadSetting, message, BadName, message]
            got = await mail.queue.receive(10)
            assert sorted(one.text for one in got) == ["1", "3", "5"]
            ends = await asyncio.gather(*(mail.ack_all([one.receipt]) for one in [*got, got[0]]))
            assert ends[:3] == [[None]] * 3
            assert await mail.call(lambda queue: queue.depth(exact=True).total) == 0
            [error] = await mail.ack_all([got[1].receipt])
            assert isinstance(error, StaleReceipt)

    asyncio.run(run())
