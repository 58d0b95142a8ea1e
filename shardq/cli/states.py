"""What state a queue is in: each has a name, a level, and a sentence that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shardq.cli import screen
from shardq.engine.hanging import hangs_after_ms
from shardq.model.names import is_dead_queue, served_queue
from shardq.model.times import iso

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.observer import MemberView, QueueView

_MENDS_WITHIN_MS = 60_000
"""So soon a consumer mends totals."""
_RUNS = 3
"""How many messages that hang a finding names."""


class Level(StrEnum):
    """How grave a state is."""

    OK = "ok"
    WARNING = "warning"
    """Somebody should look at it; `check` ends with 0."""
    WRONG = "wrong"
    """`check` ends with 1."""


class State(StrEnum):
    """A state's name, for people and programs."""

    OK = "ok"
    NO_CONSUMERS = "no consumers"
    LAGGING = "lagging"
    HANGING = "hanging"
    DEAD_LETTERS = "dead letters"
    PAUSED = "paused"
    TOO_NEW = "too new"
    """Its settings need a newer shardq."""
    DAMAGED = "damaged"
    """Something stored of it cannot be read."""
    NOT_DRAINED = "not drained"
    """Consumers had passed by messages, which `check --all` found and moved to now."""
    COUNTS_OFF = "counts off"
    """A process ended, or was stopped, before it had stored what it counted."""
    CLOCK_OFF = "clock off"
    FOR_TESTS = "for tests"
    """The process is set up for a test."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and how it is.

    Attributes:
        what: `store`, `clock of 10.0.0.1`, `queue mail`.
        level: How grave it is.
        state: Its name.
        text: What was found, in a sentence or figures.
        advice: What to do; empty where nothing is to be done.
    """

    what: str
    level: Level
    state: State
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a queue may come to before `check` fails.

    Attributes:
        lag_ms: For how long its oldest due message may wait, milliseconds; where consumers are
            isolated, for its queue's minute and offset more.
        dead: How many dead messages it may have; None: any number.
        run_ms: For how long a handler may run, milliseconds; None: any time.
    """

    lag_ms: int = 60_000
    dead: int | None = None
    run_ms: int | None = None


def findings(view: QueueView, limits: Limits) -> list[Finding]:
    """All that a queue's people should know, the gravest first; one that it is well otherwise."""
    order = list(Level)
    found = sorted(_found(view, limits), key=lambda one: -order.index(one.level))
    if not found:
        text = "; ".join(filter(None, (counts(view), late(view))))
        found = [Finding(f"queue {view.name}", Level.OK, State.OK, text)]
    return found


def newer(name: str, text: str) -> Finding:
    """Of a queue that needs a newer release.

    Args:
        name: The queue's.
        text: What the error says of it.
    """
    return Finding(f"queue {name}", Level.WRONG, State.TOO_NEW, text)


def damaged(name: str, text: str) -> Finding:
    """Of a queue of which something stored cannot be read.

    Args:
        name: The queue's.
        text: What the error says of it.
    """
    return Finding(f"queue {name}", Level.WRONG, State.DAMAGED, text)


def without_left_dead(views: Sequence[QueueView]) -> list[QueueView]:
    """All queues but those that hold the dead of another, which tells how many, for nobody."""
    names = {view.name for view in views}
    return [
        view
        for view in views
        if view.members or not is_dead_queue(view.name) or served_queue(view.name) not in names
    ]


def state_of(view: QueueView) -> Finding:
    """The gravest finding, by the usual limits."""
    return findings(view, Limits())[0]


def counts(view: QueueView) -> str:
    """What is in a queue, and how many consume it."""
    depth = view.depth
    return (
        f"{depth.ready:,} ready, {depth.waiting:,} waiting, {depth.in_flight:,} in flight, "
        f"{screen.plural(len(view.members), 'consumer')}"
    )


def late(view: QueueView) -> str:
    """How late deliveries began; empty where there were none in a day."""
    day = view.late_day_ms and f"{screen.quantiles(view.late_day_ms)} in the day"
    recent = view.late_ms and f"{screen.quantiles(view.late_ms)} in 5 min"
    told = ", ".join(one for one in (recent, day) if one)
    return f"late p50/p99: {told}" if told else ""


def _found(view: QueueView, limits: Limits) -> Iterator[Finding]:
    what, name = f"queue {view.name}", view.name
    if view.settings.paused:
        yield Finding(
            what,
            Level.WARNING,
            State.PAUSED,
            f"{counts(view)}; it is paused and delivers nothing.",
            f"Deliver again with `shardq queues resume {name}`.",
        )
    elif view.members or not is_dead_queue(name):
        yield from _waiting(view, limits)
    yield from _hanging(view, limits)
    yield from _dead(view, limits)
    yield from _uncounted(view)


