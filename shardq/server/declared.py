"""Queues that are made when a server starts, from a file.

```toml
[queues.orders]
VisibilityTimeout = 60
RedrivePolicy = { deadLetterTargetArn = "arn:aws:sqs:us-east-1:000000000000:lost", maxReceiveCount = 5 }

[queues.lost]
tags = { team = "shop" }
```
"""  # noqa: E501 - an ARN is as long as that

from __future__ import annotations

import json
import logging
import tomllib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from shardq.errors import UsageError
from shardq.server import sqs
from shardq.server.site import Site
from shardq.server.web import Request

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shardq.connection import Connection
    from shardq.server.site import SiteOptions

log = logging.getLogger(__name__)

_TAGS = "tags"
_EXISTS = "QueueNameExists"


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The queues of a file: name -> attributes and tags as CreateQueue takes them.

    Queues that others may name as their dead-letter queue are first.

    Raises:
        UsageError: If the file cannot be read, or holds anything else.
    """
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--queues {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--queues {path} is no TOML: {error}.") from error
    queues = found.pop("queues", {})
    if found or not isinstance(queues, dict) or not all(map(_is_table, queues.values())):
        raise UsageError(
            f"--queues {path} must hold tables such as [queues.orders], and nothing else."
        )
    names = sorted(queues, key=lambda name: "RedrivePolicy" in queues[name])
    return {name: _asked(queues[name]) for name in names}


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get(_TAGS, {}), dict)


def _asked(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "Attributes": {name: _text(value) for name, value in table.items() if name != _TAGS},
        _TAGS: {name: str(value) for name, value in table.get(_TAGS, {}).items()},
    }


def _text(value: object) -> str:
    """A value as SQS has it: numbers as text, policies as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


async def make(
    db: Connection, options: SiteOptions, queues: Mapping[str, Mapping[str, Any]]
) -> None:
    """Make those queues that do not exist.

    A queue that exists with other attributes keeps its own, with a warning.

    Args:
        db: The store.
        options: The server's.
        queues: By name, as `read` returns them.

    Raises:
        UsageError: If a queue cannot be made.
    """
    site = Site(db, options)
    try:
        for name, asked in queues.items():
            await _make(site, name, asked)
    finally:
        await site.close()


async def _make(site: Site, name: str, asked: Mapping[str, Any]) -> None:
    body = json.dumps({"QueueName": name, **asked}).encode()
    request = Request(
        method="POST",
        path="/",
        raw_path="/",
        query="",
        headers={
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": "AmazonSQS.CreateQueue",
        },
        body=body,
        client="serve --queues",
        scheme="http",
        host="",
        id=str(uuid4()),
    )
    answer = await sqs.answer(request, site)
    if answer.status == 200:
        return
    assert isinstance(answer.body, bytes)  # noqa: S101 - SQS streams nothing
    told = json.loads(answer.body)
    if told["__type"].endswith(_EXISTS):
        log.warning("queue %s keeps its attributes: %s.", name, told["message"])
        return
    raise UsageError(f"queue {name!r} cannot be made: {told['message']}")
