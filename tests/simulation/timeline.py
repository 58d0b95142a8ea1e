"""The states that each schedule may have had at each time, inferred from calls and answers.

```
 ──┬─ called ──┬─ answered ──────┬─ called ──── never answered ─ ..
   │  as before, or after        │  as before, or after, until another call is answered
   └─ as before└─ as answered    └─
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
            has reached its count; unknown: no answer came.
        told: The schedule that the call returned.
        tries: How often it was called. The outcomes of all but the last are unknown.
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
        """True if the caller got an answer."""
        return self.ended_us is not None and self.answer != "unknown"

    @property
    def spec(self) -> int | None:
        """The number of the definition that the command gives; None: it gives none."""
        return None if self.command.spec is None else self.command.spec.number


class State(NamedTuple):
    """A state that a schedule may have at a time.

    Attributes:
        spec: The number of its definition; None: it does not exist.
        by: The number of the command that gave it the definition.
        made: The number of the command that made it, also after it has ended.
        is_paused: True if it is paused.
        has_ended: True if it does not exist because it reached its count.
    """

    spec: int | None
    by: int = 0
    made: int = 0
    is_paused: bool = False
    has_ended: bool = False


ABSENT = State(None)


class Stretch(NamedTuple):
    """The states that a schedule may have from a time on."""

    us: int
    states: frozenset[State]

    @property
    def sure(self) -> State | None:
        """The only possible state, in which it fires; None if it may have another or not fire."""
        live = [state for state in self.states if not state.has_ended]
        if len(live) != 1 or live[0].spec is None or live[0].is_paused:
            return None
        # The ended schedule may be a former one of this name, and the new one not made yet.
        is_sole = all(state.made == live[0].made for state in self.states)
        return live[0] if is_sole else None


class _Course(NamedTuple):
    """One possible course of a schedule's commands up to a time.

    Attributes:
        state: The state of the schedule after it.
        done: The numbers of the commands under way that have taken effect.
    """

    state: State
    done: frozenset[int] = frozenset()


class Timeline:
    """The states that one schedule may have had at each time.

    A command takes effect at one moment between its call and its answer. Without an answer it takes
    effect at any later time, or never.

    Args:
        case: The run.
        name: The schedule's name.

    Attributes:
        asked: The commands, in the order of their calls.
        specs: Number -> definition.
        stretches: The stretches in order; each lasts until the next one begins.
        false: The commands whose answers no course explains.
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
        """The states that it may have had at some moment of a stretch of time."""
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
        """The courses in which a command had taken effect when its answer came."""
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
        """These courses, and those in which some commands under way have taken effect since.

        A command with several tries may have taken effect twice.
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
        """The states into which a command may bring a schedule."""
        if _fits(one, state) and (one.answer != "refused" or self._may_be_spent(one, state)):
            yield _after(one, state)
        if one.tries > 1:
            # An earlier try without an answer may have been carried out.
            yield _after_done(one, state)
        ended = self._ended(_after_done(one, state))
        if one.answer == "gone" and ended.has_ended:
            # The change itself may end a schedule that has already fired as often.
            yield ended
        if one.answer == "gone" and self._meets(one, "remove"):
            # It was carried out, but the schedule was removed before the answer was read.
            yield _after_done(one, state)
            if one.command.does == "make":
                yield ABSENT
        if one.answer == "taken" and state.spec is None and self._meets(one, "change"):
            # It was made, but changed by another command before the answer was read.
            yield _after_done(one, state)

    def _meets(self, one: Asked, does: str) -> bool:
        """True if another command of a kind was under way at the same time."""
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
        """When the caller got its answer, died or gave up."""
        if one.ended_us is not None:
            return one.ended_us
        return self._case.crash_us.get(one.process, _NEVER_US)

    def _may_be_spent(self, one: Asked, state: State) -> bool:
        """True if a schedule may have fired as often as the count that a command gives."""
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
        """The state into which a schedule with a count may come by itself: ended."""
        is_endless = state.spec is None or self.specs[state.spec].count is None
        return state if is_endless else ABSENT._replace(made=state.made, has_ended=True)


def _after(one: Asked, state: State) -> State:
    """The state into which a command with its answer brings a schedule."""
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
    """True if a command may get its answer in a state of the schedule."""
    is_there = state.spec is not None
    if one.command.does == "remove" or not one.is_sure:
        return True
    if one.command.does == "make":
        is_another = is_there and state.spec != one.spec
        return is_another if one.answer == "taken" else one.answer == "done" and not is_another
    return is_there == (one.answer in ("done", "refused"))
