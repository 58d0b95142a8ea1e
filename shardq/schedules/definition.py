"""The definition of a schedule: when it fires, its job, and how. Stored as JSON."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from shardq.errors import ShardqError, StoreCorrupt, shown
from shardq.schedules.policy import Policies
from shardq.schedules.triggers.trigger import Trigger

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME_MAX = 200
"""The longest name, in characters: with a fire time it is the id of a message."""


@dataclass(frozen=True, slots=True)
class ScheduledPut:
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
    headers: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    group: str | None = None
    key: str | None = None
    on_conflict: str = "keep"
    unique_for_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ScheduleDefinition:
    """The definition of a schedule.

    Attributes:
        name: Its name, unique in its queue.
        trigger: When it fires.
        job: The message that it puts.
        policies: Its policies.
        count: How often it fires; None: for ever.
        revision: The revision of the code that declares it; 0 if it was made at run time.
        paused: True if it does not fire.
        made_ms: When its trigger was made, epoch milliseconds: a trigger without a start begins
            there.
        declared: The declared definition, if it was changed at run time since; else None.
    """

    name: str
    trigger: Trigger
    job: ScheduledPut
    policies: Policies = field(default_factory=Policies)
    count: int | None = None
    revision: int = 0
    paused: bool = False
    made_ms: int = 0
    declared: ScheduleDefinition | None = None

    def to_json(self) -> dict[str, Any]:
        """The definition as a JSON object."""
        job = {
            one.name: value
            for one in fields(ScheduledPut)
            if (value := getattr(self.job, one.name)) not in (None, {}, 0, "keep")
        }
        job["body"] = b64encode(self.job.body).decode()
        declared = {} if self.declared is None else {"declared": self.declared.to_json()}
        return {
            "name": self.name,
            "trigger": self.trigger.to_json(),
            "job": job,
            "policies": self.policies.to_json(),
            "count": self.count,
            "revision": self.revision,
            "paused": self.paused,
            "made_ms": self.made_ms,
            **declared,
        }

    def text(self) -> str:
        """The definition as JSON text."""
        return json.dumps(self.to_json(), separators=(",", ":"), sort_keys=True)

    @classmethod
    def read(cls, given: object, whose: str) -> ScheduleDefinition:
        """A definition from its JSON, as an object or a text.

        Args:
            given: The JSON.
            whose: For the error.

        Raises:
            StoreCorrupt: If it is no definition.
        """
        try:
            said = json.loads(given) if isinstance(given, str) else given
            job = dict(said["job"])  # type: ignore[index]
            declared = said.get("declared")  # type: ignore[union-attr]
            return cls(
                **{
                    **said,  # type: ignore[dict-item]
                    "trigger": Trigger.from_json(said["trigger"]),  # type: ignore[index]
                    "job": ScheduledPut(**{**job, "body": b64decode(job["body"])}),
                    "policies": Policies(**said["policies"]),  # type: ignore[index]
                    "declared": None if declared is None else cls.read(declared, whose),
                }
            )
        except StoreCorrupt:
            raise
        except ShardqError as error:
            # A zone or a trigger's class may not exist on this machine.
            raise StoreCorrupt(f"{whose} cannot be read here: {error}") from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreCorrupt(
                f"{whose} is damaged: {shown(given)}; remove the schedule, and make it again."
            ) from error

    def is_same(self, other: ScheduleDefinition) -> bool:
        """True if two definitions mean the same, whenever each was written."""
        return not self.unlike(other)

    def unlike(self, other: ScheduleDefinition) -> list[str]:
        """The differences in meaning of two definitions, as options and arguments name them."""
        one, another = _meant(self), _meant(other)
        return [
            name.removesuffix("_ms")
            for name in {**one, **another}
            if one.get(name) != another.get(name)
        ]


def _meant(one: ScheduleDefinition) -> dict[str, Any]:
    told = one.to_json()
    meant = {name: told[name] for name in ("name", "trigger", "count", "made_ms")}
    return {**meant, **told["job"], **told["policies"]}
