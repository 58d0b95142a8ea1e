"""A message, the row that it is stored as, and the receipt that settles it.

```
 put ──► waiting ──due──► delivered ──ack──► gone
            ▲                 │
            └─ retry, snooze ─┤ a new row at the new due, the old row deleted
               park, claim    │
                              └─ out of attempts, bury, forward ──► enters another queue
```

`shard.py` has the places of rows, and `planner.py` their changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardq.errors import BadBody, StoreCorrupt, shown
from shardq.model import ids, names
from shardq.model.key import MessageKey
from shardq.model.receipt import Receipt, Signed
from shardq.model.shard import Position, Shard
from shardq.model.times import is_epoch_ms, moment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.model.receipt import Signer
    from shardq.model.shard import Layout

BODY_BYTES_MAX = 1 << 20
MESSAGE_BYTES_MAX = BODY_BYTES_MAX + (16 << 10)
"""Bytes of a body and its headers as JSON: 1 MiB, and room for names and quotes."""
TASK_HEADER, OPTIONS_HEADER = JOB_HEADERS = ("task", "task-options")
"""The headers with the task of a job and the job's options."""
_TASK_CHARS_MAX = 256
"""A user's own header may have the same name as the task's header, and a longer text."""
RESERVED_HEADER = "shardq-"
"""The beginning of header names of shardq itself, for the reason and the queue of a death."""
EXPIRES_HEADER = "shardq-expires"
"""The header with the time after its first due for which a message is of use, milliseconds."""
_EXPIRES = f'"{EXPIRES_HEADER}":'
ERROR_CHARS_MAX = 1_000
"""The most characters of a last error, which a message carries through all its moves."""
SERIAL_MAX = 999_999
"""An edit is written at the row's birth plus this many microseconds at most, before the delete."""
SERIALS_AFTER_TAKEOVER = 5
"""Added to a row's serial by its new reader's first edit; every other edit adds one or two.

Edits of the former reader that are under way add one, or two to give a claim back, so their
serials stay below.
"""
SERIALS_OF_OTHERS = 2
"""Added by an edit of a process that does not own the row's lane; the owner's own edit adds one."""
_DAMAGED = "shardq-headers"
"""The header of a dead message with its former headers, if they could not be read."""
_KEY = "shardq-key"
"""The header of a dead message with its former key, if the message does not keep it."""
_DIED = '"shardq-queue":'
_REASON_CHARS_MAX = 8_000
_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""Made once, because to make an encoder takes as long as to use it."""
_escaped = json.JSONEncoder(separators=(",", ":")).encode
"""Encodes texts with half a surrogate pair, which UTF-8 cannot hold."""
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_NOTED = re.compile(r"([0-9]{1,18}):([0-9]{1,16}):([0-9a-f]{32})", re.ASCII)
_WENT_ON = re.compile(r"(.*)#([0-9]{1,6})", re.ASCII | re.DOTALL)
ALONG = "+"
"""The first character of the claim of a row that was handed out along with its group's head."""
_FAILURE = re.compile(r"([0-9]{1,15}):([fs]):(.*)", re.DOTALL)
_RECEIVED = re.compile(r"([0-9]{1,15})(:[ln])?", re.ASCII)
_LASTING, _NOTED_PLACE = ":l", ":n"


