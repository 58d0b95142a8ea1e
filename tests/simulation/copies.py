"""The rule of copies: a message has a second row only where who wrote it could not know better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.ids import birth_us
from shardq.testing.client import ROW_BYTES
from simulation.case import COPY_US, DEAD, LAPSE_US, LEASE_US, STEWARD, Breach, story
from simulation.history import LATE_WRITER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.case import Case
    from simulation.history import Written


def copied(case: Case) -> Iterator[Breach]:
    """A message has a second row only after a crash, a pause or an unknown write."""
    for token in sorted(case.copies):
        # Of two rows that are there already each goes its way.
        begun = [pair for pair in case.copies[token] if case.rows_at(token, pair[1].at_us - 1) < 2]
        if not all(_copy_is_excused(case, *p) or _looked_together(case, *p) for p in begun):
            yield Breach("copied", f"m{token} has copies: {story(case, token)}", token)


def _copy_is_excused(case: Case, old: Written, new: Written) -> bool:
    """Whether who wrote a second row could not know of the first, or not delete it."""
    name, end_us = new.process, old.deleted_us or case.history.ended_us
    pair = {old.row.id, new.row.id}
    if case.crashed(name, new.at_us, end_us) or pair & case.unknown_moved:
        return True
    if new.row.shard.queue == DEAD and pair & case.unknown_burials:
        return True
    if _was_settled_during_repair(case, new):
        return True
    if name == LATE_WRITER and case.crashed(new.sender, old.at_us, new.at_us):
        # Whoever sent it, and died before it was answered, could not delete what it had moved.
        return True
    if case.frozen(name, new.at_us - LEASE_US, end_us):
        return True
    sender = new.sender if name == LATE_WRITER else name
    if old.process == sender == STEWARD and case.kept_up(sender, old.at_us, new.at_us):
        # Two redrives, of which the store kept the first one's call until the second was through.
        return True
    # A large one's delete follows its insert, again and again until it is stored.
    plan = case.history.plan
    is_large = len(new.row.body) + ROW_BYTES > plan.weather["move_bytes"]
    # So does that of one which goes to another queue, where its end is recorded in between.
    is_large |= "history" in plan.settings and old.row.shard.queue != new.row.shard.queue
    if not is_large or _is_buried_anew(case, new, end_us):
        return False
    if name == LATE_WRITER and (old.deleted_by == new.sender or _was_taken_over(case, old, new)):
        # Whoever sent it, and lives, sends the very same again, and then comes to the delete: or
        # finds that another has settled the message, since its lease was over.
        name = new.sender
        if case.frozen(name, new.at_us, end_us):
            return True
    return case.kept_up(name, new.at_us, end_us)


def _was_settled_during_repair(case: Case, new: Written) -> bool:
    """Whether who had put a message was moving it to now, for it was late, as another settled it.

    Both had looked before the other's write could be seen.
    """
    put = case.history.puts.get(case.token_of[new.row.id])
    old = case.history.written.get(case.history.came_from.get(new.row.id, b""))
    return (
        put is not None
        and old is not None
        and old.process == new.process == put.process
        and old.deleted_by != new.process
        and birth_us(new.row.id) <= (old.deleted_us or 0) <= new.at_us
    )


def _was_taken_over(case: Case, old: Written, new: Written) -> bool:
    """Whether the lease of who planned a new row ran out, and the old one was another's to end."""
    planned_us, end_us = birth_us(new.row.id), old.deleted_us or 0
    return old.deleted_by != new.sender and any(
        lapse.process == new.sender and planned_us <= lapse.until_us <= end_us
        for lapse in case.lapses[old.row.shard]
    )


def _is_buried_anew(case: Case, new: Written, until_us: int) -> bool:
    """Whether who buried a message did so once more, though its row was left only for a repeat.

    A caller may, who was told of the first that maybe it was not done.
    """
    if new.row.shard.queue != DEAD:
        return False
    failed = case.history.failed.get(new.sender, ()) if case.is_caller(new.sender) else ()
    return any(
        one.row.shard.queue == DEAD
        and one.sender == new.sender
        and not any(new.at_us <= us <= one.at_us for us in failed)
        for one in case.moved_between(case.token_of[new.row.id], new.at_us, until_us)
    )


def _looked_together(case: Case, old: Written, new: Written) -> bool:
    """Whether one whose lease had lapsed moved a row just as its new reader was moving it.

    A pause past the lease may leave a duplicate, and a store that keeps a call for so long is one
    to its caller. Both had looked before the other's write could be seen.
    """
    if old.process == new.process:
        return False
    # Who was second wrote at once, where no call of the lapsed one was kept meanwhile.
    is_second = new.at_us <= old.at_us + COPY_US and _had_lapsed(case, old, new)
    return is_second or _had_lapsed(case, new, old)


def _had_lapsed(case: Case, lapsed: Written, taken: Written) -> bool:
    """Whether whoever wrote a row had had the message long before another took it over."""
    name, at_us = lapsed.process, max(lapsed.at_us, taken.at_us)
    # Each had it in hand, the lapsed one first; nothing else lets two move one row.
    token = case.token_of[lapsed.row.id]
    had = [one for one in case.by_token[token] if one.begun_us <= at_us]
    first_us = max((one.begun_us for one in had if one.process == name), default=at_us)
    # What has had all its attempts is buried by who takes it over, and not handed out.
    buried_us = taken.at_us if taken.row.shard.queue == DEAD else 0
    taken_us = max((one.begun_us for one in had if one.process == taken.process), default=buried_us)
    if taken_us < first_us + LAPSE_US:
        return False
    return any(lapse.process == name for lapse in case.ran_out(token, first_us, taken_us))
