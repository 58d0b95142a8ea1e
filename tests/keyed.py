"""What tests of keys share: a store whose writes may take long, and what a key stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.errors import begun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq import Queue
    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.records.standing import Standing
    from shardq.stores.store import RowMove
    from shardq.stores.tables import Change
    from shardq.testing import Stage

TIMEOUT_MS = 2_000


def as_elsewhere(stage: Stage) -> None:
    """Let a store's writes take long, and rows be written once their names are taken.

    A row that was deleted does not come back, however often it is inserted.
    """
    sqlite = stage._sqlite
    change, insert, delete, move = sqlite.write_records, sqlite.insert, sqlite.delete, sqlite.move
    deleted: set[Position] = set()

    def insert_undeleted(rows: Iterable[Row]) -> None:
        insert(row for row in rows if row.position not in deleted)

    def delete_for_good(positions: Iterable[Position]) -> None:
        gone = list(positions)
        deleted.update(gone)
        delete(gone)

    def move_for_good(moves: Iterable[RowMove], *marks: Any) -> set[Position]:
        made = list(moves)
        deleted.update(one.old for one in made)
        return move(made, *marks)

    def write_records(table: Any, changes: Sequence[Change]) -> Mapping[Any, Any]:
        bare = [one._replace(insert=(), delete=()) for one in changes]
        refused = change(table, bare)
        done = [one for one in changes if one.place not in refused]
        with begun("some of the records are written"):
            if rows := [row for one in done for row in one.insert]:
                stage._store.insert(rows)
            if old := [place for one in done for place in one.delete]:
                stage._store.delete(old)
        return refused

    sqlite.write_timeout_ms = TIMEOUT_MS
    sqlite.write_records = write_records  # type: ignore[method-assign, assignment]
    sqlite.insert = insert_undeleted  # type: ignore[method-assign]
    sqlite.delete = delete_for_good  # type: ignore[method-assign]
    sqlite.move = move_for_good  # type: ignore[method-assign]


def standing(queue: Queue, key: str) -> Standing:
    return queue._settler.keys.seek([key])[key]


def texts(queue: Queue) -> list[str]:
    return sorted(message.text for message in queue.peek(100))
