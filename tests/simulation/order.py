"""Whether each group was delivered one at a time, in order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from simulation.case import DRIFT_US, Breach, Case, entry_of
from simulation.stories import clock_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.model.shard import Shard
    from simulation.history import Delivery, Put, Written

_IN_TIME_US = 250_000
"""How long after its due a message may be stored, and still come in order."""
_TOGETHER_US = 100_000
"""How long those moves take, at the most, by which a group is put off."""
_ROUNDED_US = 1_000
"""A due is in milliseconds."""
_NEVER_US = 1 << 62
_WAITS_AGAIN = {
    "handler": ("retry", "raise", "snooze"),
    "receive": ("retry", "raise", "snooze", "ignore"),
}
"""Outcomes after which a message holds its group until its next attempt, or until it is over."""


def ordered(case: Case) -> Iterator[Breach]:
    """Messages of a group run one at a time, in the order of their first due."""
    groups: dict[str, list[Put]] = defaultdict(list)
    for put in case.history.puts.values():
        letter = put.letter
        if letter.group is not None and put.outcome == "acked" and case.by_token[letter.number]:
            groups[letter.group].append(put)
    for puts in groups.values():
        yield from _overlaps(case, puts)
        yield from _inversions(case, puts)
        yield from _overtakings(case, puts)


def _overlaps(case: Case, puts: list[Put]) -> Iterator[Breach]:
    """Two at once: nothing of a group begins while another of it is in anybody's hand."""
    # The next may begin in the very instant in which the one before has ended.
    ones = sorted(
        (one for put in puts for one in case.by_token[put.letter.number]),
        key=lambda one: case.place_of[id(one)],
    )
    held: list[Delivery] = []
    for second in ones:
        held = [one for one in held if _held_until_us(case, one, second) > second.begun_us]
        for first in held:
            is_other = first.token != second.token and not _is_let_go(case, first, second)
            is_other = is_other and not _came_along(case, first, second)
            if not is_other or _lay_behind(case, first, second) or _lay_behind(case, second, first):
                continue
            if not _group_is_excused(case, first, second):
                yield Breach(
                    "ordered",
                    f"m{second.token} began at {clock_of(case, second.begun_us)} while "
                    f"m{first.token} of its group ran",
                    second.token,
                )
        # What is delivered again, goes by that: whether it may be, `duplicated` judges.
        held = [*(one for one in held if one.token != second.token), second]


