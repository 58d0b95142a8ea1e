"""The states of a queue: each has a name, a level, and a sentence with advice."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shardq.cli import jobs, screen, streams
from shardq.engine.handing.hanging import hangs_after_ms
from shardq.inspection.backlog import PartBacklogs
from shardq.model.limits import Pause, limits_of, queue_limit_of, wait_ms
from shardq.model.names import is_dead_queue, served_queue
from shardq.model.times import iso
from shardq.schedules.schedule import fired_ahead, late_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.inspection.backlog import PartBacklog
    from shardq.observer import MemberView, QueueView
    from shardq.schedules.schedule import Schedule

_MENDS_WITHIN_MS = 60_000
"""A consumer mends totals within this time."""
_LONG_MS = 3_600_000
"""What a limit or a pause holds back for longer has a finding."""
_NAMED = 5
"""How many failing schedules, or slow groups, have a finding each."""
_RUNS = 3
"""How many hanging messages a finding names."""


class Severity(StrEnum):
    """The severity of a state."""

    OK = "ok"
    WARNING = "warning"
    """Somebody should look at it; `check` ends with 0."""
    WRONG = "wrong"
    """`check` ends with 1."""


class StateName(StrEnum):
    """A state's name, for people and programs."""

    OK = "ok"
    NO_CONSUMERS = "no consumers"
    LAGGING = "lagging"
    HANGING = "hanging"
    OVERDUE = "overdue"
    """The queue has consumers, but a schedule has not fired in time."""
    FAILING = "failing"
    """The trigger of a schedule fails."""
    DEAD_LETTERS = "dead letters"
    PAUSED = "paused"
    LIMITED = "limited"
    """A limit holds messages back for over an hour."""
    TOO_NEW = "too new"
    """The queue's settings need a newer shardq."""
    DAMAGED = "damaged"
    """Some stored data of the queue cannot be read."""
    NOT_DRAINED = "not drained"
    """Consumers had missed messages, which `check --all` found and moved to now."""
    COUNTS_OFF = "counts off"
    """A process ended, or was stopped, before it had stored its counts."""
    LOG_LARGE = "log large"
    """Another program reads for so long that SQLite's log cannot be overwritten."""
    CLOCK_OFF = "clock off"
    FOR_TESTS = "for tests"
    """The process is set up for a test."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked object, and its state.

    Attributes:
        what: The object: `store`, `clock of 10.0.0.1`, `queue mail`.
        level: Its severity.
        state: The name of its state.
        text: The finding, in a sentence or figures.
        advice: What to do; empty if there is nothing to do.
    """

    what: str
    level: Severity
    state: StateName
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a queue above which `check` fails.

    Attributes:
        lag_ms: How long its oldest ready message may wait, milliseconds; with isolated consumers,
            longer by its queue's minute and offset.
        dead: How many dead messages it may have; None: any number.
        run_ms: How long a handler may run, milliseconds; None: any time.
    """

    lag_ms: int = 60_000
    dead: int | None = None
    run_ms: int | None = None


def findings(
    view: QueueView,
    limits: Limits,
    schedules: Sequence[Schedule] = (),
    *,
    are_jobs: bool = False,
    backlogs: PartBacklogs | None = None,
) -> list[Finding]:
    """All findings of a queue, the gravest first; a single `ok` if there are none.

    Args:
        view: The queue.
        limits: Its limits.
        schedules: Its schedules, if they were read one by one.
        are_jobs: True if its messages are jobs of tasks, which need a worker.
        backlogs: The backlogs of its groups, if they were counted.
    """
    order = list(Severity)
    all_found = [*_found(view, limits, are_jobs=are_jobs), *_of_schedules(view, limits, schedules)]
    all_found += _limited(view, backlogs or PartBacklogs())
    found = sorted(all_found, key=lambda one: -order.index(one.level))
    if not found:
        text = "; ".join(filter(None, (counts(view), scheduled(view, schedules), late(view))))
        found = [Finding(f"queue {view.name}", Severity.OK, StateName.OK, text)]
    return found


def newer(name: str, text: str) -> Finding:
    """The finding for a queue that needs a newer release.

    Args:
        name: The queue's name.
        text: The text of the error.
    """
    return Finding(f"queue {name}", Severity.WRONG, StateName.TOO_NEW, text)


def damaged(name: str, text: str) -> Finding:
    """The finding for a queue with unreadable data.

    Args:
        name: The queue's name.
        text: The text of the error.
    """
    return Finding(f"queue {name}", Severity.WRONG, StateName.DAMAGED, text)


def without_kept(views: Sequence[QueueView]) -> list[QueueView]:
    """All queues except dead-letter queues of shown queues, whose lines count the dead.

    A dead-letter queue with consumers is included.
    """
    names = {view.name for view in views}
    return [
        view
        for view in views
        if not (is_dead_queue(view.name) and served_queue(view.name) in names and not view.members)
    ]


def state_of(view: QueueView) -> Finding:
    """The gravest finding, by the usual limits."""
    return findings(view, Limits())[0]


def counts(view: QueueView) -> str:
    """The depth of a queue, and the number of its consumers."""
    depth = view.depth
    return (
        f"{depth.ready:,} ready, {depth.waiting:,} waiting, {depth.in_flight:,} in flight, "
        f"{screen.plural(len(view.members), 'consumer')}"
    )


def scheduled(view: QueueView, schedules: Sequence[Schedule] = ()) -> str:
    """The number of schedules, as text; empty without any."""
    count = len(schedules) or view.schedules
    return screen.plural(count, "schedule") if count else ""


def late(view: QueueView) -> str:
    """How late deliveries began; empty without any in a day."""
    day = view.late_day_ms and f"{screen.quantiles(view.late_day_ms)} in the day"
    recent = view.late_ms and f"{screen.quantiles(view.late_ms)} in 5 min"
    told = ", ".join(one for one in (recent, day) if one)
    return f"late p50/p99: {told}" if told else ""


def _found(view: QueueView, limits: Limits, *, are_jobs: bool) -> Iterator[Finding]:
    what, name = f"queue {view.name}", view.name
    if view.settings.paused:
        yield Finding(
            what,
            Severity.WARNING,
            StateName.PAUSED,
            f"{counts(view)}; it is paused and delivers nothing"
            + (f"; {_oldest(view)}." if view.lag_ms > _LONG_MS else "."),
            f"Deliver again with `shardq queues resume {name}`.",
        )
    elif view.members or not is_dead_queue(name):
        yield from _waiting(view, limits, are_jobs=are_jobs)
    yield from _hanging(view, limits)
    yield from _dead(view, limits)
    yield from _uncounted(view)


def _oldest(view: QueueView) -> str:
    return f"the oldest ready message has waited for {screen.span(view.lag_ms)}"


def _limited(view: QueueView, backlogs: PartBacklogs) -> Iterator[Finding]:
    """Name what pauses, rates of groups and the queue's limits hold back for long."""
    what, name, due = f"queue {view.name}", view.name, view.limited.get("queue", 0)
    if due and view.lag_ms > _LONG_MS:
        limit = queue_limit_of(view.settings.queue_limit)
        yield Finding(
            what,
            Severity.WARNING,
            StateName.LIMITED,
            f"{screen.plural(due, 'due message')} or more wait for its limit, {limit}; "
            f"{_oldest(view)}.",
            f"If that is too long, raise it: `shardq queues alter {name} --limits '..'`.",
        )
    limits = limits_of(view.settings.group_limits)
    paused = {pause: [one] for pause, one in backlogs.paused.items()}
    slow: list[tuple[int, str, PartBacklog]] = []
    for group, one in sorted(backlogs.groups.items()):
        if (groups := limits.pause_of(group)) is not None:
            paused.setdefault(Pause("group", groups), []).append(one)
        elif (left_ms := wait_ms(limits.of(group).rates, one.due)) > _LONG_MS:
            slow.append((left_ms, group, one))
    for (of, names, _), held in sorted(paused.items()):
        first_ms = min((one.since_ms for one in held if one.due), default=view.at_ms)
        if view.at_ms - first_ms > _LONG_MS:
            named = streams.escaped(shlex.quote(names))
            yield Finding(
                what,
                Severity.WARNING,
                StateName.PAUSED,
                f"{of}s {names} are paused; {sum(one.due for one in held):,} of their messages "
                f"are due, the first since {screen.span(view.at_ms - first_ms)}.",
                f"Deliver again with `shardq queues resume {name} --{of} {named}`.",
            )
    slow.sort(reverse=True)
    for left_ms, group, one in slow[:_NAMED]:
        more = f" (And {len(slow) - _NAMED:,} more.)" if len(slow) > _NAMED else ""
        named = streams.escaped(shlex.quote(group))
        yield Finding(
            what,
            Severity.WARNING,
            StateName.LIMITED,
            f"group {group} has {screen.plural(one.due, 'due message')}, which need "
            f"{screen.span(left_ms)} by its limit, {limits.of(group)}.{more}",
            f"If that is too long, raise it: `shardq limits {name} {named} --rate RATE`.",
        )


