"""Features that SQS lacks, by attributes of a message whose names begin with `x-shardq-`.

```
 x-shardq-delay        seconds, or a duration such as 30d: instead of DelaySeconds, to 100 years
 x-shardq-priority     0 is first
 x-shardq-key          a name that no other waiting message of the queue has
 x-shardq-on-conflict  keep, replace, reject or debounce, where a message has the key already
 x-shardq-command      cancel or move: about the message that has the key; this one is not sent
```
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from shardq.errors import BadTime
from shardq.lifecycle.keyed import Answer
from shardq.model.times import duration_ms
from shardq.server.grants import Level
from shardq.server.sqs.contents import OURS
from shardq.server.sqs.errors import SqsRefusal, invalid, missing, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.server.hub import ServedQueue
    from shardq.server.sqs.shapes import AttributeValue

_KNOWN: Final = {"delay", "priority", "key", "on-conflict", "unique-for", "command"}
_COMMANDS: Final = {"cancel", "move"}


@dataclass(slots=True)
class KeyCommand:
    """A command about the message that has a key.

    Attributes:
        name: `cancel` or `move`.
        key: The key.
        delay: How long from now the message is to be due, of a move.
    """

    name: str
    key: str
    delay: timedelta

    @property
    def level(self) -> Level:
        """The level that it needs, as over HTTP."""
        return Level.ACK if self.name == "cancel" else Level.UPDATE

    @property
    def action(self) -> str:
        """The similar action of SQS."""
        return "DeleteMessage" if self.name == "cancel" else "ChangeMessageVisibility"

    async def run(self, served: ServedQueue) -> str:
        """Carry it out; returns the message's id.

        Raises:
            SqsRefusal: If no message that waits has the key.
        """

        def carry_out(queue: Any) -> tuple[Answer, str]:
            found = queue.get(self.key)
            if found is None:
                return Answer.NOT_THERE, ""
            if self.name == "cancel":
                return queue.cancel(key=self.key), found.id
            return queue.move(self.key, delay=self.delay), found.id

        answer, message_id = await served.call(carry_out)
        if answer is not Answer.DONE:
            raise SqsRefusal(
                "InvalidParameterValueException",
                f"Value {self.key} for parameter {OURS}key is invalid. Reason: "
                + (
                    "No message of the queue has this key."
                    if answer is Answer.NOT_THERE
                    else f"The {self.name} was answered: {answer.value}."
                ),
            )
        return message_id


def apply(attributes: Mapping[str, AttributeValue], item: dict[str, Any]) -> KeyCommand | None:
    """Add the options of attributes to a put; returns the command, if they are one.

    Args:
        attributes: All attributes of the message.
        item: The arguments of the put.

    Raises:
        SqsRefusal: If an attribute is unknown, or they do not go together.
    """
    ours = {
        name.removeprefix(OURS): one.string_value or ""
        for name, one in attributes.items()
        if name.startswith(OURS)
    }
    if not ours:
        return None
    if unknown := {*ours} - _KNOWN:
        raise invalid(
            f"The message attribute {OURS}{min(unknown)[:100]} is not known; there are "
            f"{', '.join(OURS + one for one in sorted(_KNOWN))}."
        )
    if "delay" in ours:
        item["delay"] = _delay(ours["delay"])
    if "command" in ours:
        return _command(ours, item)
    if "priority" in ours:
        if not (ours["priority"].isascii() and ours["priority"].isdigit()):
            raise wrong(ours["priority"][:100], f"{OURS}priority", "Must be a whole number.")
        item["priority"] = int(ours["priority"][:10])
    for name in ("key", "on-conflict", "unique-for"):
        if name in ours:
            item[name.replace("-", "_")] = ours[name]
    if "key" in ours and "once" in item:
        # Then a FIFO queue finds repeats by the key alone.
        del item["once"]
    return None


def _command(ours: Mapping[str, str], item: Mapping[str, Any]) -> KeyCommand:
    name = ours["command"]
    if name not in _COMMANDS:
        raise wrong(name[:100], f"{OURS}command", "Must be cancel or move.")
    if not ours.get("key"):
        raise missing(f"{OURS}key")
    return KeyCommand(name, ours["key"], item.get("delay", timedelta(0)))


def _delay(text: str) -> timedelta:
    value = f"{text}s" if text.isascii() and text.isdigit() else text
    try:
        return timedelta(milliseconds=duration_ms(value, name=f"{OURS}delay"))
    except BadTime as error:
        # A refusal fails one entry of a batch; another error would fail the whole batch.
        raise invalid(str(error)) from error
