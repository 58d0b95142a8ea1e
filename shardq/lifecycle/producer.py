"""Putting messages: each message becomes a row in the shard of its due time.

```
 put, put_many ──► row: due raised to now, rounded up to the millisecond; fresh row id; for a
                    │  group both once more when it is sent, if it has waited
                    ├─ lane: the group's, else the next one; each gets 10 rows of a batch, 20 ..
                    └─ single puts of many threads are stored in batches (`hub.py`)
               ──► insert, acknowledged ──► recorded, if the queue keeps a history ──► later than
               its minute's end + offset/2? look it up, move it to now
```

A put takes no lock, LWT or read, except the first put to a priority in a queue's life. A put under
a key first takes the key (`keyedputs.py`).
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from itertools import count
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from shardq.errors import (
    BadSetting,
    ShardqError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
    begun,
    own_copy,
    shown,
)
from shardq.lifecycle.batch import Chunk, Filling, PutOptions, add_count, iterator_of
from shardq.lifecycle.cap import Cap
from shardq.lifecycle.hub import Hub, HubCall, Hubs
from shardq.lifecycle.keyedputs import (
    KEEP,
    Asked,
    KeyedPut,
    KeyedPuts,
    conflict_of,
    key_text,
    keyed_options,
)
from shardq.model import names
from shardq.model.ids import row_ids
from shardq.model.message import (
    BODY_BYTES_MAX,
    Message,
    Row,
    Sealed,
    contents,
    expiring,
)
from shardq.model.shard import Shard
from shardq.model.times import asked_ms, ceil_ms, duration_ms
from shardq.records.budget import Budget
from shardq.records.sent import Sent
from shardq.records.stats import NEAR_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from shardq.clock import Clock
    from shardq.lifecycle.batch import Item, LaneOf
    from shardq.lifecycle.settle import Settler
    from shardq.model.times import Duration
    from shardq.records.register import Register
    from shardq.records.stats import StatsLog
    from shardq.stores.store import Store

log = logging.getLogger(__name__)

_SLOTS_MAX = 1_000
_KEEP_UP_US = 250_000
_CHUNK_ROWS = 20_000
_CHUNK_BYTES = 16 << 20
_CHUNK_US = 1_000_000
_CHUNK_OF_GROUPS_US = 100_000
_LATE_MS = 100
"""A row of a group that is stored a quarter of a second after its due may be read after later rows.
So a chunk with such rows ends soon, and a row that has waited this long gets a new due."""
_ARGUMENTS = {"body", *PutOptions.__annotations__}


class _Put(HubCall):
    """One caller's put of a message without a key.

    Attributes:
        row: The row to put; after a repair, the moved row.
        is_stored: True if the store has the row.
        is_held: True if the row gets its due and its id when its batch begins.
    """

    __slots__ = ("is_held", "is_stored", "row")

    def __init__(self, row: Row, *, is_held: bool) -> None:
        super().__init__(size_bytes=row.size_bytes)
        self.row = row
        self.is_stored = False
        self.is_held = is_held


class _Once(NamedTuple):
    """A put of a message once under a name.

    Attributes:
        name: The name.
        row: The row to put.
        is_held: True if the row becomes due when it is written.
    """

    name: str
    row: Row
    is_held: bool


class Producer:
    """Puts messages into one queue; from any thread.

    Args:
        on_put: Called with the first and with the last due, epoch milliseconds, of rows just
            stored.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        settler: Settler,
        stats: StatsLog,
        on_put: Callable[[int], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._settler = settler
        self._ledger = settler.ledger
        self._keyed = KeyedPuts(store, clock, register, settler, stats)
        self._sent = Sent(store, clock, register)
        self._stats = stats
        self._on_put = on_put
        self._puts: Hubs[_Put] = Hubs(
            partial(Hub, self._put_all, repeats=True, is_whole=store.is_local)
        )
        # Producers start in different lanes, so that a few of them fill all lanes.
        self._salt = random.randrange(1 << 16)
        self._turns = count(self._salt)
        self._in_turn: dict[int, int] = {}
        self._keep_up_us = 0
        self._first_lane = register.layout.first_lane
        self._first_group_lane: int | None = None
        """The first lane for groups when this producer first put a message with a group; None
        before."""
        self._is_local = store.is_local
        self._budget = Budget(store, clock, register)
        self._cap = Cap(store, clock, register, stats)
        self._clock_steps = clock.steps

    def put(self, body: bytes | str | Message, **given: Unpack[PutOptions]) -> Message:
        """Put one message; see `Queue.put`."""
        self._keep_up()
        is_held = False
        if isinstance(body, Message):
            row = self._again(body)
        else:
            now_us = self._clock.now_us()
            self._cap.check()
            row = self._row(now_us, self._next_lane, body, given)
            is_held = row.group is not None and row.due_ms <= ceil_ms(now_us)
        if row.key is not None or self._register.settings.keyed or keyed_options(given):
            return self._put_keyed(self._asked(row, body, given))
        call = _Put(row, is_held=is_held)
        try:
            self._puts.of(self._place_of(row)).do(call)
        except StoreError as error:
            error.messages = (Message(call.row, 0, self._register.signer),)
            raise
        # Call it outside the hub's turn: a listener may run the job at once, while other callers
        # wait.
        self._on_put(call.row.due_ms)
        return Message(call.row, 0, self._register.signer)

    def _delay_of(self, given: PutOptions) -> Duration | None:
        """The delay of a put: the queue's delay, if the put has neither a due nor a delay."""
        delay, delay_ms = given.get("delay"), self._register.settings.delay_ms
        if given.get("due") is not None or delay is not None or not delay_ms:
            return delay
        return timedelta(milliseconds=delay_ms)

    def _place_of(self, row: Row) -> Hashable:
        """The place of a row: rows of one place are stored one batch after the other.

        For a row of a group the place is the lane: if it were the shard, the first row of a minute
        could be stored before the last row of the minute before.
        """
        if self._is_local:
            return None
        return row.shard if row.group is None else row.shard.lane

    def _put_all(self, calls: Sequence[_Put]) -> None:
        """Store the rows of several callers, of which each has one row."""
        for call in calls:
            if call.is_held:
                call.row, call.is_held = self._due_now(call.row), False
        asked = [call.row for call in calls if not call.is_stored]
        if asked:
            # The store writes a tuple of one row without a transaction around it.
            self._store.insert(tuple(asked))
            for call in calls:
                call.is_stored = True
        rows = [call.row for call in calls]
        repaired = self._after_insert(rows, min(rows, key=_due_of))
        for call in calls if repaired else ():
            call.row = repaired.get(call.row.id, call.row)
        self._stats.add(put=len(rows))

    def _due_now(self, row: Row) -> Row:
        """A new row of a group, due now, after the rows of the group that were stored before."""
        now_us = self._clock.now_us()
        due_ms = ceil_ms(now_us)
        return row._replace(
            shard=self._register.layout.shard(due_ms, row.shard.lane),
            due_ms=due_ms,
            id=row_ids.next(max(now_us, self._register.settings.purged_before_us)),
        )

    def _put_keyed(self, asked: Asked) -> Message:
        signer = self._register.signer
        try:
            if (taken := self._keyed.put([asked])) is not None:
                raise taken
            row = asked.found or asked.row
            if asked.is_new:
                row = self._after_insert((row,), row).get(row.id, row)
        except StoreError as error:
            error.messages = (KeyedPut(asked.carried, signer, asked.conflict),)
            raise
        if asked.is_new:
            self._stats.add(put=1)
        elif asked.has_replaced:
            self._stats.add(replaced=1)
        self._on_put(row.due_ms)
        return Message(row, 0, signer)

    def _asked(self, row: Row, body: object, given: PutOptions) -> Asked:
        """A put under a key, from its arguments; the put's row has the key.

        Raises:
            UsageError: If the arguments do not go together.
        """
        if isinstance(body, Message):
            if keyed_options(given):
                raise UsageError("a message is put again as it was; put its body to give it a key.")
            return Asked(row, body.conflict if isinstance(body, KeyedPut) else KEEP, tried=row)
        key = given.get("key")
        if key is None:
            options = keyed_options(given)
            if options and not self._register.settings.keyed:
                raise UsageError(
                    f"{options[0]}={shown(given.get(options[0]))} needs a key: give one, or make "
                    f"the queue keyed."
                )
            key = row.message_id
        if names.is_dead_queue(self._register.name):
            raise UsageError(
                f"queue {self._register.name!r} keeps dead messages, under the keys that they had; "
                f"put into {names.served_queue(self._register.name)!r}."
            )
        is_timed = given.get("due") is not None or self._delay_of(given) is not None
        conflict = conflict_of(
            given.get("on_conflict", "keep"), given.get("max_wait"), is_timed=is_timed
        )
        return Asked(row._replace(key=key_text(key, given.get("unique_for"))), conflict)

    def put_many(self, items: Iterable[Item], on_id: Callable[[str], object] | None = None) -> int:
        """Put messages from an iterable, in full batches; see `Queue.put_many`.

        Args:
            items: The messages.
            on_id: Called with the id of each message, in order, once it is stored.
        """
        iterator = iterator_of(items)
        turn = next(self._turns)
        total = 0
        self._keep_up()
        while True:
            chunk = Chunk()
            ended: list[BaseException] = []
            try:
                self._put_chunk(self._chunk_of(iterator, turn, chunk, ended), chunk, ended)
            except BaseException as error:
                if isinstance(error, StoreError):
                    self._carry(error, chunk)
                else:
                    total += self._complete(chunk)
                if total:
                    add_count(error, total)
                if ended:
                    error.add_note(f"Before that, the items had ended with {shown(ended[0])}.")
                raise
            total += chunk.count()
            if on_id is not None:
                for row in chunk.found():
                    on_id(row.message_id)
            if ended:
                # Raise the error now, because all items before it are stored and counted.
                add_count(ended[0], total)
                raise ended[0]
            if not chunk.rows:
                return total
            # If the store fails here, the next insert reports it: an error now would say that the
            # rows just stored were not.
            try:
                self._keep_up()
            except (StoreTimeout, StoreUnavailable):
                pass
            except BaseException as error:
                add_count(error, total)
                raise

    def put_each(self, items: Iterable[Item]) -> list[Message | ShardqError]:
        """Put messages in one batch; see `Queue.put_many` with `partial=True`."""
        self._keep_up()
        now_us = self._clock.now_us()
        lane_of = Filling(self._register.layout, next(self._turns)).lane_of
        chunk = Chunk()
        answers: dict[int, Message | ShardqError] = {}
        places: list[int] = []
        once: dict[int, _Once] = {}
        count = 0
        for count, item in enumerate(items, 1):
            at = count - 1
            try:
                self._cap.check(len(chunk.rows))
                if type(item) is dict and item.get("once") is not None:
                    once[at] = self._once_of(now_us, lane_of, item)
                    continue
                made = self._row_of_item(now_us, lane_of, item, chunk)
                if isinstance(made, Asked):
                    answers[at] = self._put_keyed(made)
                else:
                    chunk.add(made, is_new=not isinstance(item, Message))
                    places.append(at)
            except ShardqError as error:
                answers[at] = error
        if places:
            answers.update(zip(places, self._put_rows(chunk), strict=True))
        if once:
            answers.update(zip(once, self._put_once([*once.values()]), strict=True))
        return [answers[at] for at in range(count)]

    def _once_of(self, now_us: int, lane_of: LaneOf, item: Mapping[str, Any]) -> _Once:
        """The put of an item once under its name.

        Raises:
            UsageError: If the item has a key too, or cannot be used.
        """
        given = dict(item)
        name = names.label(given.pop("once"), what="once")
        chunk = Chunk()
        made = self._row_of_item(now_us, lane_of, given, chunk)
        if isinstance(made, Asked):
            raise UsageError("a message with a key cannot be put once; leave out one of the two.")
        if chunk.failed is not None:
            raise chunk.failed
        is_held = made.group is not None and made.due_ms <= ceil_ms(now_us)
        return _Once(name, made, is_held=is_held)

    def _put_once(self, asked: Sequence[_Once]) -> list[Message | ShardqError]:
        """Put messages once under their names; returns one answer for each."""
        signer = self._register.signer
        rows: dict[str, Row] = {}
        for one in asked:
            # If two puts have one name, the first is put, and the second finds the first's message.
            if one.name not in rows:
                rows[one.name] = self._due_now(one.row) if one.is_held else one.row
        try:
            found, written = self._sent.put(rows)
            repaired: dict[bytes, Row] = {}
            if written:
                repaired = self._after_insert(written, min(written, key=_due_of))
        except StoreError as error:
            return [self._failure(error, rows[one.name]) for one in asked]
        for due_ms in {row.due_ms for row in written}:
            self._on_put(due_ms)
        self._stats.add(put=len(written))
        rows = {name: repaired.get(row.id, row) for name, row in found.items()}
        return [Message(rows[one.name], 0, signer) for one in asked]

    def _put_rows(self, chunk: Chunk) -> list[Message | ShardqError]:
        """Put the rows of a chunk without keys; returns one answer for each row."""
        signer = self._register.signer
        try:
            if chunk.failed is not None:
                raise chunk.failed
            for _ in self._in_time(chunk):
                pass
            self._put_chunk(chunk.rows, chunk)
        except StoreError as error:
            return [self._failure(error, row) for row in chunk.rows]
        return [Message(row, 0, signer) for row in chunk.rows]

    def _failure(self, error: StoreError, row: Row) -> StoreError:
        """The error of a batch as the answer for one of its rows, which the error then carries."""
        failure = own_copy(error)
        failure.messages = (Message(row, 0, self._register.signer),)
        return failure

    def _put_chunk(
        self, rows: Iterable[Row], chunk: Chunk, ended: list[BaseException] | None = None
    ) -> None:
        """Store, record and count the rows of a chunk.

        Args:
            rows: The rows without a key; once all of them are taken, `chunk` has all rows.
            chunk: The chunk; its rows with a key are put last.
            ended: Gets the error of a key that another message has.
        """
        self._store.insert(rows)
        if not chunk.keyed:
            self._after_chunk(chunk.rows)
            return
        error = self._keyed.put(chunk.keyed.values())
        self._after_chunk(chunk.new())
        if replaced := chunk.replaced():
            # Repair these rows once more, because later puts of the chunk may have taken long.
            with begun("the messages are replaced"):
                self._settler.repair(replaced)
            self._stats.add(replaced=len(replaced))
        if error is not None and ended is not None:
            for before in ended:
                error.add_note(f"After that, the items ended with {shown(before)}.")
            ended[:] = [error]

    def _carry(self, error: StoreError, chunk: Chunk) -> None:
        """Let an error carry the messages of a chunk, so that the caller can put them again."""
        signer = self._register.signer
        keyed = chunk.keyed
        error.messages = tuple(
            Message(row, 0, signer)
            if (asked := keyed.get(at)) is None
            else KeyedPut(asked.carried, signer, asked.conflict)
            for at, row in enumerate(chunk.rows)
        )

    def _complete(self, chunk: Chunk) -> int:
        """Repeat the put of a chunk after an interrupt (Ctrl-C); returns how many were put.

        Some rows may be stored and not counted. Writing these rows again changes nothing.
        """
        try:
            self._put_chunk(chunk.unkeyed(), chunk)
        except ShardqError as error:
            log.warning(
                "queue %s: of %d messages that were being put, some may be stored: %s",
                self._register.name,
                len(chunk.rows),
                error,
            )
            return 0
        return chunk.count()

    def _after_chunk(self, chunk: list[Row]) -> None:
        if chunk:
            oldest = min(chunk, key=_due_of)
            self._after_insert(chunk, oldest)
            for due_ms in {oldest.due_ms, max(map(_due_of, chunk))}:
                self._on_put(due_ms)
            # Count last: after an interrupt before this, the whole chunk is put again.
            self._stats.add(put=len(chunk))

    def _after_insert(self, rows: Sequence[Row], oldest: Row) -> dict[bytes, Row]:
        """Record rows, and repair late rows; returns row id -> the present row, for moved rows.

        Raises:
            StoreTimeout: The rows are stored, but recording or repairing has failed.
        """
        if self._ledger.is_on:
            with begun("the messages are stored"):
                self._ledger.enter(rows)
        # Check this last: recording may take long, and rows reported as stored must not be late.
        if not self._register.layout.is_late(oldest.shard.minute, self._clock.now_ms()):
            return {}
        with begun("the messages are stored"):
            repaired = self._settler.repair(rows)
        self._stats.add(late_repaired=len(repaired))
        return repaired

    def _keep_up(self) -> None:
        """Reread the settings and the clock, and store the totals, each if that is due."""
        if self._is_local:
            self._clock.measure(self._store)
            if self._clock.steps != self._clock_steps:
                self._follow_clock()
        now_us = self._clock.boot_us()
        if now_us >= self._keep_up_us:
            self._keep_up_us = now_us + _KEEP_UP_US
            self._clock.measure(self._store)
            if self._register.refresh():
                self._clock.check(self._register.settings.offset_ms)
            if self._stats.is_due():
                self._stats.keep()
            self._note_lanes()
        if self._register.settings.dropped:
            raise UnknownQueue(f"queue {self._register.name!r} has been dropped.")

    def _note_lanes(self) -> None:
        """Warn if the last puts may be in lanes that no member reads any more."""
        layout = self._register.layout
        with_group = self._first_group_lane not in (None, layout.first_group_lane)
        if layout.first_lane != self._first_lane or with_group:
            what = "what" if layout.first_lane != self._first_lane else "what with a group"
            self._first_lane, self._first_group_lane = layout.first_lane, None
            log.warning(
                "queue %s was dropped, and made anew with other lanes: %s this process put since "
                "then waits until `shardq check --all %s` finds it",
                self._register.name,
                what,
                self._register.name,
            )

    def _follow_clock(self) -> None:
        """Reread the settings after the clock was set, as their purge may be newer than now."""
        steps = self._clock.steps
        row_ids.turn_back(self._clock.now_us())
        self._register.refresh(force=True)
        self._clock_steps = steps

    def _next_lane(self, minute: int, band: int) -> int:
        """The lane of the next single put; puts of a minute and band go round the lanes."""
        layout = self._register.layout
        slot = minute * layout.bands + band
        turn = self._in_turn.get(slot)
        if turn is None:
            if len(self._in_turn) >= _SLOTS_MAX:
                self._in_turn.clear()
            turn = self._salt + minute
        self._in_turn[slot] = turn + 1
        return layout.lane(band, turn % layout.lanes_written)

    def _chunk_of(
        self, items: Iterator[Item], turn: int, chunk: Chunk, ended: list[BaseException]
    ) -> Iterator[Row]:
        """The rows of the next items without keys, up to a chunk's bounds or an error.

        `chunk` gets all rows. `ended` gets an error of the iterable, or of an item that cannot be
        used, because the rows before the error must still be stored.
        """
        clock = self._clock
        now_us = begun_us = clock.now_us()
        deadline_us = now_us + _CHUNK_US
        # Messages put after a purge are not purged, even if the clock was set back since.
        ahead_us = max(self._register.settings.purged_before_us - now_us, 0)
        room = _CHUNK_BYTES
        layout = self._register.layout
        lane_of = Filling(layout, turn).lane_of
        queue, minute_ms = layout.queue, layout.minute_ms
        rows = chunk.rows
        unsent: Row | None = None
        settings = self._register.settings
        plain = NoneType if settings.keyed or settings.delay_ms else bytes
        try:
            for item in self._cap.admitted(items, rows):
                now_us = clock.now_us()
                headers = None
                if type(item) is Sealed and plain is bytes and item.is_small:
                    item, headers = item  # noqa: PLW2901 - from here on it is a plain body
                # Plain bodies, the common case, have a path of their own: 8 us a row in all.
                if type(item) is plain and len(item) <= BODY_BYTES_MAX:
                    due_ms = ceil_ms(now_us)
                    minute = due_ms // minute_ms
                    shard = Shard(queue, minute, lane_of(minute, 0))
                    row = Row(shard, due_ms, row_ids.next(now_us + ahead_us), item, headers)
                    unsent = row
                    rows.append(row)
                    yield row
                    unsent = None
                else:
                    made = self._row_of_item(now_us, lane_of, item, chunk)
                    unsent = chunk.add(made, is_new=not isinstance(item, Message))
                    if chunk.held:
                        deadline_us = begun_us + _CHUNK_OF_GROUPS_US
                    row = rows[-1]
                    if unsent is not None:
                        yield unsent
                        unsent = None
                room -= row.size_bytes
                # If this time is before the chunk's begin, the clock was set back.
                is_over = not begun_us <= now_us <= deadline_us
                if len(rows) >= _CHUNK_ROWS or room <= 0 or is_over:
                    break
        except GeneratorExit:
            # The store has failed and takes no more rows.
            raise
        except BaseException as error:  # noqa: BLE001 - raised once the rows read are stored
            ended.append(error)
        if chunk.failed is not None:
            raise chunk.failed
        if unsent is not None and rows and rows[-1] is unsent:
            # Ctrl-C came before the store took this row.
            yield unsent
        yield from self._in_time(chunk)

    def _in_time(self, chunk: Chunk) -> Iterator[Row]:
        """The rows of groups that a chunk has held back; late rows become due now.

        The iterable or the store may be slow: only a sweep would find a late row, after later rows.
        """
        last_ms = 0
        for at in chunk.held:
            row = chunk.rows[at]
            # Rows behind a row that gets a new due come after it, even in the same millisecond.
            if row.due_ms <= max(last_ms, self._clock.now_ms() - _LATE_MS):
                row = chunk.rows[at] = self._due_now(row)
                last_ms = row.due_ms
            if (asked := chunk.keyed.get(at)) is None:
                yield row
            else:
                asked.row = row

    def _row_of_item(self, now_us: int, lane_of: LaneOf, item: Any, chunk: Chunk) -> Row | Asked:
        if isinstance(item, Message):
            row = self._again(item, chunk)
            return row if row.key is None else self._asked(row, item, {})
        if type(item) is Sealed:
            given: Any = {"body": item.body, "headers": json.loads(item.headers)}
        elif isinstance(item, (bytes, str)):
            given = {"body": item}
        elif type(item) is dict:
            given = item
        else:
            try:
                given = dict(item)
            except (TypeError, ValueError) as error:
                raise UsageError(
                    f"put_many takes bodies or mappings of put's arguments, "
                    f"not {type(item).__name__}."
                ) from error
        if not given.keys() <= _ARGUMENTS or "body" not in given:
            raise UsageError(
                f"put_many's mappings need 'body' and may have {', '.join(sorted(_ARGUMENTS))}; "
                f"this one has {shown(list(given))}."
            )
        body = given["body"]
        row = self._row(now_us, lane_of, body, given, chunk)
        if self._register.settings.keyed or keyed_options(given):
            return self._asked(row, body, given)
        return row

    def _row(
        self,
        now_us: int,
        lane_of: LaneOf,
        body: object,
        given: PutOptions,
        chunk: Chunk | None = None,
    ) -> Row:
        group, name, priority = given.get("group"), given.get("id"), given.get("priority", 0)
        if group is not None:
            names.label(group, what="group")
            # Call it before the layout is read, because it may replace the layout.
            _use(self._register.use_groups, chunk)
        layout = self._register.layout
        now_ms = ceil_ms(now_us)
        wanted_ms = asked_ms(now_ms, given.get("due"), self._delay_of(given))
        if (spread := given.get("spread")) is not None:
            spread_ms = duration_ms(spread, name="spread")
            wanted_ms = self._budget.due_ms(max(wanted_ms, now_ms), spread_ms)
        due_ms = max(wanted_ms, now_ms)
        if due_ms > now_ms + NEAR_MS:
            self._stats.note_farthest(due_ms)
        minute = due_ms // layout.minute_ms
        if type(priority) is not int or not 0 <= priority < layout.bands:
            known = f"0 to {layout.bands - 1}" if layout.bands > 1 else "0, the only one"
            raise BadSetting(
                f"priority must be {known} in queue {layout.queue!r}, not {shown(priority)}: it "
                f"was created with bands={layout.bands}, which is fixed; make another queue for "
                f"more."
            )
        if priority >= layout.bands_used and group is None:
            _use(partial(self._register.use_band, priority), chunk)
        if group is None:
            lane = lane_of(minute, priority)
        else:
            lane = layout.group_lane(group)
            self._first_group_lane = self._first_group_lane or layout.first_group_lane
        content, headers_text = contents(body, given.get("headers"))
        if (expires := given.get("expires")) is not None:
            headers_text = expiring(headers_text, duration_ms(expires, name="expires"))
        return Row(
            Shard(layout.queue, minute, lane),
            due_ms,
            # Make the row id later than the last purge, as in `_chunk_of`.
            row_ids.next(max(now_us, self._register.settings.purged_before_us)),
            content,
            headers_text,
            0,
            None,
            None if name is None else names.label(name, what="message id"),
            None if wanted_ms == due_ms else wanted_ms,
            group,
            priority=0 if group is None else priority,
        )

    def _again(self, message: Message, chunk: Chunk | None = None) -> Row:
        if message.queue != self._register.name:
            raise UsageError(
                f"a message of queue {message.queue!r} cannot be put into {self._register.name!r}; "
                f"put its body."
            )
        if self._register.is_former(message._row):
            raise UsageError(
                f"message {message.id} was put into a queue {message.queue!r} that has been "
                f"dropped; put its body."
            )
        self._stats.note_farthest(message._row.due_ms)
        _use(partial(self._register.use_lanes_of, [message._row.shard]), chunk)
        return message._row


def _use(use: Callable[[], None], chunk: Chunk | None) -> None:
    """Let consumers poll a lane; a chunk keeps an error until all items are read."""
    if chunk is None:
        use()
    elif chunk.failed is None:
        try:
            use()
        except StoreError as error:
            chunk.failed = error


def _due_of(row: Row) -> int:
    return row.due_ms
