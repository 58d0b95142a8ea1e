"""Fires the schedules of one queue for as long as a member of it runs.

```
 step ─► upcoming ── due names ─► firing ─► when to look at each again ─► upcoming
```
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.handing.hanging import span_text
from shardq.errors import ShardqError, UnknownQueue
from shardq.lifecycle.pauses import BackOff
from shardq.model.key import BUCKETS
from shardq.schedules.firing.firing import ScheduleFiring
from shardq.schedules.firing.upcoming import NEVER_MS, Upcoming
from shardq.schedules.stored import LEAD_LOCAL_MS, LEAD_MS
from shardq.schedules.table import ScheduleTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.lifecycle.home import QueueHome
    from shardq.records.membership import Membership

log = logging.getLogger(__name__)

_OPEN_S = 1.0
"""How often the settings in memory are checked for schedules of the queue."""
_LOOK_S = 1.0
_LOOK_LOCAL_S = 0.25
_RANK_MS, _RANK_LOCAL_MS = 3_000, 500
"""The member that ranks next fires schedules that are this late; on SQLite the second number."""
_AGAIN_US = 5_000_000
"""After this time a thread that could not be started is tried again."""
_HANGS_US = 10_000_000
"""A trigger that takes longer is reported as hanging."""
_TURN_MAX = 1_000
"""Most schedules of one turn; fewer if planning takes so long that the records are outdated."""
_LEAST_S = 1.0
_BUCKETS = range(BUCKETS)


class Firer:
    """Fires the schedules of one queue.

    Args:
        home: The queue's home.
        membership: Returns the queue's members, which divide the schedules; None: there is no
            engine.
        on_put: Called with the first and the last due of the jobs put, epoch milliseconds.
    """

    def __init__(
        self,
        home: QueueHome,
        membership: Callable[[], Membership | None],
        on_put: Callable[[int], object],
    ) -> None:
        self._membership = membership
        self._clock = home.clock
        self._register = home.register
        self._firing = ScheduleFiring(home, on_put, self._note_asked)
        is_local = home.store.is_local
        self._look_s = _LOOK_LOCAL_S if is_local else _LOOK_S
        self._upcoming = Upcoming(
            ScheduleTable(home.store, home.register),
            home.clock,
            lead_ms=LEAD_LOCAL_MS if is_local else LEAD_MS,
            every_us=round(self._look_s * 1e6),
            rank_ms=_RANK_LOCAL_MS if is_local else _RANK_MS,
        )
        self._back_off = BackOff()
        self._turn = _TURN_MAX
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._again_us = 0
        self._asked: tuple[str, int] | None = None
        """The schedule whose trigger is being asked, and since when."""
        self._reported: tuple[str, int] | None = None
        self._idle = locks.condition(locks.new())

    # Its thread -----------------------------------------------------------------------------------

    def follow(self) -> None:
        """Step in a thread until `stop`, once the queue has schedules; most queues have none.

        The consumer calls this in each turn, so a thread that could not be started, or that an
        error has ended, is started again later.
        """
        if self._is_stopping or not self._register.settings.schedules_used:
            return
        self._report_hanging()
        if self._thread is not None and not self._thread.is_alive():
            self._thread, self._again_us = None, self._clock.boot_us() + _AGAIN_US
            log.error(
                "schedules of queue %s: their thread has ended by an error of its own, and is "
                "started again in %s.",
                self._register.name,
                span_text(_AGAIN_US),
            )
        if self._thread is not None or self._clock.boot_us() < self._again_us:
            return
        name = f"shardq-{self._register.name}-schedules"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._again_us = self._clock.boot_us() + _AGAIN_US
            log.error(  # noqa: TRY400 - the message is complete
                "schedules of queue %s do not fire in this process: %s; lower `threads`, or raise "
                "what limits it (ulimit -u, ulimit -v).",
                self._register.name,
                error,
            )
        else:
            self._thread = thread

    def _note_asked(self, name: str | None) -> None:
        self._asked = None if name is None else (name, self._clock.boot_us())

    def _report_hanging(self) -> None:
        """Log a trigger that does not return, once."""
        if (asked := self._asked) is None or asked is self._reported:
            return
        name, since_us = asked
        if self._clock.boot_us() - since_us >= _HANGS_US:
            self._reported = asked
            log.warning(
                "schedule %s of queue %s: its trigger has not said for %s when it fires next, and "
                "the others of this queue wait for that; mend it, or remove the schedule and start "
                "this process again.",
                name,
                self._register.name,
                span_text(_HANGS_US),
            )

    def stop(self) -> None:
        """Ask for an end. Safe in a signal's handler."""
        self._is_stopping = True

    def join(self, seconds: float) -> None:
        """Wait for the end of its thread.

        Args:
            seconds: The longest wait: a user's trigger may never return.
        """
        thread = self._thread
        if thread is not None and thread.ident is not None:
            with self._idle:
                self._idle.notify()
            # Wait only briefly for a trigger that runs: it may never return.
            thread.join(seconds if self._asked is None else min(seconds, _LEAST_S))

    def _run(self) -> None:
        while not self._is_stopping:
            delay = self.step()
            with self._idle:
                if not self._is_stopping:
                    self._clock.wait(self._idle, delay)

    # Turns ----------------------------------------------------------------------------------------

    def step(self) -> float:
        """Fire the due schedules.

        Returns:
            Seconds until the next turn is needed.
        """
        if not self._register.settings.schedules_used or self._membership() is None:
            return _OPEN_S
        try:
            return self._step()
        except UnknownQueue as error:
            log.info("schedules of queue %s: %s", self._register.name, error)
            return _OPEN_S
        except ShardqError as error:
            pause_s = self._back_off.after_failure()
            log.warning(
                "schedules of queue %s: tried again in %.1f s: %s",
                self._register.name,
                pause_s,
                error,
            )
            return pause_s

    def _step(self) -> float:
        self._upcoming.look()
        while not self._is_stopping:
            due = self._upcoming.due(self._ranks(), self._clock.now_ms(), self._turn)
            when: dict[str, int | None] = dict.fromkeys(due, 0)
            try:
                if due:
                    when = self._firing.fire(due)
            finally:
                # Do this even after an error, so that no schedule is forgotten.
                for name, when_ms in when.items():
                    self._upcoming.put(name, when_ms)
            is_whole = len(due) < self._turn
            self._turn = max(self._turn // 2, 1) if self._firing.was_slow else _TURN_MAX
            if is_whole:
                break
        self._back_off.end()
        until_ms = self._upcoming.next_ms(self._ranks())
        return max(0.0, min(self._look_s, until_ms / 1e3 - self._clock.now_us() / 1e6))

    def next_ms(self) -> int | None:
        """When this member looks at a schedule next, epoch milliseconds; None: never."""
        next_ms = self._upcoming.next_ms(self._ranks())
        return None if next_ms == NEVER_MS else next_ms

    def hurry(self) -> None:
        """Let the next step read the commands' announcements."""
        self._upcoming.hurry()

    def _ranks(self) -> Mapping[int, int]:
        members = self._membership()
        return {} if members is None else members.ranks(_BUCKETS, self._clock.now_ms())
