"""The rule of copies: a message has a second row only where who wrote it could not know better."""

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
        # Of two rows that are there already each goes its way.
        begun = [pair for pair in case.copies[token] if case.rows_at(token, pair[1].at_us - 1) < 2]
        if not all(_copy_is_excused(case, *p) or _looked_together(case, *p) for p in begun):
            yield Breach("copied", f"m{token} has copies: {story(case, token)}", token)


def _copy_is_excused(case: Case, old: Written, new: Written) -> bool:
    """True if who wrote a second row could not know of the first, or not delete it."""
    name, end_us = new.process, old.deleted_us or case.history.ended_us
    # That a row came without an answer is no reason for it to stay when it is moved on.
    pair = {new.row.id} if case.source_of(new) is old else {old.row.id, new.row.id}
    if pair & case.unknown_moved:
        return True
    # A large one's delete follows its insert, again and again until it is stored.
    plan = case.history.plan
    is_large = len(new.row.body) + ROW_BYTES > plan.weather["move_bytes"]
    # What has a name moves step by step as well: its place is noted in between.
    is_large |= new.row.key is not None
    # So does that of one which goes to another queue, where its end is recorded in between.
    is_large |= "history" in plan.settings and old.row.shard.queue != new.row.shard.queue
    # Any other is moved at once: nothing can come between.
    if is_large and case.crashed(name, new.at_us, end_us):
        return True
    if new.row.shard.queue == DEAD and pair & case.unknown_burials:
        return True
    if overtaken(case, new) or _was_displaced(case, old, new):
        return True
    if name == LATE_WRITER and case.crashed(new.sender, case.born_us(new.row.id), new.at_us):
        # Whoever sent it, and died before it was answered, could not delete what it had moved.
        return True
    # From when it was to be written, long after its writer had looked, to when that was done.
    if case.frozen(name, case.born_us(new.row.id), end_us if is_large else new.at_us):
        return True
    if _is_put_back_twice(case, new):
        return True
    if not is_large or _is_buried_anew(case, new, end_us):
        return False
    if name == LATE_WRITER and (old.deleted_by == new.sender or _was_taken_over(case, old, new)):
        # Whoever sent it, and lives, sends the very same again, and then comes to the delete: or
        # finds that another has settled the message, since its lease was over.
        name = new.sender
        # It had waited for an answer by then, and pauses before it sends that.
        since_us = new.at_us - case.pause_us
        return case.frozen(name, new.at_us, end_us) or case.kept_up(name, since_us, end_us)
    return case.kept_up(name, new.at_us, end_us)


def _was_displaced(case: Case, old: Written, new: Written) -> bool:
    """True if a row by key took so long that its name was lost, and is carried out anew.

    It never runs, and is deleted when it comes due: whoever has the name may go by it until then.
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
    """True if two redrives put a message back, each of which had looked before the other wrote.

    They wrote at once, or the store kept the call of one up: what the other had made may have been
    moved on by then.
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
    """True if another ended what a row was made of, as the row was on its way to the store.

    Both had looked before the other's write could be seen, and each had a right to: the row was
    late, and its writer was moving it to now; or it came due, or the lease of its shard ran out, as
    the store, or a pause, kept up who was moving it; or it had run out, of who had it in hand; or a
    fork had released it, of which its holder did not know yet.
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
    """The rows as which one was moved on, by all who did."""
    token = case.token_of[source.row.id]
    came_from = case.history.came_from
    return [one for one in case.written(token) if came_from.get(one.row.id) == source.row.id]


def repairs(case: Case, source: Written, new: Written) -> bool:
    """True if a row was made of one that came too late, by who had written that."""
    return case.is_repair(source, new)


def _was_taken_over(case: Case, old: Written, new: Written) -> bool:
    """True if the lease of who planned a new row ran out, and the old one was another's to end."""
    planned_us, end_us = case.born_us(new.row.id), old.deleted_us or 0
    return old.deleted_by != new.sender and any(
        lapse.process == new.sender and planned_us <= lapse.until_us <= end_us
        for lapse in case.lapses[old.row.shard]
    )


def _had_been_taken_over(case: Case, old: Written, new: Written) -> bool:
    """True if who ended the old row had it in hand past its lease, when another planned the new."""
    name, planned_us = old.deleted_by, case.born_us(new.row.id)
    # To hand it out, or to claim it for a caller or put it off.
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
    """True if who buried a message did so once more, though its row was left only for a repeat.

    A caller may, who was told of the first that maybe it was not done; and anybody what it was
    handed out since, as which it had come back.
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
    """True if one whose lease had lapsed moved a row just as its new reader was moving it.

    A pause past the lease may leave a duplicate, and a store that keeps a call for so long is one
    to its caller. Both had looked before the other's write could be seen.
    """
    if old.process == new.process:
        return False
    # Who was second wrote at once, where no call of the lapsed one was kept meanwhile.
    is_second = new.at_us <= old.at_us + COPY_US and _had_lapsed(case, old, new)
    return is_second or _had_lapsed(case, new, old)


def _had_lapsed(case: Case, lapsed: Written, taken: Written) -> bool:
    """True if whoever wrote a row had had the message long before another took it over."""
    name, at_us = lapsed.process, max(lapsed.at_us, taken.at_us)
    # Each had it in hand, the lapsed one first; nothing else lets two move one row.
    token = case.token_of[lapsed.row.id]
    had = [one for one in case.by_token[token] if one.begun_us <= at_us]
    first_us = max((one.begun_us for one in had if one.process == name), default=at_us)
    # What has had all its attempts is buried by who takes it over, and not handed out.
    buried_us = taken.at_us if taken.row.shard.queue == DEAD else 0
    taken_us = max((one.begun_us for one in had if one.process == taken.process), default=buried_us)
    if taken_us < first_us + case.lapse_us:
        return False
    return any(lapse.process == name for lapse in case.ran_out(token, first_us, taken_us))
