"""Explains where a message is that `finder.py` has found, and why it does not run.

```
 due later ─► claimed? failed? snoozed? behind its group's head?     else it waits
 due now ───► runs? paused? behind its group's head? no consumer?        else it is about to run
```

Members' reports of themselves are up to 3 s old, and up to 10 s if they have crashed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from shardq.errors import StoreCorrupt
from shardq.inspection import scan
from shardq.inspection.finder import Finder, open_shards
from shardq.inspection.state import Found, State, Where
from shardq.model import ids
from shardq.model.limits import AWAY_MS, LATE, Pause, limits_of, queue_limit_of, wait_ms
from shardq.model.message import died_after, is_snooze_reason, last_error, priority_of
from shardq.model.names import is_dead_queue, served_queue
from shardq.model.times import due_ms, moment_of
from shardq.records.ledger import End, record_of
from shardq.records.membership import heartbeats, member_of
from shardq.stores.store import NEVER, Slice
from shardq.stores.tables import LANES, MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardq.inspection.finder import SearchResult, WantedMessage
    from shardq.lifecycle.home import QueueHome
    from shardq.model.limits import GroupLimit, QueueLimit
    from shardq.model.message import Message, Row
    from shardq.model.settings import Settings
    from shardq.records.ledger import Record
    from shardq.records.membership import Heartbeat
    from shardq.stores.store import Progress

_COUNT_MINUTES = 500
_LOOKS = 2
"""A message that moves between two reads is looked for once more."""
_PAGE = 1_000
_ROWS_MAX = 20_000
"""How many rows are read for the head of a group, and for messages that wait for one limit."""
_FAILED_MS = 1_000
"""A row that was placed within this time of its last failure was placed by that failure, not by a

snooze. In the same way a snooze with a recorded reason placed the row, not a later snooze."""
_BEGUN_MS = 1_000
"""Two clocks may differ by this. A run that began longer before a row's birth is an earlier one."""

_FATES = {
    End.ACKED.value: Where.ACKED,
    End.DEAD.value: Where.DEAD,
    End.FORWARDED.value: Where.FORWARDED,
    End.CANCELLED.value: Where.CANCELLED,
    End.EXPIRED.value: Where.EXPIRED,
    End.PURGED.value: Where.PURGED,
}


