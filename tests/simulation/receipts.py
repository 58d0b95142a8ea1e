"""The rule of receipts: which a caller may use to settle a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.lifecycle.settle import CLAIM_MARGIN_MS
from simulation.case import QUEUE, Breach, entry_of
from simulation.stories import clock_of, story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.case import Case
    from simulation.history import Delivery, Refusal, Written

TRIES = 3
"""How often a caller tries a call that the store fails."""


def refused(case: Case) -> Iterator[Breach]:
    """A receipt is accepted until a second before its claim ends, while its row is in its place."""
    for one in case.history.deliveries:
        for refusal in one.refusals:
            reason = _reason_to_refuse(case, one, refusal)
            if reason is None:
                yield Breach(
                    "refused",
                    f"a receipt of m{one.token} at {clock_of(case, refusal.us)} to {one.process}: "
                    f"{story(case, one.token)}",
                    one.token,
                )
        if one.outcome == "gave up" and _calls_failed(case, one) < TRIES:
            yield Breach(
                "refused",
                f"m{one.token} at {clock_of(case, one.settled_us)} to {one.process}, though the "
                f"store took its calls",
                one.token,
            )


def _reason_to_refuse(case: Case, one: Delivery, refusal: Refusal) -> str | None:
    """Why a receipt was stale; None if it was not."""
    written = case.history.written[refusal.row_id]
    us = refusal.us if written.is_there(refusal.us) else written.deleted_us or 0
    over_us = (written.row.due_ms - CLAIM_MARGIN_MS) * 1_000
    if us > over_us - case.history.slack_us[one.process]:
        return "its time was up"
    if written.is_there(refusal.us):
        return None
    if any(us <= refusal.us for us in one.unsure_us):
        return "its caller was not told what had become of it"
    if case.is_purged(one.token, us):
        return "purged"
    ended_us, _ = case.history.ended.get((QUEUE, entry_of(one.row)), [(1 << 62, "")])[0]
    if ended_us <= us:
        return "ended, as the ledger says"
    return "repaired" if _is_repaired(case, written) else None


def _is_repaired(case: Case, written: Written) -> bool:
    """True if the writer of a row moved it to now, because it came too late for its minute."""
    late_us = case.late_us(written.row.shard.minute)
    return written.deleted_by == written.process and late_us < (written.deleted_us or 0)


def _calls_failed(case: Case, one: Delivery) -> int:
    failed = case.history.failed.get(one.process, ())
    return sum(one.settled_us <= us <= (one.ended_us or 0) for us in failed)
