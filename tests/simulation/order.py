"""The rule of order: each group is delivered one message at a time, in order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from simulation.allowances import of_several_places
from simulation.case import DRIFT_US, Breach, Case, entry_of
from simulation.stories import clock_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.history import Delivery, Put

_IN_TIME_US = 250_000
"""A message stored up to this long after its due is delivered in order."""
_ROUNDED_US = 1_000
"""A due is in whole milliseconds."""
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
    for name in of_several_places(case.history.plan):
        groups.pop(name, None)
    for puts in groups.values():
        yield from _overlaps(case, puts)
        yield from _inversions(case, puts)
        yield from _overtakings(case, puts)


def _overlaps(case: Case, puts: list[Put]) -> Iterator[Breach]:
    """Breaches: a message of a group began while another of the group was held."""
    # A message may begin in the same microsecond in which the last one ended.
    ones = sorted(
        (one for put in puts for one in case.by_token[put.letter.number]),
        key=lambda one: case.place_of[id(one)],
    )
    held: list[Delivery] = []
    for second in ones:
        held = [one for one in held if held_until_us(case, one, second) > second.begun_us]
        for first in held:
            is_other = first.token != second.token and not is_let_go(case, first, second)
            is_other = is_other and not came_along(case, first, second)
            if is_other and not group_is_excused(case, first, second):
                yield Breach(
                    "ordered",
                    f"m{second.token} began at {clock_of(case, second.begun_us)} while "
                    f"m{first.token} of its group ran",
                    second.token,
                )
        # The new delivery of a redelivered message counts; `duplicated` judges if it was allowed.
        held = [*(one for one in held if one.token != second.token), second]


def came_along(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if a caller got the first along with the second, and after it, in one call.

    The caller may settle them in any order, so one may be redelivered while it holds the other.
    """
    return any(_is_of_one_call(first, one) for one in case.by_token[second.token])


def _is_of_one_call(one: Delivery, other: Delivery) -> bool:
    return one.kind == other.kind == "receive" and (one.process, one.begun_us) == (
        other.process,
        other.begun_us,
    )


def held_until_us(case: Case, one: Delivery, second: Delivery) -> int:
    """Until when its group waits for a delivery: its handler's end, or what its caller said of it.

    Without an outcome of the caller, or with an uncertain one, until the claim ends.
    """
    if one.kind != "receive":
        return _NEVER_US if one.ended_us is None else one.ended_us
    over_us = one.until_us - max(case.history.slack_us[second.process], _ROUNDED_US)
    is_told = bool(one.settled_us) and one.outcome not in ("ignore", "gave up")
    return min(one.settled_us, over_us) if is_told else over_us


def is_let_go(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if the first of two messages may still be held, and blocks its group no more.

    A purge may delete its row while its handler runs. A handler blocks its group no more once its
    process has died or its claim has come due. A caller's claim blocks even after the caller died.
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

            if not group_is_excused(case, second, first):
                yield Breach(
                    "ordered",
                    f"m{second.token} of group {early_put.letter.group} at "
                    f"{clock_of(case, second.begun_us)}, before m{first.token} at "
                    f"{clock_of(case, first.begun_us)}",
                    second.token,
                )
                return


def _overtakings(case: Case, puts: list[Put]) -> Iterator[Breach]:
    """Breaches: a message passed an earlier one of its group that waited for its next attempt."""
    for put in puts:
        for failed, again in pairwise(case.by_token[put.letter.number]):
            if failed.outcome not in _WAITS_AGAIN.get(failed.kind, ()):
                continue
            since_us = held_until_us(case, failed, again)
            for other in puts:
                if other is put or not _comes_before(case, put, other):
                    continue
                passing = case.by_token[other.letter.number][0]
                if (
                    since_us < passing.begun_us < again.begun_us
                    and not case.has_come_back(put.letter.number, failed.begun_us, again.begun_us)
                    and (other.ended_us or 0) < failed.begun_us
                    and not group_is_excused(case, failed, again)
                ):
                    yield Breach(
                        "ordered",
                        f"m{passing.token} at {clock_of(case, passing.begun_us)} passed "
                        f"m{failed.token} of its group, which waited to be tried again",
                        passing.token,
                    )
                    return


def _comes_before(case: Case, one: Put, other: Put) -> bool:
    """True if one message of a group must be delivered before another: it was stored in time."""
    rows = case.rows
    if not rows[one.letter.number] or not rows[other.letter.number]:
        return False
    if _first_order(case, one) >= _first_order(case, other):
        return False
    # A row stored over 0.25 s after its due may come out of order, as the README says: the sweep of
    # 0.5 s may have run just before, and no more reach it the next time. Then only the sweep of 5 s
    # finds it. A due message also goes before one that is not stored yet. A put with a past due
    # counts as due when it is put.
    comes_us = case.history.written[rows[one.letter.number][0]].row.due_ms * 1_000
    is_over = comes_us > one.asked_us + _ROUNDED_US
    stored_us = max(one.ended_us or 0, comes_us if is_over else 0)
    # A clock that is a little ahead may have read the later message just before.
    follows_us = case.history.written[rows[other.letter.number][0]].row.due_ms * 1_000 - DRIFT_US
    if max(other.begun_us, follows_us) < (one.ended_us or 0):
        return False
    return stored_us <= min(one.asked_us + _IN_TIME_US, max(other.asked_us, other.begun_us))


def _first_order(case: Case, put: Put) -> tuple[int, bytes]:
    """The place of a message in its group before it died and was put back, if it was.

    A message put back after the machine's clock was set back has an earlier place.
    """
    rows = [written.row for written in case.written(put.letter.number)]
    return min(row.order for row in rows if entry_of(row) == entry_of(rows[0]))


def group_is_excused(case: Case, first: Delivery, second: Delivery) -> bool:
    """True if a lease of one of two messages ran out meanwhile, or before.

    A slow call, a pause or a crash alone breaks no order, because the holder keeps its rows as long
    as its lease lasts. A fork that releases the lease, or a set clock, is an excuse too.
    """
    begun_us = min(first.begun_us, second.begun_us)
    until_us = max(first.begun_us, second.begun_us)
    tokens = first.token, second.token
    shards = {written.row.shard for token in tokens for written in case.written(token)}
    # A clock set since the first put changes which of the two is due first.
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
