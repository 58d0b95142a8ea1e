"""Queues and tasks from asyncio, without blocking its loop.

```
 await queue.put(..) ──► a thread of the connection ──► Queue.put(..) ──► the store
 await queue.receive(wait="20s") ──► waits in line at the queue, without a thread
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

The classes of this package have the methods of `shardq.Connection`, `shardq.Queue`,
`shardq.Schedule` and of `shardq.tasks`, as coroutines: the same arguments, results and errors.
Calls run in threads: each connection or app has 8, unless another number is given. Long calls,
`put_many` or `check_all` for example, run in 4 other threads; `receive` needs no thread. A function
that is an argument, the `where` of a `redrive` for example, is called in the thread of its call.

A cancelled call returns at once, and may still take effect: a cancelled put may be stored. A
cancelled `receive` releases the messages that it has taken, which costs them no attempt.

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