def _of_schedules(
    view: QueueView, limits: Limits, schedules: Sequence[Schedule]
) -> Iterator[Finding]:
    name, count = view.name, scheduled(view, schedules)
    what = f"queue {name}"
    late = [one for one in schedules if one.error is None and late_ms(one, view.at_ms)]
    lag_ms = max((late_ms(one, view.at_ms) for one in late), default=view.schedules_lag_ms)
    is_late = lag_ms > limits.lag_ms
    if count and not view.members:
        yield Finding(
            what,
            Severity.WRONG if is_late else Severity.WARNING,
            StateName.NO_CONSUMERS,
            f"{count}, and no consumer that fires them"
            + (f"; {_overdue(view, late)}." if lag_ms else "; none is due."),
            jobs.starting(name, are_jobs=any(jobs.TASK_HEADER in one.headers for one in schedules)),
        )
    elif is_late:
        yield Finding(
            what,
            Severity.WRONG,
            StateName.OVERDUE,
            f"{count}; {_overdue(view, late)}.",
            f"See its consumers' logs for lines of `schedules of queue {name}`, and `shardq "
            f"schedule list {name}`.",
        )
    yield from _failing(name, [one for one in schedules if one.error is not None])
    yield from _ahead(name, [one for one in schedules if fired_ahead(one, view.at_ms)])


