"""Queues and tasks from asyncio, without blocking its loop.

```
 await queue.put(..) ──► a thread of the connection's own ──► Queue.put(..) ──► the store
 await queue.receive(wait="20s") ──► in line at the queue: no thread, for any number that wait
```

```python
import asyncio

from shardq import aio


async def main():
    async with aio.connect("sqlite:///jobs.db") as db:
        mail = db.queue("mail")
        await mail.put("hello", delay="1s")
        for message in await mail.receive(wait="20s"):
            print(message.text)
            await mail.ack(message)


asyncio.run(main())
```

Its classes have the methods of `shardq.Connection`, `shardq.Queue`, `shardq.Schedule` and of
`shardq.tasks`, as coroutines: the same arguments, results and errors. They run in threads, 8 for
each connection or app unless it is given another number. Calls that take long, `put_many` or
`check_all` for example, run in 4 others; `receive` takes none. Functions that they are given, the
`where` of a `redrive` for example, are called there.

A call that is cancelled returns at once, and may still be done: a put that was cancelled may be
stored. What a cancelled `receive` has taken is released, and costs no attempt.

Tasks are put by `aio.task`:

```python
from shardq import App, aio

app = App()


@app.task
def welcome(user: str) -> None: ...


async def sign_up(user: str) -> None:
    await aio.task(welcome).using(delay="3d").put(user)
```
"""

from shardq.aio.connection import Connection, connect
from shardq.aio.queue import Queue
from shardq.aio.schedules import AppSchedules, Schedule, Schedules
from shardq.aio.tasks import App, Job, Task, task

__all__ = [
    "App",
    "AppSchedules",
    "Connection",
    "Job",
    "Queue",
    "Schedule",
    "Schedules",
    "Task",
    "connect",
    "task",
]
