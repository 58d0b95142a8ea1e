"""Schedules: those of a queue by their names, and those of all queues."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from shardq.model.times import duration_ms, duration_text, iso
from shardq.records.actions import What
from shardq.schedules.schedule import LATE_MS, late_ms
from shardq.schedules.stored import id_of
from shardq.schedules.triggers.zones import local_moment
from shardq.server.api.problem import Refused
from shardq.server.api.queues import Count
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import (
    MANY_MAX,
    NewBody,
    Put,
    Span,
    Time,
    Wait,
    put_of,
    struct_of,
    text_or_bytes,
    within_s,
)
from shardq.server.grants import Level
from shardq.server.past import past_firings

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.queue import Queue as SyncQueue
    from shardq.schedules.schedule import Schedule as FoundSchedule
    from shardq.server.past import PastFiring

_FIRINGS_MAX = 100


_SCHEDULES = QUEUE + "/schedules"
_SCHEDULE = _SCHEDULES + "/{schedule}"


class ScheduleChange(NewBody, kw_only=True, forbid_unknown_fields=True):
    """The changes of a schedule; a field that is not given stays.

    Attributes:
        every: An interval.
        cron: Instead of `every`: times of the wall clock, as cron has them.
        tz: The zone of that clock, by its IANA name.
        start: It fires no sooner.
        end: It fires no later.
        count: How often it fires.
        missed: The policy for fire times that passed without a consumer.
        window: Fire times missed longer ago than this do not count.
        overlap: The policy while the run before is not done.
        twice: The policy for a local time that occurs twice.
        gap: The policy for a local time that does not exist.
        jitter: The most by which each firing is late, at random.
        spread: The most by which all firings are late.
        headers: Headers of each message.
        priority: 0 is first.
        group: Messages of one group are delivered one at a time.
        key: The key of each message.
        on_conflict: The policy if a message has the key.
        unique_for: How long the key is held after a message's end.
    """

    every: Span | UnsetType = UNSET
    cron: str | UnsetType = UNSET
    tz: str | UnsetType = UNSET
    start: Time | UnsetType | None = UNSET
    end: Time | UnsetType | None = UNSET
    count: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    missed: Literal["skip", "once", "all"] | UnsetType = UNSET
    window: Span | UnsetType | None = UNSET
    overlap: Literal["allow", "skip", "queue", "cancel"] | UnsetType = UNSET
    twice: Literal["first", "last", "both"] | UnsetType | None = UNSET
    gap: Literal["shift", "skip"] | UnsetType = UNSET
    jitter: Span | UnsetType | None = UNSET
    spread: Span | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    group: str | UnsetType | None = UNSET
    key: str | UnsetType | None = UNSET
    on_conflict: Literal["keep", "replace", "reject"] | UnsetType = UNSET
    unique_for: Span | UnsetType | None = UNSET


class NewSchedule(ScheduleChange, kw_only=True, forbid_unknown_fields=True):
    """A schedule that is made.

    Attributes:
        at_start: True if it fires right away, once made; with `every`.
    """

    at_start: bool | UnsetType = UNSET


class Schedule(Struct, kw_only=True, omit_defaults=True):
    """A schedule.

    Attributes:
        name: Its name.
        queue: The queue that it puts into.
        trigger: When it fires, in words.
        tz: The time zone of its wall clock.
        state: `waiting` or `paused`.
        next: Its next fire time.
        previous: The last fire time for which it has put a message.
        fired: For how many fire times it has put messages.
        skipped: For how many its policies put none.
        count: How often it fires.
        body: The body of each message, if it is text.
        body_base64: The body in base64, if it is not text.
        headers: Headers of each message.
        priority: 0 is first.
        group: The group of each message.
        key: The key of each message.
        on_conflict: With a key: the policy if a message has the key.
        unique_for: With a key: how long it is held after a message's end.
        missed: The policy for fire times that passed without a consumer.
        overlap: The policy while the run before is not done.
        window: Fire times missed longer ago than this do not count.
        twice: The policy for a local time that occurs twice, if chosen.
        gap: The policy for a local time that does not exist.
        jitter: The most by which each firing is late, at random.
        spread: The most by which all firings are late.
        late_ms: How long ago its next message should have been due.
        revision: The revision of the code that declares it; absent if it was made at run time.
        changed: True if it was changed at run time since.
        error: Why its trigger failed last.
    """

    name: str
    queue: str
    trigger: str
    tz: str = "UTC"
    state: str
    next: Time | None = None
    previous: Time | None = None
    fired: int = 0
    skipped: int = 0
    count: int | None = None
    body: str | None = None
    body_base64: bytes | None = None
    headers: dict[str, str] = {}
    priority: int = 0
    group: str | None = None
    key: str | None = None
    on_conflict: str | None = None
    unique_for: Span | None = None
    missed: str = "once"
    overlap: str = "allow"
    window: Span | None = None
    twice: str | None = None
    gap: str = "shift"
    jitter: Span | None = None
    spread: Span | None = None
    late_ms: int = 0
    revision: int = 0
    changed: bool = False
    error: str | None = None


class SchedulesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The schedules to list.

    Attributes:
        prefix: Only schedules whose names begin with it.
        after: Only schedules whose names are after this one: `next` of the page before.
        limit: The most of a page.
    """

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 100