def _overdue(view: QueueView, late: Sequence[Schedule]) -> str:
    """Name the schedule that is overdue for the longest, and for how long."""
    if not late:
        return f"the first should have fired {screen.span(view.schedules_lag_ms)} ago"
    first = max(late, key=lambda one: late_ms(one, view.at_ms))
    others = screen.plural(len(late) - 1, "other schedule")
    more = f", and {others} since" if len(late) > 1 else ""
    ago = screen.span(late_ms(first, view.at_ms))
    return f"schedule {first.name} should have fired {ago} ago{more}"


def _ahead(queue: str, fired: Sequence[Schedule]) -> Iterator[Finding]:
    """Name the schedules that a clock which was ahead has fired."""
    shown, left = fired[:_NAMED], len(fired) - _NAMED
    for one in shown:
        named = streams.escaped(shlex.quote(one.name))
        more = f" (And {left:,} more.)" if left > 0 and one is shown[-1] else ""
        until = (
            "never fires again"
            if one.next is None
            else f"does not fire until {screen.when(one.next)}"
        )
        yield Finding(
            f"schedule {one.name} of queue {queue}",
            Severity.WRONG,
            StateName.CLOCK_OFF,
            f"a clock that was ahead has fired it, so it {until}.{more}",
            f"Let it go by the clock: `shardq schedule resume {queue} {named}`. What it has fired "
            "does not fire again.",
        )


def _failing(queue: str, failing: Sequence[Schedule]) -> Iterator[Finding]:
    shown, left = failing[:_NAMED], len(failing) - _NAMED
    for one in shown:
        named = streams.escaped(shlex.quote(one.name))
        more = f" (And {left:,} more fail.)" if left > 0 and one is shown[-1] else ""
        yield Finding(
            f"schedule {one.name} of queue {queue}",
            Severity.WRONG,
            StateName.FAILING,
            f"{one.error}{more}",
            f"Mend what its trigger needs, or change it: `shardq schedule change {queue} {named}`.",
        )


def _dead(view: QueueView, limits: Limits) -> Iterator[Finding]:
    # Without consumers, the ready messages of a dead-letter queue are dead messages.
    dead = view.depth.ready if is_dead_queue(view.name) and not view.members else view.dead
    if dead:
        over = limits.dead is not None and dead > limits.dead
        allowed = f", more than the {limits.dead:,} allowed" if over else ""
        served = served_queue(view.name)
        yield Finding(
            f"queue {view.name}",
            Severity.WRONG if over else Severity.WARNING,
            StateName.DEAD_LETTERS,
            f"{screen.plural(dead, 'dead message')}{allowed}.",
            f"See why with `shardq dead {served}`; --redrive puts them back, --purge deletes them.",
        )


