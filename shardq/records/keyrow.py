"""A key's row: the message that has a name, and the place of the message's row. No I/O.

```
 keys     name ──► live   "<first row id>.<generation>"   "..!": cancelled while it runs
                          "..+": follows one that runs    "free": nobody's, but held
                          unset: nobody's
                   state  waiting | begun, and where; both written by LWT alone
 places   name, live ──► the place its row has moved to; written plainly, after that row
```

A generation is one placement by a put or a command. Each generation has a note of its own in
`places`, so that a late note of an earlier generation cannot hide it. `standing.py` judges a key's
row, and `keys.py` reads and writes it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec

from shardq.errors import StoreCorrupt, shown
from shardq.model import names
from shardq.model.key import MessageKey, bucket_of, parsed
from shardq.model.message import key_of
from shardq.model.shard import Position, Shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.model.message import Row

FREE = "free"
"""The column `live` of a name that is held, and that no message has."""
_DOOMED = "!"
_FOLLOWS = "+"
_LIVE = re.compile(r"([0-9a-f]{32})\.([1-9][0-9]{0,17})([!+]?)", re.ASCII)
_PLACE = re.compile(
    r"(dead\.)?([0-9]{1,18})\.([0-9]{1,9})\.([0-9]{1,16})\.([0-9a-f]{32})", re.ASCII
)


class Does(Enum):
    """The two stages of a message, as its key's state has them."""

    WAITING = "waiting"
    BEGUN = "begun"


_Whole = Annotated[int, msgspec.Meta(ge=0)]


class FollowedRun(msgspec.Struct, frozen=True):
    """A running message that another message follows, as the column `state` holds it."""

    live: str
    place: str
    serial: _Whole


class KeyState(msgspec.Struct, frozen=True, omit_defaults=True, rename={"does": "is"}):
    """The column `state`; `KeyRow` describes what it holds.

    The nonce makes each state different from any other, and so proves which change has set it.
    """

    does: Literal["waiting", "begun", "held", "cancelled"]
    place: str | None = None
    serial: _Whole = 0
    before: str | None = None
    unique: _Whole | None = None
    behind: FollowedRun | None = None
    until: _Whole = 0
    since: _Whole = 0
    of: bytes | None = None
    nonce: str = msgspec.field(default_factory=partial(secrets.token_hex, 8))

    def text(self) -> str:
        """The stored form."""
        return msgspec.json.encode(self).decode()

    def renewed(self) -> KeyState:
        """The same state with another nonce."""
        return msgspec.structs.replace(self, nonce=secrets.token_hex(8))

    @staticmethod
    def read(text: object) -> KeyState:
        """A state from its stored form.

        Raises:
            msgspec.DecodeError: If the text is no state.
        """
        return _STATES.decode(str(text))


_STATES = msgspec.json.Decoder(KeyState)


