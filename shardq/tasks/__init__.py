"""Tasks: functions with arguments, put as messages and run by workers.

```
 app.task ──► Task: name, signature, policy ── put ──► Draft ─(middleware)─► message: header `task`,
                                                        the arguments as JSON ──► Job
 work ──► Supervisor, or not ──► Worker ──► a consumer of each queue ──► Runner
          Runner: message ──► task known? attempts left? of use yet? ──► arguments ──► function
            ├─ sync ──► in the handler's thread; its limit is watched     (limits)
            ├─ async ─► on the worker's one event loop, cancelled at its limit   (loop)
            └─ of a batch ─► with others of its task                      (batches)
          ──► policy: ack, retry, snooze, bury ──► result, if it is kept
```

Tasks use `Queue` and `Consumer`, and no rows.
"""

from shardq.tasks.app import App, Declare, DeclareBatch
from shardq.tasks.context import Context, current
from shardq.tasks.declared import Reconciled
from shardq.tasks.job import Job, JobState, Progress
from shardq.tasks.middleware import Draft, Middleware
from shardq.tasks.options import Backoff, CallOptions, DeclaredOptions, TaskOptions
from shardq.tasks.run import Ended
from shardq.tasks.schedules import AppSchedules
from shardq.tasks.task import BatchTask, Bound, Call, Task, WithoutArguments
from shardq.tasks.worker import Worker

__all__ = [
    "App",
    "AppSchedules",
    "Backoff",
    "BatchTask",
    "Bound",
    "Call",
    "CallOptions",
    "Context",
    "Declare",
    "DeclareBatch",
    "DeclaredOptions",
    "Draft",
    "Ended",
    "Job",
    "JobState",
    "Middleware",
    "Progress",
    "Reconciled",
    "Task",
    "TaskOptions",
    "WithoutArguments",
    "Worker",
    "current",
]
