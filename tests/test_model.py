"""The public library against a model, in every order of calls that hypothesis thinks of.

```
 rule ──► the library ──► what it returned ──┐
   └────► the model ─────────────────────────┴─► equal? ──► every row that is stored, equal?
```

In memory and in a file time is moved by hand; on Cassandra it passes. `SHARDQ_TEST_EXAMPLES=500`
runs that many instead of a few. The `@reproduce_failure` that a failure prints goes above the class
of its machine: `Rules`, `OnDisk` or `Real`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from examples import bounded
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
    run_state_machine_as_test,
)
from model import ATTEMPTS, BACKOFF_MS, Model
from worlds import InFile, Kept, OnCassandra, Process

from shardq import Bury, Consumer, Retry, Snooze
from shardq.errors import StaleReceipt
from shardq.model.receipt import Receipt
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from shardq import Message

# The machine --------------------------------------------------------------------------------------

places = st.integers(0, 7)
delays = st.sampled_from([0, 0, 20, 400, 1_500, 4_000, 15_000, 70_000])
groups = st.sampled_from([None, None, "a", "b"])
fates = st.sampled_from(["ack", "ack", "ack", "retry", "raise", "snooze", "bury"])


class Rules(Model):
    """What may be done, and what it should come to."""

    # Putting

    @rule(
        place=places,
        delay=delays,
        past=st.booleans(),
        priority=st.integers(0, 1),
        group=groups,
    )
    def put(self, place: int, delay: int, past: bool, priority: int, group: str | None) -> None:
        delay = self.short(delay)
        queue = self.one(place).queue
        name, body = self._new()
        now_ms = self.now_ms
        when: dict[str, Any] = {"delay": f"{delay}ms"}
        if past:
            when = {"due": moment_of(now_ms - delay)}
        message = queue.put(body, id=name, priority=priority, group=group, **when)
        due_ms = message.due_ms
        assert due_ms >= now_ms + (0 if past else delay)
        assert message.id == name
        self.kept[name] = Kept(body, priority, group, due_ms, self.now_ms)
        self.kept[name].order = message._row.order
        self.receipts[name] = message.receipt

    @rule(place=places, count=st.integers(0, 6), delay=delays, group=groups)
    def put_many(self, place: int, count: int, delay: int, group: str | None) -> None:
        delay = self.short(delay)
        queue = self.one(place).queue
        made = [self._new() for _ in range(count)]
        items = [
            {"body": body, "id": name, "delay": f"{delay}ms", "group": group, "priority": n % 2}
            for n, (name, body) in enumerate(made)
        ]
        assert queue.put_many(iter(items)) == count
        rows = self._rows(self.witness.queue)
        for n, (name, body) in enumerate(made):
            [row] = rows[name]
            self.kept[name] = Kept(body, n % 2, group, row.due_ms, self.now_ms, order=row.order)

    # Delivering

    @rule(
        place=places,
        count=st.integers(1, 4),
        seconds=st.sampled_from([30, 2, 4]),
        wait=st.sampled_from([0, 0, 300, 2_000]),
    )
    def receive(self, place: int, count: int, seconds: int, wait: int) -> None:
        wait, seconds = self.short(wait), max(seconds, 600 * self.world.is_real)
        process = self.one(place)
        self.members_ever.add((id(process), "receive"))
        before = {name: one.state for name, one in self.kept.items()}
        stored_before_ms = self.now_ms
        messages = process.queue.receive(count, visibility=f"{seconds}s", wait=f"{wait}ms")
        assert len(messages) <= count
        bands = [message.priority for message in messages]
        assert bands == sorted(bands), "a later priority was handed out first"
        for message in messages:
            self._deliver(process, message)
            one = self.kept[message.id]
            one.state, one.due_ms = "claimed", message.due_ms
            assert message.due_ms >= stored_before_ms + seconds * 1_000
            self.receipts[message.id] = message.receipt
        self._look_for_passed_over(process, messages, before, stored_before_ms)

    @rule(place=places, fate=st.lists(fates, min_size=1, max_size=6), turns=st.integers(1, 3))
    def consume(self, place: int, fate: list[str], turns: int) -> None:
        process = self.one(place)
        self.members_ever.add((id(process), "consume"))
        if process.consumer is None:
            process.consumer = Consumer(
                process.queue, lambda message: self._handle(process, message), threads=1
            )
        self.fates = fate
        for turn in range(turns):
            if turn:
                self.world.pass_time(0.06)
            process.consumer.step()
        for one in self.kept.values():
            if one.state == "acking" and one.holder is process:
                one.state = "gone"
        left = self._rows(self.witness.queue)
        for name, one in self.kept.items():
            if one.state == "gone" and one.holder is process and name in left:
                # Its ack waits for the next poll, 50 ms at most.
                assert not process.consumer._engine.outbox.is_empty
                one.state = "acking"

    def _handle(self, process: Process, message: Message) -> None:
        self._deliver(process, message)
        one = self.kept[message.id]
        fate = self.fates.pop(0) if len(self.fates) > 1 else self.fates[0]
        one.holder = process
        now_ms = self.now_ms
        if fate == "ack":
            one.state = "acking"
            self.receipts.pop(message.id, None)
            return
        self._forget_receipt(message.id)
        if fate == "bury":
            one.state = "dead"
            raise Bury("enough")
        if fate == "snooze":
            one.state, one.due_ms, one.attempt = "waiting", now_ms + 4_000, one.attempt - 1
            raise Snooze("4s")
        if one.attempt >= ATTEMPTS:
            one.state = "dead"
        elif fate == "raise":
            one.state, one.due_ms = "waiting", now_ms + (BACKOFF_MS << one.attempt - 1)
        else:
            one.state, one.due_ms = "waiting", now_ms + 700
        if fate == "raise":
            raise ValueError("no")
        raise Retry("700ms")

    # Settling what receive gave

    @rule(place=places, which=places, twice=st.booleans())
    def ack(self, place: int, which: int, twice: bool) -> None:
        name = self._pick(which)
        if name is None:
            return
        token = self.receipts[name]
        self.one(place).queue.ack(*[token] * (1 + twice))
        self.kept[name].state = "gone"
        self._forget_receipt(name)

    @rule(place=places)
    def ack_all(self, place: int) -> None:
        self._ack_claimed(self.one(place))

    @rule(place=places, which=places, delay=st.one_of(st.none(), delays))
    def retry(self, place: int, which: int, delay: int | None) -> None:
        delay = None if delay is None else self.short(delay)
        name = self._pick(which)
        if name is None:
            return
        one = self.kept[name]
        now_ms = self.now_ms
        self.one(place).queue.retry(
            self.receipts[name], None if delay is None else f"{delay}ms", reason="later"
        )
        if one.attempt >= ATTEMPTS:
            one.state = "dead"
        else:
            after_ms = BACKOFF_MS << one.attempt - 1 if delay is None else delay
            one.state, one.due_ms = "waiting", now_ms + after_ms
        self._forget_receipt(name)

    @rule(place=places, which=places, delay=delays)
    def snooze(self, place: int, which: int, delay: int) -> None:
        delay = self.short(delay)
        name = self._pick(which)
        if name is None:
            return
        one = self.kept[name]
        now_ms = self.now_ms
        self.one(place).queue.snooze(self.receipts[name], f"{delay}ms")
        one.state, one.due_ms, one.attempt = "waiting", now_ms + delay, one.attempt - 1
        self._forget_receipt(name)

    @rule(place=places, which=places, seconds=st.sampled_from([2, 20, 60]))
    def extend(self, place: int, which: int, seconds: int) -> None:
        name = self._pick(which)
        if name is None:
            return
        # Where time passes, what has seconds left may have none by the next call.
        seconds = max(seconds, 600 * self.world.is_real)
        now_ms = self.now_ms
        token = self.one(place).queue.extend(self.receipts[name], f"{seconds}s")
        self._forget_receipt(name)
        self.receipts[name] = token
        self.kept[name].due_ms = now_ms + seconds * 1_000

    @rule(place=places, which=places)
    def bury(self, place: int, which: int) -> None:
        name = self._pick(which)
        if name is None:
            return
        self.one(place).queue.bury(self.receipts[name], "enough")
        self.kept[name].state = "dead"
        self._forget_receipt(name)

    @rule(place=places, which=places, verb=st.sampled_from(["ack", "retry", "snooze", "bury"]))
    def settle_again(self, place: int, which: int, verb: str) -> None:
        """A receipt whose delivery is over, or has no time left, settles and touches nothing."""
        tokens = [*(self.receipts[name] for name in self._claimed(in_time=False)), *self.stale]
        if not tokens:
            return
        queue = self.one(place).queue
        token = tokens[which % len(tokens)]
        more = ["1s"] if verb == "snooze" else []
        before = self._everything()
        with pytest.raises(StaleReceipt):
            getattr(queue, verb)(token, *more)
        assert token not in self.stale or not queue.cancel(token)
        assert self._everything() == before

    @rule(place=places, which=places)
    def cancel(self, place: int, which: int) -> None:
        """What was put and not delivered can be cancelled where it still is where it was put."""
        waiting = [n for n, one in self.kept.items() if one.state == "waiting" and not one.headed]
        names = [name for name in waiting if name in self.receipts]
        if not names:
            return
        name = names[which % len(names)]
        [row] = self._rows(self.witness.queue).get(name, [None])
        cancelled = self.one(place).queue.cancel(self.receipts[name])
        signer = self.witness.queue._home.register.signer
        there = row is not None and signer.sign(Receipt(row.position, 0)) == self.receipts[name]
        assert cancelled == there
        if cancelled:
            self.kept[name].state = "gone"
            self._forget_receipt(name)

    @rule(place=places, which=places)
    def cancel_what_is_seen(self, place: int, which: int) -> None:
        """What waits, for a retry too, can be cancelled by whoever peeks at it."""
        messages = self.one(place).queue.peek(1_000)
        waiting = [one for one in messages if self.kept[one.id].state == "waiting"]
        if waiting:
            message = waiting[which % len(waiting)]
            assert self.one(place).queue.cancel(message)
            self.kept[message.id].state = "gone"
            self._forget_receipt(message.id)

    @rule(place=places, which=places, delay=delays)
    def put_off(self, place: int, which: int, delay: int) -> None:
        """What is not under way can be put off by whoever peeks at it, and loses no attempt."""
        delay = self.short(delay)
        soon_ms = self.now_ms + 3_000
        names = [
            name
            for name, one in self.kept.items()
            if one.state == "waiting" and not one.is_purged and one.due_ms > soon_ms
            # One of a group is due when it was first, once what was before it is settled.
            if one.group is None
        ]
        if not names:
            return
        name = names[which % len(names)]
        one, now_ms = self.kept[name], self.now_ms
        queue = self.one(place).queue
        [peeked] = [message for message in queue.peek(1_000) if message.id == name]
        queue.snooze(peeked, f"{delay}ms")
        one.due_ms = now_ms + delay
        self._forget_receipt(name)

    # Steering

    @rule(place=places)
    def redrive(self, place: int) -> None:
        dead = [name for name, one in self.kept.items() if one.state == "dead"]
        self._follow_the_dead()
        dead = [name for name, one in self.kept.items() if one.state == "dead"]
        assert self.one(place).queue.redrive() == len(dead)
        rows = self._rows(self.witness.queue)
        for name in dead:
            one = self.kept[name]
            [row] = rows[name]
            one.state, one.due_ms, one.attempt = "waiting", row.due_ms, 0
            one.stored_ms, one.order = self.now_ms, row.order
            one.headed = one.is_purged = False

    @rule(place=places)
    def pause(self, place: int) -> None:
        self.one(place).queue.pause()
        if not self.paused:
            self.paused, self.paused_ms = True, self.now_ms

    @rule(place=places)
    def resume(self, place: int) -> None:
        self.one(place).queue.resume()
        self.paused = False

    @rule(place=places)
    def purge(self, place: int) -> None:
        # Two moments apart from what is put before and after it.
        self.world.pass_time(0.002)
        self.one(place).queue.purge()
        self.purged_ms = self.now_ms
        self.world.pass_time(0.002)
        for one in self.kept.values():
            one.is_purged = one.is_purged or one.is_live

    @rule(place=places, lanes=st.integers(1, 4))
    def alter(self, place: int, lanes: int) -> None:
        self.one(place).queue.alter(lanes=lanes)
        self.given.pop("lanes", None)

    # Processes and time

    @precondition(lambda self: len(self.processes) < 3)
    @rule()
    def join(self) -> None:
        self.processes.append(self._process())

    @precondition(lambda self: len(self.processes) > 1)
    @rule(place=places)
    def leave(self, place: int) -> None:
        self._close(self.one(place))

    @precondition(lambda self: len(self.processes) > 1)
    @rule(place=places)
    def crash(self, place: int) -> None:
        if self.world.is_real:
            # Its leases would have to be waited for.
            self._close(self.one(place))
            return
        process = self.one(place)
        self.processes.remove(process)
        self.crashed = True
        for one in self.kept.values():
            if one.state == "acking" and one.holder is process:
                one.state, one.attempt = "waiting", one.attempt - 1

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.3, 1.1, 3.0, 11.0, 32.0, 95.0, 400.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(self.short(round(seconds * 1_000)) / 1_000)


class OnDisk(Rules):
    make_world = InFile


class Real(Rules):
    make_world = OnCassandra


def run(machine: type[Model], *, examples: int, steps: int, most: int | None = None) -> None:
    # What has taken long on Cassandra is not made smaller.
    phases = [Phase.generate] if machine is Real else [Phase.generate, Phase.shrink]
    run_state_machine_as_test(
        machine,
        settings=bounded(examples, most=most, stateful_step_count=steps, phases=phases),
    )


def test_the_library_does_what_the_model_does_in_memory() -> None:
    run(Rules, examples=30, steps=40)


def test_the_library_does_what_the_model_does_in_a_file() -> None:
    run(OnDisk, examples=8, steps=30)


def test_the_library_does_what_the_model_does_on_cassandra(cassandra_url: str) -> None:
    OnCassandra.url = cassandra_url
    # Each reads the rows of all tests, over and over: some 3 s where thousands are there.
    run(Real, examples=4, steps=15, most=40)