class Schedules(Struct, omit_defaults=True):
    """A page of schedules.

    Attributes:
        schedules: The schedules, by name.
        next: The `after` of the next page, if there is one.
    """

    schedules: list[Schedule]
    next: str | None = None


class AllSchedulesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The schedules of all queues to list.

    Attributes:
        queue: Only schedules of this queue.
        text: Only schedules with this text in their names.
        state: Only schedules in this state. The trigger of a `failing` one fails; an `overdue` one
            should have fired more than a minute ago.
        order: By queue and name, or the next to fire first.
        after: Only schedules after this place: `next` of the page before.
        limit: The most of a page.
        within: How long to read, at most 60 s; queues not read by then are `unread`.
    """

    queue: str | None = None
    text: str = ""
    state: Literal["waiting", "paused", "failing", "overdue"] | None = None
    order: Literal["name", "next"] = "name"
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 100
    within: Wait = "10s"


class AllSchedules(Struct, kw_only=True, omit_defaults=True):
    """A page of the schedules of all queues.

    Attributes:
        schedules: The schedules, without their bodies.
        total: How many there are on all pages.
        next: The `after` of the next page, if there is one.
        unread: The queues that were not read in time: ask again.
        damaged: A sentence for each schedule or queue that cannot be read.
    """

    schedules: list[Schedule]
    total: int
    next: str | None = None
    unread: list[str] = []
    damaged: list[str] = []


class FiringsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The last firings to show.

    Attributes:
        limit: How many.
    """

    limit: Annotated[int, Meta(ge=1, le=_FIRINGS_MAX)] = 20


class Firing(Struct, kw_only=True, omit_defaults=True):
    """A firing in the past.

    Attributes:
        time: The fire time, or when it was run by hand.
        id: The id of its message.
        entered: When the message was put; absent without a record of it.
        fate: The fate of the message; absent while it has not ended.
        ended: When it ended.
        attempt: Deliveries until then.
        member: The process that recorded the end.
    """

    time: Time
    id: str
    entered: Time | None = None
    fate: str | None = None
    ended: Time | None = None
    attempt: int = 0
    member: str = ""


class Firings(Struct):
    """Firings in the past.

    Attributes:
        firings: The firings, the last one first.
    """

    firings: list[Firing]


