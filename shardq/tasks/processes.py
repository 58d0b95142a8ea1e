"""Worker processes: a supervisor that starts them, replaces them, and ends them.

```
                  ┌─ died: killed, out of memory, os._exit ─► another, at once or a while later
 start ─► ready ──┼─ overran, or grew too large ────────────► another at once; it ends gracefully
   │              ├─ a file has changed, or SIGHUP ─────────► another at once; it ends gracefully
   │              ├─ answers nothing for a minute ──────────► killed, so died
   │              └─ has nothing left to do ────────────────► none
   └─ cannot begin ─► all end with its error; if others work, or files are watched: another later
```

Each is a new program, never a fork of one with threads, in a process group of its own: a signal
that stops the supervisor does not stop the process, and all its children are ended with it. The
supervisor imports nothing of the user's, so it outlives the user's errors.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.child import ChildProcess, handled, resident_bytes
from shardq.clock import SystemClock
from shardq.errors import ShardqError, UsageError
from shardq.model.times import span
from shardq.records.meter import merged
from shardq.tasks import line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from shardq.clock import Clock
    from shardq.records.meter import Counted
    from shardq.tasks.sources import Sources

PROCESSES_MAX = 64

_SECOND_US = 1_000_000
_LOOK_EVERY_US = 300_000
"""How often watched files are checked."""
_MEASURE_EVERY_US = 1_000_000
_SETTLED_US = 5_000_000
"""A process that worked for less has died quickly. Its memory is not judged before."""
_DELAY_MIN_US = 500_000
_DELAY_MAX_US = 30_000_000
_ASK_EVERY_US = 5_000_000
_UNANSWERED_MAX = 12
"""A process may leave this many questions unanswered: a minute. Questions rather than time: a
machine that slept, or a stopped supervisor, makes no process silent."""
_COUNT_EVERY_US = 1_000_000
_MARGIN_US = round(line.MARGIN_S * _SECOND_US)
_BEGIN_US = 30_000_000
"""A process that is not ready after this long is reported once: its app may never be imported."""
_STARTS_MAX = 3
"""How often in a row a process may die before it is ready, while no other works."""
_CHANGES_MAX = 3
"""A file that changed this often in a row soon after a start is reported: the app may write it."""
_READ_BYTES = 65_536


class SupervisorOutcome(NamedTuple):
    """How a supervisor's run ended.

    Attributes:
        code: 0, or the exit code of the process that could not begin.
        text: The sentence that this process reported.
        killed: How many were killed because they still worked after the deadline.
        has_deaths: True if processes reported that jobs have died.
    """

    code: int = 0
    text: str = ""
    killed: int = 0
    has_deaths: bool = False


class Supervisor:
    """Keeps a number of processes of one command running, until SIGTERM or SIGINT.

    The first signal lets each process end gracefully, a second one is passed on; processes that
    still run 5 s after the deadline, or after a second signal, are killed. SIGHUP replaces all of
    them; if stdin is a terminal, it stops them instead; if it is ignored, it stays ignored. Call
    `run` in the main thread.

    Args:
        command: The command of each process; it takes `ProcessLine.inherited()` and heeds SIGTERM.
        processes: How many at once, 1 to 64.
        deadline_s: How long a graceful end may take, in seconds.
        report: Called with a sentence about each process that is replaced or killed.
        memory_bytes: The resident memory at which a process is replaced; None: any size.
        reload: The files to watch; None: none.
        sockets: For each process a list of listening sockets. The process and its successors
            inherit them, so that connections wait meanwhile. They are closed here when the
            supervisor ends.
        clock: A clock; the machine's if None.
        is_counting: True to ask processes each second for their counts, so that a killed one takes
            no more than a second of counts along.

    Raises:
        UsageError: If a number is out of bounds.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        deadline_s: float,
        report: Callable[[str], object],
        memory_bytes: int | None = None,
        reload: Sources | None = None,
        sockets: Sequence[Sequence[socket.socket]] = (),
        clock: Clock | None = None,
        is_counting: bool = False,
    ) -> None:
        if not 1 <= processes <= PROCESSES_MAX:
            raise UsageError(f"processes must be 1 to {PROCESSES_MAX}, not {processes}.")
        self._command = list(command)
        self._deadline_us = round(deadline_s * _SECOND_US)
        self._report = report
        self._memory_bytes = memory_bytes
        self._clock: Clock = clock or SystemClock()
        self._sources = reload
        self._changes: dict[str, int] = {}
        """The last changed files, and how often in a row each changed soon after a start."""
        self._slots = [
            _ProcessSlot(sockets[number] if sockets else ()) for number in range(processes)
        ]
        self._children: list[_Child] = []
        """All that have not been reaped: the processes of the slots, and those that end."""
        self._selector = selectors.DefaultSelector()
        self._caught: list[int] = []
        self._heeded = 0
        self._hangups: list[int] = []
        self._is_stopping = False
        self._is_measured = False
        self._told: set[str] = set()
        """Reported reasons why no process could begin; emptied when a file changes."""
        self._error: ShardqError | None = None
        self._outcome = SupervisorOutcome()
        self._chores = [_Chore(self._ask, _ASK_EVERY_US)]
        if self._sources is not None:
            self._chores.append(_Chore(self._look, _LOOK_EVERY_US))
        if memory_bytes is not None:
            self._chores.append(_Chore(self._measure, _MEASURE_EVERY_US))
        if is_counting:
            self._chores.append(_Chore(self._ask_counts, _COUNT_EVERY_US))
        self._news = threading.Condition()
        """Notified when a process has answered a question."""
        self._ended_counts: Counted = {}

    def run(self) -> SupervisorOutcome:
        """Start the processes, and return once all have ended.

        Raises:
            ShardqError: If processes die before they are ready.
            UsageError: If a process has more memory than `memory_bytes` before it has done
                anything.
        """
        with self._selector, _woken(self._selector, self._caught, self._hangups):
            while True:
                self._heed_signals()
                self._start_due()
                if not self._is_needed():
                    break
                self._wait()
                self._reap()
                self._kill_late()
                self._do_chores()
        if self._error is not None:
            raise self._error
        return self._outcome

    @property
    def is_stopping(self) -> bool:
        """True once all processes are to end."""
        return self._is_stopping

    def ask(self, question: bytes, seconds: float, *, of_all: bool = True) -> list[Any]:
        """Ask the working processes a question; from any thread except that of `run`.

        Args:
            question: One byte of `line`.
            seconds: How long to wait for the answers.
            of_all: False to ask only one of them.

        Returns:
            The answers; None for a process that has not answered in time.
        """
        at_work = [one for one in self._children.copy() if one.ready_us and one.kill_us is None]
        asked = at_work if of_all else at_work[:1]
        with self._news:
            counts = [one.answers.get(question, (0, None))[0] for one in asked]
            for one in asked:
                one.put(question)

            def answered() -> list[bool]:
                found = zip(asked, counts, strict=True)
                return [one.answers.get(question, (0, None))[0] > count for one, count in found]

            def are_over() -> bool:
                found = zip(asked, answered(), strict=True)
                return all(is_answered or one.is_gone for one, is_answered in found)

            self._news.wait_for(are_over, seconds)
            found = zip(asked, answered(), strict=True)
            return [one.answers[question][1] if has else None for one, has in found]

    def counted(self) -> Counted:
        """The last reported counts of all processes, including those that have ended."""
        with self._news:
            return merged(self._ended_counts, *(one.counted for one in self._children))

    # Waits ----------------------------------------------------------------------------------------

    def _is_needed(self) -> bool:
        if self._children or any(slot.start_us is not None for slot in self._slots):
            return True
        is_awaited = any(slot.is_waiting for slot in self._slots)
        return is_awaited and not self._is_stopping

    def _wait(self) -> None:
        """Wait until something happens, or is due."""
        dues = [slot.start_us for slot in self._slots if slot.start_us is not None]
        dues += [child.kill_us for child in self._children if child.kill_us is not None]
        dues += [chore.due_us for chore in self._chores]
        seconds = max(0, min(dues) - self._now_us()) / _SECOND_US
        for key, _ in self._selector.select(seconds):
            key.data()

    def _now_us(self) -> int:
        return self._clock.boot_us()

    def _do_chores(self) -> None:
        for chore in self._chores:
            if chore.due_us <= self._now_us():
                chore.due_us = self._now_us() + chore.every_us
                chore.act()

    # Ends -----------------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        if self._hangups and not self._is_stopping:
            self._report("SIGHUP: the processes are replaced.")
            self._replace_all()
        self._hangups.clear()
        if len(self._caught) == self._heeded:
            return
        is_second = self._is_stopping or len(self._caught) > 1
        self._heeded = len(self._caught)
        self._stop_all()
        if is_second:
            for child in self._children:
                # SIGINT, because two signals of one kind may arrive as one.
                child.signal(signal.SIGINT)
                child.kill_us = min(child.kill_us or 0, self._now_us() + _MARGIN_US)

    def _stop_all(self) -> None:
        self._is_stopping = True
        for slot in self._slots:
            slot.start_us = None
            # Close the sockets before the processes end: the processes answer connections that
            # still wait.
            for one in slot.sockets:
                one.close()
        for child in self._children:
            self._end(child)

    def _end(self, child: _Child) -> None:
        """Let a process end gracefully, within the deadline."""
        if child.kill_us is None:
            self._let_end(child)
            child.signal(signal.SIGTERM)

    def _let_end(self, child: _Child) -> None:
        """Give a process the time of a graceful end."""
        if child.kill_us is None:
            child.kill_us = self._now_us() + self._deadline_us + _MARGIN_US

    def _kill_late(self) -> None:
        now_us = self._now_us()
        for child in self._children:
            if child.kill_us is not None and child.kill_us <= now_us and not child.is_killed:
                child.kill()
                self._outcome = self._outcome._replace(killed=self._outcome.killed + 1)
                self._report(
                    f"process {child.pid} still worked when its time to end was over, and was "
                    f"killed; its jobs are delivered again."
                )

    def _reap(self) -> None:
        for child in [one for one in self._children if one.has_ended()]:
            self._hear(child)
            with self._news:
                self._children.remove(child)
                self._ended_counts = merged(self._ended_counts, child.counted)
            if not child.is_gone:
                self._selector.unregister(child.socket)
            child.close()
            slot = next((one for one in self._slots if one.child is child), None)
            if slot is not None:
                slot.child = None
                if not self._is_stopping:
                    self._ended(slot, child)
        _reap_strangers({child.pid for child in self._children})

    def _ended(self, slot: _ProcessSlot, child: _Child) -> None:
        """Handle the end of a process that was not asked to end."""
        if child.is_done:
            return
        if child.ready_us is None:
            self._did_not_begin(slot, child)
            return
        is_quick = self._now_us() - child.ready_us < _SETTLED_US
        delay = self._start_later(slot, is_quick=is_quick)
        self._report(f"{child.why_ended()}; another takes its place{delay}.")

    def _did_not_begin(self, slot: _ProcessSlot, child: _Child) -> None:
        why = child.why_ended()
        if self._sources is not None:
            slot.is_waiting = True
            if why not in self._told:
                self._told.add(why)
                self._report(f"{why}. It is tried again when a file changes.")
            return
        do_others_work = any(
            one.ready_us is not None and one.kill_us is None for one in self._children
        )
        slot.failed_starts += 1
        if do_others_work or (child.error is None and slot.failed_starts < _STARTS_MAX):
            delay = self._start_later(slot, is_quick=True)
            self._report(f"{why}; it is tried again{delay}.")
        elif child.error is not None:
            code, text = child.error
            self._outcome = self._outcome._replace(code=code, text=text)
            self._stop_all()
        else:
            self._error = ShardqError(f"no process can begin: {why}, as others did.")
            self._stop_all()

    # Beginnings -----------------------------------------------------------------------------------

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.start_us is None or slot.start_us > self._now_us():
                continue
            slot.start_us = None
            try:
                child = _Child(
                    self._command,
                    self._now_us(),
                    is_reloaded=self._sources is not None,
                    sockets=slot.sockets,
                )
            except OSError as error:
                delay = self._start_later(slot, is_quick=True)
                self._report(f"a process cannot be started: {error}; it is tried again{delay}.")
                continue
            slot.child = child
            self._children.append(child)
            self._selector.register(child.socket, selectors.EVENT_READ, partial(self._hear, child))

    def _start_later(self, slot: _ProcessSlot, *, is_quick: bool) -> str:
        """Let a process start in a slot after a delay, which doubles; returns the delay as text."""
        slot.quick_ends = slot.quick_ends + 1 if is_quick else 0
        delay_us = 0
        if slot.quick_ends:
            delay_us = min(_DELAY_MIN_US << min(slot.quick_ends - 1, 10), _DELAY_MAX_US)
        slot.start_us = self._now_us() + delay_us
        return f" in {span(delay_us / 1_000)}" if delay_us else ""

    def _replace(self, child: _Child) -> bool:
        """Start another process at once in the place of one, which ends gracefully."""
        for slot in self._slots:
            if slot.child is child:
                slot.child, slot.start_us = None, self._now_us()
                self._end(child)
                return True
        return False

    def _replace_all(self) -> None:
        """Replace all processes at once, and fill the slots that wait for a file to change."""
        self._told.clear()
        for slot in self._slots:
            if slot.child is not None:
                self._replace(slot.child)
            elif slot.is_waiting or slot.start_us is not None:
                slot.start_us = self._now_us()
            slot.is_waiting, slot.quick_ends = False, 0

    # Reports of processes -------------------------------------------------------------------------

    def _hear(self, child: _Child) -> None:
        was_gone = child.is_gone
        for word, *rest in child.heard():
            if word == line.READY:
                self._began(child)
            elif word == line.OVERRUN and self._replace(child):
                self._report(f"process {child.pid}: {rest[0]}; another takes its place.")
            elif word == line.FAILED:
                child.error = (rest[0], rest[1])
                self._let_end(child)
            elif word == line.DIED:
                self._outcome = self._outcome._replace(has_deaths=True)
            elif word == line.DONE:
                child.is_done = True
                self._let_end(child)
            elif word == line.ANSWER:
                self._answered(child, *rest)
        if child.is_gone and not was_gone:
            # A closed socket would end every wait at once, until the process is reaped.
            self._selector.unregister(child.socket)

    def _answered(self, child: _Child, question: str, answer: Any) -> None:
        with self._news:
            count, _ = child.answers.get(question.encode(), (0, None))
            child.answers[question.encode()] = count + 1, answer
            self._news.notify_all()

    def _began(self, child: _Child) -> None:
        child.ready_us = self._now_us()
        for slot in self._slots:
            if slot.child is child:
                slot.failed_starts = 0
        if self._memory_bytes is None or self._is_measured:
            return
        self._is_measured = True
        has = resident_bytes(child.pid)
        if has is not None and has > self._memory_bytes:
            self._error = UsageError(
                f"a process has {_mb(has)} before it does anything, more than --memory "
                f"{_mb(self._memory_bytes)}; give it twice that at least."
            )
            self._stop_all()

    def _look(self) -> None:
        changed = [] if self._sources is None else self._sources.changed()
        if not changed or self._is_stopping:
            return
        others = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
        self._report(f"{changed[0]}{others} changed; the processes are replaced.")
        self._note_changes(changed)
        self._replace_all()

    def _note_changes(self, changed: list[str]) -> None:
        """Report a file that changes whenever processes start, because the app may write it."""
        began = [slot.child.ready_us for slot in self._slots if slot.child is not None]
        is_soon = not any(us and self._now_us() - us >= _SETTLED_US for us in began)
        before = self._changes if is_soon else {}
        self._changes = {path: before.get(path, 0) + 1 for path in changed}
        for path, count in self._changes.items():
            if count == _CHANGES_MAX:
                self._report(
                    f"{path} has changed {count} times in a row soon after a start, as what an "
                    f"app writes when it is imported; leave it out by --reload-exclude {path}."
                )

    def _measure(self) -> None:
        for child in self._children:
            if child.ready_us is None or self._now_us() - child.ready_us < _SETTLED_US:
                continue
            has = resident_bytes(child.pid)
            if has is not None and has > (self._memory_bytes or has) and self._replace(child):
                self._report(
                    f"process {child.pid} has grown to {_mb(has)}; another takes its place."
                )

    def _ask_counts(self) -> None:
        for child in self._children:
            child.put(line.COUNTS)

    def _ask(self) -> None:
        for child in self._children:
            is_slow = child.ready_us is None and self._now_us() - child.started_us > _BEGIN_US
            if is_slow and not child.is_told_slow and child.kill_us is None:
                child.is_told_slow = True
                self._report(
                    f"process {child.pid} is not ready after {span(_BEGIN_US / 1_000)}: its "
                    f"app is still imported, or its store opened."
                )
            if child.unanswered < _UNANSWERED_MAX:
                child.ask()
            elif not child.is_killed:
                child.kill()
                self._report(
                    f"process {child.pid} answered nothing for a minute and was killed: "
                    f"something holds its interpreter, such as a regular expression."
                )