class Row(NamedTuple):
    """A message as it is stored. A tuple, because a drain makes one for every message.

    Attributes:
        shard: The partition.
        due_ms: When it next needs attention, epoch milliseconds.
        id: Row id, 16 bytes; fresh for every placement; its time is the row's birth.
        body: 0 bytes to 1 MiB.
        headers: A JSON object of strings, or None; with the body to `MESSAGE_BYTES_MAX`.
        attempt: Deliveries begun and recorded.
        first: Row id of the first placement in this queue; None while that is `id`.
        name: The id that the user or another queue gave; None where there is none.
        origin_ms: The due first asked for; None while that is `due_ms`.
        group: The group, or None.
        claim: The member that holds the delivery under way; None if the row is no claim. In a group
            lane, `begun_serial` follows if the row was edited since the delivery began, and `ALONG`
            precedes if the caller got the row along with the head of its group.
        since_ms: For a row that was passed to another lane for a free worker: the due from which
            its lateness counts. None while that is `due_ms`.
        key: The name that the user gave the message, as `MessageKey.text` stores it; or None.
        not_before_ms: When it may be handed out, epoch milliseconds; None: as soon as it is due.
        error: The last error, as `Failure.text` stores it; None where there is none.
        note: For a note, the position that it names, as `note_of` writes it; None for a message.
            The owner of a lane for groups reads the row at the position.
        received: When `receive` first returned the message, and whether its receipts last, as
            `received_at` stores it; None if `receive` never did.
        priority: The priority of a message with a group; without a group, the lane decides it.
        serial: The number of the last edit; 0 for a row that was never edited.
    """

    shard: Shard
    due_ms: int
    id: bytes
    body: bytes
    headers: str | None = None
    attempt: int = 0
    first: bytes | None = None
    name: str | None = None
    origin_ms: int | None = None
    group: str | None = None
    claim: str | None = None
    since_ms: int | None = None
    key: str | None = None
    not_before_ms: int | None = None
    error: str | None = None
    note: str | None = None
    received: str | None = None
    priority: int = 0
    serial: int = 0

    @property
    def position(self) -> Position:
        """Where the row is."""
        # This is `Position._make` without its call in Python, for each row that is deleted.
        return tuple.__new__(Position, self[:3])

    @property
    def size_bytes(self) -> int:
        """About the bytes of the row's body and headers."""
        return len(self.body) + len(self.headers or "")

    @property
    def message_id(self) -> str:
        """The message's stable id."""
        return self.name or ids.text(self.first or self.id)

    @property
    def entered_us(self) -> int:
        """The epoch microsecond at which the message entered this queue."""
        return ids.birth_us(self.first or self.id)

    @property
    def wanted_ms(self) -> int:
        """The time from which the row's lateness counts."""
        return self.ready_ms if self.since_ms is None else self.since_ms

    @property
    def is_note(self) -> bool:
        """True if the row is a note, and no message."""
        return self.note is not None

    @property
    def noted(self) -> Position:
        """The position that a note names.

        Raises:
            StoreCorrupt: If the row names no position.
        """
        found = _NOTED.fullmatch(self.note or "")
        if found is None:
            raise _damaged(self, "note", self.note)
        shard = self.shard._replace(minute=int(found[1]))
        return Position(shard, int(found[2]), bytes.fromhex(found[3]))

    @property
    def holder(self) -> str | None:
        """The member or caller that has the delivery under way; None if the row is no claim."""
        found = self._went_on()
        claim = self.claim if found is None else found[1]
        return None if claim is None else claim.removeprefix(ALONG)

    @property
    def is_along(self) -> bool:
        """True for a claim that takes no place of its group: its caller got it with the head."""
        return (self.claim or "").startswith(ALONG)

    @property
    def begun_serial(self) -> int:
        """The serial that the row had when the delivery under way began."""
        found = self._went_on()
        return self.serial if found is None else int(found[2])

    def claim_of(self, holder: str) -> str:
        """The `claim` of a row in a group lane whose delivery continues with a holder."""
        return f"{ALONG if self.is_along else ''}{holder}#{self.begun_serial}"

    def _went_on(self) -> re.Match[str] | None:
        # Only a claim that was made in place has a `not_before_ms`.
        in_place = self.claim is not None and self.not_before_ms is not None
        return _WENT_ON.fullmatch(self.claim or "") if in_place else None

    @property
    def ready_ms(self) -> int:
        """When the row may be handed out: the later of its due and its `not_before_ms`."""
        return max(self.due_ms, self.not_before_ms or 0)

    def holds_group(self, now_ms: int) -> bool:
        """True if the row, as a head of its group, lets nothing of the group be handed out."""
        return self.claim is None and now_ms < (self.not_before_ms or 0)

    @property
    def is_lasting(self) -> bool:
        """True if the message's receipts stay valid wherever its row moves."""
        return self.received is not None and self.received.endswith((_LASTING, _NOTED_PLACE))

    @property
    def has_place(self) -> bool:
        """True if the receipts last and the row has moved since: table `places` has its place."""
        return self.received is not None and self.received.endswith(_NOTED_PLACE)

    @property
    def order(self) -> tuple[int, bytes]:
        """Order within a group: first due, then first placement; kept through moves."""
        first_due = self.due_ms if self.origin_ms is None else self.origin_ms
        return first_due, ids.order_key(self.first or self.id)

    def checked(self) -> Row:
        """The row itself, if each column has a value of its kind. Drains leave this check out.

        Raises:
            StoreCorrupt: If a column has another value.
        """
        for column, value, is_sound in zip(self._fields[1:], self[1:], _SOUND, strict=True):
            if not is_sound(value):
                raise _damaged(self, column, value)
        return self


