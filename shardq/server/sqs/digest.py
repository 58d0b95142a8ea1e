"""The MD5 digests by which clients check that a message came through unchanged."""

from __future__ import annotations

import base64
from hashlib import md5
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.server.sqs.shapes import AttributeValue

_LENGTH = Struct(">I")
_TEXT, _BINARY = b"\1", b"\2"


def of_body(body: bytes) -> str:
    """The digest of a body."""
    return md5(body, usedforsecurity=False).hexdigest()


def of_attributes(attributes: Mapping[str, AttributeValue]) -> str:
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


def text_of(value: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(value).decode()


def _sized(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value