class Whereabouts:
    """Finds out where messages of one queue are.

    Args:
        home: The queue's home.
        on_progress: Called with the progress.

    Attributes:
        finder: Looks up messages.
    """

    def __init__(self, home: QueueHome, on_progress: Progress | None = None) -> None:
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self.finder = Finder(home, on_progress)

    def find(self, message: Message | str | None, key: str | None, *, near: bool) -> Found | None:
        """See `Queue.find`."""
        wanted = self.finder.wanted(message, key)
        for _ in range(_LOOKS):
            look = self.finder.look(wanted, near=near, live=True)
            row = look.row
            whole = row if row is None or look.has_body else self.finder.whole(row)
            if whole is not None:
                return Found(whole, 0, self._register.signer, self.of(whole))
            if row is None:
                break
        return None

    def state_of(
        self, message: Message | str | None, key: str | None, *, near: bool
    ) -> State | None:
        """See `Queue.state_of`."""
        wanted = self.finder.wanted(message, key)
        return self.state(wanted, self.finder.look(wanted, near=near))

    def seen(self, message: str, *, near: bool) -> tuple[State, Row | None] | None:
        """Where a message is, by one search, and its row, dead or alive; None if it has no row.

        Args:
            message: Its id, or its receipt.
            near: True to search only near places, all the dead, and the last 6 h of the history.
        """
        wanted = self.finder.wanted(message)
        for _ in range(_LOOKS):
            look = self.finder.look(wanted, near=near)
            if near and look.is_empty:
                self.finder.ended(wanted, look)
            row = look.row
            whole = row if row is None or look.has_body else self.finder.whole(row)
            if whole is not None or row is None:
                state = self.state(wanted, look)
                return None if state is None else (state, whole)
        return None

    def of_record(self, record: Record) -> State | None:
        """The state of a message that has not ended, found by its record in the history.

        None if it is neither near nor at its first due. It costs as much as `find` with `near`.
        """
        wanted = replace(
            self.finder.wanted(record.id),
            entered_ms=due_ms(record.entered),
            due_ms=None if record.due is None else due_ms(record.due),
        )
        look = self.finder.look(wanted, near=True, live=True)
        return None if look.row is None else self.of(look.row)

    def in_back_off(self) -> Iterator[Row]:
        """The rows of all failed messages that wait for their next attempt, lazily.

        All rows of the queue are read, without bodies. Rows placed meanwhile are left out.
        """
        began_us = self._clock.now_us()
        found = self._store.indexed(self._register.name, range(NEVER))
        shards = scan.with_rows(self._store, found)
        pages = scan.pages(self._store, self._register.layout, shards, purpose="find", bodies=False)
        for row in chain.from_iterable(pages):
            has_failed = ids.birth_us(row.id) < began_us and last_error(row)[0] is not None
            if has_failed and self.of(row).where is Where.BACK_OFF:
                yield row

    def state(self, wanted: WantedMessage, look: SearchResult) -> State | None:
        """Where the searched message is; None if it is unknown."""
        if look.row is not None:
            return self.of(look.row)
        register, record = self._register, look.record
        if record is None and look.mark is not None:
            record = record_of(look.mark, register.settings.purged_before_us)
        if record is None or record.fate is None:
            # The message has not ended and was not found: it moved, is far off, or is lost.
            return None
        where = _FATES.get(record.fate, Where.ENDED)
        return State(
            wanted.id or record.id,
            register.name,
            where,
            moment_of(self._clock.now_ms()),
            since=record.ended,
            member=record.member or None,
            attempts=record.attempt,
            error=record.fate if where is Where.ENDED else None,
        )

    def of(self, row: Row) -> State:
        """Where the message of a row is; the queue's record has been read lately.

        Reads the members, unless the message is dead. If it is due, the lease of its shard is read,
        and earlier due rows are counted, as `depth` does. If it has a group, the rows before it are
        read.
        """
        state, failed_at = _as_waiting(row, moment_of(self._clock.now_ms()))
        due = moment_of(row.wanted_ms)
        if is_dead_queue(row.shard.queue) or row.shard.queue != self._register.name:
            attempts = died_after(row, row)
            return replace(state, where=Where.DEAD, since=failed_at or due, attempts=attempts)
        if self._register.is_purged(row):
            return replace(state, where=Where.PURGED, until=due)
        beats = heartbeats(self._store, self._register.members_key)
        return self._of_live(row, state, beats, failed_at, is_head=False)

    def _of_live(
        self,
        row: Row,
        state: State,
        beats: Mapping[str, Heartbeat],
        failed_at: datetime | None,
        *,
        is_head: bool,
    ) -> State:
        now_ms, due = due_ms(state.at), moment_of(row.wanted_ms)
        is_due = row.wanted_ms <= now_ms
        if is_due or row.claim is not None:
            run = run_of(row, beats)
            if run is not None:
                # A delivery counts in the row only once it has ended or is parked.
                return replace(
                    state,
                    where=Where.RUNNING,
                    member=run[0],
                    since=moment_of(run[1]),
                    attempts=row.attempt + (row.claim is None),
                )
        if is_due:
            return self._of_due(row, replace(state, since=due), beats, is_head=is_head)
        placed_ms = ids.birth_us(row.id) // 1_000
        later = replace(state, until=due)
        if row.claim is not None:
            holder = None if row.holder == "receipt" else row.holder
            # A claim of a group's message keeps the row's place, and does not record when it began.
            since = moment_of(placed_ms) if row.not_before_ms is None else None
            return replace(later, where=Where.RUNNING, member=holder, since=since)
        if row.not_before_ms is not None:
            return _as_edited(row, later, failed_at)
        if row.first is None or row.due_ms == row.order[0]:
            # The due is that of its put, or of a later command by key.
            return later
        return _as_moved(row, later, failed_at)

    def _of_due(
        self, row: Row, state: State, beats: Mapping[str, Heartbeat], *, is_head: bool
    ) -> State:
        register, layout = self._register, self._register.layout
        if (paused := _as_paused(row, state, register.settings)) is not None:
            return paused
        if self._is_passed(row):
            return replace(state, where=Where.PASSED)
        held = None if row.group is None else self._held(row, row.group, state, beats, is_head)
        if held is not None:
            return held
        if not beats and not self._store.notes(MEMBERS, (register.members_key,)):
            return replace(state, where=Where.NO_CONSUMER)
        open_ms = layout.end_ms(row.shard.minute) + layout.offset_ms
        if beats and all(beat.isolated for beat in beats.values()) and open_ms > due_ms(state.at):
            return replace(state, where=Where.ISOLATED, until=moment_of(open_ms))
        return self._of_limits(row, self._of_ready(row, state, beats), beats)

    def _of_limits(self, row: Row, state: State, beats: Mapping[str, Heartbeat]) -> State:
        """The state of a message that only limits of its queue, or busy handlers, hold back."""
        now_ms, limit = due_ms(state.at), queue_limit_of(self._register.settings.queue_limit)
        held = {of for beat in beats.values() for of in beat.limited}
        line = limit.line_of(row, now_ms)
        of = "late" if line == LATE else "task"
        # A message that waits for its turn may have been moved to about that.
        if line is not None and (of in held or row.due_ms > now_ms):
            ahead = self._before(row, lambda other: limit.line_of(other, now_ms) == line, now_ms)
            of_line, behind = limit.of_line(line), replace(state, ahead=ahead)
            if isinstance(line, str):
                return _as_limited(behind, of_line, "task")
            return _as_limited(behind, of_line, "queue", f"{limit.catch_up} for late messages")
        if "queue" in held:
            return _as_limited(state, limit, "queue")
        return state

    def _before(self, row: Row, is_alike: Callable[[Row], bool], now_ms: int) -> int:
        """How many due messages that are alike have waited for longer; 20,000 rows are read."""
        layout, count, read = self._register.layout, 0, 0
        shards = open_shards(self._store, self._register, now_ms + AWAY_MS)
        for page in scan.pages(self._store, layout, shards, purpose="find", bodies=False):
            count += sum(
                other.claim is None and (other.wanted_ms, other.order) < (row.wanted_ms, row.order)
                for other in page
                if is_alike(other)
            )
            read += len(page)
            if read > _ROWS_MAX:
                break
        return count

    def _held(
        self, row: Row, group: str, state: State, beats: Mapping[str, Heartbeat], is_head: bool
    ) -> State | None:
        """The state of a due message that its group holds back; None if nothing does."""
        if is_head:
            return None
        limit = limits_of(self._register.settings.group_limits).of(group)
        first, count, holder = self._of_group(row, limit.places, due_ms(state.at))
        if holder is None and beats and (limit.rates or 1 < limit.places <= count):
            return _as_limited(replace(state, ahead=count), limit, "group")
        before = first if holder is None and limit.places == 1 else holder
        if before is None:
            return None
        waiting, failed_at = _as_waiting(before, state.at)
        head = self._of_live(before, waiting, beats, failed_at, is_head=True)
        return replace(state, where=Where.BEHIND, behind=head.id, head=head, ahead=count)

    def _of_ready(self, row: Row, state: State, beats: Mapping[str, Heartbeat]) -> State:
        """The state of a due message: the holder of its shard, and the messages ahead of it."""
        lane = row.shard.lane
        if row.group is None:
            lease = self._store.locks([row.position]).get(row.shard)
        else:
            lease = self._store.lane_locks(row.shard.queue, [lane]).get(lane)
        if lease is None or lease.lock is None:
            busy = sum(beat.busy for beat in beats.values())
            ahead = self._ahead(row, self._register.layout.all_lanes(), state.at) - busy
            return replace(state, where=Where.READY, ahead=max(ahead, 0))
        member = member_of(lease.lock)
        beat = beats.get(member)
        if beat is None:
            ahead = self._ahead(row, [lane], state.at)
            return replace(state, where=Where.HELD, member=member, ahead=ahead)
        ahead = self._ahead(row, [*{*beat.lanes, lane}], state.at) - beat.busy
        held = replace(state, where=Where.HELD, member=member, ahead=max(ahead, 0))
        return replace(held, busy=beat.running, threads=beat.threads)

    def _ahead(self, row: Row, lanes: Sequence[int], at: datetime) -> int:
        """How many due rows of lanes precede a row: rows of earlier bands, or older in its own.

        In lanes for groups, only the older ones.
        """
        layout, now_ms = self._register.layout, due_ms(at)
        band = priority_of(row, layout)
        of_groups = set(filter(layout.is_of_groups, lanes))
        before = [n for n in lanes if n not in of_groups and layout.band_of(n) < band]
        beside = [n for n in lanes if n in of_groups or layout.band_of(n) == band]
        count = 0
        for some, until_ms in ((before, now_ms), (beside, row.due_ms - 1)):
            if not some or until_ms < 0:
                continue
            shards = open_shards(self._store, self._register, until_ms, lanes=some)
            filled = sorted({shard.minute for shard in shards})
            for n in range(0, len(filled), _COUNT_MINUTES):
                part = filled[n : n + _COUNT_MINUTES]
                wanted = Slice(layout.queue, part, some, -1, until_ms, _PAGE)
                count += sum(tally.rows for tally in self._store.count(wanted).values())
        # Among those due in the same millisecond, the ones put before it.
        same = Slice(
            layout.queue,
            [row.shard.minute],
            beside,
            row.due_ms - 1,
            row.due_ms,
            _PAGE,
            purpose="find",
            bodies=False,
        )
        return count + sum(other.order < row.order for other in scan.rows_of(self._store, same))

    # Groups ---------------------------------------------------------------------------------------

    def _is_passed(self, row: Row) -> bool:
        """True if no poll reads a row: its shard is sealed, and not listed by a lane for groups."""
        layout, (queue, minute, lane) = self._register.layout, row.shard
        if not layout.has_lane(lane):
            return True
        if minute > self._store.notes(LANES, (queue,)).get(lane, -1):
            return False
        # After the seals: a minute is listed before its lane's seal passes it.
        return minute not in scan.waiting_minutes(self._store, self._register).get(lane, {})

    def _of_group(self, row: Row, places: int, now_ms: int) -> tuple[Row | None, int, Row | None]:
        """Read the messages of a row's group that may hold the row back.

        Returns:
            The first message, None if that is the row itself or none was found among the lane's
            first rows; how many messages precede the row; the head that holds its group back for
            the longest, None if none does.
        """
        shards = open_shards(self._store, self._register, now_ms, lanes=[row.shard.lane])
        first, holder, count, heads, read, is_before = None, None, 0, 0, 0, True
        for page in scan.pages(
            self._store, self._register.layout, shards, purpose="find", together_max=1, bodies=False
        ):
            for one in page:
                is_row = one.position == row.position
                if one.group != row.group or (not is_row and self._register.is_purged(one)):
                    continue
                is_before = is_before and not is_row
                if is_before:
                    first, count = first or one, count + 1
                if heads < places and not is_row and one.holds_group(now_ms):
                    holder = max(holder or one, one, key=lambda head: head.ready_ms)
                heads += 1
                if not is_before and heads >= places:
                    return first, count, holder
            read += len(page)
            if read > _ROWS_MAX:
                break
        return first, count, holder


