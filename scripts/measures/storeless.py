"""The server without a store, in a process of its own: it returns one same message, and keeps none.

Everything else is as in `shardq serve`: connections, signatures, protocol, answers. Keys and queues
are read from the store that `SHARDQ_STORE` names.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import shardq
from shardq.aio.queue import Queue
from shardq.server import listening, supervise
from shardq.server.access import Access
from shardq.server.app import Application
from shardq.server.hub import Served, ServedQueue
from shardq.server.site import SiteOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.aio.threads import Threads
    from shardq.errors import ShardqError
    from shardq.model.message import Message
    from shardq.queue import Queue as SyncQueue

_BODY = b"x" * 200


class _Face(Queue):
    """A queue from which the same message is received each time."""

    def __init__(self, opened: SyncQueue, threads: Threads, message: Message) -> None:
        super().__init__(opened.name, threads, lambda: opened)
        self._message = message

    async def receive(self, max: int = 10, *_: Any, **__: Any) -> list[Message]:  # noqa: A002
        return [self._message] * max


class _Kept(ServedQueue):
    """A queue that stores nothing."""

    def __init__(self, opened: SyncQueue, threads: Threads, message: Message) -> None:
        super().__init__(opened, threads)
        self.queue = _Face(opened, threads, message)
        self._message = message

    async def put(self, item: Mapping[str, Any]) -> Message:  # noqa: ARG002
        """Answer as if a message had been stored."""
        return self._message

    async def put_all(self, items: Sequence[Mapping[str, Any]]) -> list[Message | ShardqError]:
        """Answer as if messages had been stored."""
        return [self._message for _ in items]

    async def ack_all(
        self,
        receipts: Sequence[str],
        *,
        redelivered: bool = False,  # noqa: ARG002
    ) -> list[ShardqError | None]:
        """Answer as if deliveries had ended."""
        return [None for _ in receipts]


class _Storeless(Served):
    """Queues that store nothing."""

    def __init__(self, connection: shardq.Connection, threads: Threads, message: Message) -> None:
        super().__init__(connection, threads)
        self._message = message

    async def queue(self, name: str, *, create: bool = False, **settings: Any) -> ServedQueue:
        """A queue."""
        found = await super().queue(name, create=create, **settings)
        if not isinstance(found, _Kept):
            opened = await found.call(lambda queue: queue)
            found = self._queues[name] = _Kept(opened, self._threads, self._message)
        return found


def _message() -> Message:
    """A message with a receipt."""
    with shardq.connect("sqlite://") as db:
        queue = db.queue("bench")
        queue.put(_BODY)
        [message] = queue.receive(1, wait="10s")
        assert message.receipt  # noqa: S101 - it is signed now, with the store still open
        return message


def main() -> None:
    """Serve until SIGTERM."""
    sockets: Sequence[Any] = listening.bound("127.0.0.1", 0)
    message = _message()
    with shardq.connect() as db:
        app = Application(db, SiteOptions(), Access.starting(db, ["127.0.0.1"]))

        def tell() -> None:
            app.site.served = _Storeless(db, app.site.threads, message)
            url = listening.url_of(sockets[0], "http")
            print(f"serves no store at {url}.", file=sys.stderr, flush=True)

        supervise.run(supervise.Server(app, on_listening=tell), sockets)


if __name__ == "__main__":
    main()
