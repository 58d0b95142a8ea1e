"""Looks one message up, by its receipt or by its id: the likeliest places first.

```
 receipt ─► its position                                          one read
 key ─────► the place in its key's row                            two or three reads
 id ──────► the history, of an id that put() made                 one read
        ──► SQLite: the whole queue, by its ids                   one read
        ──► the minute of its due by the history                  a read for a few lanes
        ──► from the oldest unsealed minute to now + 1 h          their rows, without bodies
        ──► the dead of the last day                              their rows, without bodies
        ──► the rest: the whole queue, the other dead, the history of an id given to put()
```

Cassandra has no index of rows by id, except by a key. So the rest is searched everywhere, unless
the caller asks for near places only. `whereabouts.py` explains the state of a found message.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardq.errors import UsageError
from shardq.inspection import dead, scan
from shardq.lifecycle.keyed import check_key
from shardq.model import ids, names
from shardq.model.message import Message
from shardq.model.shard import Shard
from shardq.records.ledger import CLOCK_AHEAD_MS, End
from shardq.records.standing import Is
from shardq.stores.store import NEVER, Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.receipt import Receipt
    from shardq.records.ledger import Record
    from shardq.records.register import Register
    from shardq.stores.store import Mark, Progress, Store

_AHEAD_MS = 3_600_000
_RECENT_MS = 86_400_000
_HISTORY_MS = 6 * 3_600_000
"""The history is read in parts of this length, the latest first."""
_DIED_MS = 60_000
"""A burial's row is due a moment before its end is recorded."""


