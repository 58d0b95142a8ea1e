"""Planted bugs: each is a small patch of shardq, or of the simulated store's client.

If the checker does not find one, the checker is too weak or the worlds are too kind.
"""

from __future__ import annotations

import inspect
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simulated.client import SimulatedStore

from shardq.clock import SystemClock
from shardq.engine.deliverer import Deliverer
from shardq.engine.engine import Engine
from shardq.engine.groups.lane import Group
from shardq.engine.groups.room import GroupLanes
from shardq.engine.groups.slow import SlowRates
from shardq.engine.groups.waiting import WaitingList
from shardq.engine.handing.care import Care
from shardq.engine.handing.starts import Starts
from shardq.engine.handing.tasks import TaskLines
from shardq.engine.leases.lease import MemberLeases
from shardq.engine.members.sharing import Sharing
from shardq.engine.reading.intake import Intake
from shardq.engine.reading.lane import Lane
from shardq.engine.reading.memory import Memory
from shardq.engine.reading.pages import Pages
from shardq.engine.reading.reader import Reader
from shardq.engine.reading.sweeper import Sweeper
from shardq.engine.storing.discards import Discards
from shardq.engine.storing.outbox import Outbox
from shardq.inspection import audit
from shardq.lifecycle import planner, pointers
from shardq.lifecycle.forwarding import Forwarder
from shardq.lifecycle.keyed import KeyedCommands
from shardq.lifecycle.keyedputs import KeyedPuts
from shardq.lifecycle.planner import Planner
from shardq.lifecycle.pointers import KeyPointers
from shardq.lifecycle.producer import Producer
from shardq.lifecycle.receipts import Receipts
from shardq.lifecycle.settle import Settler
from shardq.model import message, settings, times
from shardq.model.limits import QueueLimit
from shardq.model.shard import Layout
from shardq.records.keychanges import KeyChanges
from shardq.records.keys import MessageKeys
from shardq.records.membership import Membership
from shardq.records.register import Register
from shardq.records.shares import Shares
from shardq.records.standing import View
from shardq.schedules.firing.firing import ScheduleFiring
from shardq.schedules.schedule import Book
from shardq.schedules.stored import StoredSchedule
from shardq.schedules.table import ScheduleTable
from shardq.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

Edits = tuple[tuple[Any, str, str, str], ...]
"""Per edit: owner, name of its function, a piece of the source, and the replacement."""

