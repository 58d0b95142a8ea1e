"""The attributes of a queue: bounds, defaults, and counts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from shardq.server.endpoints import EndpointAddress
from shardq.server.sqs import policy
from shardq.server.sqs.errors import SqsRefusal, wrong

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.inspection.depth import Depth
    from shardq.server.endpoints import Endpoint

MESSAGE_BYTES_MAX = 1 << 20
VISIBILITY_S_MAX = 43_200
RECEIVES_MAX = 1_000
ATTEMPTS_MAX = 10_000
"""Without a redrive policy SQS delivers for ever; shardq buries after this many deliveries."""
_SOURCES_MAX = 10
_TEXT_CHARS_MAX = {
    "KmsMasterKeyId": 2_048,
    "RedrivePolicy": 4_096,
    "RedriveAllowPolicy": 4_096,
}
"""Attribute -> its most characters. The first is AWS's, which names none for the others: ten ARNs
of sources have 1,500. They are read again every 3 s. `policy.read` bounds a policy."""


class _Range(NamedTuple):
    least: int
    most: int
    usual: int


_NUMBERS: Final = {
    "DelaySeconds": _Range(0, 900, 0),
    "MaximumMessageSize": _Range(1_024, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
    "MessageRetentionPeriod": _Range(60, 1_209_600, 345_600),
    "ReceiveMessageWaitTimeSeconds": _Range(0, 20, 0),
    "VisibilityTimeout": _Range(0, VISIBILITY_S_MAX, 30),
    "KmsDataKeyReusePeriodSeconds": _Range(60, 86_400, 300),
}
_FLAGS: Final = {"SqsManagedSseEnabled", "FifoQueue", "ContentBasedDeduplication"}
_CHOICES: Final = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_OF_FIFO: Final = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
_DOCUMENTS: Final = ("Policy", "RedrivePolicy", "RedriveAllowPolicy")
_SETTABLE: Final = {*_NUMBERS, *_FLAGS, *_CHOICES, *_DOCUMENTS, "KmsMasterKeyId"}
_COUNTED: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_TOLD: Final = {*_COUNTED, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"}
_NUMBER = re.compile("[0-9]{1,9}")


class RedrivePolicy(msgspec.Struct, frozen=True, rename="camel"):
    """A redrive policy.

    Attributes:
        dead_letter_target_arn: The ARN of the dead-letter queue.
        max_receive_count: How often a message is received before it goes there.
    """

    dead_letter_target_arn: str
    max_receive_count: Annotated[int, msgspec.Meta(ge=1, le=RECEIVES_MAX)]

    @property
    def target(self) -> EndpointAddress:
        """The address of the dead-letter queue."""
        address = EndpointAddress.of_arn(self.dead_letter_target_arn)
        assert address is not None  # noqa: S101 - `redrive_of` has refused any other
        return address


class RedriveAllow(msgspec.Struct, frozen=True, rename="camel"):
    """A policy about which queues may have this one as their dead-letter queue.

    Attributes:
        redrive_permission: `allowAll`, `denyAll` or `byQueue`.
        source_queue_arns: The ARNs of the queues that may, if it is `byQueue`.
    """

    redrive_permission: str
    source_queue_arns: list[str] = []

    def allows(self, arn: str) -> bool:
        """True if a queue may have this one as its dead-letter queue."""
        if self.redrive_permission == "byQueue":
            return arn in self.source_queue_arns
        return self.redrive_permission == "allowAll"


def checked(given: Mapping[str, str], address: EndpointAddress, *, is_new: bool) -> dict[str, str]:
    """Attributes that a client sets, each in its canonical form; an empty one removes the old one.

    Args:
        given: The attributes as the client gave them.
        address: The queue's.
        is_new: True if the queue is being made.

    Raises:
        SqsRefusal: If one is unknown or has an invalid value.
    """
    is_fifo = address.name.endswith(".fifo")
    found: dict[str, str] = {}
    for given_name, value in given.items():
        # AWS trims names, too.
        name = given_name.strip()
        if name not in _SETTABLE or (name in _OF_FIFO and not is_fifo):
            raise SqsRefusal("InvalidAttributeName", f"Unknown Attribute {name}.")
        if name == "FifoQueue" and (value != "true" or not is_new):
            if value != "true":
                raise _invalid(name)
            continue
        found[name] = _form_of(name, value, address)
    if (
        found.get("FifoThroughputLimit") == "perMessageGroupId"
        and given.get("DeduplicationScope", "messageGroup") != "messageGroup"
    ):
        raise _invalid("FifoThroughputLimit")
    return found


def _form_of(name: str, value: str, address: EndpointAddress) -> str:
    """The canonical form of a valid value."""
    if name in _NUMBERS:
        least, most, _ = _NUMBERS[name]
        if not (_NUMBER.fullmatch(value) and least <= int(value) <= most):
            raise _invalid(name)
        return str(int(value))
    if name in _FLAGS:
        if value.lower() not in {"true", "false"}:
            raise _invalid(name)
        return value.lower()
    if name in _CHOICES and value not in _CHOICES[name]:
        raise _invalid(name)
    if len(value) > _TEXT_CHARS_MAX.get(name, len(value)):
        raise _invalid(name)
    if name in _DOCUMENTS and not value:
        return ""
    if name == "Policy":
        policy.read(value)
    elif name == "RedrivePolicy":
        found_policy = redrive_of(value, address)
        # A count that was given as text is read back as a number.
        is_number = isinstance(msgspec.json.decode(value)["maxReceiveCount"], int)
        return value if is_number else msgspec.json.encode(found_policy).decode()
    elif name == "RedriveAllowPolicy":
        return msgspec.json.encode(redrive_allow_of(value)).decode()
    return value


def redrive_of(text: str, address: EndpointAddress) -> RedrivePolicy:
    """A redrive policy by its text.

    Raises:
        SqsRefusal: If the text is no such policy, or names a queue that cannot be this queue's
            dead-letter queue.
    """
    try:
        # AWS takes the count as text or as a number.
        made = msgspec.convert(msgspec.json.decode(text), RedrivePolicy, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _redrive_error(text, error) from error
    target = EndpointAddress.of_arn(made.dead_letter_target_arn)
    if target is None or target[:2] != address[:2]:
        raise wrong(text, "RedrivePolicy", "Invalid value for deadLetterTargetArn.")
    if target.name.endswith(".fifo") != address.name.endswith(".fifo"):
        raise wrong(
            text, "RedrivePolicy", "Dead-letter queue must be same type of queue as the source."
        )
    return made


def _redrive_error(text: str, error: Exception) -> SqsRefusal:
    missing = [name for name in ("maxReceiveCount", "deadLetterTargetArn") if name not in text]
    is_map = text.lstrip().startswith("{")
    if not is_map or not isinstance(error, msgspec.ValidationError):
        reason = "Redrive policy is not a valid JSON map."
    elif missing:
        reason = f"Redrive policy does not contain mandatory attribute: {missing[0]}."
    else:
        reason = (
            "Invalid value for maxReceiveCount, valid values are from 1 to "
            f"{RECEIVES_MAX} both inclusive."
        )
    return wrong(text, "RedrivePolicy", reason)


def redrive_allow_of(text: str) -> RedriveAllow:
    """A policy about a dead-letter queue's sources, by its text.

    Raises:
        SqsRefusal: If the text is no such policy.
    """
    try:
        made = msgspec.json.decode(text, type=RedriveAllow)
    except (msgspec.DecodeError, RecursionError) as error:
        raise wrong(
            text, "RedriveAllowPolicy", "Amazon SQS can't create the redrive allow policy."
        ) from error
    is_by_queue = made.redrive_permission == "byQueue"
    is_known = made.redrive_permission in {"allowAll", "denyAll", "byQueue"}
    is_sized = is_by_queue == (0 < len(made.source_queue_arns) <= _SOURCES_MAX)
    if not is_known or not is_sized:
        raise wrong(text, "RedriveAllowPolicy", "Amazon SQS can't create the redrive allow policy.")
    return made


def redrive(endpoint: Endpoint, address: EndpointAddress) -> RedrivePolicy | None:
    """The redrive policy of a queue; None without one."""
    text = endpoint.attributes.get("RedrivePolicy")
    return redrive_of(text, address) if text else None


def number(endpoint: Endpoint, name: str) -> int:
    """The value of an attribute that is a number; its default if it was not set."""
    value = endpoint.attributes.get(name)
    return _NUMBERS[name].usual if value is None else int(value)


def flag(endpoint: Endpoint, name: str) -> bool:
    """True if an attribute that is a flag is set."""
    return endpoint.attributes.get(name) == "true"


def merged(before: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Attributes after a change: an empty document is removed."""
    changed = {**before, **given}
    return {name: value for name, value in changed.items() if value or name not in _DOCUMENTS}


