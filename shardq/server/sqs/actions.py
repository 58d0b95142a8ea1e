"""The table of actions: what each takes, what it needs, and what carries it out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import msgspec

from shardq.model.grants import Level
from shardq.records.actions import What
from shardq.server.sqs import messages, moves, queues, shapes

Handler: TypeAlias = "Callable[[Any, Any], Awaitable[msgspec.Struct | None]]"


class SqsAction(msgspec.Struct, frozen=True):
    """An action.

    Attributes:
        name: Its name.
        level: The level of access that it needs.
        input: What it takes.
        handler: What carries it out.
        decoder: Reads its input.
    """

    name: str
    level: Level
    input: type[msgspec.Struct]
    handler: Handler
    decoder: msgspec.json.Decoder[Any]

    @property
    def what(self) -> What | None:
        """The command as which a call of it is recorded; None: it is not recorded."""
        return _RECORDED.get(self.name)


_RECORDED: Final = {
    "AddPermission": What.ALTER,
    "CancelMessageMoveTask": What.FORWARD,
    "DeleteQueue": What.DROP,
    "PurgeQueue": What.PURGE,
    "RemovePermission": What.ALTER,
    "SetQueueAttributes": What.ALTER,
    "StartMessageMoveTask": What.FORWARD,
    "TagQueue": What.ALTER,
    "UntagQueue": What.ALTER,
}


def _action(name: str, level: Level, taken: type[msgspec.Struct], handler: Handler) -> SqsAction:
    return SqsAction(name, level, taken, handler, msgspec.json.Decoder(taken, strict=False))


ACTIONS: Final[dict[str, SqsAction]] = {
    one.name: one
    for one in (
        _action("AddPermission", Level.MANAGE, shapes.AddPermission, queues.add_permission),
        _action("CancelMessageMoveTask", Level.MANAGE, shapes.TaskHandle, moves.cancel_move),
        _action(
            "ChangeMessageVisibility",
            Level.UPDATE,
            shapes.ChangeVisibility,
            messages.change_message_visibility,
        ),
        _action(
            "ChangeMessageVisibilityBatch",
            Level.UPDATE,
            shapes.ChangeVisibilityBatch,
            messages.change_message_visibility_batch,
        ),
        _action("CreateQueue", Level.CREATE, shapes.CreateQueue, queues.create_queue),
        _action("DeleteMessage", Level.ACK, shapes.DeleteMessage, messages.delete_message),
        _action(
            "DeleteMessageBatch",
            Level.ACK,
            shapes.DeleteMessageBatch,
            messages.delete_message_batch,
        ),
        _action("DeleteQueue", Level.DELETE, shapes.OfQueue, queues.delete_queue),
        _action(
            "GetQueueAttributes", Level.GET, shapes.GetQueueAttributes, queues.get_queue_attributes
        ),
        _action("GetQueueUrl", Level.GET, shapes.GetQueueUrl, queues.get_queue_url),
        _action(
            "ListDeadLetterSourceQueues",
            Level.GET,
            shapes.ListSources,
            queues.list_dead_letter_source_queues,
        ),
        _action("ListMessageMoveTasks", Level.GET, shapes.ListMoves, moves.list_moves),
        _action("ListQueueTags", Level.GET, shapes.OfQueue, queues.list_queue_tags),
        _action("ListQueues", Level.GET, shapes.ListQueues, queues.list_queues),
        _action("PurgeQueue", Level.DELETE, shapes.OfQueue, queues.purge_queue),
        _action("ReceiveMessage", Level.READ, shapes.ReceiveMessage, messages.receive_message),
        _action(
            "RemovePermission", Level.MANAGE, shapes.RemovePermission, queues.remove_permission
        ),
        _action("SendMessage", Level.PUT, shapes.SendMessage, messages.send_message),
        _action(
            "SendMessageBatch", Level.PUT, shapes.SendMessageBatch, messages.send_message_batch
        ),
        _action(
            "SetQueueAttributes",
            Level.MANAGE,
            shapes.SetQueueAttributes,
            queues.set_queue_attributes,
        ),
        _action("StartMessageMoveTask", Level.MANAGE, shapes.StartMove, moves.start_move),
        _action("TagQueue", Level.MANAGE, shapes.TagQueue, queues.tag_queue),
        _action("UntagQueue", Level.MANAGE, shapes.UntagQueue, queues.untag_queue),
    )
}
"""Name -> the action: all that SQS has."""
