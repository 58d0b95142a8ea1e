"""Refusals of SQS, with the types, codes, texts and statuses of AWS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shardq.errors import (
    BadBody,
    BadName,
    BadReceipt,
    ClockError,
    KeyTaken,
    QueueFull,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
)
from shardq.server.refusals import Refusal
from shardq.server.web import TooMany

if TYPE_CHECKING:
    from shardq.errors import ShardqError

_LEGACY = "AWS.SimpleQueueService."
_CODES: Final = {
    "QueueDoesNotExist": f"{_LEGACY}NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    **{
        kind: f"{_LEGACY}{kind}"
        for kind in (
            *("BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest"),
            *("InvalidBatchEntryId", "TooManyEntriesInBatchRequest", "MessageNotInflight"),
            *("QueueDeletedRecently", "UnsupportedOperation", "PurgeQueueInProgress"),
        )
    },
    "InvalidParameterValueException": "InvalidParameterValue",
    "MissingRequiredParameterException": "MissingParameter",
    "AccessDeniedException": "AccessDenied",
}
"""JSON type -> the code of the query protocol; any other type is its own code."""
_STATUSES: Final = {
    "PurgeQueueInProgress": 403,
    "OverLimit": 403,
    "AccessDeniedException": 403,
    "MissingAuthenticationToken": 403,
    "InvalidClientTokenId": 403,
    "SignatureDoesNotMatch": 403,
    "RequestExpired": 403,
    "ResourceNotFoundException": 404,
    "ServiceUnavailable": 503,
    "InternalFailure": 500,
}
NO_QUEUE = "The specified queue does not exist."
_OUR_FAULT = 500


class SqsRefusal(Exception):
    """A request, or an entry of a batch, that is refused.

    Attributes:
        kind: Its type in the JSON protocol.
        code: Its code in the query protocol.
        text: A sentence; that of AWS if AWS has one.
    """

    def __init__(self, kind: str, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.code = code or _CODES.get(kind, kind)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return _STATUSES.get(self.kind, 400)

    @property
    def is_sender(self) -> bool:
        """True if the sender is to blame."""
        return self.status < _OUR_FAULT


class NoQueue(SqsRefusal):
    """A queue that does not exist."""

    def __init__(self) -> None:
        super().__init__("QueueDoesNotExist", NO_QUEUE)


def wrong(value: object, parameter: str, reason: str) -> SqsRefusal:
    """The refusal of a parameter's value, in the standard sentence."""
    return SqsRefusal(
        "InvalidParameterValueException",
        f"Value {value} for parameter {parameter} is invalid. Reason: {reason}",
    )


def invalid(text: str) -> SqsRefusal:
    """The refusal of invalid parameters, with a text that the caller gives."""
    return SqsRefusal("InvalidParameterValueException", text)


def missing(parameter: str) -> SqsRefusal:
    """The refusal of a request that lacks a parameter."""
    return SqsRefusal(
        "MissingRequiredParameterException", f"The request must contain the parameter {parameter}."
    )


def bad_handle(handle: str) -> SqsRefusal:
    """The refusal of a receipt handle that is not one of this queue."""
    return SqsRefusal(
        "ReceiptHandleIsInvalid",
        f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.',
    )


def expired_handle(handle: str) -> SqsRefusal:
    """The refusal of a FIFO queue's receipt handle that has expired."""
    return wrong(handle, "ReceiptHandle", "The receipt handle has expired.")


def refusal_of(error: SqsRefusal | TooMany | ShardqError) -> SqsRefusal:
    """The refusal of SQS for an error."""
    if isinstance(error, SqsRefusal):
        return error
    if isinstance(error, TooMany):
        return SqsRefusal("RequestThrottled", str(error))
    if isinstance(error, Refusal):
        return SqsRefusal(error.json_type, str(error), error.code)
    kinds = (
        (UnknownQueue, "QueueDoesNotExist", NO_QUEUE),
        (BadReceipt, "ReceiptHandleIsInvalid", ""),
        (BadName, "InvalidParameterValueException", ""),
        (BadBody, "InvalidMessageContents", ""),
        (QueueFull, "OverLimit", ""),
        (UsageError, "InvalidParameterValueException", ""),
        (KeyTaken, "InvalidParameterValueException", ""),
        (StoreFull, "ServiceUnavailable", "The disk under the store is full."),
        (StoreTimeout, "ServiceUnavailable", "The outcome is not known; repeat the request."),
        (StoreUnavailable, "ServiceUnavailable", "The store does not answer; repeat the request."),
        (ClockError, "ServiceUnavailable", "The clock of this server is off."),
        (StoreError, "InternalFailure", "The store failed; the log of the server has more."),
    )
    for kind, name, text in kinds:
        if isinstance(error, kind):
            return SqsRefusal(name, text or str(error))
    return SqsRefusal("InternalFailure", "An error of the server; its log has the request.")
