"""Schedules that code declares, and how stored schedules are brought up to date.

```
 declared ─┬─ not stored ──────────────────► made, unless it has ended, or code has removed it
           ├─ stored, of a lower revision ─► changed
           ├─ stored, of a higher one ─────► left alone: older code does not change it back
           └─ of the same, ─┬─ equal ──────► nothing; changes made at run time stay
              or made at run └─ different ─► left alone, and reported to its declarer
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, Unpack

from msgspec.structs import replace

from shardq.schedules.options import anchored, check, has_ended, schedule_name, unlike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.schedules.definition import ScheduleDefinition
    from shardq.schedules.options import Make, ScheduleOptions
    from shardq.schedules.schedule import Book
    from shardq.schedules.stored import StoredSchedule

Answer: TypeAlias = Literal["made", "changed", "same", "older", "ended", "removed", "past", "other"]


class Declared(NamedTuple):
    """The fate of a schedule that code declares.

    Attributes:
        answer: It was `made`; `changed`, if its revision is higher; is the `same`, or `older` than
            the stored one; has `ended`, or was removed and may have ended by now; was `removed` by
            code of its revision; all its fire times are `past`; or there is an `other`, of its
            revision or made at run time.
        asked: The declared schedule.
        there: The schedule that was stored before; None if there was none.
        unlike: The differences of the stored schedule, by names of options and arguments.
    """

    answer: Answer
    asked: ScheduleDefinition
    there: ScheduleDefinition | None = None
    unlike: Sequence[str] = ()


def declare(
    book: Book,
    make: Make,
    body: bytes | str,
    *,
    name: str,
    revision: int,
    found: StoredSchedule | None = None,
    **options: Unpack[ScheduleOptions],
) -> Declared:
    """Change a stored schedule as code declares it, if the code is newer.

    Changes made at run time stay until the revision is raised; a pause stays in any case.

    Args:
        book: The book of its queue.
        make: Its trigger.
        body: The body of its messages.
        name: Its name.
        revision: The revision of the code, from 1.
        found: Its record, as `Book.found_any` has read it a moment ago.
        options: Its other options.

    Raises:
        UsageError: If something cannot be used; nothing was written.
        StoreCorrupt: If the stored schedule is damaged.
    """
    asked = book.drafted(make, body, options, name=name, revision=revision)
    is_past = has_ended(asked, make)
    if not is_past:
        check(asked, asked.made_ms)
    book.open()
    there = found
    while True:
        there = there or book.found_any([name]).get(name)
        if there is not None and not there.has_ended:
            return _brought(book, asked, there.definition, make)
        if there is not None and there.definition.revision >= revision:
            may_end = is_past or asked.count is not None
            return Declared("ended" if may_end else "removed", asked)
        if is_past:
            return Declared("past", asked)
        if book.write(asked, there):
            return Declared("made", asked)
        there = None


def undeclare(book: Book, name: str) -> Literal["removed", "other", "absent"]:
    """Remove a schedule that code has declared; code of the same revision does not make it again.

    Returns:
        `removed`; `other` if it was made at run time, and stays; or `absent`.
    """
    while (there := book.found([schedule_name(name)]).get(name)) is not None:
        if there.definition.revision == 0:
            return "other"
        if book.end(there):
            return "removed"
    return "absent"


def _brought(
    book: Book, asked: ScheduleDefinition, there: ScheduleDefinition, make: Make
) -> Declared:
    """The fate of a declared schedule that is stored already."""
    if there.revision > asked.revision:
        return Declared("older", asked, there)
    if 0 < there.revision < asked.revision:
        book.apply(asked.name, lambda now: _newer(now, asked, make))
        return Declared("changed", asked, there)
    differing = unlike(there.declared or there, asked, make)
    is_same = there.revision == asked.revision and not differing
    return Declared("same" if is_same else "other", asked, there, differing)


def _newer(now: ScheduleDefinition, asked: ScheduleDefinition, make: Make) -> ScheduleDefinition:
    """A schedule as newer code declares it; the fire times of an unchanged interval stay."""
    if now.revision >= asked.revision:
        return now
    if (begun := anchored(asked, make, now)).trigger == now.trigger:
        asked = begun
    return replace(asked, paused=now.paused)
