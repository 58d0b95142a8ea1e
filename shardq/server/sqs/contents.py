"""The content of a message of SQS in shardq: attributes and headers, ids and sequence numbers.

```
 attribute of type String      the header of its name; a header put by Python is such an attribute
 any other attribute           in the header `sqs`, JSON, with the group, trace and so on
 sequence number, time sent    inside the message's id
```
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from hashlib import md5
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from shardq.model import ids
from shardq.server.sqs.errors import SqsRefusal, invalid, wrong
from shardq.server.sqs.shapes import AttributeValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.model.message import Message

HEADER: Final = "sqs"
"""The header that holds properties of a message that SQS has and shardq lacks."""
OURS: Final = "x-shardq-"
"""The prefix of attributes that use features of shardq that SQS lacks."""
_RESERVED: Final = "shardq-"
ATTRIBUTES_MAX = 10
_NAME = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_TYPE = re.compile(r"(String|Number|Binary)(?:\..{1,248})?")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,38}(?:\.[0-9]{0,128})?|\.[0-9]{1,128})(?:[eE][+-]?[0-9]{1,3})?"
)
CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that a message of SQS may not have."""
ENCODING: Final = "shardq-encoding"
TRACE: Final = "AWSTraceHeader"
_SOURCE_HEADER: Final = "shardq-queue"

_LENGTH = Struct(">I")
_TEXT, _BINARY = b"\1", b"\2"


class Extra(msgspec.Struct, omit_defaults=True):
    """The JSON of the header `sqs`.

    Attributes:
        attributes: Name -> type and value of attributes that are not plain text; binary in base64.
        group: The group of a message in a standard queue.
        once: The deduplication id.
        trace: AWS's trace header.
        sender: The account of the sender, if it is not the queue's.
    """

    attributes: dict[str, tuple[str, str]] = {}
    group: str | None = None
    once: str | None = None
    trace: str | None = None
    sender: str | None = None


_decoder = msgspec.json.Decoder(Extra)
_encoder = msgspec.json.Encoder()
_NOTHING: Final = Extra()


def check_text(value: str, what: str) -> None:
    """Refuse a text with a character that a message may not have.

    Raises:
        SqsRefusal: If it has such a character.
    """
    if CONTROL.search(value):
        raise SqsRefusal("InvalidMessageContents", f"Invalid characters found: {what}")


def check_attributes(given: Mapping[str, AttributeValue]) -> int:
    """Refuse attributes that cannot be sent; returns how many bytes they have.

    Raises:
        SqsRefusal: If the name, type or value of one is invalid, or there are more than 10.
    """
    if sum(not name.startswith(OURS) for name in given) > ATTRIBUTES_MAX:
        raise invalid(
            f"Number of message attributes [{len(given)}] exceeds the allowed maximum "
            f"[{ATTRIBUTES_MAX}]."
        )
    size = 0
    for name, one in given.items():
        if not name:
            raise invalid("The message attribute name must not be empty.")
        if not _NAME.fullmatch(name) or name.lower().startswith(("aws.", "amazon.")):
            raise invalid(
                f"The message attribute name '{name[:256]}' is invalid. Attribute name can contain "
                "A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) characters."
            )
        size += len(name) + len(one.data_type.encode()) + _check_value(name, one)
    return size


def _check_value(name: str, one: AttributeValue) -> int:
    if not one.data_type:
        raise invalid(
            f"The message attribute '{name}' must contain a non-empty message attribute type."
        )
    found = _TYPE.fullmatch(one.data_type)
    if found is None:
        raise invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of "
            "supported type prefixes is Binary, Number, and String."
        )
    if one.string_list_values or one.binary_list_values:
        raise SqsRefusal(
            "UnsupportedOperation",
            "Message attribute list values in SendMessage operation are not supported.",
        )
    if found[1] == "Binary":
        if one.string_value is not None or not one.binary_value:
            raise _no_value(name, one.data_type)
        return len(one.binary_value)
    if one.binary_value is not None or not one.string_value:
        raise _no_value(name, one.data_type)
    if CONTROL.search(one.string_value):
        raise invalid(
            f"Invalid characters found in the value of message (user) attribute '{name}'."
        )
    if found[1] == "Number" and not _NUMBER.fullmatch(one.string_value):
        raise invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    return len(one.string_value.encode())


def _no_value(name: str, data_type: str) -> SqsRefusal:
    return invalid(
        f"The message attribute '{name}' must contain a non-empty value of its type, '{data_type}'."
    )


