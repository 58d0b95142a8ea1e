"""The journal of a sandbox: records puts and runs, and answers the questions of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardq.engine.handing.outcome import HandlerDecision
from shardq.errors import UsageError, shown
from shardq.lifecycle.fate import Fate
from shardq.model.names import is_dead_queue
from shardq.model.times import moment_of
from shardq.tasks.task import Bound
from shardq.testing import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from shardq.lifecycle.fate import Outcome
    from shardq.model.message import Row
    from shardq.queue import Queue
    from shardq.tasks.definition import TaskDefinition
    from shardq.tasks.task import BatchTask
    from shardq.testing.jobs import Put, Ran
    from shardq.testing.memory import MemoryStore

    Raises: TypeAlias = Literal["death", "failure", "nothing"]
    What: TypeAlias = Bound[..., Any] | BatchTask[Any, Any] | Queue | str

_STATES = {
    Fate.ACK: "done",
    Fate.RETRY: "retrying",
    Fate.BURY: "failed",
    Fate.SNOOZE: "snoozed",
    Fate.CANCEL: "expired",
    Fate.EXPIRE: "expired",
}
FAILED: dict[Raises, tuple[Fate, ...]] = {
    "death": (Fate.BURY,),
    "failure": (Fate.BURY, Fate.RETRY),
    "nothing": (),
}
"""The value of `raises` -> the fates of deliveries whose errors are raised in the test."""
HOW_TO_ADD = "add it, Sandbox(app, ..), or by shardq_apps = MODULE:app in pytest.ini"
_SHOWN_MAX = 20
"""How many puts or runs a failed assertion shows."""


class _Message(NamedTuple):
    """A message of a queue, by its id."""

    store: MemoryStore
    queue: str
    id: str


class _Entry(NamedTuple):
    """A row of a message, and the time of its event, epoch milliseconds."""

    message: _Message
    row: Row
    at_ms: int


class _Ended(NamedTuple):
    """A run that has ended: its entry and attempt, its state and its error."""

    entry: _Entry
    attempt: int
    state: str
    error: BaseException | None


class Journal:
    """Puts and runs, in order.

    Args:
        find: Returns the task of a name; None if no app of the sandbox has it.
    """

    def __init__(self, find: Callable[[str], TaskDefinition | None]) -> None:
        self._find = find
        self._puts: list[_Entry] = []
        self._runs: list[_Ended] = []
        self._bodies: dict[_Message, bytes] = {}
        self._dead: set[_Message] = set()

    @property
    def put_count(self) -> int:
        """The number of puts."""
        return len(self._puts)

    @property
    def run_count(self) -> int:
        """The number of ended runs."""
        return len(self._runs)

    # Writing --------------------------------------------------------------------------------------

    def note_row(self, store: MemoryStore, row: Row, at_ms: int, *, is_move: bool) -> None:
        """Note a placed row: it is a put, unless it moves an earlier one."""
        queue = row.shard.queue
        if is_dead_queue(queue):
            return
        entry = _Entry(_Message(store, queue, row.message_id), row, at_ms)
        # A dead message that is put back has a new first row, but is no new put.
        is_back = entry.message in self._dead
        self._dead.discard(entry.message)
        is_new = row.first is None and not (is_move or is_back)
        if is_new or self._is_changed(entry):
            self._bodies[entry.message] = row.body
            self._puts.append(entry)

    def _is_changed(self, entry: _Entry) -> bool:
        """True if an earlier put now has another body, because of a put by its key."""
        return self._bodies.get(entry.message, entry.row.body) != entry.row.body

    def note_end(
        self,
        store: MemoryStore,
        row: Row,
        at_ms: int,
        attempt: int,
        outcome: Outcome,
        error: BaseException | None,
    ) -> None:
        """Note the end of a run."""
        state = _STATES.get(outcome.fate)
        if state is not None:
            entry = _Entry(_Message(store, row.shard.queue, row.message_id), row, at_ms)
            self._runs.append(_Ended(entry, attempt, state, error))
            if outcome.fate is Fate.BURY:
                self._dead.add(entry.message)

    # Reading --------------------------------------------------------------------------------------

    def puts(self) -> list[Put]:
        """All puts."""
        return [self._put(one.row, one.at_ms) for one in self._puts]

    def waiting(self, rows: Iterable[tuple[MemoryStore, Row]]) -> list[Put]:
        """The puts of these rows, the first due first."""
        entries = {entry.message: entry for entry in self._puts}
        found = []
        for store, row in sorted(rows, key=lambda one: one[1].due_ms):
            entry = entries.get(_Message(store, row.shard.queue, row.message_id))
            at_ms = row.entered_us // 1_000 if entry is None else entry.at_ms
            found.append(self._put(row, at_ms))
        return found

    def runs(self) -> list[Ran]:
        """All ended runs."""
        entries = {entry.message: entry for entry in self._puts}
        found = []
        for one in self._runs:
            entry = entries.get(one.entry.message, one.entry)
            put, at = self._put(entry.row, entry.at_ms), moment_of(one.entry.at_ms)
            found.append(jobs.Ran(put, at, one.attempt, one.state, one.error))
        return found

    def _put(self, row: Row, at_ms: int) -> Put:
        name = jobs.task_of(row)
        return jobs.put_of(row, at_ms, self._find(name) if name else None, name)

    def wanted(
        self, what: What | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Callable[[Put], bool]:
        """A function that returns True for the puts that a test asks for.

        Raises:
            UsageError: If the task takes no such argument, or its app is not in the sandbox.
        """
        if what is None:
            return lambda _: True
        name = name_of(what)
        if not isinstance(what, Bound):
            asked = dict(kwargs)
            if args:
                asked["body"] = args[0].encode() if isinstance(args[0], str) else args[0]
            return lambda put: (
                put.queue == name
                and all(getattr(put, attribute) == value for attribute, value in asked.items())
            )
        definition = self._find(name)
        if definition is None:
            raise UsageError(f"task {name} is of no app in this sandbox; {HOW_TO_ADD}.")
        asked = jobs.wanted_of(definition, args, kwargs)
        return lambda put: (
            put.task == definition.name
            and all(put.arguments.get(argument) == value for argument, value in asked.items())
        )


def is_failure(asked: Raises, outcome: Outcome, error: BaseException | None) -> bool:
    """True if the error of a delivery with this outcome is to be raised in the test."""
    is_asked_for = isinstance(error, HandlerDecision) and outcome.fate is not Fate.BURY
    return outcome.fate in FAILED[asked] and not is_asked_for


def name_of(what: What) -> str:
    """The name of a task or a queue."""
    return what if isinstance(what, str) else what.name


def said(what: What, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The call that a test asks for, as an assertion shows it."""
    given = [shown(one) for one in args] + [f"{name}={shown(one)}" for name, one in kwargs.items()]
    return f"{name_of(what)}({', '.join(given)})"


def lines(found: Sequence[object]) -> str:
    """The items, each on a line."""
    if not found:
        return " nothing was."
    more = [f"and {len(found) - _SHOWN_MAX:,} more"] if len(found) > _SHOWN_MAX else []
    return "".join(f"\n  {one}" for one in [*found[:_SHOWN_MAX], *more])
