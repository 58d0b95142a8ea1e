"""The rules of schedules: each fire time has one run, as the schedule was asked to, for ever.

```
          called, answered       lead                                called
 ─────────────┬───┬───────────────┬────────────────────────────────────┬──────►
   as before  │ either: as before │ each fire time has one run, or is  │ either
              │ or after          │ skipped by a policy of the schedule│
```

The rules know of a schedule only what its callers asked for and were answered.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from simulation.books import reason_to_go
from simulation.calm import disturbances, merged
from simulation.case import QUEUE, Breach
from simulation.stories import clock_of
from simulation.timeline import Timeline
from simulation.timetables import LEAD_LOCAL_S, LEAD_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.case import Case
    from simulation.runs import Run
    from simulation.timeline import State
    from simulation.timetables import Spec

_SLACK_US = 300_000
"""The most that a process's corrected clock is off, plus the time of a call."""
_MISSED_US = 60_000_000
"""A run is put at most this long after its fire time; later the fire time is missed."""
_FIRED_US = 30_000_000
_NEVER_US = 1 << 62


def firings(case: Case) -> Iterator[Breach]:
    """All rules of schedules."""
    names = {one.command.name for one in case.history.commands.values()}
    for name in sorted(names):
        account = Account(case, name)
        for rule in (_contradicted, _twice, _unasked, _passed, _broken, _overlapped, _dropped):
            yield from rule(case, account)
    for token, run in case.history.runs.items():
        if run.name not in names:
            yield Breach("unasked", f"m{token} is of {run.name}, which was never made", token)


class Owed(NamedTuple):
    """A fire time that a schedule had for certain.

    Attributes:
        us: The fire time, epoch microseconds.
        time_ms: The same, epoch milliseconds.
        state: The state of the schedule at the time.
        until_us: The end of that state: when the next command was called.
    """

    us: int
    time_ms: int
    state: State
    until_us: int


