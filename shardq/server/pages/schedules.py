"""The schedules of all queues, and the page of one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.model.message import JOB_HEADERS, TASK_HEADER
from shardq.schedules.schedule import LATE_MS
from shardq.schedules.triggers.zones import zone_of
from shardq.server.api.problem import Refused
from shardq.server.pages.calendar import WITHIN
from shardq.server.pages.markup import is_hidden, shown_body
from shardq.server.pages.page import Template

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.server.pages.page import Page

STATES = ("waiting", "paused", "failing", "overdue")
_PREVIEWED = 20
_FIRINGS = 20
_FAILED = 500
_POLICIES = ("missed", "window", "overlap", "twice", "gap", "jitter", "spread")
_PUTS = ("priority", "group", "key", "on_conflict", "unique_for")


class Ahead(NamedTuple):
    """A fire time ahead.

    Attributes:
        local: The wall clock of the schedule's zone then, with its offset from UTC.
        time: The fire time, ISO 8601.
        due: When its message will be due, if that is later; else None.
        why: An unusual circumstance, such as a change of the clocks.
    """

    local: str
    time: str
    due: str | None
    why: str


async def all_schedules(page: Page) -> Template:
    """The schedules of all queues."""
    query = page.query
    asked = {name: query.get(name, "") for name in ("queue", "text", "state", "after")}
    asked["order"] = query.get("order", "")
    if asked["state"] not in STATES:
        asked["state"] = ""
    given = {name: value for name, value in asked.items() if value} | {"within": WITHIN}
    name = ("schedules", tuple(given.items()))
    found = await page.shared(name, lambda: page.call("GET", "schedules", query=given))
    if "unread" in found:
        page.forget(name)
    filters = {name: value for name, value in asked.items() if value and name != "after"}
    return Template(
        "schedules",
        {
            "asked": asked,
            "names": sorted({*await page.names(), asked["queue"]} - {""}),
            "states": STATES,
            "schedules": [(one, state_of(one)) for one in found["schedules"]],
            "total": found["total"],
            "next": page.url_of("schedules", **filters, after=found["next"])
            if "next" in found
            else None,
            "first": page.url_of("schedules", **filters) if asked["after"] else None,
            "filters": filters,
            "unread": len(found.get("unread", ())),
            "damaged": found.get("damaged", ()),
        },
    )


async def one_schedule(page: Page) -> Template:
    """One schedule: its settings, its fire times, and the fates of its messages."""
    parts = ("queues", page.place["queue"], "schedules", page.place["schedule"])
    try:
        found = await page.read(*parts)
    except Refused as error:
        if error.status < _FAILED:
            raise
        return Template("schedule", {**_NOTHING, "place": page.place, "problem": error.detail})
    values: dict[str, Any] = {
        "place": page.place,
        "problem": None,
        "one": found,
        "state": state_of(found),
        "ahead": [],
        "ahead_problem": None,
        "firings": [],
        "firings_problem": None,
    }
    try:
        preview = await page.read(*parts, "preview", count=_PREVIEWED)
        values["ahead"] = [_ahead(one, found.get("tz", "UTC")) for one in preview["times"]]
    except Refused as error:
        values["ahead_problem"] = error.detail
    try:
        values["firings"] = (await page.read(*parts, "firings", limit=_FIRINGS))["firings"]
    except Refused as error:
        values["firings_problem"] = error.detail
    return Template("schedule", {**values, **_shown(page, found), **await _span(page, parts)})


_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("one", "ahead_problem", "firings_problem", "count", "span_problem", "task")),
    **dict.fromkeys(("after", "until", "body", "kind"), ""),
    "state": "damaged",
    "ahead": (),
    "firings": (),
    "headers": {},
    "facts": {},
}
"""The values of the page of a schedule that cannot be read; the page can still remove it."""


def state_of(one: Mapping[str, Any]) -> str:
    """A schedule's state; `failing` or `overdue` if it does not fire as it should.

    Args:
        one: The schedule, as `/v1` has it.
    """
    if one.get("error") is not None:
        return "failing"
    return "overdue" if one.get("late_ms", 0) > LATE_MS else str(one["state"])


def _ahead(one: Mapping[str, str], zone: str) -> Ahead:
    time, due = datetime.fromisoformat(one["time"]), datetime.fromisoformat(one["due"])
    local = time.astimezone(zone_of(zone))
    clock = f"{local:%a %Y-%m-%d %H:%M:%S}" if local.second else f"{local:%a %Y-%m-%d %H:%M}"
    offset = f"{local:%z}"
    return Ahead(
        f"{clock} {offset[:3]}:{offset[3:5]}",
        time.astimezone(UTC).isoformat(timespec="milliseconds"),
        one["due"] if due != time else None,
        one.get("why", ""),
    )


def _shown(page: Page, one: Mapping[str, Any]) -> dict[str, Any]:
    """The messages and policies of a schedule, as people read them."""
    hidden = page.site.options.hidden
    headers = one.get("headers", {})
    body, kind = shown_body(one, hidden)
    facts = {name: one[name] for name in (*_POLICIES, *_PUTS) if one.get(name) is not None}
    if "revision" in one:
        changed = "; changed at run time since" if one.get("changed") else ""
        facts["made"] = f"by code, revision {one['revision']}{changed}"
    return {
        "body": body,
        "kind": kind,
        "task": headers.get(TASK_HEADER),
        "headers": {
            name: "(hidden)" if is_hidden(name, hidden) else value
            for name, value in headers.items()
            if name not in JOB_HEADERS
        },
        "facts": facts,
    }


async def _span(page: Page, parts: tuple[str, ...]) -> dict[str, Any]:
    """The wanted span of a back-fill, and how many messages it would put."""
    after, until = page.query.get("after", ""), page.query.get("until", "")
    values: dict[str, Any] = {"after": after, "until": until, "count": None, "span_problem": None}
    if not (after and until and page.allows("s", page.place["queue"])):
        return values
    try:
        found = await page.read(*parts, "backfill", after=after, until=until)
        values["count"] = found["count"]
    except Refused as error:
        values["span_problem"] = error.detail
    return values