def difference(
    endpoint: Endpoint, address: EndpointAddress, given: Mapping[str, str]
) -> str | None:
    """The first attribute whose given value is not the queue's; None if there is none."""
    present = _set(endpoint, address)
    for name, value in given.items():
        stored = present.get(name, "")
        if stored != value and not _is_same(stored, value):
            return name
    return None


def _is_same(one: str, other: str) -> bool:
    """True if two documents are the same JSON."""
    if not (one.startswith("{") and other.startswith("{")):
        return False
    try:
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    except (msgspec.DecodeError, RecursionError):
        return False


def _set(endpoint: Endpoint, address: EndpointAddress) -> dict[str, str]:
    """All attributes that can be set, with their defaults."""
    usual = {name: str(value.usual) for name, value in _NUMBERS.items()}
    if "KmsMasterKeyId" not in endpoint.attributes:
        del usual["KmsDataKeyReusePeriodSeconds"]
    usual["SqsManagedSseEnabled"] = "false" if endpoint.attributes.get("KmsMasterKeyId") else "true"
    if address.name.endswith(".fifo"):
        usual |= _OF_FIFO
    return usual | endpoint.attributes


def asked(names: Iterable[str]) -> set[str]:
    """The names of attributes that a client asks for.

    Raises:
        SqsRefusal: If one is unknown.
    """
    known = _SETTABLE | _TOLD
    found: set[str] = set()
    for name in names:
        if name == "All":
            found |= known
        elif name in known:
            found.add(name)
        else:
            raise SqsRefusal("InvalidAttributeName", f"Unknown Attribute {name}.")
    return found


def needs_depth(names: set[str]) -> bool:
    """True if one of these attributes is a count of messages."""
    return not names.isdisjoint(_COUNTED)


def told(
    names: set[str], endpoint: Endpoint, address: EndpointAddress, depth: Depth | None
) -> dict[str, str]:
    """The values of attributes.

    Args:
        names: The wanted attributes.
        endpoint: The queue's record.
        address: Its address.
        depth: How many messages there are; None if no count is wanted.
    """
    all_of: dict[str, Any] = {
        "QueueArn": address.arn,
        "CreatedTimestamp": endpoint.made_ms // 1_000,
        "LastModifiedTimestamp": endpoint.changed_ms // 1_000,
        **_set(endpoint, address),
    }
    if depth is not None:
        counts = depth.ready, depth.in_flight, depth.waiting
        all_of |= dict(zip(_COUNTED, counts, strict=True))
    return {name: str(value) for name, value in all_of.items() if name in names}


def _invalid(name: str) -> SqsRefusal:
    return SqsRefusal("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