class Account:
    """The fire times that one schedule was to have, and the runs that it put.

    Attributes:
        name: The schedule's name.
        timeline: The states that it may have had at each time.
        runs: Fire time, epoch milliseconds -> its runs, oldest first.
        times: The fire times that have a run, in order.
        owed: The fire times that it had for certain, in order.
    """

    def __init__(self, case: Case, name: str) -> None:
        self._case = case
        self.name = name
        self.timeline = Timeline(case, name)
        lead_s = LEAD_LOCAL_S if case.history.plan.is_local else LEAD_S
        self._lead_us = round(lead_s * 1e6)
        self._start_us = case.history.healed_us - round(case.history.plan.active_s * 1e6)
        self.tokens = {t: run for t, run in case.history.runs.items() if run.name == name}
        self.runs: dict[int, list[Run]] = defaultdict(list)
        for run in sorted(self.tokens.values(), key=lambda run: run.at_us):
            self.runs[run.time_ms].append(run)
        self.times = sorted(self.runs)
        self.owed = sorted(self._owed())

    def spec(self, state: State) -> Spec:
        """The definition of a schedule in a state in which it exists."""
        assert state.spec is not None
        return self.timeline.specs[state.spec]

    def states_at(self, time_ms: int) -> set[State]:
        """The states that it may have had at a fire time, or when the firing was decided."""
        since_us, until_us = self._shown(time_ms)
        return self.timeline.between(since_us - self._lead_us - _SLACK_US, until_us + _SLACK_US)

    def fires_at(self, state: State, time_ms: int) -> bool:
        """True if a schedule in a state has, or may have, a fire time at `time_ms`."""
        if state.spec is None or state.is_paused:
            return False
        spec, first_ms = self.spec(state), self._first_ms(state)
        if first_ms is None:
            return True
        is_begun = spec.is_cron or time_ms >= first_ms or spec.first_s is None
        return is_begun and (time_ms - first_ms) % (spec.every_s * 1_000) == 0

    def between(self, after_ms: int, until_ms: int) -> list[int]:
        """The fire times with runs between two times, both excluded."""
        return [time_ms for time_ms in self.times if after_ms < time_ms < until_ms]

    def _first_ms(self, state: State) -> int | None:
        """A fire time of a schedule, the first one of an interval; None: no caller was told."""
        spec = self.spec(state)
        if spec.is_cron:
            return 0
        if spec.first_s is not None:
            return self._start_us // 1_000 + round(spec.first_s * 1_000)
        told = self._case.history.commands[state.by].told
        return None if told is None or told.next is None else round(told.next.timestamp() * 1_000)

    def _shown(self, time_ms: int) -> tuple[int, int]:
        """When the machine's clock first and last showed a time, or was set past it."""
        us, history = time_ms * 1_000, self._case.history
        found = []
        edges = [(0, 0), *history.sets, (_NEVER_US, 0)]
        for (since_us, ahead_us), (until_us, next_us) in pairwise(edges):
            true_us = us - ahead_us
            if since_us <= true_us <= until_us:
                found.append(true_us)
            elif true_us > until_us > us - next_us:
                found.append(until_us)
        return (min(found), max(found)) if found else (us, us)

    def _owed(self) -> Iterator[Owed]:
        stretches = self.timeline.stretches
        ends = [stretch.us for stretch in stretches[1:]] + [self._case.history.ended_us]
        for stretch, until_us in zip(stretches, ends, strict=True):
            state = stretch.sure
            if state is None or (first_ms := self._first_ms(state)) is None:
                continue
            spec = self.spec(state)
            every_ms = spec.every_s * 1_000
            since_us = stretch.us + self._lead_us + _SLACK_US
            before_us = until_us - _SLACK_US - spec.jitter_ms * 1_000
            time_ms = first_ms + -((first_ms - since_us // 1_000) // every_ms) * every_ms
            if not (spec.is_cron or spec.first_s is None):
                time_ms = max(time_ms, first_ms)
            while time_ms * 1_000 < before_us:
                if time_ms * 1_000 > since_us and not self._case.history.sets:
                    yield Owed(time_ms * 1_000, time_ms, state, until_us)
                time_ms += every_ms

    def at(self, time_ms: int) -> str:
        """A fire time as text."""
        return clock_of(self._case, time_ms * 1_000)

    def told(self) -> str:
        """The commands and their answers as text."""
        case = self._case
        return "; ".join(
            f"[{clock_of(case, one.begun_us)} to "
            f"{'never' if one.ended_us is None else clock_of(case, one.ended_us)} {one.process} "
            f"{one.command.does} {one.spec or ''}: {one.answer}]"
            for one in self.timeline.asked
        )

    def shown(self, time_ms: int) -> str:
        """The runs written near a fire time as text."""
        near = [t for t in self.times if abs(t - time_ms) <= 60_000]
        return "; ".join(
            f"{self.at(t)}: "
            + ", ".join(
                f"{clock_of(self._case, run.at_us)} by {run.process}" for run in self.runs[t]
            )
            for t in near[:30]
        )


def _breach(account: Account, rule: str, time_ms: int, text: str) -> Breach:
    return Breach(
        rule,
        f"{account.name} of {account.at(time_ms)} {text}; {account.told()}; runs: "
        f"{account.shown(time_ms)}",
    )


def _contradicted(case: Case, account: Account) -> Iterator[Breach]:
    """Each answer about a schedule is true."""
    for one in account.timeline.false:
        us = one.begun_us
        text = f"{one.command.does} at {clock_of(case, us)} was answered {one.answer}"
        yield Breach("contradicted", f"{account.name}: {text}; {account.told()}")


def _twice(_case: Case, account: Account) -> Iterator[Breach]:
    """A fire time has one run."""
    for time_ms, runs in account.runs.items():
        entries = [(entry, run) for run in runs for entry in run.entries]
        if len(entries) > 1:
            text = f"has {len(entries)} runs, " + ", ".join(
                f"{entry.hex()} by {run.process}" for entry, run in entries
            )
            yield _breach(account, "twice", time_ms, text)


def _unasked(_case: Case, account: Account) -> Iterator[Breach]:
    """Each run is of a fire time and a definition that its schedule had."""
    for time_ms, runs in account.runs.items():
        states = account.states_at(time_ms)
        for run in runs:
            if not any(
                state.spec == run.spec and account.fires_at(state, time_ms) for state in states
            ):
                text = f"has a run of spec {run.spec}, which is none of {sorted(states, key=str)}"
                yield _breach(account, "unasked", time_ms, text)


def _passed(case: Case, account: Account) -> Iterator[Breach]:
    """A fire time has no run only if it was missed by a minute, or the last run still waits."""
    for owed in (one for one in account.owed if one.time_ms not in account.runs):
        later = [
            one
            for one in account.owed
            if one.time_ms > owed.time_ms
            and one.until_us == owed.until_us
            and one.time_ms in account.runs
        ]
        if not later:
            continue
        spec = account.spec(owed.state)
        fired_us = min(account.runs[one.time_ms][0].at_us for one in later)
        if spec.overlap == "skip" and _was_there_before(case, account, owed.time_ms, fired_us):
            continue
        late_us = fired_us - owed.us
        next_run = account.runs[later[0].time_ms][0]
        text = _wrong_pass(spec, owed, later[0], late_us, next_run.at_us)
        if text is not None:
            yield _breach(account, "passed", owed.time_ms, f"has no run, {text}")


def _wrong_pass(spec: Spec, owed: Owed, later: Owed, late_us: int, next_us: int) -> str | None:
    """Why a fire time should have a run; None if it may lack one.

    Args:
        spec: The definition of its schedule.
        owed: The fire time.
        later: The next fire time that has a run.
        late_us: The time from the fire time to the first run of any later one.
        next_us: When the run of `later` was written.
    """
    if late_us < _MISSED_US - _SLACK_US:
        return f"though a later one had one {late_us / 1e6:.3f} s after it"
    window_us = _NEVER_US if spec.window_s is None else spec.window_s * 1_000_000
    if spec.missed == "all" and late_us < window_us - _SLACK_US:
        return f"though each that was missed was to have one, and {late_us / 1e6:.3f} s is in time"
    if spec.missed != "once":
        return None
    is_missed = next_us - later.us >= _MISSED_US - _SLACK_US
    is_over = next_us - owed.us > window_us - _SLACK_US
    if is_missed or is_over or later.us - owed.us > spec.every_s * 1_500_000:
        return None
    return "though the last one that was missed was to have one"


def _was_there_before(case: Case, account: Account, time_ms: int, until_us: int) -> bool:
    """True if the last run before a fire time still had a row then, or when firing was decided."""
    known = [time for time in account.times if account.runs[time][0].at_us <= until_us]
    before = [time for time in known if time < time_ms]
    if not before:
        return False
    since_us = time_ms * 1_000 - _SLACK_US
    tokens = [t for t, run in account.tokens.items() if run.time_ms == before[-1]]
    return any(
        written.at_us <= until_us and (written.deleted_us or _NEVER_US) >= since_us
        for token in tokens
        for written in case.written(token)
    )


def _broken(case: Case, account: Account) -> Iterator[Breach]:
    """A fire time that half a minute without disturbances follows has a run."""
    if not account.owed:
        return
    bound_us = _FIRED_US
    spans = merged(disturbances(case))
    for owed in account.owed:
        later = [
            account.runs[one.time_ms][0].at_us
            for one in account.owed
            if one.time_ms >= owed.time_ms
            and one.until_us == owed.until_us
            and one.time_ms in account.runs
        ]
        until_us = min([owed.until_us, *later])
        if until_us - owed.us <= bound_us or _may_be_over(case, account, owed):
            continue
        if any(end - begin > bound_us for begin, end in _gaps(spans, owed.us, until_us)):
            text = f"has no run, nor a later one, until {clock_of(case, until_us)}"
            yield _breach(account, "broken", owed.time_ms, text)
            return


def _may_be_over(case: Case, account: Account, owed: Owed) -> bool:
    """True if a schedule may have reached its count before it was changed."""
    states = {owed.state}
    if any(state.has_ended for state in account.states_at(owed.time_ms)):
        states |= account.timeline.between(0, owed.us)
    specs = [account.spec(one) for one in states if one.spec and one.made == owed.state.made]
    count = min((spec.count for spec in specs if spec.count is not None), default=None)
    if count is None:
        return False
    made = case.history.commands[owed.state.made]
    fired = [time for time, runs in account.runs.items() if runs[0].at_us >= made.begun_us]
    return len(fired) >= count


def _gaps(spans: list[tuple[int, int]], begin_us: int, end_us: int) -> list[tuple[int, int]]:
    """The parts of a stretch of time that no span covers."""
    gaps, at_us = [], begin_us
    for since_us, until_us in spans:
        if since_us > at_us:
            gaps.append((at_us, min(since_us, end_us)))
        at_us = max(at_us, until_us)
    gaps.append((at_us, end_us))
    return [(since_us, until_us) for since_us, until_us in gaps if until_us > since_us]


def _overlapped(case: Case, account: Account) -> Iterator[Breach]:
    """A run is put while the last one still waits only if the overlap policy allows it."""
    for before, owed in pairwise(one for one in account.owed if one.time_ms in account.runs):
        spec = account.spec(owed.state)
        is_one = before.state == owed.state and not account.between(before.time_ms, owed.time_ms)
        if spec.overlap != "skip" or not is_one:
            continue
        at_us = account.runs[owed.time_ms][0].at_us
        tokens = [t for t, run in account.tokens.items() if run.time_ms == before.time_ms]
        if any(
            written.at_us <= owed.us - _SLACK_US
            and (written.deleted_us or _NEVER_US) > at_us + _SLACK_US
            and written.row.shard.queue == QUEUE
            for token in tokens
            if reason_to_go(case, token, at_us) is None
            for written in case.written(token)
        ):
            text = f"has a run, though that of {account.at(before.time_ms)} was there"
            yield _breach(account, "overlapped", owed.time_ms, text)


def _dropped(case: Case, account: Account) -> Iterator[Breach]:
    """A run with a key ends as any message does, or is cancelled for the next run."""
    for us, token, process in case.history.gone:
        run = account.tokens.get(token)
        if run is None or not run.is_keyed or reason_to_go(case, token, us) is not None:
            continue
        # The cancel may have come long before a reader met the row and deleted it.
        states = account.timeline.between(min(us - _MISSED_US, run.at_us), us)
        may_cancel = any(s.spec and account.spec(s).overlap == "cancel" for s in states)
        is_over = case.history.wall_us(us) > (run.time_ms + 900) * 1_000
        if may_cancel and is_over:
            continue
        text = f"had a run that was gone at {clock_of(case, us)}, by {process}"
        yield _breach(account, "dropped", run.time_ms, text)
