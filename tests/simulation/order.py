"""True if each group was delivered one at a time, in order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from simulation.case import DRIFT_US, Breach, Case, entry_of
from simulation.stories import clock_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.history import Delivery, Put

_IN_TIME_US = 250_000
"""How long after its due a message may be stored, and still come in order."""
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
            if is_other and not _group_is_excused(case, first, second):
                yield Breach(
                    "ordered",
                    f"m{second.token} began at {clock_of(case, second.begun_us)} while "
                    f"m{first.token} of its group ran",
                    second.token,
                )
        # What is delivered again, goes by that: whether it may be, `duplicated` judges.
        held = [*(one for one in held if one.token != second.token), second]


def _came_along(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if a caller got the first along with the second, and after it, in one call.

    It may settle them in any order: so the second may come again while it still has the first.
    """
    return any(_is_of_one_call(first, one) for one in case.by_token[second.token])


def _is_of_one_call(one: Delivery, other: Delivery) -> bool:
    return one.kind == other.kind == "receive" and (one.process, one.begun_us) == (
        other.process,
        other.begun_us,
    )


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
    """True if the first of two messages may still be held, and blocks its group no more.

    A purge deletes its row while a handler runs. A handler ends with its process, and it blocks
    nothing once its claim came due. The claim of a caller stays, whatever becomes of the caller.
    """
    is_gone = not case.history.written[first.row.id].is_there(second.begun_us)
    if is_gone and case.is_purged(first.token, second.begun_us):
        return True
    if first.kind == "receive":
        return False
    return case.crashed(first.process, first.begun_us, second.begun_us) or _has_run_out(
        case, first, second.begun_us
    )


def _has_run_out(case: Case, one: Delivery, until_us: int) -> bool:
    """True if a handler's claim came due because its consumer could not postpone it."""
    name = one.process
    return any(
        claim.process == name
        and claim.is_there(max(claim.row.due_ms * 1_000, claim.at_us))
        and (
            case.troubled(name, claim.at_us, claim.row.due_ms * 1_000)
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

            if not _group_is_excused(case, second, first):
                yield Breach(
                    "ordered",
                    f"m{second.token} of group {early_put.letter.group} at "
                    f"{clock_of(case, second.begun_us)}, before m{first.token} at "
                    f"{clock_of(case, first.begun_us)}",
                    second.token,
                )
                return


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
                    and (other.ended_us or 0) < failed.begun_us
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
    """True if one of a group comes before another for certain, and was stored in time for it."""
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
    """True if a lease of one of two messages ran out meanwhile, or before.

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
    )
