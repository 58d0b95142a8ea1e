"""The rules of which rows exist: at every moment, after every end, and by the queue's ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from shardq.model.ids import birth_us
from simulation.case import DEAD, LOOK_US, QUEUE, Breach, entry_of, token_of
from simulation.history import LATE_WRITER
from simulation.named import is_cancelled_by_key
from simulation.stories import clock_of, shown, story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.inspection.audit import Audit
    from simulation.case import Case
    from simulation.history import Delivery, Written

ACKED = ("ack", "maybe ack")
_STORED_US = 5_000_000
"""How long a consumer may delay the storing of an ack while the store answers in time."""
_MOVED_US = 500_000
_REPAIRED_US = 5_000_000
"""How long the writer of a late row may take for the calls that look it up and move it."""


def lost(case: Case) -> Iterator[Breach]:
    """A message whose put was answered is in the queue, settled, dead, cancelled or purged."""
    left = {token_of(row.body) for row in case.history.left}
    for token, put in case.history.puts.items():
        if put.outcome != "acked" or token in left or token in case.dead or put.letter.key:
            continue
        if reason_to_go(case, token, case.history.ended_us) is None:
            yield Breach("lost", f"m{token} was put and is gone: {story(case, token)}", token)


def vanished(case: Case) -> Iterator[Breach]:
    """At each moment a message has a row or has ended, even if a row of it appears later."""
    for us, token, process in case.history.gone:
        put = case.history.puts.get(token)
        if put is not None and put.letter.key is not None:
            # The rule `named` judges messages with a key.
            continue
        if reason_to_go(case, token, us) is None:
            yield Breach(
                "vanished",
                f"m{token} was gone at {clock_of(case, us)}, by {process}: {story(case, token)}",
                token,
            )


def reason_to_go(case: Case, token: int, us: int) -> str | None:
    """Why a message needs no row at a time; None if it must have one."""
    for one in case.by_token[token]:
        # The ack of one copy ends the message: whoever moves the other copy does not know of it.
        if one.outcome in ACKED and one.settled_us <= us:
            return "acked"
    cancel = case.history.cancels.get(token)
    if cancel is not None and cancel.begun_us <= us and cancel.outcome != "gone":
        return "cancelled"
    if case.is_purged(token, us) and not _was_last_dead(case, token, us):
        return "purged"
    return None


def _was_last_dead(case: Case, token: int, us: int) -> bool:
    """True if the last row of a message was in the dead-letter queue, and was not moved on.

    A purge of a queue deletes no rows of its dead-letter queue.
    """
    gone = [w for w in case.written(token) if w.deleted_us is not None and w.deleted_us <= us]
    if not gone:
        return False
    last = max(gone, key=lambda written: written.deleted_us or 0)
    if last.row.shard.queue != DEAD or any(
        case.source_of(written) is last for written in case.written(token)
    ):
        return False
    # With a history a redrive first puts the message back, then deletes the dead row.
    return not any(last.is_there(case.born_us(one.row.id)) for one in case.revived.get(token, ()))


def kept(case: Case) -> Iterator[Breach]:
    """An acked message has no row: at once if a caller acked it, soon if a handler did."""
    for token, ones in case.by_token.items():
        for one in ones:
            if one.outcome != "ack" or one.ended_us is None:
                continue
            until_us = one.ended_us + (0 if one.kind == "receive" else _STORED_US)
            if until_us >= case.history.ended_us:
                continue
            # A caller got the answer to its ack, whatever hindered it. The exception is a delivery
            # of which an extension or settlement had no certain outcome.
            is_told = one.kind == "receive" and not one.unsure_us
            if not is_told and _is_hindered(case, one, until_us):
                continue
            for written in case.written(token):
                if _is_of(case, written, one) and written.is_there(until_us):
                    yield Breach(
                        "kept",
                        f"m{token} was acked at {clock_of(case, one.ended_us)}, and is there at "
                        f"{clock_of(case, until_us)}: {story(case, token)}",
                        token,
                    )


def _is_of(case: Case, written: Written, one: Delivery) -> bool:
    """True if a row is the delivered one, or its consumer made it of that during the delivery.

    A row that another process made of the delivered one does not count: nobody was handed it.
    """
    if written.row.shard.queue != QUEUE:
        return False
    at: Written | None = written
    while at is not None and at.row.id != one.row.id:
        if at.process != one.process or not one.begun_us <= at.at_us <= (one.ended_us or 0):
            return False
        at = case.history.written.get(case.history.came_from.get(at.row.id, b""))
    return at is not None


def _is_hindered(case: Case, one: Delivery, until_us: int) -> bool:
    name, begun_us = one.process, one.begun_us
    return (
        case.crashed(name, begun_us, until_us)
        or case.interrupted(one)
        # After a pause, a process reads in one step all rows that came due meanwhile.
        or case.frozen(name, begun_us - _STORED_US, until_us)
        or case.troubled(name, begun_us, until_us)
        # An LWT is repeated until its outcome is certain, and the engine waits for it.
        or any(begun_us <= us <= until_us for us in case.history.failed.get(name, ()))
        or any(w.row.id in case.unknown_moved for w in case.written(one.token))
    )


def unswept(case: Case) -> Iterator[Breach]:
    """A row that the sweep of a sealed shard finds was written late, by a hindered process."""
    for us, process, row in case.history.found:
        written = case.history.written[row.id]
        name, at_us = written.process, written.at_us
        sealed_us = case.history.sealed_us.get((row.shard.lane, row.shard.minute), 0)
        # A row older than the seal was overlooked by the sealer: the rule `sealed` judges that.
        if name == LATE_WRITER or at_us < sealed_us - LOOK_US or us - at_us < _REPAIRED_US:
            continue
        if row.id in case.unknown_rows or case.crashed(name, at_us, us):
            continue
        # Excused: a writer that was held up begins with a look at its late row, and a caller that
        # was held up while it wrote was told of the late row.
        if case.kept_up(name, us - _REPAIRED_US, us):
            continue
        if case.is_caller(name) and case.kept_up(name, at_us, at_us + _REPAIRED_US):
            continue
        yield Breach(
            "unswept",
            f"{process} found at {clock_of(case, us)} behind a seal, from "
            f"{clock_of(case, at_us)} by {name}: {shown(row)}",
            token_of(row.body),
        )


def repaired(case: Case) -> Iterator[Breach]:
    """A row moved to a minute too late for its readers is looked up and moved to now."""
    history = case.history
    # One read and one move. In a slow world each may take a second more, unrecorded.
    calls_us = _MOVED_US * (5 if history.plan.weather.get("slow") else 1)
    for us, name, row_id in history.moved_late:
        until_us = us + calls_us
        written = history.written.get(row_id)
        if written is None or until_us >= history.ended_us or not written.is_there(until_us):
            continue
        # Excused if, after the answer, a call failed or was slow, or the process paused or crashed.
        if any(us <= at_us <= until_us for at_us in history.failed.get(name, ())):
            continue
        if any(at_us <= until_us and end_us > us for at_us, end_us in history.waits.get(name, ())):
            continue
        if case.crashed(name, us, until_us) or case.stood_still(name, us, until_us):
            continue
        yield Breach(
            "repair",
            f"{name} moved it late at {clock_of(case, us)} and left it there: {shown(written.row)}",
            token_of(written.row.body),
        )


# The ledger -------------------------------------------------------------------------------------


def finished(case: Case) -> Iterator[Breach]:
    """A possible leftover is looked up in the ledger, and dropped if its message has ended."""
    for one in case.history.deliveries:
        ended_us, _ = case.history.ended.get((QUEUE, entry_of(one.row)), [(1 << 62, "")])[0]
        if one.kind != "handler" or ended_us > one.begun_us:
            continue
        # All rows are looked up after a take-over, and each claim when it has come due.
        taken_us = case.taken_over(one)
        if ended_us < taken_us or (one.row.claim is not None and ended_us < one.row.due_ms * 1_000):
            yield Breach(
                "finished",
                f"m{one.token} at {clock_of(case, one.begun_us)} by {one.process}, though its end "
                f"was in the ledger at {clock_of(case, ended_us)}",
                one.token,
            )


def balanced(case: Case) -> Iterator[Breach]:
    """put = acked + dead + cancelled + purged + waiting + in flight, as the observer saw it."""
    history = case.history
    if "history" not in history.plan.settings or not history.drained:
        return
    if len(history.audits) < 2:
        yield Breach("balanced", "the audit did not come to its end")
    for audit in history.audits:
        yield from _uneven(case, audit)
    yield from _false_ends(case)
    for token, put in history.puts.items():
        # A put that lost its key before its row arrived withdraws that row and enters again, so a
        # message with a key may have several entries.
        entries = case.entries[token] if put.letter.key else case.entries[token][:1]
        is_entered = not entries or any((QUEUE, i) in history.entered for i in entries)
        if put.outcome == "acked" and not is_entered:
            yield Breach("balanced", f"m{token} was put, which is not in the ledger", token)


def _uneven(case: Case, audit: Audit) -> Iterator[Breach]:
    """Breaches: counts of a queue's audit that differ from those of the observer."""
    history, total = case.history, audit.total
    dropped = history.dropped if audit.queue == QUEUE else {}
    dropped = {i: us for i, us in dropped.items() if history.is_audited(audit, i)}
    if not (audit.is_even or dropped):
        yield Breach("balanced", f"{audit.line()} {audit.misfits[:5]}")
    until_us = max(look.ended_us for look in history.looks if look.audit is audit)
    entered_us = {
        i: us
        for (queue, i), us in history.entered.items()
        if queue == audit.queue and history.is_audited(audit, i)
    }
    # A record of a put may have reached the ledger only after the last audit.
    entered = {i for i, us in entered_us.items() if us <= until_us}
    ended = {}
    for (queue, i), ends in history.ended.items():
        # An earlier end may reach the ledger late, and replace the recorded one.
        known = [fate for us, fate in ends if us <= until_us]
        if queue == audit.queue and known and history.is_audited(audit, i):
            ended[i] = known[-1]
    rows = history.left if audit.queue == QUEUE else history.dead
    there = {i for i in map(entry_of, rows) if history.is_audited(audit, i)} - ended.keys()
    seen = Counter(fate for row_id, fate in ended.items() if row_id in entered)
    seen["waiting"] = len(there & entered)
    seen["put"] = len(entered)
    seen["unrecorded"] = len((there | ended.keys()) - entered_us.keys())
    seen["lost"] = len(dropped)
    seen["resurrected"] = seen["in_flight"] = 0
    for name, count in seen.items():
        if getattr(total, name) != count:
            yield Breach(
                "balanced",
                f"{audit.queue} has {count} {name}, and {getattr(total, name)} by its audit",
            )