def _uncounted(view: QueueView) -> Iterator[Finding]:
    has_consumers = any(member.threads for member in view.members)
    since_ms = view.at_ms - (_MENDS_WITHIN_MS if has_consumers else 0)
    gone = [(name, at_ms) for name, at_ms in view.uncounted if at_ms <= since_ms]
    if gone:
        name, at_ms = max(gone, key=lambda one: one[1])
        others = f", and {len(gone) - 1:,} more before it" if len(gone) > 1 else ""
        yield Finding(
            f"queue {view.name}",
            Severity.WARNING,
            StateName.COUNTS_OFF,
            f"{name} ended or was stopped at {iso(at_ms)[:19]}Z, before it had stored all that it "
            f"counted{others}: 2s of it may be missing in the totals, and in what waits for over "
            "an hour.",
            f"`shardq check --all {view.name}` counts every message and mends that; so does a "
            "consumer, within a minute.",
        )


def _waiting(view: QueueView, limits: Limits, *, are_jobs: bool) -> Iterator[Finding]:
    what, name, depth = f"queue {view.name}", view.name, view.depth
    late = view.lag_ms > limits.lag_ms + _held_back_ms(view)
    oldest = _oldest(view)
    if not view.members and (depth.ready or depth.waiting or view.lag_ms):
        yield Finding(
            what,
            Severity.WRONG if late else Severity.WARNING,
            StateName.NO_CONSUMERS,
            f"{counts(view)}" + (f"; {oldest}." if view.lag_ms else "; none is due."),
            jobs.starting(name, are_jobs=are_jobs),
        )
    elif late:
        threads = sum(member.threads for member in view.members)
        handlers = f", {screen.busy(view.busy, threads)}" if threads else ""
        text = f"{counts(view)}{handlers}; {oldest}."
        yield Finding(what, Severity.WRONG, StateName.LAGGING, text, _against_lag(view, threads))


def _against_lag(view: QueueView, threads: int) -> str:
    """The advice against a lag, by how many of the handlers are busy."""
    more = "add consumers or threads, or make the handler faster"
    free = threads - view.busy
    if free <= 0:
        return f"{more.capitalize()}."
    why = ""
    if view.oldest is not None:
        named = streams.escaped(shlex.quote(view.oldest))
        why = f"; `shardq show {view.name} {named}` says what that message waits for"
    if view.busy > free:
        return f"Most handlers are busy: {more}{why}."
    verb = "is" if free == 1 else "are"
    return f"{screen.plural(free, 'handler')} {verb} free{why}, and the consumers' logs what fails."


def _held_back_ms(view: QueueView) -> int:
    """How long isolated consumers postpone a message, at most; 0 if none is isolated."""
    if any(member.isolated for member in view.members):
        return view.settings.minute_ms + view.settings.offset_ms
    return 0


def _hanging(view: QueueView, limits: Limits) -> Iterator[Finding]:
    bound_ms = view.settings.visibility_ms if limits.run_ms is None else limits.run_ms
    full_ms = hangs_after_ms(view.settings)
    full = [one for one in view.members if limits.run_ms is None and _all_run_for(one, full_ms)]
    slow = [one for one in view.members if one.longest_ms > bound_ms and one not in full]
    level = Severity.WARNING if limits.run_ms is None else Severity.WRONG
    advice = "Where that is too long, give the handler a time limit, and restart the consumer."
    if full:
        threads = sum(one.threads for one in full)
        waiting = (
            f"; {screen.plural(view.depth.ready, 'message')} ready" if view.depth.ready else ""
        )
        yield Finding(
            f"queue {view.name}",
            level,
            StateName.HANGING,
            f"{screen.plural(len(full), 'consumer')} beginning nothing: all handlers, {threads:,}, "
            f"have run for longer than {screen.span(full_ms)}{waiting}; {_longest(full)}.",
            advice,
        )
    if slow:
        yield Finding(
            f"queue {view.name}",
            level,
            StateName.HANGING,
            f"{screen.plural(len(slow), 'consumer')} with a handler that has run for longer than "
            f"{screen.span(bound_ms)}; {_longest(slow)}.",
            advice,
        )


def _all_run_for(member: MemberView, bound_ms: int) -> bool:
    """True if all handlers of a consumer have run for longer than a bound, so none is free."""
    return member.busy >= member.threads > 0 and member.shortest_ms > bound_ms


def _longest(members: Sequence[MemberView]) -> str:
    """Name the member with the longest delivery, its deliveries, and how long they have run."""
    longest = max(members, key=lambda member: member.longest_ms)
    if not longest.runs:
        return f"{longest.name} for {screen.span(longest.longest_ms)}"
    named = ", ".join(
        f"{f'{run.task} ' if run.task else ''}{run.message} for {screen.span(run.run_ms)}"
        for run in longest.runs[:_RUNS]
    )
    more = longest.busy - _RUNS
    return f"{longest.name} runs {named}" + (f" and {more:,} more" if more > 0 else "")
