"""The log of handlers that run long: message, run time, thread, and place in the user's code.

A handler is logged once it has run longer than both its queue's `hold` and 10 s, again each time
the run time has doubled, and when it has ended after all.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from shardq.engine.handing.outcome import is_own
from shardq.engine.members.part import Part
from shardq.model.times import duration_text

if TYPE_CHECKING:
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.members.member import Member
    from shardq.engine.storing.outbox import Outbox
    from shardq.model.settings import Settings

log = logging.getLogger(__name__)

_LEAST_MS = 10_000
"""No handler hangs before this time, however short its queue's `hold` is."""
_LOOK_EVERY_US = 1_000_000
SHOWN_MAX = 10
"""The most handlers that the log names at each look, once a second; the rest are counted."""
_FRAMES_MAX = 12
"""The most frames of a handler's stack that are shown: half of them outer, half inner ones."""


def hangs_after_ms(settings: Settings) -> int:
    """How long a handler of a queue runs before it counts as hanging, milliseconds."""
    return max(settings.hold_ms, _LEAST_MS)


class Hanging(Part):
    """Watches the handlers of one member of a queue. From the thread that steps its engine."""

    def __init__(self, member: Member, outbox: Outbox) -> None:
        super().__init__(member)
        self._outbox = outbox
        self._looked_us = 0
        self._again_us: dict[Delivery, int] = {}
        """Logged delivery -> the run time at which it is logged again."""

    def look(self, *, everything: bool = False) -> None:
        """Log which handlers run long, and which logged ones have ended; once a second at most.

        Args:
            everything: True to look at once, because the member ends.
        """
        now_us = self._clock.boot_us()
        if now_us - self._looked_us < _LOOK_EVERY_US and not everything:
            return
        self._looked_us = now_us
        for one in [one for one in self._again_us if one.has_ended]:
            del self._again_us[one]
            # A held delivery can be ended before its handler returns.
            runs_on = one in self._outbox.endings.held
            log.warning(
                "message %s of queue %s: its %s, after %s",
                one.row.message_id,
                self._register.name,
                "delivery has ended and its handler runs on"
                if runs_on
                else "handler has ended after all",
                span_text(now_us - one.begun_us),
            )
        bound_us = hangs_after_ms(self._register.settings) * 1_000
        slow = [
            one
            for one in self._outbox.at_work()
            if now_us - one.begun_us > self._again_us.get(one, bound_us)
        ]
        if slow:
            self._name(slow, now_us, bound_us)

    def _name(self, slow: list[Delivery], now_us: int, bound_us: int) -> None:
        slow.sort(key=_begun)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for number, one in enumerate(slow):
            ran_us = now_us - one.begun_us
            again_us = 2 * self._again_us.get(one, bound_us)
            # A look may be late: skip the doublings that have passed.
            while again_us <= ran_us:
                again_us *= 2
            self._again_us[one] = again_us
            if number >= SHOWN_MAX:
                continue
            ending = self._outbox.endings.held.get(one)
            if ending is not None and ending.has_returned:
                thread, place = "", "" if ending.where is None else ending.where()
            else:
                thread = f", in thread {names.get(one.thread_id, one.thread_id)}"
                place = place_of(one.thread_id)
            # If the delivery has ended meanwhile, `place` may be that of its thread's next
            # delivery.
            if one.has_ended:
                continue
            log.warning(
                "message %s of queue %s has run for %s, longer than %s%s%s",
                one.row.message_id,
                self._register.name,
                span_text(ran_us),
                duration_text(bound_us // 1_000),
                thread,
                f"; it stands at:\n{place}" if place else "",
            )
        if len(slow) > SHOWN_MAX:
            log.warning(
                "queue %s: %s more handlers have run for longer than %s",
                self._register.name,
                f"{len(slow) - SHOWN_MAX:,}",
                duration_text(bound_us // 1_000),
            )


def place_of(thread_id: int) -> str:
    """The stack of a thread in the user's code, as Python prints it; empty if the thread has ended.

    The frames from the start of the thread through shardq to that code are left out.
    """
    innermost = sys._current_frames().get(thread_id)  # noqa: SLF001 - it is public
    frames = list(traceback.walk_stack(innermost)) if innermost is not None else []
    while frames and not is_own(frames[-1][0]):
        frames.pop()
    while frames and is_own(frames[-1][0]):
        frames.pop()
    return stack_text(traceback.StackSummary.extract(iter(reversed(frames))))


def stack_text(stack: traceback.StackSummary) -> str:
    """A stack as Python prints it, the outermost frame first, without the middle of a deep one."""
    lines = stack.format()
    if len(lines) > _FRAMES_MAX:
        half = _FRAMES_MAX // 2
        lines[half:-half] = ["  ...\n"]
    return "".join(lines).rstrip()


def _begun(one: Delivery) -> int:
    return one.begun_us


def span_text(us: int) -> str:
    """A run time, as the log shows it."""
    # Rounded up: a run of more than 30 s is not shown as 30 s.
    return duration_text(-(-us // 1_000_000) * 1_000)
