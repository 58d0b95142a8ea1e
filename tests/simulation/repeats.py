"""The rule of second deliveries: each has one of the causes that the README allows.

Trouble of the store alone is no cause. Either a lease of the message's own shards, or its claim,
ran out because its holder was kept from renewing it. Or a process died before it had stored the
outcome of the first delivery.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from shardq.lifecycle.settle import CLAIM_MARGIN_MS
from shardq.model.ids import birth_us
from simulation.books import ACKED
from simulation.case import COPY_US, DRIFT_US, Breach, leased_as
from simulation.copies import overtaken, repairs
from simulation.stories import clock_of, story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.case import Case, Lapse
    from simulation.history import Delivery, Put, Written

_ANSWERED_US = 1_000
"""A writer has its answer this long after its row exists, if nothing is slow."""


def duplicated(case: Case) -> Iterator[Breach]:
    """No delivery begins against the outcome of an earlier one, except for an allowed cause."""
    for token, ones in case.by_token.items():
        for place, second in enumerate(ones[1:], 1):
            for first in ones[:place]:
                if not in_the_way(case, first, second) or came_back(case, first, second):
                    continue
                cause = cause_of(case, first, second)
                if cause is not None:
                    case.causes[cause] += 1
                    continue
                yield Breach(
                    "duplicated",
                    f"m{token} at {clock_of(case, second.begun_us)} by {second.process} though "
                    f"{first.process} had it ({first.outcome}): {story(case, token)}",
                    token,
                )
                break


def in_the_way(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if the outcome of a first delivery should have prevented the second delivery."""
    if first.outcome in ("ack", "bury"):
        return True
    if first.kind == "receive" and first.outcome in ("ignore", "stale", "gave up", "running"):
        return second.begun_us < first.until_us - max(case.history.slack_us[second.process], 1_000)
    if not _is_what_was_asked_for(case, first, second) and (
        first.ended_us is None or first.ended_us > second.begun_us
    ):
        return True
    if first.outcome not in ("retry", "snooze", "raise"):
        return False
    delay_us = (first.delay_ms or 0) * 1_000
    if first.outcome == "raise":
        delay_us = case.backoff_us(first.attempt)
    history = case.history
    due_us = min(
        history.due_us(history.wall_us(us) + delay_us, us) for us in _planned_us(case, first)
    )
    due_us = min(due_us, first.settled_us + delay_us, *_moved_by_key_us(case, first, second))
    # The due was computed by one clock and compared by another; each may have drifted.
    return second.begun_us < due_us - 2 * DRIFT_US


def _moved_by_key_us(case: Case, first: Delivery, second: Delivery) -> Iterator[int]:
    """The dues that moves by key have given to a postponed message since."""
    key = case.history.puts[first.token].letter.key if first.token in case.history.puts else None
    for call in case.history.errands.values():
        if (
            key is not None
            and call.errand.key == key
            and call.errand.does == "move"
            and not call.is_void
            and call.begun_us <= second.begun_us
            and (call.ended_us is None or call.ended_us >= first.settled_us)
        ):
            yield case.history.due_us(call.due_us, call.begun_us)


def _planned_us(case: Case, one: Delivery) -> list[int]:
    """The times of the machine's clock from which a message may have been postponed.

    The time at which its handler or caller asked for it, and each to which the clock was set
    before it was stored.
    """
    if not case.history.sets:
        return [one.settled_us]
    stored_us = min(
        (
            written.at_us
            for written in case.written(one.token)
            if written.sender == one.process
            and written.at_us >= one.settled_us
            and one.row.id in case.line_of(written.row.id)
        ),
        default=one.settled_us,
    )
    set_us = (us for us, _ in case.history.sets if one.settled_us < us <= stored_us)
    return [one.settled_us, *set_us]


