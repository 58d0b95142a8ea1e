"""Runs the jobs of one queue: from a message to a call of its function, and to its outcome.

```
 message ──► task known? ── no ──► snoozed, by delays that double
         ──► attempts left? ─ no ─► buried         ──► of use yet? ── no ──► discarded
         ──► arguments ──► function ──┬─ returns ─► result kept, if asked for ──► acked
                                      └─ raises ──► by its policy: again, or buried
```

Jobs that are `async`, have a time limit or belong to a batch are held: their deliveries end when
they end or exceed their limit, whichever is first (`engine/storing/ending.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from shardq import locks
from shardq.engine.handing.call import end_child, passes
from shardq.engine.handing.handler import finished, unrun
from shardq.engine.handing.hanging import span_text
from shardq.engine.handing.outcome import ACKED, Bury, Discard, Expired, Retry, Snooze, outcome_of
from shardq.errors import BadResult, ShardqError, UsageError
from shardq.lifecycle.fate import LOST, OUT_OF_ATTEMPTS, Fate, Outcome
from shardq.logs import handled
from shardq.model.message import first_line, spent_reason
from shardq.model.times import duration_text
from shardq.records import results
from shardq.schedules.origin import NAME_HEADER
from shardq.tasks.batches import errors_of
from shardq.tasks.cancelling import cancelled_by_key
from shardq.tasks.context import Context, running
from shardq.tasks.keeping import result_of
from shardq.tasks.limits import TimeLimit
from shardq.tasks.options import TASK_HEADER, Policy
from shardq.tasks.run import Ended, JobRun, RunPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from shardq.clock import Clock
    from shardq.engine.storing.ending import Ending
    from shardq.model.message import Message
    from shardq.tasks.batches import Batches
    from shardq.tasks.keeping import Keeping
    from shardq.tasks.limits import LimitWatch
    from shardq.tasks.loop import Loop
    from shardq.tasks.registry import Registry

log = logging.getLogger(__name__)

_PLANS_MAX = 1_000
_SECOND_MS = 1_000
_IF_ASYNC = "await it in the function, or in the decorator below @app.task, and make that async"
_IF_LAZY = "run it to its end"
_UNKNOWN_MS = 1_000
_UNKNOWN_MS_MAX = 3_600_000
"""A job of an unknown task is postponed for as long as it has waited, between these two bounds."""


class _CancelledRun(Discard):
    """A job has stopped because of a cancel."""

    def __init__(self) -> None:
        super().__init__("cancelled while it ran")


class Runner:
    """Runs the jobs of one queue. Called with each message, in a handler's thread.

    Args:
        registry: The known tasks.
        clock: The store's clock.
        loop: Runs coroutines.
        watch: Reports sync functions that exceed their limits.
        keeping: Stores results and progress.
        batches: Collects the jobs of a batch.
        on_end: Called with each run that has ended; None: no call.
        on_overrun: Called when a function runs on after its limit.

    Attributes:
        hold: Holds the delivery that this thread handles. The consumer's.
        is_stopping: True once nothing is to begin any more. The consumer's.
    """

    hold: Callable[[], Ending]
    is_stopping: Callable[[], bool]

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        *,
        loop: Loop,
        watch: LimitWatch,
        keeping: Keeping,
        batches: Batches,
        on_end: Callable[[Ended], object] | None,
        on_overrun: Callable[[str], object],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._loop = loop
        self._watch = watch
        self._keeping = keeping
        self._batches = batches
        self._on_end = on_end
        self._on_overrun = on_overrun
        self._plans: dict[str | None, RunPlan] = {}
        self._outcomes: dict[tuple[str, int], Outcome] = {}
        """Outcomes by message id and `id` of the error, kept until `judge` is called."""
        self._traces = registry.connection._home.traces
        self._is_bare = not registry.middleware and on_end is None and self._traces is None
        self._process = object()
        """Replaced in a forked child, which must not end runs that began in its parent."""
        locks.in_child(self, Runner._begin_child)

    def __call__(self, message: Message) -> None:
        """Run the job of a message, or begin to."""
        plan = self._plans.get(message._row.headers) or self._planned(message)
        task, policy, is_plain, _ = plan
        if message.attempt > policy.attempts:
            self._refuse(message, plan, Bury(spent_reason(message._row, LOST)))
            return
        if policy.expires_ms is not None and (said := self._expired(message, policy.expires_ms)):
            self._refuse(message, plan, Expired(said))
            return
        if is_plain:
            args, kwargs = task.signature.decode(message.body)
            context = Context(task.name, message, policy)
            token = running.set(context)
            try:
                value = task.function(*args, **kwargs)
                if value is not None:
                    _checked(plan, finished(value))
            finally:
                running.reset(token)
            if context.is_stopped:
                raise _CancelledRun
            return
        run = self._begun(message, plan)
        if task.batch is not None:
            self._batches.add(run, task.batch, self._run_batch)
        elif task.is_async:
            self._submit([run], lambda: self._called(run))
        else:
            self._run_sync([run], lambda: self._called(run))

    def judge(self, message: Message, error: BaseException) -> Outcome:
        """The outcome of a failed run, by its policy."""
        decided = self._outcomes.pop((message.id, id(error)), None)
        if decided is not None:
            return decided
        try:
            # Plan again if the plan was dropped while the job ran.
            plan = self._plans.get(message._row.headers) or self._planned(message)
        except (Snooze, ShardqError):
            plan = None
        outcome = outcome_of(error) if plan is None else self._judged(message, plan, error)
        is_unknown = plan is None and outcome.fate is Fate.SNOOZE
        if is_unknown:
            outcome = outcome._replace(is_for_others=True)
        name = message.headers.get(TASK_HEADER, "") if plan is None else plan.task.name
        state = "unknown" if is_unknown else _STATES[outcome.fate]
        return self._told(name, message, 0.0, state, outcome)

    # Before the run -------------------------------------------------------------------------------

    def _planned(self, message: Message) -> RunPlan:
        """The plan for a job's headers.

        Raises:
            Snooze: If they name no task that is known here.
        """
        headers = message.headers
        name = headers.get(TASK_HEADER)
        task = None if name is None else self._registry.find(name)
        if task is None:
            row = message._row
            # Count from the due, because the job may have been put long before.
            since_ms = max(row.order[0], row.entered_us // 1_000)
            waited_ms = self._clock.now_ms() - since_ms
            delay_ms = min(max(waited_ms, _UNKNOWN_MS), _UNKNOWN_MS_MAX)
            raise Snooze(f"{delay_ms}ms", self._unknown(headers))
        policy = task.options.policy.of_job(headers)
        is_held = (
            task.is_async
            or task.batch is not None
            or policy.timeout_ms is not None
            or policy.keep_ms is not None
        )
        is_plain = not is_held and self._is_bare
        plan = RunPlan(task, policy, is_plain, is_held)
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()
        self._plans[message._row.headers] = plan
        return plan

    def _unknown(self, headers: Mapping[str, str]) -> str:
        """Why a job of an unknown task waits, and the remedy."""
        name = headers.get(TASK_HEADER)
        if not name:
            return "its headers name no task"
        meant = self._registry.meant(name)
        said = (
            f"this worker's app has no task {name}{meant and f', but {meant}'}; let it import the "
            f"module that declares it, or, if it was renamed, declare it with aliases=[{name!r}]"
        )
        schedule = headers.get(NAME_HEADER)
        if schedule is not None:
            said += f"; app.unschedule({schedule!r}) ends the schedule that puts it"
        return said

    def _expired(self, message: Message, expires_ms: int) -> str:
        """Why a job is of no use any more; empty if it is of use."""
        late_ms = self._clock.now_ms() - message._row.order[0]
        if late_ms <= expires_ms:
            return ""
        # If it is late by hours, milliseconds tell nobody anything.
        late = span_text(late_ms * 1_000) if late_ms > _SECOND_MS else duration_text(late_ms)
        return f"expired: due {late} ago, and of use for {duration_text(expires_ms)}"

    def _refuse(self, message: Message, plan: RunPlan, error: BaseException) -> None:
        """End a job that is not to run any more.

        Raises:
            BaseException: The error, if its handler is to raise it.
        """
        self._conclude_one(self._begun(message, plan), None, error)

    def _begun(self, message: Message, plan: RunPlan) -> JobRun:
        run = JobRun(message, plan, self._clock.now_ms(), self._clock.boot_us())
        if plan.is_held:
            run.ending = self.hold()
        if plan.policy.keep_ms is not None:
            run.context.on_progress = partial(self._keeping.progress, run)
            self._keeping.wait_for_room()
        return run

    # The run --------------------------------------------------------------------------------------

    @staticmethod
    def _called(run: JobRun) -> Any:
        task = run.plan.task
        args, kwargs = task.signature.decode(run.message.body)
        return task.function(*args, **kwargs)

    def _run_sync(self, runs: list[JobRun], call: Callable[[], Any]) -> None:
        """Call a sync function, in this thread."""
        first, process = runs[0], self._process
        limit_ms = first.plan.policy.timeout_ms
        token = None
        if limit_ms is not None:
            token = self._watch.begin(limit_ms / 1_000, partial(self._overrun, runs, limit_ms))
        value, error = None, None
        before = running.set(first.context)
        try:
            with self._around(runs):
                value = _checked(first.plan, finished(call()))
        except BaseException as raised:
            if self._process is not process or passes(raised):
                raise
            error = raised
        finally:
            running.reset(before)
            if token is not None:
                token.end()
        # Do nothing in a child that the function has forked: the caller ends the child.
        if self._process is process:
            self._conclude(runs, value, error)

    def _submit(self, runs: list[JobRun], call: Callable[[], Awaitable[Any]]) -> None:
        """Run a coroutine in the worker's loop."""
        first, process = runs[0], self._process
        limit_ms = first.plan.policy.timeout_ms

        async def work() -> Any:
            running.set(first.context)
            self._begin(runs)
            with self._around(runs):
                called = call()
                if first.plan.task.cancellable and first.message.key is not None:
                    called = cancelled_by_key(called, first.context)
                return _checked(first.plan, await called)

        def done(value: Any, error: BaseException | None) -> None:
            if self._process is not process:
                end_child(error)
            self._conclude(runs, value, error)

        where = self._loop.submit(
            work,
            done,
            context=contextvars.copy_context(),
            limit_s=None if limit_ms is None else limit_ms / 1_000,
            name=f"{first.plan.task.name} of message {first.message.id}",
            is_stopping=self.is_stopping,
        )
        if where is None:
            self._conclude(runs, None, Snooze("0s"))
        for run in runs:
            if run.ending is not None:
                run.ending.where = where

    def _run_batch(self, runs: list[JobRun]) -> None:
        """Run jobs of one task together; all are held."""
        task, process = runs[0].plan.task, self._process
        items, good = [], []
        for run in runs:
            try:
                items.append(task.signature.decode_item(run.message.body))
            except UsageError as error:
                self._conclude([run], None, error)
            else:
                good.append(run)
        try:
            if good and task.is_async:
                self._submit(good, lambda: task.function(items))
            elif good:
                self._begin(good)
                self._run_sync(good, lambda: task.function(items))
        except RuntimeError as error:
            # This process may not be allowed to start a thread; the handlers of the others have
            # returned.
            if self._process is not process:
                raise
            self._conclude(good, None, error)

    def _begin(self, runs: list[JobRun]) -> None:
        """Begin runs that have waited until now."""
        now_ms, boot_us = self._clock.now_ms(), self._clock.boot_us()
        for run in runs:
            run.begin(now_ms, boot_us)

    @contextmanager
    def _around(self, runs: list[JobRun]) -> Iterator[None]:
        first = runs[0].message
        with ExitStack() as stack:
            # Set this here too: a batch may run in another thread than the handlers of its jobs.
            stack.callback(handled.reset, handled.set(first))
            if self._traces is not None:
                stack.enter_context(self._traces.run(*[run.message for run in runs]))
            for run in runs:
                for one in self._registry.middleware:
                    stack.enter_context(one.run(run.context))
            yield

    def _overrun(self, runs: list[JobRun], limit_ms: int) -> None:
        """End the jobs of a sync function over its limit, by policy; the function runs on."""
        limit = duration_text(limit_ms)
        if self._conclude(runs, None, TimeLimit(f"took longer than {limit}")):
            first = runs[0]
            self._on_overrun(
                f"task {first.plan.task.name} of message {first.message.id} runs for longer than "
                f"its limit of {limit}, and cannot be stopped"
            )

    # After the run --------------------------------------------------------------------------------

    def _conclude(self, runs: list[JobRun], value: Any, error: BaseException | None) -> bool:
        """End runs; True if they had not ended.

        The result of a batch may hold an outcome for each of its jobs.

        Raises:
            BaseException: The error, if a handler is to raise it.
        """
        errors = [error] * len(runs)
        task = runs[0].plan.task
        if task.batch is not None and error is None:
            errors = errors_of(value, len(runs), task.name)
        were_running = [
            self._conclude_one(run, value, one) for run, one in zip(runs, errors, strict=True)
        ]
        return all(were_running)

    def _conclude_one(self, run: JobRun, value: Any, error: BaseException | None) -> bool:
        with run.lock:
            if run.is_over:
                return False
            run.is_over = True
        is_heeded = error is None or isinstance(error, asyncio.CancelledError)
        if is_heeded and run.context.is_stopped and run.plan.task.batch is None:
            error = _CancelledRun()
        run.context.end()
        if run.plan.policy.keep_ms is None:
            return self._end(run, error)
        encoded = None
        if error is None:
            try:
                encoded = run.plan.task.encode_result(value)
            except BadResult as bad:
                error = Bury(str(bad))
            except BaseException as raised:  # noqa: BLE001 - the user's class may raise anything
                error = raised
        outcome = ACKED if error is None else self._judged(run.message, run.plan, error)
        state = results.CANCELLED if isinstance(error, _CancelledRun) else _KEPT.get(outcome.fate)
        if state is None:
            return self._end(run, error, outcome)
        kept = result_of(
            run, state, value=encoded, error=outcome.reason, traceback=outcome.traceback
        )
        self._keeping.write(run, kept, partial(self._kept, run, error, outcome))
        return True

    def _kept(
        self, run: JobRun, error: BaseException | None, outcome: Outcome, lost: Exception | None
    ) -> None:
        """End a run after its result was stored; `lost` is the error if it was not."""
        if lost is None:
            self._end(run, error, outcome)
        elif error is None:
            # Fail the run, so that the job runs again and its result is not lost.
            self._end(run, lost)
        else:
            log.warning("why message %s failed is not kept: %s", run.message.id, lost)
            self._end(run, error, outcome)

    def _end(
        self, run: JobRun, error: BaseException | None, outcome: Outcome | None = None
    ) -> bool:
        """End a run's delivery; True if it had not ended.

        Raises:
            BaseException: The error, if its handler is to raise it.
        """
        if outcome is None:
            outcome = ACKED if error is None else self._judged(run.message, run.plan, error)
        seconds = (self._clock.boot_us() - run.began_us) / 1e6
        state = "cancelled" if isinstance(error, _CancelledRun) else _STATES[outcome.fate]
        outcome = self._told(run.plan.task.name, run.message, seconds, state, outcome)
        asked = (run.message.id, id(error))
        if error is not None:
            self._outcomes[asked] = outcome
        if run.ending is None:
            if error is not None:
                raise error
            return True
        try:
            return run.ending.end(error)
        finally:
            self._outcomes.pop(asked, None)

    def _judged(self, message: Message, plan: RunPlan, error: BaseException) -> Outcome:
        policy = plan.policy
        outcome = outcome_of(error)._replace(attempts=policy.attempts)
        if outcome.fate is not Fate.RETRY:
            return outcome
        if message.attempt >= policy.attempts:
            return outcome._replace(fate=Fate.BURY, reason=f"{OUT_OF_ATTEMPTS}: {outcome.reason}")
        if not isinstance(error, Retry) and policy.is_hopeless(error):
            return outcome._replace(fate=Fate.BURY)
        if outcome.delay_ms is not None:
            return outcome
        try:
            delay_ms = policy.backoff_ms(message.attempt, error)
        except BaseException as wrong:
            log.exception("the back-off of task %s failed", plan.task.name, exc_info=wrong)
            delay_ms = Policy().backoff_ms(message.attempt, error)
        return outcome._replace(delay_ms=delay_ms)

    def _told(
        self, task: str, message: Message, seconds: float, state: str, outcome: Outcome
    ) -> Outcome:
        """The outcome of a run, after a call of `on_end`."""
        if self._on_end is None:
            return outcome
        ended = Ended(
            task,
            message.id,
            message.queue,
            message.attempt,
            seconds,
            state,
            first_line(outcome.reason),
            outcome.delay_ms,
            outcome.traceback,
        )
        try:
            self._on_end(ended)
            return outcome._replace(is_reported=True)
        except BaseException:
            # Log an error of `on_end`, because the job has ended all the same.
            log.exception("the end of message %s could not be reported", message.id)
            return outcome

    def _begin_child(self) -> None:
        self._process = object()


def _checked(plan: RunPlan, value: Any) -> Any:
    """The return value of a function that has done its work.

    Raises:
        Bury: If the value would still do the work, as the coroutine of an async function that a
            decorator does not await.
    """
    if left := unrun(value, _IF_ASYNC, _IF_LAZY):
        raise Bury(f"task {plan.task.name} returned {left}")
    return value


_STATES = {
    Fate.ACK: "done",
    Fate.RETRY: "retrying",
    Fate.BURY: "failed",
    Fate.SNOOZE: "snoozed",
    Fate.CANCEL: "expired",
    Fate.EXPIRE: "expired",
}
_KEPT = {
    Fate.ACK: results.DONE,
    Fate.RETRY: results.RETRYING,
    Fate.BURY: results.FAILED,
    Fate.CANCEL: results.EXPIRED,
    Fate.EXPIRE: results.EXPIRED,
}
"""The recorded state for each fate of a run; a snooze records none."""