def _is_id(value: object) -> bool:
    return type(value) is bytes and len(value) == ids.BYTES


def _is_first(value: object) -> bool:
    return value is None or _is_id(value)


def _is_bytes(value: object) -> bool:
    return type(value) is bytes


def _is_text(value: object) -> bool:
    return value is None or type(value) is str


def _is_moment(value: object) -> bool:
    return value is None or is_epoch_ms(value)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


_SOUND: tuple[Callable[[object], bool], ...] = (
    is_epoch_ms, _is_id, _is_bytes, _is_text, _is_count, _is_first, _is_text, _is_moment, _is_text,
    _is_text, _is_moment, _is_text, _is_moment, _is_text, _is_text, _is_text,
    _is_count, _is_count,
)  # fmt: skip
"""For each column except the shard: a function that returns True for a value of its kind."""
AS_NEW: Final[dict[str, Any]] = dict.fromkeys(
    ("first", "claim", "since_ms", "not_before_ms", "error", "received")
) | {"attempt": 0}
"""The columns of a message that enters a queue, in which no delivery has begun yet."""


def _damaged(row: Row, column: str, value: object) -> StoreCorrupt:
    queue, minute, lane = row.shard
    whose = f" of message {row.message_id}" if _is_id(row.id) and _is_first(row.first) else ""
    return StoreCorrupt(
        f"a row of queue {queue!r} is damaged: {column}{whose} (minute {minute}, lane {lane}) is "
        f"{shown(value)}; delete that row, or restore the store from a copy."
    )


def placed(row: Row, shard: Shard, due_ms: int, row_id: bytes, **changes: Any) -> Row:
    """The row of the same message at another place, with serial 0, as of a row never edited.

    Args:
        row: The present row.
        shard: Its new shard.
        due_ms: Its new due.
        row_id: Its new row id.
        changes: Other columns.
    """
    if row.is_lasting:
        changes = {"received": _at_of(row) + _NOTED_PLACE} | changes
    return row._replace(shard=shard, due_ms=due_ms, id=row_id, serial=0, **changes)


def received_at(row: Row, at_ms: int, *, is_lasting: bool) -> str:
    """The value of the column `received` for a row that `receive` is about to return.

    Args:
        row: The row before its claim.
        at_ms: The time now, epoch milliseconds.
        is_lasting: True if the message's receipts are to last from now on.

    >>> row = Row(Shard("mail", 0, 0), 0, bytes(16), b"")
    >>> received_at(row, 7, is_lasting=True)
    '7:l'
    >>> received_at(row._replace(received="5"), 7, is_lasting=False)
    '5'
    """
    if row.received is None:
        return f"{at_ms}{_LASTING if is_lasting else ''}"
    return row.received + _LASTING if is_lasting and not row.is_lasting else row.received


def first_received_ms(row: Row) -> int | None:
    """When `receive` first returned a row's message, epoch milliseconds; None if not yet.

    Raises:
        StoreCorrupt: If the column is damaged.
    """
    if row.received is None:
        return None
    found = _RECEIVED.fullmatch(row.received)
    if found is None:
        raise _damaged(row, "received", row.received)
    return int(found[1])


def _at_of(row: Row) -> str:
    return (row.received or "").partition(":")[0]


def note_of(position: Position, shard: Shard, due_ms: int, row_id: bytes) -> Row:
    """A note that names a position.

    Args:
        position: The position.
        shard: The shard of the note, in the same lane.
        due_ms: When the lane's owner is to read it.
        row_id: The row id of the note.
    """
    named = f"{position.shard.minute}:{position.due_ms}:{position.id.hex()}"
    return Row(shard, due_ms, row_id, b"", note=named)


