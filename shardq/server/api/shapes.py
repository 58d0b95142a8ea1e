"""Messages as JSON, and what a put takes; other answers are beside the calls that give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import asdict

from shardq.errors import BadTime, shown
from shardq.lifecycle.keyedputs import OnConflict
from shardq.model.message import BODY_BYTES_MAX
from shardq.model.times import duration_ms, iso
from shardq.server.api.problem import Problem, Refused

if TYPE_CHECKING:
    from datetime import datetime

    from shardq.model.message import Message as StoredMessage

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time, ISO 8601 with a zone."""
Span = Annotated[str, Meta(examples=["30s", "10m", "1h30m"])]
"""A duration, `90s`, `1h30m` or ISO 8601."""
Wait = Annotated[str, Meta(examples=["0s", "1s"])]
"""A duration to 60 s."""
MANY_MAX = 1_000
"""Messages or receipts of a call."""
_WITHIN_MS_MAX = 60_000


class NewBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A body in one of its three forms.

    Attributes:
        body: Text.
        body_base64: Bytes, in base64.
        json: A JSON value; the message's body is its text.
    """

    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    json: Raw | UnsetType = UNSET

    @property
    def content(self) -> bytes | None:
        """The bytes; None where no form is given.

        Raises:
            Refused: If several forms are given, or there are more than 1 MiB.
        """
        given = [one for one in (self.body, self.body_base64, self.json) if one is not UNSET]
        if not given:
            return None
        if len(given) > 1:
            raise Refused(400, "give body, body_base64 or json, one of them.", field="body")
        [one] = given
        content = one.encode() if isinstance(one, str) else bytes(one)
        if len(content) > BODY_BYTES_MAX:
            raise Refused(
                413,
                f"a body of {len(content):,} bytes is larger than {BODY_BYTES_MAX:,}; store it "
                f"elsewhere and put its address.",
                field="body",
            )
        return content

    @property
    def needed(self) -> bytes:
        """The bytes.

        Raises:
            Refused: If none are given, several forms are, or there are more than 1 MiB.
        """
        content = self.content
        if content is None:
            raise Refused(400, "give body, body_base64 or json, one of them.", field="body")
        return content

    @property
    def options(self) -> dict[str, Any]:
        """All other fields that are given, by name."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in _FORMS and value is not UNSET
        }


_FORMS = frozenset(NewBody.__struct_fields__)


class KeyedMessage(NewBody, kw_only=True, forbid_unknown_fields=True):
    """A message that is put under the key of the path.

    Attributes:
        due: When to deliver it; now unless given.
        delay: Instead of `due`: how long from now.
        priority: 0 is first.
        group: Messages of one group are delivered one at a time, in order.
        headers: Names and texts that travel with the body.
        id: Its id; made up unless given.
        expires: How long after its due it is of use: a later one is not delivered.
        on_conflict: What to do where a message has the key.
        max_wait: Of a debounce: how long it may be put off.
        unique_for: How long the key is held after the message's end.
    """

    due: Time | UnsetType = UNSET
    delay: Span | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    group: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    id: str | UnsetType = UNSET
    expires: Span | UnsetType = UNSET
    on_conflict: OnConflict | UnsetType = UNSET
    max_wait: Span | UnsetType = UNSET
    unique_for: Span | UnsetType = UNSET

    @property
    def item(self) -> dict[str, Any]:
        """The arguments of `Queue.put`.

        Raises:
            Refused: If its body cannot be used.
        """
        return {"body": self.needed, **self.options}


class NewMessage(KeyedMessage, kw_only=True, forbid_unknown_fields=True):
    """A message that is put.

    Attributes:
        key: A name that no other live message of the queue has.
    """

    key: str | UnsetType = UNSET


class Message(Struct, kw_only=True, omit_defaults=True):
    """A message.

    Attributes:
        id: Its id, kept through retries and moves.
        receipt: Settles this delivery; of one that was put or looked at, cancels it.
        body: The body, where it is text.
        body_base64: The body in base64, where it is not.
        due: When it was due.
        first_due: When it was first to be due.
        attempt: The number of this delivery; of one that was not received, of its last.
        priority: 0 is first.
        group: Its group.
        key: Its key.
        headers: Its headers.
        error: Why its last attempt failed, or why it died.
        error_at: When that was.
        body_bytes: The bytes of the whole body, where this is only its beginning.
        place: Of one in a list: the `after` of those behind it.
        held_by: Of one that was looked at: who has received it, and has not settled it yet.
    """

    id: str
    receipt: str
    body: str | None = None
    body_base64: bytes | None = None
    due: Time
    first_due: Time
    attempt: int
    priority: int = 0
    group: str | None = None
    key: str | None = None
    headers: dict[str, str] = {}
    error: str | None = None
    error_at: Time | None = None
    body_bytes: int | None = None
    place: str | None = None
    held_by: str | None = None


class Messages(Struct):
    """Messages.

    Attributes:
        messages: They, first due first.
    """

    messages: list[Message]


class MessagePage(Struct, kw_only=True, omit_defaults=True):
    """A page of messages.

    Attributes:
        messages: They, in order.
        next: The `after` of the next page, if there is one.
        looked: How many messages were looked at for the page.
    """

    messages: list[Message]
    next: str | None = None
    looked: int = 0


class Put(Struct, omit_defaults=True, kw_only=True):
    """A message that was put, or why it was not.

    Attributes:
        id: Its id; with a key that was taken, of the message that has it.
        receipt: It cancels the message.
        due: When it is due.
        problem: Why it was not put.
    """

    id: str | None = None
    receipt: str | None = None
    due: Time | None = None
    problem: Problem | None = None


def within_s(given: Wait) -> float:
    """How long a call may take to read queues, in seconds.

    Raises:
        BadTime: If it is no duration, or longer than 60 s.
    """
    within_ms = duration_ms(given, name="within")
    if within_ms > _WITHIN_MS_MAX:
        raise BadTime(f"within must be at most 60s, not {shown(given)}.")
    return within_ms / 1_000


def text_or_bytes(content: bytes) -> tuple[str | None, bytes | None]:
    r"""A body as text, or as bytes where it is none.

    >>> text_or_bytes(b"ada"), text_or_bytes(b"\xff")
    (('ada', None), (None, b'\xff'))
    """
    try:
        return content.decode(), None
    except UnicodeDecodeError:
        return None, content


def time_or_none(moment: datetime | None) -> str | None:
    """A time as text; None of None."""
    return None if moment is None else iso(moment)


def message_of(message: StoredMessage) -> Message:
    """A message as JSON has it."""
    text, content = text_or_bytes(message.body)
    error_at = message.last_error_at
    return Message(
        id=message.id,
        receipt=message.receipt,
        body=text,
        body_base64=content,
        due=iso(message.due_ms),
        first_due=iso(message.first_due),
        attempt=message.attempt,
        priority=message.priority,
        group=message.group,
        key=message.key,
        headers=message.headers,
        error=message.last_error,
        error_at=time_or_none(error_at),
    )


def put_of(message: StoredMessage) -> Put:
    """The answer to a put."""
    return Put(id=message.id, receipt=message.receipt, due=iso(message.due_ms))
