"""Deliveries: messages are received, and settled by their receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from shardq.errors import ShardqError
from shardq.model.times import duration_ms
from shardq.server.api.problem import Problem, Refused, problem_of
from shardq.server.api.route import QUEUE, RouteCall, json_of, route
from shardq.server.api.shapes import MANY_MAX, Messages, Span, Wait, message_of
from shardq.server.grants import Level
from shardq.server.hub import check_store
from shardq.server.web import Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.model.message import Message
    from shardq.server.hub import ServedQueue

_WAIT_MS_MAX = 60_000

Receipts = Annotated[list[str], Meta(min_length=1, max_length=MANY_MAX)]


class Receive(Struct, kw_only=True, forbid_unknown_fields=True):
    """The messages to take.

    Attributes:
        max: The most to return.
        visibility: How long they are the caller's. What is not settled by then is delivered again.
        wait: How long to wait for the first one, to 60 s.
        per_group: The most of one group.
        lasting: True for receipts that stay valid for `ack` and `extend` with `redelivered` after
            the message was delivered again.
    """

    max: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 10
    visibility: Span = "30s"
    wait: Wait = "0s"
    per_group: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 1
    lasting: bool = False


class Ack(Struct, kw_only=True, forbid_unknown_fields=True):
    """Deliveries to end as done.

    Attributes:
        receipts: Their receipts.
        redelivered: True ends a message also if it was delivered again since, if its receipt is
            lasting; one that has ended already is a success.
    """

    receipts: Receipts
    redelivered: bool = False


class Retry(Struct, kw_only=True, forbid_unknown_fields=True):
    """Deliveries to end as failed.

    Attributes:
        receipts: Their receipts.
        delay: How long to wait; the queue's back-off unless given.
        reason: Why they failed.
    """

    receipts: Receipts
    delay: Span | None = None
    reason: str = ""


class Snooze(Struct, kw_only=True, forbid_unknown_fields=True):
    """Deliveries to postpone.

    Attributes:
        receipts: Their receipts.
        delay: How long to wait.
        limited: True to deliver nothing of the groups of these messages until then.
    """

    receipts: Receipts
    delay: Span
    limited: bool = False


class Extend(Struct, kw_only=True, forbid_unknown_fields=True):
    """Deliveries to keep for longer.

    Attributes:
        receipts: Their receipts.
        visibility: How long from now.
        redelivered: True takes a lasting receipt also after the message was delivered again: then
            its present delivery is kept.
    """

    receipts: Receipts
    visibility: Span = "30s"
    redelivered: bool = False


class Bury(Struct, kw_only=True, forbid_unknown_fields=True):
    """Deliveries to move to the dead-letter queue.

    Attributes:
        receipts: Their receipts.
        reason: Why.
    """

    receipts: Receipts
    reason: str = "buried"


class Settled(Struct, omit_defaults=True, kw_only=True):
    """The result of one delivery.

    Attributes:
        receipt: The receipt that was given; after an extension, the one that settles it from now
            on.
        problem: Why nothing was done with it.
    """

    receipt: str
    problem: Problem | None = None


class Settlements(Struct):
    """The results of deliveries.

    Attributes:
        answers: One for each receipt, in their order.
    """

    answers: list[Settled]


@route("POST", QUEUE + "/receive", Level.READ, answer=Messages)
async def receive_messages(call: RouteCall[None, Receive]) -> Response:
    """Take messages that are due; settle each by its receipt.

    A call that waits is answered as soon as there is a message, and with none when the server
    stops. If a client leaves before it has read its answer, its messages are delivered to another.
    """
    wanted, queue = call.body, await call.queue()
    if duration_ms(wanted.wait, name="wait") > _WAIT_MS_MAX:
        raise Refused(400, "wait must be at most 60s.", field="wait")
    taking = queue.queue.receive(
        wanted.max,
        wanted.visibility,
        wanted.wait,
        per_group=wanted.per_group,
        lasting=wanted.lasting,
    )
    found = await call.site.poll(taking, call.caller) or []
    answer = json_of(messages_of(found))
    if found:
        answer.on_unsent = lambda: release(queue, [one.receipt for one in found])
    return answer


@route("POST", QUEUE + "/ack", Level.ACK)
async def ack_messages(call: RouteCall[None, Ack]) -> Settlements:
    """End deliveries as done: the messages are removed."""
    queue = await call.queue()
    receipts, redelivered = call.body.receipts, call.body.redelivered
    return _settlements(receipts, await queue.ack_all(receipts, redelivered=redelivered))


@route("POST", QUEUE + "/retry", Level.UPDATE)
async def retry_messages(call: RouteCall[None, Retry]) -> Settlements:
    """End deliveries as failed.

    They are delivered again, or buried after their last attempt.
    """
    body, queue = call.body, await call.queue()
    return _settled(
        queue,
        body.receipts,
        await queue.queue.retry(body.receipts, body.delay, reason=body.reason, partial=True),
    )


@route("POST", QUEUE + "/snooze", Level.UPDATE)
async def snooze_messages(call: RouteCall[None, Snooze]) -> Settlements:
    """Deliver messages again later; it costs no attempt."""
    body, queue = call.body, await call.queue()
    return _settled(
        queue,
        body.receipts,
        await queue.queue.snooze(body.receipts, body.delay, limited=body.limited, partial=True),
    )


@route("POST", QUEUE + "/extend", Level.UPDATE)
async def extend_messages(call: RouteCall[None, Extend]) -> Settlements:
    """Keep received messages for longer; each gets a new receipt."""
    body, queue = call.body, await call.queue()
    answers = await queue.queue.extend(
        body.receipts, body.visibility, partial=True, redelivered=body.redelivered
    )
    queue.tell(
        {old: new for old, new in zip(body.receipts, answers, strict=True) if isinstance(new, str)}
    )
    return _settlements(body.receipts, answers)


@route("POST", QUEUE + "/bury", Level.ACK)
async def bury_messages(call: RouteCall[None, Bury]) -> Settlements:
    """Move received messages to the dead-letter queue."""
    body, queue = call.body, await call.queue()
    return _settled(
        queue, body.receipts, await queue.queue.bury(body.receipts, body.reason, partial=True)
    )


async def release(queue: ServedQueue, receipts: Sequence[str]) -> None:
    """Release messages that were received for a client that left, without counting an attempt."""
    await queue.queue.snooze(list(receipts), "0s", partial=True)


def _settled(
    queue: ServedQueue, receipts: Sequence[str], answers: Sequence[Exception | None]
) -> Settlements:
    queue.tell({one: None for one, answer in zip(receipts, answers, strict=True) if answer is None})
    return _settlements(receipts, answers)


def _settlements(receipts: Sequence[str], answers: Sequence[Any]) -> Settlements:
    check_store(answers)
    return Settlements([_one(*both) for both in zip(receipts, answers, strict=True)])


def _one(receipt: str, answer: Any) -> Settled:
    if isinstance(answer, ShardqError):
        return Settled(receipt=receipt, problem=problem_of(answer))
    if isinstance(answer, BaseException):
        raise answer
    return Settled(receipt=answer or receipt)


def messages_of(found: Sequence[Message]) -> Messages:
    """Messages as JSON has them."""
    return Messages([message_of(one) for one in found])
