"""Whether each group was delivered one at a time, in order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from shardq.ids import birth_us
from simulation.case import AHEAD_US, Breach, Case, clock_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.history import Delivery, Put

_CRAMPED = 20
"""Rows in hand, over all lanes, that leave a group no room for its next."""
_IN_TIME_US = 250_000
"""How long after its due a message may be stored, and still come in order."""


def ordered(case: Case) -> Iterator[Breach]:
    """Messages of a group run one at a time, in the order of their first due."""
    groups: dict[tuple[str, int], list[Put]] = defaultdict(list)
    for put in case.history.puts.values():
        letter = put.letter
        if letter.group is not None and put.outcome == "acked" and case.by_token[letter.number]:
            groups[letter.group, letter.priority].append(put)
    for puts in groups.values():
        yield from _overlaps(case, puts)
        yield from _inversions(case, puts)
        yield from _overtakings(case, puts)


def _overlaps(case: Case, puts: list[Put]) -> Iterator[Breach]:
    """Two at once; not where the first was parked, or is another's by now, and a purge reached it.

    Its handler may run on, or a shutdown has left it behind: who meets its row deletes it, and
    those behind it go on. Nor where it was cancelled in hand, and its lane is another's since: of
    what is gone nothing says there that it runs. A handler that its consumer has left behind holds
    up nobody once what was parked for it has come due.
    """
    ones = sorted(
        (one for put in puts for one in case.by_token[put.letter.number]),
        key=lambda one: one.begun_us,
    )
    for first, second in pairwise(ones):
        if first.token == second.token or first.kind == "receive":
            continue
        if first.ended_us is not None and first.ended_us <= second.begun_us:
            continue
        if case.crashed(first.process, first.begun_us, second.begun_us):
            # Its handler has ended with it.
            continue
        is_let_go = not case.history.written[first.row.id].is_there(second.begun_us)
        if is_let_go and case.is_purged(first.token, second.begun_us):
            continue
        if is_let_go and _is_cancelled_and_passed_on(case, first, second):
            continue
        is_left = first.ended_us is None and case.stopped(
            first.process, first.begun_us, second.begun_us
        )
        if is_left and case.claims_over(first.token, first.begun_us, second.begun_us):
            continue
        if _has_run_out(case, first, second.begun_us):
            continue
        if not _group_is_excused(case, first, second):
            yield Breach(
                "ordered",
                f"m{second.token} began at {clock_of(case, second.begun_us)} while "
                f"m{first.token} of its group ran",
                second.token,
            )


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

    It is to that message what a lease is to one that is not parked: here it was not renewed.
    """
    name = one.process
    return any(
        claim.process == name
        and claim.is_there(claim.row.due_ms * 1_000)
        and (
            case.troubled(name, claim.at_us, claim.row.due_ms * 1_000)
            or case.frozen(name, claim.at_us, claim.row.due_ms * 1_000)
        )
        for claim in case.claims_over(one.token, one.begun_us, until_us)
    )


def _inversions(case: Case, puts: list[Put]) -> Iterator[Breach]:
    is_crowded = "crowded" in case.history.plan.kinds
    cramped = {m.name for m in case.history.plan.machines if m.prefetch <= _CRAMPED}
    first_of = {}
    for put in puts:
        ones = case.by_token[put.letter.number]
        first_of[put.letter.number] = ones[0]
    for early_put in puts:
        for late_put in puts:
            if not _comes_before(case, early_put, late_put):
                continue
            first, second = first_of[early_put.letter.number], first_of[late_put.letter.number]
            if (first.row.first or second.row.first) and (is_crowded or _lags(second)):
                # What a group has more of than its reader has room for is put off by parts, and
                # whoever lags behind them reads them when they come due, not in their order.
                continue
            if _is_purged_away(case, early_put.letter.number, second.begun_us):
                continue
            if _came_late(case, first):
                continue
            if _comes_anew(case, first, second):
                continue
            if is_crowded and second.process.split(".")[0] in cramped:
                # One row read ahead fills its lane, which is not read on to what was put since.
                continue
            if second.begun_us < first.begun_us and not _group_is_excused(case, second, first):
                yield Breach(
                    "ordered",
                    f"m{second.token} of group {early_put.letter.group} at "
                    f"{clock_of(case, second.begun_us)}, before m{first.token} at "
                    f"{clock_of(case, first.begun_us)}",
                    second.token,
                )
                return


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
    planned_us = max(birth_us(one.row.id), one.row.due_ms * 1_000)
    return written.at_us > planned_us + _IN_TIME_US


def _lags(one: Delivery) -> bool:
    """Whether a message was handed out so late that its lane was being caught up with."""
    return one.begun_us > one.row.order[0] * 1_000 + AHEAD_US


def _overtakings(case: Case, puts: list[Put]) -> Iterator[Breach]:
    """What waits for its next attempt is not passed by those of its group behind it."""
    if "crowded" in case.history.plan.kinds:
        return
    for put in puts:
        for failed, again in pairwise(case.by_token[put.letter.number]):
            if failed.kind != "handler" or failed.outcome not in ("retry", "raise", "snooze"):
                continue
            for other in puts:
                if other is put or not _comes_before(case, put, other):
                    continue
                passing = case.by_token[other.letter.number][0]
                if (
                    failed.settled_us < passing.begun_us < again.begun_us
                    and not case.has_come_back(put.letter.number, failed.begun_us, again.begun_us)
                    and (other.ended_us or 0) < failed.begun_us
                    and not _lags(passing)
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
    mine = min(case.history.written[i].row.order for i in rows[one.letter.number])
    theirs = min(case.history.written[i].row.order for i in rows[other.letter.number])
    if mine[0] >= theirs[0]:
        return False
    # What is stored more than a quarter of a second after its due, as the README says, may be found
    # by the sweep of 5 s alone, and so after what was put since: that of 0.5 s comes so often, may
    # have been there just before, and does not reach back to it when it comes next.
    stored_us = one.ended_us or 0
    # And what is due may go before what is not there yet.
    return stored_us <= min(one.asked_us + _IN_TIME_US, max(other.asked_us, other.begun_us))


def _group_is_excused(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether the lease of a shard that had one of them ran out meanwhile, or one was there twice.

    A call that is slow, a process that stands still, and one that dies break no order by
    themselves: whoever had a row of the group keeps it for as long as its lease lasts.
    """
    begun_us = min(first.begun_us, second.begun_us)
    until_us = max(first.begun_us, second.begun_us)
    tokens = first.token, second.token
    shards = {written.row.shard for token in tokens for written in case.written(token)}
    return any(
        lapse.since_us <= until_us and lapse.until_us >= begun_us
        for shard in shards
        for lapse in case.lapses[shard]
    ) or any(
        new.at_us <= until_us and (old.deleted_us or until_us) >= begun_us
        for token in tokens
        for old, new in case.copies.get(token, ())
    )
