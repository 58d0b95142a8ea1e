"""Schedules for people and programs: as lines of a list, as facts, as JSON."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from rich.text import Text

from shardq.cli import firings, jobs, listing, screen
from shardq.cli.trace import shown_body
from shardq.model.times import due_ms, duration_ms, duration_text, span
from shardq.schedules.schedule import LATE_MS, late_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime, timedelta

    from shardq.cli.listing import Row
    from shardq.schedules.schedule import Schedule

_PUTS = 100
_WIDE = 130
_WIDEST = 160
"""From this width on the list has all columns.

With fewer columns each row would take two lines."""
_STYLES = {"failing": "red", "overdue": "red", "paused": "yellow"}


def state_of(one: Schedule, now_ms: int) -> str:
    """Its state; `failing` or `overdue` if it does not do its work."""
    if one.error is not None:
        return "failing"
    return "overdue" if late_ms(one, now_ms) > LATE_MS else one.state


def local(one: Schedule, moment: datetime | None) -> str:
    """A time on the wall clock of a schedule, `2026-03-29 03:30 +02:00`."""
    if moment is None:
        return "-"
    here = moment.astimezone(one.trigger.tzinfo)
    clock = "%H:%M:%S" if here.second else "%H:%M"
    at = "Z" if here.tzinfo is UTC else f" {firings.offset(here)}"
    return f"{here:%Y-%m-%d {clock}}{at}"


def ahead(one: Schedule, now_ms: int) -> str:
    """Its next fire time, in words and as a time."""
    if one.next is None:
        return "paused" if one.state == "paused" else "never again"
    return f"{local(one, one.next)}, {_distance(one.next, now_ms)}"


def _distance(moment: datetime, now_ms: int) -> str:
    ms = due_ms(moment) - now_ms
    return f"in {span(ms)}" if ms >= 0 else f"{span(-ms)} ago"


def call_of(one: Schedule) -> str | None:
    """Its job as a call; None if it puts no job of a task."""
    return jobs.call_text(one.headers, one.body)


def show_list(found: Sequence[Schedule], now_ms: int, *, has_queues: bool, empty: str) -> None:
    """Print a line for each schedule.

    Args:
        found: The schedules.
        now_ms: Epoch milliseconds.
        has_queues: True to show the queue of each.
        empty: The sentence if there are none.
    """
    width = screen.console().width
    has_puts, is_wide, is_whole = (width >= least for least in (_PUTS, _WIDE, _WIDEST))

    def to_row(one: Schedule) -> Row:
        state = state_of(one, now_ms)
        left = "-" if one.next is None else _distance(one.next, now_ms).removeprefix("in ")
        puts = call_of(one) or one.body[:1_000].decode(errors="replace")
        columns: list[tuple[bool, str, str | Text]] = [
            (has_queues, "queue", one.queue),
            (True, "name", one.name),
            (True, "next", local(one, one.next)),
            (is_wide, "in", left),
            (is_whole, "previous", local(one, one.previous)),
            (is_wide, ">fired", _fired(one)),
            (is_wide, ">skipped", f"{one.skipped:,}"),
            (True, "state", Text(state, style=_STYLES.get(state, ""))),
            (True, "fires", screen.plain(str(one.trigger))),
            (has_puts, "puts", screen.plain(puts)),
        ]
        return {head: cell for is_shown, head, cell in columns if is_shown}

    listing.show_all(found, to_json, to_row, free=1 + has_puts, empty=empty)


def facts(one: Schedule, now_ms: int) -> Iterator[tuple[str, str]]:
    """All facts of a schedule: names and values."""
    yield "name", one.name
    yield "queue", one.queue
    yield "fires", str(one.trigger)
    yield "next", ahead(one, now_ms)
    ago = "" if one.previous is None else f", {_distance(one.previous, now_ms)}"
    yield "previous", local(one, one.previous) + ago
    yield "fired", _fired(one)
    yield "skipped", f"{one.skipped:,}"
    yield "state", state_of(one, now_ms)
    if one.error is not None:
        yield "error", one.error
    yield "made", _made(one)
    yield from one.policies.said().items()
    yield "priority", str(one.priority)
    if one.group is not None:
        yield "group", one.group
    if one.key is not None:
        yield "key", f"{one.key}, {_held(one)}"
    if (call := call_of(one)) is not None:
        yield "job", call
    for name, value in sorted(one.headers.items()):
        yield "header", f"{name}={value}"
    if call is None and one.body:
        yield "body", one.body.decode(errors="replace")


def _made(one: Schedule) -> str:
    if not one.revision:
        return "at run time"
    changed = "; changed at run time since" if one.changed else ""
    return f"by code, revision {one.revision}{changed}"


def _fired(one: Schedule) -> str:
    return f"{one.fired:,}" + ("" if one.count is None else f" of {one.count:,}")


def _held(one: Schedule) -> str:
    """The treatment of a message whose key is taken."""
    held = "" if one.unique_for is None else f", held for {_text(one.unique_for)} after its end"
    return f"{one.on_conflict} where a message has it{held}"


def _text(unique_for: timedelta) -> str:
    return duration_text(duration_ms(unique_for))


def to_json(one: Schedule) -> dict[str, Any]:
    """A schedule for programs."""
    return {
        **screen.picked(one, "queue name"),
        "trigger": str(one.trigger),
        "tz": one.trigger.zone,
        **screen.picked(one, "next previous fired skipped count state error revision changed"),
        "policies": one.policies.said(),
        "job": call_of(one),
        **screen.picked(one, "priority group key on_conflict"),
        "unique_for": None if one.unique_for is None else _text(one.unique_for),
        "headers": dict(one.headers),
    } | shown_body(one.body)
