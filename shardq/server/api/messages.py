"""Messages: put, looked at, moved and cancelled."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from shardq.errors import KeyTaken, ShardqError
from shardq.lifecycle.keyed import Answer as Said
from shardq.records.actions import What
from shardq.server.api.problem import Refused, problem_of
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import (
    MANY_MAX,
    NewMessage,
    Put,
    Span,
    Time,
    put_of,
)
from shardq.server.grants import Level
from shardq.server.hub import check_store

if TYPE_CHECKING:
    from shardq.server.hub import ServedQueue

_IDEMPOTENT_FOR = "24h"
_IDEMPOTENCY_KEY = "idempotency-key"
_KEY_MAX = 200

NewMessages = NewMessage | Annotated[list[NewMessage], Meta(min_length=1, max_length=MANY_MAX)]


_MESSAGE = QUEUE + "/messages/{message}"


class Move(Struct, kw_only=True, forbid_unknown_fields=True):
    """When a message is to be due.

    Attributes:
        due: The time.
        delay: Instead of `due`: how long from now.
    """

    due: Time | UnsetType = UNSET
    delay: Span | UnsetType = UNSET

    @property
    def given(self) -> dict[str, Any]:
        """The given time or delay, as arguments."""
        both = {"due": self.due, "delay": self.delay}
        return {name: value for name, value in both.items() if value is not UNSET}


class Told(Struct):
    """The result of a command.

    Attributes:
        answer: `done`. Or `running`, after a cancel: the run was asked to stop, and no other run
            of the message follows.
    """

    answer: str


def told(said: Said, name: str, *, is_cancel: bool = False) -> Told:
    """The answer to a command.

    Args:
        said: The outcome of the command.
        name: The message's id or key.
        is_cancel: True if it was a cancel: a running message is told to stop.

    Raises:
        Refused: If it was not done.
    """
    if said is Said.NOT_THERE:
        raise Refused(404, f"there is no message {name!r}, or it has ended.")
    if said is Said.RUNNING and not is_cancel:
        raise Refused(409, f"message {name!r} is running; nothing was changed.")
    return Told(said.value)


@route("POST", QUEUE + "/messages", Level.PUT)
async def put_messages(call: RouteCall[None, NewMessages]) -> Put | list[Put]:
    """Put a message, or a batch with an answer for each.

    A JSON object is one message, and an array is a batch. When the answer arrives, the store has
    them. With the header `Idempotency-Key` the same call within 24 hours puts nothing twice.
    """
    queue = await call.queue()
    count = len(call.body) if isinstance(call.body, list) else 1
    await call.site.check_depth(call.caller, queue, count)
    name = call.request.headers.get(_IDEMPOTENCY_KEY)
    if name is not None:
        if not 0 < len(name) <= _KEY_MAX or not name.isprintable():
            raise Refused(
                400, f"Idempotency-Key must be 1 to {_KEY_MAX} printable characters.", field="key"
            )
        # Two callers may choose one name, so each has names of its own.
        name = " ".join(filter(None, (_IDEMPOTENCY_KEY, call.caller.key_id, name)))
    if isinstance(call.body, NewMessage):
        made = await _put(call, queue, call.body, name)
        if isinstance(made, Put):
            return made
        raise made
    names = [None if name is None else f"{name}/{number}" for number in range(len(call.body))]
    items = _prepared(call.body, names)
    answers = await queue.put_all([call.traced(item) for item in items if isinstance(item, dict)])
    check_store(answers)
    return [_put_or_problem(one) for one in _merged(items, answers)]


@route("PATCH", _MESSAGE, Level.UPDATE, what=What.MOVE)
async def move_message(call: RouteCall[None, Move]) -> Told:
    """Let a message that waits be due at another time.

    Best effort for a message without a key: a consumer may have it already.
    """
    name, queue = call.place["message"], await call.queue()
    answers = await queue.queue.move(ids=[name], **call.body.given)
    return told(answers[name], name)


@route("DELETE", _MESSAGE, Level.ACK, what=What.CANCEL)
async def cancel_message(call: RouteCall[None, None]) -> Told:
    """Remove a message that has not been delivered.

    Best effort for a message without a key: a consumer may have it already.
    """
    name, queue = call.place["message"], await call.queue()
    answers = await queue.queue.cancel(ids=[name])
    return told(answers[name], name, is_cancel=True)


def _item(message: NewMessage, name: str | None) -> dict[str, Any]:
    """The arguments of a put; an idempotency key gives it a key and an id.

    Raises:
        Refused: If they cannot be used.
    """
    item = message.item
    if name is None:
        return item
    if "key" in item or "id" in item:
        raise Refused(
            400,
            "Idempotency-Key gives a message its key and its id; leave them out, or leave "
            "Idempotency-Key out: a put with a key is safe to repeat.",
            field="key",
        )
    made_id = hashlib.sha256(name.encode()).hexdigest()[:32]
    return {
        **item,
        "id": made_id,
        "key": name,
        "on_conflict": "keep",
        "unique_for": _IDEMPOTENT_FOR,
    }


async def _put(
    call: RouteCall[None, Any], queue: ServedQueue, message: NewMessage, name: str | None
) -> Put | Exception:
    [item] = _prepared([message], [name])
    if isinstance(item, Refused):
        return item
    [answer] = await queue.put_all([call.traced(item)])
    return _answered(item, answer)


def _prepared(
    messages: list[NewMessage], names: list[str | None]
) -> list[dict[str, Any] | Refused]:
    """The arguments of each put, or why it is refused."""
    made: list[dict[str, Any] | Refused] = []
    for message, name in zip(messages, names, strict=True):
        try:
            made.append(_item(message, name))
        except Refused as refused:
            made.append(refused)
    return made


def _merged(items: list[dict[str, Any] | Refused], answers: list[Any]) -> list[Put | Exception]:
    """The answers in the order of the items."""
    left = iter(answers)
    return [item if isinstance(item, Refused) else _answered(item, next(left)) for item in items]


def _answered(item: dict[str, Any], answer: Any) -> Put | Exception:
    """The answer to one put."""
    is_idempotent = str(item.get("key", "")).startswith(f"{_IDEMPOTENCY_KEY} ")
    if isinstance(answer, KeyTaken) and is_idempotent and answer.message is None:
        # The message was put within the last 24 hours, and has ended.
        return Put(id=item["id"])
    if isinstance(answer, Exception):
        return answer
    if is_idempotent and answer.body != item["body"]:
        return Refused(
            422, "Idempotency-Key was used for another body within the last 24 hours.", field="body"
        )
    return put_of(answer)


def _put_or_problem(answer: Put | Exception) -> Put:
    if isinstance(answer, Put):
        return answer
    if isinstance(answer, (ShardqError, Refused)):
        return Put(problem=problem_of(answer))
    raise answer
