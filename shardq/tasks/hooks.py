"""An app's functions around the jobs of a worker: open and close a client, say."""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from typing import TYPE_CHECKING, Any

from shardq.engine.handing.handler import is_any
from shardq.errors import BadApp
from shardq.tasks.limits import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.tasks.loop import Loop

log = logging.getLogger(__name__)

_MARGIN_S = 3.0
"""A hook is awaited this much longer than its limit: the loop reports the hook's end a little
late."""


def start(hook: Callable[[], Any], loop: Loop) -> None:
    """Call a hook before jobs run; a coroutine runs in the loop.

    Raises:
        BadApp: If it fails.
    """
    if (error := _called(hook, loop, None)) is not None:
        told = f"{type(error).__name__}: {error}".removesuffix(".")
        raise BadApp(f"on_start {_name_of(hook)} of the app failed: {told}.") from error


def stop(hooks: Sequence[Callable[[], Any]], loop: Loop, limit_s: float) -> None:
    """Call hooks after jobs have run, the last first; failures are logged.

    Args:
        hooks: The functions.
        loop: Where coroutines run.
        limit_s: How long each coroutine may take, seconds.
    """
    for hook in reversed(hooks):
        if (error := _called(hook, loop, limit_s)) is not None:
            log.error("on_stop %s of the app failed", _name_of(hook), exc_info=error)


def _called(hook: Callable[[], Any], loop: Loop, limit_s: float | None) -> BaseException | None:
    """The error of a hook's call; None if it succeeded."""
    if not is_any(inspect.iscoroutinefunction, hook):
        try:
            hook()
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            return error
        return None
    is_over = threading.Event()
    raised: list[BaseException | None] = []

    def done(_value: Any, error: BaseException | None) -> None:
        raised.append(error)
        is_over.set()

    context = contextvars.copy_context()
    # A hook needs no slot: jobs that outlive the deadline of a stop may have taken all slots.
    loop.submit(hook, done, context=context, limit_s=limit_s, name=_name_of(hook), has_slot=False)
    if not is_over.wait(None if limit_s is None else limit_s + _MARGIN_S):
        return TimeLimit("did not end within its time")
    return raised[0]


def _name_of(hook: Callable[[], Any]) -> str:
    return getattr(hook, "__qualname__", type(hook).__qualname__)
