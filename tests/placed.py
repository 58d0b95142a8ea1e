"""A server on a store in memory, and a client of boto3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from hosted import hosted, sqs_at

import shardq
from shardq.server import application
from shardq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator


class Place:
    """A server on a store in memory, whose clock the test moves."""

    def __init__(self, db: shardq.Connection, url: str, clock: ManualClock | None) -> None:
        self.db = db
        self.url = url
        self.clock = clock
        self.client: Any = sqs_at(url)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def make(self, name: str = "mail", **attributes: str) -> str:
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        url: str = self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def bodies(self, url: str, most: int = 10, **given: Any) -> list[str]:
        return [one["Body"] for one in self.got(url, most, **given)]

    def got(self, url: str, most: int = 10, **given: Any) -> list[dict[str, Any]]:
        answer = self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=most, **given)
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    def pass_by(self, seconds: float) -> None:
        assert self.clock is not None
        self.clock.advance(seconds)

    def refused(self, action: str, **given: Any) -> tuple[str, str]:
        """The code and the text by which an action is refused."""
        with pytest.raises(ClientError) as refused:
            getattr(self.client, action)(**given)
        error = refused.value.response["Error"]
        return error["Code"], error["Message"]


def placed() -> Iterator[Place]:
    """A place whose time passes by itself."""
    with shardq.connect("sqlite://") as db, hosted(application(db)) as url:
        yield Place(db, url, None)


def timed_place() -> Iterator[Place]:
    """A place whose clock the test moves."""
    clock = ManualClock()
    with shardq.connect("sqlite://", clock=clock) as db, hosted(application(db)) as url:
        yield Place(db, url, clock)
