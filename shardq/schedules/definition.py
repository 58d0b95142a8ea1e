"""The definition of a schedule: its trigger, its job and its policies. Stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from shardq.errors import ShardqError, StoreCorrupt, shown
from shardq.schedules.policy import Policies
from shardq.schedules.triggers.trigger import Trigger

NAME_MAX = 200
"""The longest name, in characters, because the id of a message is a name and a fire time."""


class ScheduledPut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The message that a schedule puts each time: the arguments of `Queue.put`.

    Attributes:
        body: The bytes of its body.
        headers: Names and texts.
        priority: 0 is first.
        group: The group; None: none, or with overlap `queue` the schedule's own.
        key: The key; None: none.
        on_conflict: With a key: the action if a message has it.
        unique_for_ms: With a key: how long it is held after the message's end.
    """

    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    priority: int = 0
    group: str | None = None
    key: str | None = None
    on_conflict: str = "keep"
    unique_for_ms: int | None = None


class ScheduleDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The definition of a schedule.

    Attributes:
        name: Its name, unique in its queue.
        trigger: When it fires.
        job: The message that it puts.
        policies: Its policies.
        count: How often it fires; None: for ever.
        revision: The revision of the code that declares the schedule; 0 if it was made at run time.
        paused: True if it does not fire.
        made_ms: When its trigger was made, epoch milliseconds. A trigger without a start begins at
            this time.
        declared: The definition that code declared, if the schedule was changed at run time since;
            else None.
    """

    name: str
    trigger: Trigger
    job: ScheduledPut
    policies: Policies = Policies()
    count: int | None = None
    revision: int = 0
    paused: bool = False
    made_ms: int = 0
    declared: ScheduleDefinition | None = None

    def text(self) -> str:
        """The definition as JSON text."""
        try:
            return _encoder.encode(self).decode()
        except UnicodeEncodeError:
            # A header may hold half of a surrogate pair, which becomes its escape.
            return json.dumps(msgspec.to_builtins(self, enc_hook=_trigger_json))

    @classmethod
    def read(cls, text: str, whose: str) -> ScheduleDefinition:
        """A definition from its JSON text.

        Args:
            text: The JSON.
            whose: For the error.

        Raises:
            StoreCorrupt: If it is no definition.
        """
        try:
            return _decoder.decode(text)
        except msgspec.DecodeError as error:
            try:
                # msgspec refuses the escape of half a surrogate pair, which a header may hold.
                return msgspec.convert(json.loads(text), cls, dec_hook=_trigger_of)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                raise _unreadable(text, whose, error) from error
        except (ValueError, RecursionError) as error:
            raise _unreadable(text, whose, error) from error

    def is_same(self, other: ScheduleDefinition) -> bool:
        """True if two definitions mean the same, whatever the times of their writing."""
        return not self.unlike(other)

    def unlike(self, other: ScheduleDefinition) -> list[str]:
        """The options and arguments in which two definitions differ in meaning."""
        one, another = _meant(self), _meant(other)
        return [
            name.removesuffix("_ms")
            for name in {**one, **another}
            if one.get(name) != another.get(name)
        ]


def _meant(one: ScheduleDefinition) -> dict[str, Any]:
    held = msgspec.to_builtins(one, enc_hook=_trigger_json)
    meant = {name: held.get(name) for name in ("name", "trigger", "count", "made_ms")}
    return {**meant, **held["job"], **held.get("policies", {})}


def _trigger_json(trigger: Trigger) -> Any:
    return trigger.to_json()


def _trigger_of(kind: type[Trigger], held: Any) -> Trigger:
    return kind.from_json(held)


def _unreadable(text: str, whose: str, error: Exception) -> StoreCorrupt:
    if isinstance(error.__cause__, ShardqError):
        # The record may be sound: its zone or its trigger's class may not exist on this machine.
        return StoreCorrupt(f"{whose} cannot be read here: {error.__cause__}")
    return StoreCorrupt(
        f"{whose} is damaged: {shown(text)}; remove the schedule, and make it again."
    )


_encoder = msgspec.json.Encoder(enc_hook=_trigger_json)
_decoder = msgspec.json.Decoder(ScheduleDefinition, dec_hook=_trigger_of)
