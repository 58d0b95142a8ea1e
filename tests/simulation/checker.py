"""The rules, judged by the history of a run: pure functions, which know nothing of how it was run.

Each gives what breaks it. A duplicate has to have a cause that the README allows, found in what
happened to this message and to the processes that had it in hand; the causes are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardq.ids import birth_us
from shardq.message import read_headers
from shardq.settle import CLAIM_MARGIN_MS
from simulation.books import ACKED, balanced, finished, kept, lost, unswept, vanished
from simulation.case import (
    AHEAD_US,
    DEAD,
    DRIFT_US,
    HEALER_PREFETCH,
    LEASE_US,
    TOLD_US,
    Breach,
    Case,
    clock_of,
    shown,
    story,
    token_of,
)
from simulation.copies import copied
from simulation.lateness import late
from simulation.order import ordered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulation.history import Delivery, History, Put


@dataclass
class Verdict:
    """What the checker found."""

    breaches: list[Breach] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)


def judge(history: History) -> Verdict:
    """All rules."""
    case = Case(history)
    verdict = Verdict()
    for rule in RULES:
        verdict.breaches += rule(case)
    verdict.causes = case.causes
    return verdict


# Kept -------------------------------------------------------------------------------------------


def undrained(case: Case) -> Iterator[Breach]:
    """After healing, every lane has a reader, and everything that is due is delivered."""
    history = case.history
    if history.drained:
        return
    for row in history.left[:5]:
        yield Breach("undrained", f"left in the queue: {shown(row)}", token_of(row.body))
    if not history.left:
        yield Breach("undrained", "handlers still run")


def invented(case: Case) -> Iterator[Breach]:
    """Only what was put is delivered, equal to the byte."""
    for one in case.history.deliveries:
        put = case.history.puts.get(one.token)
        if put is None or put.body != one.body:
            yield Breach("invented", f"m{one.token}: {one.body!r} was never put", one.token)
        elif put.message_id and put.message_id != one.message_id:
            yield Breach(
                "invented", f"m{one.token} is {one.message_id}, not {put.message_id}", one.token
            )
        elif one.headers != ({"number": str(one.token)} if one.token % 7 == 0 else {}):
            yield Breach("invented", f"m{one.token} has headers {one.headers}", one.token)
    for row in case.history.dead:
        headers = {k: v for k, v in read_headers(row.headers).items() if k == "number"}
        if headers != ({"number": str(token_of(row.body))} if token_of(row.body) % 7 == 0 else {}):
            yield Breach("invented", f"dead m{token_of(row.body)} has headers {headers}")


def zombies(case: Case) -> Iterator[Breach]:
    """A row dies once: nothing brings it back, and no delete passes it by."""
    for row in case.history.risen:
        yield Breach("zombie", f"a late write brought back {row.position}", token_of(row.body))
    for row in case.history.survivors:
        yield Breach("zombie", f"a delete passed by {row.position}", token_of(row.body))


# On time ----------------------------------------------------------------------------------------


def early(case: Case) -> Iterator[Breach]:
    """Nothing is handed out before its due, but by what a clock drifts between measurements."""
    slack_us = case.history.slack_us
    for one in case.history.deliveries:
        due_us = one.row.due_ms * 1_000
        if one.kind == "receive":
            # Its row is the claim already.
            due_us = 0
        put = case.history.puts.get(one.token)
        asked_us = put.asked_us if put is not None else 0
        ahead_us = slack_us[one.process]
        if one.begun_us < max(due_us, asked_us) - ahead_us:
            early_us = max(due_us, asked_us) - one.begun_us
            yield Breach("early", f"m{one.token} by {early_us} us at {one.process}", one.token)


# Once -------------------------------------------------------------------------------------------


def duplicated(case: Case) -> Iterator[Breach]:
    """No delivery begins while or after another was the last, unless for an allowed cause."""
    for token, ones in case.by_token.items():
        for place, second in enumerate(ones[1:], 1):
            for first in ones[:place]:
                if not _in_the_way(case, first, second) or _came_back(case, first, second):
                    continue
                cause = _cause(case, first, second)
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


def _in_the_way(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether a second delivery should not have begun, for all that came of the first."""
    if first.outcome in ("ack", "bury"):
        return True
    if first.kind == "receive" and first.outcome in ("ignore", "stale", "gave up", "running"):
        return second.begun_us < first.until_us - max(case.history.slack_us[second.process], 1_000)
    if first.ended_us is None or first.ended_us > second.begun_us:
        return True
    if first.outcome in ("retry", "snooze") and first.delay_ms is not None:
        return second.begun_us < first.settled_us + first.delay_ms * 1_000 - DRIFT_US
    return False


