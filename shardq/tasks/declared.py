"""The schedules that an app declares, and how a worker brings the store to them.

```
 app.every(..) ─► checked, kept ─┐                ┌─ not stored ─────────────► made
 app.cron(..), app.schedule(..)  ├─ a worker ─────┼─ of a lower revision ────► changed
                                 │  starts        ├─ of a higher one ────────► left alone
                                 │                └─ of the same, different ─► the worker ends
 app.unschedule(..) ─────────────┘                ─► removed
```

Each worker does so at its start. The first worker makes a schedule, and the others find it by its
name.
"""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.errors import BadSetting, StoreCorrupt, UnknownQueue, UsageError, shown
from shardq.model import names
from shardq.schedules.declaring import Declared, declare, undeclare
from shardq.schedules.options import check, draft, has_ended, schedule_name
from shardq.schedules.policy import PolicyOptions
from shardq.tasks.options import TASK_HEADER, CallOptions
from shardq.tasks.task import Bound, Call, check_attempts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from shardq.queue import Queue
    from shardq.schedules.definition import ScheduleDefinition
    from shardq.schedules.options import Make
    from shardq.schedules.stored import StoredSchedule
    from shardq.tasks.definition import TaskDefinition
    from shardq.tasks.registry import Registry
    from shardq.tasks.task import ScheduledCall, WithoutArguments

log = logging.getLogger(__name__)

_NAMED_MAX = 5
"""How many schedules a line of the log names."""


_SAID = {
    "made": "was made",
    "changed": "was changed; it was of revision {there}",
    "older": "is left as it is: of revision {there}, of newer code",
    "ended": "is not made: it has ended, or code has removed it; a higher revision makes it anew",
    "removed": "is not made: code has removed it; a higher revision makes it anew",
    "past": "is not made: all its fire times are past",
}
"""The end of a log line for each fate of a declaration."""
_WARNED = ("removed", "past")
"""Fates that are logged as warnings, because the schedule's jobs never run; a rolling deploy causes
only the other fates."""


class Declaration(NamedTuple):
    """A schedule that code declares.

    Attributes:
        name: Its name.
        call: The task and arguments that it puts.
        make: Its trigger.
        options: The other options of the schedule.
        revision: From 1.
        place: The line that declares it, for errors.
    """

    name: str
    call: ScheduledCall
    make: Make
    options: Mapping[str, Any]
    revision: int
    place: str


class Removal(NamedTuple):
    """A schedule that code removes.

    Attributes:
        name: Its name.
        queue: The name of its queue; None: each of those of the tasks.
        place: The line that declares the removal, for errors.
    """

    name: str
    queue: str | None
    place: str


class Reconciled(NamedTuple):
    """The names of the schedules that `App.reconcile` has touched.

    Attributes:
        made: Schedules that did not exist.
        changed: Schedules that had a lower revision.
        removed: Schedules that `App.unschedule` names.
    """

    made: list[str]
    changed: list[str]
    removed: list[str]


class _Conflict(NamedTuple):
    """A declaration, its fate, and the store's different schedule of the same revision."""

    made: Declaration
    found: Declared
    there: ScheduleDefinition