def headers_of(attributes: Mapping[str, AttributeValue], extra: Extra) -> dict[str, str]:
    """The headers with which a message is stored.

    Args:
        attributes: Its attributes, checked.
        extra: The other properties to keep; gets the attributes that are not headers.
    """
    headers: dict[str, str] = {}
    for name, one in attributes.items():
        if name.startswith(OURS):
            continue
        if one.data_type == "String" and name != HEADER and not name.startswith(_RESERVED):
            headers[name] = one.string_value or ""
        else:
            binary = one.binary_value
            value = (one.string_value or "") if binary is None else _base64(binary)
            extra.attributes[name] = (one.data_type, value)
    if extra != _NOTHING:
        headers[HEADER] = _encoder.encode(extra).decode()
    return headers


def extra_of(headers: Mapping[str, str]) -> Extra:
    """The content of a message's header `sqs`; empty if a worker put another header there."""
    text = headers.get(HEADER)
    if text is None:
        return _NOTHING
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING


def attributes_of(
    headers: Mapping[str, str], extra: Extra, wanted: WantedAttributes
) -> dict[str, AttributeValue]:
    """The wanted attributes of a message."""
    found: dict[str, AttributeValue] = {}
    for name, value in headers.items():
        is_plain = name != HEADER and not name.startswith(_RESERVED)
        if is_plain and value and wanted.has(name) and _NAME.fullmatch(name):
            found[name] = AttributeValue(data_type="String", string_value=CONTROL.sub("?", value))
    for name, (data_type, value) in extra.attributes.items():
        if wanted.has(name):
            found[name] = _value_of(data_type, value)
    return found


def _value_of(data_type: str, value: str) -> AttributeValue:
    if data_type.startswith("Binary"):
        with suppress(msgspec.ValidationError):
            return AttributeValue(data_type=data_type, binary_value=msgspec.convert(value, bytes))
        # A worker put this value. It is not base64, so it is returned as text.
        data_type = "String"
    return AttributeValue(data_type=data_type, string_value=value)


def source_of(headers: Mapping[str, str]) -> str | None:
    """The name of the queue in which a dead message died; None for any other message."""
    return headers.get(_SOURCE_HEADER)


class WantedAttributes:
    """The names of attributes that a receiver asks for.

    Args:
        names: The names. `prefix.*` stands for all with that prefix, `All` and `.*` for all.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._is_all = not self._names.isdisjoint({"All", ".*"})
        self._prefixes = tuple(
            one[:-2] if one.endswith(".*") else one[:-1] for one in self._names if one.endswith("*")
        )

    def __bool__(self) -> bool:
        return bool(self._names)

    def has(self, name: str) -> bool:
        """True if an attribute is wanted."""
        return self._is_all or name in self._names or name.startswith(self._prefixes or ("\0",))


def body_of(message: Message) -> tuple[str, bool]:
    """The body of a message as text, and True if the text is base64.

    A message that Python put may have bytes that SQS cannot carry as text.
    """
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return _base64(message.body), True
    if not text or CONTROL.search(text):
        return _base64(message.body), True
    return text, False


def sequence_of(message_id: str) -> str | None:
    """The sequence number of a message, 20 digits; it rises within a group.

    None for a message with an id of its producer's own.

    >>> sequence_of("14950404-1dd2-11b2-88ce-e7ca6830970e")
    '00000000018072585022'
    """
    row_id = ids.from_text(message_id)
    if row_id is None:
        return None
    return f"{ids.birth_us(row_id) * 10_000 + int.from_bytes(row_id[8:10]) % 10_000:020}"


def sent_ms(message: Message) -> int:
    """When a message was sent, epoch milliseconds; its first due if its producer made the id."""
    row_id = ids.from_text(message.id)
    if row_id is None:
        return int(message.first_due.timestamp() * 1_000)
    return ids.birth_us(row_id) // 1_000


def out_of_range(value: int, parameter: str, least: int, most: int) -> SqsRefusal:
    """A number that is out of range."""
    return wrong(value, parameter, f"Must be between {least} and {most}, if provided.")


# Digests ------------------------------------------------------------------------------------------


def digest_of(body: bytes) -> str:
    """The digest of a body."""
    return md5(body, usedforsecurity=False).hexdigest()


def digest_of_attributes(attributes: Mapping[str, AttributeValue]) -> str:
    """The digest of a message's attributes: those that are sent, or returned.

    Source:
        "Calculating the MD5 message digest for message attributes", Amazon SQS Developer Guide.
    """
    parts: list[bytes] = []
    for name in sorted(attributes):
        one = attributes[name]
        parts += (_sized(name.encode()), _sized(one.data_type.encode()))
        if one.binary_value is None:
            parts += (_TEXT, _sized((one.string_value or "").encode()))
        else:
            parts += (_BINARY, _sized(one.binary_value))
    return md5(b"".join(parts), usedforsecurity=False).hexdigest()


def _base64(value: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(value).decode()


def _sized(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value
