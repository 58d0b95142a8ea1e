"""The rule of audits made during a run: minute by minute, against what the observer saw.

```
       the audit begins       the audit ends
 ───────────────┬───────────────────┬──────────►
 put before: counted                put after: not counted
             put, moved or ended between: either
```
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardq.inspection.audit import Balance, MisfitKind
from shardq.model import ids
from shardq.stores.store import MINUTE_US
from simulation.case import QUEUE, Breach, Case, entry_of
from simulation.stories import clock_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardq.inspection.audit import Audit
    from simulation.history import Look, Written

_NEVER_US = 1 << 62
_FATES = ("acked", "dead", "forwarded", "cancelled", "expired", "purged")
_OPEN = "waiting and in flight"


@dataclass
class _Bounds:
    """The least and the most messages of each fate that an audit may have counted in a minute."""

    least: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)

    def count(self, name: str, *, surely: bool, maybe: bool) -> None:
        self.least[name] += surely
        self.most[name] += maybe


def accounted(case: Case) -> Iterator[Breach]:
    """Each minute's balance was true at some time of the audit, and lost messages are named."""
    for look in case.history.looks:
        bounds = _bounds(case, look)
        found = {
            round(moment.timestamp() * 1e6) // MINUTE_US: balance
            for moment, balance in look.audit.minutes
        }
        for minute in sorted(bounds.keys() | found.keys()):
            balance = found.get(minute, Balance())
            for name in ("put", *_FATES, _OPEN, "in_flight", "resurrected", "unrecorded"):
                count = (
                    balance.waiting + balance.in_flight if name == _OPEN else getattr(balance, name)
                )
                least, most = bounds[minute].least[name], bounds[minute].most[name]
                if not least <= count <= most:
                    yield Breach(
                        "accounted",
                        f"{count} {name} of minute {minute} by the audit of {look.audit.queue} at "
                        f"{clock_of(case, look.begun_us)}, and {least} to {most} there were",
                    )
        yield from _misnamed(case, look)


def _misnamed(case: Case, look: Look) -> Iterator[Breach]:
    """Breaches: messages that are lost but not named by an audit, or named but not lost."""
    audit: Audit = look.audit
    dropped = case.history.dropped if audit.queue == QUEUE else {}
    dropped = {i: us for i, us in dropped.items() if case.history.is_audited(audit, i)}
    named = {misfit.id for misfit in audit.misfits if misfit.kind is MisfitKind.LOST}
    surely = {ids.text(row_id) for row_id, us in dropped.items() if us <= look.begun_us}
    maybe = {ids.text(row_id) for row_id, us in dropped.items() if us <= look.ended_us}
    if not surely <= named <= maybe or audit.total.lost != len(named):
        yield Breach(
            "accounted",
            f"{sorted(named)} and {audit.total.lost} lost by the audit of {audit.queue} at "
            f"{clock_of(case, look.begun_us)}, and {sorted(surely)} to {sorted(maybe)} were",
        )


def _bounds(case: Case, look: Look) -> dict[int, _Bounds]:
    """Minute in which messages entered -> the counts that an audit may show for it."""
    history, queue = case.history, look.audit.queue
    begun_us, ended_us = look.begun_us, look.ended_us
    rows: dict[bytes, list[Written]] = defaultdict(list)
    for written in history.written.values():
        if written.row.shard.queue == queue:
            rows[entry_of(written.row)].append(written)
    entered = {row_id: us for (name, row_id), us in history.entered.items() if name == queue}
    ends = {row_id: each for (name, row_id), each in history.ended.items() if name == queue}
    bounds: dict[int, _Bounds] = defaultdict(_Bounds)
    for row_id in rows.keys() | entered.keys() | ends.keys():
        if not history.is_audited(look.audit, row_id):
            continue
        here = bounds[ids.birth_us(row_id) // MINUTE_US]
        put_us = entered.get(row_id, _NEVER_US)
        end_us, _ = ends[row_id][0] if row_id in ends else (_NEVER_US, "")
        fates = _fates(ends.get(row_id, ()), begun_us, ended_us)
        was_put, is_put = put_us <= begun_us, put_us <= ended_us
        had_ended, has_ended = end_us <= begun_us, end_us <= ended_us
        lost_us = history.dropped.get(row_id, _NEVER_US)
        is_purged = queue == QUEUE and any(case.may_be_purged(ids.birth_us(row_id), ended_us))
        there = [w for w in rows[row_id] if _is_there(w, begun_us, ended_us)]
        stays = any(w.is_there(begun_us) and w.is_there(ended_us) for w in there)
        may_wait = is_put and not had_ended and lost_us > begun_us
        waits = was_put and not has_ended and not is_purged and lost_us > ended_us
        claims = [w.row.claim is not None for w in there]
        here.count("put", surely=was_put, maybe=is_put)
        for name in _FATES:
            here.count(
                name,
                surely=was_put and had_ended and fates == {name},
                maybe=is_put
                and (name in fates or (name == "purged" and is_purged and not had_ended)),
            )
        here.count(_OPEN, surely=waits, maybe=may_wait)
        here.count(
            "in_flight", surely=waits and stays and all(claims), maybe=may_wait and any(claims)
        )
        here.count("resurrected", surely=False, maybe=has_ended and bool(there))
        here.count("unrecorded", surely=False, maybe=not was_put and (has_ended or bool(there)))
    return bounds


def _fates(ends: Sequence[tuple[int, str]], begun_us: int, ended_us: int) -> set[str]:
    """The fates that the ledger showed for a message at some moment of a stretch of time.

    An earlier end may reach the ledger late. It replaces the end that an audit may have counted.
    """
    over = [fate for us, fate in ends if us <= begun_us]
    return {*over[-1:], *(fate for us, fate in ends if begun_us < us <= ended_us)}


def _is_there(written: Written, begun_us: int, ended_us: int) -> bool:
    """True if a row was there at some moment of a stretch of time."""
    gone_us = written.deleted_us
    return written.at_us <= ended_us and (gone_us is None or gone_us > begun_us)
