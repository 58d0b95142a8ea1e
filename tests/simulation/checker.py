"""The rules, judged by the history of a run: pure functions that see nothing else of the run.

Each rule yields its breaches. A duplicate needs a cause that the README allows, among the events of
the message and of the processes that held it. Causes are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardq.model.message import read_headers
from shardq.model.shard import FIRST_GROUP_LANE
from simulation.accounts import accounted
from simulation.books import balanced, finished, kept, lost, repaired, unswept, vanished
from simulation.case import (
    DEAD,
    DRIFT_US,
    HEALER_PREFETCH,
    Breach,
    Case,
    leased_as,
    token_of,
)
from simulation.copies import copied
from simulation.firings import firings
from simulation.keys import keys
from simulation.lateness import late, stuck
from simulation.limits import limited
from simulation.order import ordered
from simulation.receipts import refused
from simulation.repeats import cause_of, duplicated, in_the_way
from simulation.shares import shared
from simulation.steering import cancelled, paused, purged
from simulation.stories import clock_of, shown, story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulation.history import Delivery, History, Written

_ROUNDED_US = 1_000
"""A due is in whole milliseconds, while a clock may be set between two."""


@dataclass
class Verdict:
    """The result of the checker: breaches, and causes of duplicates with their counts."""

    breaches: list[Breach] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)


def judge(history: History) -> Verdict:
    """Judge a run by all rules; one that was cut off as endless only by `told`."""
    case = Case(history)
    verdict = Verdict()
    # Some rules compare all rows of a message in pairs, and an endless run has too many.
    for rule in (told,) if history.is_cut else RULES:
        verdict.breaches += rule(case)
    verdict.causes = case.causes
    return verdict


# Kept -------------------------------------------------------------------------------------------


def undrained(case: Case) -> Iterator[Breach]:
    """At the end of a run each lane has a reader, and every due message is delivered."""
    history = case.history
    if history.drained:
        return
    for row in history.left[:5]:
        yield Breach("undrained", f"left in the queue: {shown(row)}", token_of(row.body))
    if not history.left:
        yield Breach("undrained", "handlers still run")


def invented(case: Case) -> Iterator[Breach]:
    """Only messages that were put are delivered, byte for byte."""
    for one in case.history.deliveries:
        put = case.history.puts.get(one.token)
        if put is None or put.body != one.body:
            yield Breach("invented", f"m{one.token}: {one.body!r} was never put", one.token)
        elif put.message_id not in {"", one.message_id} and not _is_unsure(case, one.token):
            yield Breach(
                "invented", f"m{one.token} is {one.message_id}, not {put.message_id}", one.token
            )
        elif one.headers != _headers_of(case, one.token):
            yield Breach("invented", f"m{one.token} has headers {one.headers}", one.token)
    for row in case.history.dead:
        headers = {k: v for k, v in read_headers(row).items() if k == "number"}
        if headers != ({"number": str(token_of(row.body))} if token_of(row.body) % 7 == 0 else {}):
            yield Breach("invented", f"dead m{token_of(row.body)} has headers {headers}")


def _is_unsure(case: Case, token: int) -> bool:
    """True if a put by key may have stored its message twice: its caller knows only one id."""
    return any(call.token == token and call.is_unsure for call in case.history.errands.values())


def _headers_of(case: Case, token: int) -> dict[str, str]:
    """The headers with which a message was put."""
    if token in case.history.runs:
        return case.history.runs[token].headers
    return case.history.puts[token].letter.headers


def zombies(case: Case) -> Iterator[Breach]:
    """A deleted row stays deleted: no write brings it back, and no delete misses it."""
    for row in case.history.risen:
        yield Breach("zombie", f"a late write brought back {row.position}", token_of(row.body))
    for row in case.history.survivors:
        yield Breach("zombie", f"a delete passed by {row.position}", token_of(row.body))


# On time ----------------------------------------------------------------------------------------


def early(case: Case) -> Iterator[Breach]:
    """Nothing is handed out earlier before its due than clocks drift between measurements."""
    slack_us = case.history.slack_us
    for one in case.history.deliveries:
        due_us = one.row.due_ms * 1_000
        if one.kind == "receive":
            # The delivered row is the claim, whose own due is the end of the visibility.
            due_us = _claimed_due_us(case, one)
        put = case.history.puts.get(one.token)
        asked_us = put.asked_us if put is not None else 0
        ahead_us = slack_us[one.process] + (_ROUNDED_US if case.history.sets else 0)
        if one.begun_us < max(due_us, asked_us) - ahead_us:
            early_us = max(due_us, asked_us) - one.begun_us
            yield Breach("early", f"m{one.token} by {early_us} us at {one.process}", one.token)


def _claimed_due_us(case: Case, one: Delivery) -> int:
    """The due of the row that a caller claimed, epoch microseconds."""
    claim = case.history.written[one.row.id]
    source = case.source_of(claim)
    while source is not None and source.row.claim and case.is_repair(source, claim):
        # A claim that came late was moved to now: still the same claim.
        claim, source = source, case.source_of(source)
    return 0 if source is None else source.row.due_ms * 1_000


# Once -------------------------------------------------------------------------------------------


def fenced(case: Case) -> Iterator[Breach]:
    """Nothing is handed out without a lease, and no lease is released while a handler needs it.

    A process whose fork released its lease hands out until its next renewal is refused.
    """
    for one in case.history.deliveries:
        if not (one.fenced or _is_forked(case, one)):
            yield Breach(
                "fenced",
                f"m{one.token} handed out by {one.process} at {clock_of(case, one.begun_us)} "
                f"without a lease of {one.row.shard}",
                one.token,
            )
    for us, process, what, shard, _ in case.history.leases:
        if what != "released":
            continue
        for one in case.ran_in.get(shard, ()):
            is_its = one.process == process and one.kind == "handler"
            is_running = is_its and one.begun_us <= us < (one.ended_us or us + 1)
            if is_running and case.history.written[one.row.id].is_there(us):
                yield Breach(
                    "fenced",
                    f"{shard} was released at {clock_of(case, us)} by {process}, "
                    f"where m{one.token} runs",
                    one.token,
                )


def _is_forked(case: Case, one: Delivery) -> bool:
    """True if a fork released the lease of a delivery, and its process need not know that yet."""
    return any(
        (fork.process, fork.shard) == (one.process, leased_as(one.row.shard))
        and fork.us <= one.begun_us <= case.noticed_us(fork)
        for fork in case.history.forks
    )


# Attempts ---------------------------------------------------------------------------------------


def counted(case: Case) -> Iterator[Breach]:
    """Each delivery raises the attempt by one, except after a snooze, a shutdown or a crash."""
    for token, ones in case.by_token.items():
        for place, one in enumerate(ones):
            if one.attempt < 1 or one.attempt > case.attempts:
                yield Breach("counted", f"m{token} has attempt {one.attempt}", token)
            before = _last_of_its_line(case, ones[:place], one)
            wanted = {1} if before is None else _attempts_after(case, before, one)
            if before is None and _is_edited(case, token):
                # An edited message goes on with the attempts of its former body.
                continue
            if wanted is None:
                continue
            # An attempt is recorded before its delivery begins; a consumer may die in between.
            since_us = _begins_us(case, one)
            since_us = since_us if before is None else max(since_us, before.begun_us)
            # Attempts spent after the row was deleted are not counted by it.
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


def _is_edited(case: Case, token: int) -> bool:
    """True if an edit gave an existing message this body."""
    return any(
        call.token == token and call.errand.does == "edit" for call in case.history.errands.values()
    )


def _begins_us(case: Case, one: Delivery) -> int:
    """When the row of a delivery last came back from the dead, which resets attempts; 0: never."""
    line = case.line_of(one.row.id)
    back_us = (w.at_us for w in case.revived.get(one.token, ()) if w.row.id in line)
    return max(back_us, default=0)


def _last_of_its_line(case: Case, ones: list[Delivery], one: Delivery) -> Delivery | None:
    """The last delivery before this one whose attempt this row counts.

    Deliveries of other copies do not count. Nor does a delivery of a former row that began after
    the move of that row was planned: a caller's move may take effect late.
    """
    line = case.line_of(one.row.id)
    made_us = {
        case.history.came_from.get(row_id): case.planned_by_us(row_id)
        for row_id in line
        if row_id in case.history.written
    }
    for had in reversed(ones):
        made_of_it_us = made_us.get(had.row.id, one.begun_us)
        if had.row.id in line and made_of_it_us >= had.begun_us - DRIFT_US:
            return had
    return None


def _attempts_after(case: Case, before: Delivery, one: Delivery) -> set[int] | None:
    """The attempts that a delivery may show after the last of its line; None: any."""
    number = before.attempt
    # The outcome may not be stored. Only a return from the dead gives a lower number.
    either = {number, number + 1}
    if _was_left_behind(case, before, one):
        return {number}
    line = (case.history.written[row_id].row.shard.queue for row_id in case.line_of(one.row.id))
    if DEAD in line and case.has_come_back(one.token, before.begun_us, one.begun_us):
        # Back from the dead it has all attempts again. If the last delivery still runs, it is
        # open which of the two was first.
        return {1} if before.ended_us is not None else None
    if (
        in_the_way(case, before, one)
        or before.outcome in ("stale", "gave up")
        or "maybe" in (before.outcome)
    ):
        if before.ended_us is None and case.stopped(before.process, before.begun_us, one.begun_us):
            begun_us, ended_us = case.history.stops[before.process]
            if ended_us is None or cause_of(case, before, one) != "interrupted by shutdown":
                return either
            failed = case.history.failed.get(before.process, ())
            # A row parked before the stop counts its attempt, and a failed call cannot undo it.
            is_kept = any(begun_us <= us <= ended_us for us in failed)
            # A parked row that was due by then is not moved: another process may have had it.
            is_kept |= any(
                claim.process == before.process
                and claim.is_there(max(claim.row.due_ms * 1_000, claim.at_us))
                and claim.at_us <= ended_us
                for claim in case.claims_over(one.token, before.begun_us, ended_us)
            )
            return either if is_kept else {number}
        return either
    if cause_of(case, before, one) is not None:
        return either
    if before.outcome in ("retry", "raise", "ignore"):
        return {number + 1}
    if before.outcome == "snooze":
        return {number}
    return either


def _was_left_behind(case: Case, before: Delivery, one: Delivery) -> bool:
    """True if a delivery is of the row that a clean shutdown parked while the handler still ran.

    Such a row does not count the interrupted attempt. A row that was planned before the shutdown,
    and only repeated during it, does.
    """
    name = before.process
    begun_us, ended_us = case.history.stops.get(name, (0, None))
    if before.kind != "handler" or ended_us is None:
        return False
    written = case.history.written[one.row.id]
    runs_on = before.ended_us is None or before.ended_us > written.at_us
    is_parked = written.row.claim is not None and begun_us <= written.at_us <= ended_us
    is_parked &= case.born_us(written.row.id) >= begun_us - DRIFT_US
    failed = (*case.history.failed.get(name, ()), *case.history.troubles.get(name, ()))
    return (
        runs_on
        and is_parked
        and written.process == name
        and not any(begun_us <= us <= ended_us for us in failed)
        and not case.frozen(name, begun_us, ended_us)
    )


def poisoned(case: Case) -> Iterator[Breach]:
    """A message that kills each consumer is dead after its attempts and a few free deliveries."""
    for one in case.history.deliveries:
        written = case.history.written[one.row.id]
        if not written.is_there(one.begun_us):
            # A row that is gone cannot record an attempt; `looked` judges this delivery.
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
        free = [one for one in killed if one.kind == "handler" and not case.is_recorded(one)]
        # Each copy of a message has all its attempts.
        lives = 1 + len(case.revived.get(token, ())) + len(case.copies.get(token, ()))
        # Only a delivery after a crash is recorded. So one unrecorded delivery is free for each
        # shard, and one more each time that a member released the shard.
        allowed = sum(
            1 + sum(us < ones[-1].begun_us for us in case.released[shard])
            for shard in {one.row.shard for one in free}
        )
        recorded = len(killed) - len(free) - case.forgotten(token)
        if recorded > lives * case.attempts or len(free) > allowed:
            yield Breach(
                "poisoned",
                f"m{token} has killed {len(killed)} consumers, {len(free)} unrecorded: "
                f"{story(case, token)}",
                token,
            )


def looked(case: Case) -> Iterator[Breach]:
    """A row that another process may have settled is reread before it is handed out."""
    for one in case.history.deliveries:
        name, gone_us = one.process, case.history.written[one.row.id].deleted_us
        if one.kind == "handler" and one.row.claim is not None:
            # The holder of a claim may move it late, so a claim is looked up before each hand-out.
            since_us, what = one.seen_us, "last looked for"
        elif gone_us is not None and _is_for_care(case, one):
            since_us, what = gone_us, "gone"
        else:
            continue
        if since_us > one.begun_us - case.looked_us:
            continue
        # A slow record of an attempt ends just before the hand-out, long after the look.
        troubles = case.history.troubles.get(name, ())
        is_slow = any(one.begun_us - DRIFT_US <= us <= one.begun_us for us in troubles)
        if not is_slow and not case.frozen(name, since_us, one.begun_us):
            yield Breach(
                "looked",
                f"m{one.token} at {clock_of(case, one.begun_us)} by {name}, though it was {what} "
                f"at {clock_of(case, since_us)}: {story(case, one.token)}",
                one.token,
            )


def _is_for_care(case: Case, one: Delivery) -> bool:
    """True if the consumer took the shard over from a process that may have died of this row."""
    taken_us = case.taken_over(one)
    if one.kind != "handler" or not taken_us or case.history.written[one.row.id].at_us > taken_us:
        return False
    # Rows that came due after the lease ended did not reach the dead process.
    ended_us = case.lease_ended(one.row.shard, taken_us)
    due_us = one.row.due_ms * 1_000
    # Messages of a group run one at a time, so only the first one after the take-over may
    # have killed its consumer.
    if one.row.shard.lane >= FIRST_GROUP_LANE and any(
        other.process == one.process
        and other.row.group == one.row.group
        and other.begun_us >= taken_us
        and case.place_of[id(other)] < case.place_of[id(one)]
        for other in case.history.deliveries
    ):
        return False
    if due_us > min(taken_us, ended_us) - DRIFT_US:
        return False
    rows = sum(
        written.row.due_ms * 1_000 <= taken_us + DRIFT_US
        and (written.deleted_us is None or written.deleted_us > taken_us)
        for written in case.on_shard[one.row.shard]
    )
    # With few rows due, each may have killed the consumer. Of more rows only some were in memory.
    return rows <= min([HEALER_PREFETCH, *(m.prefetch for m in case.history.plan.machines)])


def buried(case: Case) -> Iterator[Breach]:
    """A message is dead only if it was buried or had all its attempts, and only once."""
    seen: Counter[int] = Counter(token_of(row.body) for row in case.history.dead)
    for row in case.history.dead:
        token = token_of(row.body)
        headers = read_headers(row)
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
    """The most attempts that a message can have had since its put or return from the dead.

    They are its deliveries without stored snoozes, and the attempts that began no delivery. An
    edited message goes on with the attempts of its former body.
    """
    since_us = case.came_back_us(token, case.history.ended_us)
    begun = [one for one in case.by_token[token] if one.begun_us > since_us]
    spent = case.spent_between(token, since_us, case.history.ended_us)
    first = case.written(token)[0]
    is_kept = _is_edited(case, token) and first.at_us > since_us
    kept = first.row.attempt if is_kept else 0
    return sum(not _is_snoozed(case, one) for one in begun) + spent + kept


def _is_snoozed(case: Case, one: Delivery) -> bool:
    """True if a delivery ended with a snooze that its consumer stored in time.

    After a pause of the consumer another process may have buried the message first. And if the
    consumer dies between the halves of a large move, the old row stays and counts the delivery.
    """
    died_us = min((w.at_us for w in case.deaths(one.token) if w.at_us > one.begun_us), default=0)
    return one.outcome == "snooze" and any(
        written.sender == one.process
        and written.at_us >= (one.ended_us or 0)
        and (not died_us or (written.at_us < died_us and not _is_left(case, written, died_us)))
        for written in case.written(one.token)
    )


def _is_left(case: Case, written: Written, died_us: int) -> bool:
    """True if the old row of a move still existed when the message died."""
    source = case.source_of(written)
    return source is not None and source.is_there(died_us - 1)


def _has_excuse(case: Case, token: int) -> bool:
    """True if a process that buried a message again could not know that it was dead already."""
    died = case.deaths(token)
    if sum(w.row.id not in case.unknown_burials for w in died) <= 1:
        # At most one burial got an answer. The callers of the others could not know if the message
        # was dead, so it may have been buried again.
        return True
    first_us, until_us = min(w.at_us for w in died), max(w.at_us for w in died)
    since_us = first_us - case.lease_us
    unknown = (*case.unknown_moves[token], *case.unknown_halves[token])
    unsure = (us for one in case.by_token[token] for us in one.unsure_us)
    return (
        # A caller that does not know whether it has buried the message buries it again.
        any(first_us <= us <= until_us for us in unsure)
        or any(since_us <= us <= until_us for us in unknown)
        # A process that crashes while its burial is under way does not see it arrive.
        or any(
            case.crashed(w.sender, min(case.born_us(w.row.id), first_us), until_us) for w in died
        )
        or any(case.ran_out(token, since_us, until_us))
        # Each copy of a message dies; `copied` judges whether it may have copies.
        or token in case.copies
    )


def told(case: Case) -> Iterator[Breach]:
    """Breaches that the run itself noted, and errors that no caller should see."""
    for rule, text in case.history.notes:
        yield Breach(rule, text)


RULES: tuple[Callable[[Case], Iterator[Breach]], ...] = (
    told, lost, vanished, kept, unswept, repaired, undrained, finished, balanced, accounted,
    invented, zombies, early, late, stuck, duplicated, copied, fenced, counted, looked, poisoned,
    buried, ordered, limited, cancelled, purged, paused, refused, shared, keys,
    firings,
)  # fmt: skip