class Before(NamedTuple):
    """The row that a command was to replace.

    Attributes:
        generation: The row's generation.
        place: The row's place.
    """

    generation: int
    place: Position


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key's row and the notes of its message, as they were read.

    Attributes:
        queue: The name of the served queue.
        name: The key that the user gave.
        live: The column `live`, as stored.
        state: The column `state`, as stored.
        first: The row id of the message's first placement; None if no message has the name.
        generation: The message's generation; 0 without a message.
        is_doomed: True if the message was cancelled while it ran, and never begins again.
        does: The stage of the message; None without a message.
        place: The place of the row when the last put or command wrote it, or its delivery began.
        serial: The row's serial when its delivery began.
        before: The row that the last command was to replace; None after a put, and once the message
            began.
        unique_ms: How long to hold the name after the message's end; used while its row is not
            written.
        until_ms: Until when the name is held, epoch milliseconds; None if it is not held.
        since_us: Since when the name is held, epoch microseconds.
        ended: The message whose end has left the name without a message, in the form of `first`;
            None if not known.
        at: The place that the message has moved to since, by the note of its generation.
        dead_at: The place that the message has moved to within the dead-letter queue.
        before_at: The place that the row of `before` has moved to.
        behind: The running message that this message follows, as a key's row of its own; None once
            this message has begun, and if it was put under a free name.
    """

    queue: str
    name: str
    live: str | None = None
    state: str | None = None
    first: bytes | None = None
    generation: int = 0
    is_doomed: bool = False
    does: Does | None = None
    place: Position | None = None
    serial: int = 0
    before: Before | None = None
    unique_ms: int | None = None
    until_ms: int | None = None
    since_us: int = 0
    ended: bytes | None = None
    at: Position | None = None
    dead_at: Position | None = None
    before_at: Position | None = None
    behind: KeyRow | None = None

    @classmethod
    def read(cls, queue: str, name: str, live: object, state: object) -> KeyRow:
        """A key's row from its stored columns, without its notes.

        Raises:
            StoreCorrupt: If shardq never writes such a row.
        """
        try:
            said = KeyState.read(state) if isinstance(state, str) else None
            if live is None:
                ended = None if said is None else said.of
                return cls(queue, name, None, None if said is None else str(state), ended=ended)
            if isinstance(live, str) and said is not None:
                key = cls(queue, name, live, str(state))
                if live != FREE:
                    return _of_message(key, live, said)
                if said.does == "held":
                    return replace(key, until_ms=said.until, since_us=said.since, ended=said.of)
        except (msgspec.DecodeError, ValueError):
            pass
        raise StoreCorrupt(
            f"key {name!r} of queue {queue!r} is damaged: live is {shown(live)}, state "
            f"{shown(state)}; delete its row of table keys (bucket {bucket_of(name)}), or restore "
            f"the store from a copy."
        )

    @property
    def stored(self) -> dict[str, str | None]:
        """The columns as stored. If they have changed in the store, a change of them is refused."""
        return {"live": self.live, "state": self.state}

    @property
    def places(self) -> list[Position]:
        """The places at which the message's row can be."""
        return [place for place in (self.place, self.at, self.dead_at) if place is not None]

    @property
    def places_before(self) -> list[Position]:
        """The places of the row to replace, while the command's own row may not exist yet."""
        if self.before is None or self.does is not Does.WAITING or self.at is not None:
            return []
        return [self.before.place, *([self.before_at] if self.before_at else [])]

    @property
    def message(self) -> str | None:
        """The message and its generation, the key of its notes; None without a message."""
        return None if self.first is None else message_in(self.first, self.generation)

    @property
    def message_before(self) -> str | None:
        """The message of the row that the last command was to replace."""
        if self.first is None or self.before is None:
            return None
        return message_in(self.first, self.before.generation)

    @property
    def messages(self) -> list[str]:
        """The messages whose notes have the places of their rows."""
        behind = None if self.behind is None else self.behind.message
        return [one for one in (self.message, self.message_before, behind) if one is not None]

    @property
    def buried(self) -> str | None:
        """The key of a dead message's note of its later moves; None if the message is not dead."""
        if self.at is None or not is_dead(self.at):
            return None
        return message_in(self.at.id, self.generation)

    def noted(self, places: Mapping[tuple[str, str], Position]) -> KeyRow:
        """This row with the current places of its messages, as the messages' notes tell them.

        Args:
            places: (name, message) -> the place that the message's note tells.
        """
        if self.first is None:
            return self
        return replace(
            self,
            at=places.get((self.name, self.message or "")),
            before_at=places.get((self.name, self.message_before or "")),
            behind=None if self.behind is None else self.behind.noted(places),
        )

    def is_of(self, row: Row) -> bool:
        """True if the name is that of the row's message, in any generation."""
        return self.first == first_of(row)

    def leads_to(self, row: Row) -> bool:
        """True if the name's message is dead, and this is its row in the dead-letter queue."""
        at = self.at
        return at is not None and is_dead(at) and at.id == first_of(row)


# As it is stored ----------------------------------------------------------------------------------


def own_key(row: Row) -> MessageKey:
    """The key of a row that has one."""
    return (parsed(row.key) if row.key else None) or key_of(row) or MessageKey.read(row.key)


def first_of(row: Row) -> bytes:
    """The row id of the first placement of a row's message in its queue."""
    return row.first or row.id


def message_in(first: bytes, generation: int) -> str:
    """A message and its generation, in the form of `live`."""
    return f"{first.hex()}.{generation}"


def place_key(key: str | None, first: bytes) -> tuple[str, str]:
    """The key of a message's note in `places`: (name, message); without a name it is empty.

    Args:
        key: The key of the message's row.
        first: The row id of the message's first placement.
    """
    if key is None:
        return "", message_in(first, 0)
    name, generation, _ = MessageKey.read(key)
    return name, message_in(first, generation)


def live_of(row: Row) -> str:
    """The column `live` while a row's message has its name."""
    return message_in(first_of(row), own_key(row).generation)


