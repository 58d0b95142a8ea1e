"""The inputs and outputs of SQS's actions, with AWS's names on the wire."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Names: TypeAlias = list[str] | None


class Shape(msgspec.Struct, kw_only=True, rename="pascal", omit_defaults=True):
    """A structure of SQS's: fields are in snake case here, in capitals on the wire."""


class OfQueue(Shape):
    """An input that names a queue."""

    queue_url: str


class AttributeValue(Shape):
    """The typed value of a message's attribute.

    Attributes:
        data_type: `String`, `Number` or `Binary`, or one of them with `.` and a label.
        string_value: The value of the first two.
        binary_value: The value of the third; base64 on the wire.
        string_list_values: AWS does not implement it either.
        binary_list_values: Likewise.
    """

    data_type: str = ""
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


Attributes: TypeAlias = dict[str, AttributeValue] | None


class AddPermission(OfQueue):
    """The input that adds a statement to the queue's policy."""

    label: str
    accounts: list[str] = msgspec.field(name="AWSAccountIds")
    actions: list[str]


class RemovePermission(OfQueue):
    """The input that removes a statement from the queue's policy."""

    label: str


class CreateQueue(Shape):
    """The input that makes a queue."""

    queue_name: str
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(name="tags", default=None)


class GetQueueUrl(Shape):
    """The input that finds a queue by its name."""

    queue_name: str
    owner: str | None = msgspec.field(name="QueueOwnerAWSAccountId", default=None)


class QueueUrl(Shape):
    """The url of a queue."""

    queue_url: str


class ListQueues(Shape):
    """The input that lists queues."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class QueueUrls(Shape):
    """Urls of queues, and the token of the next page."""

    queue_urls: list[str] | None = None
    next_token: str | None = None


class ListSources(OfQueue):
    """The input that lists the queues of which a queue is the dead-letter queue."""

    next_token: str | None = None
    max_results: int | None = None


class SourceUrls(Shape):
    """Urls of those queues; AWS writes this list in lower case."""

    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


class GetQueueAttributes(OfQueue):
    """The input that reads attributes of a queue."""

    attribute_names: Names = None


class QueueAttributes(Shape):
    """Attributes of a queue."""

    attributes: dict[str, str] | None = None


class SetQueueAttributes(OfQueue):
    """The input that changes attributes of a queue."""

    attributes: dict[str, str]


class TagQueue(OfQueue):
    """The input that sets tags of a queue."""

    tags: dict[str, str]


class UntagQueue(OfQueue):
    """The input that removes tags of a queue."""

    tag_keys: list[str]


class Tags(Shape):
    """Tags of a queue."""

    tags: dict[str, str] | None = None


class Sending(Shape):
    """The fields of a message to send, alone or in a batch."""

    message_body: str = ""
    delay_seconds: int | None = None
    message_attributes: Attributes = None
    message_system_attributes: Attributes = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(Sending, kw_only=True):
    """The input that sends a message."""

    queue_url: str


class SendEntry(Sending, kw_only=True):
    """A message of a batch."""

    id: str


class SendMessageBatch(OfQueue):
    """The input that sends messages."""

    entries: list[SendEntry] = []


class SentMessage(Shape):
    """A message that was sent."""

    id: str | None = None
    message_id: str = ""
    body_digest: str = msgspec.field(name="MD5OfMessageBody", default="")
    attributes_digest: str | None = msgspec.field(name="MD5OfMessageAttributes", default=None)
    system_digest: str | None = msgspec.field(name="MD5OfMessageSystemAttributes", default=None)
    sequence_number: str | None = None


class FailedEntry(Shape, omit_defaults=False):
    """An entry of a batch that failed."""

    id: str
    sender_fault: bool
    code: str
    message: str


class SentBatch(Shape):
    """The results of a batch of messages."""

    successful: list[SentMessage]
    failed: list[FailedEntry]


class ReceiveMessage(OfQueue):
    """The input that receives messages."""

    attribute_names: Names = None
    message_system_attribute_names: Names = None
    message_attribute_names: Names = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class Received(Shape):
    """A message that was received."""

    message_id: str
    receipt_handle: str
    body_digest: str = msgspec.field(name="MD5OfBody")
    # No default, so that an empty body is written, too: clients always read this field.
    body: str
    attributes: dict[str, str] | None = None
    attributes_digest: str | None = msgspec.field(name="MD5OfMessageAttributes", default=None)
    message_attributes: dict[str, AttributeValue] | None = None


class ReceivedMessages(Shape):
    """Messages that were received."""

    messages: list[Received] | None = None


class DeleteMessage(OfQueue):
    """The input that ends a delivery as done."""

    receipt_handle: str


class DeleteEntry(Shape):
    """A delivery of a batch."""

    id: str
    receipt_handle: str


class DeleteMessageBatch(OfQueue):
    """The input that ends deliveries as done."""

    entries: list[DeleteEntry] = []


class ChangeVisibility(OfQueue):
    """The input that changes the visibility of a delivery."""

    receipt_handle: str
    visibility_timeout: int


class ChangeEntry(Shape):
    """A delivery of a batch."""

    id: str
    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeVisibilityBatch(OfQueue):
    """The input that changes the visibility of deliveries."""

    entries: list[ChangeEntry] = []


class Done(Shape):
    """An entry of a batch that was carried out."""

    id: str


class Batch(Shape):
    """The results of a batch."""

    successful: list[Done]
    failed: list[FailedEntry]


class StartMove(Shape):
    """The input that begins a task that moves messages out of a dead-letter queue."""

    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class TaskHandle(Shape):
    """The handle by which a move task is cancelled."""

    task_handle: str


class ListMoves(Shape):
    """The input that lists the move tasks of a queue."""

    source_arn: str
    max_results: int | None = None


class MoveProgress(Shape, kw_only=True):
    """A move task and its progress."""

    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    moved: int = msgspec.field(name="ApproximateNumberOfMessagesMoved")
    to_move: int | None = msgspec.field(name="ApproximateNumberOfMessagesToMove", default=None)
    failure_reason: str | None = None
    started_timestamp: int


class Moves(Shape):
    """Move tasks, the newest first."""

    results: list[MoveProgress]


class MovedCount(Shape):
    """How many messages a cancelled task moved."""

    moved: int = msgspec.field(name="ApproximateNumberOfMessagesMoved")
