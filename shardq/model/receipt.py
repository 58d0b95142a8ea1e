"""The receipt that settles a delivery: position, attempt and serial, signed by its queue."""

from __future__ import annotations

import base64
import binascii
import hmac
import struct
from dataclasses import dataclass

from shardq.errors import BadReceipt, shown
from shardq.model.shard import Layout, Position, Shard


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a receipt token says.

    Attributes:
        position: Where the row was.
        attempt: The number of the delivery that it stands for; 0 of none.
        serial: The row's serial when that delivery began: in a group lane the row stays where it
            is, and an attempt that was given back has its number twice.
    """

    position: Position
    attempt: int
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Signed:
    """The one receipt of a message's copy, which has no signer: in a pickle no secret travels.

    Attributes:
        token: The receipt.
        layout: Where the queue's rows live.
    """

    token: str
    layout: Layout

    def sign(self, _position: Position, _attempt: int, _serial: int) -> str:
        """The receipt, as it was signed where the message was delivered."""
        return self.token


_TOKEN = struct.Struct(">BIqIq16s3s")
_FIRST_BYTE = 2
"""By it a receipt is told from an id."""
_SERIAL_BYTES = 3
_MAC_BYTES = 16
_TOKEN_CHARS = (_TOKEN.size + _MAC_BYTES) // 3 * 4
"""In base64; whole groups of three bytes, so that there is no padding."""
_BEGINS = "Ag"
"""How each begins: its first byte, and the first bits of a lane's number, which are never set."""
_FORMER_BEGINS = "AQ"
_FORMER_CHARS = 76
"""How a receipt of before serials began, and how long it was."""


class Signer:
    """Makes and reads the receipts of one queue.

    Args:
        queue: The queue's name; a receipt of another queue is refused.
        secret: The queue's secret, shared by all its processes through the store.
        layout: Where the queue's rows live.
    """

    def __init__(self, queue: str, secret: bytes, layout: Layout) -> None:
        self.queue = queue
        self.layout = layout
        self._secret = secret
        self._name = queue.encode()

    def sign(self, position: Position, attempt: int, serial: int) -> str:
        """A printable token, of 80 characters `A-Z a-z 0-9 _ -`.

        Args:
            position: Where the row is.
            attempt: The number of the delivery; 0 of none.
            serial: The row's serial when the delivery began; 0 of none.
        """
        shard = position.shard
        place = shard.lane, shard.minute, attempt, position.due_ms, position.id
        raw = _TOKEN.pack(_FIRST_BYTE, *place, serial.to_bytes(_SERIAL_BYTES, "big"))
        return base64.urlsafe_b64encode(raw + self._mac(raw)).decode()

    @staticmethod
    def is_meant(text: str) -> bool:
        """Whether a text that may be an id as well is a receipt, of whatever queue.

        >>> Signer.is_meant("order-7")
        False
        """
        if len(text) == _FORMER_CHARS and text.startswith(_FORMER_BEGINS):
            return True
        return len(text) == _TOKEN_CHARS and text.startswith(_BEGINS)

    def read(self, token: object) -> Receipt:
        """What a token says.

        Raises:
            BadReceipt: If it is none, is damaged, or was signed for another queue.
        """
        if not isinstance(token, str):
            raise BadReceipt(
                f"a message or its receipt is needed, not {type(token).__name__}; pass what put() "
                f"or receive() returned."
            )
        if len(token) == _FORMER_CHARS and token.startswith(_FORMER_BEGINS):
            raise BadReceipt(
                "the receipt was made by an earlier shardq, and settles nothing any more; its "
                "message is delivered again, with a new receipt, when its time is up."
            )
        if not token.startswith(_BEGINS):
            # Its id is what people have of a message, and what they try.
            raise BadReceipt(
                f"{shown(token)} is no receipt; pass a receipt on unchanged, or the message that "
                f"put() or receive() returned; where this is a message's id or key, find(id) or "
                f"find(key=..) looks it up."
            )
        if len(token) != _TOKEN_CHARS:
            raise BadReceipt(
                f"the receipt is damaged: it has {len(token):,} characters, not {_TOKEN_CHARS}; "
                f"pass it on unchanged."
            )
        try:
            given = token.encode("ascii")
            data = base64.b64decode(given, altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error) as error:
            raise BadReceipt("the receipt is damaged; pass it on unchanged.") from error
        raw, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        # Even a validating decoder takes `+` for `-` and padding in excess, so that several tokens
        # would stand for one receipt.
        is_canonical = base64.urlsafe_b64encode(data) == given
        if not is_canonical or len(raw) != _TOKEN.size or raw[0] != _FIRST_BYTE:
            raise BadReceipt("the receipt is damaged; pass it on unchanged.")
        if not hmac.compare_digest(mac, self._mac(raw)):
            raise BadReceipt(f"the receipt is damaged, or not one of queue {self.queue!r}.")
        _, lane, minute, attempt, due_ms, row_id, serial = _TOKEN.unpack(raw)
        position = Position(Shard(self.queue, minute, lane), due_ms, row_id)
        return Receipt(position, attempt, int.from_bytes(serial, "big"))

    def _mac(self, raw: bytes) -> bytes:
        return hmac.digest(self._secret, self._name + b"\0" + raw, "sha256")[:_MAC_BYTES]
