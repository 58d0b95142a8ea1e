"""The rule of shares: moved surplus is the same message, and its mover had the lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.model.message import read_headers
from simulation.case import DRIFT_US, Breach, Case
from simulation.plan import bands_of
from simulation.stories import clock_of, story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.model.shard import Shard
    from simulation.history import Written

_RESTS_US = 100_000
"""A row is not shared again for this long."""
_SHARES_MAX = 12
"""The most shares of one message until it begins, so that busy members do not pass it on."""
_CALL_US, _SLOW_US = 1_000, 1_000_000
_NOTICED_US = 1_000_000
"""How soon a process reads the machine's clock anew after it was set."""


def shared(case: Case) -> Iterator[Breach]:
    """A share does not change its message, is made under a lease, and only before it begins."""
    for row_id in case.shares:
        new = case.history.written[row_id]
        source = case.source_of(new)
        if source is None:
            continue
        token = case.token_of[row_id]
        for text in _wrongs(case, source, new):
            yield Breach(
                "shared",
                f"m{token} at {clock_of(case, case.born_us(row_id))} by {new.sender}: {text}: "
                f"{story(case, token)}",
                token,
            )
    for row_id, new in case.history.written.items():
        if row_id not in case.shares and not _may_have_since(case, new):
            token = case.token_of[row_id]
            yield Breach(
                "shared", f"m{token} has a since, and is none: {story(case, token)}", token
            )


def _wrongs(case: Case, source: Written, new: Written) -> Iterator[str]:
    was, row = source.row, new.row
    if (was.message_id, was.first or was.id) != (row.message_id, row.first):
        yield "it is another message"
    if was.order != row.order:
        yield "its place in the order has changed"
    if (was.body, read_headers(was)) != (row.body, read_headers(row)):
        yield "its contents have changed"
    # A process that died may have recorded an attempt in the row.
    planned_us = case.born_us(row.id)
    attempts = [n for (i, n), us in case.recorded.items() if i == was.id and us <= planned_us]
    if row.attempt != max([was.attempt, *attempts]):
        yield f"its attempt is {row.attempt}, not {max([was.attempt, *attempts])}"
    if _band(case, was.shard) != _band(case, row.shard):
        yield "its priority has changed"
    yield from _wrong_times(case, source, new)
    yield from _not_to_be_shared(case, source, new)


def _wrong_times(case: Case, source: Written, new: Written) -> Iterator[str]:
    was, row = source.row, new.row
    planned_us = case.born_us(row.id)
    # If the clock was set, it is not recorded by which clock the message was wanted.
    if was.wanted_ms != row.wanted_ms and not case.history.sets:
        yield f"it is wanted from {row.wanted_ms} on, not from {was.wanted_ms}"
    since_us = source.at_us if case.history.is_ahead(new) else planned_us
    is_early = row.due_ms < was.due_ms or row.due_ms * 1_000 < since_us - DRIFT_US
    # A share planned before the clock was set may be early by the new clock only.
    if is_early and not case.is_set(planned_us, new.at_us):
        yield "it is due before now"
    rested_us = planned_us - case.born_us(was.id)
    # A share that keeps its due may follow another at once: members that leave pass it on.
    is_late = was.since_ms is not None
    if was.id in case.shares and is_late and rested_us < _RESTS_US - DRIFT_US:
        yield "it was shared just before"
    if sum(i in case.shares for i in case.line_of(row.id)) > _SHARES_MAX:
        yield f"it was shared more than {_SHARES_MAX} times"


def _not_to_be_shared(case: Case, source: Written, new: Written) -> Iterator[str]:
    was, planned_us = source.row, case.born_us(new.row.id)
    if any(us <= planned_us for us in case.history.recording.get((new.sender, was.id), ())):
        yield "its attempt was recorded already"
    # The sender's clock may be ahead or behind. A release may follow within a microsecond.
    latest_us = min(planned_us + DRIFT_US, new.at_us - 1)
    if any(us <= new.at_us <= us + _NOTICED_US for us, _ in case.history.sets):
        # After the clock was set back, ids stand still until the current step ends.
        latest_us = new.at_us - 1
    times_us = (latest_us, planned_us, planned_us - DRIFT_US)
    if not any(_is_leased(case, new.sender, was.shard, us) for us in times_us):
        yield "its lease was over"
    if _is_anothers(case, new, was.shard):
        yield "it was another's by then"


def _band(case: Case, shard: Shard) -> int:
    return shard.lane % bands_of(case.history.plan.settings)


def _is_leased(case: Case, process: str, shard: Shard, us: int) -> bool:
    """True if a process had the lease of a shard at a time, or could not know better."""
    holder, since_us = _holder(case, shard, us)
    is_its = holder == process and us <= since_us + case.lease_us + DRIFT_US
    return is_its or _is_forked(case, process, shard, us)


def _is_anothers(case: Case, new: Written, shard: Shard) -> bool:
    """True if a share was made, without a delay, after another process got the shard."""
    weather = case.history.plan.weather
    # A read and a move. In a slow world each may take a second more.
    calls_us = 2 * (_CALL_US + weather["spread_us"] + (_SLOW_US if weather.get("slow") else 0))
    us = new.at_us - calls_us
    holder, _ = _holder(case, shard, us)
    return (
        case.born_us(new.row.id) < us
        and holder not in ("", new.sender)
        and new.process == new.sender
        and not case.kept_up(new.sender, us, new.at_us)
        and not _is_forked(case, new.sender, shard, us)
    )


def _holder(case: Case, shard: Shard, us: int) -> tuple[str, int]:
    """The last holder of a shard's lease at a time, and since when; empty if it was released."""
    holder, since_us = "", 0
    for at_us, name, what in case.lease_events[shard]:
        if at_us > us:
            break
        holder, since_us = ("" if what == "released" else name), at_us
    return holder, since_us


def _is_forked(case: Case, process: str, shard: Shard, us: int) -> bool:
    """True if a fork had released the lease by then, and the holder need not know it."""
    return any(
        (fork.process, fork.shard) == (process, shard) and fork.us <= us <= case.noticed_us(fork)
        for fork in case.history.forks
    )


def _may_have_since(case: Case, new: Written) -> bool:
    """True if a row may record since when it is wanted, though it is no share.

    It may if it is a schedule's run, a repaired late row, or was placed anew by key.
    """
    if new.row.since_ms is None:
        return True
    if case.token_of[new.row.id] in case.history.runs:
        # A run that is put after its fire time records it from the start.
        return True
    source = case.source_of(new)
    return source is not None and (case.is_late(source, new) or source.row.key != new.row.key)