def moved(
    row: Row,
    shard: Shard,
    due_ms: int,
    row_id: bytes,
    *,
    attempt: int,
    claim: str | None,
    since_ms: int | None = None,
    received: str | None = None,
) -> Row:
    """The row of the same message at another place: same identity, fresh row id.

    Args:
        row: The present row.
        shard: Its new shard.
        due_ms: Its new due.
        row_id: Its new row id.
        attempt: Deliveries begun and recorded.
        claim: The member that holds the delivery under way.
        since_ms: The due from which the row's lateness counts; None: from `due_ms`.
        received: Its column `received`; None: unchanged.
    """
    # Built at once: a drain by `receive` moves each message, and `_replace` takes 2 us.
    (
        _, due_before, id_before, body, headers, _, first, name, origin, group, _, _, key,
        not_before, error, note, received_before, priority, _,
    ) = row  # fmt: skip
    if origin is None:
        origin = due_before
    if received is None:
        received = _at_of(row) + _NOTED_PLACE if row.is_lasting else received_before
    return Row(
        shard,
        due_ms,
        row_id,
        body,
        headers,
        attempt,
        first or id_before,
        name,
        None if origin == due_ms else origin,
        group,
        claim,
        None if since_ms == due_ms else since_ms,
        key,
        not_before,
        error,
        note,
        received,
        priority,
    )


def entered(
    row: Row,
    layout: Layout,
    due_ms: int,
    row_id: bytes,
    *,
    headers: str | None,
    priority: int,
    index: int,
    key: str | None,
    origin_ms: int | None = None,
) -> Row:
    """The row of a message that enters another queue, under its id, with no attempt used.

    Args:
        row: The row in the queue that it leaves.
        layout: The layout of the queue that it enters.
        due_ms: Its due there.
        row_id: Its row id there.
        headers: Its headers there.
        priority: Its priority; if the entered queue has fewer priorities, the last one is taken.
        index: The lane within its priority, if it has no group.
        key: Its key there, as `MessageKey.text` stores it.
        origin_ms: The due first asked for, if that differs.
    """
    band = min(priority, layout.bands - 1)
    lane = layout.lane(band, index) if row.group is None else layout.group_lane(row.group)
    return placed(
        row,
        layout.shard(due_ms, lane),
        due_ms,
        row_id,
        headers=headers,
        name=row.message_id,
        origin_ms=origin_ms,
        priority=0 if row.group is None else band,
        key=key,
        **AS_NEW,
    )


def revived(
    row: Row, layout: Layout, due_ms: int, row_id: bytes, *, index: int, priority: int = 0
) -> Row:
    """The row of a message that enters another queue alive: put back from the dead, or forwarded.

    Args:
        row: The row in the queue that it leaves, which may be a dead-letter queue.
        layout: The layout of the queue that it enters.
        due_ms: Its due there.
        row_id: Its row id there.
        index: The lane within its priority, if it has no group.
        priority: Its priority, if it has not died; a dead message's headers record it.

    Raises:
        StoreCorrupt: If its headers cannot be read.
    """
    headers = read_headers(row)
    own = {name: value for name, value in headers.items() if not name.startswith(RESERVED_HEADER)}
    if (expires_ms := expires_ms_of(row)) is not None:
        own[EXPIRES_HEADER] = str(expires_ms)
    return entered(
        row,
        layout,
        due_ms,
        row_id,
        headers=headers.get(_DAMAGED) or (write_headers(own) if own else None),
        priority=int(headers.get("shardq-priority", priority)),
        index=index,
        key=row.key or headers.get(_KEY),
    )


def died_in(row: Row) -> str | None:
    """The queue in which a dead message died; None for a message that is not dead.

    Raises:
        StoreCorrupt: If its headers cannot be read.
    """
    # Most messages have not died: their headers lack the text, and need not be parsed.
    return read_headers(row).get("shardq-queue") if _DIED in (row.headers or "") else None


