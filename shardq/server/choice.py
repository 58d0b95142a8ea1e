"""Messages of one queue, a page at a time, chosen by their contents.

```
 shards in order ─► rows without bodies ─► after the last page? ─► headers, error ─► bodies
```

A body is read only if everything else of its row matches. A page ends once it is full, or once
`looked_max` messages were examined. The next page begins at its end.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import StoreCorrupt, UsageError, shown
from shardq.inspection import dead, scan
from shardq.model import ids
from shardq.model.message import key_of, last_error, read_headers, task_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Layout, Shard
    from shardq.stores.store import Store

LOOKED_MAX = 10_000
"""How many messages a page examines."""
_BODIES = 50
"""How many bodies are read at a time: each may have 1 MiB."""
_PLACE = re.compile(r"([0-9]{1,15})\.([0-9a-f]{32})", re.ASCII)
_MINUTE = attrgetter("minute")


class Place(NamedTuple):
    """The end of a page of messages, in the order of due times.

    Attributes:
        due_ms: The due of the last message, or the time of its death; epoch milliseconds.
        order: The order within one millisecond.
    """

    due_ms: int
    order: bytes

    @classmethod
    def of(cls, row: Row) -> Place:
        """The place of a row."""
        return cls(row.due_ms, ids.order_key(row.id))

    @classmethod
    def read(cls, text: str) -> Place:
        """A place from its text.

        Raises:
            UsageError: If the text is no place.
        """
        found = _PLACE.fullmatch(text)
        if found is None:
            raise UsageError(f"after is no end of a page: {shown(text)}.")
        return cls(int(found[1]), bytes.fromhex(found[2]))

    def text(self) -> str:
        """The place as text, for `read`."""
        return f"{self.due_ms}.{self.order.hex()}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The conditions of chosen messages. Texts are compared without regard to case.

    Attributes:
        text: A text in the id, key, group, a header or the body.
        body: A text in the body.
        error: A text in the last error, or in the reason of the death.
        task: The whole name of its task.
        header: A header's name; or `name=text`, with the text in its value.
        group: The whole group.
        since_ms: The earliest due or death, epoch milliseconds.
        until_ms: The latest due or death, epoch milliseconds; 0: any time.
        id: The whole id.
    """

    text: str = ""
    body: str = ""
    error: str = ""
    task: str = ""
    header: str = ""
    group: str = ""
    since_ms: int = 0
    until_ms: int = 0
    id: str = ""

    @property
    def needs_bodies(self) -> bool:
        """True if the choice depends on bodies."""
        return bool(self.text or self.body)

    def may_take(self, row: Row) -> bool:
        """True if a row matches in everything except its body."""
        if row.due_ms < self.since_ms or 0 < self.until_ms < row.due_ms:
            return False
        if self.id and row.message_id != self.id:
            return False
        if self.group and row.group != self.group:
            return False
        if self.task and task_of(row) != self.task:
            return False
        if self.error and not _has(last_error(row)[0] or "", self.error):
            return False
        return not self.header or _has_header(row, self.header)

    def takes(self, row: Row) -> bool:
        """True if a row that `may_take` is chosen; its body must be loaded if `needs_bodies`."""
        if self.body and not _has(row.body.decode("utf-8", "replace"), self.body):
            return False
        return not self.text or any(_has(text, self.text) for text in _texts(row))


def _has(text: str, part: str) -> bool:
    return part.casefold() in text.casefold()


def _has_header(row: Row, wanted: str) -> bool:
    name, _, part = wanted.partition("=")
    return any(
        one.casefold() == name.strip().casefold() and _has(value, part.strip())
        for one, value in read_headers(row).items()
    )