class Declarations:
    """The schedules that one app declares.

    Args:
        registry: The app's tasks.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._declared: dict[tuple[str, str], Declaration] = {}
        self._removed: dict[tuple[str, str | None], Removal] = {}

    def __len__(self) -> int:
        """The number of declared schedules and removals."""
        return len(self._declared) + len(self._removed)

    # Declaring ------------------------------------------------------------------------------------

    def add(
        self,
        make: Make | None,
        call: Call[Any] | WithoutArguments,
        name: str | None,
        revision: int,
        options: Mapping[str, Any],
    ) -> None:
        """Declare a schedule; nothing is read or written.

        Raises:
            UsageError: If something cannot be used, or the app declares another schedule of its
                name.
        """
        job = scheduled(call, self._registry, options)
        if make is None:
            raise UsageError("give the schedule a trigger: when is it to fire?")
        name = schedule_name(job.task.name if name is None else name)
        if type(revision) is not int or revision < 1:
            raise BadSetting(
                f"schedule {name!r}: revision must be 1 or more, not {shown(revision)}."
            )
        made = Declaration(name, job, make, options, revision, _place())
        now_ms = self._registry.clock.now_ms()
        drafted = draft(make, job.body, {**job.options, **options}, now_ms, name=name)
        if not has_ended(drafted, make):
            check(drafted, now_ms)
        before = self._declared.get((job.queue, name))
        if before is not None and not self._is_run_anew(before):
            raise UsageError(
                f"two schedules of queue {job.queue!r} are named {name!r}: {before.place} and "
                f"{made.place}; give one of them another name=."
            )
        for queue in (job.queue, None):
            if (removal := self._removed.get((name, queue))) is not None:
                raise _contradiction(made, removal)
        self._declared[job.queue, name] = made

    def remove(self, name: str, queue: str | None) -> None:
        """Declare the removal of a schedule; nothing is read or written.

        Raises:
            UsageError: If the app declares it as well.
        """
        removal = Removal(
            schedule_name(name), None if queue is None else names.queue_name(queue), _place()
        )
        for made in self._declared.values():
            if made.name == name and queue in (None, made.call.queue):
                raise _contradiction(made, removal)
        self._removed[name, queue] = removal

    def triggers(self, task: TaskDefinition) -> dict[str, str]:
        """The triggers of a task's declared schedules as text, by schedule name."""
        now_ms = self._registry.clock.now_ms()
        return {
            one.name: str(one.make(now_ms))
            for one in self._declared.values()
            if one.call.task is task
        }

    # Reconciling ----------------------------------------------------------------------------------

    def reconcile(self) -> Reconciled:
        """Bring the store's schedules to the declared ones. Idempotent.

        Returns:
            The schedules that were made, changed and removed.

        Raises:
            UsageError: If the store has different schedules with the same revision; all others are
                brought up to date. Or if a schedule cannot be used with its queue; only those
                before it are brought up to date.
            StoreTimeout, StoreUnavailable: As for a put.
        """
        done = Reconciled([], [], [])
        conflicts: list[_Conflict] = []
        for removal in self._removed.values():
            with _damage_logged():
                self._carry_out(removal, done)
        for queue in dict.fromkeys(made.call.queue for made in self._declared.values()):
            self._bring_all(self._registry.queue(queue), done, conflicts)
        if conflicts:
            raise _refusal(conflicts)
        for name in self._registry.queue_names:
            self._look_at(self._registry.queue(name))
        return done

    def _bring_all(self, queue: Queue, done: Reconciled, conflicts: list[_Conflict]) -> None:
        declared = [made for made in self._declared.values() if made.call.queue == queue.name]
        there = queue.schedules._home.found_any([made.name for made in declared], {})
        for made in declared:
            with _damage_logged():
                found = self._bring(queue, made, there.get(made.name))
                if found.answer == "made":
                    done.made.append(made.name)
                elif found.answer == "changed":
                    done.changed.append(made.name)
                elif found.answer == "other" and found.there is not None:
                    conflicts.append(_Conflict(made, found, found.there))

    def _bring(self, queue: Queue, made: Declaration, there: StoredSchedule | None) -> Declared:
        job = made.call
        check_attempts(job.task.name, job.attempts, queue)
        found = declare(
            queue.schedules._home,
            made.make,
            job.body,
            name=made.name,
            revision=made.revision,
            found=there,
            **{**job.options, **made.options},
        )
        if (said := _SAID.get(found.answer)) is not None:
            before = 0 if found.there is None else found.there.revision
            log.log(
                logging.WARNING if found.answer in _WARNED else logging.INFO,
                "schedule %s of queue %s, declared with revision %d, %s",
                made.name,
                queue.name,
                made.revision,
                said.format(there=before),
            )
        return found

    def _carry_out(self, removal: Removal, done: Reconciled) -> None:
        for name in self._registry.queue_names if removal.queue is None else [removal.queue]:
            try:
                queue = self._registry.connection.queue(name, create=False)
            except UnknownQueue:
                continue
            answer = undeclare(queue.schedules._home, removal.name)
            if answer == "removed":
                done.removed.append(removal.name)
                log.info("schedule %s of queue %s was removed", removal.name, name)
            elif answer == "other":
                log.warning(
                    "schedule %s of queue %s was made at run time, so %s does not remove it",
                    removal.name,
                    name,
                    removal.place,
                )

    def _look_at(self, queue: Queue) -> None:
        """Warn of schedules whose task the app does not have, or that it no longer declares."""
        unknown: dict[str, list[str]] = {}
        undeclared: list[str] = []
        for one in queue.schedules._home.definitions():
            task = one.job.headers.get(TASK_HEADER)
            if task is not None and self._registry.find(task) is None:
                unknown.setdefault(task, []).append(one.name)
            elif task is not None and self._is_undeclared(queue.name, one):
                undeclared.append(one.name)
        for task, named in unknown.items():
            log.warning(
                "queue %s has schedules of task %s, which this app does not have; their jobs wait "
                "for a worker that has it: %s; if it was renamed, declare it by its old name, "
                "@app.task(name=%r), or let app.unschedule(..) remove them and "
                "@app.task(aliases=[%r]) run what waits",
                queue.name,
                task,
                _listed(named),
                task,
                task,
            )
        if undeclared:
            log.warning(
                "queue %s has schedules that code has declared and this app does not declare; they "
                "go on firing until app.unschedule(name) removes them: %s",
                queue.name,
                _listed(undeclared),
            )

    # Details --------------------------------------------------------------------------------------

    def _is_undeclared(self, queue: str, one: ScheduleDefinition) -> bool:
        return one.revision > 0 and (queue, one.name) not in self._declared

    def _is_run_anew(self, before: Declaration) -> bool:
        """True if the lines that declared a schedule run again: in a reload, or in a notebook."""
        if self._registry.find(before.call.task.name) is not before.call.task:
            return True
        # Each run of a notebook's cell or of a prompt's line has a new file name, and no file.
        return not Path(before.place.rpartition(":")[0]).is_file()


