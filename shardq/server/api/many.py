"""Several messages at once, and a copy of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from shardq.lifecycle.keyed import Answer as Said
from shardq.model.message import RESERVED_HEADER
from shardq.records.actions import What
from shardq.server.api.listing import has_died
from shardq.server.api.messages import Move
from shardq.server.api.problem import Refused
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import NewBody, Put, Span, Time, put_of
from shardq.server.grants import Level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.model.message import Message
    from shardq.queue import Queue as SyncQueue

_IDS_MAX = 100
"""Messages of a call: each is looked up by itself."""
Ids = Annotated[list[str], Meta(min_length=1, max_length=_IDS_MAX)]


class CancelMany(Struct, kw_only=True, forbid_unknown_fields=True):
    """The messages to cancel.

    Attributes:
        ids: Their ids or receipts.
    """

    ids: Ids


class MoveMany(Move, kw_only=True, forbid_unknown_fields=True):
    """The messages to move, and when they are to be due.

    Attributes:
        ids: Their ids or receipts.
    """

    ids: Ids


class Answers(Struct):
    """The results of a command about several messages.

    Attributes:
        asked: How many were named.
        done: For how many it was done.
        answers: Id or receipt -> `done`, `running` or `not there`.
    """

    asked: int
    done: int
    answers: dict[str, str]


class Copy(NewBody, kw_only=True, forbid_unknown_fields=True):
    """How a copy differs from its message.

    Attributes:
        due: When to deliver it; now unless given.
        delay: Instead of `due`: how long from now.
    """

    due: Time | UnsetType = UNSET
    delay: Span | UnsetType = UNSET


@route("POST", QUEUE + "/cancel", Level.ACK, what=What.CANCEL)
async def cancel_messages(call: RouteCall[None, CancelMany]) -> Answers:
    """Cancel messages that have not been delivered.

    Best effort for those without a key: a consumer may have them already.
    """
    ids, queue = call.body.ids, await call.queue()
    call.about = _about(queue.name, ids)
    return _answers(ids, await queue.queue.cancel(ids=ids))


@route("POST", QUEUE + "/move", Level.UPDATE, what=What.MOVE)
async def move_messages(call: RouteCall[None, MoveMany]) -> Answers:
    """Let messages that wait be due at another time.

    Best effort for those without a key: a consumer may have them already.
    """
    ids, queue = call.body.ids, await call.queue()
    if not call.body.given:
        raise Refused(400, "give due or delay.", field="due")
    call.about = _about(queue.name, ids)
    return _answers(ids, await queue.queue.move(ids=ids, **call.body.given))


@route("POST", QUEUE + "/messages/{message}/copy", Level.PUT)
async def copy_message(call: RouteCall[None, Copy]) -> Put:
    """Put a new message with the body, the headers, the priority and the group of another.

    The other message may wait, run or be dead, and stays as it is. The copy has an id of its own,
    and no key.
    """
    name, queue = call.place["message"], await call.queue()
    await call.site.check_depth(call.caller, queue)
    is_dead_seen = await has_died(call, queue)

    def find(opened: SyncQueue) -> Message | None:
        found: Message | None = opened.find(name, near=True)
        if found is None and is_dead_seen:
            found = opened.dead.find(name, near=True)
        if found is None:
            found = opened.find(name)
        return opened.dead.find(name) if found is None and is_dead_seen else found

    found = await queue.call(find)
    if found is None:
        raise Refused(404, f"there is no message {name!r}, or it has ended.")
    content = call.body.content
    return put_of(
        await queue.put(
            {
                "body": found.body if content is None else content,
                **call.body.options,
                **_same(found),
            }
        )
    )


def _same(found: Message) -> Mapping[str, Any]:
    """The parts that a copy shares with its message, as arguments of a put."""
    headers = found.headers
    own = {name: value for name, value in headers.items() if not name.startswith(RESERVED_HEADER)}
    priority = int(headers.get("shardq-priority", found.priority))
    same = {"headers": own, "priority": priority, "group": found.group}
    return {name: value for name, value in same.items() if value}


def _answers(ids: list[str], said: Mapping[str, Said]) -> Answers:
    done = sum(one is Said.DONE for one in said.values())
    return Answers(len(set(ids)), done, {name: one.value for name, one in said.items()})


def _about(queue: str, ids: list[str]) -> str:
    """The object of a command, for its record."""
    return f"{queue} {ids[0]}" if len(ids) == 1 else f"{queue} {len(ids)} messages"
