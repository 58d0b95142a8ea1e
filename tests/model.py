"""What has to hold of a queue whatever is done with it: a model of it, and the comparisons.

What may be done, `test_model.py` says.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from worlds import InMemory, Kept, Process, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq import Message, Queue
    from shardq.model.message import Row

ATTEMPTS = 3
BACKOFF_MS = 2_000
FOLLOW_MS = 5_000
"""How long other processes may take to follow a pause or a purge."""
LATE_STORED_MS = 500
"""A message stored longer after its first due may be handed out of its group's order."""
CLAIM_MARGIN_MS = 1_000
TAKE_OVER_MS = 20_000
"""Members and leases of those who are gone run out within it."""
DRAIN_MS = 30 * 60_000


class Model(RuleBasedStateMachine):
    """A queue, what should be in it, and what is to hold after each call."""

    make_world: ClassVar[Callable[[], World]] = InMemory

    @initialize(
        lanes=st.integers(1, 3),
        minute=st.sampled_from(["60s", "10s"]),
        history=st.sampled_from(["off", "1d"]),
    )
    def begin(self, lanes: int, minute: str, history: str) -> None:
        self.patches = pytest.MonkeyPatch()
        self.world = type(self).make_world()
        if not self.world.is_real:
            dice = random.Random(0)
            # Names of members decide who reads what: an example has to go the same way each time.
            self.patches.setattr(secrets, "token_hex", lambda n: dice.randbytes(n).hex())
            self.patches.setattr(secrets, "token_bytes", dice.randbytes)
            self.patches.setattr(socket, "gethostname", lambda: "here")
            self.patches.setattr(os, "getpid", lambda: 1)
        self.given = {
            "lanes": lanes,
            "history": history,
            "bands": 2,
            "minute": minute,
            "attempts": ATTEMPTS,
            "backoff": f"{BACKOFF_MS}ms",
        }
        self.name = self.world.queue_name()
        self.kept: dict[str, Kept] = {}
        self.stale: list[str] = []
        self.receipts: dict[str, str] = {}
        self.count = 0
        self.paused = False
        self.paused_ms = 0
        self.purged_ms = -1
        self.crashed = False
        self.members_ever: set[tuple[int, str]] = set()
        self.processes = [self._process()]
        # Looks at everything and takes nothing.
        self.witness = self._process()

    def _process(self) -> Process:
        db = self.world.connect()
        return Process(db, db.queue(self.name, **self.given))

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    def one(self, place: int) -> Process:
        return self.processes[place % len(self.processes)]

    def _new(self) -> tuple[str, str]:
        self.count += 1
        return f"m{self.count}", f"body {self.count}"

    # What is handed out

    def _deliver(self, process: Process, message: Message) -> None:
        """A message was handed out: it had to be due, whole, free and next in its group."""
        now_ms = self.now_ms
        one = self.kept[message.id]
        name = message.id
        assert one.is_live, f"{name} is {one.state} and was handed out"
        assert one.state != "acking", f"{name} was acked and is handed out again"
        assert one.due_ms <= now_ms, f"{name} was handed out {one.due_ms - now_ms} ms early"
        assert (message.text, message.priority, message.group) == (
            one.body,
            one.priority,
            one.group,
        )
        one.attempt += 1
        assert message.attempt == one.attempt, f"{name}: attempt {message.attempt}"
        assert one.attempt <= ATTEMPTS
        if self.paused:
            assert now_ms < self.paused_ms + FOLLOW_MS, f"{name} was handed out in a pause"
        if one.is_purged:
            assert now_ms < self.purged_ms + FOLLOW_MS, f"{name} was handed out though purged"
        self._check_group(name, one, now_ms)
        one.state = "waiting"
        one.headed = True

    def _check_group(self, name: str, one: Kept, now_ms: int) -> None:
        if one.group is None:
            return
        for other_name, other in self.kept.items():
            if other is one or other.group != one.group:
                continue
            if not other.is_live or other.is_purged or other.state == "acking":
                continue
            is_out = other.state == "claimed" and other.due_ms > now_ms
            assert not is_out, f"{name} was handed out while {other_name} of its group is out"
            if other.order < one.order and other.stored_ms <= other.order[0] + LATE_STORED_MS:
                is_due = other.due_ms <= now_ms
                # What was handed out once stays the head of its group until it is settled; after
                # a crash a repeat may come between.
                is_head = other.headed and not self.crashed
                comes_first = is_head or (is_due and not one.headed and not other.headed)
                if comes_first:
                    # Unless that was its last delivery, and who has read it again has buried it.
                    self._follow_the_dead()
                assert not (comes_first and other.is_live), (
                    f"{name} was handed out before {other_name}"
                )

    def _look_for_passed_over(
        self,
        process: Process,
        messages: list[Message],
        before: dict[str, str],
        stored_before_ms: int,
    ) -> None:
        """Nothing of priority 0 waited while 1 was handed out, by the only member."""
        alone = len(self.members_ever) == 1 and not self.world.is_real
        if not alone or not any(message.priority for message in messages):
            return
        for name, one in self.kept.items():
            if one.group is None and one.priority == 0 and not one.is_purged:
                waits = before.get(name) == "waiting" and one.state == "waiting"
                assert not (waits and one.due_ms <= stored_before_ms), f"{name} was passed over"

    # Receipts

    def _claimed(self, *, in_time: bool = True) -> list[str]:
        """What callers of receive have, and can settle still, or not any more."""
        limit_ms = self.now_ms + CLAIM_MARGIN_MS
        return [
            name
            for name, one in self.kept.items()
            if one.state == "claimed" and (one.due_ms >= limit_ms) == in_time and not one.is_purged
        ]

    def _ack_claimed(self, process: Process) -> None:
        claimed = self._claimed()
        process.queue.ack(*[self.receipts[name] for name in claimed])
        for name in claimed:
            self.kept[name].state = "gone"
            self._forget_receipt(name)

    def short(self, delay_ms: int) -> int:
        """A delay, cut to what can be waited for."""
        return min(delay_ms, 300) if self.world.is_real else delay_ms

    def _pick(self, which: int) -> str | None:
        claimed = self._claimed()
        return claimed[which % len(claimed)] if claimed else None

    def _forget_receipt(self, name: str) -> None:
        if name in self.receipts:
            self.stale.append(self.receipts.pop(name))

    # What is to hold

    def _rows(self, queue: Queue) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for page in queue._rows():
            for row in page:
                found.setdefault(row.message_id, []).append(row)
        return found

    def _everything(self) -> set[Row]:
        queue = self.witness.queue
        return {row for one in (queue, queue.dead) for page in one._rows() for row in page}

    def _follow_the_dead(self) -> None:
        """What died in its last delivery is buried by whoever reads it next."""
        dead = self._rows(self.witness.queue.dead)
        for name, one in self.kept.items():
            if one.state in {"waiting", "claimed"} and one.attempt >= ATTEMPTS and name in dead:
                assert one.due_ms <= self.now_ms
                one.state = "dead"
                self._forget_receipt(name)

    @invariant()
    def every_message_is_where_it_should_be(self) -> None:
        if not hasattr(self, "world"):
            return
        self._follow_the_dead()
        queue = self.witness.queue
        rows, dead = self._rows(queue), self._rows(queue.dead)
        assert all(len(found) == 1 for found in [*rows.values(), *dead.values()])
        assert not rows.keys() & dead.keys(), "a message is in two states"
        for name, one in self.kept.items():
            if one.state == "gone":
                assert name not in rows, f"{name} is gone and still there"
            elif one.state == "dead":
                assert name in dead, f"{name} is not among the dead"
                continue
            elif not one.is_purged:
                assert name in rows, f"{name} is lost"
            assert name not in dead
            if name in rows and one.state != "acking":
                self._check_row(name, one, rows[name][0])
        assert rows.keys() <= self.kept.keys()

    def _check_row(self, name: str, one: Kept, row: Row) -> None:
        assert row.attempt == one.attempt, f"{name} has attempt {row.attempt}"
        assert (row.claim is not None) == (one.state == "claimed"), f"{name} is {one.state}"
        assert (row.body.decode(), row.group) == (one.body, one.group)
        off_ms = row.ready_ms - one.due_ms
        # Where time passes, it did between our reading the clock and the library's.
        assert -1 <= off_ms <= (60_000 if self.world.is_real else 1), f"{name}: {off_ms} ms off"

    @invariant()
    def the_depth_is_exact(self) -> None:
        if not hasattr(self, "world") or any(p.consumer for p in self.processes) or self.crashed:
            return
        queue = self.witness.queue
        queue._home.register.refresh(force=True)
        now_ms = self.now_ms
        live = [one for one in self.kept.values() if one.is_live and not one.is_purged]
        depth = queue.depth(exact=True)
        assert depth.total == len(live)
        assert depth.in_flight == sum(o.state == "claimed" and o.due_ms > now_ms for o in live)
        if all(one.group is None for one in live) and not self.world.is_real:
            assert depth.ready == sum(one.due_ms <= now_ms for one in live)
        shown = {message.id for message in queue.peek(1_000)}
        assert shown == {name for name, one in self.kept.items() if one in live}

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._check_books()
            self._drain()
            self._check_totals()
            self._check_books()
        finally:
            self.world.close()
            self.patches.undo()

    def _drain(self) -> None:
        """Whatever is left is delivered and acked, each once, and in time."""
        queue = self.processes[0].queue
        queue.resume()
        self.paused = False
        while len(self.processes) > 1:
            self._close(self.processes[1])
        self._finish_acks()
        if self.world.is_real:
            # Rather than wait until they are delivered again.
            self._ack_claimed(self.processes[0])
        began_ms = self.now_ms
        latest_ms = {name: self._latest_ms(one, began_ms) for name, one in self.kept.items()}
        left = {n for n, one in self.kept.items() if one.is_live and not one.is_purged}
        while left and self.now_ms < began_ms + (300_000 if self.world.is_real else DRAIN_MS):
            messages = queue.receive(10, wait="5s")
            for message in messages:
                self._deliver(self.processes[0], message)
                late_ms = self.now_ms - latest_ms[message.id]
                is_in_time = late_ms <= (300_000 if self.world.is_real else 0)
                assert is_in_time, f"{message.id} came {late_ms} ms late, {messages}"
                self.kept[message.id].state = "gone"
                left.discard(message.id)
            queue.ack(*messages)
            self._follow_the_dead()
            left -= {name for name, one in self.kept.items() if one.state == "dead"}
        assert not left, f"{left} never came"
        self.every_message_is_where_it_should_be()

    def _close(self, process: Process) -> None:
        """A process ends as it should."""
        self.processes.remove(process)
        if process.consumer is not None:
            process.consumer.close()
        process.queue.close()
        for one in self.kept.values():
            if one.state == "acking" and one.holder is process:
                one.state = "gone"

    def _finish_acks(self) -> None:
        process = self.processes[0]
        if process.consumer is not None:
            process.consumer.close()
            process.consumer = None
            for one in self.kept.values():
                if one.state == "acking" and one.holder is process:
                    one.state = "gone"

    def _latest_ms(self, one: Kept, began_ms: int) -> int:
        """When it is to come at last: due, its group before it over, others' leases run out."""
        before = [
            other.due_ms
            for other in self.kept.values()
            if other.is_live and other.group is not None
            if other.group == one.group
        ]
        return max([one.due_ms, began_ms, *before]) + TAKE_OVER_MS

    def _check_books(self) -> None:
        if self.given["history"] == "off":
            return
        books = self.witness.queue.audit()
        assert books.is_even, books.line()
        live = sum(one.is_live and not one.is_purged for one in self.kept.values())
        assert books.total.waiting + books.total.in_flight == live

    def _check_totals(self) -> None:
        if self.crashed or self.purged_ms >= 0:
            return
        totals = self.processes[0].queue.totals()
        live = sum(one.is_live for one in self.kept.values())
        assert totals.put - totals.gone == live == 0