def _as_waiting(row: Row, at: datetime) -> tuple[State, datetime | None]:
    """The state of a message that waits, and when its last delivery failed or was snoozed."""
    error, failed_at, is_snoozed = _last_failure(row)
    state = State(
        row.message_id,
        served_queue(row.shard.queue),
        Where.WAITING,
        at,
        attempts=row.attempt,
        error=None if is_snoozed else error,
        reason=error if is_snoozed else None,
    )
    return state, failed_at


def _as_paused(row: Row, state: State, settings: Settings) -> State | None:
    """The state of a due message if its queue, task, key or group is paused; None if none is."""
    if settings.paused:
        return replace(state, where=Where.PAUSED)
    pause = queue_limit_of(settings.queue_limit).pause_of(row, due_ms(state.at))
    groups = None if row.group is None else limits_of(settings.group_limits).pause_of(row.group)
    if pause is None and groups is not None:
        pause = Pause("group", groups)
    if pause is None:
        return None
    until = moment_of(pause.until_ms) if pause.until_ms else None
    return replace(state, where=Where.PAUSED, limit=pause.names, limit_of=pause.of, until=until)


def _as_limited(
    state: State, limit: GroupLimit | QueueLimit, of: str, said: str | None = None
) -> State:
    """The state of a message that a limit holds back.

    Args:
        state: The state without the limit; its `ahead` are before the message.
        limit: The limit.
        of: Whose limit it is: `group`, `task` or `queue`.
        said: The limit as text; None for the text that it has by itself.
    """
    left_ms = wait_ms(limit.rates, state.ahead or 0)
    return replace(
        state,
        where=Where.LIMITED,
        until=moment_of(due_ms(state.at) + left_ms) if left_ms else None,
        limit=said or str(limit),
        limit_of=of,
    )


