"""The calls about schedules that producers make, their answers, and faults of firings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from shardq.errors import ClockError, KeyTaken, StoreError, UnknownSchedule, UsageError
from simulation.case import STEWARD
from simulation.clerk import Clerk
from simulation.roles import TRIES
from simulation.timeline import Asked
from simulation.timetables import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated.scheduler import Process

    import shardq
    from shardq.schedules.schedule import Schedule
    from simulation.parts import Event, Machine
    from simulation.timetables import Spec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAUSE_S = 0.1
_REMOVED_S = 60.0
_LAST = 1_000_000
_BREAKS_US = 6_000


class Registrar(Clerk):
    """The calls about schedules of a world's producers."""

    _queue: Any
    _steward: Process

    def begin_errands(self, process: Process, machine: Machine, queue: shardq.Queue) -> None:
        """Start a producer's errands and commands, without those begun before a restart."""
        super().begin_errands(process, machine, queue)
        for command in self.plan.commands:
            if command.producer == machine.name and command.number not in self.history.commands:
                work = partial(self._command, process, queue, command)
                self.simulation.spawn(process, work, "errand")

    def _command(self, process: Process, queue: shardq.Queue, command: Command) -> None:
        wait_us = self._start_us + round(command.at_s * 1e6) - self.simulation.now_us
        if wait_us > 0:
            self.simulation.sleep(wait_us / 1e6)
        if self.ending and process.name != STEWARD:
            # The end of the run removes all schedules.
            return
        asked = Asked(command, process.name, self.simulation.now_us)
        self.history.commands[command.number] = asked
        self._ask_until_answered(queue, asked)
        asked.ended_us = self.simulation.now_us
        self.history.reached.add(f"schedules: {command.does}: {asked.answer}")
        self._note("schedule", process, (command.name, command.does, asked.answer))

    def _ask_until_answered(self, queue: shardq.Queue, asked: Asked) -> None:
        given = self._given(asked.command.spec)
        for _ in range(TRIES):
            asked.tries += 1
            try:
                asked.told = self._ask_once(queue, asked.command, dict(given))
            except KeyTaken:
                asked.answer = "taken"
            except UnknownSchedule:
                asked.answer = "gone"
            except UsageError:
                if asked.command.does != "change" or given.get("count") is None:
                    raise
                # The schedule has fired as often as the new count already; `timeline` judges that.
                asked.answer = "refused"
            except ClockError:
                pass
            except StoreError:
                self.simulation.sleep(_PAUSE_S)
                continue
            else:
                asked.answer = "done"
            return

    def _ask_once(
        self, queue: shardq.Queue, command: Command, given: dict[str, Any]
    ) -> Schedule | None:
        name = command.name
        if command.does == "make":
            text = given.pop("cron", None)
            if text is not None:
                return queue.cron(text, name=name, **given)
            return queue.every(given.pop("every"), name=name, **given)
        if command.does == "remove":
            queue.schedules.remove(name)
            return None
        schedule = queue.schedules.get(name)
        if schedule is None:
            raise UnknownSchedule(name)
        if command.does == "change":
            return schedule.change(**given)
        return schedule.pause() if command.does == "pause" else schedule.resume()

    def _given(self, spec: Spec | None) -> dict[str, Any]:
        """The arguments of `Schedule.change` that give a schedule a definition."""
        if spec is None:
            return {}
        # Without a start in the definition a change removes the former one.
        given = {"body": spec.body, "start": None, **spec.options()}
        if spec.is_cron:
            return {**given, "cron": f"*/{spec.every_s} * * * * *"}
        if spec.first_s is not None:
            given["start"] = _EPOCH + timedelta(milliseconds=self.first_ms(spec))
        return {**given, "every": f"{spec.every_s}s"}

    def first_ms(self, spec: Spec) -> int:
        """When a schedule is to fire first, epoch milliseconds."""
        return self._start_us // 1_000 + round((spec.first_s or 0.0) * 1_000)

    # In the end -----------------------------------------------------------------------------------

    def rest(self) -> None:
        """Let healthy consumers fire schedules for a while; then all are removed."""
        names = {command.name for command in self.plan.commands}
        if not names:
            return
        self.simulation.run(self.plan.rest_s)
        self.simulation.run(_REMOVED_S, lambda: not self._are_asking(0))
        for place, name in enumerate(sorted(names)):
            command = Command(_LAST + place, STEWARD, 0.0, "remove", name)
            work = partial(self._command, self._steward, self._queue, command)
            self.simulation.spawn(self._steward, work, "remove")
        self.simulation.run(_REMOVED_S, lambda: not self._are_asking(len(names)))

    def _are_asking(self, removals: int) -> bool:
        """True if fewer than `removals` have begun, or a living process waits for an answer."""
        processes = self.simulation.processes
        asked = self.history.commands
        return sum(number >= _LAST for number in asked) < removals or any(
            one.ended_us is None and not processes[one.process].dead for one in asked.values()
        )

    # What befalls firings -------------------------------------------------------------------------

    @property
    def of_firings(self) -> dict[str, Callable[[Event], None]]:
        """Kind of event -> the function that plans such a fault for the next firing."""
        return {"break": self._breaks.append}

    def on_firing(self, process: Process) -> None:
        """Called before a process fires: a planned fault kills or pauses it in the middle."""
        if not self._breaks or self.ending:
            return
        event, after_us = self._breaks.pop(), process.chance.randrange(_BREAKS_US)
        self.history.reached.add(f"firing broken: {event.verb}")
        act = partial(self._break, process, event)
        self.simulation.scheduler.at(self.simulation.now_us + after_us, act)

    def _break(self, process: Process, event: Event) -> None:
        if process.dead or self.ending:
            return
        if event.verb == "cut":
            self._crash(process)
            return
        now_us = self.simulation.now_us
        self.simulation.freeze(process, event.seconds)
        self.history.freezes.append((now_us, process.frozen_until_us, process.name))
