"""The limits of tasks and of late messages of one queue at one member, and pauses.

```
 due job ─► its task has limits? ── no ──► ready
                └─ line of the task ── a gate for each task ──► handed out
                      └─ beyond 100, or a minute ──► moved to about the time of its turn
```

A job without a group waits in the line of its task, so that jobs of other tasks pass it. The head
of a group waits there too, or in the line of its group if that has one. A pause of tasks or keys
has a line with a closed gate, for the messages that it holds back. The late messages of all other
tasks, and those of none, have a line while the queue limits how it catches up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from shardq.engine.handing.delivery import HeadLine
from shardq.engine.handing.gate import Gate
from shardq.engine.members.part import Part
from shardq.model.limits import AWAY_MS, LATE, RULES_MAX, Pause, can_be_paused, queue_limit_of
from shardq.model.message import task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.members.member import Member
    from shardq.engine.storing.outbox import Outbox
    from shardq.model.limits import QueueLimit
    from shardq.model.message import Row
    from shardq.model.settings import Settings

_ROWS_MAX: Final = 100
"""The most jobs of one task that stay where they are while the task waits for its limits."""
_NEXT_US: Final = 1_000_000
"""A job whose turn comes within this time stays in any case: a move would take as long."""
_STAY_US: Final = 60_000_000
"""A job whose turn comes later than this is moved, so that its minute can be sealed."""
_AWAY_US: Final = 1_000 * AWAY_MS
_EARLY: Final = 0.9
"""Postponement jobs return somewhat before their turns, so that tokens are not left over."""
_MEASURED_MIN: Final = 10
_MEASURED_US: Final = 10_000_000
_MEASURED_US_MIN: Final = 1_000_000
_MEASURED_US_MAX: Final = 60_000_000
_QUICK_US: Final = 5_000
"""How long it is taken to be from one job to the next without a rate, until it is measured."""
_STORED_MS: Final = 3_000
"""A longer hold is stored for other processes; a shorter one would end before they read it."""
_PART: Final = 4
"""A hold that is longer by less than this part of it begins with the next step: several jobs of a
task are refused at a time."""


class TaskLine:
    """The jobs of one task that wait for its limits, or other messages that wait for a gate.

    Args:
        gate: The limits.
        until_ms: When a pause ends by itself, epoch milliseconds; 0 for any other line.

    Attributes:
        line: The jobs that are due, in `ready`.
        booked_us: Time since boot up to which moved jobs return.
    """

    __slots__ = ("_from_begun", "_from_us", "booked_us", "gate", "line", "pace_us", "until_ms")

    def __init__(self, gate: Gate, until_ms: int = 0) -> None:
        self.gate = gate
        self.until_ms = until_ms
        self.line = HeadLine(1, None)
        self.booked_us = 0.0
        self.pace_us = 0.0
        self._from_us = self._from_begun = 0

    def measure(self, now_us: int) -> None:
        """Measure how often jobs begin, over a span in which jobs always wait.

        Until a whole span has been measured, assume that jobs begin as often as the rates allow, or
        quickly. Too slow a pace would leave limits unused; too quick a pace costs one more move.
        """
        usual_us = self.gate.usual_us
        if not self.line.heads:
            # Jobs that wait elsewhere may have been moved too far.
            self._from_us, self.pace_us = 0, 0.0
            return
        self.pace_us = self.pace_us or usual_us or _QUICK_US
        begun, took_us = self.gate.begun - self._from_begun, now_us - self._from_us
        span_us = _MEASURED_US if usual_us else _MEASURED_US_MIN
        is_whole = self._from_us and took_us >= span_us and begun >= _MEASURED_MIN
        if is_whole:
            self.pace_us = max(usual_us, took_us / begun)
        elif self._from_us and not usual_us and took_us >= _MEASURED_US:
            self.pace_us = max(self.pace_us, took_us / (begun + 1))
        if is_whole or not self._from_us or took_us >= _MEASURED_US_MAX:
            self._from_us, self._from_begun = now_us, self.gate.begun


class Postponement(NamedTuple):
    """A job that is to be moved to a later due.

    Attributes:
        one: Its delivery, which is not in `ready` any more.
        due_ms: Its new due.
    """

    one: Delivery
    due_ms: int


class TaskLines(Part):
    """The limits of the tasks of one queue at one member.

    Args:
        outbox: Knows which jobs run.
        has_begun: Returns True for a row that is begun in advance.
    """

    def __init__(self, member: Member, outbox: Outbox, has_begun: Callable[[Row], bool]) -> None:
        super().__init__(member)
        self._outbox = outbox
        self._has_begun = has_begun
        self._lock = self._ready.waiters.lock
        self._lines: dict[str | Pause, TaskLine] = {}
        self._limit = self._others = queue_limit_of("")
        """The limits, and the limits without `_paused`."""
        self._paused: dict[str, Pause] = {}
        """Task -> its pause by its name: there may be many, and each row looks for its own."""
        self._holds: dict[str, int] = {}
        """Task -> the end of a pause that the settings do not have, or not for as long, epoch
        milliseconds."""
        outbox.hold_task = self.hold

    @property
    def is_busy(self) -> bool:
        """True if jobs of tasks with limits, or messages of a pause, were due here lately."""
        ends = any(pause.until_ms for pause in self._limit.paused)
        return bool(self._lines or self._holds or ends)

    def follow(self) -> None:
        """Let the limits and pauses in the queue's settings hold from now on."""
        with self._lock:
            former, limit = self._limit, self._present()
            held = [(one.tasks, one.paused, one.catch_up) for one in (former, limit)]
            if held[0] == held[1]:
                self._set(limit)
            else:
                self._adopt(limit)

    def _adopt(self, limit: QueueLimit, task: str | None = None) -> None:
        """Let other limits hold.

        Args:
            task: The task whose jobs alone they concern; None: all messages.
        """
        with self._lock:
            self._set(limit)
            waiting = self._ready.remove(lambda one: task in (None, task_of(one.row)))
            lines = {line.line for line in self._lines.values()}
            for one in waiting:
                one.limit(None, None if one.line in lines else one.line)
            self._ready.tasks = self if limit.has_lines else None
            self._lines = {name: line for name, line in self._lines.items() if self._has_line(name)}
            self._ready.add(waiting)
            for one in self._outbox.handed_out():
                task = task_of(one.row)
                has_limits = task is not None and self._has_line(task)
                one.limit(self._line(task).gate if task and has_limits else None, one.line)

    def _set(self, limit: QueueLimit) -> None:
        self._limit = limit
        self._paused = {
            pause.names: pause
            for pause in limit.paused
            if pause.of == "task" and can_be_paused(pause.names)
        }
        others = (one for one in limit.paused if self._paused.get(one.names) is not one)
        self._others = limit._replace(paused=tuple(others))

    def _line_of(self, row: Row) -> str | Pause | None:
        now_ms = self._clock.now_ms()
        if self._paused:
            pause = self._paused.get(task_of(row) or "")
            if pause is not None and not pause.is_over(now_ms):
                return pause
        return self._others.line_of(row, now_ms)

    def _present(self) -> QueueLimit:
        """The limits that hold now, with the tasks that this process holds back."""
        now_ms = self._clock.now_ms()
        stored = queue_limit_of(self._register.settings.queue_limit).at(now_ms)
        self._holds = {task: at_ms for task, at_ms in self._holds.items() if at_ms > now_ms}
        held = stored.with_holds(self._pauses(), now_ms)
        if held == stored:
            self._holds.clear()
        return held

    def _pauses(self) -> list[Pause]:
        return [Pause("task", task, at_ms) for task, at_ms in self._holds.items()]

    def hold(self, task: str, delay_ms: int) -> None:
        """Hand out no job of a task for a while: here at once, elsewhere when it is stored."""
        now_ms = self._clock.now_ms()
        until_ms = now_ms + delay_ms
        with self._lock:
            before = self._paused.get(task)
            ends_ms = now_ms if before is None else before.until_ms
            others = [pause for pause in self._limit.paused if pause is not before]
            has_room = len(others) < RULES_MAX and can_be_paused(task)
            if not 0 < ends_ms < until_ms or not has_room:
                return
            self._holds[task] = max(self._holds.get(task, 0), until_ms)
            if until_ms - max(ends_ms, now_ms) > delay_ms // _PART:
                paused = sorted([*others, Pause("task", task, until_ms)])
                self._adopt(self._limit._replace(paused=tuple(paused)), task)

    # Called by `ready` ----------------------------------------------------------------------------

    def has_limits(self, row: Row) -> bool:
        """True if a row is paused or late, or its task has limits."""
        return self._line_of(row) is not None

    def limit(self, waiting: Iterable[Delivery]) -> None:
        """Record the limits of their tasks in rows that are about to wait for a handler."""
        for one in waiting:
            if (name := self._line_of(one.row)) is not None:
                line = self._line(name)
                one.limit(line.gate, line.line if one.line is None else one.line)

    def _has_line(self, name: str | Pause) -> bool:
        """True if messages of a line may have to wait by the present limits."""
        limit = self._limit
        if isinstance(name, str):
            return limit.rule_of(name) is not None
        return name in limit.paused or (name == LATE and limit.catch_up is not None)

    def _line(self, name: str | Pause) -> TaskLine:
        line = self._lines.get(name)
        if line is None:
            gate = Gate(
                self._home,
                self._lock,
                self._threads,
                suffix=f" {name}" if isinstance(name, str) else f":{name.of}",
                limit_of=partial(_limit_of, name),
                is_closed=name in self._limit.paused,
            )
            gate.running = partial(self._outbox.count_at_handlers, gate)
            line = self._lines[name] = TaskLine(gate, 0 if isinstance(name, str) else name.until_ms)
        return line

    # Called by the engine -------------------------------------------------------------------------

    def keep(self) -> bool:
        """Take, renew or give back shares of limits, and end and store pauses, if it is time.

        Returns:
            True if shares may have changed.

        Raises:
            StoreTimeout, StoreUnavailable: Try again.
        """
        has_changed = self._keep_holds()
        for line in list(self._lines.values()):
            has_changed = line.gate.keep(line.gate.due) or has_changed
        with self._lock:
            self._lines = {
                name: line
                for name, line in self._lines.items()
                if not line.gate.is_idle or line.gate.running()
            }
        return has_changed

    def leave(self) -> None:
        """Give shares of limits back, as no more deliveries begin here.

        Raises:
            StoreTimeout, StoreUnavailable: Others use them when they have ended.
        """
        for line in list(self._lines.values()):
            line.gate.leave()

    def _keep_holds(self) -> bool:
        """End pauses whose time has come, and store for how long tasks are held back.

        Returns:
            True if pauses have ended.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            holds = [one for one in self._pauses() if one.until_ms > now_ms + _STORED_MS]

        def changed(now: Settings) -> Settings:
            limit = queue_limit_of(now.queue_limit)
            short = _short(limit, holds, now_ms)
            held = limit.with_holds(short, now_ms).to_json() if short else now.queue_limit
            return replace(now, queue_limit=held)

        if _short(queue_limit_of(self._register.settings.queue_limit), holds, now_ms):
            self._register.change(lambda now: [changed(now)])
        if self._holds:
            self.follow()
        has_ended = any(pause.is_over(now_ms) for pause in self._limit.paused)
        if has_ended:
            self.follow()
        return has_ended

    def held_back(self) -> dict[str, int]:
        """Count the due rows in memory that wait for these limits: `Heartbeat.limited`."""
        counts: Counter[str] = Counter()
        with self._lock:
            for name, line in self._lines.items():
                of = "task" if isinstance(name, str) else "late" if name == LATE else "pause"
                counts[of] += 0 if line.gate.may_begin() else line.gate.due
        return {of: count for of, count in counts.items() if count}

    def postpone(self) -> None:
        """Move jobs that wait for long: they would fill the memory for other tasks."""
        moved: list[Postponement] = []
        with self._lock:
            kept: Counter[int] = Counter()
            for line in self._lines.values():
                line.measure(self._clock.boot_us())
                if line.line.held:
                    moved += self._surplus(line, kept)
            out = {one for one, _ in moved}
            if out:
                self._ready.remove(out.__contains__)
        for one, due_ms in moved:
            self._outbox.postpone(one, due_ms)

    def _surplus(self, line: TaskLine, kept: Counter[int]) -> Iterator[Postponement]:
        """Choose the jobs of a line to move.

        Args:
            line: The line, which is held.
            kept: Lane -> jobs of held lines that stay.
        """
        now_us, now_ms = self._clock.boot_us(), self._clock.now_ms()
        opens_us, pace_us = line.gate.opens_us(), line.pace_us
        first_us = opens_us if now_us < opens_us < now_us + _AWAY_US else now_us
        polled = sum(not lane.of_groups for lane in self._memory.polled) or 1
        of_lane_max = max(self._prefetch // polled // 2, 1)
        # Heads of groups are never moved. Assume they are spread evenly among the jobs.
        jobs = [entry for entry in line.line.heads if not entry[3].grouped]
        stay, each_us = 0, pace_us * len(line.line.heads) / max(len(jobs), 1)
        for *_, one in sorted(jobs):
            lane = one.row.shard.lane
            at_us = first_us + stay * each_us
            is_soon = at_us - now_us < _STAY_US
            if line.gate.is_closed:
                # If nobody knows when the pause ends, the message waits as long again as it has.
                waited_us = 1_000 * (now_ms - one.row.wanted_ms)
                is_soon, at_us = waited_us < _AWAY_US, now_us + max(waited_us, _STAY_US)
                if line.until_ms:
                    at_us = now_us + 1_000 * (line.until_ms - now_ms)
                    is_soon = is_soon or at_us - now_us < _STAY_US
            may_stay = is_soon and (stay < _ROWS_MAX or at_us - now_us < _NEXT_US)
            if not self._may_move(one) or (may_stay and kept[lane] < of_lane_max):
                stay += 1
                kept[lane] += 1
                continue
            at_us = min(max(line.booked_us, at_us), now_us + _AWAY_US)
            if not line.gate.is_closed:
                line.booked_us = at_us + _EARLY * pace_us
                line.gate.want(round(at_us))
            yield Postponement(one, now_ms + max(round((at_us - now_us) / 1_000), 1))

    def _may_move(self, one: Delivery) -> bool:
        """True if a job may be moved: nobody else settles it, and a read would find it again."""
        if one.grouped or one.doubtful or self._has_begun(one.row):
            return False
        lane = self._memory.lanes.get(one.row.shard.lane)
        return lane is not None and one.row.shard.minute > lane.sealed


def _short(limit: QueueLimit, holds: Iterable[Pause], now_ms: int) -> list[Pause]:
    """Choose the holds of which the settings have no pause, or one of less than half the time left.

    So a refusal of each job that runs costs no write of its own.
    """
    ends_ms = {one[:2]: one.until_ms for one in limit.paused}
    pairs = ((hold, ends_ms.get(hold[:2], now_ms)) for hold in holds)
    return [
        hold for hold, at_ms in pairs if at_ms and 2 * (at_ms - now_ms) < hold.until_ms - now_ms
    ]


def _limit_of(name: str | Pause, limit: QueueLimit) -> QueueLimit:
    return limit.of_line(name)
