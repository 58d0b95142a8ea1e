"""What tests of keys share: a store whose writes may take long, and what a key stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.errors import begun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq import Queue
    from shardq.records.standing import Standing
    from shardq.stores.tables import Change
    from shardq.testing import Stage

TIMEOUT_MS = 2_000


def as_elsewhere(stage: Stage) -> None:
    """Let a store's writes take long, and rows be written once their names are taken."""
    sqlite = stage._sqlite
    change = sqlite.write_records

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


def standing(queue: Queue, key: str) -> Standing:
    return queue._settler.keys.seek([key])[key]


def texts(queue: Queue) -> list[str]:
    return sorted(message.text for message in queue.peek(100))
