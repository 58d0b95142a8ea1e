"""Sending, receiving and ending messages."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from shardq.errors import BadReceipt, ReceiptError, ShardqError, StoreError
from shardq.server.grants import Level
from shardq.server.hub import check_store
from shardq.server.sqs import attributes, beyond, contents, shapes
from shardq.server.sqs.actions import action
from shardq.server.sqs.errors import (
    SqsRefusal,
    bad_handle,
    expired_handle,
    invalid,
    missing,
    refusal_of,
    wrong,
)
from shardq.server.sqs.shapes import (
    AttributeValue,
    Batch,
    Done,
    FailedEntry,
    Received,
    ReceivedMessages,
    SentBatch,
    SentMessage,
)
from shardq.server.web import QUICK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.model.message import Message
    from shardq.server.sqs.call import ActionCall
    from shardq.server.sqs.names import SqsQueue

_BATCH_MAX = 10
_RECEIVE_MAX = 10
_WAIT_S_MAX = 20
_DELAY_S_MAX = 900
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GROUP = re.compile(r"[!-~]{1,128}")
_SOURCE: Final = "DeadLetterQueueSourceArn"
_SYSTEM: Final = (
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    contents.TRACE,
    _SOURCE,
)
_NOT_OF_TYPE = "The request include parameter that is not valid for this queue type."


@action("SendMessage", Level.PUT, shapes.SendMessage)
async def send_message(call: ActionCall, given: shapes.SendMessage) -> SentMessage:
    """Send a message."""
    opened = await call.queue(given.queue_url)
    _check_group(opened, given)
    sending = _Sending(call, opened, given)
    await call.site.check_depth(call.caller, opened.served)
    message = await sending.send()
    opened.changed()
    return sending.sent(message)


@action("SendMessageBatch", Level.PUT, shapes.SendMessageBatch)
async def send_message_batch(call: ActionCall, given: shapes.SendMessageBatch) -> SentBatch:
    """Send messages."""
    opened = await call.queue(given.queue_url)
    entries = given.entries
    _check_entries([one.id for one in entries], "SendMessageBatchRequestEntry")
    size = sum(len(one.message_body.encode("utf-8", "replace")) for one in entries)
    size += sum(_loose_size(one.message_attributes) for one in entries)
    if size > attributes.MESSAGE_BYTES_MAX:
        raise SqsRefusal(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {attributes.MESSAGE_BYTES_MAX} bytes. "
            f"You have sent {size} bytes.",
        )
    for one in entries:
        _check_group(opened, one, is_batch=True)
    await call.site.check_depth(call.caller, opened.served, len(entries))
    failed: list[FailedEntry] = []
    sendings: list[tuple[str, _Sending]] = []
    for one in entries:
        try:
            sendings.append((one.id, _Sending(call, opened, one, is_entry=True)))
        except SqsRefusal as refusal:
            failed.append(_failed(one.id, refusal))
    answers = await _send_all(opened, [sending for _, sending in sendings])
    opened.changed()
    check_store(answers)
    successful: list[SentMessage] = []
    for (entry_id, sending), answer in zip(sendings, answers, strict=True):
        if isinstance(answer, (SqsRefusal, ShardqError)):
            failed.append(_failed(entry_id, answer))
        else:
            successful.append(sending.sent(answer, entry_id))
    return SentBatch(successful=successful, failed=failed)


async def _send_all(
    opened: SqsQueue, sendings: Sequence[_Sending]
) -> list[Message | str | SqsRefusal | ShardqError]:
    """Send messages together, then carry out the commands among them, in their order."""
    plain = [one.item for one in sendings if one.command is None]
    put = iter(await opened.served.put_all(plain))
    answers: list[Message | str | SqsRefusal | ShardqError] = []
    for one in sendings:
        try:
            answers.append(next(put) if one.command is None else await one.send())
        except (SqsRefusal, ShardqError) as error:
            answers.append(error)
    return answers


class _Sending:
    """A message on its way, checked.

    Attributes:
        item: The arguments of the put.
        command: The command to carry out instead; None for a message.

    Raises:
        SqsRefusal: If it cannot be sent.
    """

    def __init__(
        self, call: ActionCall, opened: SqsQueue, given: shapes.Sending, *, is_entry: bool = False
    ) -> None:
        if not given.message_body:
            raise missing("MessageBody")
        contents.check_text(given.message_body, "MessageBody")
        self._opened = opened
        self._body = given.message_body.encode()
        self._attributes = given.message_attributes or {}
        self._system = given.message_system_attributes or {}
        size = len(self._body)
        if self._attributes:
            size += contents.check_attributes(self._attributes)
        most = attributes.number(opened.endpoint, "MaximumMessageSize")
        if size > most:
            how = "cannot be validated" if is_entry else "are invalid"
            raise invalid(
                f"One or more parameters {how}. Reason: Message must be shorter than {most} bytes."
            )
        self.item: dict[str, Any] = {"body": self._body}
        self.command: beyond.KeyCommand | None = None
        delay_s = _delay_s(opened, given)
        if delay_s is not None:
            self.item["delay"] = timedelta(seconds=delay_s)
        extra = contents.Extra()
        self._add_group(given, extra)
        self._add_system(extra)
        if call.account != opened.address.account:
            extra.sender = call.account
        if self._attributes:
            self.command = beyond.apply(self._attributes, self.item)
            if self.command is not None:
                call.check_also(opened, self.command.action, self.command.level)
        headers = contents.headers_of(self._attributes, extra)
        if headers:
            self.item["headers"] = headers

    async def send(self) -> Message | str:
        """Send it; returns the message, or the id of the message that a command changed."""
        if self.command is not None:
            return await self.command.run(self._opened.served)
        return await self._opened.served.put(self.item)

    def sent(self, message: Message | str, entry_id: str | None = None) -> SentMessage:
        """The answer to the sender."""
        message_id = message if isinstance(message, str) else message.id
        return SentMessage(
            id=entry_id,
            message_id=message_id,
            body_digest=contents.digest_of(self._body),
            attributes_digest=(
                contents.digest_of_attributes(self._attributes) if self._attributes else None
            ),
            system_digest=contents.digest_of_attributes(self._system) if self._system else None,
            sequence_number=contents.sequence_of(message_id) if self._opened.is_fifo else None,
        )

    def _add_group(self, given: shapes.Sending, extra: contents.Extra) -> None:
        group, once = given.message_group_id, given.message_deduplication_id
        if not self._opened.is_fifo:
            extra.group = group
            return
        self.item["group"] = group
        if once is None:
            once = hashlib.sha256(self._body).hexdigest()
        extra.once = once
        endpoint = self._opened.endpoint
        if endpoint.attributes.get("DeduplicationScope") == "messageGroup":
            once = hashlib.sha256(f"{group}\n{once}".encode()).hexdigest()
        self.item["once"] = once

    def _add_system(self, extra: contents.Extra) -> None:
        for name, one in self._system.items():
            if name != contents.TRACE:
                raise invalid(f"Message system attribute name '{name[:100]}' is invalid.")
            if one.data_type != "String" or not one.string_value:
                raise invalid(f"Message system attribute '{name}' must be a non-empty String.")
            contents.check_text(one.string_value, name)
            extra.trace = one.string_value


def _loose_size(given: shapes.Attributes) -> int:
    """The approximate size of attributes in bytes, before they are checked."""
    return sum(
        len(name)
        + len(one.data_type)
        + len(one.binary_value or (one.string_value or "").encode("utf-8", "replace"))
        for name, one in (given or {}).items()
    )


def _delay_s(opened: SqsQueue, given: shapes.Sending) -> int | None:
    """The delay of a message in seconds; None: the queue's."""
    delay_s = given.delay_seconds
    if delay_s is None or (opened.is_fifo and delay_s == 0):
        return None
    if not 0 <= delay_s <= _DELAY_S_MAX:
        raise wrong(delay_s, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
    if opened.is_fifo:
        raise wrong(delay_s, "DelaySeconds", _NOT_OF_TYPE)
    return delay_s


def _check_group(opened: SqsQueue, given: shapes.Sending, *, is_batch: bool = False) -> None:
    """Refuse a group or a deduplication id that is missing, damaged, or not for the queue."""
    group, once = given.message_group_id, given.message_deduplication_id
    for value, name in ((group, "MessageGroupId"), (once, "MessageDeduplicationId")):
        if value is not None and not _GROUP.fullmatch(value):
            raise wrong(
                value[:200],
                name,
                f"{name} can only include alphanumeric and punctuation characters. "
                "1 to 128 in length.",
            )
    if not opened.is_fifo:
        if once is not None:
            raise wrong(once, "MessageDeduplicationId", _NOT_OF_TYPE)
        return
    if group is None:
        refusal = missing("MessageGroupId")
        raise invalid(refusal.text) if is_batch else refusal
    if once is None and not attributes.flag(opened.endpoint, "ContentBasedDeduplication"):
        raise invalid(
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly"
        )


# Receiving ----------------------------------------------------------------------------------------


@action("ReceiveMessage", Level.READ, shapes.ReceiveMessage)
async def receive_message(call: ActionCall, given: shapes.ReceiveMessage) -> ReceivedMessages:
    """Receive messages."""
    opened = await call.queue(given.queue_url)
    most = 1 if given.max_number_of_messages is None else given.max_number_of_messages
    if not 1 <= most <= _RECEIVE_MAX:
        raise contents.out_of_range(most, "MaxNumberOfMessages", 1, _RECEIVE_MAX)
    wait_s = given.wait_time_seconds
    if wait_s is None:
        wait_s = attributes.number(opened.endpoint, "ReceiveMessageWaitTimeSeconds")
    elif not 0 <= wait_s <= _WAIT_S_MAX:
        raise wrong(wait_s, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
    visibility_s = given.visibility_timeout
    if visibility_s is None:
        visibility_s = attributes.number(opened.endpoint, "VisibilityTimeout")
    else:
        _check_visibility(visibility_s)
    system = _system_names(given)
    wanted = contents.WantedAttributes(given.message_attribute_names or ())
    queue = opened.served.queue
    work = queue.receive(
        most,
        timedelta(seconds=visibility_s),
        timedelta(seconds=wait_s),
        per_group=most if opened.is_fifo else 1,
        lasting=True,
    )
    found = await call.site.poll(work, call.caller)
    if not found:
        return ReceivedMessages()
    opened.changed()
    call.on_unsent = lambda: queue.snooze(found, timedelta(0), partial=True)

    if _SOURCE in system:
        sources = {name for one in found if (name := contents.source_of(one.headers))}
        # An answer without the ARN is better than none: the messages are this client's already.
        with suppress(StoreError):
            await call.directory.learn(sources, opened.address)

    def received() -> ReceivedMessages:
        return ReceivedMessages(
            messages=[_received(call, opened, one, system, wanted) for one in found]
        )

    # Ten messages of 1 MiB, or some 100,000 names that are asked for, take a second.
    size_bytes = len(call.request.body) + sum(one._row.size_bytes for one in found)
    call.is_large = size_bytes > QUICK_BYTES
    return await call.site.threads.call(received) if call.is_large else received()


def _system_names(given: shapes.ReceiveMessage) -> set[str]:
    names = {*(given.attribute_names or ()), *(given.message_system_attribute_names or ())}
    if not names:
        return names
    if "All" in names:
        return {*_SYSTEM}
    if unknown := names - {*_SYSTEM}:
        raise SqsRefusal("InvalidAttributeName", f"Unknown Attribute {min(unknown)[:100]}.")
    return names


def _received(
    call: ActionCall,
    opened: SqsQueue,
    message: Message,
    system: set[str],
    wanted: contents.WantedAttributes,
) -> Received:
    body, is_encoded = contents.body_of(message)
    headers = message.headers
    extra = contents.extra_of(headers)
    found: dict[str, AttributeValue] = {}
    if wanted and headers:
        found = contents.attributes_of(headers, extra, wanted)
    if is_encoded:
        # Also if it is not wanted, because the client could not read the body otherwise.
        found[contents.ENCODING] = AttributeValue(data_type="String", string_value="base64")
    made = Received(
        message_id=message.id,
        receipt_handle=message.receipt,
        body_digest=contents.digest_of(body.encode() if is_encoded else message.body),
        body=body,
    )
    if system:
        told = _told(call, opened, message, extra, headers)
        made.attributes = {name: told[name] for name in told if name in system}
    if found:
        made.message_attributes = found
        made.attributes_digest = contents.digest_of_attributes(found)
    return made


def _told(
    call: ActionCall,
    opened: SqsQueue,
    message: Message,
    extra: contents.Extra,
    headers: dict[str, str],
) -> dict[str, str]:
    """The system attributes of a message."""
    address = opened.address
    source = contents.source_of(headers)
    found = {
        "SenderId": extra.sender or address.account,
        "SentTimestamp": str(contents.sent_ms(message)),
        "ApproximateReceiveCount": str(message.attempt),
        "ApproximateFirstReceiveTimestamp": str(_first_received_ms(message)),
        "SequenceNumber": contents.sequence_of(message.id) if opened.is_fifo else None,
        "MessageDeduplicationId": extra.once if opened.is_fifo else None,
        "MessageGroupId": message.group if opened.is_fifo else extra.group,
        contents.TRACE: extra.trace,
        _SOURCE: source and call.directory.arn_of(source, address),
    }
    return {name: value for name, value in found.items() if value}


def _first_received_ms(message: Message) -> int:
    at = message.first_received
    return int((at or message.due).timestamp() * 1_000)


# Ending -------------------------------------------------------------------------------------------


@action("DeleteMessage", Level.ACK, shapes.DeleteMessage)
async def delete_message(call: ActionCall, given: shapes.DeleteMessage) -> None:
    """End a delivery as done."""
    opened = await call.queue(given.queue_url)
    [error] = await _end(opened, [given.receipt_handle])
    opened.changed()
    if error is not None:
        raise error


@action("DeleteMessageBatch", Level.ACK, shapes.DeleteMessageBatch)
async def delete_message_batch(call: ActionCall, given: shapes.DeleteMessageBatch) -> Batch:
    """End deliveries as done."""
    opened = await call.queue(given.queue_url)
    entries = given.entries
    _check_entries([one.id for one in entries], "DeleteMessageBatchRequestEntry")
    answers = await _end(opened, [one.receipt_handle for one in entries])
    opened.changed()
    return _batch([one.id for one in entries], answers)


async def _end(opened: SqsQueue, handles: Sequence[str]) -> list[ShardqError | SqsRefusal | None]:
    """End deliveries; returns why each was refused, or None."""
    # In a FIFO queue only the receipt of the present delivery ends a message.
    errors = await opened.served.ack_all(handles, redelivered=not opened.is_fifo)
    return [
        await _unended(opened, handle, error) if isinstance(error, ReceiptError) else error
        for handle, error in zip(handles, errors, strict=True)
    ]


async def _unended(opened: SqsQueue, handle: str, error: ReceiptError) -> SqsRefusal | None:
    if isinstance(error, BadReceipt):
        return bad_handle(handle)
    if opened.is_fifo and await _is_there(opened, handle):
        return expired_handle(handle)
    return None


async def _is_there(opened: SqsQueue, handle: str) -> bool:
    """True if the message of a stale handle is still where it was delivered."""
    return await opened.served.queue.find(handle, near=True) is not None


@action("ChangeMessageVisibility", Level.UPDATE, shapes.ChangeVisibility)
async def change_message_visibility(call: ActionCall, given: shapes.ChangeVisibility) -> None:
    """Change the visibility of a delivery."""
    opened = await call.queue(given.queue_url)
    _check_visibility(given.visibility_timeout)
    [answer] = await _extend(opened, [given.receipt_handle], given.visibility_timeout)
    opened.changed()
    if answer is not None:
        raise answer


@action("ChangeMessageVisibilityBatch", Level.UPDATE, shapes.ChangeVisibilityBatch)
async def change_message_visibility_batch(
    call: ActionCall, given: shapes.ChangeVisibilityBatch
) -> Batch:
    """Change the visibility of deliveries."""
    opened = await call.queue(given.queue_url)
    entries = given.entries
    _check_entries([one.id for one in entries], "ChangeMessageVisibilityBatchRequestEntry")
    by_timeout: dict[int, list[shapes.ChangeEntry]] = {}
    answers: dict[str, SqsRefusal | None] = {}
    for one in entries:
        try:
            if one.visibility_timeout is None:
                raise missing("VisibilityTimeout")
            _check_visibility(one.visibility_timeout)
            by_timeout.setdefault(one.visibility_timeout, []).append(one)
        except SqsRefusal as refusal:
            answers[one.id] = refusal
    for timeout_s, some in by_timeout.items():
        extended = await _extend(opened, [one.receipt_handle for one in some], timeout_s)
        answers.update(zip((one.id for one in some), extended, strict=True))
    opened.changed()
    names = [one.id for one in entries]
    return _batch(names, [answers[name] for name in names])


async def _extend(
    opened: SqsQueue, handles: Sequence[str], timeout_s: int
) -> list[SqsRefusal | None]:
    """Extend deliveries, or end them now; returns why each was refused, or None."""
    answers = await opened.served.queue.extend(
        handles, timedelta(seconds=timeout_s), partial=True, redelivered=not opened.is_fifo
    )
    return [
        await _unextended(opened, handle, answer) if isinstance(answer, ReceiptError) else None
        for handle, answer in zip(handles, answers, strict=True)
    ]


async def _unextended(opened: SqsQueue, handle: str, error: ReceiptError) -> SqsRefusal:
    if isinstance(error, BadReceipt):
        return bad_handle(handle)
    if await _is_there(opened, handle):
        return SqsRefusal(
            "MessageNotInflight",
            f"Value {handle} for parameter ReceiptHandle is invalid. Reason: Message is not in "
            "flight.",
        )
    return wrong(
        handle,
        "ReceiptHandle",
        "Message does not exist or is not available for visibility timeout change.",
    )


def _check_visibility(timeout_s: int) -> None:
    if not 0 <= timeout_s <= attributes.VISIBILITY_S_MAX:
        raise wrong(
            timeout_s,
            "VisibilityTimeout",
            f"VisibilityTimeout must be >= 0 and <= {attributes.VISIBILITY_S_MAX}.",
        )


# Batches ------------------------------------------------------------------------------------------


def _check_entries(names: Sequence[str], entry: str) -> None:
    """Refuse a batch as a whole, by the ids of its entries."""
    if not names:
        raise SqsRefusal(
            "EmptyBatchRequest", f"There should be at least one {entry} in the request."
        )
    if len(names) > _BATCH_MAX:
        raise SqsRefusal(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {_BATCH_MAX}. You have sent {len(names)}.",
        )
    for name in names:
        if not _ENTRY_ID.fullmatch(name):
            raise SqsRefusal(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                "underscores. It can be at most 80 letters long.",
            )
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SqsRefusal("BatchEntryIdsNotDistinct", f"Id {name} repeated.")
        seen.add(name)


def _batch(names: Sequence[str], answers: Sequence[object]) -> Batch:
    check_store(answers)
    made = Batch(successful=[], failed=[])
    for name, answer in zip(names, answers, strict=True):
        if answer is None:
            made.successful.append(Done(id=name))
        elif isinstance(answer, (SqsRefusal, ShardqError)):
            made.failed.append(_failed(name, answer))
    return made


def _failed(name: str, error: SqsRefusal | ShardqError) -> FailedEntry:
    refusal = refusal_of(error)
    return FailedEntry(
        id=name, sender_fault=refusal.is_sender, code=refusal.code, message=refusal.text
    )
