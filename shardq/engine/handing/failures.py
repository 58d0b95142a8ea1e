"""The log of a consumer's failures: each failure once at most, and at a bounded rate.

```
 a delivery fails ── note ──┬─ at most 10 in any second ──► a line, and the traceback
                            └─ the rest ──► counted by kind ──► flush, each second: one line
```

A failure is logged in the thread of its handler, so that a slow log costs no leases.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from shardq import locks
from shardq.engine.handing.outcome import HandlerDecision, users_frames
from shardq.lifecycle.fate import FAILED, Fate, Outcome, decided
from shardq.model.message import first_line, sound_text
from shardq.model.names import is_dead_queue
from shardq.model.times import span

if TYPE_CHECKING:
    from shardq.engine.handing.delivery import Delivery
    from shardq.lifecycle.home import QueueHome

log = logging.getLogger(__name__)

REPORTED = "is_reported"
"""Log records have this attribute: True if the failures have log lines elsewhere, as those of a
worker have."""
SHOWN_MAX = 10
"""The most failures of one consumer that the log shows in any second; the rest are counted."""
_SECOND_US = 1_000_000
_KINDS_MAX = 20
"""The most kinds of failure that are counted by name; the others are counted together."""
_OTHERS = "others"
_FORMATTER = logging.Formatter()
_LINE_CHARS = 1_000


class FailureLog:
    """Logs the failed deliveries of one member of a queue. From any thread."""

    def __init__(self, home: QueueHome) -> None:
        self._clock = home.clock
        self._register = home.register
        self._lock = locks.new()
        self._shown_us: deque[int] = deque(maxlen=SHOWN_MAX)
        self._left_out: Counter[str] = Counter()
        self._left_out_us = 0
        self._are_reported = True

    def note(
        self,
        one: Delivery,
        outcome: Outcome,
        error: BaseException | None = None,
        *,
        kind: str = "",
        level: int = logging.WARNING,
    ) -> None:
        """Log a failed delivery, or count it if the log has no room.

        A message that was snoozed or discarded has not failed.

        Args:
            one: The delivery.
            outcome: Its outcome.
            error: The error of its handler. Its traceback is shown, unless it is a `Retry` or a
                `Bury` without a cause, of which the reason is enough.
            kind: The kind under which the failure is counted; by default the error's class, or the
                reason.
            level: The level of the line.
        """
        if outcome.fate not in FAILED:
            return
        outcome = decided(outcome, one.attempt, self._register)
        kind = kind or (one_line(outcome.reason) if error is None else type(error).__name__)
        if not self.has_room_for(kind, is_reported=outcome.is_reported):
            return
        failure = exc_info_of(error, outcome) if error is not None else None
        log.log(
            level,
            "message %s of queue %s failed, attempt %s, %s: %s",
            one.row.message_id,
            self._register.name,
            self._attempt_of(one, outcome),
            "buried" if outcome.fate is Fate.BURY else f"again in {_delay(outcome)}",
            one_line(outcome.reason),
            exc_info=failure,
            extra={REPORTED: outcome.is_reported},
        )

    def has_room_for(self, kind: str, *, is_reported: bool = False) -> bool:
        """True if the log has room for one more failure; else the failure is counted by kind.

        Args:
            kind: The failure's kind.
            is_reported: True if another log has a line for the failure.
        """
        now_us = self._clock.boot_us()
        with self._lock:
            shown_us = self._shown_us
            if len(shown_us) < SHOWN_MAX or now_us - shown_us[0] >= _SECOND_US:
                shown_us.append(now_us)
                return True
            if not self._left_out:
                self._left_out_us, self._are_reported = now_us, True
            self._are_reported &= is_reported
            is_named = kind in self._left_out or len(self._left_out) < _KINDS_MAX
            self._left_out[kind if is_named else _OTHERS] += 1
            return False

    def flush(self, *, everything: bool = False) -> None:
        """Log how many failures were left out, one second after the first of them was.

        Args:
            everything: True to log the number at once, because the member ends.
        """
        if not self._left_out:
            return
        with self._lock:
            span_us = self._clock.boot_us() - self._left_out_us
            if span_us < _SECOND_US and not everything:
                return
            left_out, self._left_out = self._left_out, Counter()
            are_reported = self._are_reported
        log.warning(
            "queue %s: %s more failures in %s are not shown: %s",
            self._register.name,
            f"{left_out.total():,}",
            span(span_us / 1_000),
            ", ".join(f"{count:,} {kind}" for kind, count in left_out.most_common()),
            extra={REPORTED: are_reported},
        )

    def _attempt_of(self, one: Delivery, outcome: Outcome) -> str:
        if is_dead_queue(self._register.name):
            # A message in a dead-letter queue never runs out of attempts.
            return f"{one.attempt}"
        return f"{one.attempt} of {outcome.attempts or self._register.settings.attempts}"


def one_line(reason: str) -> str:
    r"""A reason as one line of the log.

    >>> one_line("first\nsecond")
    'first ..'
    """
    line = sound_text(first_line(reason))
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}.."


def sound_traceback(record: logging.LogRecord) -> bool:
    """Filter a log record: turn its traceback into text that a file in UTF-8 can take.

    An error may hold half of a surrogate pair, because of which the whole line would be lost.
    """
    if record.exc_info:
        text = _FORMATTER.formatException(record.exc_info)
        if (sound := sound_text(text)) != text:
            record.exc_text = sound
    return True


def _delay(outcome: Outcome) -> str:
    return span(outcome.delay_ms or 0)


def exc_info_of(error: BaseException, outcome: Outcome) -> Any:
    """The `exc_info` for `logging`, from the user's code on; None if there is nothing to show.

    An error is shown only if the outcome has its traceback: then `logging` can format the error
    too.
    """
    if not outcome.traceback:
        return None
    frames = users_frames(error.__traceback__)
    is_caused = error.__cause__ is not None
    if isinstance(error, HandlerDecision) and not is_caused:
        return None
    if frames is None and not is_caused and error.__context__ is None:
        return None
    return type(error), error, frames


log.addFilter(sound_traceback)