@dataclass(frozen=True, slots=True)
class WantedMessage:
    """The message to look for.

    Attributes:
        id: Its id; None if only a receipt without an id is known.
        entry: The id of its first row in the queue, if it is known.
        receipt: Its receipt, which names a place where it was.
        key: The key that the message has, or may have; None without one.
        entered_ms: When it entered the queue, if only that message will do.
        due_ms: The due of its put, if it is known.
    """

    id: str | None
    entry: bytes | None = None
    receipt: Receipt | None = None
    key: str | None = None
    entered_ms: int | None = None
    due_ms: int | None = None

    def is_it(self, row: Row) -> bool:
        """True if a row is the row of the wanted message."""
        if self.entered_ms not in (None, row.entered_us // 1_000):
            return False
        if self.id is not None:
            return row.message_id == self.id
        # A stale receipt still holds the name of the row.
        return self.entry in (row.id, row.first)


@dataclass(slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        row: The message's row, in its queue or in the dead-letter queue.
        has_body: True if the row has its body: a receipt named its place.
        mark: Its record in the history, if `put` made its id.
        record: Its record in the history, if the id was given to `put`.
        searched: The searched places, as text.
        is_whole: True if these are all places.
    """

    row: Row | None = None
    has_body: bool = False
    mark: Mark | None = None
    record: Record | None = None
    searched: list[str] = field(default_factory=list)
    is_whole: bool = False

    @property
    def is_empty(self) -> bool:
        """True if nothing is known of the message."""
        return self.row is None and self.mark is None and self.record is None


class _ShardReader:
    """Reads shards of one queue, each once, for the rows of a message."""

    def __init__(self, store: Store, register: Register, on_progress: Progress | None) -> None:
        self.register = register
        self._store = store
        self._on_progress = on_progress
        self._seen: set[Shard] = set()
        self._read = 0
        self.purged: Row | None = None

    def first(self, wanted: WantedMessage, shards: Iterable[Shard]) -> Row | None:
        """The message's row with the first due, without body, from shards ordered by minute."""
        layout = self.register.layout
        first: Row | None = None
        for page in scan.pages(
            self._store, layout, self._fresh(shards), purpose="find", bodies=False
        ):
            if first is not None and min(row.shard.minute for row in page) > first.shard.minute:
                break
            found = [row for row in page if wanted.is_it(row) and self._is_live(row)]
            first = min(found if first is None else [first, *found], key=_by_due, default=None)
            self._read += len(page)
            if self._on_progress is not None:
                self._on_progress("messages", self._read, None)
        return first

    def at_once(self, wanted: WantedMessage) -> tuple[Row | None] | None:
        """The message's row with the first due, if the store finds it at once; else None."""
        name, entry = wanted.id or "", wanted.entry
        rows = self._store.seek(self.register.name, entry, name)
        if rows is None:
            return None
        layout = self.register.layout
        found = [row.checked() for row in rows if layout.has_lane(row.shard.lane)]
        live = (row for row in found if wanted.is_it(row) and self._is_live(row))
        return (min(live, key=_by_due, default=None),)

    def open_shards(self, until_ms: int, since: int) -> Iterator[Shard]:
        """The shards with rows that readers still visit, from a minute on up to a time."""
        shards = open_shards(self._store, self.register, until_ms, since=since)
        for count, shard in enumerate(shards, 1):
            yield shard
            if self._on_progress is not None:
                self._on_progress("open partitions", count, None)

    def all_shards(self) -> Iterator[Shard]:
        """All shards with rows, by minute."""
        found = self._store.indexed(self.register.name, range(NEVER))
        for count, shard in enumerate(scan.with_rows(self._store, found), 1):
            yield shard
            if self._on_progress is not None:
                self._on_progress("partitions", count, None)

    def _is_live(self, row: Row) -> bool:
        if self.register.is_former(row):
            return False
        if self.register.is_purged(row):
            self.purged = self.purged or row
            return False
        return True

    def _fresh(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        for shard in shards:
            if shard not in self._seen:
                self._seen.add(shard)
                yield shard


class Finder:
    """Looks up messages of one queue.

    Args:
        home: The queue's home.
        on_progress: Called with the progress.
    """

    def __init__(self, home: QueueHome, on_progress: Progress | None = None) -> None:
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._keys = home.settler.keys
        self._ledger = home.settler.ledger
        self._on_progress = on_progress

    def wanted(self, given: Message | str | None, key: str | None = None) -> WantedMessage:
        """The message to look for by a message, a receipt, an id or a key.

        Raises:
            UsageError: If none or both are given, or a key of a dead-letter queue.
            BadName: If the text can be no id or key.
            BadReceipt: If the receipt is damaged, or belongs to another queue.
        """
        signer = self._register.signer
        if key is not None and given is None:
            check_key(key, self._register)
            return WantedMessage(None, key=key)
        if key is not None:
            raise UsageError("give a message's id, its receipt, itself or key=, one of them.")
        if isinstance(given, Message):
            # Checks that the receipt belongs to this queue.
            entry = given._row.first or given._row.id
            return WantedMessage(given.id, entry, signer.read(given.receipt), self._key(given.key))
        if isinstance(given, str) and signer.is_meant(given):
            receipt = signer.read(given)
            return WantedMessage(None, receipt.position.id, receipt)
        message_id = names.label(given, what="message id")
        key = message_id if self._register.settings.keyed else None
        return WantedMessage(message_id, ids.from_text(message_id), key=self._key(key))

    def _key(self, key: str | None) -> str | None:
        """A key that can be looked up: the keys of dead messages belong to another queue."""
        return None if names.is_dead_queue(self._register.name) else key

    def look(
        self, wanted: WantedMessage, *, near: bool = False, live: bool = False
    ) -> SearchResult:
        """Look a message up.

        Args:
            wanted: The message.
            near: True to search only near places, not the whole queue or the whole history.
            live: True to search only messages that are still to be delivered: no dead and no purged
                ones.

        Raises:
            StoreCorrupt: If a row or record on the way is damaged.
        """
        self._register.refresh()
        here = _ShardReader(self._store, self._register, self._on_progress)
        look = SearchResult()
        if wanted.receipt is not None:
            look.searched.append("where its receipt says")
            look.row = self._named(wanted.receipt, live=live)
            if look.row is not None:
                look.has_body = True
                return look
        if wanted.key is not None:
            look.searched.append("by its key")
            look.row = self._keyed(wanted, wanted.key, live=live)
            look.has_body = look.row is not None
            look.is_whole = wanted.id is None
            if look.has_body or look.is_whole:
                return look
        look.mark = self._marked(wanted, look)
        fate = None if look.mark is None else look.mark.fate
        if fate not in (None, End.DEAD.value) and not live:
            return look
        if fate is None:
            look.row = self._first_due(wanted, look, here)
        elif not live:
            look.row = self._died(wanted, look)
        look.row = look.row or self._near(wanted, look, here)
        if look.row is None and not live:
            # An id that put() made belongs to one message; with others a newer message may have it
            # too.
            look.row = here.purged if wanted.entry is not None else None
            look.row = look.row or self._recent_dead(wanted, look)
        if look.row is None and not near:
            self._everywhere(wanted, look, here, live=live)
        if look.row is None and not live:
            look.row = here.purged
        return look

    def ended(self, wanted: WantedMessage, look: SearchResult) -> None:
        """Search all the dead, and the last hours of the history, after a search of near places.

        Args:
            wanted: The message.
            look: The findings so far; completed by this search.
        """
        if "the dead of the last day" in look.searched:
            look.row = self._all_dead(wanted, look)
        if look.row is None and look.mark is None and wanted.id is not None:
            look.record = self._recorded(wanted.id, look, steps=1)

    def whole(self, row: Row) -> Row | None:
        """A row with its body; None if the row was settled or has moved."""
        return next((found.checked() for found in self._store.find([row.position])), None)

    # Places ---------------------------------------------------------------------------------------

    def _named(self, receipt: Receipt, *, live: bool) -> Row | None:
        register = self._register
        for row in self._store.find([receipt.position]):
            if not register.is_former(row.checked()) and not (live and register.is_purged(row)):
                return row
        return None

    def _keyed(self, wanted: WantedMessage, key: str, *, live: bool) -> Row | None:
        """The row of the message that has a key, if it is the wanted one."""
        found = self._keys.seek([key])[key]
        if found.row is None or (live and found.state is Is.DEAD):
            return None
        # A dead message entered its queue later; its id is the same.
        is_it = wanted.id in (None, found.row.message_id)
        return found.row.checked() if is_it else None

    def _marked(self, wanted: WantedMessage, look: SearchResult) -> Mark | None:
        settings = self._register.settings
        if wanted.entry is None or not settings.history_ms:
            return None
        if ids.birth_us(wanted.entry) < settings.former_until_us:
            # The message may belong to a dropped queue of this name.
            return None
        look.searched.append("the history")
        marks = self._store.recorded([Entry(self._register.name, wanted.entry)])
        return next((mark.checked() for mark in marks), None)

    def _first_due(
        self, wanted: WantedMessage, look: SearchResult, here: _ShardReader
    ) -> Row | None:
        """The row at the due that the history records; None if the row has moved."""
        due_ms = wanted.due_ms if look.mark is None else look.mark.due_ms
        if due_ms is None:
            return None
        layout = self._register.layout
        born_ms = wanted.entered_ms or 0
        if look.mark is not None:
            born_ms = ids.birth_us(look.mark.entry.id) // 1_000
        minute = layout.minute_of(max(due_ms, born_ms))
        return here.first(
            wanted, [Shard(layout.queue, minute, lane) for lane in layout.all_lanes()]
        )

    def _near(self, wanted: WantedMessage, look: SearchResult, here: _ShardReader) -> Row | None:
        """The row in the minutes that readers still visit, and up to an hour ahead."""
        if (at_once := here.at_once(wanted)) is not None:
            look.searched.append("all partitions")
            return at_once[0]
        layout = self._register.layout
        now_ms = self._clock.now_ms()
        look.searched.append("what is due by now or within the hour")
        # No message is due before its put.
        born_ms = 0 if wanted.entry is None else ids.birth_us(wanted.entry) // 1_000
        shards = here.open_shards(now_ms + _AHEAD_MS, max(layout.minute_of(born_ms), 0))
        return here.first(wanted, shards)

    def _everywhere(
        self, wanted: WantedMessage, look: SearchResult, here: _ShardReader, *, live: bool
    ) -> None:
        if "all partitions" not in look.searched:
            look.searched.append("all other partitions")
            look.row = here.first(wanted, here.all_shards())
        if look.row is None and not live:
            look.row = self._all_dead(wanted, look)
            if look.row is None and look.mark is None and wanted.id is not None:
                look.record = self._recorded(wanted.id, look)
        look.is_whole = True

    def _recorded(
        self, message_id: str, look: SearchResult, *, steps: int | None = None
    ) -> Record | None:
        """The record in the history of an id that was given to `put`; of several, the last put's.

        Args:
            message_id: The id.
            look: The findings so far.
            steps: How many times 6 h to read; None: the whole history.
        """
        if not self._register.settings.history_ms:
            return None
        if "the history" not in look.searched:
            look.searched.append("the history")
        end_ms, hours = self._clock.now_ms() + CLOCK_AHEAD_MS, 0
        while end_ms > (first_ms := self._ledger.first_ms()):
            start_ms = max(end_ms - _HISTORY_MS, first_ms)
            if found := list(self._ledger.records(message_id, start_ms, end_ms)):
                return found[-1]
            end_ms, hours = start_ms, hours + _HISTORY_MS // 3_600_000
            if steps is not None and hours >= steps * _HISTORY_MS // 3_600_000:
                break
            if self._on_progress is not None:
                self._on_progress("hours of history", hours, None)
        return None

    # The dead -------------------------------------------------------------------------------------

    def _died(self, wanted: WantedMessage, look: SearchResult) -> Row | None:
        """The dead message's row, near the recorded time of death, which is the row's due."""
        ended_ms = look.mark.ended_ms if look.mark is not None else 0
        return self._dead(wanted, look, ended_ms - _DIED_MS, ended_ms + _DIED_MS)

    def _recent_dead(self, wanted: WantedMessage, look: SearchResult) -> Row | None:
        look.searched.append("the dead of the last day")
        now_ms = self._clock.now_ms()
        return self._dead(wanted, look, now_ms - _RECENT_MS, now_ms)

    def _all_dead(self, wanted: WantedMessage, look: SearchResult) -> Row | None:
        look.searched[look.searched.index("the dead of the last day")] = "the dead"
        return self._dead(wanted, look, 0, self._clock.now_ms() + _AHEAD_MS)

    def _dead(
        self, wanted: WantedMessage, look: SearchResult, since_ms: int, until_ms: int
    ) -> Row | None:
        """The message's row among the dead of a span of time, searched from the last one back."""
        register = self._register.dead_if_made()
        if register is None or register.settings.dropped:
            return None
        named = look.mark.name if look.mark is not None else None
        message_id = wanted.id or named or ids.text(wanted.entry or b"")
        same = replace(wanted, id=message_id, entered_ms=None)
        among = _ShardReader(self._store, register, self._on_progress)
        if (at_once := among.at_once(same)) is not None:
            return at_once[0]
        for shard in dead.shards(self._store, register, since_ms, until_ms):
            if found := among.first(same, [shard]):
                return found
        return None


def open_shards(
    store: Store,
    register: Register,
    until_ms: int,
    *,
    since: int = 0,
    lanes: Sequence[int] | None = None,
) -> Iterator[Shard]:
    """The shards with rows that readers still visit, by minute.

    Args:
        until_ms: The end: up to the minute of this time, epoch milliseconds.
        since: The first minute.
        lanes: Only these lanes; None: all.
    """
    layout = register.layout
    end = layout.minute_of(until_ms) + 1
    found = scan.open_shards(store, register, end, until_ms)
    wanted = (
        shard
        for shard in found
        if shard.minute >= since
        and (layout.has_lane(shard.lane) if lanes is None else shard.lane in lanes)
    )
    return scan.with_rows(store, wanted)


def _by_due(row: Row) -> tuple[int, int]:
    return row.due_ms, row.entered_us
