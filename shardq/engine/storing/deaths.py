"""Calls `on_dead` with each message that died in a consumer, after its burial is stored.

```
 outbox ── a burial is stored ──► tell ──► waiting ──► on_dead(message), one after another
                                      in a separate thread, or in the caller of `Consumer.step`
```

A message is reported once at most. A crash, a deadline or too many waiting messages leave some
unreported. The dead-letter queue has them all.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.handing.call import HandlerCall
from shardq.engine.handing.failures import exc_info_of, one_line, sound_traceback
from shardq.engine.handing.hanging import hangs_after_ms, place_of, span_text
from shardq.engine.handing.outcome import outcome_of
from shardq.model.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.engine.handing.failures import FailureLog
    from shardq.model.message import Row
    from shardq.records.register import Register

log = logging.getLogger(__name__)
log.addFilter(sound_traceback)

_WAITING_MAX = 10_000
_WAITING_BYTES_MAX = 64 * 1024 * 1024
"""How many dead messages, and about how many bytes, wait in memory for a slow `on_dead` at most."""
_POLL_S = 0.05


class Deaths:
    """Dead messages of one consumer on their way to its `on_dead`.

    Args:
        register: The record of the queue in which the messages died.
        failures: Limits how many failed calls are logged.
        call: The user's `on_dead`.
    """

    def __init__(
        self,
        clock: Clock,
        register: Register,
        failures: FailureLog,
        call: Callable[[Message], object],
    ) -> None:
        self._clock = clock
        self._failures = failures
        self._register = register
        self._call = HandlerCall(call)
        self._lock = locks.new()
        self._changed = locks.condition(self._lock)
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._left_out = 0
        self._is_calling = False
        self._begun_us = self._named_us = 0
        """Time since boot at which the last call of `on_dead` began; the call's run time when it
        was last logged."""
        self._is_ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        name = f"shardq-{self._register.name}-dead"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def tell(self, row: Row) -> None:
        """Let `on_dead` be called for a dead message, given its row in the dead-letter queue."""
        # The burial is stored, so `on_dead` must be called even if the store fails now. Nothing is
        # read here: planning the burial has opened the dead-letter queue's record.
        message = Message(row, 0, self._register.signer_of(row.shard.queue))
        with self._lock:
            has_room = len(self._waiting) < _WAITING_MAX and self._bytes <= _WAITING_BYTES_MAX
            if has_room:
                self._waiting.append(message)
                self._bytes += message._row.size_bytes
                self._changed.notify()
            else:
                self._left_out += 1
            is_first = self._left_out == 1
        if is_first and not has_room:
            log.warning(
                "queue %s: too many dead messages wait for on_dead, which is slow or hangs; it is "
                "not called for more",
                self._register.name,
            )

    @property
    def is_busy(self) -> bool:
        """True if a call waits or runs. It may put messages, so no queue counts as empty yet."""
        with self._lock:
            return bool(self._waiting) or self._is_calling

    def watch(self) -> None:
        """Log a call that hangs, as handlers are logged: again each time its run time doubles."""
        bound_us = hangs_after_ms(self._register.settings) * 1_000
        with self._lock:
            ran_us = self._clock.boot_us() - self._begun_us if self._is_calling else 0
            if self._thread is None or ran_us <= max(2 * self._named_us, bound_us):
                return
            self._named_us = ran_us
            waiting = len(self._waiting)
        place = place_of(self._thread.ident or 0)
        log.warning(
            "queue %s: a call of on_dead has run for %s, and %s more wait for its end%s",
            self._register.name,
            span_text(ran_us),
            f"{waiting:,}",
            f"; it stands at:\n{place}" if place else "",
        )

    @property
    def is_here(self) -> bool:
        """True in the thread that makes the calls."""
        return threading.current_thread() is self._thread

    def run(self, until_us: int) -> None:
        """Make the calls that wait, in the calling thread.

        Args:
            until_us: Time since boot after which no call begins.
        """
        while self._clock.boot_us() < until_us and self._call_next():
            pass
        if not self._waiting:
            self._say_left_out(is_over=False)

    def end(self, deadline_us: int, is_hurried: Callable[[], bool]) -> None:
        """Wait until the thread has made all calls, then end it.

        Args:
            deadline_us: Time since boot at which the wait ends.
            is_hurried: Returns True once the wait is to end at once.
        """
        while self._clock.boot_us() < deadline_us and not is_hurried():
            with self._lock:
                if not (self._waiting or self._is_calling):
                    break
                self._clock.wait(self._changed, _POLL_S)
        with self._lock:
            self._is_ending = True
            self._changed.notify_all()
            is_calling = self._is_calling
        if is_calling:
            log.warning(
                "queue %s: a call of on_dead still runs, for which its consumer waits no longer",
                self._register.name,
            )
        self._say_left_out(is_over=True)

    def _serve(self) -> None:
        while True:
            with self._lock:
                while not (self._waiting or self._is_ending):
                    self._clock.wait(self._changed, None)
                if self._is_ending:
                    return
            self._call_next()
            if not self._waiting:
                self._say_left_out(is_over=False)

    def _call_next(self) -> bool:
        """Make the call that has waited longest; False if no call waits."""
        with self._lock:
            if self._is_ending or not self._waiting:
                return False
            message = self._waiting.popleft()
            self._bytes -= message._row.size_bytes
            self._is_calling = True
            self._begun_us, self._named_us = self._clock.boot_us(), 0
        try:
            self._make_call(message)
        finally:
            with self._lock:
                self._is_calling = False
                self._changed.notify_all()
        return True

    def _make_call(self, message: Message) -> None:
        left, error = self._call(message)
        if error is not None and self._failures.has_room_for(f"{type(error).__name__} of on_dead"):
            outcome = outcome_of(error)
            log.warning(
                "message %s of queue %s is dead, and on_dead failed with it: %s",
                message.id,
                self._register.name,
                one_line(outcome.reason),
                exc_info=exc_info_of(error, outcome),
            )
        if left and self._failures.has_room_for("on_dead that returned what has not run"):
            log.error(
                "message %s of queue %s is dead, and on_dead returned %s.",
                message.id,
                self._register.name,
                left,
            )

    def _say_left_out(self, *, is_over: bool) -> None:
        with self._lock:
            count, self._left_out = self._left_out, 0
            if is_over:
                count += len(self._waiting)
                self._waiting.clear()
        if count:
            log.warning(
                "queue %s: on_dead was not called for %s dead messages; see its dead-letter queue",
                self._register.name,
                f"{count:,}",
            )
