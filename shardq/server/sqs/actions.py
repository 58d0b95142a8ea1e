"""The table of actions: each handler adds its own, with what the action takes and needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    from shardq.records.actions import What
    from shardq.server.grants import Level

Handler: TypeAlias = "Callable[[Any, Any], Awaitable[msgspec.Struct | None]]"
H = TypeVar("H", bound=Handler)


class SqsAction(msgspec.Struct, frozen=True):
    """An action.

    Attributes:
        name: Its name.
        level: The level of access that it needs.
        input: The struct of its input.
        handler: The function that carries it out.
        decoder: Reads its input.
        what: The command as which a call is recorded; None: calls are not recorded here.
    """

    name: str
    level: Level
    input: type[msgspec.Struct]
    handler: Handler
    decoder: msgspec.json.Decoder[Any]
    what: What | None = None


ACTIONS: dict[str, SqsAction] = {}
"""Name -> the action: all that SQS has, once their handlers are imported."""


def action(
    name: str, level: Level, taken: type[msgspec.Struct], what: What | None = None
) -> Callable[[H], H]:
    """Make a handler the handler of an action.

    Args:
        name: The name of the action.
        level: The level of access that it needs.
        taken: The struct of its input.
        what: The command as which a call is recorded.
    """

    def add(handler: H) -> H:
        decoder = msgspec.json.Decoder(taken, strict=False)
        ACTIONS[name] = SqsAction(name, level, taken, handler, decoder, what)
        return handler

    return add