def _came_along(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether a caller got the first along with the second, and after it, in one call.

    It may settle them in any order: so the second may come again while it still has the first.
    """
    return any(_is_of_one_call(first, one) for one in case.by_token[second.token])


def _is_of_one_call(one: Delivery, other: Delivery) -> bool:
    return one.kind == other.kind == "receive" and (one.process, one.begun_us) == (
        other.process,
        other.begun_us,
    )


def _lay_behind(case: Case, one: Delivery, other: Delivery) -> bool:
    """Whether one was put so late that the other's reader had read past it, and never had it.

    Another who takes up their lane comes upon it, in a shard that was let go before. Of the newer
    one that is the reader's it knows only where something is due there; and one at a time is
    promised of what is stored in time.
    """
    late, beside = one.row.shard, other.row.shard
    is_late = (
        one.row.first is None
        and case.history.written[one.row.id].at_us > one.row.due_ms * 1_000 + _IN_TIME_US
    )
    if not is_late or one.process == other.process or late.minute >= beside.minute:
        return False
    # Whoever takes the newer one afterwards looks whether the older one is another's.
    taken_us, name = _last_take(case, late, one)
    held_us, holder = _last_take(case, beside, other)
    return (name, holder) == (one.process, other.process) and held_us <= taken_us


def _last_take(case: Case, shard: Shard, one: Delivery) -> tuple[int, str]:
    """When a shard's lease was taken last before a delivery, and by whom."""
    takes = [(us, name) for us, name, _ in case.leases_of[shard] if us <= one.begun_us]
    return takes[-1] if takes else (0, "")


def _held_until_us(case: Case, one: Delivery, second: Delivery) -> int:
    """Until when its group waits for a delivery: its handler's end, or what its caller said of it.

    What a caller says nothing of, or was not told of, is claimed until its time is up.
    """
    if one.kind != "receive":
        return _NEVER_US if one.ended_us is None else one.ended_us
    over_us = one.until_us - max(case.history.slack_us[second.process], _ROUNDED_US)
    is_told = bool(one.settled_us) and one.outcome not in ("ignore", "gave up")
    return min(one.settled_us, over_us) if is_told else over_us


def _is_let_go(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether the first of two may be in somebody's hand, and holds up nobody any more.

    So where it was parked, or is another's by now, and a purge reached it: its handler may run on,
    or a shutdown has left it behind; who meets its row deletes it, and those behind it go on. So
    where it was cancelled in hand, and its lane is another's since: of what is gone nothing says
    there that it runs. A handler that its consumer has left behind holds up nobody once what was
    parked for it has come due. A claim stays as it is, whatever becomes of its caller.
    """
    is_gone = not case.history.written[first.row.id].is_there(second.begun_us)
    if is_gone and case.is_purged(first.token, second.begun_us):
        return True
    if first.kind == "receive":
        return False
    if case.crashed(first.process, first.begun_us, second.begun_us):
        # Its handler has ended with it.
        return True
    if is_gone and _is_cancelled_and_passed_on(case, first, second):
        return True
    is_left = first.ended_us is None and case.stopped(
        first.process, first.begun_us, second.begun_us
    )
    if is_left and case.claims_over(first.token, first.begun_us, second.begun_us):
        return True
    return _has_run_out(case, first, second.begun_us)


def _is_cancelled_and_passed_on(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether a cancel had removed what a consumer had in hand, and its shard was let go then."""
    cancel, written = case.history.cancels.get(first.token), case.history.written[first.row.id]
    return (
        cancel is not None
        and cancel.begun_us <= (written.deleted_us or 0)
        and written.deleted_by == case.history.puts[first.token].process
        and first.process != second.process
        and any(first.begun_us < us <= second.begun_us for us in case.released[first.row.shard])
    )


def _has_run_out(case: Case, one: Delivery, until_us: int) -> bool:
    """Whether what was parked for a handler came due, for its consumer was kept from moving it on.

    It is to that message what a lease is to one that is not parked: here it was not renewed. One
    that was repaired, as it came too late, was due at once.
    """
    name = one.process
    return any(
        claim.process == name
        and claim.is_there(max(claim.row.due_ms * 1_000, claim.at_us))
        and (
            claim.at_us >= claim.row.due_ms * 1_000
            or case.troubled(name, claim.at_us, claim.row.due_ms * 1_000)
            or case.frozen(name, claim.at_us, claim.row.due_ms * 1_000)
        )
        for claim in case.claims_over(one.token, one.begun_us, until_us)
    )


def _inversions(case: Case, puts: list[Put]) -> Iterator[Breach]:
    first_of = {put.letter.number: case.by_token[put.letter.number][0] for put in puts}
    for early_put in puts:
        for late_put in puts:
            first, second = first_of[early_put.letter.number], first_of[late_put.letter.number]
            is_later = second.begun_us >= first.begun_us
            if _is_of_one_call(first, second):
                is_later = case.place_of[id(second)] >= case.place_of[id(first)]
            if is_later or not _comes_before(case, early_put, late_put):
                continue
            if _change_places(case, second, early_put, late_put):
                continue
            if _is_purged_away(case, early_put.letter.number, second.begun_us):
                continue
            if _came_late(case, first) or _comes_anew(case, first, second):
                continue
            if not _group_is_excused(case, second, first):
                yield Breach(
                    "ordered",
                    f"m{second.token} of group {early_put.letter.group} at "
                    f"{clock_of(case, second.begun_us)}, before m{first.token} at "
                    f"{clock_of(case, first.begun_us)}",
                    second.token,
                )
                return


def _change_places(case: Case, passing: Delivery, one: Put, other: Put) -> bool:
    """Whether one of two was put off before the other was put, and their reader was in need.

    It had no room in their lane, or was seconds behind, as it put that off or as it handed out what
    went first. What was there already keeps its order, but that who is seconds behind meets what
    was put off where that is, once no block speaks of it any more. What was put off together, to
    one due, keeps it wherever it is.
    """
    mine, theirs = (_put_off(case, put, passing.begun_us) for put in (one, other))
    for moved, since in ((mine, other), (theirs, one)):
        if any(
            (passing.in_need or written.in_need) and written.at_us <= since.begun_us
            for written in moved
        ):
            return True
    if not (mine and theirs):
        return passing.is_behind and bool(mine or theirs)
    is_together = (
        mine[-1].row.due_ms == theirs[-1].row.due_ms
        and abs(mine[-1].at_us - theirs[-1].at_us) < _TOGETHER_US
    )
    return passing.is_behind and not is_together


def _put_off(case: Case, put: Put, until_us: int) -> list[Written]:
    """The rows as which a message was put off until then, the last of them last."""
    rows = (w for w in case.written(put.letter.number) if w.row.first and w.at_us <= until_us)
    return sorted(rows, key=lambda written: written.at_us)


def _is_purged_away(case: Case, token: int, us: int) -> bool:
    """Whether a purge had removed a message by then, so that nothing behind it had to wait.

    Who has it in hand and knows of no purge yet may hand it out all the same: `purged` judges that.
    """
    return case.is_purged(token, us) and not case.rows_at(token, us)


def _comes_anew(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether the first had died by then, and came back with a due after the second's."""
    died_us = [w.at_us for w in case.deaths(first.token) if w.at_us <= second.begun_us]
    return (
        bool(died_us)
        and case.has_come_back(first.token, min(died_us), first.begun_us)
        and first.row.order > second.row.order
    )


def _came_late(case: Case, one: Delivery) -> bool:
    """Whether what was brought forward to now was stored only when polls had passed that.

    The store was slow with it; as with what is put so late, a sweep finds it.
    """
    written = case.history.written[one.row.id]
    if written.row.first is None or written.row.claim is not None:
        return False
    planned_us = max(case.born_us(one.row.id), one.row.due_ms * 1_000)
    return written.at_us > planned_us + _IN_TIME_US


def _overtakings(case: Case, puts: list[Put]) -> Iterator[Breach]:
    """What waits for its next attempt is not passed by those of its group behind it."""
    for put in puts:
        for failed, again in pairwise(case.by_token[put.letter.number]):
            if failed.outcome not in _WAITS_AGAIN.get(failed.kind, ()):
                continue
            since_us = _held_until_us(case, failed, again)
            for other in puts:
                if other is put or not _comes_before(case, put, other):
                    continue
                passing = case.by_token[other.letter.number][0]
                if (
                    since_us < passing.begun_us < again.begun_us
                    and not case.has_come_back(put.letter.number, failed.begun_us, again.begun_us)
                    and not _comes_anew(case, again, passing)
                    and (other.ended_us or 0) < failed.begun_us
                    # Who is seconds behind finds what was put off where it was not put since.
                    and not passing.is_behind
                    and not _group_is_excused(case, failed, again)
                ):
                    yield Breach(
                        "ordered",
                        f"m{passing.token} at {clock_of(case, passing.begun_us)} passed "
                        f"m{failed.token} of its group, which waited to be tried again",
                        passing.token,
                    )
                    return


def _comes_before(case: Case, one: Put, other: Put) -> bool:
    """Whether one of a group comes before another for certain, and was stored in time for it."""
    rows = case.rows
    if not rows[one.letter.number] or not rows[other.letter.number]:
        return False
    if _first_order(case, one) >= _first_order(case, other):
        return False
    # What is stored more than a quarter of a second after its due, as the README says, may be found
    # by the sweep of 5 s alone, and so after what was put since: that of 0.5 s comes so often, may
    # have been there just before, and does not reach back to it when it comes next.
    # And what is due may go before what is not there yet, or is put with a due that is over: that
    # comes when it is put.
    comes_us = case.history.written[rows[one.letter.number][0]].row.due_ms * 1_000
    is_over = comes_us > one.asked_us + _ROUNDED_US
    stored_us = max(one.ended_us or 0, comes_us if is_over else 0)
    # What is due later may have been read just before, by a clock that is a little ahead.
    follows_us = case.history.written[rows[other.letter.number][0]].row.due_ms * 1_000 - DRIFT_US
    if max(other.begun_us, follows_us) < (one.ended_us or 0):
        return False
    return stored_us <= min(one.asked_us + _IN_TIME_US, max(other.asked_us, other.begun_us))


def _first_order(case: Case, put: Put) -> tuple[int, bytes]:
    """The place of a message in its group, before it died and came back, if it did.

    Where the machine's clock was set back meanwhile, it has come back to an earlier one.
    """
    rows = [written.row for written in case.written(put.letter.number)]
    return min(row.order for row in rows if entry_of(row) == entry_of(rows[0]))


def _group_is_excused(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether a lease of one of them ran out meanwhile or had run out, or one was there twice.

    A call that is slow, a process that stands still, and one that dies break no order by
    themselves: whoever had a row of the group keeps it for as long as its lease lasts.
    """
    begun_us = min(first.begun_us, second.begun_us)
    until_us = max(first.begun_us, second.begun_us)
    tokens = first.token, second.token
    shards = {written.row.shard for token in tokens for written in case.written(token)}
    # By which clock each of them was due is another's order.
    put_us = min((case.history.puts[token].begun_us for token in tokens), default=begun_us)
    return (
        case.is_forked(shards, begun_us, until_us)
        or case.is_set(put_us, until_us)
        or any(
            lapse.since_us <= until_us and lapse.until_us >= begun_us
            for shard in shards
            for lapse in case.lapses[shard]
        )
        or any(
            new.at_us <= until_us and (old.deleted_us or until_us) >= begun_us
            for token in tokens
            for old, new in case.copies.get(token, ())
        )
        or any(_is_moved_away(case, token, begun_us, until_us) for token in tokens)
    )


def _is_moved_away(case: Case, token: int, after_us: int, until_us: int) -> bool:
    """Whether one who had handed a message out put it off when its shard was another's by then.

    It stood still, or was kept from the store, past its lease; the other may have had it in hand.
    """
    had = {(one.process, one.row.id): one.row.shard for one in case.by_token[token]}
    for written in case.moved_between(token, after_us, until_us):
        old = case.history.came_from.get(written.row.id, b"")
        shard = had.get((written.sender, old))
        if shard is None:
            continue
        holders = [name for us, name, _ in case.leases_of[shard] if us <= written.at_us]
        if written.sender in holders[:-1] and written.sender != holders[-1]:
            return True
    return False