@contextmanager
def _damage_logged() -> Iterator[None]:
    """Log the error of a damaged schedule; if it were raised, no job could run."""
    try:
        yield
    except StoreCorrupt as error:
        log.error("%s", error)  # noqa: TRY400 - it says all that there is to say


def scheduled(
    call: Call[Any] | WithoutArguments, registry: Registry, options: Collection[str]
) -> ScheduledCall:
    """The call that a schedule is to put.

    Args:
        call: A task, with options or not, or the value of its `of`.
        registry: The app's tasks.
        options: The names of the options that were given to the schedule.

    Raises:
        BadArguments: If the function does not take the arguments.
        UsageError: If it is no task of the app, or has an option that makes no sense with a
            schedule.
    """
    if isinstance(call, Bound):
        call = call.of()
    if not isinstance(call, Call):
        hint = "" if callable(call) else "; a task with () behind it was called: leave them out"
        raise BadSetting(
            f"a schedule takes a task, or task.of(..) with its arguments, not {shown(call)}{hint}."
        )
    made = call._scheduled()  # noqa: SLF001 - it is ours
    if made.registry is not registry:
        raise UsageError(f"task {made.task.name} is of another app; schedule it there.")
    for one in options:
        if one in CallOptions.__annotations__ and one not in PolicyOptions.__annotations__:
            raise BadSetting(
                f"a schedule of task {made.task.name}: {one} is an option of its jobs; give it to "
                f"the task, using({one}=..)."
            )
    return made


def _refusal(conflicts: list[_Conflict]) -> UsageError:
    """One error for all declarations that the store contradicts."""
    # Schedules made at run time have a remedy of their own, so they are listed last.
    conflicts.sort(key=lambda one: one.there.revision > 0)
    told = [_told(one) for one in conflicts[:_NAMED_MAX]]
    if len(conflicts) > _NAMED_MAX:
        told.append(f"and so are {len(conflicts) - _NAMED_MAX} more")
    if conflicts[-1].there.revision:
        told.append(
            "raise the revision of the one that is to hold, or give one of them another name"
        )
    return UsageError(f"{'; '.join(told)}.")


def _told(one: _Conflict) -> str:
    made, known = one.made, one.there.declared or one.there
    found, remedy = f"{known.trigger} of revision {one.there.revision}", ""
    if one.there.revision == 0:
        found = f"{known.trigger}, made at run time"
        remedy = "; remove that one, or give this another name"
    elif known.trigger.starts_otherwise(one.found.asked.trigger):
        remedy = (
            "; a start that is computed anew in each run is another one each time: give a fixed "
            "one, or at_start=True"
        )
    unlike = ", ".join({"body": "arguments"}.get(name, name) for name in one.found.unlike)
    return (
        f"schedule {made.name!r} of queue {made.call.queue!r} is declared at {made.place}, "
        f"{one.found.asked.trigger} of revision {made.revision}, and the store has another, {found}"
        f"{unlike and f', of which these differ: {unlike}'}{remedy}"
    )


def _contradiction(made: Declaration, removal: Removal) -> UsageError:
    return UsageError(
        f"schedule {made.name!r} of queue {made.call.queue!r} is declared at {made.place} and "
        f"removed at {removal.place}; leave out one of them, or name the queue of the one to "
        f"remove, unschedule({made.name!r}, queue=..)."
    )


def _listed(named: list[str]) -> str:
    more = len(named) - _NAMED_MAX
    return ", ".join(named[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _place() -> str:
    """The line that called a method of the app."""
    frame = inspect.currentframe()
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith("shardq."):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "a place that is not known"