class Failure(NamedTuple):
    """The last error of a message, as its row keeps it.

    Attributes:
        error: The reason for which the last attempt failed, or the message was snoozed since.
        at_ms: The time of the failure or snooze, epoch milliseconds.
        is_snoozed: True if the message was snoozed.
    """

    error: str
    at_ms: int
    is_snoozed: bool = False

    def text(self) -> str:
        """The stored form.

        >>> Failure("refused", 1_800_000_000_000).text(), Failure("busy: 5", 7, True).text()
        ('1800000000000:f:refused', '7:s:busy: 5')
        """
        return f"{self.at_ms}:{'s' if self.is_snoozed else 'f'}:{self.error}"

    @classmethod
    def read(cls, text: str) -> Failure | None:
        """A failure from its stored form; None if it is damaged."""
        found = _FAILURE.fullmatch(text)
        return found and cls(found[3], int(found[1]), found[2] == "s")


class Message:
    """One message, as `put` returns it and a handler receives it. Made by its queue.

    It can be pickled. Another process of the same release can read it, and settle it by `Queue.ack`
    or another method of the queue.

    Attributes:
        body: The bytes that were put.
    """

    __slots__ = ("_delivery", "_row", "_signer", "_watch", "body")

    def __init__(
        self,
        row: Row,
        delivery: int,
        signer: Signer | Signed,
        watch: Callable[[], bool] | None = None,
    ) -> None:
        self._row = row
        self._delivery = delivery
        """The number of the delivery that the receipt settles; 0 if there is none."""
        self.body: bytes = row.body
        self._signer = signer
        self._watch = watch
        """Returns True if the message was cancelled by its key; None if it has no key."""

    def __reduce__(self) -> tuple[object, ...]:
        return Message, (self._row, self._delivery, Signed(self.receipt, self._signer.layout))

    def __repr__(self) -> str:
        key = "" if self.key is None else f" key {self.key!r},"
        return (
            f"<Message {self.id} of {self.queue!r},{key} due {self.due.isoformat()}, "
            f"attempt {self.attempt}, {len(self.body)} bytes>"
        )

    @property
    def id(self) -> str:
        """The stable id, kept through retries and moves."""
        return self._row.message_id

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._row.shard.queue

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1.

        For a message that was put or looked at: the number of its deliveries so far. For a dead
        one: the deliveries before it died.
        """
        return self._delivery or died_after(self._row, self._row)

    @property
    def due(self) -> datetime:
        """The due of this delivery, UTC: as asked for, or by the last retry or snooze.

        For a received message it is the end of its claim; `first_due` is the time asked for.
        """
        return moment_of(self._row.wanted_ms)

    @property
    def due_ms(self) -> int:
        """`due` as epoch milliseconds."""
        return self._row.wanted_ms

    @property
    def first_due(self) -> datetime:
        """The due first asked for, UTC."""
        return moment_of(self._row.order[0])

    @property
    def first_received(self) -> datetime | None:
        """The time at which `receive` first returned the message, UTC; None if it never did.

        A consumer writes nothing as it hands a message out, so its deliveries do not count.
        """
        at_ms = first_received_ms(self._row)
        return None if at_ms is None else moment_of(at_ms)

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were put; a dead message also has `shardq-reason` and others."""
        return read_headers(self._row)

    @property
    def last_error(self) -> str | None:
        """The error of the last failed attempt, to 1,000 characters; if dead, the death's reason.

        After a later `Snooze`, it is the reason of the snooze. None if there was neither. An
        attempt without an outcome, because its process crashed or its caller never settled it,
        changes nothing here.
        """
        return last_error(self._row)[0]

    @property
    def last_error_at(self) -> datetime | None:
        """The time of `last_error`, UTC: the attempt's end, or the death of a dead message."""
        return last_error(self._row)[1]

    @property
    def group(self) -> str | None:
        """The group; None without one."""
        return self._row.group

    @property
    def key(self) -> str | None:
        """The name under which it was put, unique among its queue's live messages; or None."""
        key = key_of(self._row)
        return None if key is None else key.name

    @property
    def is_cancelled(self) -> bool:
        """True if the message was cancelled by its key while it ran: its handler is to stop.

        A handler that runs for long asks this now and then, and may end as it likes. The message is
        not delivered again: a retry of it is dropped. It costs one read of its key, at most every
        0.25 s. Always False for a message without a key, for one that this process did not deliver,
        such as a pickled one, and while the store does not answer.
        """
        return self._watch is not None and self._watch()

    @property
    def priority(self) -> int:
        """The priority; 0 is first."""
        return priority_of(self._row, self._signer.layout)

    @property
    def receipt(self) -> str:
        """The token that settles this delivery, from any process."""
        return self._signer.sign(receipt_of(self._row, self._delivery))


