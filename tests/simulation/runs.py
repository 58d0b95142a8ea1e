"""The messages that schedules put: each gets a number, as all other messages have.

All runs of a schedule have one body. In the history a run's body begins with its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from shardq.model.message import key_of, read_headers
from shardq.schedules.origin import NAME_HEADER, TIME_HEADER
from simulation.history import Put
from simulation.parts import Act, Letter
from simulation.timetables import acts_of

if TYPE_CHECKING:
    from shardq.model.message import Row
    from simulation.history import History
    from simulation.timetables import Spec

FIRST_TOKEN = 3_000_005
_TOKENS = 7
"""The step from number to number. Messages with a number that it divides have own headers."""


@dataclass(slots=True)
class Run:
    """A message that a schedule has put.

    Attributes:
        name: The schedule's name.
        time_ms: The fire time, epoch milliseconds.

        body: The body that it was put with.
        headers: The headers that it was put with.
        row: The first of its rows.
        at_us: When that row was written.
        process: The process that wrote the row.
        entries: The row ids by which it entered the queue: one, or more with a key.
    """

    name: str
    time_ms: int

    body: bytes
    headers: dict[str, str]
    row: Row
    at_us: int
    process: str
    entries: list[bytes] = field(default_factory=list)

    @property
    def spec(self) -> int:
        """The number of the schedule's definition, which is in the body."""
        return int(self.body.split()[1])

    @property
    def is_keyed(self) -> bool:
        """True if it was put with a key. Then a row of a failed try never begins."""
        return key_of(self.row) is not None


class Runs:
    """Numbers the runs of one world.

    Args:
        history: Where the runs are recorded.
        specs: Number -> the definition of a schedule.
        bands: How many priorities the queue has.
    """

    def __init__(self, history: History, specs: dict[int, Spec], bands: int) -> None:
        self._history = history
        self._specs = specs
        self._bands = bands
        self._of_entry: dict[bytes, int] = {}
        self._of_content: dict[tuple[str, str, bytes], int] = {}

    def written(self, row: Row, us: int, process: str, *, is_put_back: bool) -> Row:
        """Record a row of a run that becomes visible; returns it with the run's number.

        Args:
            row: The row.
            us: When it became visible.
            process: The process that sent it.
            is_put_back: True if it is dead or put back from the dead, and so no new run.
        """
        headers = read_headers(row)
        entry, content = row.first or row.id, (headers[NAME_HEADER], headers[TIME_HEADER], row.body)
        source = self._history.written.get(self._history.came_from.get(row.id, b""))
        token = self._of_entry.get(entry)
        if token is None and source is not None:
            token = self._of_entry.get(source.row.first or source.row.id)
        if token is None and (is_put_back or row.key is not None):
            token = self._of_content.get(content)
        if token is None:
            token = FIRST_TOKEN + _TOKENS * len(self._history.runs)
            self._begin(token, row, us, process)
        if entry not in self._of_entry and not is_put_back:
            self._history.runs[token].entries.append(entry)
        self._of_entry[entry] = self._of_content[content] = token
        return self._numbered(token, row)

    def told(self, row: Row) -> Row:
        """A row with its number, as it was recorded."""
        return self._numbered(self._of_entry[row.first or row.id], row) if is_run(row) else row

    @staticmethod
    def _numbered(token: int, row: Row) -> Row:
        return row._replace(body=f"{token}|".encode() + row.body)

    def _begin(self, token: int, row: Row, us: int, process: str) -> None:
        headers = read_headers(row)
        name, time_ms = headers[NAME_HEADER], _ms(headers[TIME_HEADER])

        row = self._numbered(token, row)
        body = row.body.split(b"|", 1)[1]
        run = Run(name, time_ms, body, headers, row, us, process)
        self._history.runs[token] = run
        letter = Letter(
            token,
            process,
            us / 1e6,
            group=row.group,
            priority=row.shard.lane % self._bands,
            # A run with a key of its own may also end by that key, which `firings` judges.
            key=name if run.is_keyed else None,
            acts=acts_of(
                self._specs[run.spec], f"{self._history.plan.seed}/{name}/{time_ms}", Act("ack")
            ),
        )
        self._history.puts[token] = Put(
            letter,
            process,
            us,
            row.due_ms * 1_000,
            None if run.is_keyed else us,
            "unknown" if run.is_keyed else "acked",
            row.message_id,
            row,
            row.body,
        )


def is_run(row: Row) -> bool:
    """True if a row is of a message that a schedule put."""
    return row.headers is not None and f'"{TIME_HEADER}"' in row.headers


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)
