"""Apps whose jobs run in the test's own process."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardq.tasks import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import App
    from shardq.model.message import Message
    from shardq.tasks import Ended


def worked(app: App, **settings: Any) -> list[Ended]:
    """Run all jobs of an app; returns what their runs came to, in the order of their ends."""
    ends: list[Ended] = []
    Worker(app, report=ends.append, **settings).run(until_empty=True)
    return ends


@contextmanager
def working(app: App, **settings: Any) -> Iterator[Worker]:
    """A worker of an app that runs meanwhile, in a thread of its own, and is stopped afterwards."""
    worker = Worker(app, **settings)
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield worker
    worker.stop()
    thread.join()


def states(ends: list[Ended]) -> list[str]:
    return [end.state for end in ends]


def dead(app: App) -> list[Message]:
    return app.queue(app.queue_names[0]).dead.peek(100)


def with_task(app: App, name: str = "sync") -> Any:
    """Give an app a task; returns it."""

    @app.task(name=name)
    def sync(region: str = "all") -> None: ...

    return sync
