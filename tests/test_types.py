"""What a type checker finds in a user's program, and shardq refuses as well.

mypy reads this file as it reads the package, and reports each `type: ignore` that is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shardq
from shardq import aio
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def db() -> Iterator[shardq.Connection]:
    with Stage() as stage:
        yield stage.connect()


def test_a_misspelt_setting_is_found(db: shardq.Connection) -> None:
    queue = db.queue("mail", attempts=3, hold="10s")
    with pytest.raises(shardq.UsageError):
        db.queue("parcels", atempts=3)  # type: ignore[call-arg]
    with pytest.raises(shardq.UsageError):
        queue.alter(atempts=3)  # type: ignore[call-arg]


def test_a_setting_of_a_wrong_type_is_found(db: shardq.Connection) -> None:
    queue = db.queue("mail", history="off")
    with pytest.raises(shardq.UsageError):
        db.queue("parcels", attempts="3")  # type: ignore[arg-type]
    with pytest.raises(shardq.UsageError):
        queue.alter(hold=10)  # type: ignore[arg-type]


def test_a_name_that_shardq_does_not_export_is_found() -> None:
    with pytest.raises(AttributeError, match="Qeue"):
        shardq.Qeue  # type: ignore[attr-defined] # noqa: B018


async def test_calls_from_asyncio_have_the_overloads_of_the_calls_that_they_make() -> None:
    with Stage() as stage:
        async with aio.connect(stage.connect()) as db:
            queue = db.queue("mail")
            await queue.limit(task="send", running=1)
            with pytest.raises(shardq.errors.BadSetting):
                await queue.limit(task="send", places=1)  # type: ignore[call-overload]
            message = await queue.put("a")
            await queue.ack(*await queue.receive())
            answers: list[shardq.errors.ReceiptError | None] = await queue.ack(
                message, partial=True
            )
    assert len(answers) == 1