def _dead(view: QueueView, limits: Limits) -> Iterator[Finding]:
    # Nobody is to consume a dead-letter queue: what is in it are dead letters, too.
    dead = view.depth.ready if is_dead_queue(view.name) and not view.members else view.dead
    if dead:
        over = limits.dead is not None and dead > limits.dead
        allowed = f", more than the {limits.dead:,} allowed" if over else ""
        served = served_queue(view.name)
        yield Finding(
            f"queue {view.name}",
            Level.WRONG if over else Level.WARNING,
            State.DEAD_LETTERS,
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
            Level.WARNING,
            State.COUNTS_OFF,
            f"{name} ended or was stopped at {iso(at_ms)[:19]}Z, before it had stored all that it "
            f"counted{others}: 2 s of it may be missing in the totals, and in what waits for over "
            "an hour.",
            f"`shardq check --all {view.name}` counts every message and mends that; so does a "
            "consumer, within a minute.",
        )


def _waiting(view: QueueView, limits: Limits) -> Iterator[Finding]:
    what, name, depth = f"queue {view.name}", view.name, view.depth
    late = view.lag_ms > limits.lag_ms + _held_back_ms(view)
    oldest = f"the oldest due message has waited for {screen.span(view.lag_ms)}"
    if not view.members and (depth.ready or depth.waiting or view.lag_ms):
        yield Finding(
            what,
            Level.WRONG if late else Level.WARNING,
            State.NO_CONSUMERS,
            f"{counts(view)}" + (f"; {oldest}." if view.lag_ms else "; none is due."),
            f"Start a consumer, such as `shardq consume {name}`.",
        )
    elif late:
        threads = sum(member.threads for member in view.members)
        busy = view.busy
        advice = "Add consumers or threads, or make the handler faster."
        if busy is None:
            advice = "Upgrade shardq at its consumers, to see how many of their handlers are busy."
        elif busy < threads:
            advice = (
                "Its consumers have room: see their logs for errors, or retries of each message."
            )
        handlers = f", {screen.busy(busy, threads)}" if threads else ""
        text = f"{counts(view)}{handlers}; {oldest}."
        yield Finding(what, Level.WRONG, State.LAGGING, text, advice)


def _held_back_ms(view: QueueView) -> int:
    """How long isolated consumers leave a message alone, at most; 0 where none is."""
    if any(member.isolated for member in view.members):
        return view.settings.minute_ms + view.settings.offset_ms
    return 0


def _hanging(view: QueueView, limits: Limits) -> Iterator[Finding]:
    bound_ms = view.settings.visibility_ms if limits.run_ms is None else limits.run_ms
    full_ms = hangs_after_ms(view.settings)
    full = [one for one in view.members if limits.run_ms is None and _all_run_for(one, full_ms)]
    slow = [one for one in view.members if one.longest_ms > bound_ms and one not in full]
    level = Level.WARNING if limits.run_ms is None else Level.WRONG
    advice = "Where that is too long, give the handler a time limit, and restart the consumer."
    if full:
        threads = sum(one.threads for one in full)
        waiting = (
            f"; {screen.plural(view.depth.ready, 'message')} ready" if view.depth.ready else ""
        )
        yield Finding(
            f"queue {view.name}",
            level,
            State.HANGING,
            f"{screen.plural(len(full), 'consumer')} beginning nothing: all handlers, {threads:,}, "
            f"have run for longer than {screen.span(full_ms)}{waiting}; {_longest(full)}.",
            advice,
        )
    if slow:
        yield Finding(
            f"queue {view.name}",
            level,
            State.HANGING,
            f"{screen.plural(len(slow), 'consumer')} with a handler that has run for longer than "
            f"{screen.span(bound_ms)}; {_longest(slow)}.",
            advice,
        )


def _all_run_for(member: MemberView, bound_ms: int) -> bool:
    """Whether all handlers of a consumer have run for longer: it begins nothing until one ends."""
    return (member.busy or 0) >= member.threads > 0 and member.shortest_ms > bound_ms


def _longest(members: Sequence[MemberView]) -> str:
    """Who of these runs what for the longest, and for how long."""
    longest = max(members, key=lambda member: member.longest_ms)
    if not longest.runs:
        return f"{longest.name} for {screen.span(longest.longest_ms)}"
    named = ", ".join(f"{message} for {screen.span(ms)}" for message, ms in longest.runs[:_RUNS])
    more = (longest.busy or 0) - _RUNS
    return f"{longest.name} runs {named}" + (f" and {more:,} more" if more > 0 else "")