def _texts(row: Row) -> Iterator[str]:
    """The texts of a row to search, the body last."""
    key = key_of(row)
    yield row.message_id
    yield from (one for one in (row.group, None if key is None else key.name) if one)
    yield from read_headers(row).values()
    yield row.body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A page of messages.

    Attributes:
        rows: The chosen rows, in order.
        end: Where the next page begins; None if there is none.
        looked: How many messages were examined.
    """

    rows: list[Row]
    end: Place | None
    looked: int


def page(
    home: QueueHome,
    choice: Choice,
    limit: int,
    *,
    is_newest: bool = False,
    after: Place | None = None,
    looked_max: int = LOOKED_MAX,
    bodies: bool = True,
) -> Chosen:
    """The first due messages of a queue, including those in flight.

    Args:
        home: The queue's home.
        choice: The conditions.
        limit: The size of the page.
        is_newest: True for a dead-letter queue, to begin with the last death.
        after: The end of the page before, of this queue or of another one. Messages behind a seal
            are on the first page only.
        looked_max: How many messages to examine.
        bodies: False to leave the bodies empty.
    """
    home.register.refresh()
    rows = _backwards(home, after, choice.since_ms) if is_newest else _from_now_on(home, after)
    return _page(home.store, rows, choice, limit, looked_max=looked_max, bodies=bodies)


def last_died(
    homes: Sequence[QueueHome],
    choice: Choice,
    limit: int,
    *,
    after: Place | None = None,
    looked_max: int = LOOKED_MAX,
    damaged: dict[str, str],
) -> Chosen:
    """The last dead messages of several dead-letter queues, the last death first.

    Args:
        homes: The homes of the queues, whose records were read just now.
        choice: The conditions.
        limit: The size of the page.
        after: The end of the page before.
        looked_max: How many messages to examine.
        damaged: Receives the name of each queue that cannot be read, and the reason.
    """

    def rows_of(home: QueueHome) -> Iterator[Row]:
        try:
            yield from _backwards(home, after, choice.since_ms)
        except StoreCorrupt as error:
            damaged[home.register.name] = str(error)

    if not homes:
        return Chosen([], None, 0)
    rows = heapq.merge(*map(rows_of, homes), key=Place.of, reverse=True)
    return _page(homes[0].store, rows, choice, limit, looked_max=looked_max, bodies=True)


def _page(
    store: Store,
    rows: Iterator[Row],
    choice: Choice,
    limit: int,
    *,
    looked_max: int,
    bodies: bool,
) -> Chosen:
    found: list[Row] = []
    looked, end = 0, None
    part = max(1, min(_BODIES, limit))
    while some := list(islice(rows, min(part, looked_max - looked))):
        wanted = [row for row in some if choice.may_take(row)]
        if wanted and (bodies or choice.needs_bodies):
            wanted = [row for row in _whole(store, wanted) if choice.takes(row)]
        for row in wanted:
            found.append(row if bodies else row._replace(body=b""))
            if len(found) == limit:
                # The rows after the last one of the page are examined again for the next page.
                place = Place.of(row)
                looked += 1 + [one.id for one in some].index(row.id)
                is_more = some[-1].id != row.id or next(rows, None) is not None
                return Chosen(found, place if is_more else None, looked)
        looked += len(some)
        end = Place.of(some[-1])
    is_more = looked >= looked_max and next(rows, None) is not None
    return Chosen(found, end if is_more else None, looked)


def _whole(store: Store, rows: Iterable[Row]) -> list[Row]:
    """Rows with their bodies, in order, without those that have moved meanwhile."""
    positions = [row.position for row in rows]
    there = {row.position: row.checked() for row in store.find(positions)}
    return [there[one] for one in positions if one in there]


def _from_now_on(home: QueueHome, after: Place | None) -> Iterator[Row]:
    """The live rows of a queue without bodies, minute by minute, each minute by due."""
    register = home.register
    layout = register.layout
    shards = scan.every_shard(home.store, register, home.clock.now_ms())
    if after is not None:
        first = layout.minute_of(after.due_ms)
        shards = (shard for shard in shards if shard.minute >= first)
    for _, some in groupby(scan.with_rows(home.store, shards), key=_MINUTE):
        lanes = [_lane(home, layout, shard, after) for shard in some]
        for row in heapq.merge(*lanes, key=Place.of):
            if not register.is_purged(row) and (after is None or Place.of(row) > after):
                yield row


def _lane(home: QueueHome, layout: Layout, shard: Shard, after: Place | None) -> Iterator[Row]:
    """The rows of a shard without bodies, from the end of a page on."""
    wanted = scan.whole(layout, shard, _BODIES, "list")._replace(bodies=False)
    if after is not None and after.due_ms > wanted.after_ms:
        last = ids.from_order_key(after.order)
        wanted = wanted._replace(after_ms=after.due_ms, after_id=last)
    return scan.rows_of(home.store, wanted)


def _backwards(home: QueueHome, after: Place | None, since_ms: int) -> Iterator[Row]:
    """The rows of a dead-letter queue without bodies, the last one first."""
    until_ms = None if after is None else after.due_ms
    rows = dead.backwards(home, since_ms, until_ms)
    return (row for row in rows if after is None or Place.of(row) < after)
