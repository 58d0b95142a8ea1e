"""The events of a run as text, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardq.model.message import Row
    from simulation.case import Case


def shown(row: Row) -> str:
    """A row as a line of text."""
    return str(row._replace(id=b"", first=None, body=row.body[:4]))


def clock_of(case: Case, us: int) -> str:
    """A time as text, counted from the world's begin."""
    start_us = case.history.healed_us - round(case.history.plan.active_s * 1e6)
    return f"{(us - start_us) / 1e6:.3f} s"


def story(case: Case, token: int) -> str:
    """The events of a message as text."""
    lines = []
    put = case.history.puts.get(token)
    if put is not None:
        lines.append((put.begun_us, f"put by {put.process} {put.outcome}"))
    for one in case.by_token[token]:
        lines.append((one.begun_us, f"{one.process} {one.kind} attempt {one.attempt}"))
        if one.ended_us is not None:
            lines.append((one.ended_us, f"{one.process} {one.outcome}"))
    for row_id in case.rows[token]:
        written = case.history.written[row_id]
        due = clock_of(case, written.row.due_ms * 1_000)
        lines.append((written.at_us, f"row due {due} written by {written.process}"))
        if written.deleted_us is not None:
            lines.append((written.deleted_us, f"row deleted by {written.deleted_by}"))
    return "; ".join(f"{clock_of(case, us)} {what}" for us, what in sorted(lines))