def receipt_of(row: Row, delivery: int) -> Receipt:
    """The receipt of a delivery.

    Args:
        row: The message's row.
        delivery: The delivery's number; 0 without one, for a message that was only read.
    """
    if not delivery:
        return Receipt(row.position, 0)
    if not row.is_lasting:
        return Receipt(row.position, delivery, row.begun_serial)
    return Receipt(row.position, delivery, row.begun_serial, row.first or row.id, row.key or "")


class Sealed(NamedTuple):
    """A body and headers that were checked once, to be put many times.

    Attributes:
        body: The bytes.
        headers: The headers in the form of `headers_json`.
    """

    body: bytes
    headers: str

    @property
    def is_small(self) -> bool:
        """True if the content is so small that no put has to check its size."""
        return len(self.body) + len(self.headers) <= BODY_BYTES_MAX


def body_bytes(value: object) -> bytes:
    """A body in its stored form: bytes unchanged, text as UTF-8.

    Raises:
        BadBody: If the body is neither bytes nor text, has half a surrogate pair, or is over 1 MiB.
    """
    if type(value) is bytes and len(value) <= BODY_BYTES_MAX:
        return value
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise BadBody(
                f"a body of text holds half a surrogate pair at character {error.start:,}; "
                f"put bytes, or decode it from UTF-16 first."
            ) from error
    elif isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if not isinstance(value, bytes):
        raise BadBody(
            f"a body must be bytes or text, not {type(value).__name__}; "
            f"encode it first, as JSON say."
        )
    if len(value) > BODY_BYTES_MAX:
        raise BadBody(
            f"a body of {len(value):,} bytes is larger than {BODY_BYTES_MAX:,}; "
            f"store it elsewhere and put its address."
        )
    return value


def contents(body: object, headers: object) -> tuple[bytes, str | None]:
    """A body and its headers, or None, in their stored forms.

    Raises:
        BadName: If the name of a header cannot be used.
        BadBody: If body or headers cannot be used, or both together are too large.
    """
    content = body_bytes(body)
    if headers is None:
        return content, None
    text = headers_json(headers)
    check_size(content, text)
    return content, text


def check_size(body: bytes, headers: str | None) -> None:
    """Refuse a message that is too large.

    Raises:
        BadBody: If body and headers together are larger than `MESSAGE_BYTES_MAX`.
    """
    if headers is None or len(body) + len(headers) * 4 <= MESSAGE_BYTES_MAX:
        return
    size = len(headers.encode())
    if len(body) + size > MESSAGE_BYTES_MAX:
        raise BadBody(
            f"a body of {len(body):,} bytes with headers of {size:,} bytes is larger than "
            f"{MESSAGE_BYTES_MAX:,}; store a part elsewhere and put its address."
        )


def headers_json(given: object) -> str | None:
    """Headers in their stored form.

    Raises:
        BadName: If a name is not 1 to 256 printable characters.
        BadBody: If a value is not text or holds a surrogate pair, or a name is shardq's own.
    """
    if not isinstance(given, Mapping):
        raise BadBody(f"headers must map names to texts, not be {type(given).__name__}.")
    if not given:
        return None
    for name, value in given.items():
        names.label(name, what="header name")
        if name.startswith(RESERVED_HEADER):
            raise BadBody(
                f"header {name!r}: names that begin with {RESERVED_HEADER!r} are shardq's."
            )
        if not isinstance(value, str):
            raise BadBody(f"header {name!r} must be text, not {type(value).__name__}.")
        if not value.isascii() and _SURROGATE_PAIR.search(value):
            # JSON would read the two halves as one character, which the user did not give.
            raise BadBody(
                f"header {name!r} holds a character in two halves, a surrogate pair; "
                f"decode it from UTF-16 first."
            )
    return write_headers(given)