MUTANTS: dict[str, Edits] = {
    "a move deletes before it inserts": (
        (
            SimulatedStore,
            "_move_large",
            "self._insert([move.new for move in moves])\n"
            '    with begun("the new rows are written"):\n'
            "        self._delete([move.old for move in moves])",
            "self._delete([move.old for move in moves])\n"
            "    self._insert([move.new for move in moves])",
        ),
    ),
    "a late write is not repaired": (
        (Settler, "repair", "if not asked:", "if True:"),
    ),
    "a shard is sealed without its sweep": (
        (Sweeper, "_empty_until", "if is_over or not self._is_drained(lane, minute)", "if 0 > self._read_to(lane)"),
        (Sweeper, "sealable", "last = last if lane.quiet else min(last, self._read_to(lane))", "pass"),
    ),
    "a late move is not repaired": (
        (Settler, "carry_out", "self.repair([move.new for move in moves])", "{}"),
    ),
    "late messages of a batch are not repaired": (
        (Producer, "_after_chunk", "self._after_insert(chunk, oldest)", "self._ledger.is_on and self._ledger.enter(chunk)"),
    ),
    "a retried write has a new write time": (
        (SimulatedStore, "_insert", "self.written_us(row)", "self._scheduler.now_us"),
    ),
    "a delete has the time of its consumer's clock": (
        (SimulatedStore, "_delete", "at_us[one.shard]", "self._process.wall_us()"),
    ),
    "a delete takes all that is due before": (
        (
            SimulatedStore,
            "_delete",
            "self._cells.delete(one, at_us[one.shard])",
            "self._cells.delete_range(one.shard, one.due_ms, at_us[one.shard])",
        ),
    ),
    "a lease is counted from its answer": (
        (MemberLeases, "renew", ".renew(sent, ttl_ms", ".renew(self._clock.boot_us(), ttl_ms"),
    ),
    "a lease is renewed after its deadline": (
        (
            MemberLeases,
            "renew",
            "kept = self._store.renew(due, ttl_ms)",
            "kept = set(self._store.renew(due, ttl_ms))\n"
            "    gone = dict.fromkeys([s for s in due if s not in kept], '?')\n"
            "    told = self._store.take(gone, lock='?', holder='?', window=0, ttl_ms=ttl_ms)\n"
            "    for shard, state in told.items():\n"
            "        if state.lock is None:\n"
            "            ours = {'lock': due[shard], 'holder': self.holder, 'window': state.window or 0}\n"
            "            self._store.take({shard: state.holder}, ttl_ms=self.ttl_ms, **ours)\n"
            "            kept.add(shard)",
        ),
    ),
    "a dead member counts for a minute": (
        (Membership, "beat", "else _TTL_MS", "else 6 * _TTL_MS"),
    ),
    "a lost lease is kept": (
        (MemberLeases, "renew", "[self._held.pop(shard)", "[self._held[shard]"),
        (MemberLeases, "renew", "lease.deadline_us = 0", "lease.renew(sent, self.ttl_ms * 1_000)"),
        (MemberLeases, "renew", "return lost", "return []"),
    ),
    "a lease that a fork released is kept until its time is over": (
        (MemberLeases, "renew", "if shard not in kept]", "if shard not in kept and not self.is_valid(self._held[shard])]"),
    ),
    "a clock that is set is not noticed": (
        (SystemClock, "_compare", "self._note(before, by_us)", "pass"),
    ),
    "nobody looks behind the seals of a clock that was ahead": (
        (Sweeper, "look_behind_seals", "now_us = until_us = self._clock.boot_us()", "return"),
    ),
    "leases run out by the machine's clock": (
        (SqliteStore, "_now", "self._machine_us(), self._boot_time()", "self._machine_us(), self._boot_time()\n    boot_us = now_us"),
    ),
    "an unknown LWT is taken for a refusal": (
        (
            SimulatedStore,
            "_decide",
            "for pause_us in _PAUSES_US:",
            "decided.update({k: LeaseState('?') if verb == 'take' else False for k in undecided})\n"
            "    undecided = {}\n"
            "    for pause_us in _PAUSES_US:",
        ),
    ),
    "an exception acks": (
        (Deliverer, "_handle", "return self._judged(one, message, error)", "return ACKED"),
    ),
    "a shutdown spends an attempt": (
        (Engine, "_close", "park_all(counted=False)", "park_all(counted=True)"),
    ),
    "a snooze spends an attempt": (
        (planner, "uncounted", "delivery - 1", "delivery"),
    ),
    "a group's lane may be negative": (
        (Layout, "group_lane", "% self.group_lanes", "% self.group_lanes - self.group_lanes"),
    ),
    "what is handed out is forgotten": (
        (Memory, "begin", "self.begun += 1", "self.begun += 1\n    self.known.pop(one.row.id)"),
    ),
    "a claim is handed out early": (
        (Reader, "look_ahead", "if row.claim is None", "if row"),
        (Reader, "_read_current", "or row.claim is None", "or row"),
        (Care, "begin", "if not self._is_there(one):", "if one.careful and not self._is_there(one):"),
    ),
    "a careful window is ignored": (
        (MemberLeases, "_hold", "1_000, careful, now_ms)", "1_000, 0, now_ms)"),
    ),
    "a head is handed out before its time": (
        (GroupLanes, "again", "max(row.ready_ms, after_ms)", "self._clock.now_ms()"),
        (GroupLanes, "_renew", "if row.ready_ms > now_ms or", "if"),
    ),
    "the next of a group begins before the one before has ended": (
        (
            Deliverer, "deliver", "outcome = self._handle(one)",
            "if one.grouped:\n"
            "            engine.groups.ended(one)\n"
            "        outcome = self._handle(one)",
        ),
    ),
    "a group lane is sealed over a minute that is not listed": (
        (WaitingList, "pass_by", "return first is None or", "return True or"),
    ),
    "several of a group are claimed last first": (
        (Group, "behind", "list(wanted)", "list(wanted)[::-1]"),
    ),
    "what is due together goes last first": (
        (Group, "_put", "place > self._end", "place[0] > self._end[0]"),
        (Group, "_put", "self._find(place)", "self._find((place[0], b''))"),
    ),
    "a cursor passes now": (
        (Reader, "_read_current", "lane.advance(until_ms)", "lane.advance(until_ms + 5_000)"),
    ),
    "a due is rounded down": (
        (times, "due_ms", "- (-since.microseconds // 1_000)", "+ since.microseconds // 1_000"),
    ),
    "a shutdown releases before it parks": (
        (
            Engine,
            "_close",
            "self.outbox.park_all(counted=False)",
            "self.leases.release([lease.shard for lease in self.leases.held()])\n"
            "    self._clock.sleep(3.0)\n"
            "    self.outbox.park_all(counted=False)",
        ),
    ),
    "a move does not look first": (
        (
            Settler,
            "carry_out",
            "self._store.find([move.old for move in moves])}",
            "self._store.find([move.old for move in moves])}\n"
            "    there = {move.old: move.new for move in moves} | there",
        ),
    ),
    "a parked claim is not moved on": (
        (Outbox, "park_overdue", "self._is_half_over(one.row.ready_ms)", "False"),
    ),
    "what was parked late is not followed": (
        (Outbox, "_park", "repaired.get(plan.new.id, plan.new)", "plan.new"),
    ),
    "nothing is swept": (
        (Sweeper, "sweep", "self._sweep_slices(", "(lambda *_: _Swept(0, set()))("),
        (Sweeper, "_sweep_sealed", "self._sweep_minute(", "(lambda *_: _Swept(0, set()))("),
        (Sweeper, "look_back", "now_ms = self._clock", "return\n    now_ms = self._clock"),
        (Reader, "_read_current", "if back_ms:", "if False:"),
    ),
    "sealed shards are never looked at again": (
        (Sweeper, "_sweep_sealed", "self._sweep_minute(", "(lambda *_: _Swept(0, set()))("),
    ),
    "a lane's new reader looks at no minute that was sealed before": (
        (Lane, "fresh", "sealed - rung - back", "sealed - back"),
    ),
    "fewer lanes are read as soon as fewer are written": (
        (settings, "layout_of", "lanes_read=settings.lanes_read", "lanes_read=settings.lanes_written"),
    ),
    "a purge goes by the due": (
        (Intake, "_without_purged", "row.entered_us < before_us", "row.due_ms * 1_000 < before_us"),
    ),
    "a hand-out does not look at its lease": (
        (Deliverer, "deliver", "if one.begun_us >= one.lease.deadline_us:", "if False:"),
        (Deliverer, "_may_begin", "now_us >= one.lease.deadline_us", "False"),
    ),
    "what is put again is a new row": (
        (Producer, "_again", "return message._row",
         "return message._row._replace(id=row_ids.next(self._clock.now_us()))"),
    ),
    "an ack that fails is forgotten": (
        (Outbox, "_take_back", "self._acks += acks", "self._conclude(acks)"),
    ),
    "a retry is due at once": (
        (Planner, "settle", "now_ms() + (outcome.delay_ms or 0)", "now_ms()"),
    ),
    "a message dies one attempt early": (
        (planner, "decided", "is_spent(attempt)", "is_spent(attempt + 1)"),
    ),
    "a burial that timed out is planned anew": (
        (
            Outbox,
            "_flush_moves",
            "gone, repaired = self._settler",
            "plan = self._planner.settle\n"
            "    self._moves = [\n"
            "        p._replace(move=plan(p.one.row, Outcome(p.fate), p.one.attempt).move)\n"
            "        if p.move.new.shard.queue != p.move.old.shard.queue else p\n"
            "        for p in self._moves\n"
            "    ]\n"
            "    gone, repaired = self._settler",
        ),
    ),
    "a careful row is not looked at again": (
        (Care, "begin", "if not self._is_there(one):", "if False:"),
    ),
    "a claim is not looked at again": (
        (Care, "begin", "if not self._is_there(one):", "if one.careful and not self._is_there(one):"),
    ),
    "rows of a group that were stored late are left to the sweeps": (
        (Reader, "with_missed", "if not grouped:", "if True:"),
    ),
    "poison is not counted": (
        (Care, "begin", "row.attempt + 1", "row.attempt"),
    ),
    "a row that has ended is handed out": (
        (Intake, "_without_ended", "if not ended:", "if True:"),
    ),
    "an end is not recorded": (
        (Settler, "finish", "self.ledger.end(rows, fate, attempts or [row.attempt for row in rows])", "pass"),
    ),
    "a lost row is not named": (
        (audit, "kind_of", "return MisfitKind.LOST if fate is None and not is_there else None", "return None"),
    ),
    "a put is told before it is recorded": (
        (Producer, "_after_insert", "self._ledger.enter(rows)", "pass"),
    ),
    "a purge is recorded as an ack": (
        (Discards, "flush", "End.PURGED", "End.ACKED"),
    ),
    "what is put back has spent an attempt": (
        (message, "entered", "**AS_NEW", "**AS_NEW | {'attempt': 1}"),
    ),
    "what is put is read seconds later": (
        (Reader, "_until_ms", "return now_ms\n", "return now_ms - 2_500\n"),
        (Reader, "_is_ahead_due", "if self._isolated or (", "if True or ("),
    ),
    "a claim's receipt is stale from the first": (
        (Receipts, "is_over", "+ margin_ms", "+ 60_000"),
    ),
    "a pause is not heeded": (
        (Engine, "_step", "not (settings.paused or self._is_stuck)", "not self._is_stuck"),
    ),
    "settings are hardly ever read anew": (
        (Register, "refresh", "< REFRESH_US", "< 20 * REFRESH_US"),
    ),
    "a lease whose renewal fails is let go": (
        (
            Pages, "renew", "self.lost += self._leases.renew()",
            "self._leases.release(getattr(self, \"_failed\", ()))\n"
            "    self._failed = [lease.shard for lease in self._leases.held()]\n"
            "    self.lost += self._leases.renew()\n"
            "    self._failed = []",
        ),
    ),
    "a raise has no back-off": (
        (planner, "decided", "delay_ms=register.settings.backoff_of(attempt)", "delay_ms=0"),
    ),
    "a move loses the headers": (
        (planner, "moved", "        body,\n        headers,\n", "        body,\n        None,\n"),
    ),
    "an ack by receipt deletes nothing": (
        (
            Receipts, "_end_all", "self._settler.end([row for _, row in ended], End.ACKED, attempts)",
            "pass",
        ),
    ),
    "what a dead consumer had is tried once a minute": (
        (Intake, "_lease", "now_ms + after_ms", "now_ms + 60_000"),
    ),
    "surplus whose move is unknown is handed out here as well": (
        (
            Outbox, "_flush_moves",
            "gone, repaired = self._settler.carry_out([pending.move for pending in self._moves])",
            "try:\n"
            "        gone, repaired = self._settler.carry_out([p.move for p in self._moves])\n"
            "    except ShardqError:\n"
            "        given = {p.one.row.id: p.one for p in self._moves if p.move.new.since_ms}\n"
            "        self._moves = [p for p in self._moves if p.one.row.id not in given]\n"
            "        self._ready.add(list(given.values()))\n"
            "        raise",
        ),
    ),
    "surplus is passed on by everyone": (
        (Sharing, "look", "self.free = 0 if due else sum(", "self.free = self._threads or sum("),
        (Sharing, "_may_go", "return now_us - birth_us(row.id) >=", "return True or"),
    ),
    "the lateness of surplus counts anew": (
        (Planner, "_later", "since_ms=row.wanted_ms", "since_ms=row.due_ms"),
    ),
    "a cancel by key deletes the row alone": (
        (KeyedCommands, "cancel", "elif not self._keys.write([self._keys.cancel(found)]):", "elif found:"),
        (KeyPointers, "before_end", "is_kept = fate", "is_kept = fate is End.CANCELLED or fate"),
    ),
    "a begin that is refused is none the less": (
        (Starts, "_decide", "if start.name not in refused:", "if True:"),
    ),
    "a put takes a name over without patience": (
        (View, "is_over", "max(age_us, self.watched_ms * 1_000) >= self.patience_ms * 1_000", "True"),
    ),
    "a row that a command has replaced runs": (
        (Starts, "_judge", "why.get(StartRefusal.COPY, ())]", "why.pop(StartRefusal.COPY, ())]\n"
         "    for start in copies:\n"
         "        start.is_over = start.has_begun = True\n"
         "    copies = []"),
    ),
    "an end frees the name of whoever has it": (
        (
            MessageKeys, "end",
            "refused = {} if is_dead else self.write([self.free(row) for row in keyed])",
            "refused = {} if is_dead else self.write([self.free(row) for row in keyed])\n"
            "    self.write([\n"
            "        self.free(row)._replace(seen={'live': live})\n"
            "        for row in keyed if (live := refused.get(own_key(row).name))\n"
            "    ])",
        ),
    ),
    "a move is not noted": (
        (pointers, "_noted", "return move._replace(note=note_of(move.new))", "return move"),
    ),
    "a debounce has no end": (
        (KeyedPuts, "_successor", "if asked.conflict.max_wait_ms is not None:", "if False:"),
    ),
    "a name is not held": (
        (KeyChanges, "_freed", "if unique_ms is None:", "if True:"),
    ),
    "a freed name does not say whose it was": (
        (KeyChanges, "cancel", "of=key.first", "of=None"),
    ),
    "what is put back takes no name": (
        (Forwarder, "move", "keyed = [] if is_death else", "keyed = [] if True else"),
    ),
    "a run has another id each time": (
        (
            StoredSchedule, "job",
            'ids.named(firing.at_ms * 1_000, f"{layout.queue}/{self.generation}/{name}")',
            "ids.row_ids.next(firing.at_ms * 1_000)",
        ),
    ),
    "a schedule goes on before its runs are written": (
        (ScheduleFiring, "_write", "self._home.store.insert(planned)", "pass"),
        (
            ScheduleFiring, "_write", "self._count(rows, sent_ms)",
            "(self._is_local or self._home.store.insert(rows), self._count(rows, sent_ms))",
        ),
    ),
    "a change of a schedule does not hold": (
        (
            Book, "apply", "if self._write(ScheduleWrite(name, record, after)):", "if True:",
        ),
    ),
    "a pause of a schedule is not heeded": (
        (StoredSchedule, "changed", "return made._replace(next_ms=None)", "return made"),
    ),
    "a removal of a schedule does not hold": (
        (ScheduleTable, "remove", "if not self._store.write_records(SCHEDULES, [change]):", "if True:"),
    ),
    "a share is given twice": (
        (
            Shares, "take",
            "part = min(divided(total, wanted, now_ms // turn_ms)[self._member], free)",
            "part = min(wants, total)",
        ),
    ),
    "a place of a group is taken twice": (
        (Group, "has_place", "len(self.heads) < self.places", "len(self.heads) <= self.places"),
    ),
    "a pause of a task is not heeded": (
        (QueueLimit, "line_of", "if (pause := self.pause_of(row, now_ms)) is not None:", "if pause := None:"),
        (TaskLines, "_line_of", "if self._paused:", "if False:"),
    ),
    "a token of a slow rate is given to each owner": (
        (SlowRates, "_adopt", "None if is_none else full_us", "None"),
    ),
    "overlap is not looked at": (
        (ScheduleFiring, "_is_in_the_way", "return overlap == \"skip\"", "return False"),
    ),
}  # fmt: skip


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a bug until the `with` ends; None plants none."""
    before: list[tuple[Any, str, Any]] = []
    edits = MUTANTS[name] if name is not None else ()
    try:
        for owner, function, old, new in edits:
            before.append((owner, function, inspect.getattr_static(owner, function)))
            setattr(owner, function, _edited(owner, function, old, new))
        yield
    finally:
        for owner, function, original in reversed(before):
            setattr(owner, function, original)


def _edited(owner: Any, name: str, old: str, new: str) -> Any:
    """A copy of a function or property with a piece of its source replaced."""
    found = inspect.getattr_static(owner, name)
    function: Any = found.fget if isinstance(found, property) else getattr(owner, name)
    source = getattr(function, "edited", None) or textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:
        raise LookupError(
            f"{name} has {old!r} {source.count(old)} times; the mutant is out of date"
        )
    source = source.replace(old, new)
    space: dict[str, Any] = {}
    exec(compile(source, f"<mutant of {name}>", "exec"), function.__globals__, space)
    made = space[function.__name__]
    if isinstance(made, property):
        # The property decorator in the source has made a property of the new function.
        made.fget.edited = source  # type: ignore[union-attr]
    else:
        made.edited = source
    return made