class BackfillSpan(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fire times to fill in.

    Attributes:
        after: The first time. A day, or a time without an offset, is in the schedule's time zone.
        until: The end, which is not included.
    """

    after: str
    until: str


class PreviewQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fire times to show.

    Attributes:
        count: How many.
        after: The time after which to look; now unless given.
    """

    count: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 10
    after: Time | None = None


class FireTime(Struct, omit_defaults=True):
    """A fire time ahead.

    Attributes:
        time: The fire time, in the schedule's zone.
        due: When its message will be due.
        why: An unusual circumstance, such as a change of the clocks.
    """

    time: Time
    due: Time
    why: str = ""


class Preview(Struct):
    """Fire times ahead.

    Attributes:
        times: The fire times, in order.
    """

    times: list[FireTime]


@route("GET", "/v1/schedules", Level.SCHEDULE)
async def list_all_schedules(call: RouteCall[AllSchedulesQuery, None]) -> AllSchedules:
    """The schedules of all queues, a page at a time."""
    query, site = call.query, call.site
    if query.queue is not None:
        call.check(Level.SCHEDULE, query.queue)
        await call.queue(query.queue)
        asked = [query.queue]
    else:
        asked = await call.queues()
    limit_s = within_s(query.within)
    found = await site.answers.gather(site.served, "schedules", _readable, asked, within_s=limit_s)
    now_ms = site.clock.now_ms()
    places = {
        _place(one, query.order): one
        for schedules, _ in found.values.values()
        for one in schedules
        if query.text in one.name and _is_in(one, query.state, now_ms)
    }
    some = sorted(place for place in places if place > query.after)
    page = some[: query.limit]
    return AllSchedules(
        schedules=[schedule_of(places[place], now_ms, has_body=False) for place in page],
        total=len(places),
        next=page[-1] if len(some) > len(page) else None,
        unread=found.unread,
        damaged=[
            *(text for _, damaged in found.values.values() for text in damaged),
            *(f"{name}: {error}" for name, error in sorted(found.failed.items())),
        ],
    )


def _readable(queue: SyncQueue) -> tuple[list[FoundSchedule], list[str]]:
    return queue.schedules._home.readable()


def _place(one: FoundSchedule, order: str) -> str:
    """The place of a schedule in a list, as text that sorts likewise."""
    place = f"{one.queue} {one.name}"
    if order == "name":
        return place
    return f"{'never' if one.next is None else iso(one.next)} {place}"


def _is_in(one: FoundSchedule, state: str | None, now_ms: int) -> bool:
    if state == "failing":
        return one.error is not None
    if state == "overdue":
        return late_ms(one, now_ms) > LATE_MS
    return state in {None, one.state}


@route("GET", _SCHEDULES, Level.SCHEDULE)
async def list_schedules(call: RouteCall[SchedulesQuery, None]) -> Schedules:
    """The schedules of a queue, by name, a page at a time."""
    query, queue = call.query, await call.queue()
    every = sorted(await queue.call(lambda one: list(one.schedules)), key=lambda one: one.name)
    page = [one for one in every if one.name.startswith(query.prefix) and one.name > query.after]
    now_ms = call.site.clock.now_ms()
    found = [schedule_of(one, now_ms) for one in page[: query.limit]]
    return Schedules(found, found[-1].name if len(page) > len(found) else None)


@route("GET", _SCHEDULE, Level.SCHEDULE)
async def get_schedule(call: RouteCall[None, None]) -> Schedule:
    """A schedule as it is now."""
    return await _done(call, lambda one: one)


@route("PUT", _SCHEDULE, Level.SCHEDULE, what=What.SCHEDULE_ADD)
async def put_schedule(call: RouteCall[None, NewSchedule]) -> Schedule:
    """Make a schedule; an equal one that exists already stays as it is.

    A different schedule of that name is a conflict: change it by PATCH.
    """
    name, body, queue = call.place["schedule"], call.body, await call.queue()
    content, given = body.needed, body.options
    every, cron = given.pop("every", None), given.pop("cron", None)
    if (every is None) == (cron is None):
        raise Refused(400, "give every or cron, one of them.", field="every")

    def make(opened: SyncQueue) -> FoundSchedule:
        if every is not None:
            if "tz" in given:
                raise Refused(400, "tz is for cron; an interval has no zone.", field="tz")
            return opened.every(every, content, name=name, **given)
        if "at_start" in given:
            raise Refused(400, "at_start is for every.", field="at_start")
        return opened.cron(str(cron), content, name=name, **given)

    return schedule_of(await queue.call(make), call.site.clock.now_ms())


@route("PATCH", _SCHEDULE, Level.SCHEDULE, what=What.SCHEDULE_CHANGE)
async def change_schedule(call: RouteCall[None, ScheduleChange]) -> Schedule:
    """Change a schedule; from then on it fires only by its new settings."""
    content, given = call.body.content, call.body.options
    if content is None and not given:
        raise Refused(400, "give something to change.")
    return await _done(call, lambda one: one.change(body=content, **given))


@route("DELETE", _SCHEDULE, Level.SCHEDULE, status=204, what=What.SCHEDULE_REMOVE)
async def remove_schedule(call: RouteCall[None, None]) -> None:
    """Remove a schedule; messages that it has put stay."""
    name, queue = call.place["schedule"], await call.queue()
    if not await queue.queue.schedules.remove(name):
        raise _no_such(name)


@route("GET", _SCHEDULE + "/preview", Level.SCHEDULE)
async def preview_schedule(call: RouteCall[PreviewQuery, None]) -> Preview:
    """The next fire times of a schedule."""
    name, queue = call.place["schedule"], await call.queue()
    found = await queue.queue.schedules.preview(name, call.query.count, call.query.after)
    times = [FireTime(one.time.isoformat(), iso(one.due.astimezone(UTC)), one.why) for one in found]
    return Preview(times)


@route("POST", _SCHEDULE + "/pause", Level.SCHEDULE, what=What.SCHEDULE_PAUSE)
async def pause_schedule(call: RouteCall[None, None]) -> Schedule:
    """Pause a schedule until it is resumed."""
    return await _done(call, lambda one: one.pause())


@route("POST", _SCHEDULE + "/resume", Level.SCHEDULE, what=What.SCHEDULE_RESUME)
async def resume_schedule(call: RouteCall[None, None]) -> Schedule:
    """Let a schedule fire again."""
    return await _done(call, lambda one: one.resume())


@route("POST", _SCHEDULE + "/run", Level.SCHEDULE, what=What.SCHEDULE_RUN)
async def run_schedule(call: RouteCall[None, None]) -> Put:
    """Put the message of a schedule now; its fire times stay."""
    name, queue = call.place["schedule"], await call.queue()
    await call.site.check_depth(call.caller, queue)
    return put_of(await queue.call(lambda one: one.schedules[name].run()))


@route("GET", _SCHEDULE + "/firings", Level.SCHEDULE)
async def list_firings(call: RouteCall[FiringsQuery, None]) -> Firings:
    """The last firings of a schedule and their fates, in a queue with the setting `history`.

    A firing without a record has only its time: it put nothing, or its record is gone.
    """
    name, queue, limit = call.place["schedule"], await call.queue(), call.query.limit

    def read(opened: SyncQueue) -> list[PastFiring]:
        # Reread the settings, like `Queue.history`: the history may have just been turned on.
        opened._home.register.refresh(force=True)
        ledger = opened._settler.ledger  # noqa: SLF001 - what `Queue.history` reads
        book, now_ms = opened.schedules._home, opened._home.clock.now_ms()
        return past_firings(book.record(name), ledger, now_ms, limit)

    found = await queue.call(read, is_long=True)
    return Firings([_firing_of(name, one) for one in found])


@route("GET", _SCHEDULE + "/backfill", Level.SCHEDULE)
async def count_backfill(call: RouteCall[BackfillSpan, None]) -> Count:
    """How many messages a back-fill of a span would put."""
    return Count(await _backfilled(call, call.query, dry_run=True))


@route("POST", _SCHEDULE + "/backfill", Level.SCHEDULE, what=What.SCHEDULE_BACKFILL)
async def backfill_schedule(call: RouteCall[None, BackfillSpan]) -> Count:
    """Put the message of a schedule for each fire time of a span, all due now.

    Each call puts them again, under the same ids.
    """
    if call.caller.depth:
        count = await _backfilled(call, call.body, dry_run=True)
        await call.site.check_depth(call.caller, await call.queue(), count)
    return Count(await _backfilled(call, call.body, dry_run=False))


async def _backfilled(call: RouteCall[Any, Any], given: BackfillSpan, *, dry_run: bool) -> int:
    name, queue = call.place["schedule"], await call.queue()

    def fill(opened: SyncQueue) -> int:
        one = opened.schedules[name]
        first, end = (
            local_moment(text, one.trigger.tzinfo, field)
            for text, field in ((given.after, "after"), (given.until, "until"))
        )
        return one.backfill(first, end, dry_run=dry_run)

    return await queue.call(fill, is_long=True)


def _firing_of(name: str, one: PastFiring) -> Firing:
    time, message_id = iso(one.time_ms), id_of(name, one.time_ms)
    if one.record is None:
        return Firing(time=time, id=message_id)
    return struct_of(Firing, one.record, time=time, id=message_id)


async def _done(
    call: RouteCall[Any, Any], change: Callable[[FoundSchedule], FoundSchedule]
) -> Schedule:
    """The schedule that the path names, after a change."""
    name, queue = call.place["schedule"], await call.queue()
    found = await queue.call(lambda one: change(one.schedules[name]))
    return schedule_of(found, call.site.clock.now_ms())


def _no_such(name: str) -> Refused:
    return Refused(404, f"there is no schedule {name!r}.")


def schedule_of(found: FoundSchedule, now_ms: int, *, has_body: bool = True) -> Schedule:
    """A schedule as JSON has it.

    Args:
        found: The schedule.
        now_ms: Epoch milliseconds.
        has_body: False to leave its body out.
    """
    text, content = text_or_bytes(found.body) if has_body else (None, None)
    said = found.policies.said()
    unique_for, has_key = found.unique_for, found.key is not None
    return struct_of(
        Schedule,
        found,
        found.policies,
        trigger=str(found.trigger),
        tz=found.trigger.zone,
        body=text,
        body_base64=content,
        headers=dict(found.headers),
        on_conflict=found.on_conflict if has_key else None,
        unique_for=None if unique_for is None else duration_text(duration_ms(unique_for)),
        late_ms=late_ms(found, now_ms),
        **{name: said.get(name) for name in ("window", "jitter", "spread")},
    )
