"""Calls by key and their answers, and what they show about the messages of a key."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.model.message import Row
    from simulation.case import Case
    from simulation.errands import Errand
    from simulation.history import Written

_NEVER_US = 1 << 62
_VOID = ("not there", "refused", "taken", "held", "kept")
"""Answers of calls that changed nothing, if no earlier try had an unknown outcome.

`missed`, of a recall, is not one: it asks a running message to stop.
"""
_GOES_ON = ("retry", "snooze", "raise", "ignore", "running")
"""Outcomes of deliveries after which the message still exists."""


@dataclass(slots=True)
class ByKey:
    """A call by key, with its repeats.

    Attributes:
        answer: The answer of a put: put, kept, taken or held; of a get: the message's state; of a
            command: its own. Also refused: the store failed; unknown: no answer came.
        is_unsure: True if a try without an answer may have been applied.
        told: The number of the message that the call returned.
        message_id: The id of that message.
        row: The row that a put stored.
        due_us: The due that a move asked for, epoch microseconds by an exact clock.
    """

    errand: Errand
    process: str
    begun_us: int
    ended_us: int | None = None
    answer: str = "unknown"
    is_unsure: bool = False
    told: int | None = None
    message_id: str = ""
    row: Row | None = None
    due_us: int = 0

    @property
    def token(self) -> int | None:
        """The number of the message or new body that the call was to put; None: it puts none."""
        return self.errand.letter.number if self.errand.letter is not None else None

    @property
    def said(self) -> str:
        """The call and its answer as text."""
        wish = f" {self.errand.conflict}" if self.errand.does == "put" else ""
        return f"{self.errand.does}{wish}: {self.answer}"

    def is_moving(self, name: str) -> bool:
        """True if the call is a move of this key without an answer yet."""
        return self.errand.key == name and self.ended_us is None and self.errand.does == "move"

    @property
    def is_void(self) -> bool:
        """True if the call certainly changed nothing."""
        if self.errand.does == "get":
            return True
        runs_on = self.answer == "running" and self.errand.does != "cancel"
        return (self.answer in _VOID or runs_on) and not self.is_unsure

    @property
    def is_done(self) -> bool:
        """True if the answer says that the call was carried out."""
        return self.ended_us is not None and self.answer in ("put", "done")

    @property
    def has_replaced(self) -> bool:
        """True if the call may have given a message another body, or replaced it."""
        does, wish = self.errand.does, self.errand.conflict
        is_one = does == "edit" or (does == "put" and wish in ("replace", "debounce"))
        return is_one and not self.is_void


class Named:
    """The calls of a run by key.

    Attributes:
        calls: Key -> its calls, in the order of their begins.
        known_us: Message number -> when a caller first learned that the message was stored.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        history = case.history
        self.calls: dict[str, list[ByKey]] = defaultdict(list)
        for call in sorted(history.errands.values(), key=lambda call: call.begun_us):
            self.calls[call.errand.key].append(call)
        self.key_of = {
            token: put.letter.key
            for token, put in history.puts.items()
            if put.letter.key is not None
        }
        self.known_us: dict[int, int] = {}
        for call in history.errands.values():
            if call.ended_us is None:
                continue
            tokens = {call.told} | ({call.token} if call.is_done else set())
            for token in tokens - {None}:
                assert token is not None
                self.known_us[token] = min(self.known_us.get(token, _NEVER_US), call.ended_us)

    def tokens(self, name: str, until_us: int) -> Iterator[int]:
        """The messages of a key that a caller knew of by a time."""
        for token, key in self.key_of.items():
            if key == name and self.known_us.get(token, _NEVER_US) <= until_us:
                yield token

    def of(self, token: int) -> list[ByKey]:
        """All calls by the key of a message."""
        return self.calls[self.key_of[token]]

    def _may_concern(self, call: ByKey, token: int, us: int) -> bool:
        """True if a call may have changed a message by a time."""
        put = self._case.history.puts[token]
        over_us = _NEVER_US if call.ended_us is None else call.ended_us
        # A call without an answer may have taken effect late.
        over_us = over_us if call.is_done else over_us + self._late_us
        is_another = call.token == token or not self._is_meant(call, token)
        return not (is_another or call.is_void) and put.begun_us <= over_us and call.begun_us <= us

    def _is_meant(self, call: ByKey, token: int) -> bool:
        """True if a call may concern a message. A recall concerns one message, after edits too."""
        of, entries = call.errand.of, self._case.entries
        return of in (None, token) or not set(entries[of]).isdisjoint(entries[token])

    @property
    def _late_us(self) -> int:
        weather = self._case.history.plan.weather
        return max(int(weather["late_us"]), int(weather["timeout_us"]))

    def reason_to_go(self, token: int, us: int) -> str | None:
        """The call that may have ended a message by a time; None: no call."""
        for call in self.of(token):
            ends = call.errand.does in ("cancel", "recall") or call.has_replaced
            if ends and self._may_concern(call, token, us):
                return call.said
        return None

    def may_be_cancelled(self, token: int, us: int) -> bool:
        """True if a message may have been cancelled by a time, rather than replaced."""
        return any(
            call.errand.does in ("cancel", "recall") and self._may_concern(call, token, us)
            for call in self.of(token)
        )

    def is_there(self, token: int, call: ByKey) -> bool:
        """True if a message certainly had its key and a row as long as a call took."""
        case, until_us = self._case, call.ended_us
        if until_us is None or self.known_us.get(token, _NEVER_US) > call.begun_us:
            return False
        if token in case.copies or case.is_purged(token, until_us):
            return False
        if any(written.at_us <= until_us for written in case.deaths(token)):
            return False
        if any(
            one.begun_us <= until_us and one.outcome not in _GOES_ON for one in case.by_token[token]
        ):
            return False
        if self.reason_to_go(token, until_us) is not None:
            return False
        return self._is_covered(token, call.begun_us, until_us)

    def _is_covered(self, token: int, begun_us: int, until_us: int) -> bool:
        """True if a message had a row in the queue at each moment of a stretch of time."""
        at_us = begun_us
        for written in sorted(self._rows(token), key=lambda written: written.at_us):
            if written.is_there(at_us):
                at_us = written.deleted_us or _NEVER_US
        return at_us > until_us

    def was_there(self, token: int, call: ByKey, *, is_dead: bool = False) -> bool:
        """True if a message had a row at some moment of a call."""
        rows = self._case.deaths(token) if is_dead else self._rows(token)
        until_us = call.ended_us or _NEVER_US
        return any(
            w.at_us <= until_us and (w.deleted_us is None or w.deleted_us >= call.begun_us)
            for w in rows
        )

    def _rows(self, token: int) -> list[Written]:
        dead = {id(written) for written in self._case.deaths(token)}
        return [written for written in self._case.written(token) if id(written) not in dead]

    def has_come_back(self, token: int, row_id: bytes, since_us: int) -> bool:
        """True if a row was put back from the dead-letter queue, or moved from one that was."""
        line = self._case.line_of(row_id)
        return any(
            written.at_us >= since_us and written.row.id in line
            for written in self._case.revived.get(token, ())
        )


def is_cancelled_by_key(case: Case, token: int) -> bool:
    """True if a message may have been cancelled by key, or dropped because it lost its key.

    A message is also dropped if its put had no answer, or if a command replaced it.
    """
    put = case.history.puts[token]
    return put.letter.key is not None and (
        put.outcome != "acked" or Named(case).reason_to_go(token, case.history.ended_us) is not None
    )
