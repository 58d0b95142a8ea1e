"""The history of a run with indexes for the rules: by message, by process, by time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.lifecycle.fate import BEHIND_A_RUN
from shardq.model.ids import birth_us
from shardq.model.message import last_error
from shardq.model.shard import FIRST_GROUP_LANE, LANE_LEASE
from simulation.history import LATE_WRITER, is_tried
from simulation.plan import lease_ms, machine_of
from simulation.runs import is_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from collections.abc import Set as AbstractSet

    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from simulation.history import Delivery, Fork, History, Recorded, Written

QUEUE = "mail"
DEAD = f"{QUEUE}.dead"
STEWARD = "steward"
"""The process that makes the queue, and alters, purges and redrives it as people do."""
FAULT = "fault"
"""The rule that no world ends by an exception. Its breach shows nothing about other rules."""
HEALER_PREFETCH = 200
"""The prefetch of the consumers that start at the end of a run."""
_GIVEN_UP_US = 2_000_000
_RENEWED_AFTER = 0.75
"""A lease ends for its holder 2 s early, and is renewed after this share of the time before."""
TOLD_US = 5_000_000
"""How long it may take until every process knows of a purge."""
AHEAD_US = 2_000_000
COPY_US = 1_000_000
DRIFT_US = 16_000
"""How far a clock that is 200 ppm too fast runs ahead between two measurements."""
LOOKED_US = 1_100_000
"""How long before its hand-out a row may have been deleted: a careful reader looks for the row up
to a second before it records the attempt. Slow calls add up to a second."""
_SLOW_US = 1_000_000
_SET_US = 1_000
"""A due is in whole milliseconds, while a clock may be set between two."""
_ASKED_US = 1_500_000
"""How late a renewal of a lease may be sent if nothing is slow."""
_PAUSE_US = 5_000_000
"""The longest pause of a consumer between a failed call and its repeat."""
_SWEPT_US = 400_000
"""A row written later than this after its due may have to wait for the sweep of 5 s."""
LOOK_US = 3_000_000
"""The longest time from the last read of a shard to its seal if nothing is slow."""


@dataclass(frozen=True)
class Breach:
    """A rule that was broken, and how."""

    rule: str
    text: str
    token: int | None = None


class Lapse(NamedTuple):
    """A lease that its holder did not release itself: it ran out, or a fork released it.

    Attributes:
        process: The holder.
        since_us: When the lease was last renewed, or when a fork of the holder released it.
        until_us: When the shard was leased again, by the holder or another process.
        known_us: Until when the holder may believe that it has a lease that a fork released; 0: no
            fork did.
    """

    process: str
    since_us: int
    until_us: int
    known_us: int = 0


class Spent(NamedTuple):
    """An attempt that was counted, though no delivery began.

    Attributes:
        us: When it was counted.
        row_id: The row that counts it. Only rows that were moved from that row count it as well.
        what: Identifies the attempt; all moves of one claim have the same.
    """

    us: int
    row_id: bytes
    what: tuple[object, ...]


def leased_as(shard: Shard) -> Shard:
    """The shard whose lease is needed to read a shard: one for all minutes of a group lane."""
    return shard._replace(minute=LANE_LEASE) if shard.lane >= FIRST_GROUP_LANE else shard


class _ByLease(defaultdict):  # type: ignore[type-arg]
    """Lists by shard; all shards that are read under one lease share one list."""

    def __init__(self) -> None:
        super().__init__(list)

    def __getitem__(self, shard: Shard) -> list[Any]:
        found: list[Any] = super().__getitem__(leased_as(shard))
        return found


class _Lists(dict[int, list]):  # type: ignore[type-arg]
    """Lists by number. A missing number gives an empty list, which is not added."""

    def __missing__(self, _key: int) -> list[object]:
        return []


class Case:
    """The history of a run with indexes for the rules.

    Attributes:
        lease_us: The longest that a lease lasts.
        renewed_us: The longest time from one renewal of a lease to the next.
        asked_us: The shortest time from one renewal of a lease to the next.
        lapse_us: The shortest pause of a holder after which its lease may have run out.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        least_ms, most_ms = lease_ms(history.plan)
        self.lease_us = most_ms * 1_000
        self.renewed_us = round((self.lease_us - _GIVEN_UP_US) * _RENEWED_AFTER)
        lasts_us = least_ms * 1_000 - _GIVEN_UP_US
        self.asked_us = round(lasts_us * _RENEWED_AFTER)
        self.lapse_us = lasts_us - self.asked_us
        self._born_us: dict[bytes, int] = {}
        if history.sets:
            self._tell_true_times()
        self.causes: Counter[str] = Counter()
        self._lines: dict[bytes, dict[bytes, int]] = {}
        self.by_token: dict[int, list[Delivery]] = _Lists()
        self.place_of = {id(one): place for place, one in enumerate(history.deliveries)}
        self.ran_in: dict[Shard, list[Delivery]] = {}
        for one in history.deliveries:
            self.by_token.setdefault(one.token, []).append(one)
            self.ran_in.setdefault(leased_as(one.row.shard), []).append(one)
        self.crash_us = {name: us for us, name in history.crashes}
        self.freezes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for begun_us, until_us, name in history.freezes:
            self.freezes[name].append((begun_us, until_us))
        self.token_of = {i: token_of(w.row.body) for i, w in history.written.items()}
        self.rows: dict[int, list[bytes]] = _Lists()
        for row_id in (i for i, w in history.written.items() if not is_tried(w.row)):
            self.rows.setdefault(self.token_of[row_id], []).append(row_id)
        self.entries: dict[int, list[bytes]] = _Lists()
        for token, row_ids in self.rows.items():
            mine = (entry_of(history.written[i].row) for i in row_ids if self._is_mail(i))
            self.entries[token] = list(dict.fromkeys(mine))
        self._deadline_us = {m.name: round(m.deadline_s * 1e6) for m in history.plan.machines}
        self._callers = {m.name for m in history.plan.machines if m.role == "caller"}
        puts = (put for token, put in history.puts.items() if token not in history.runs)
        self.putters = {put.process for put in puts}
        self.unknown_rows: set[bytes] = set()
        self.unknown_moved: set[bytes] = set()
        self.unknown_moves: dict[int, list[int]] = _Lists()
        self.unknown_halves: dict[int, list[int]] = _Lists()
        self.unknown_burials: set[bytes] = set()
        self.shares = {row_id for row_id in history.written if self._is_share(row_id)}
        self._look_up_unknown()
        self.on_shard: dict[Shard, list[Written]] = defaultdict(list)
        for written in history.written.values():
            self.on_shard[written.row.shard].append(written)
        self.taken: dict[Shard, list[int]] = _ByLease()
        self.lease_events: dict[Shard, list[tuple[int, str, str]]] = _ByLease()
        self.leases_of: dict[Shard, list[tuple[int, str, str]]] = _ByLease()
        self.released: dict[Shard, list[int]] = _ByLease()
        for us, process, what, shard, _ in history.leases:
            self.lease_events[shard].append((us, process, what))
            if what in ("taken", "taken over"):
                self.taken[shard].append(us)
                self.leases_of[shard].append((us, process, what))
            elif what == "released":
                self.released[shard].append(us)
        self.lapses: dict[Shard, list[Lapse]] = _ByLease()
        for shard, lapse in self._lapses():
            self.lapses[shard].append(lapse)
        self.revived = {token: rows for token in self.rows if (rows := self._revived(token))}
        self.recorded = {(one.row_id, one.attempt): one.at_us for one in history.recorded}
        self.spent: dict[int, list[Spent]] = _Lists()
        for spent in (*self._recorded_in_vain(), *self._taken_in_vain()):
            self.spent.setdefault(self.token_of[spent.row_id], []).append(spent)
        self.copies = {token: pairs for token in self.rows if (pairs := self._copies(token))}
        self.dead = {token_of(row.body): row for row in history.dead}
        self.attempts = int(history.plan.settings["attempts"])
        self._visibility_us = int(history.plan.settings["visibility"][:-2]) * 1_000
        self.pause_us = min(_PAUSE_US, self._visibility_us // 4)
        self.looked_us = LOOKED_US + (_SLOW_US if history.plan.weather.get("slow") else 0)

    def _tell_true_times(self) -> None:
        """Replace dues on the machine's clock by the true times at which the clock showed them."""
        history = self.history
        for row_id, written in history.written.items():
            self._born_us[row_id] = history.planned_us(written)
            written.row = self._by_true_time(written.row, written.at_us)
        for one in history.deliveries:
            since_us = history.written[one.row.id].at_us
            one.row = self._by_true_time(one.row, since_us)
            one.until_us = one.until_us and history.due_us(one.until_us, one.begun_us)
        for put in history.puts.values():
            put.asked_us = history.due_us(put.asked_us, put.begun_us)
            if put.row is not None:
                put.row = self._by_true_time(put.row, put.begun_us)

    def _by_true_time(self, row: Row, since_us: int) -> Row:
        due_us = self.history.due_us(row.due_ms * 1_000, since_us)
        # The order of a group follows the dues that were asked for, so the origin keeps them.
        return row._replace(due_ms=-(-due_us // 1_000), origin_ms=row.order[0])

    def born_us(self, row_id: bytes) -> int:
        """When a row was planned."""
        return self._born_us.get(row_id) or birth_us(row_id)

    def planned_by_us(self, row_id: bytes) -> int:
        """The latest time at which a row may have been planned.

        After the machine's clock was set back, the times in new ids stand still until a process
        notices it.
        """
        born_us, at_us = self.born_us(row_id), self.history.written[row_id].at_us
        return at_us if self.is_set(born_us, at_us) else born_us

    def _look_up_unknown(self) -> None:
        """Find the writes whose outcome the writer did not learn, and which of them may duplicate.

        A put is repeated as the same row, an attempt as the same number, and a delete creates no
        row. So only a move, or the delete that is its second half, may duplicate a message. A
        caller's burial may, too: the message stays, and is buried as another row when the caller
        repeats it or the claim has ended. A consumer repeats a burial as the same row.
        """
        moved = set(self.history.came_from.values())
        for us, process, verb, about in self.history.unknown:
            # A move of surplus is repeated until it is done, and no other process has the row
            # meanwhile. It duplicates a message only if the first move took effect late.
            mine = self.shares.intersection(about)
            mine = {i for i in mine if self.history.written[i].process != LATE_WRITER}
            mine |= {self.history.came_from[i] for i in mine}
            ids = [i for i in about if i not in mine]
            if verb == "delete":
                for token in {self.token_of[i] for i in moved.intersection(ids)}:
                    self.unknown_halves.setdefault(token, []).append(us)
                continue
            self.unknown_rows.update(ids)
            if verb == "move" or (verb == "insert" and any(map(self._is_moved, ids))):
                self.unknown_moved.update(ids)
                for token in {self.token_of[i] for i in ids if i in self.token_of}:
                    self.unknown_moves.setdefault(token, []).append(us)
            elif verb == "insert" and self.is_caller(process):
                self.unknown_burials.update(i for i in ids if self._is_dead(i))

    def _is_share(self, row_id: bytes) -> bool:
        """True if a row was moved as surplus: its mover had not begun it, and repaired nothing."""
        new = self.history.written[row_id]
        source = self.source_of(new)
        if source is None or not new.sender or new.sender in (STEWARD, *self.putters):
            return False
        rows = source.row, new.row
        if last_error(new.row)[0] == BEHIND_A_RUN and new.row.error != source.row.error:
            return False
        if any(r.claim or r.group or r.shard.queue != QUEUE or r.key != new.row.key for r in rows):
            return False
        is_late = new.row.since_ms == source.row.since_ms and self.is_late(source, new)
        if is_late or self.is_brought_to_now(source, new):
            # This is the move of a late row to now, by its writer or by a reader that found it.
            return False
        planned_us = self.planned_by_us(row_id) + DRIFT_US
        return not any(
            (one.row.id, one.process) == (source.row.id, new.sender) and one.begun_us <= planned_us
            for one in self.by_token[self.token_of[row_id]]
        )

    def is_late(self, source: Written, new: Written) -> bool:
        """True if `new` was planned when a write into the minute of `source` was late already."""
        return self.late_us(source.row.shard.minute) < self.born_us(new.row.id)

    def is_repair(self, source: Written, new: Written) -> bool:
        """True if the writer of a row that came too late moved it: `new` was made of `source`."""
        shard = source.row.shard
        is_its = source.sender == new.sender and self.is_late(source, new)
        return shard.queue == QUEUE and (is_its or self.is_brought_to_now(source, new))

    def is_brought_to_now(self, source: Written, new: Written) -> bool:
        """True if a run came too late for the next sweep, and its putter moved it to now."""
        planned_us = self.born_us(new.row.id) + DRIFT_US
        is_late = is_run(source.row) and source.row.due_ms * 1_000 < planned_us - _SWEPT_US
        return is_late and any(
            us <= planned_us and process == new.sender
            for us, process in self.history.inserted.get(source.row.id, ())
        )

    def _is_mail(self, row_id: bytes) -> bool:
        return self.history.written[row_id].row.shard.queue == QUEUE

    def _is_moved(self, row_id: bytes) -> bool:
        """True if a row was written in place of another."""
        written = self.history.written.get(row_id)
        return written is not None and written.row.first is not None

    def _is_dead(self, row_id: bytes) -> bool:
        """True if a row was written into the dead-letter queue."""
        written = self.history.written.get(row_id)
        return written is not None and written.row.shard.queue == DEAD

    def written(self, token: int) -> list[Written]:
        """All rows that a message ever had."""
        return [self.history.written[row_id] for row_id in self.rows[token]]

    def rows_at(self, token: int, us: int) -> int:
        """How many rows a message had at a time."""
        return sum(written.is_there(us) for written in self.written(token))

    def deaths(self, token: int) -> list[Written]:
        """The rows that a message ever had in the dead-letter queue."""
        return [w for w in self.written(token) if w.row.shard.queue == DEAD]

    def _revived(self, token: int) -> list[Written]:
        """The rows by which a message was put back from the dead-letter queue."""
        died_us = min((w.at_us for w in self.deaths(token)), default=1 << 62)
        return [
            w
            for w in self.written(token)
            if w.row.shard.queue == QUEUE and w.row.first is None and w.at_us > died_us
        ]

    def came_back_us(self, token: int, until_us: int) -> int:
        """When a message was last put back from the dead-letter queue until then; 0: never."""
        back_us = (w.at_us for w in self.revived.get(token, ()) if w.at_us <= until_us)
        return max(back_us, default=0)

    def has_come_back(self, token: int, after_us: int, until_us: int) -> bool:
        """True if a message was put back from the dead-letter queue in a stretch of time."""
        return any(after_us < w.at_us <= until_us for w in self.revived.get(token, ()))

    def put_back_together(self, token: int, row_id: bytes, other_id: bytes) -> bool:
        """True if two redrives may have put back the same dead row, each as another row.

        Redrives are to be run one at a time: two may read a dead row before either deletes it.
        """
        planned_us = self.born_us(row_id), self.born_us(other_id)
        return any(all(map(dead.is_there, planned_us)) for dead in self.deaths(token))

    def may_be_purged(self, entered_us: int, us: int) -> Iterator[bool]:
        """True for each purge that may have deleted, by `us`, what entered at `entered_us`."""
        for purge in self.history.purges:
            # Only the time of the call is known for a purge without an answer.
            now_us = self.history.wall_us(purge.ended_us or us)
            before_us = purge.before_us or now_us + DRIFT_US
            yield entered_us < before_us and purge.begun_us <= us

    def is_purged(self, token: int, us: int) -> bool:
        """True if a purge may delete all rows that a message has at a time."""
        # Rows that were put back from the dead-letter queue after that time do not count.
        later = {entry_of(w.row) for w in self.revived.get(token, ()) if w.at_us > us}
        entered_us = next((birth_us(i) for i in self.entries[token][::-1] if i not in later), 0)
        return any(self.may_be_purged(entered_us, us))

    def taken_over(self, one: Delivery) -> int:
        """When the process of a delivery took over the lease of a dead holder; 0: it did not."""
        events = [e for e in self.leases_of[one.row.shard] if e[0] <= one.begun_us]
        us, process, what = events[-1] if events else (0, "", "")
        return us if what == "taken over" and process == one.process else 0

    def lease_ended(self, shard: Shard, taken_us: int) -> int:
        """When the lease ran out that a shard had before it was taken over at `taken_us`."""
        lapses = (lapse for lapse in self.lapses[shard] if lapse.until_us == taken_us)
        return max((lapse.since_us + self.lease_us for lapse in lapses), default=taken_us)

    def moved_between(self, token: int, after_us: int, until_us: int) -> list[Written]:
        """Rows of a message that were written in a stretch of time."""
        return [one for one in self.written(token) if after_us < one.at_us <= until_us]

    def claims_over(self, token: int, after_us: int, until_us: int) -> list[Written]:
        """Claims of a message that have come due in a stretch of time."""
        return [
            one
            for one in self.written(token)
            if one.row.claim is not None and after_us <= one.row.due_ms * 1_000 <= until_us
        ]

    def last_half(self, claim: Written) -> tuple[int, int]:
        """When a handler's claim is to be moved on: in the last half of its visibility."""
        due_us = claim.row.due_ms * 1_000
        return due_us - self._visibility_us // 2, due_us

    def spent_between(
        self, token: int, after_us: int, until_us: int, row_id: bytes | None = None
    ) -> int:
        """How many attempts were spent in a stretch of time without a delivery.

        Args:
            row_id: The row that counts these attempts; None: any row of the message.
        """
        line = self._followed_us(row_id) if row_id is not None and self.spent[token] else {}
        first: dict[tuple[object, ...], int] = {}
        for spent in self.spent[token]:
            # An attempt counted on a row after its move was planned is not counted by the new row.
            if row_id is None or spent.us < line.get(spent.row_id, 0):
                first[spent.what] = min(spent.us, first.get(spent.what, spent.us))
        return sum(after_us < us <= until_us for us in first.values())

    def line_of(self, row_id: bytes) -> AbstractSet[bytes]:
        """A row, and all rows before it in its chain of moves."""
        return self._followed_us(row_id).keys()

    def _followed_us(self, row_id: bytes) -> dict[bytes, int]:
        """Each row of `line_of` -> when the next row of the chain was planned."""
        if (known := self._lines.get(row_id)) is not None:
            return known
        line = self._lines[row_id] = {}
        at, next_us = row_id, 1 << 62
        while at:
            line[at] = next_us
            next_us = self.born_us(at)
            at = self.history.came_from.get(at, b"")
        return line

    def source_of(self, written: Written) -> Written | None:
        """The row in whose place this one was written; None if this one was put."""
        return self.history.written.get(self.history.came_from.get(written.row.id, b""))

    def is_recorded(self, one: Delivery) -> bool:
        """True if the attempt of a delivery was recorded in its row before the delivery began."""
        return self.recorded.get((one.row.id, one.attempt), 1 << 62) <= one.begun_us

    def forgotten(self, token: int) -> int:
        """How many attempts were recorded in a row after its move was planned, which lost them."""
        return sum(
            attempt > new.row.attempt and self.born_us(new.row.id) < us < new.at_us
            for new in self.written(token)
            for (row_id, attempt), us in self.recorded.items()
            if row_id == self.history.came_from.get(new.row.id)
        )

    def _recorded_in_vain(self) -> Iterator[Spent]:
        """Attempts that were recorded, though their deliveries did not begin."""
        begun = {(one.row.id, one.attempt) for one in self.history.deliveries}
        for one in self.history.recorded:
            if self._is_claimed_as_well(one):
                begun.add((one.row_id, one.attempt))
        for (row_id, attempt), us in self.recorded.items():
            if (row_id, attempt) not in begun:
                yield Spent(us, row_id, (row_id, attempt))

    def _is_claimed_as_well(self, one: Recorded) -> bool:
        """True if another process holds the shard by then, and its claim has the same number.

        The holder may have read the row before the attempt was recorded. Then the delivery to its
        caller is the only one of that number.
        """
        shard = self.history.written[one.row_id].row.shard
        taken = [(us, process) for us, process, _ in self.leases_of[shard] if us <= one.at_us]
        holder = max(taken, default=(0, ""))[1]
        return holder != one.process and any(
            claim.row.claim is not None
            and claim.row.attempt == one.attempt
            and claim.sender == holder
            and claim.at_us >= one.at_us
            and self.is_caller(holder)
            and self.history.came_from.get(claim.row.id) == one.row_id
            for claim in self.written(self.token_of[one.row_id])
        )

    def _lapses(self) -> Iterator[tuple[Shard, Lapse]]:
        """Every lease of the queue that ran out, or that a fork of its holder released."""
        held: dict[Shard, tuple[str, int]] = {}
        forks = {(fork.us, fork.shard): fork for fork in self.history.forks}
        forked: dict[Shard, Fork] = {}
        for us, process, what, shard, _ in self.history.leases:
            if shard.queue != QUEUE:
                continue
            if what == "released":
                del held[shard]
                if (us, shard) in forks:
                    forked[shard] = forks[us, shard]
                continue
            if what != "renewed" and shard in held:
                yield shard, Lapse(*held[shard], us)
            if shard in forked:
                fork = forked.pop(shard)
                yield shard, Lapse(fork.process, fork.us, us, self.noticed_us(fork))
            held[shard] = process, us
        for shard, (process, us) in held.items():
            if us + self.lease_us < self.history.ended_us:
                yield shard, Lapse(process, us, self.history.ended_us)

    def _taken_in_vain(self) -> Iterator[Spent]:
        """Claims that reached no caller: it died, or got no answer, or an answer too late."""
        # Only callers: a handler that gets the row when its claim has ended counts one more.
        had = {one.row.id for one in self.history.deliveries if one.kind == "receive"}
        # A claim in place that reached no caller was undone by an edit, and its attempt with it.
        had |= {
            claim.row.id
            for written in self.history.written.values()
            if written.is_edit
            and written.row.claim is None
            and (claim := self.source_of(written)) is not None
            and written.row.attempt < claim.row.attempt
        }
        for token, row_ids in self.rows.items():
            for row_id in row_ids:
                written = self.history.written[row_id]
                name = written.process
                # The sender of a write that is applied late does not know its outcome.
                is_late = name == LATE_WRITER
                slack_us = self.history.slack_us.get(name, 0)
                is_over = written.row.due_ms * 1_000 <= written.at_us + slack_us
                if (
                    written.row.claim is not None
                    and self.is_caller(written.sender)
                    and not self._is_extended(written, had)
                    and (
                        is_late
                        or is_over
                        or name in self.crash_us
                        or self.unknown_moves[token]
                        or self.troubled(name, written.at_us, written.at_us + self.lease_us)
                        or self.frozen(name, written.at_us, written.row.due_ms * 1_000)
                    )
                ):
                    # A claim that came late was moved to now: still the same claim.
                    yield Spent(written.at_us, row_id, self._claim_of(written))

    def _is_extended(self, written: Written, had: set[bytes]) -> bool:
        """True if a claim, or an earlier claim that was extended to it, is held by a caller.

        A claim after a snooze or a retry is no extension, even if it has the same number.
        """
        at: Written | None = written
        while at is not None and at.row.claim is not None:
            if at.row.id in had and self._claim_of(at) == self._claim_of(written):
                return True
            at = self.source_of(at)
        return False

    def _claim_of(self, written: Written) -> tuple[str, int, int]:
        """What identifies a claim of a message: sender, attempt, the last return from the dead."""
        token = self.token_of[written.row.id]
        return written.sender, written.row.attempt, self.came_back_us(token, written.at_us)

    def _copies(self, token: int) -> list[tuple[Written, Written]]:
        """Pairs of rows of a message that existed at once, for longer than a move takes."""
        written = sorted(self.written(token), key=lambda one: one.at_us)
        # Between the two halves of a move the end may be recorded: one more call.
        both_us = COPY_US + (_SLOW_US if "history" in self.history.plan.settings else 0)
        return [
            (one, other)
            for one, other in pairwise(written)
            if (one.deleted_us or 1 << 62) > other.at_us + both_us
            or self._is_half_moved(one, other)
        ]

    def _is_half_moved(self, old: Written, new: Written) -> bool:
        """True if a caller wrote the new row of a move, and its delete of the old one failed."""
        failed = self.history.failed.get(new.sender, ())
        return (
            self.is_caller(new.sender)
            and self.source_of(new) is old
            and old.deleted_by != new.sender
            and any(new.at_us <= us and old.is_there(us) for us in failed)
        )

    def is_caller(self, process: str) -> bool:
        """True if a process receives messages, and settles them by receipt."""
        return machine_of(process) in self._callers

    def crashed(self, process: str, after_us: int, until_us: int) -> bool:
        us = self.crash_us.get(process)
        return us is not None and after_us <= us <= until_us

    def late_us(self, minute: int) -> int:
        """The time after which whoever writes into a minute must repair the late row."""
        settings = self.history.plan.settings
        minute_ms, offset_ms = (int(settings[name][:-2]) for name in ("minute", "offset"))
        return self.history.due_us(((minute + 1) * minute_ms + offset_ms // 2) * 1_000, 0)

    def backoff_us(self, attempt: int) -> int:
        """How long a message waits after a failed attempt if its handler names no delay."""
        settings = self.history.plan.settings
        first_ms, most_ms = int(settings["backoff"][:-2]), int(settings["backoff_max"][:-1]) * 1_000
        return min(first_ms << max(attempt - 1, 0), most_ms) * 1_000

    def _is_hindered(self, lapse: Lapse) -> bool:
        """True if a cause is known for a lapse: a crash, a pause, slow or failed calls, a fork.

        A stop with failed calls is one, too: a process that cannot store its outcomes releases no
        lease.
        """
        name, over_us = lapse.process, lapse.since_us + self.lease_us
        return bool(lapse.known_us) or (
            self.crashed(name, lapse.since_us, over_us)
            or self.frozen(name, lapse.since_us, over_us)
            # Once most of the lease is over, its holder tries to renew it again and again.
            or self._waits(name, lapse.since_us + self.asked_us, over_us)
            or self._stopped_in_vain(name, lapse.since_us, over_us)
        )

    def _stopped_in_vain(self, process: str, after_us: int, until_us: int) -> bool:
        """True if a process ended in a stretch of time, and a call failed while it stopped."""
        begun_us, ended_us = self.history.stops.get(process, (0, None))
        failed = self.history.failed.get(process, ())
        return (
            ended_us is not None
            and after_us <= ended_us <= until_us
            and any(begun_us <= us <= ended_us for us in failed)
        )

    def noticed_us(self, fork: Fork) -> int:
        """Until when a holder may hand out under a lease that a fork of it released.

        Its next renewal is refused, long before the lease would end. If the store or a pause delays
        the renewal, the holder stops when the lease would end.
        """
        over_us = fork.us + self.lease_us
        asked_us = fork.us + self.renewed_us + _ASKED_US
        if not self.kept_up(fork.process, fork.us, asked_us):
            over_us = asked_us
        return min(fork.noticed_us or over_us, over_us)

    def is_set(self, after_us: int, until_us: int) -> bool:
        """True if the machine's clock was set in a stretch of time."""
        return any(after_us <= us <= until_us + _SET_US for us, _ in self.history.sets)

    def is_forked(self, shards: Collection[Shard], begun_us: int, until_us: int) -> bool:
        """True if two processes may have read one of these shards, because a fork released it."""
        leased = {leased_as(shard) for shard in shards}
        return any(
            fork.shard in leased and fork.us <= until_us and self.noticed_us(fork) >= begun_us
            for fork in self.history.forks
        )

    def frozen(self, process: str, after_us: int, until_us: int) -> bool:
        """True if a process stood still for long in a stretch of time."""
        return any(
            min(end, until_us) - max(begun, after_us - self.lease_us) >= self.lapse_us
            or end > until_us
            for begun, end in self.freezes.get(process, ())
            if begun <= until_us and end >= after_us
        )

    def stood_still(self, process: str, after_us: int, until_us: int) -> bool:
        """True if a process stood still at all in a stretch of time."""
        freezes = self.freezes.get(process, ())
        return any(begun <= until_us and end >= after_us for begun, end in freezes)

    def troubled(self, process: str, after_us: int, until_us: int) -> bool:
        """True if failures of the store may have kept a process from renewing its leases."""
        troubles = self.history.troubles.get(process, [])
        at = bisect_left(troubles, after_us - self.lease_us)
        return at < len(troubles) and troubles[at] <= until_us

    def kept_up(self, process: str, since_us: int, until_us: int) -> bool:
        """True if a process stood still in a stretch of time, or had a failed or slow call."""
        return self._waits(process, since_us, until_us) or any(
            end_us >= since_us and begun_us <= until_us
            for begun_us, end_us in self.freezes.get(process, ())
        )

    def _waits(self, process: str, since_us: int, until_us: int) -> bool:
        """True if in a stretch of time a call of a process failed or was slow."""
        # A failed call may have waited for its answer until the timeout.
        timeout_us = self.history.plan.weather["timeout_us"]
        failed = self.history.failed.get(process, ())
        return any(since_us - timeout_us <= us <= until_us for us in failed) or any(
            end_us >= since_us and begun_us <= until_us
            for begun_us, end_us in self.history.waits.get(process, ())
        )

    def ran_out(
        self, token: int, since_us: int, until_us: int, row_id: bytes | None = None
    ) -> Iterator[Lapse]:
        """Leases of the shards of a message's rows that ran out in a stretch of time.

        Only leases of processes that had the message, and whose lapse has a known cause.

        Args:
            row_id: Only this row, and rows that were moved from it, count; None: all rows.
        """
        for shard in {
            written.row.shard
            for written in self.written(token)
            if row_id is None or row_id in self.line_of(written.row.id)
        }:
            for lapse in self.lapses[shard]:
                if (
                    since_us <= lapse.until_us <= until_us
                    and self._had(token, lapse.process, until_us)
                    and self._is_hindered(lapse)
                ):
                    yield lapse

    def _had(self, token: int, process: str, until_us: int) -> bool:
        """True if a process has handed out, moved or removed a message until a time."""
        return any(
            one.process == process and one.begun_us <= until_us for one in self.by_token[token]
        ) or any(
            (process == written.sender and written.at_us <= until_us)
            or (process == written.deleted_by and (written.deleted_us or 0) <= until_us)
            for written in self.written(token)
        )

    def interrupted(self, one: Delivery) -> bool:
        """True if a handler still ran at the deadline of its process's stop, so its row was parked.

        An outcome after the deadline may not be stored.
        """
        begun_us, end_us = self.history.stops.get(one.process, (0, None))
        if one.kind != "handler" or end_us is None:
            return False
        over_us = begun_us + self.deadline_us(one.process)
        return one.begun_us <= end_us and (one.ended_us is None or one.ended_us >= over_us)

    def deadline_us(self, process: str) -> int:
        """How long a process waits for its handlers when it is asked to stop."""
        return self._deadline_us.get(machine_of(process), 0)

    def stopped(self, process: str, after_us: int, until_us: int) -> bool:
        stop = self.history.stops.get(process)
        return stop is not None and after_us - self.lease_us <= stop[0] <= until_us


def entry_of(row: Row) -> bytes:
    """The id by which a message entered its queue: that of its first row."""
    return row.first or row.id


def token_of(body: bytes) -> int:
    return int(body.split(b"|", 1)[0])
