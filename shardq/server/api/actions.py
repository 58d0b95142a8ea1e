"""Commands that changed or removed something; a part of the admin API."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from shardq.model.times import asked_ms, iso
from shardq.server.api.accounts import check_server
from shardq.server.api.route import RouteCall, route
from shardq.server.api.shapes import MANY_MAX, Time
from shardq.server.grants import Level

if TYPE_CHECKING:
    from shardq.records.actions import Action as FoundAction


class ActionsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The commands to show.

    Attributes:
        limit: The most commands to show.
        since: Only commands from this time on.
        object: Only commands about this object.
    """

    limit: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 100
    since: Time | None = None
    object: str | None = None


class Action(Struct):
    """A command that changed or removed something.

    Attributes:
        at: When it ended.
        who: The key with its account, or the user of a shell.
        via: The way in: `shell`, `sqs` or `http`.
        what: The command.
        object: The queue, message, key or other object of the command.
        outcome: `done`, or the name of the error.
    """

    at: Time
    who: str
    via: str
    what: str
    object: str
    outcome: str


class Actions(Struct):
    """Commands.

    Attributes:
        actions: The commands, the last one first.
    """

    actions: list[Action]


@route("GET", "/v1/actions", Level.MANAGE, is_admin=True)
async def list_actions(call: RouteCall[ActionsQuery, None]) -> Actions:
    """Commands that changed or removed something in the last 90 days, the last one first."""
    check_server(call)
    query, site = call.query, call.site
    since_ms = asked_ms(0, query.since, None) if query.since else 0
    read = partial(
        site.actions.last,
        query.limit,
        since_ms=since_ms,
        where=lambda one: query.object is None or one.object == query.object,
    )
    return Actions([_action_of(one) for one in await site.threads.call(read)])


def _action_of(found: FoundAction) -> Action:
    return Action(iso(found.at_ms), found.who, found.via, found.what, found.object, found.outcome)
