"""Tasks, put by name with JSON arguments, and the states and results of their jobs."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from shardq.aio.tasks import Job as AsyncJob
from shardq.errors import JobError
from shardq.lifecycle.keyedputs import OnConflict
from shardq.model.times import duration_ms
from shardq.records.actions import What
from shardq.server.api.messages import Told
from shardq.server.api.problem import Refused
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import Put, Span, Time, Wait, put_of
from shardq.server.grants import Level
from shardq.tasks.job import Job as SyncJob
from shardq.tasks.options import ATTEMPTS_MAX, OPTIONS_HEADER, PUT_NAMES, TASK_HEADER

_WAIT_MS_MAX = 60_000


_JOBS = QUEUE + "/jobs"


class NewJob(Struct, kw_only=True, forbid_unknown_fields=True):
    """A job of a task.

    Attributes:
        task: The task's name, as its workers know it.
        args: Its arguments, by name.
        due: When it runs; now unless given.
        delay: Instead of `due`: how long from now.
        spread: How much later it may be due, if the queue's budget is used up.
        priority: 0 is first.
        group: Jobs of one group run one at a time, in order.
        key: A name that no other live job of the queue has.
        on_conflict: The policy if a job has the key.
        max_wait: The longest that a debounce may postpone it.
        unique_for: How long the key is held after the job's end.
        headers: Names and texts that travel with it.
        id: Its id; made up unless given.
        attempts: How often it may run; as its task says, unless given.
        timeout: How long one run may take; likewise.
        expires: How long after its due it may still run; likewise.
        keep: How long its result is kept; likewise.
    """

    task: Annotated[str, Meta(min_length=1, max_length=256)]
    args: dict[str, Raw] = {}
    due: Time | UnsetType = UNSET
    delay: Span | UnsetType = UNSET
    spread: Span | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    group: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    on_conflict: OnConflict | UnsetType = UNSET
    max_wait: Span | UnsetType = UNSET
    unique_for: Span | UnsetType = UNSET
    headers: dict[str, str] = {}
    id: str | UnsetType = UNSET
    attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] | UnsetType = UNSET
    timeout: Span | UnsetType = UNSET
    expires: Span | UnsetType = UNSET
    keep: Span | UnsetType = UNSET

    @property
    def item(self) -> dict[str, Any]:
        """The arguments of `Queue.put`: the body and the headers as a task's own put has them.

        Raises:
            Refused: If a header is the task's.
        """
        if own := self.headers.keys() & {TASK_HEADER, OPTIONS_HEADER}:
            raise Refused(400, f"header {own.pop()!r} is the job's own.", field="headers")
        headers = {TASK_HEADER: self.task, **self.headers}
        if policy := self._policy():
            headers[OPTIONS_HEADER] = msgspec.json.encode(policy).decode()
        putting = {name: getattr(self, name) for name in PUT_NAMES}
        given = {name: value for name, value in putting.items() if value is not UNSET}
        return {"body": msgspec.json.encode(self.args), "headers": headers, **given}

    def _policy(self) -> dict[str, int]:
        """The options that differ from the task's, as the job's header has them."""
        made = {} if self.attempts is UNSET else {"attempts": self.attempts}
        spans = {"timeout": self.timeout, "expires": self.expires, "keep": self.keep}
        for name, span in spans.items():
            if span is not UNSET:
                made[f"{name}_ms"] = duration_ms(span, name=name)
                if not made[f"{name}_ms"]:
                    raise Refused(400, f"{name} must be longer than 0s.", field=name)
        return made


class JobQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to look at a job.

    Attributes:
        wait: How long to wait for its end, to 60 s.
    """

    wait: Wait = "0s"


class Job(Struct, kw_only=True, omit_defaults=True):
    """A job.

    Attributes:
        id: Its id.
        state: `waiting`, `running`, `retrying`, `done`, `failed`, `cancelled`, `expired` or
            `unknown`.
        attempt: The number of its last attempt.
        result: Its result, if it is done and the result is kept.
        error: Why its last attempt failed.
        progress: Its progress, from 0 to 1.
        note: Its own note on its progress.
    """

    id: str
    state: str
    attempt: int = 0
    result: Any = None
    error: str | None = None
    progress: float | None = None
    note: str = ""


@route("POST", _JOBS, Level.PUT)
async def put_job(call: RouteCall[None, NewJob]) -> Put:
    """Put a job of a task, for a worker that knows the task by its name."""
    queue = await call.queue()
    await call.site.check_depth(call.caller, queue)
    return put_of(await queue.put(call.traced(call.body.item)))


@route("GET", _JOBS + "/{job}", Level.READ)
async def get_job(call: RouteCall[JobQuery, None]) -> Job:
    """A job: its state, and its result or its error.

    With `wait` it waits for the job's end. A job keeps a result only if its task, or its put, says
    `keep`.
    """
    name, queue, site = call.place["job"], await call.queue(), call.site
    wait_ms = duration_ms(call.query.wait, name="wait")
    if wait_ms > _WAIT_MS_MAX:
        raise Refused(400, "wait must be at most 60s.", field="wait")
    job: SyncJob[Any] = await queue.call(lambda opened: SyncJob(opened, name))
    if wait_ms:
        with suppress(JobError):
            waiting = AsyncJob(job, site.threads).result(call.query.wait)
            await site.poll(waiting, call.caller)
    return await queue.call(lambda _: _job_of(job))


@route("DELETE", _JOBS + "/{job}", Level.ACK, what=What.CANCEL)
async def cancel_job(call: RouteCall[None, None]) -> Told:
    """Cancel a job, unless it has ended."""
    name, queue = call.place["job"], await call.queue()
    if not await queue.call(lambda opened: SyncJob(opened, name).cancel()):
        raise Refused(404, f"there is no job {name!r} that could be cancelled.")
    return Told("done")


def _job_of(job: SyncJob[Any]) -> Job:
    state, progress = job.state, job.progress
    if state == "unknown":
        raise Refused(404, f"nothing is known of job {job.id!r} in queue {job.queue!r}.")
    result = None
    if state == "done":
        with suppress(JobError):
            result = job.result("0s")
    return Job(
        id=job.id,
        state=state.value,
        attempt=job.attempt,
        result=result,
        error=job.error,
        progress=None if progress is None else progress.fraction,
        note="" if progress is None else progress.note,
    )