def _is_what_was_asked_for(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if the second delivery is the one that the first caller's retry or snooze asked for.

    Its row may be stored, and due, before the caller has the answer.
    """
    return (
        first.kind == "receive"
        and first.outcome in ("retry", "snooze", "raise")
        and case.history.came_from.get(second.row.id) == first.row.id
        and case.history.written[second.row.id].process == first.process
    )


def came_back(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if a message had died after its first delivery, and was put back before its second."""
    return first.outcome not in ACKED and case.has_come_back(
        first.token, first.begun_us, second.begun_us
    )


def cause_of(case: Case, first: Delivery, second: Delivery) -> str | None:
    """The allowed cause of a second delivery."""
    until_us = second.begun_us
    if _has_crashed(case, first, second):
        return "crash"
    if _was_released(case, first, second):
        return "lease released by a fork"
    lapse = _lapse_of(case, first, second)
    if lapse is not None:
        return "lease released by a fork" if lapse.known_us else "lease ran out"
    if _is_unknown(case, first, second) or _was_half_moved(case, first, second):
        return "unknown write"
    if any(
        new.at_us <= until_us
        and (_parts(case, first, second, old) or _parts(case, first, second, new))
        for old, new in case.copies.get(first.token, ())
    ):
        # `copied` judges where the copy comes from.
        return "copy left by a move"
    ended_us = case.history.stops.get(first.process, (0, None))[1]
    if case.interrupted(first) and ended_us is not None and ended_us <= until_us:
        return "interrupted by shutdown"
    if _was_kept_past_stop(case, first, until_us) or _was_left_halfway(case, first, second):
        return "not stored by a shutdown's deadline"
    if _were_put_back_together(case, first, second):
        return "two redrives at once"
    if _was_up(case, first, until_us):
        return "its time was up"
    if _was_not_moved_on(case, first, until_us):
        return "what it was parked as came due"
    if _was_parked_late(case, first, second):
        return "what it was parked as was due when it came"
    return _cause_on_its_way(case, first, second)


def _cause_on_its_way(case: Case, first: Delivery, second: Delivery) -> str | None:
    """The cause if a row arrived late, or its message had ended before the row arrived."""
    until_us = second.begun_us
    if _was_set_forward(case, first, until_us):
        return "its claim's time was cut short by the clock"
    put = case.history.puts.get(first.token)
    repaired = [] if put is None else repaired_rows(case, put, until_us)
    if any(_parts(case, first, second, new) for new in repaired):
        return "late write repaired"
    if _was_moved_to_now(case, first, second):
        return "late write repaired"
    if _was_settled_past_its_time(case, first, second):
        return "its claim was settled past its time"
    line = case.line_of(first.row.id)
    if any(
        case.history.came_from.get(new.row.id) in line
        and _parts(case, first, second, new)
        and overtaken(case, new)
        for new in case.moved_between(first.token, 0, until_us)
    ):
        return "overtaken on its way"
    return None


def _parts(case: Case, first: Delivery, second: Delivery, written: Written) -> bool:
    """True if only one of two deliveries descends from a row: without the row, one delivery less.

    A row behind both deliveries, or behind neither, is no reason for two hand-outs. But if the
    deliveries have no row in common, as after a redrive in steps, each row may be the reason.
    """
    mine, other = case.line_of(first.row.id), case.line_of(second.row.id)
    if written.row.id in mine | other:
        return (written.row.id in mine) != (written.row.id in other)
    return not mine & other


def _has_crashed(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if a process died before the outcome of the first delivery was stored.

    Or if a process that had the message before died between the insert and the delete of a move.
    """
    crash_us, until_us = case.crash_us.get(first.process), second.begun_us
    has_died = (
        crash_us is not None
        and first.begun_us <= crash_us <= until_us
        and any(
            written.is_there(crash_us - 1) and first.row.id in case.line_of(written.row.id)
            for written in case.written(first.token)
        )
    )
    return has_died or any(
        (died_us := case.crash_us.get(new.process)) is not None
        and new.at_us <= died_us <= until_us
        and (old := case.source_of(new)) is not None
        and old.is_there(died_us)
        and new.is_there(died_us - 1)
        and (_parts(case, first, second, old) or _parts(case, first, second, new))
        for new in case.written(first.token)
    )


def _was_released(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if a fork released the lease of one of the two processes, which did not know of it yet.

    The other process got the row, or a row that was made of it, since then. No outcome of the first
    delivery had been stored by then.
    """
    return any(
        fork.shard
        in {leased_as(case.history.written[i].row.shard) for i in case.line_of(one.row.id)}
        and fork.process == one.process
        and (one.process != other.process or one.row.id != other.row.id)
        and one.begun_us <= case.noticed_us(fork)
        and fork.us <= second.begun_us
        and (_is_open(case, first, fork.us) if one is first else fork.us <= one.begun_us)
        for one, other in ((first, second), (second, first))
        for fork in case.history.forks
    )


def _is_open(case: Case, one: Delivery, us: int) -> bool:
    """True if the delivered row, or a row made of it, existed at a time or later."""
    return any(
        (written.deleted_us is None or written.deleted_us > us)
        and one.row.id in case.line_of(written.row.id)
        for written in case.written(one.token)
    )


def _lapse_of(case: Case, first: Delivery, second: Delivery) -> Lapse | None:
    """The lapse of a lease that explains a second delivery; None if there is none.

    Either the lease of the first delivery's process lapsed, or the lease of another process that
    had the message and moved it later. That process read the row before the first delivery was
    settled, so its move brings the message back.
    """
    until_us = second.begun_us
    mine = case.ran_out(first.token, first.begun_us, until_us, first.row.id)
    if (own := next((one for one in mine if one.process == first.process), None)) is not None:
        return own
    for lapse in case.ran_out(first.token, 0, until_us):
        since_us = max(lapse.until_us, first.begun_us - case.lease_us)
        moved = [
            written
            for written in case.written(first.token)
            if written.sender == lapse.process
            and since_us <= written.at_us <= until_us
            and _parts(case, first, second, written)
        ]
        if not moved:
            continue
        over_us = max(lapse.until_us, lapse.known_us)
        if any(case.born_us(written.row.id) <= over_us for written in moved) or any(
            one.process == lapse.process and one.begun_us <= over_us
            for one in case.by_token[first.token]
        ):
            # The process held the message while its lease lasted: to claim or postpone it, or in a
            # handler.
            return lapse
    return None


def _is_unknown(case: Case, first: Delivery, second: Delivery) -> bool:
    if _was_moved_anew(case, first, second):
        return True
    begun_us, until_us = first.begun_us, second.begun_us
    # A process may have held the row that the message had before.
    written = case.moved_between(first.token, begun_us - case.lease_us, until_us)
    if any(
        w.row.id in case.unknown_moved and (w.at_us > begun_us or w.row.id == second.row.id)
        for w in written
    ):
        return True
    came, had = (case.history.written[one.row.id] for one in (first, second))
    if came.row.id in case.unknown_moved and had.is_there(came.at_us):
        # The row arrived late, when the message had another row already.
        return True
    unknown = (*case.unknown_moves[first.token], *case.unknown_halves[first.token])
    return any(begun_us - case.lease_us <= us <= until_us for us in unknown)


def _was_moved_anew(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if the deliveries are of two rows, each made of the same row by a move.

    The outcome of a caller's first move was unknown. The row still existed, so it was moved again.
    Then the first move took effect after all, however late, beside the rows of the second move.
    """
    if not case.unknown_moves[first.token]:
        return False
    mine, other = (case.line_of(one.row.id) for one in (first, second))
    parted = sorted(
        (i for i in mine ^ other if case.history.came_from.get(i) in mine & other), key=birth_us
    )
    return (
        len(parted) == 2
        and parted[0] in case.unknown_moved
        and case.is_caller(case.history.written[parted[0]].sender)
    )


def _was_half_moved(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if the outcome of a caller's move was unknown, and both rows existed then.

    The delete, the second half of the move of a large message, was refused. The caller's next call
    changes the row that it knows, and leaves the other row: each is handed out.
    """
    first_line, second_line = (case.line_of(one.row.id) for one in (first, second))
    for row_id in first_line ^ second_line:
        new = case.history.written[row_id]
        old = case.source_of(new)
        if old is not None and any(
            new.is_there(us) and old.is_there(us)
            for one in case.by_token[first.token]
            if one.process == new.sender
            for us in one.unsure_us
        ):
            return True
    return False


def _was_kept_past_stop(case: Case, first: Delivery, until_us: int) -> bool:
    """True if the store kept the call that was to store an outcome past a shutdown's deadline."""
    begun_us, end_us = case.history.stops.get(first.process, (0, None))
    if first.ended_us is None or end_us is None or end_us > until_us:
        return False
    over_us = begun_us + case.deadline_us(first.process)
    sent_us = first.ended_us + _ANSWERED_US
    return sent_us <= over_us and any(
        since_us <= sent_us and over_us <= answered_us
        for since_us, answered_us in case.history.waits.get(first.process, ())
    )


def _was_left_halfway(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if a process that had the message before stopped between the halves of a move.

    The delete after the insert was refused at the process's deadline: each row is handed out.
    """
    for new in case.written(first.token):
        ended_us = case.history.stops.get(new.process, (0, None))[1]
        old = case.source_of(new)
        if old is None or ended_us is None or not new.at_us <= ended_us <= second.begun_us:
            continue
        failed = case.history.failed.get(new.process, ())
        if (
            any(new.at_us <= us <= ended_us for us in failed)
            and old.is_there(ended_us)
            and new.is_there(ended_us)
            and (_parts(case, first, second, old) or _parts(case, first, second, new))
        ):
            return True
    return False


def _were_put_back_together(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if the deliveries are of two rows that two redrives have made of one dead row."""
    mine, other = (
        {w.row.id for w in case.revived.get(one.token, ())} & case.line_of(one.row.id)
        for one in (first, second)
    )
    pairs = product(mine - other, other - mine)
    return any(case.put_back_together(first.token, *pair) for pair in pairs)


def _was_up(case: Case, first: Delivery, until_us: int) -> bool:
    """True if a claim ended unsettled, less than `CLAIM_MARGIN_MS` after its delivery ended.

    A member extends the claim of a handler that runs; `_was_not_moved_on` judges a claim that was
    not extended.
    """
    if first.kind == "receive":
        is_late = first.ended_us is None or (
            first.ended_us + CLAIM_MARGIN_MS * 1_000 > first.until_us - DRIFT_US
        )
        return is_late and first.until_us - DRIFT_US <= until_us
    return first.ended_us is not None and any(
        first.ended_us + CLAIM_MARGIN_MS * 1_000 > claim.row.due_ms * 1_000 >= first.ended_us
        and until_us <= (claim.deleted_us or until_us)
        and first.row.id in case.line_of(claim.row.id)
        for claim in case.claims_over(first.token, first.begun_us, until_us)
    )


def _was_not_moved_on(case: Case, first: Delivery, until_us: int) -> bool:
    """True if a handler's claim came due because its process was kept from extending it in time."""
    return any(
        claim.is_there(claim.row.due_ms * 1_000 - DRIFT_US)
        and claim.process == first.process
        and case.kept_up(claim.process, *case.last_half(claim))
        for claim in case.claims_over(first.token, first.begun_us, until_us)
    )


def _was_set_forward(case: Case, first: Delivery, until_us: int) -> bool:
    """True if a handler's claim came due early because the machine's clock was set forward."""
    return any(
        claim.sender == first.process and case.is_set(claim.at_us, claim.row.due_ms * 1_000)
        for claim in case.claims_over(first.token, first.begun_us, until_us)
    )


def _was_parked_late(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if a handler's claim was due when it was stored, because the store kept the write.

    A delivery that had ended by then is settled at once, unless its process is kept from that too.
    """
    if case.has_come_back(first.token, first.begun_us, second.begun_us):
        # A reader that found the claim due has buried it; a redrive made a new row from it.
        line = case.written(first.token)
    else:
        line = [case.history.written[row_id] for row_id in case.line_of(second.row.id)]
    claims = [
        written
        for written in line
        if written.row.claim is not None
        and written.sender == first.process
        and written.at_us > first.begun_us
    ]
    if not any(
        claim.row.due_ms * 1_000 - DRIFT_US < claim.at_us
        and case.kept_up(first.process, case.born_us(claim.row.id), claim.at_us)
        for claim in claims
    ):
        return False
    came_us = max(claim.at_us for claim in claims)
    runs_on = first.ended_us is None or first.ended_us > came_us
    # Otherwise the process must live until it has the answer to the park.
    return runs_on or case.kept_up(first.process, came_us + _ANSWERED_US, second.begun_us)


def _was_moved_to_now(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if the writer of the first delivery's row moved the row to now.

    A writer does so if its answer came late, because readers may have missed the row. It does not
    see the first delivery, which was not settled by then, or whose settle was under way.
    """
    new = case.history.written[second.row.id]
    while (source := case.source_of(new)) is not None and source.row.id != first.row.id:
        new = source
    if source is None or not repairs(case, source, new):
        return False
    planned_us = case.born_us(new.row.id)
    ended_us = planned_us if first.ended_us is None else first.ended_us
    return planned_us <= ended_us + COPY_US or case.kept_up(first.process, ended_us, planned_us)


def _was_settled_past_its_time(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if the first delivery was of a due claim that its holder was just moving.

    The holder settled the claim in time, and the store kept the write until after the due. A reader
    found the claim meanwhile, and could not see the move.
    """
    due_us, line = first.row.due_ms * 1_000, case.line_of(second.row.id)
    return first.row.claim is not None and any(
        case.history.came_from.get(moved.row.id) == first.row.id
        and moved.row.id in line
        and case.born_us(moved.row.id) <= due_us <= moved.at_us
        and first.begun_us <= moved.at_us + COPY_US
        and case.kept_up(moved.sender, due_us, due_us)
        for moved in case.moved_between(first.token, due_us, second.begun_us)
    )


def repaired_rows(case: Case, put: Put, until_us: int) -> list[Written]:
    """The rows that the process that put a message made by moves to now, up to a time."""
    return [
        written
        for written in case.written(put.letter.number)[1:]
        if written.process == put.process and written.at_us <= until_us
    ]