def _as_edited(row: Row, state: State, failed_at: datetime | None) -> State:
    """The state of a message of a group that is postponed in its place."""
    is_failed = bool(row.attempt) if failed_at is None else state.reason is None
    where = Where.BACK_OFF if is_failed else Where.SNOOZED
    return replace(state, where=where, since=failed_at)


def _as_moved(row: Row, state: State, failed_at: datetime | None) -> State:
    """The state of a message that is due later because a delivery failed or was snoozed."""
    if failed_at is None:
        # Damaged headers record no failure; a snoozed delivery does not count as an attempt.
        return replace(state, where=Where.BACK_OFF if row.attempt else Where.SNOOZED)
    placed_ms = ids.birth_us(row.id) // 1_000
    if abs(placed_ms - due_ms(failed_at)) > _FAILED_MS:
        return replace(state, where=Where.SNOOZED)
    where = Where.BACK_OFF if state.reason is None else Where.SNOOZED
    return replace(state, where=where, since=failed_at)


def run_of(row: Row, beats: Mapping[str, Heartbeat]) -> tuple[str, int] | None:
    """(member, begun at) of the run of a row; None if no member reports one.

    Args:
        row: The row of a message.
        beats: The heartbeats of the queue's members, as `heartbeats` reads them.
    """
    born_ms = ids.birth_us(row.id) // 1_000
    for member, beat in sorted(beats.items()):
        for message_id, begun_ms in beat.runs:
            # The run of a parked row began before its claim was placed.
            is_this = row.holder == member or begun_ms >= born_ms - _BEGUN_MS
            if message_id == row.message_id and is_this:
                return member, begun_ms
    return None


def _last_failure(row: Row) -> tuple[str | None, datetime | None, bool]:
    """Why the last delivery of a row failed or was snoozed, when, and True if it was snoozed.

    None, None and False if its headers are damaged.
    """
    try:
        return *last_error(row), is_snooze_reason(row)
    except StoreCorrupt:
        return None, None, False