@dataclass(slots=True)
class _Chore:
    """An action that is due every `every_us` microseconds."""

    act: Callable[[], None]
    every_us: int
    due_us: int = 0


@dataclass(slots=True, eq=False)
class _ProcessSlot:
    """The place of one process: the process, or the time of the next start.

    Attributes:
        sockets: The sockets that each process of the slot inherits.
        child: The process.
        start_us: When the next process starts, in microseconds since boot; None: none starts.
        is_waiting: True if no process starts before a file has changed.
        quick_ends: How many processes in a row have ended soon after their beginning.
        failed_starts: How many processes in a row have ended before they were ready.
    """

    sockets: Sequence[socket.socket]
    child: _Child | None = None
    start_us: int | None = 0
    is_waiting: bool = False
    quick_ends: int = 0
    failed_starts: int = 0


class _Child(ChildProcess):
    """A process, and the supervisor's end of the line to it.

    Args:
        command: The command.
        started_us: Now, in microseconds since boot.
        is_reloaded: True if its sources may change. Then their bytecode is not kept: a file that
            changes twice in a second would be taken for the old one.
        sockets: The sockets that it inherits.

    Attributes:
        socket: The line.
        started_us: The time of its start.
        ready_us: The time since which it works; None: not yet.
        is_told_slow: True if it was reported as not ready yet.
        is_gone: True if the process has closed its end of the line.
        is_done: True if it has reported that nothing is left to do.
        error: The reported reason of its end: an exit code and a sentence.
        kill_us: When it is killed if it has not ended; None: it was not asked to end.
        unanswered: How many questions in a row it has not answered.
        answers: Question -> the number of answers, and the last answer.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        started_us: int,
        *,
        is_reloaded: bool,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        kept = {"PYTHONDONTWRITEBYTECODE": "1"} if is_reloaded else {}
        numbers = [one.fileno() for one in sockets]
        if numbers:
            kept[line.SOCKETS_VARIABLE] = ",".join(map(str, numbers))
        try:
            super().__init__(
                command,
                pass_fds=(theirs.fileno(), *numbers),
                env=os.environ | kept | {line.VARIABLE: str(theirs.fileno())},
            )
        except OSError:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.started_us = started_us
        self.ready_us: int | None = None
        self.is_told_slow = False
        self.is_gone = False
        self.is_done = False
        self.error: tuple[int, str] | None = None
        self.kill_us: int | None = None
        self.unanswered = 0
        self.answers: dict[bytes, tuple[int, Any]] = {}
        self._heard = b""

    @property
    def counted(self) -> Counted:
        """Its last reported counts."""
        _, answer = self.answers.get(line.COUNTS, (0, None))
        return {} if answer is None else answer[0]

    def has_ended(self) -> bool:
        """True if it has ended; then the rest of its process group is killed too."""
        if super().has_ended():
            self.kill()
            return True
        return False

    def close(self) -> None:
        """Close the line."""
        self.socket.close()

    def ask(self) -> None:
        """Ask whether it lives."""
        self.unanswered += 1
        self.put(line.ASK)

    def put(self, question: bytes) -> None:
        """Send a question, which the process answers in its own time."""
        # Ignore errors: the process may have died, or may not read.
        with suppress(OSError):
            self.socket.send(question)

    def heard(self) -> Iterator[list[Any]]:
        """Its reports since the last call."""
        try:
            while read := self.socket.recv(_READ_BYTES):
                self._heard += read
                self.unanswered = 0
            self.is_gone = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True
        *lines, self._heard = self._heard.split(b"\n")
        yield from map(json.loads, lines)

    def why_ended(self) -> str:
        """The reason of its end, as text."""
        if self.error is not None:
            return self.error[1].removesuffix(".")
        before = " before it was ready" if self.ready_us is None else ""
        return f"process {self.pid} {self.how_ended()}{before}"


def _reap_strangers(own: set[int]) -> None:
    """Reap orphans that children have left: as process 1 of a container, this one inherits them.

    Args:
        own: The children; if one of them has just ended, the rest waits for the next turn.
    """
    if not hasattr(os, "waitid"):
        return
    with suppress(ChildProcessError):
        while one := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if one.si_pid in own:
                return
            os.waitpid(one.si_pid, 0)


def _mb(count: int) -> str:
    return f"{count / 1e6:,.0f}MB"


@contextmanager
def _woken(
    selector: selectors.BaseSelector, caught: list[int], hangups: list[int]
) -> Iterator[None]:
    """Let signals end the waits of a selector: SIGTERM, SIGINT, SIGCHLD, and SIGHUP unless ignored.

    Args:
        selector: The selector.
        caught: Filled with signals that ask for an end.
        hangups: Filled with signals that ask for a replacement of the processes.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)

    def catch(number: int, _frame: FrameType | None) -> None:
        caught.append(number)

    def hang_up(number: int, _frame: FrameType | None) -> None:
        if not is_in_terminal:
            hangups.append(number)
        elif not caught:
            # Count only one: a closed terminal may send several.
            caught.append(number)

    def pass_over(_number: int, _frame: FrameType | None) -> None:
        """Do nothing. Without a handler nothing would be written to the socket."""

    # Ask now, because a terminal that was closed is no longer recognized.
    is_in_terminal = sys.stdin is not None and sys.stdin.isatty()
    handlers = {signal.SIGTERM: catch, signal.SIGINT: catch, signal.SIGCHLD: pass_over}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = hang_up
    with reader, writer, handled(handlers):
        selector.register(reader, selectors.EVENT_READ, partial(reader.recv, _READ_BYTES))
        woken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