def write_headers(headers: Mapping[str, str]) -> str:
    """Headers as a JSON object."""
    text = _compact(dict(headers))
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return _escaped(dict(headers))
    return text


def expiring(headers: str | None, expires_ms: int) -> str:
    """Headers with the time for which a message is of use after its first due, milliseconds."""
    named = {} if headers is None else json.loads(headers)
    return write_headers(named | {EXPIRES_HEADER: str(expires_ms)})


def expires_ms_of(row: Row) -> int | None:
    """The time for which a message is of use after its first due, milliseconds; None: for ever.

    A dead message is of use until it is put back, and for ever then.
    """
    headers = row.headers
    # Most messages lack this header, so their headers need not be parsed.
    if headers is None or _EXPIRES not in headers or _DIED in headers:
        return None
    with suppress(StoreCorrupt, ValueError, KeyError):
        return int(read_headers(row)[EXPIRES_HEADER])
    return None


def end_of_use_ms(row: Row, retention_ms: int) -> int | None:
    """The time from which a message is too old to be delivered, epoch milliseconds; None: never.

    Args:
        row: The message's row.
        retention_ms: The time for which its queue keeps a message, from the later of its entry and
            its first due; 0: for ever.
    """
    expires_ms = expires_ms_of(row)
    if not retention_ms and expires_ms is None:
        return None
    first_ms = row.due_ms if row.origin_ms is None else row.origin_ms
    kept_ms = max(first_ms, row.entered_us // 1_000) + retention_ms
    if expires_ms is None:
        return kept_ms
    return min(first_ms + expires_ms, kept_ms) if retention_ms else first_ms + expires_ms


def task_of(row: Row) -> str | None:
    """The task of a row's job, cut to 256 characters; None if it is no job, or damaged.

    Stores record it, and they refuse half a surrogate pair.
    """
    if not row.headers or TASK_HEADER not in row.headers:
        return None
    return _task_in(row.headers)


@lru_cache(maxsize=1_024)
def _task_in(headers: str) -> str | None:
    # Many jobs of a task have the same headers.
    task = (_read_headers(headers) or {}).get(TASK_HEADER)
    return task and sound_text(task)[:_TASK_CHARS_MAX]


def read_headers(row: Row) -> dict[str, str]:
    """The headers of a row.

    Raises:
        StoreCorrupt: If the headers cannot be read.
    """
    if not row.headers:
        return {}
    headers = _read_headers(row.headers)
    if headers is None:
        raise _damaged(row, "headers", row.headers)
    return headers


def _read_headers(stored: str) -> dict[str, str] | None:
    with suppress(ValueError, TypeError, RecursionError):
        headers = json.loads(stored)
        if isinstance(headers, dict) and all(type(one) is str for one in headers.values()):
            return headers
    return None


def key_of(row: Row) -> MessageKey | None:
    """The key of a row; None without one.

    Raises:
        StoreCorrupt: If the key cannot be read.
    """
    if row.key is None:
        return None
    try:
        return MessageKey.read(row.key)
    except StoreCorrupt as error:
        raise _damaged(row, "key", row.key) from error


def failed(row: Row, error: str, failed_ms: int, *, is_snoozed: bool = False) -> Row:
    """The row with the error of the attempt that has just failed, in place of an earlier error.

    Args:
        row: The message's row.
        error: The error; if it is too long, its end is cut off.
        failed_ms: The time of the failure, epoch milliseconds.
        is_snoozed: True if the attempt did not fail: the text is the reason of a snooze.
    """
    return row._replace(error=Failure(short_error(error), failed_ms, is_snoozed).text())


def short_error(error: str) -> str:
    """An error, cut to `ERROR_CHARS_MAX` characters."""
    return sound_text(error[:ERROR_CHARS_MAX])[:ERROR_CHARS_MAX]


def last_error(row: Row) -> tuple[str | None, datetime | None]:
    """The last error of a row and its time; for a dead message, the reason and time of its death.

    Raises:
        StoreCorrupt: If the error, or a dead message's headers, cannot be read.
    """
    # A burial removes the row's error. A dead row with an error was retried and failed again.
    failure = failure_of(row)
    if failure is not None:
        return failure.error, moment_of(failure.at_ms)
    if died_in(row) is None:
        return None, None
    headers = read_headers(row)
    return headers.get("shardq-reason"), _moment_or_none(headers.get("shardq-died"))


def failure_of(row: Row) -> Failure | None:
    """The last error of a row; None if there is none.

    Raises:
        StoreCorrupt: If the error is damaged.
    """
    if row.error is None:
        return None
    failure = Failure.read(row.error)
    if failure is None:
        raise _damaged(row, "error", row.error)
    return failure


def is_snooze_reason(row: Row) -> bool:
    """True if the last error of a row is the reason of a snooze, and no failure.

    Raises:
        StoreCorrupt: If its error is damaged.
    """
    failure = failure_of(row)
    return failure is not None and failure.is_snoozed


def spent_reason(row: Row, reason: str) -> str:
    """The reason for the death of a message, followed by its last error if it has one."""
    try:
        error, _ = last_error(row)
    except StoreCorrupt:
        error = None
    return reason if error is None else f"{reason}; before that: {error}"


def first_line(reason: str) -> str:
    r"""A reason cut to one line, which ends in `..` if there is more.

    If the first line ends in a colon, the second is added to it.

    >>> first_line("exit code 1 of sh:  refused\nconnecting\nrefused")
    'exit code 1 of sh: refused ..'
    >>> first_line("ValueError:\nno such user")
    'ValueError: no such user'
    """
    line, _, more = reason.strip().partition("\n")
    if line.rstrip().endswith(":"):
        second, _, more = more.partition("\n")
        line += f" {second}"
    return " ".join(line.split()) + (" .." if more else "")


def sound_text(text: str) -> str:
    """A text in which each half of a surrogate pair that stands alone is escaped."""
    if text.isascii():
        return text
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return joined.encode("utf-8", "backslashreplace").decode()


def _moment_or_none(text: str | None) -> datetime | None:
    """The time in a header of shardq; None if the header has none."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def dead_headers(
    row: Row,
    priority: int,
    reason: str,
    attempts: int,
    died_ms: int,
    traceback: str = "",
    key: str | None = None,
) -> str:
    """The headers of a message that has died, as JSON: its own, and those that describe its death.

    Args:
        row: The message in the queue in which it dies. Damaged headers are kept in one header.
        priority: Its priority.
        reason: The reason in words; if it is too long, its end is cut off.
        attempts: The number of its deliveries.
        died_ms: The time of its death, epoch milliseconds.
        traceback: The traceback of its last attempt; if too long, its beginning is cut off.
        key: Its key, if it loses the key.
    """
    try:
        own = read_headers(row)
    except StoreCorrupt:
        # The consumer cannot repair the headers, and the burial must succeed, or its lane stops.
        own = {_DAMAGED: str(row.headers)}
    headers = own | {
        "shardq-queue": row.shard.queue,
        "shardq-reason": reason[:_REASON_CHARS_MAX],
        "shardq-attempts": str(attempts),
        "shardq-priority": str(priority),
        "shardq-died": moment_of(died_ms).isoformat(),
    }
    if key is not None:
        headers[_KEY] = key
    if traceback:
        headers["shardq-traceback"] = traceback[-_REASON_CHARS_MAX:]
    return write_headers(headers)


def died_after(buried: Row, row: Row) -> int:
    """The deliveries of a message that died.

    Args:
        buried: The row in the dead-letter queue. It may count one delivery more than `row`.
        row: The row before it died.
    """
    if _DIED not in (buried.headers or ""):
        return row.attempt
    try:
        headers = read_headers(buried)
    except StoreCorrupt:
        # The headers were already damaged at the death, and do not have the number.
        return row.attempt
    return int(headers.get("shardq-attempts", row.attempt))


def priority_of(row: Row, layout: Layout) -> int:
    """The priority of a message; without a group it is the band of its lane."""
    return layout.band_of(row.shard.lane) if row.group is None else row.priority


def shards_of(rows: Iterable[Row]) -> set[Shard]:
    """The shards of rows ordered by shard: to compare neighbours costs a tenth of hashing each."""
    return {shard for shard, _ in groupby(rows, key=itemgetter(0))}
