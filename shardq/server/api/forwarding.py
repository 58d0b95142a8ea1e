"""Forwarding: messages are moved into another queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from shardq.errors import BadName, KeyTaken, StoreError, StoreUnavailable
from shardq.records.actions import What
from shardq.server.api.messages import told
from shardq.server.api.problem import Problem, Refused, problem_of
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import MANY_MAX
from shardq.server.grants import Level
from shardq.server.hub import check_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.model.message import Message
    from shardq.server.hub import ServedQueue

Names = Annotated[list[str], Meta(min_length=1, max_length=MANY_MAX)]


class Forward(Struct, kw_only=True, forbid_unknown_fields=True):
    """Messages to move: give `receipts`, `ids` or `limit`.

    Attributes:
        to: The queue into which they are moved.
        receipts: The receipts of messages that were received.
        ids: The ids of messages that wait.
        limit: The most messages to move, those that are due first.
        group: With `limit`: only messages of this group.
        headers: With `limit`: only messages that have all of these headers.
    """

    to: str
    receipts: Names | UnsetType = UNSET
    ids: Names | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MANY_MAX)] | UnsetType = UNSET
    group: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET

    def fits(self, message: Message) -> bool:
        """True if a message has the group and the headers that are asked for."""
        if self.group is not UNSET and message.group != self.group:
            return False
        wanted = {} if self.headers is UNSET else self.headers
        return wanted.items() <= message.headers.items()


class Forwarded(Struct, omit_defaults=True, kw_only=True):
    """The result of one message.

    Attributes:
        receipt: The receipt that was given.
        id: The id that was given.
        problem: Why the message was not moved.
    """

    receipt: str | None = None
    id: str | None = None
    problem: Problem | None = None


class Forwards(Struct, kw_only=True):
    """The results of a forward.

    Attributes:
        count: How many messages were moved.
        answers: One for each receipt or id, in their order.
    """

    count: int
    answers: list[Forwarded]


@route("POST", QUEUE + "/forward", Level.ACK, what=What.FORWARD)
async def forward_messages(call: RouteCall[None, Forward]) -> Forwards:
    """Move messages into another queue, under their ids and with all attempts there.

    The key also needs the level `put` on the other queue, and `manage` on this one for `limit`. By
    id and in bulk a forward is best effort for a message without a key: a consumer may have it
    already.
    """
    body, queue = call.body, await call.queue()
    given = [one for one in (body.receipts, body.ids, body.limit) if one is not UNSET]
    if len(given) != 1:
        raise Refused(400, "give receipts, ids or limit, one of them.", field="receipts")
    if body.limit is UNSET and not (body.group is UNSET and body.headers is UNSET):
        raise Refused(400, "group and headers choose among many: give limit too.", field="limit")
    call.check(Level.PUT, body.to)
    target = await call.queue(body.to)
    call.about = f"{queue.name} to {body.to}"
    if body.limit is not UNSET:
        call.check(Level.MANAGE, queue.name)
    [count] = [one if isinstance(one, int) else len(one) for one in given]
    await call.site.check_depth(call.caller, target, count)
    if body.limit is not UNSET:
        return Forwards(
            count=await queue.queue.forward(to=body.to, limit=body.limit, where=body.fits),
            answers=[],
        )
    if body.ids is not UNSET:
        by_id = await _by_ids(queue, body.ids, body.to)
        return _forwards([by_id[name] for name in body.ids])
    receipts = body.receipts or []
    errors = await queue.queue.forward(receipts, to=body.to, partial=True)
    check_store(errors)
    both = list(zip(receipts, errors, strict=True))
    queue.tell({receipt: None for receipt, error in both if error is None})
    return _forwards(
        [
            Forwarded(receipt=receipt, problem=None if error is None else problem_of(error))
            for receipt, error in both
        ]
    )


async def _by_ids(queue: ServedQueue, names: Sequence[str], to: str) -> dict[str, Forwarded]:
    """Move messages that wait, up to an error of the store; the later ones are not moved then.

    Raises:
        StoreError: If no message was moved before the error.
    """
    made: dict[str, Forwarded] = {}
    unique = list(dict.fromkeys(names))
    for name in unique:
        try:
            made[name] = await _by_id(queue, name, to)
        except StoreError as error:
            if all(one.problem is not None for one in made.values()):
                raise
            made[name] = Forwarded(id=name, problem=problem_of(error))
            break
    unasked = StoreUnavailable("not moved: the store did not answer for an id before it.")
    for name in unique[len(made) :]:
        made[name] = Forwarded(id=name, problem=problem_of(unasked))
    return made


async def _by_id(queue: ServedQueue, name: str, to: str) -> Forwarded:
    """Move a message that waits."""
    try:
        said = (await queue.queue.forward(to=to, ids=[name]))[name]
    except (BadName, KeyTaken) as error:
        return Forwarded(id=name, problem=problem_of(error))
    try:
        told(said, name)
    except Refused as refused:
        return Forwarded(id=name, problem=problem_of(refused))
    return Forwarded(id=name)


def _forwards(answers: Sequence[Forwarded]) -> Forwards:
    moved = {one.receipt or one.id for one in answers if one.problem is None}
    return Forwards(count=len(moved), answers=list(answers))
