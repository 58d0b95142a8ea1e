"""The receipt that settles a delivery: position, attempt and serial, signed by its queue."""

from __future__ import annotations

import binascii
import hmac
import struct
from dataclasses import dataclass

from shardq.errors import BadReceipt, shown
from shardq.model.shard import Layout, Position, Shard


@dataclass(frozen=True, slots=True)
class Receipt:
    """The content of a receipt token.

    Attributes:
        position: The position of the row.
        attempt: The number of the delivery; 0 if the receipt stands for no delivery.
        serial: The row's serial when the delivery began. It tells deliveries apart in a group lane,
        where the row stays in place and an attempt that was given back has its number twice.
        first: The row id of the message's first placement, by which a lasting receipt finds the
            message wherever its row has moved. None: the receipt holds for its position alone.
        key: The row's key in its stored form, in a lasting receipt; empty without one.
    """

    position: Position
    attempt: int
    serial: int = 0
    first: bytes | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Signed:
    """The receipt of a pickled message, in place of a signer: a pickle holds no secret.

    Attributes:
        token: The receipt.
        layout: The layout of the queue.
    """

    token: str
    layout: Layout

    def sign(self, _receipt: Receipt) -> str:
        """The receipt that was signed in the process that delivered the message."""
        return self.token


_FROM_URL, _TO_URL = bytes.maketrans(b"-_", b"+/"), bytes.maketrans(b"+/", b"-_")
_TOKEN = struct.Struct(">BIqIq16s3s")
_FIRST_BYTE = 2
"""The first byte of a receipt. No id begins with it."""
_SERIAL_BYTES = 3
_MAC_BYTES = 16
_TOKEN_CHARS = (_TOKEN.size + _MAC_BYTES) // 3 * 4
"""The length in base64; the bytes are a multiple of three, so that there is no padding."""
_BEGINS = "Ag"
"""The beginning of each token: its first byte, and the first bits of a lane, which are 0."""
_LASTING_BYTE = 3
_LASTING_BEGINS = "Aw"
_FIRST_BYTES = 16
_LASTING_CHARS_MIN = -(-(_TOKEN.size + _FIRST_BYTES + _MAC_BYTES) // 3) * 4
"""The length of a lasting receipt without a key; a key makes it longer."""


def _encoded(data: bytes) -> bytes:
    # This is `base64.urlsafe_b64encode` without its two calls in Python for each receipt.
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL)


class Signer:
    """Makes and reads the receipts of one queue.

    Args:
        queue: The queue's name; a receipt of another queue is refused.
        secret: The queue's secret, shared by all its processes through the store.
        layout: The layout of the queue.
    """

    def __init__(self, queue: str, secret: bytes, layout: Layout) -> None:
        self.queue = queue
        self.layout = layout
        # Copied for each receipt, because `hmac.digest` would first let other threads run.
        self._begun = hmac.new(secret, queue.encode() + b"\0", "sha256")

    def sign(self, receipt: Receipt) -> str:
        """A printable token of `A-Z a-z 0-9 _ -`.

        It has 80 characters; a receipt that lasts has 104, and with a key 4 more for each 3 bytes
        of it.
        """
        position, first = receipt.position, receipt.first
        shard = position.shard
        place = shard.lane, shard.minute, receipt.attempt, position.due_ms, position.id
        begin = _FIRST_BYTE if first is None else _LASTING_BYTE
        raw = _TOKEN.pack(begin, *place, receipt.serial.to_bytes(_SERIAL_BYTES, "big"))
        if first is not None:
            raw += first + receipt.key.encode()
            # Zero bytes fill the last three: no key holds a zero byte.
            raw += bytes(-(len(raw) + _MAC_BYTES) % 3)
        return _encoded(raw + self._mac(raw)).decode()

    @staticmethod
    def is_meant(text: str) -> bool:
        """True if a text is meant as a receipt, of any queue, rather than as an id.

        >>> Signer.is_meant("order-7")
        False
        """
        if text.startswith(_LASTING_BEGINS):
            return len(text) >= _LASTING_CHARS_MIN and len(text) % 4 == 0
        return len(text) == _TOKEN_CHARS and text.startswith(_BEGINS)

    def read(self, token: object) -> Receipt:
        """The content of a token.

        Raises:
            BadReceipt: If the token is no receipt, is damaged, or was signed for another queue.
        """
        if not isinstance(token, str):
            raise BadReceipt(
                f"a message or its receipt is needed, not {type(token).__name__}; pass what put() "
                f"or receive() returned."
            )
        is_lasting = token.startswith(_LASTING_BEGINS)
        if not (is_lasting or token.startswith(_BEGINS)):
            # People often pass a message's id.
            raise BadReceipt(
                f"{shown(token)} is no receipt; pass a receipt on unchanged, or the message that "
                f"put() or receive() returned; where this is a message's id or key, find(id) or "
                f"find(key=..) looks it up."
            )
        if len(token) < _LASTING_CHARS_MIN if is_lasting else len(token) != _TOKEN_CHARS:
            chars = f"{_LASTING_CHARS_MIN} or more" if is_lasting else _TOKEN_CHARS
            raise BadReceipt(
                f"the receipt is damaged: it has {len(token):,} characters, not {chars}; pass it "
                f"on unchanged."
            )
        try:
            given = token.encode("ascii")
            data = binascii.a2b_base64(given.translate(_FROM_URL))
        except (UnicodeEncodeError, binascii.Error) as error:
            raise BadReceipt("the receipt is damaged; pass it on unchanged.") from error
        raw, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        # A decoder takes `+` for `-`, skips other characters and accepts too much padding. Without
        # this check several tokens would stand for one receipt.
        is_canonical = _encoded(data) == given
        least = _TOKEN.size + (_FIRST_BYTES if is_lasting else 0)
        begin = _LASTING_BYTE if is_lasting else _FIRST_BYTE
        if not is_canonical or len(raw) < least or raw[0] != begin:
            raise BadReceipt("the receipt is damaged; pass it on unchanged.")
        if not hmac.compare_digest(mac, self._mac(raw)):
            raise BadReceipt(f"the receipt is damaged, or not one of queue {self.queue!r}.")
        _, lane, minute, attempt, due_ms, row_id, number = _TOKEN.unpack(raw[: _TOKEN.size])
        position = Position(Shard(self.queue, minute, lane), due_ms, row_id)
        serial = int.from_bytes(number, "big")
        if not is_lasting:
            return Receipt(position, attempt, serial)
        key = raw[least:].rstrip(b"\0").decode()
        return Receipt(position, attempt, serial, raw[_TOKEN.size : least], key)

    def _mac(self, raw: bytes) -> bytes:
        made = self._begun.copy()
        made.update(raw)
        return made.digest()[:_MAC_BYTES]
