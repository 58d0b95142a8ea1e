"""Where a message is, as a word and as a sentence. `whereabouts.py` finds it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shardq.model.message import Message, first_line
from shardq.model.receipt import Signed
from shardq.model.times import due_ms, iso, span

if TYPE_CHECKING:
    from datetime import datetime

    from shardq.model.message import Row
    from shardq.model.receipt import Signer

_NOW_MS = 1_000
_ERROR_MAX = 400
"""How much of an error a sentence quotes, in characters; `State.error` has all of it."""


class Where(StrEnum):
    """Where a message is."""

    WAITING = "waiting"
    """The message is due later, because of its put or a move by its key."""
    BACK_OFF = "back-off"
    """A delivery failed, and the next one is due later."""
    SNOOZED = "snoozed"
    """The message was snoozed, and is due later."""
    RUNNING = "running"
    """A handler runs the message, or a caller of `receive` holds it."""
    BEHIND = "behind"
    """The message waits for another message of its group."""
    PAUSED = "paused"
    """It is due, and its queue, its group, its task or its key is paused."""
    LIMITED = "limited"
    """It is due, and a limit of its group, its task or its queue holds it back: a rate, or messages
    that run."""
    PASSED = "passed"
    """The message is due in a sealed partition: only a sweep or `check --all` reads it, no poll."""
    NO_CONSUMER = "no consumer"
    """The message is due, and its queue has no consumer."""
    ISOLATED = "isolated"
    """The message is due, and all consumers of its queue are isolated: they read it later."""
    HELD = "held"
    """The message is due, and a consumer has leased its partition."""
    READY = "ready"
    """The message is due, and no consumer has leased its partition yet."""
    PURGED = "purged"
    """A purge has reached the message: it is not delivered. Its row is or was deleted when due."""
    DEAD = "dead"
    """The message is in the dead-letter queue, or has been."""
    ACKED = "acked"
    """The message has ended, as done."""
    FORWARDED = "forwarded"
    """The message was moved to another queue."""
    CANCELLED = "cancelled"
    """The message was cancelled."""
    EXPIRED = "expired"
    """The message was too old to be delivered."""
    ENDED = "ended"
    """The message has ended in a way that only a newer shardq knows; `error` has its word."""


ENDED = frozenset(
    {
        Where.PURGED,
        Where.DEAD,
        Where.ACKED,
        Where.FORWARDED,
        Where.CANCELLED,
        Where.EXPIRED,
        Where.ENDED,
    }
)
"""The states of messages that are not delivered, unless somebody puts them back."""


@dataclass(frozen=True, slots=True)
class State:
    """Where a message is, and why it does not run. `str()` gives a sentence without its full stop.

    Attributes:
        id: The message's id.
        queue: The queue into which the message was put.
        where: Where the message is.
        at: The time of the look-up, UTC.
        until: When the state changes by itself, UTC: it comes due, its claim ends, its group's head
            is due, isolated consumers read it. None if no time is known.
        since: Since when it is in this state, UTC: due, running, dead, ended.
        member: The consumer or caller that runs or holds it, or that recorded its end.
        behind: The id of the message of its group that it waits for.
        head: Where that message is.
        ahead: How many due messages go first, among those that its holder reads, or in the whole
            queue; if it is `behind`, how many of its group. Else not counted.
        busy: How many handlers of its holder run; None if `threads` is None.
        threads: How many handlers of its holder can run at once; 0 if it is held for callers of
            `receive`, None if the holder no longer reports.
        attempts: How often it was delivered.
        error: Why its last delivery failed, or why it died.
        limit: The limits that hold it back, if it is `limited`; if its group, task or key is
            paused, the name or pattern by which it is. Else None.
        limit_of: `group`, `task`, `key` or `queue`: whose limit this is; None without `limit`.
        reason: Why it was snoozed, if its handler gave a reason and no delivery has failed since:
            then `error` is None, and `since` of a `snoozed` message is the time of the snooze.
    """

    id: str
    queue: str
    where: Where
    at: datetime
    until: datetime | None = None
    since: datetime | None = None
    member: str | None = None
    behind: str | None = None
    head: State | None = None
    ahead: int | None = None
    busy: int | None = None
    threads: int | None = None
    attempts: int = 0
    error: str | None = None
    reason: str | None = None
    limit: str | None = None
    limit_of: str | None = None

    @property
    def has_ended(self) -> bool:
        """True if the message is not delivered any more, unless somebody puts it back."""
        return self.where in ENDED

    def __str__(self) -> str:
        told = _SENTENCES[self.where](self)
        if self.error and self.where not in {Where.BACK_OFF, Where.DEAD, Where.ENDED}:
            told += f"; its last error was {self.quoted_error}"
        if self.reason and not (self.where is Where.SNOOZED and self.since):
            told += f"; it was snoozed before: {_shown(self.reason)}"
        return told

    @property
    def quoted_error(self) -> str:
        """The first line of the error, in quotes, cut if it is long."""
        return f'"{_shown(self.error or "")}"'


def _shown(text: str) -> str:
    """The first line of a text, cut if it is long."""
    line = first_line(text)
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return f"{line[:_ERROR_MAX]}{'...' if len(line) > _ERROR_MAX else ''}"


def _until(state: State) -> str:
    return _moment(state, state.until)


def _since(state: State) -> str:
    return _moment(state, state.since)


def _moment(state: State, moment: datetime | None) -> str:
    """`2027-01-01T09:00:00.000Z, in 3h`."""
    if moment is None:
        return "a time that is not known"
    ms = due_ms(moment) - due_ms(state.at)
    if abs(ms) < _NOW_MS:
        return f"{iso(moment)}, just now" if ms <= 0 else f"{iso(moment)}, in a moment"
    return f"{iso(moment)}, in {span(ms)}" if ms > 0 else f"{iso(moment)}, {span(-ms)} ago"


def _first(state: State) -> str:
    """How many messages are delivered before this one, as text."""
    if state.ahead is None:
        return ""
    if not state.ahead:
        return "; it is the next"
    return f"; {state.ahead:,} due before it {'goes' if state.ahead == 1 else 'go'} first"


def _deliveries(state: State) -> str:
    return f"{state.attempts:,} {'delivery' if state.attempts == 1 else 'deliveries'}"


def _back_off(state: State) -> str:
    failed = f"; it failed {_since(state)}" if state.since else ""
    why = f", with {state.quoted_error}" if state.error else ""
    return f"in back-off until {_until(state)}, after {_deliveries(state)}{failed}{why}"


def _snoozed(state: State) -> str:
    why = f": {_shown(state.reason)}" if state.reason and state.since else ""
    return f"put off (snoozed) until {_until(state)}{why}"


def _running(state: State) -> str:
    if state.until is None:
        return f"runs in {state.member} since {_since(state)}"
    since = f" {_since(state)}" if state.since else ""
    return (
        f"taken by {state.member or 'a caller of receive()'}{since}, until "
        f"{_until(state)}; if it is not settled by then, it is delivered again"
    )


def _behind(state: State) -> str:
    due = f"due since {_since(state)}; " if state.since else ""
    others = (state.ahead or 1) - 1
    more = f", and {others:,} {'other' if others == 1 else 'others'}" if others else ""
    head = f"; {state.behind}: {state.head}" if state.head else ""
    return f"{due}waits behind {state.behind}, the head of its group{more}{head}"


def _held(state: State) -> str:
    handlers, first = "", _first(state)
    if state.threads:
        noun = "handler" if state.threads == 1 else "handlers"
        handlers = f" ({state.busy or 0:,} of {state.threads:,} {noun} busy)"
    elif state.threads is not None:
        handlers = " for callers of receive()"
    if not state.ahead and state.threads and state.busy != state.threads:
        # A consumer's report of itself is a moment old.
        first += ", or has just begun"
    return f"due since {_since(state)}, and held by {state.member}{handlers}{first}"


def _paused(state: State) -> str:
    if state.limit is not None:
        paused = f"{state.limit_of}s {state.limit!r}"
        until = f" until {iso(state.until)}" if state.until else ""
        return f"due since {_since(state)}; {paused} of its queue are paused{until}"
    return f"due since {_since(state)}; queue {state.queue!r} is paused and delivers nothing"


def _limited(state: State) -> str:
    others = state.ahead or 0
    before = f", behind {others:,} of its {state.limit_of}" if others else ""
    until = f", until about {_until(state)}" if state.until else ""
    limit = f"the limit of its {state.limit_of}, {state.limit}"
    return f"due since {_since(state)}; waits for {limit}{before}{until}"


def _purged(state: State) -> str:
    if state.since is not None:
        return f"purged {_since(state)}"
    if state.until is None:
        # Known from the history alone, which has no due.
        return "purged: is deleted when it comes due"
    if state.until <= state.at:
        return f"purged: is deleted when a consumer reads it; it was due {_until(state)}"
    return f"purged: is deleted when it comes due, {_until(state)}"


def _ended(state: State) -> str:
    by = f"by {state.member}" if state.member else ""
    after = f"after {_deliveries(state)}" if state.attempts else ""
    how = " ".join(part for part in (after, by) if part)
    word = state.quoted_error if state.where is Where.ENDED else state.where.value
    return f"{word} {_since(state)}{', ' * bool(how)}{how}"


def _dead(state: State) -> str:
    why = f": {state.quoted_error}" if state.error else ""
    return f"dead since {_since(state)}, after {_deliveries(state)}{why}"


def _isolated(state: State) -> str:
    until = _until(state)
    return f"due since {_since(state)}; all consumers are isolated, and read its minute {until}"


_SENTENCES = {
    Where.WAITING: lambda state: f"waiting: due {_until(state)}",
    Where.BACK_OFF: _back_off,
    Where.SNOOZED: _snoozed,
    Where.RUNNING: _running,
    Where.BEHIND: _behind,
    Where.PAUSED: _paused,
    Where.LIMITED: _limited,
    Where.PASSED: lambda state: (
        f"due since {_since(state)}; its partition is sealed, so that only a sweep finds it"
    ),
    Where.NO_CONSUMER: lambda state: (
        f"due since {_since(state)}; nobody consumes queue {state.queue!r} now"
    ),
    Where.ISOLATED: _isolated,
    Where.HELD: _held,
    Where.READY: lambda state: (
        f"ready since {_since(state)}; no consumer has leased its partition yet{_first(state)}"
    ),
    Where.PURGED: _purged,
    Where.DEAD: _dead,
    Where.ACKED: _ended,
    Where.FORWARDED: _ended,
    Where.CANCELLED: _ended,
    Where.EXPIRED: _ended,
    Where.ENDED: _ended,
}


class Found(Message):
    """A message that was looked up: settle or cancel it like one that `peek` returned.

    Made by `Queue.find`.

    Attributes:
        state: Where it was when it was looked up.
    """

    __slots__ = ("state",)

    def __init__(self, row: Row, delivery: int, signer: Signer | Signed, state: State) -> None:
        super().__init__(row, delivery, signer)
        self.state: State = state

    def __reduce__(self) -> tuple[object, ...]:
        signed = Signed(self.receipt, self._signer.layout)
        return Found, (self._row, self._delivery, signed, self.state)