def _false_ends(case: Case) -> Iterator[Breach]:
    """Breaches: ends in the ledger that did not happen, and acks that the ledger lacks."""
    history = case.history
    # A replacement by key gives the message another body, so one entry may have several tokens.
    tokens: dict[bytes, list[int]] = defaultdict(list)
    for token, entries in case.entries.items():
        for row_id in entries:
            tokens[row_id].append(token)
    for (queue, row_id), ends in history.ended.items():
        us, fate = ends[-1]
        bodies = tokens.get(row_id, ()) if queue == QUEUE else ()
        if bodies and not any(_may_have_ended(case, token, row_id, fate, us) for token in bodies):
            token = bodies[0]
            yield Breach(
                "balanced", f"m{token} is {fate} by the ledger at {clock_of(case, us)}", token
            )
    for one in history.deliveries:
        if one.outcome == "ack" and (QUEUE, entry_of(one.row)) not in history.ended:
            yield Breach("balanced", f"m{one.token} was acked, which is not in the ledger")


def _may_have_ended(case: Case, token: int, row_id: bytes, fate: str, us: int) -> bool:
    if fate == "acked":
        ones = case.by_token[token]
        return any(o.outcome in ACKED and entry_of(o.row) == row_id for o in ones)
    if fate == "dead":
        return bool(case.deaths(token))
    if fate == "cancelled":
        cancel = case.history.cancels.get(token)
        is_one = cancel is not None and cancel.outcome != "gone"
        is_keyed = case.history.puts[token].letter.key is not None
        # A row that a burial left over is cancelled once its message was put back from the dead.
        is_left = is_keyed and any(one.at_us <= us for one in case.revived.get(token, ()))
        return is_one or is_left or is_cancelled_by_key(case, token)
    return any(case.may_be_purged(birth_us(row_id), case.history.ended_us))