def _came_back(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether a message had died after its first delivery, and was put back before its second."""
    return first.outcome not in ACKED and case.has_come_back(
        first.token, first.begun_us, second.begun_us
    )


def _cause(case: Case, first: Delivery, second: Delivery) -> str | None:
    """The allowed cause of a second delivery."""
    begun_us, until_us = first.begun_us, second.begun_us
    if case.crashed(first.process, begun_us, until_us):
        return "crash"
    lapse = _lapse(case, first, second)
    if lapse is not None:
        return lapse
    # It may have been in hand already as what it was before.
    written = case.moved_between(first.token, begun_us - LEASE_US, until_us)
    if any(
        w.row.id in case.unknown_moved and (w.at_us > begun_us or w.row.id == second.row.id)
        for w in written
    ):
        return "unknown write"
    came, had = (case.history.written[one.row.id] for one in (first, second))
    if came.row.id in case.unknown_moved and had.is_there(came.at_us):
        # It has come late, beside the row that its message had by then.
        return "unknown write"
    if any(begun_us - LEASE_US <= us <= until_us for us in case.unknown_moves[first.token]):
        return "unknown write"
    if any(new.at_us <= until_us for _, new in case.copies.get(first.token, ())):
        # Where that comes from, `copied` judges.
        return "copy left by a move"
    ended_us = case.history.stops.get(first.process, (0, None))[1]
    if case.interrupted(first) and ended_us is not None and ended_us <= until_us:
        return "interrupted by shutdown"
    if _was_up(case, first, until_us):
        return "its time was up"
    put = case.history.puts.get(first.token)
    if put is not None and _was_repaired(case, put, until_us):
        return "late write repaired"
    return None


def _was_up(case: Case, first: Delivery, until_us: int) -> bool:
    """Whether a claim was over by then, and not settled yet, that was to be a second before."""
    if first.kind == "receive":
        return first.until_us - 1_000 <= until_us
    return first.ended_us is not None and any(
        first.ended_us + CLAIM_MARGIN_MS * 1_000 > claim.row.due_ms * 1_000
        and until_us <= (claim.deleted_us or until_us)
        for claim in case.claims_over(first.token, first.begun_us, until_us)
    )


def _lapse(case: Case, first: Delivery, second: Delivery) -> str | None:
    """Why somebody's time was over before a second delivery began; None where it was not."""
    begun_us, until_us = first.begun_us, second.begun_us
    late: list[tuple[str, int]] = []
    # Whoever had it keeps others from it by a lease or a claim: either has to have run out.
    if _has_let_go(case, first, second):
        late.append((first.process, until_us))
    # One who looked, and then stood still for so long, brings back what was settled meanwhile.
    for w in case.moved_between(first.token, begun_us, until_us):
        late.append((w.process, w.at_us))
        had_us = case.had_us(first.token, w.process, begun_us)
        if had_us is not None and case.frozen(w.process, had_us, begun_us):
            # Or who had it, and has just come back.
            return "pause past the lease"
    written = case.history.written
    if second.kind == "receive" and second.until_us <= until_us:
        # Claimed before, and returned when that was over.
        late.append((second.process, until_us))
        begun_us = min(begun_us, written[second.row.id].at_us)
    had = written.get(first.row.id)
    if had is not None and had.deleted_us is not None and had.deleted_us <= begun_us:
        # It was in hand here when its last holder, whose lease was over, moved it all the same.
        late.append((had.deleted_by, had.deleted_us))
        begun_us = had.deleted_us - LEASE_US
    one, other = sorted((written[d.row.id] for d in (first, second)), key=lambda w: w.at_us)
    if one is not other and other.at_us < min(one.deleted_us or until_us, begun_us):
        # It was there twice already, by one who had looked before he stood still.
        late.append((other.process, other.at_us))
        begun_us = other.at_us - LEASE_US
    for name, us in late:
        if case.frozen(name, begun_us, us):
            return "pause past the lease"
        if case.troubled(name, begun_us, us):
            return "lease not renewed"
    return None


def _has_let_go(case: Case, first: Delivery, second: Delivery) -> bool:
    """Whether, between two deliveries, a lease of the first's shard began, or a claim ran out."""
    begun_us, until_us = first.begun_us, second.begun_us
    if any(begun_us <= us <= until_us for us in case.taken[first.row.shard]):
        return True
    return bool(case.claims_over(first.token, begun_us, until_us))


def _movers(case: Case, token: int, after_us: int, until_us: int) -> set[str]:
    """Who wrote or deleted rows of a message in a stretch of time."""
    names = set()
    for row_id in case.rows[token]:
        written = case.history.written[row_id]
        if after_us - LEASE_US <= written.at_us <= until_us:
            names.add(written.process)
        if written.deleted_us is not None and after_us <= written.deleted_us <= until_us:
            names.add(written.deleted_by)
    return names


def _was_repaired(case: Case, put: Put, until_us: int) -> bool:
    return any(
        case.history.written[i].process == put.process and case.history.written[i].at_us <= until_us
        for i in case.rows[put.letter.number]
        if i != (case.rows[put.letter.number] or [b""])[0]
    )


def fenced(case: Case) -> Iterator[Breach]:
    """Nothing is handed out under a lease that is over."""
    for one in case.history.deliveries:
        if not one.fenced:
            yield Breach(
                "fenced",
                f"m{one.token} handed out by {one.process} at {clock_of(case, one.begun_us)} "
                f"without a lease of {one.row.shard}",
                one.token,
            )


# Attempts ---------------------------------------------------------------------------------------


def counted(case: Case) -> Iterator[Breach]:
    """Attempts rise by one a delivery, but after a snooze, a shutdown or a crash."""
    for token, ones in case.by_token.items():
        for place, one in enumerate(ones):
            if one.attempt < 1 or one.attempt > case.attempts:
                yield Breach("counted", f"m{token} has attempt {one.attempt}", token)
            if one.token in case.copies:
                continue
            before = ones[place - 1] if place else None
            wanted = {1} if before is None else _attempts_after(case, before, one)
            if wanted is None:
                continue
            # One may be recorded and not begun, where its consumer dies in between.
            since_us = case.came_back_us(token, one.begun_us)
            since_us = since_us if before is None else max(since_us, before.begun_us)
            # What came after its row was gone, it does not know of.
            gone_us = case.history.written[one.row.id].deleted_us or one.begun_us + 1
            until_us = min(one.begun_us, gone_us - 1)
            extra = case.spent_between(token, since_us, until_us, one.row.id)
            if one.attempt - extra not in wanted:
                after = "first" if before is None else f"after {before.attempt} ({before.outcome})"
                yield Breach(
                    "counted",
                    f"m{token}: attempt {one.attempt}, {after}, {extra} in vain: "
                    f"{story(case, token)}",
                    token,
                )


def _attempts_after(case: Case, before: Delivery, one: Delivery) -> set[int] | None:
    number = before.attempt
    if _was_left_behind(case, before, one):
        return {number}
    if case.has_come_back(one.token, before.begun_us, one.begun_us):
        # With all its attempts again; which of two deliveries under way was first, is open.
        return {1} if before.ended_us is not None else None
    if (
        _in_the_way(case, before, one)
        or before.outcome in ("stale", "gave up")
        or "maybe" in (before.outcome)
    ):
        if before.ended_us is None and case.stopped(before.process, before.begun_us, one.begun_us):
            clean = case.history.stops[before.process][1] is not None
            return (
                {number}
                if clean and _cause(case, before, one) == ("interrupted by shutdown")
                else None
            )
        return None
    if _cause(case, before, one) is not None:
        # How it ended may not have been stored.
        return {number, number + 1}
    if before.outcome in ("retry", "raise", "ignore"):
        return {number + 1}
    if before.outcome == "snooze":
        return {number}
    return None


def _was_left_behind(case: Case, before: Delivery, one: Delivery) -> bool:
    """Whether a delivery is of the very row that a clean shutdown made of one that still ran."""
    name = before.process
    begun_us, ended_us = case.history.stops.get(name, (0, None))
    if before.kind != "handler" or ended_us is None:
        return False
    written = case.history.written[one.row.id]
    runs_on = before.ended_us is None or before.ended_us > written.at_us
    is_parked = written.row.claim is not None and begun_us <= written.at_us <= ended_us
    failed = (*case.history.failed.get(name, ()), *case.history.troubles.get(name, ()))
    return (
        runs_on
        and is_parked
        and written.process == name
        and not any(begun_us <= us <= ended_us for us in failed)
        and not case.frozen(name, begun_us, ended_us)
    )


def poisoned(case: Case) -> Iterator[Breach]:
    """A message that kills its consumer each time is dead after its attempts, and a bit."""
    for one in case.history.deliveries:
        written = case.history.written[one.row.id]
        if not written.is_there(one.begun_us):
            # What was settled just now bears no record; that it was looked for, `looked` judges.
            continue
        if not case.is_recorded(one) and _is_for_care(case, one):
            yield Breach(
                "poisoned",
                f"m{one.token} at {clock_of(case, one.begun_us)} by {one.process} without a record "
                f"though another had died with {one.row.shard}",
                one.token,
            )
    for token, ones in case.by_token.items():
        killed = [one for one in ones if case.crashed(one.process, one.begun_us, one.begun_us)]
        if token in case.copies:
            continue
        free = [one for one in killed if one.kind == "handler" and not case.is_recorded(one)]
        lives = 1 + len(case.revived.get(token, ()))
        # One is free for each row, and for each time that who took its shard over has left it as
        # it was: the next is none that comes after a crash.
        allowed = sum(
            1 + sum(us < ones[-1].begun_us for us in case.released[shard])
            for shard in {one.row.shard for one in free}
        )
        if len(killed) - len(free) > lives * case.attempts or len(free) > allowed:
            yield Breach(
                "poisoned",
                f"m{token} has killed {len(killed)} consumers, {len(free)} unrecorded: "
                f"{story(case, token)}",
                token,
            )


def looked(case: Case) -> Iterator[Breach]:
    """What another may have settled meanwhile is looked at again before it is handed out."""
    for one in case.history.deliveries:
        name, gone_us = one.process, case.history.written[one.row.id].deleted_us
        if (
            gone_us is None
            or gone_us > one.begun_us - case.looked_us
            or not _is_for_care(case, one)
        ):
            continue
        # A record that took long is told at its end, and it is handed out then.
        troubles = case.history.troubles.get(name, ())
        is_slow = any(one.begun_us - DRIFT_US <= us <= one.begun_us for us in troubles)
        if not is_slow and not case.frozen(name, gone_us, one.begun_us):
            yield Breach(
                "looked",
                f"m{one.token} at {clock_of(case, one.begun_us)} by {name}, though it was gone at "
                f"{clock_of(case, gone_us)}: {story(case, one.token)}",
                one.token,
            )


def _is_for_care(case: Case, one: Delivery) -> bool:
    """Whether its consumer has taken the shard over from one who may have died of this row."""
    taken_us = case.taken_over(one)
    if one.kind != "handler" or not taken_us:
        return False
    # What has come due since that one's lease was over, it has not had: the shard was nobody's.
    ended_us = case.lease_ended(one.row.shard, taken_us)
    if one.row.due_ms * 1_000 > min(taken_us, ended_us) - DRIFT_US:
        return False
    rows = sum(
        written.row.due_ms * 1_000 <= taken_us + DRIFT_US
        and (written.deleted_us is None or written.deleted_us > taken_us)
        for written in case.on_shard[one.row.shard]
    )
    # Who had died may have been any of them.
    return rows <= min([HEALER_PREFETCH, *(m.prefetch for m in case.history.plan.machines)])


def buried(case: Case) -> Iterator[Breach]:
    """Dead is what was buried, or had all its attempts, and only then."""
    seen: Counter[int] = Counter(token_of(row.body) for row in case.history.dead)
    for row in case.history.dead:
        token = token_of(row.body)
        headers = read_headers(row.headers)
        ones = case.by_token[token]
        put = case.history.puts.get(token)
        reason, attempts = headers["shardq-reason"], int(headers["shardq-attempts"])
        if put is not None and put.message_id and row.message_id != put.message_id:
            yield Breach("buried", f"m{token} is dead under another id", token)
        if reason == "as planned":
            if not any("bury" in one.outcome for one in ones):
                yield Breach("buried", f"m{token} was never buried", token)
        elif attempts != case.attempts:
            yield Breach("buried", f"m{token} died at {attempts}: {story(case, token)}", token)
        elif _attempts_of(case, token) < attempts:
            yield Breach("buried", f"m{token} died after {len(ones)} deliveries", token)
    for token, count in seen.items():
        if count > 1 and not _has_excuse(case, token):
            yield Breach("buried", f"m{token} is dead {count} times", token)


def _attempts_of(case: Case, token: int) -> int:
    """The most attempts that a message can have had since it came back from the dead, or was put.

    Those that came to a delivery, but not to a snooze that was stored; and those spent in vain.
    """
    since_us = case.came_back_us(token, case.history.ended_us)
    begun = [one for one in case.by_token[token] if one.begun_us > since_us]
    spent = case.spent_between(token, since_us, case.history.ended_us)
    return sum(not _is_snoozed(case, one) for one in begun) + spent


def _is_snoozed(case: Case, one: Delivery) -> bool:
    """Whether a delivery ended with a snooze, and its consumer came to store that."""
    return one.outcome == "snooze" and any(
        written.sender == one.process and written.at_us >= (one.ended_us or 0)
        for written in case.written(one.token)
    )


def _has_excuse(case: Case, token: int) -> bool:
    """Whether a message was there twice before it died, or who buried it could not know of that."""
    if any(
        DEAD not in (old.row.shard.queue, new.row.shard.queue)
        for old, new in case.copies.get(token, ())
    ):
        # Where that comes from, `copied` judges.
        return True
    died = case.deaths(token)
    if sum(w.row.id not in case.unknown_burials for w in died) <= 1:
        # A caller was not told that it had buried it: the message was still there, and died anew.
        return True
    died_us = [w.at_us for w in died]
    since_us, until_us = min(died_us) - LEASE_US, max(died_us)
    if any(since_us <= us <= until_us for us in case.unknown_moves[token]):
        return True
    names = _movers(case, token, min(died_us), until_us)
    names |= {one.process for one in case.by_token[token] if since_us <= one.begun_us <= until_us}
    return any(
        case.crashed(name, since_us, until_us)
        or case.frozen(name, since_us, until_us)
        or case.troubled(name, min(died_us), until_us)
        for name in names
    )


# Cancelled and purged ---------------------------------------------------------------------------


def cancelled(case: Case) -> Iterator[Breach]:
    """What was cancelled more than 2 s before its due is never delivered."""
    for token, cancel in case.history.cancels.items():
        put = case.history.puts[token]
        if cancel.outcome != "cancelled" or cancel.ended_us is None or put.row is None:
            continue
        if cancel.ended_us > put.row.due_ms * 1_000 - AHEAD_US - 20_000:
            continue
        after = [one for one in case.by_token[token] if one.begun_us > cancel.ended_us]
        if after and not _was_repaired(case, put, after[0].begun_us):
            yield Breach("cancelled", f"m{token} was delivered all the same", token)


def purged(case: Case) -> Iterator[Breach]:
    """Once a purge is known everywhere, what had entered before it is not delivered."""
    for purge in case.history.purges:
        if purge.ended_us is None or purge.before_us == 0:
            continue
        for one in case.history.deliveries:
            entered_us = birth_us(one.row.first or one.row.id)
            name = one.process
            known_us = _told_us(case, name, purge.ended_us)
            if one.begun_us <= known_us or entered_us >= purge.before_us:
                continue
            if case.frozen(name, one.begun_us - LEASE_US, one.begun_us) or case.troubled(
                name, one.begun_us, one.begun_us
            ):
                continue
            yield Breach("purged", f"m{one.token} was delivered after a purge", one.token)


def _told_us(case: Case, process: str, purged_us: int) -> int:
    """Until when a process may not know of a purge.

    It re-reads the settings between two steps, which each answer waited for in vain makes longer.
    """
    timeout_us = case.history.plan.weather["timeout_us"]
    told_us = purged_us + TOLD_US
    for us in sorted(set(case.history.failed.get(process, ()))):
        if purged_us - timeout_us <= us <= told_us:
            told_us += timeout_us
    return told_us


def told(case: Case) -> Iterator[Breach]:
    """What the run itself found out of place, and errors that nobody should see."""
    for rule, text in case.history.notes:
        yield Breach(rule, text)


RULES: tuple[Callable[[Case], Iterator[Breach]], ...] = (
    told, lost, vanished, kept, unswept, undrained, finished, balanced, invented, zombies, early,
    late, duplicated, copied, fenced, counted, looked, poisoned, buried, ordered, cancelled, purged,
)  # fmt: skip
