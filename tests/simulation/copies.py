"""The rule of copies: a second row is written only by a process that cannot know of the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated.client import ROW_BYTES

from shardq.model.message import key_of
from simulation.case import COPY_US, DEAD, STEWARD, Breach
from simulation.history import LATE_WRITER
from simulation.stories import story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.case import Case
    from simulation.history import Written


def copied(case: Case) -> Iterator[Breach]:
    """A message has a second row only after a crash, a pause or an unknown write."""
    for token in sorted(case.copies):
        # Rows made of two rows that existed already are no new copies.
        begun = [pair for pair in case.copies[token] if case.rows_at(token, pair[1].at_us - 1) < 2]
        if not all(_copy_is_excused(case, *p) or _looked_together(case, *p) for p in begun):
            yield Breach("copied", f"m{token} has copies: {story(case, token)}", token)


def _copy_is_excused(case: Case, old: Written, new: Written) -> bool:
    """True if the writer of a second row could not know of the first, or could not delete it."""
    name, end_us = new.process, old.deleted_us or case.history.ended_us
    # In a move only the unknown outcome of the new row counts: the old row is known to its mover.
    pair = {new.row.id} if case.source_of(new) is old else {old.row.id, new.row.id}
    if pair & case.unknown_moved:
        return True
    # A large row is moved in two steps: an insert, then a delete, repeated until it is stored.
    plan = case.history.plan
    is_large = len(new.row.body) + ROW_BYTES > plan.weather["move_bytes"]
    # A message with a key moves in steps too: its place is noted between the steps.
    is_large |= new.row.key is not None
    # So does a message that leaves its queue with a history: its end is recorded in between.
    is_large |= "history" in plan.settings and old.row.shard.queue != new.row.shard.queue
    # All others are moved in one call, which no crash can divide.
    if is_large and case.crashed(name, new.at_us, end_us):
        return True
    if new.row.shard.queue == DEAD and pair & case.unknown_burials:
        return True
    if overtaken(case, new) or _was_displaced(case, old, new):
        return True
    if name == LATE_WRITER and case.crashed(new.sender, case.born_us(new.row.id), new.at_us):
        # The sender of this late write died before the answer, so it could not delete the old row.
        return True
    # A pause from the planning of the new row to the end of the move.
    if case.frozen(name, case.born_us(new.row.id), end_us if is_large else new.at_us):
        return True
    if _is_put_back_twice(case, new):
        return True
    if not is_large or _is_buried_anew(case, new, end_us):
        return False
    if name == LATE_WRITER and (old.deleted_by == new.sender or _was_taken_over(case, old, new)):
        # A sender that lives repeats the same insert, then deletes the old row; or it finds that
        # another process settled the message after the sender's lease had ended.
        name = new.sender
        # The sender waited for the answer, and pauses before the repeat.
        since_us = new.at_us - case.pause_us
        return case.frozen(name, new.at_us, end_us) or case.kept_up(name, since_us, end_us)
    return case.kept_up(name, new.at_us, end_us)


def _was_displaced(case: Case, old: Written, new: Written) -> bool:
    """True if `old`, a put by key, arrived so late that it lost its key and the put was repeated.

    Such a row never runs. It stays until its due, because others may still refer to it.
    """
    key, weather = key_of(old.row), case.history.plan.weather
    gone_us = max(int(weather["late_us"]), int(weather["timeout_us"]))
    return (
        key is not None
        and key.generation > 1
        and old.sender == new.sender
        and old.sender in case.putters
        and case.source_of(new) is not old
        and old.at_us - case.born_us(old.row.id) > gone_us
        and not any(one.row.id == old.row.id for one in case.by_token[case.token_of[old.row.id]])
    )


def _is_put_back_twice(case: Case, new: Written) -> bool:
    """True if two redrives put a message back, because each read the dead row before a write.

    They wrote at the same time, or the store delayed the call of one: the row of the other may have
    been moved on by then.
    """
    token, planned_us = case.token_of[new.row.id], case.born_us(new.row.id)
    revived = case.revived.get(token, [])
    return new in revived and any(
        one.sender == new.sender == STEWARD
        and one.at_us < new.at_us
        and case.put_back_together(token, one.row.id, new.row.id)
        and (
            new.at_us <= one.at_us + COPY_US
            or case.kept_up(STEWARD, min(planned_us, one.at_us), new.at_us)
        )
        for one in revived
    )


def overtaken(case: Case, new: Written) -> bool:
    """True if another process ended the old row while the new one was on its way to the store.

    Neither could see the write of the other, and each had a right to move the old row. Its writer
    moves a late row to now. The row came due, or the mover's lease ran out, while the store or a
    pause delayed the mover. The other process had the row past its own lease. Or a fork had
    released the lease, which its holder did not know yet.
    """
    source = case.source_of(new)
    planned_us = case.born_us(new.row.id)
    if source is None or not planned_us <= (source.deleted_us or 0) < new.at_us:
        return False
    if repairs(case, source, new):
        return True
    due_us, gone_us = source.row.due_ms * 1_000, source.deleted_us or 0
    if planned_us <= due_us <= gone_us and case.kept_up(new.sender, due_us, due_us):
        return True
    if not (new.at_us <= gone_us + COPY_US or case.kept_up(new.sender, gone_us, gone_us)):
        return False
    return (
        any(repairs(case, source, one) for one in _made_of(case, source))
        or _was_taken_over(case, source, new)
        or _had_been_taken_over(case, source, new)
        or case.is_forked({source.row.shard}, planned_us, gone_us)
    )


def _made_of(case: Case, source: Written) -> list[Written]:
    """All rows that any process made of a row."""
    token = case.token_of[source.row.id]
    came_from = case.history.came_from
    return [one for one in case.written(token) if came_from.get(one.row.id) == source.row.id]


def repairs(case: Case, source: Written, new: Written) -> bool:
    """True if the writer of a row that came too late moved it: `new` was made of `source`."""
    return case.is_repair(source, new)


def _was_taken_over(case: Case, old: Written, new: Written) -> bool:
    """True if the lease of the mover ran out, and another process ended the old row."""
    planned_us, end_us = case.born_us(new.row.id), old.deleted_us or 0
    return old.deleted_by != new.sender and any(
        lapse.process == new.sender and planned_us <= lapse.until_us <= end_us
        for lapse in case.lapses[old.row.shard]
    )


def _had_been_taken_over(case: Case, old: Written, new: Written) -> bool:
    """True if a process ended the old row past its lease, after another planned the new row."""
    name, planned_us = old.deleted_by, case.born_us(new.row.id)
    # It began to hold the row at a hand-out, or at a claim or move of the row.
    had_us = [
        one.begun_us
        for one in case.by_token[case.token_of[old.row.id]]
        if one.process == name and one.row.id == old.row.id
    ]
    had_us += [case.born_us(one.row.id) for one in _made_of(case, old) if one.sender == name]
    first_us = min(had_us, default=planned_us)
    return name != new.sender and any(
        lapse.process == name and first_us <= lapse.until_us <= planned_us
        for lapse in case.lapses[old.row.shard]
    )


def _is_buried_anew(case: Case, new: Written, until_us: int) -> bool:
    """True if a process buried a message twice, though it knew of the first burial.

    It may bury again as a caller whose first burial had no certain outcome, or if the message came
    back from the dead and was handed to it in between.
    """
    if new.row.shard.queue != DEAD:
        return False
    failed = case.history.failed.get(new.sender, ()) if case.is_caller(new.sender) else ()
    token = case.token_of[new.row.id]
    revived = {back.row.id for back in case.revived.get(token, ())}
    back_us = [
        had.begun_us
        for had in case.by_token[token]
        if had.process == new.sender and not revived.isdisjoint(case.line_of(had.row.id))
    ]
    return any(
        one.row.shard.queue == DEAD
        and one.sender == new.sender
        and not any(new.at_us <= us <= case.born_us(one.row.id) for us in back_us)
        and not any(new.at_us <= us <= one.at_us for us in failed)
        for one in case.moved_between(token, new.at_us, until_us)
    )


def _looked_together(case: Case, old: Written, new: Written) -> bool:
    """True if a process without its lease moved a row at the same time as the new reader did.

    Neither could see the write of the other. A pause past the lease may leave a duplicate, and a
    call that the store delays as long is such a pause.
    """
    if old.process == new.process:
        return False
    # If no call of the process without a lease was delayed, the second row follows at once.
    is_second = new.at_us <= old.at_us + COPY_US and _had_lapsed(case, old, new)
    return is_second or _had_lapsed(case, new, old)


def _had_lapsed(case: Case, lapsed: Written, taken: Written) -> bool:
    """True if the writer of `lapsed` had the message long before the writer of `taken` did."""
    name, at_us = lapsed.process, max(lapsed.at_us, taken.at_us)
    # Two moves need two deliveries: first to the process whose lease lapsed, then to the other.
    token = case.token_of[lapsed.row.id]
    had = [one for one in case.by_token[token] if one.begun_us <= at_us]
    first_us = max((one.begun_us for one in had if one.process == name), default=at_us)
    # A message without attempts left is buried at the take-over, and not handed out.
    buried_us = taken.at_us if taken.row.shard.queue == DEAD else 0
    taken_us = max((one.begun_us for one in had if one.process == taken.process), default=buried_us)
    if taken_us < first_us + case.lapse_us:
        return False
    return any(lapse.process == name for lapse in case.ran_out(token, first_us, taken_us))