def doomed(live: str) -> str:
    """The column `live` of a message that was cancelled while it ran."""
    return live.removesuffix(_DOOMED) + _DOOMED


def following(live: str) -> str:
    """The column `live` of a message that follows a running one; no begin matches it."""
    return live + _FOLLOWS


def followed(key: KeyRow) -> str:
    """The column `live` that a running message had before another message followed it."""
    live = str(key.message)
    return doomed(live) if key.is_doomed else live


def may_run_on(row: Row, key: KeyRow) -> bool:
    """True if a running row's message has the name, or the message that has it follows this."""
    keys = (key, key.behind) if key.behind is not None else (key,)
    return any(live_of(row) == one.message and not one.is_doomed for one in keys)


def is_dead(place: Position) -> bool:
    """True if a place is in a dead-letter queue."""
    return names.is_dead_queue(place.shard.queue)


def place_text(place: Position) -> str:
    """The stored form of a place: `[dead.]minute.lane.due_ms.row id`."""
    (_, minute, lane), due_ms, row_id = place
    dead = "dead." if is_dead(place) else ""
    return f"{dead}{minute}.{lane}.{due_ms}.{row_id.hex()}"


def place_in(text: object, queue: str) -> Position:
    """A place from its stored form.

    Args:
        text: The form that `place_text` writes.
        queue: The served queue.

    Raises:
        ValueError: If the text is no place.
    """
    found = _PLACE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{shown(text)} is no place")
    dead, minute, lane, due_ms, row_id = found.groups()
    whose = names.dead_queue(queue) if dead else queue
    return Position(Shard(whose, int(minute), int(lane)), int(due_ms), bytes.fromhex(row_id))


def waiting(
    place: Position,
    *,
    before: Before | None = None,
    unique_ms: int | None = None,
    behind: KeyRow | None = None,
) -> KeyState:
    """The state of a waiting message that a put or command writes.

    Args:
        place: The place of the message's row.
        before: The row that is replaced.
        unique_ms: How long to hold the name after the message's end.
        behind: The running message that the message follows.
    """
    replaced = None if before is None else f"{before.generation}@{place_text(before.place)}"
    run = None
    if behind is not None and behind.place is not None:
        run = FollowedRun(followed(behind), place_text(behind.place), behind.serial)
    text = place_text(place)
    return KeyState("waiting", text, before=replaced, unique=unique_ms, behind=run)


def begun(place: Position | None, serial: int) -> KeyState:
    """The state of a message whose delivery begins.

    Args:
        place: The place of the message's row.
        serial: The row's serial. A row of a group stays at its place, so only a higher serial shows
            that an edit has ended this delivery.
    """
    return KeyState("begun", place and place_text(place), serial)


def noted_place(text: object, queue: str, key: tuple[str, str]) -> Position:
    """The place in a note.

    Raises:
        StoreCorrupt: If the note has no place.
    """
    try:
        return place_in(text, queue)
    except ValueError as error:
        name, message = key
        raise StoreCorrupt(
            f"key {name!r} of queue {queue!r} is damaged: the place of its message {message} is "
            f"{shown(text)}; delete that row of table places (bucket {bucket_of(name)}), or "
            f"restore the store from a copy."
        ) from error


def _of_message(key: KeyRow, live: str, said: KeyState) -> KeyRow:
    """A key's row with a message, by its columns.

    Raises:
        ValueError: If shardq never writes such columns.
    """
    before = behind = None
    if said.before is not None:
        generation, _, place = said.before.partition("@")
        before = Before(int(generation), place_in(place, key.queue))
    if (run := said.behind) is not None:
        behind = replace(_at(key, run.live, run.place), does=Does.BEGUN, serial=run.serial)
    return replace(
        _at(key, live, said.place),
        does=Does(said.does),
        serial=said.serial,
        before=before,
        unique_ms=said.unique,
        behind=behind,
    )


def _at(key: KeyRow, live: str, place: str | None) -> KeyRow:
    """A key's row of the message of a column `live`, at a place; the columns stay as stored."""
    found = _LIVE.fullmatch(live)
    if found is None:
        raise ValueError(f"{shown(live)} is no message")
    return replace(
        key,
        first=bytes.fromhex(found[1]),
        generation=int(found[2]),
        is_doomed=found[3] == _DOOMED,
        place=place_in(place, key.queue),
    )
