"""Messages as JSON, and the input of a put; other structs are beside their handlers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import asdict

from shardq.errors import BadTime, shown
from shardq.lifecycle.keyedputs import OnConflict
from shardq.model.message import BODY_BYTES_MAX
from shardq.model.times import duration_ms, iso, iso_or_none
from shardq.server.api.problem import Problem, Refused

if TYPE_CHECKING:
    from shardq.model.message import Message as StoredMessage

S = TypeVar("S", bound=Struct)

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
        spread: How much later it may be due, if the queue's budget is used up.
        priority: 0 is first.
        group: Messages of one group are delivered one at a time, in order.
        headers: Names and texts that travel with the body.
        id: Its id; made up unless given.
        expires: How long after its due it may still be delivered.
        on_conflict: The policy if a message has the key.
        max_wait: The longest that a debounce may postpone it.
        unique_for: How long the key is held after the message's end.
    """

    due: Time | UnsetType = UNSET
    delay: Span | UnsetType = UNSET
    spread: Span | UnsetType = UNSET
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
        receipt: Settles this delivery; for a message that was not received, cancels it.
        body: The body, if it is text.
        body_base64: The body in base64, if it is not text.
        due: When it was due.
        first_due: When it was first to be due.
        attempt: The number of this delivery, or of the last one if it was not received.
        priority: 0 is first.
        group: Its group.
        key: Its key.
        headers: Its headers.
        error: Why its last attempt failed, or why it died.
        error_at: When that was.
        body_bytes: The size of the whole body, if `body` is only its beginning.
        place: In a list: the `after` of the messages behind it.
        held_by: The consumer that received it and has not settled it yet.
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
        messages: The messages, the first one due first.
    """

    messages: list[Message]


class MessagePage(Struct, kw_only=True, omit_defaults=True):
    """A page of messages.

    Attributes:
        messages: The messages, in order.
        next: The `after` of the next page, if there is one.
        looked: How many messages were looked at for the page.
    """

    messages: list[Message]
    next: str | None = None
    looked: int = 0


class Put(Struct, omit_defaults=True, kw_only=True):
    """A message that was put, or why it was not.

    Attributes:
        id: Its id; if its key was taken, the id of the message that has the key.
        receipt: A receipt that cancels the message.
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
    r"""A body as text, or as bytes if it is no text.

    >>> text_or_bytes(b"ada"), text_or_bytes(b"\xff")
    (('ada', None), (None, b'\xff'))
    """
    try:
        return content.decode(), None
    except UnicodeDecodeError:
        return None, content


def struct_of(kind: type[S], *found: object, **own: Any) -> S:
    """A struct whose fields are attributes of objects, under the same names; times as text.

    Args:
        kind: The type of the struct.
        found: The objects. The first one that has an attribute gives it.
        own: The fields that are no such attributes.
    """
    for name in kind.__struct_fields__:
        if name not in own:
            value = next(getattr(one, name) for one in found if hasattr(one, name))
            own[name] = iso(value) if isinstance(value, datetime) else value
    return kind(**own)


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
        error_at=iso_or_none(error_at),
    )


def put_of(message: StoredMessage) -> Put:
    """The answer to a put."""
    return Put(id=message.id, receipt=message.receipt, due=iso(message.due_ms))
