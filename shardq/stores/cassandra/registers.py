"""Registers and logs: seals, queues, members, blocked groups, stats. A partition each, or a row."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from cassandra.query import BatchStatement, BatchType

from shardq.stores.cassandra import cells
from shardq.stores.cassandra.session import ROWS, SERIAL
from shardq.stores.cassandra.undecided import decide
from shardq.stores.store import QueueRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.stores.cassandra.session import Session

_SEALED = "SELECT lane, sealed FROM {}.lanes WHERE queue = ?"
_SEAL = "UPDATE {}.lanes USING TIMESTAMP ? SET sealed = ? WHERE queue = ? AND lane = ?"

_QUEUES = "SELECT name FROM {}.queues"
_QUEUE = "SELECT settings, secret, version FROM {}.queues WHERE name = ?"
_MAKE_QUEUE = (
    "INSERT INTO {}.queues (name, settings, secret, version, nonce) "
    "VALUES (?, ?, ?, ?, ?) IF NOT EXISTS"
)
# The nonce is never empty: its condition is there so that a refusal tells who wrote last.
_CHANGE_QUEUE = (
    "UPDATE {}.queues SET settings = ?, secret = ?, version = ?, nonce = ? "
    "WHERE name = ? IF version = ? AND nonce != ''"
)

_BEAT = "INSERT INTO {}.members (queue, member, info) VALUES (?, ?, ?) USING TTL ?"
_LEAVE = "DELETE FROM {}.members WHERE queue = ? AND member = ?"
_MEMBERS = "SELECT member, info FROM {}.members WHERE queue = ?"

_BLOCK = (
    'INSERT INTO {}.blocked (queue, lane, "group", until, message) '
    "VALUES (?, ?, ?, ?, ?) USING TTL ?"
)
_BLOCKED = (
    'SELECT "group", toUnixTimestamp(until), message FROM {}.blocked WHERE queue = ? AND lane = ?'
)
_BLOCKED_GROUPS = (
    'SELECT "group", toUnixTimestamp(until), message FROM {}.blocked '
    'WHERE queue = ? AND lane = ? AND "group" IN ?'
)
_GROUPS_MAX = 100
"""Groups of one read: two tombstones for each that ended lately."""

_WRITE_STATS = "INSERT INTO {}.stats (queue, minute, member, totals) VALUES (?, ?, ?, ?)"
# Of rows that nothing else writes, so that their cells are all written by LWT.
_MAKE_STATS = (
    "INSERT INTO {}.stats (totals, queue, minute, member) VALUES (?, ?, ?, ?) IF NOT EXISTS"
)
_CHANGE_STATS = (
    "UPDATE {}.stats SET totals = ? WHERE queue = ? AND minute = ? AND member = ? IF totals = ?"
)
_DELETE_STATS = "DELETE FROM {}.stats WHERE queue = ? AND minute = ? AND member = ?"
_STATS = "SELECT minute, member, totals FROM {}.stats WHERE queue = ?"


class Registers:
    """The verbs on registers and logs.

    Args:
        session: The connection.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # Seals ----------------------------------------------------------------------------------------

    def sealed(self, queue: str) -> dict[int, int]:
        """Lane -> last sealed minute."""
        return dict(self._rows(_SEALED, [queue.encode()]))

    def seal(self, queue: str, minutes: Mapping[int, int]) -> None:
        """Raise sealed minutes; lower ones change nothing, in whatever order they arrive."""
        if not minutes:
            return
        batch = BatchStatement(BatchType.UNLOGGED)
        for lane, minute in minutes.items():
            # The minute itself is the write's time, so the highest wins. It can neither overflow
            # nor lie in the future, and the cell is never deleted.
            value = cells.bigint(minute)
            batch.add(self._session.bound(_SEAL, [value, value, queue.encode(), cells.int_(lane)]))
        self._session.write([batch])

    # Queues ---------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        return sorted(name for (name,) in self._rows(_QUEUES, []))

    def queue(self, name: str) -> QueueRecord | None:
        """A queue's record as last decided: a SERIAL read."""
        rows = self._rows(_QUEUE, [name.encode()], profile=SERIAL)
        return QueueRecord(*rows[0]) if rows else None

    def write_queue(self, name: str, record: QueueRecord) -> bool:
        """Store a record whose version follows the stored one; an LWT."""
        nonce = secrets.token_hex(8)
        values = [
            record.settings.encode(),
            record.secret,
            cells.bigint(record.version),
            nonce.encode(),
        ]
        if record.version == 1:
            make = partial(self._session.bound, _MAKE_QUEUE, [name.encode(), *values])
        else:
            seen = cells.bigint(record.version - 1)
            make = partial(self._session.bound, _CHANGE_QUEUE, [*values, name.encode(), seen])
        answer = decide(self._session, {name: make})[name]
        return bool(answer["[applied]"]) or answer.get("nonce") == nonce

    # Members and groups ---------------------------------------------------------------------------

    def beat(self, queue: str, member: str, info: str, ttl_ms: int) -> None:
        """Say that a member is there."""
        self._write(_BEAT, [queue.encode(), member.encode(), info.encode(), cells.seconds(ttl_ms)])

    def leave(self, queue: str, member: str) -> None:
        """Take a member off."""
        self._write(_LEAVE, [queue.encode(), member.encode()])

    def members(self, queue: str) -> dict[str, str]:
        """Member -> info."""
        return dict(self._rows(_MEMBERS, [queue.encode()]))

    def block(
        self, queue: str, lane: int, group: str, *, until_ms: int, message: str, ttl_ms: int
    ) -> None:
        """Say that a group's head waits."""
        self._write(
            _BLOCK,
            [
                queue.encode(),
                cells.int_(lane),
                group.encode(),
                cells.bigint(until_ms),
                message.encode(),
                cells.seconds(ttl_ms),
            ],
        )

    def blocked(
        self, queue: str, lane: int, groups: Sequence[str] | None = None
    ) -> dict[str, tuple[int, str]]:
        """Group -> (until, message): of these groups, or of all."""
        values = [queue.encode(), cells.int_(lane)]
        if groups is None:
            rows = self._rows(_BLOCKED, values)
        else:
            statements = [
                self._session.bound(
                    _BLOCKED_GROUPS, [*values, cells.texts(groups[n : n + _GROUPS_MAX])]
                )
                for n in range(0, len(groups), _GROUPS_MAX)
            ]
            rows = self._all(statements)
        return {group: (until_ms, message) for group, until_ms, message in rows}

    # Logs -----------------------------------------------------------------------------------------

    def write_stats(self, queue: str, minute: int, member: str, totals: str) -> None:
        """Replace a member's totals of a stretch."""
        self._write(
            _WRITE_STATS, [queue.encode(), cells.bigint(minute), member.encode(), totals.encode()]
        )

    def write_stats_if(
        self, queue: str, minute: int, member: str, totals: str, *, before: str | None
    ) -> bool:
        """Replace totals where they are the ones seen; an LWT."""
        values = [totals.encode(), queue.encode(), cells.bigint(minute), member.encode()]
        if before is None:
            make = partial(self._session.bound, _MAKE_STATS, values)
        else:
            make = partial(self._session.bound, _CHANGE_STATS, [*values, before.encode()])
        answer = decide(self._session, {member: make})[member]
        # The new text stands for a nonce: no other writes the very same.
        return bool(answer["[applied]"]) or answer.get("totals") == totals

    def delete_stats(self, queue: str, rows: Iterable[tuple[int, str]]) -> None:
        """Delete rows of totals; one unlogged batch of one partition."""
        batch = BatchStatement(BatchType.UNLOGGED)
        for minute, member in rows:
            values = [queue.encode(), cells.bigint(minute), member.encode()]
            batch.add(self._session.bound(_DELETE_STATS, values))
        if len(batch):
            self._session.write([batch])

    def stats(self, queue: str) -> list[tuple[int, str, str]]:
        """(minute, member, totals), ordered."""
        return sorted(self._rows(_STATS, [queue.encode()]))

    def _write(self, cql: str, values: list[Any]) -> None:
        self._session.write([self._session.bound(cql, values)])

    def _rows(self, cql: str, values: list[Any], *, profile: object = ROWS) -> list[Any]:
        return self._all([self._session.bound(cql, values)], profile=profile)

    def _all(self, statements: Sequence[Any], *, profile: object = ROWS) -> list[Any]:
        pages = self._session.read(statements, "registers", profile=profile)
        return [row for page in pages for row in page]
