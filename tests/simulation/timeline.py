"""What each schedule was at which time, by what was asked for and answered.

```
 ──┬─ called ──┬─ answered ──────┬─ called ──── never answered ─ ..
   │  as before, or after        │  as before, or after, until another call is answered
   └─ as before└─ as it says     └─
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.schedules.schedule import Schedule
    from simulation.case import Case
    from simulation.timetables import Command, Spec

_NEVER_US = 1 << 62


@dataclass(slots=True)
class Asked:
    """A command, with its repeats.

    Attributes:
        answer: done; gone: there is no such schedule; taken: another one has the name; refused: it
            has fired as often as it was to; unknown: nobody was told.
        told: The schedule, as the caller was told it.
        tries: How often it was called; what any but the last has done, nobody was told.
    """

    command: Command
    process: str
    begun_us: int
    ended_us: int | None = None
    answer: str = "unknown"
    told: Schedule | None = None
    tries: int = 0

    @property
    def is_sure(self) -> bool:
        """True if its caller was told what has become of it."""
        return self.ended_us is not None and self.answer != "unknown"

    @property
    def spec(self) -> int | None:
        """The number of what the schedule was to be."""
        return None if self.command.spec is None else self.command.spec.number


class State(NamedTuple):
    """What a schedule may be at a time.

    Attributes:
        spec: What it was asked to be, by its number; None: it is not there.
        by: The number of the command that asked for that.
        made: That of the command that has made it, or had, before it ended.
        is_paused: True if it is paused.
        has_ended: True if it is not there since it has fired as often as it was to.
    """

    spec: int | None
    by: int = 0
    made: int = 0
    is_paused: bool = False
    has_ended: bool = False


ABSENT = State(None)


class Stretch(NamedTuple):
    """What a schedule may be from a time on."""

    us: int
    states: frozenset[State]

    @property
    def sure(self) -> State | None:
        """What it surely is, and fires; None where it may not."""
        live = [state for state in self.states if not state.has_ended]
        if len(live) != 1 or live[0].spec is None or live[0].is_paused:
            return None
        # One that has ended may be the one before, in the place of which it is being made.
        is_sole = all(state.made == live[0].made for state in self.states)
        return live[0] if is_sole else None


class _Course(NamedTuple):
    """One way in which it may have gone so far.

    Attributes:
        state: What the schedule is then.
        done: The commands under way that have taken effect, by their numbers.
    """

    state: State
    done: frozenset[int] = frozenset()


class Timeline:
    """What one schedule may have been at each time.

    Each command takes effect at one moment between its call and its answer; one that nobody was
    told of later, or never.

    Args:
        case: The run.
        name: The schedule's.

    Attributes:
        asked: The commands, by when they were called.
        specs: What it was asked to be, by number.
        stretches: In order; each until the next one begins.
        false: Commands whose answers nothing explains.
    """

    def __init__(self, case: Case, name: str) -> None:
        self._case = case
        self._name = name
        asked = [one for one in case.history.commands.values() if one.command.name == name]
        self.asked = sorted(asked, key=lambda one: one.begun_us)
        specs = (one.command.spec for one in asked)
        self.specs: dict[int, Spec] = {spec.number: spec for spec in specs if spec is not None}
        self.stretches = [Stretch(0, frozenset({ABSENT}))]
        self.false: list[Asked] = []
        self._open: dict[int, Asked] = {}
        courses = {_Course(ABSENT)}
        for us, number, one in sorted(self._edges(), key=lambda edge: edge[:2]):
            if us == one.begun_us:
                self._open[number] = one
            else:
                courses = self._at_end(one, courses)
            courses = self._gone_on(courses)
            self.stretches.append(Stretch(us, frozenset(course.state for course in courses)))

    def between(self, since_us: int, until_us: int) -> set[State]:
        """What it may have been at some moment of a stretch of time."""
        found: set[State] = set()
        for stretch in reversed(self.stretches):
            if stretch.us <= until_us:
                found |= stretch.states
                if stretch.us <= since_us:
                    break
        return found

    def _edges(self) -> Iterator[tuple[int, int, Asked]]:
        for one in self.asked:
            yield one.begun_us, one.command.number, one
            if one.is_sure and one.ended_us is not None:
                yield max(one.ended_us, one.begun_us + 1), one.command.number, one

    def _at_end(self, one: Asked, courses: set[_Course]) -> set[_Course]:
        """The courses in which a command that is answered has taken effect."""
        over = {one.command.number}
        over |= {number for number, other in self._open.items() if self._settles(one, other)}
        fitting = {course for course in courses if one.command.number in course.done}
        if not fitting:
            self.false.append(one)
            fitting = courses | {
                course._replace(state=_after(one, course.state)) for course in courses
            }
        for number in over:
            del self._open[number]
        return {course._replace(done=course.done - over) for course in fitting}

    def _gone_on(self, courses: set[_Course]) -> set[_Course]:
        """The same, and those in which any of the commands under way have taken effect.

        One that was tried again may have done so twice.
        """
        found, fresh = set(courses), set(courses)
        while fresh:
            more = {
                _Course(state, course.done | {number})
                for course in fresh
                for number, one in self._open.items()
                if number not in course.done or one.tries > 1
                for state in self._outcomes(one, course.state)
            }
            more |= {course._replace(state=self._ended(course.state)) for course in fresh}
            fresh = more - found
            found |= more
        return found

    def _outcomes(self, one: Asked, state: State) -> Iterator[State]:
        """What a command may make of a schedule."""
        if _fits(one, state) and (one.answer != "refused" or self._may_be_spent(one, state)):
            yield _after(one, state)
        if one.tries > 1:
            # By a try before, of which nobody was told.
            yield _after_done(one, state)
        ended = self._ended(_after_done(one, state))
        if one.answer == "gone" and ended.has_ended:
            # By the change itself, where it has fired so often before.
            yield ended
        if one.answer == "gone" and self._meets(one, "remove"):
            # It was carried out, and looked at when it was removed already.
            yield _after_done(one, state)
            if one.command.does == "make":
                yield ABSENT
        if one.answer == "taken" and state.spec is None and self._meets(one, "change"):
            # It was made, and looked at when it was changed already.
            yield _after_done(one, state)

    def _meets(self, one: Asked, does: str) -> bool:
        """True if another command, of a kind, was under way while one was."""
        return any(
            other.command.does == does
            and other.begun_us <= self._over_us(one)
            and self._over_us(other) >= one.begun_us
            for other in self.asked
        )

    def _settles(self, one: Asked, other: Asked) -> bool:
        """True if nothing comes any more of a command that nobody was told of, once one is done.

        A schedule that is found to be there already is left as it is, but not removed any more.
        """
        is_left = one.command.does == "make" and other.command.does != "remove"
        is_undecided = not other.is_sure and self._over_us(other) <= one.begun_us
        return one.answer == "done" and is_undecided and not is_left

    def _over_us(self, one: Asked) -> int:
        """When its caller was told, had died, or had given up."""
        if one.ended_us is not None:
            return one.ended_us
        return self._case.crash_us.get(one.process, _NEVER_US)

    def _may_be_spent(self, one: Asked, state: State) -> bool:
        """True if a schedule may have fired as often by now as a command was to let it."""
        history = self._case.history
        count = None if one.command.spec is None else one.command.spec.count
        until_us = history.ended_us if one.ended_us is None else one.ended_us
        since_us = history.commands[state.made].begun_us
        fired = {
            run.time_ms
            for run in history.runs.values()
            if run.name == self._name and since_us <= run.at_us <= until_us
        }
        return count is not None and len(fired) >= count

    def _ended(self, state: State) -> State:
        """What a schedule may have come to by itself."""
        is_endless = state.spec is None or self.specs[state.spec].count is None
        return state if is_endless else ABSENT._replace(made=state.made, has_ended=True)


def _after(one: Asked, state: State) -> State:
    """What a command makes of a schedule."""
    return state if one.answer in ("gone", "taken", "refused") else _after_done(one, state)


def _after_done(one: Asked, state: State) -> State:
    command, is_there = one.command, state.spec is not None
    if command.does == "make":
        return state if is_there else State(one.spec, command.number, command.number)
    if command.does == "remove" or not is_there:
        return ABSENT if is_there else state
    if command.does == "change":
        return state._replace(spec=one.spec, by=command.number)
    return state._replace(is_paused=command.does == "pause")


def _fits(one: Asked, state: State) -> bool:
    """True if a command's answer may be given where a schedule is so."""
    is_there = state.spec is not None
    if one.command.does == "remove" or not one.is_sure:
        return True
    if one.command.does == "make":
        is_another = is_there and state.spec != one.spec
        return is_another if one.answer == "taken" else one.answer == "done" and not is_another
    return is_there == (one.answer in ("done", "refused"))
