"""One key, and several processes that put, replace, move, cancel, redrive, share and hand out what
it names, in any order of their steps, with crashes, freezes and unknown outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
from turns import Stepped, Turns

from shardq.lifecycle.settle import Settler
from shardq.model import ids, names
from shardq.model.ids import row_ids
from shardq.model.key import MessageKey
from shardq.model.message import Row, moved
from shardq.model.shard import MINUTE_MS, Shard
from shardq.records import keyrow
from shardq.records.keys import note_of
from shardq.records.register import Register
from shardq.records.standing import Is, Standing, StartRefusal
from shardq.stores.sqlite import SqliteStore
from shardq.stores.store import Store
from shardq.testing.clock import ManualClock

NOW_US = 1_780_000_000_000_000
NAME = "order-7"
TRIES = 100
DELAYS_MS = (0, 0, 10, 1_000, 4_000, 30_000)
SKEWS_S = (0.0, 0.0, 0.05, -0.05, 0.3, -0.3)
POLL_S = 0.1
ROUNDS = 12


@dataclass
class Book:
    """What was told to callers, and what began: by first row id, at which step."""

    put: dict[bytes, int] = field(default_factory=dict)
    began: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """(step, generation)."""
    cancelled: dict[bytes, int] = field(default_factory=dict)
    doomed: dict[bytes, int] = field(default_factory=dict)
    followed: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """(step, the message that follows)."""
    replaced: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    missed: list[tuple[int, int]] = field(default_factory=list)
    """From and until when something was looked for by key, and was not there."""

    def faults(self, freed: Iterable[str]) -> Iterable[str]:
        """What should not have been.

        Args:
            freed: `live` of what cancels have freed, those too that never learned of it.
        """
        over = {live[:32] for live in freed}
        # What followed and was cancelled has given the name back.
        followed = {
            first: at for first, (at, behind) in self.followed.items() if behind.hex() not in over
        }
        for first, at in self.put.items():
            is_cancelled = first in {*self.doomed, *self.followed} or first.hex() in over
            if first not in self.began and not is_cancelled:
                yield f"{first.hex()}, put at {at}, is lost"
        for first, beginnings in self.began.items():
            for at, generation in beginnings:
                for what, when in (
                    ("cancelled", self.cancelled),
                    ("doomed", self.doomed),
                    ("followed", followed),
                ):
                    # A put that had not ended yet may come after the cancel.
                    since = self.put.get(first, at)
                    if since < when.get(first, at) < at:
                        yield f"{first.hex()} began at {at}, {what} at {when[first]}"
                for moved_at, newest in self.replaced.get(first, ()):
                    if moved_at < at and generation < newest:
                        yield f"{first.hex()} began at {at} at its old time, moved at {moved_at}"
        for since, at in self.missed:
            for first, beginnings in self.began.items():
                if self.put.get(first, since) < since and beginnings[-1][0] > at:
                    yield f"{first.hex()} was not there at {at}, and began after that"


class Process:
    """One that puts, commands or hands out, as its callers do."""

    def __init__(self, turns: Turns, store: Stepped, register: Register, book: Book) -> None:
        self.turns = turns
        self.random = turns.random
        self.book = book
        self.store = store
        self.clock = turns.clock.shifted(self.random.choice(SKEWS_S), corrected=False)
        self.layout = register.layout
        self.settler = Settler(cast("Store", store), self.clock, register)
        self.keys = self.settler.keys

    def due_ms(self) -> int:
        return self.clock.now_ms() + 1 + self.random.choice(DELAYS_MS)

    def placed(self, row: Row, due_ms: int, row_id: bytes) -> Row:
        return row._replace(shard=self.layout.shard(due_ms, 0), due_ms=due_ms, id=row_id)

    def found(self) -> Standing:
        return self.keys.seek([NAME])[NAME]

    def put(self) -> None:
        """Put, and keep, replace or follow what is there."""
        keeps, follows = self.random.random() < 0.5, self.random.random() < 0.5
        over, pending_us = None, 0
        new = Row(Shard("", 0, 0), 0, b"", b"", key=MessageKey(NAME).text())
        for _ in range(TRIES):
            row = self.placed(new, self.due_ms(), row_ids.next(self.clock.now_us()))
            if self.took(row, over):
                return
            watched_ms = (self.clock.boot_us() - pending_us) // 1_000 if pending_us else 0
            found = self.keys.seek([NAME], watched_ms=watched_ms)[NAME]
            runs_behind = follows and found.state is Is.RUNNING
            over = found if found.state.is_absent or runs_behind else None
            if found.state is Is.PENDING:
                pending_us = pending_us or self.clock.boot_us()
                self.turns.rest(POLL_S)
            elif found.row is not None and over is None:
                is_kept = keeps or found.state is Is.RUNNING
                if is_kept or self.commanded(found.key, found.row):
                    self.book.put.setdefault(found.key.first or b"", self.turns.steps)
                    return
        pytest.fail("no put in so many tries")

    def took(self, row: Row, over: Standing | None) -> bool:
        change = self.keys.put(row, over)
        if self.keys.write([change]):
            return False
        if self.keys.displaced([change]):
            self.store.delete([row.position])
            return False
        self.book.put[keyrow.first_of(row)] = self.turns.steps
        if over is not None and (running := over.running) is not None:
            behind = keyrow.first_of(row)
            self.book.followed[running.first or b""] = (self.turns.steps, behind)
        return True

    def commanded(self, key: keyrow.KeyRow, old: Row) -> bool:
        row_id = ids.after(old.id, self.clock.now_us())
        new = self.placed(old, self.due_ms(), row_id)._replace(claim=None)
        if any(self.settler.place([self.keys.command(key, old, new)])):
            return False
        moves = self.book.replaced.setdefault(key.first or b"", [])
        moves.append((self.turns.steps, key.generation + 1))
        return True

    def move(self) -> None:
        since = self.turns.steps
        for _ in range(TRIES):
            found = self.found()
            if found.state is Is.PENDING:
                self.turns.rest(POLL_S)
            elif found.state is not Is.WAITING or found.row is None:
                if found.state in {Is.FREE, Is.ENDED}:
                    self.book.missed.append((since, self.turns.steps))
                return
            elif self.commanded(found.key, found.row):
                return
        pytest.fail("no move in so many tries")

    def cancel(self) -> None:
        since = self.turns.steps
        for _ in range(TRIES):
            found = self.found()
            first = found.key.first or b""
            if (running := found.running) is not None:
                if found.state is not Is.RUNNING and self.random.random() < 0.5:
                    if not self.keys.write([self.keys.unfollow(running)]):
                        self.book.cancelled.setdefault(first, self.turns.steps)
                        return
                elif not self.keys.write([self.keys.doom(running)]):
                    self.book.doomed.setdefault(running.first or b"", self.turns.steps)
                    if found.state is not Is.RUNNING:
                        self.book.cancelled.setdefault(first, self.turns.steps)
                    return
            elif found.state in {Is.WAITING, Is.PENDING, Is.DEAD}:
                if not self.keys.write([self.keys.cancel(found)]):
                    self.book.cancelled.setdefault(first, self.turns.steps)
                    if found.row is not None:
                        self.store.delete([found.row.position])
                    return
            else:
                self.book.missed.append((since, self.turns.steps))
                return
        pytest.fail("no cancel in so many tries")

    def rows(self, *, dead: bool = False) -> list[Row]:
        rows = self.store.find(list(self.store.rows))
        return [row for row in rows if keyrow.is_dead(row.position) == dead]

    def share(self) -> None:
        for row in self.rows():
            if row.claim is None and self.random.random() < 0.3:
                self.step(row, row.due_ms, None)
        self.turns.rest(self.random.choice((0.01, 1)))

    def redrive(self) -> None:
        self.turns.rest(1)
        for dead in self.rows(dead=True):
            found = self.found()
            row = self.placed(dead, self.due_ms(), row_ids.next(self.clock.now_us()))
            if found.state.is_absent and self.took(row, found):
                self.store.delete([dead.position])
                if found.key.leads_to(dead):
                    self.keys.forget(found.key)

    def hand_out(self, *, is_calm: bool = False) -> None:
        for row in self.rows():
            if row.due_ms <= self.clock.now_ms():
                begun = self.keys.begin(row)
                if self.keys.write([begun]):
                    self.refused(row)
                else:
                    self.run(row, begun, is_calm=is_calm)
        self.turns.rest(POLL_S)

    def refused(self, row: Row) -> None:
        [(why, key, superseded)] = self.keys.refusals([row]).values()
        if why in {StartRefusal.OVER, StartRefusal.COPY, StartRefusal.CANCELLED}:
            self.store.delete([row.position])
        if why is StartRefusal.CANCELLED:
            self.keys.end([row])
        elif why is StartRefusal.AGAIN:
            if superseded is not None:
                self.store.delete([superseded.position])
            begun = self.keys.begin(row, key)
            if not self.keys.write([begun]):
                self.run(row, begun, is_calm=False)
        elif why is StartRefusal.STRANDED:
            self.settler.place([self.keys.re_place(key, row)])

    def run(self, row: Row, begun: Any, *, is_calm: bool) -> None:
        generation = keyrow.own_key(row).generation
        beginnings = self.book.began.setdefault(keyrow.first_of(row), [])
        beginnings.append((self.turns.steps, generation))
        how = 1.0 if is_calm else self.random.random()
        if not self.store.find([row.position]):
            return
        if how < 0.1:
            self.keys.write([self.keys.give_back(begun)])
        elif how < 0.45:
            claim = "worker" if self.random.random() < 0.5 else None
            self.step(row, self.due_ms(), claim)
        elif how < 0.5:
            self.bury(row)
        elif how < 0.75:
            self.store.delete([row.position])
            self.keys.end([row])
        else:
            self.keys.end([row])
            self.store.delete([row.position])

    def step(self, row: Row, due_ms: int, claim: str | None) -> None:
        due_ms = max(due_ms, self.clock.now_ms() + 1)
        row_id = ids.after(row.id, self.clock.now_us())
        shard = self.layout.shard(due_ms, 0)
        new = moved(row, shard, due_ms, row_id, attempt=row.attempt, claim=claim)
        self.go(row, new, None)

    def bury(self, row: Row) -> None:
        now_ms = self.clock.now_ms()
        shard = Shard(names.dead_queue(self.layout.queue), now_ms // MINUTE_MS, 0)
        row_id = ids.after(row.id, self.clock.now_us())
        new = row._replace(shard=shard, due_ms=now_ms, id=row_id, first=None, name=row.message_id)
        self.go(row, new, keyrow.first_of(row))

    def go(self, old: Row, new: Row, first: bytes | None) -> None:
        self.store.insert([new])
        note = note_of(new, first)
        assert note is not None
        self.store.note(note.table, note.partition, {note.key: note.values})
        self.store.delete([old.position])


def played(seed: int) -> list[str]:
    """What went wrong in one world."""
    # Row ids never go backwards: those of the world before are ahead of this one's clock.
    row_ids._last_us = 0
    clock = ManualClock(NOW_US)
    embedded = SqliteStore(machine_us=clock.true_us)
    embedded.open(create=True)
    register = Register.open(embedded, clock, "mail", {}, create=True, is_clock_known=True)
    turns, book = Turns(seed, clock), Book()
    store = Stepped(embedded, turns)

    def add(name: str, act: str, times: int, **given: bool) -> None:
        process = Process(turns, store, register, book)
        acts = [partial(getattr(process, act), **given)] * times
        turns.add(name, lambda: [one() for one in acts])

    for act, times, most in (("put", 3, 3), ("move", 3, 2), ("cancel", 2, 2)):
        for n in range(turns.random.randint(act == "put", most)):
            add(f"{act} {n}", act, times)
    add("consumer", "hand_out", 30)
    for name, act, chance in (
        ("other", "hand_out", 0.3),
        ("r", "redrive", 0.4),
        ("s", "share", 0.5),
    ):
        if turns.random.random() < chance:
            add(name, act, 10)
    turns.run()
    for n in range(8):
        clock.advance(60)
        add(f"last {n}", "hand_out", ROUNDS, is_calm=True)
        turns.run(is_calm=True)
    embedded.close()
    return [*map(repr, turns.errors), *book.faults(store.freed)]


@pytest.mark.parametrize("begin", range(0, 40, 10))
def test_whatever_crashes_nothing_is_lost_or_runs_that_was_cancelled_or_moved(begin: int) -> None:
    faults = {seed: found for seed in range(begin, begin + 10) if (found := played(seed))}
    assert not faults
