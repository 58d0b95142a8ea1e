"""The work of a world's processes: put, consume, step, receive, and handle messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from simulated.scheduler import Killed

from shardq import Bury, Retry, Snooze
from shardq.consumer import Consumer
from shardq.errors import (
    ClockError,
    StaleReceipt,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
)
from shardq.model.receipt import Receipt
from simulation.case import leased_as, token_of
from simulation.history import Cancel, Delivery, Put, Refusal
from simulation.parts import Act, Letter, Machine
from simulation.plan import machine_of
from simulation.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulated.scheduler import Process

    import shardq
    from shardq.model.message import Message, Row

TRIES = 8
_ASKS = 3
_ASKS_S = 0.6
"""A handler that works longer than this on a message with a key asks if it is to stop."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Roles(Watch, ABC):
    """The roles of a world's processes."""

    # Roles ----------------------------------------------------------------------------------------

    def _produce(self, process: Process, machine: Machine, queue: shardq.Queue) -> None:
        self.begin_errands(process, machine, queue)
        mine = [one for one in self.plan.letters if one.producer == machine.name]
        mine = [one for one in mine if one.number not in self.history.puts]
        mine.sort(key=lambda letter: letter.at_s)
        while mine:
            letter = mine.pop(0)
            batch = [letter]
            while letter.batch and mine and len(batch) < letter.batch:
                batch.append(mine.pop(0))
            wait_us = self._start_us + round(letter.at_s * 1e6) - self.simulation.now_us
            if wait_us > 0:
                self.simulation.sleep(wait_us / 1e6)
            if len(batch) > 1:
                self._put_many(process, queue, batch)
            else:
                self._put(process, queue, letter)
                if letter.cancel_s is not None:
                    self.simulation.spawn(process, partial(self._cancel, queue, letter), "cancel")
            if self.stopping[process.name] and not self.ending:
                return
        while any(fiber.name in ("cancel", "errand") for fiber in process.fibers.values()):
            self.simulation.sleep(0.3)

    def _arguments(self, letter: Letter) -> dict[str, Any]:
        arguments: dict[str, Any] = {"body": body_of(letter), "priority": letter.priority}
        if letter.exact:
            due_us = self._scheduler.wall_us() + letter.delay_ms * 1_000 + letter.number % 1_000
            arguments["due"] = _EPOCH + timedelta(microseconds=due_us)
        elif letter.delay_ms:
            arguments["delay"] = f"{letter.delay_ms}ms"
        if letter.group is not None:
            arguments["group"] = letter.group
        if letter.name is not None:
            arguments["id"] = letter.name
        if letter.headers:
            arguments["headers"] = letter.headers
        return arguments

    def _begin_put(
        self, process: Process, letter: Letter, queue: shardq.Queue
    ) -> tuple[Put, dict[str, Any]]:
        arguments = self._arguments(letter)
        now_us = self.simulation.now_us
        # A delay counts from now by its process's clock, a due is a due.
        asked_us = queue._home.clock.now_us() + letter.delay_ms * 1_000
        if letter.exact:
            asked_us = self._scheduler.wall_us() + letter.delay_ms * 1_000 + letter.number % 1_000
        put = Put(letter, process.name, now_us, asked_us, body=arguments["body"])
        self.history.puts[letter.number] = put
        return put, arguments

    def _put(self, process: Process, queue: shardq.Queue, letter: Letter) -> None:
        put, arguments = self._begin_put(process, letter, queue)
        body: Any = arguments.pop("body")
        maybe = False
        for _ in range(TRIES):
            try:
                message = queue.put(body, **arguments)
            except (StoreTimeout, StoreUnavailable) as error:
                maybe = maybe or isinstance(error, StoreTimeout)
                if error.messages:
                    # Repeat the same write.
                    body, arguments = error.messages[0], {}
                self.simulation.sleep(0.2)
            else:
                self._acked(put, message, queue)
                return
        put.outcome = "unknown" if maybe else "refused"
        put.ended_us = self.simulation.now_us

    def _acked(self, put: Put, message: Message, queue: shardq.Queue) -> None:
        put.outcome, put.ended_us = "acked", self.simulation.now_us
        put.message_id, put.row = message.id, message._row
        if message._row.first is not None:
            self.history.reached.add("late write repaired")
        self._check_repaired(message._row, queue)

    def _check_repaired(self, row: Row, queue: shardq.Queue) -> None:
        # A message whose put was answered must not be where no reader looks before the seal.
        layout = queue._home.register.layout
        is_late = layout.is_late(row.shard.minute, queue._home.clock.now_ms() - 1)
        if is_late and self.simulation.cells.find([row.position]):
            self.history.notes.append(("repair", f"{row.shard} was late and left there"))

    def _check_all_repaired(self, process: Process, tokens: set[int], queue: shardq.Queue) -> None:
        for row_id in [i for i, w in self.history.written.items() if w.process == process.name]:
            written = self.history.written[row_id]
            if token_of(written.row.body) not in tokens:
                continue
            if written.row.first is not None:
                self.history.reached.add("late batch repaired")
            # A row that arrived in time was read, even if the rest of the batch took long.
            if queue._home.register.layout.is_late(
                written.row.shard.minute, written.at_us // 1_000
            ):
                self._check_repaired(written.row, queue)

    def _put_many(self, process: Process, queue: shardq.Queue, batch: list[Letter]) -> None:
        begun = [self._begin_put(process, letter, queue) for letter in batch]
        items: Iterator[Any] = iter([arguments for _, arguments in begun])
        maybe = False
        for _ in range(TRIES):
            try:
                queue.put_many(items)
            except (StoreTimeout, StoreUnavailable) as error:
                maybe = maybe or isinstance(error, StoreTimeout)
                # A slow call ended the batch: the rest of the items was not read.
                items = chain(error.messages, items)
                self.simulation.sleep(0.2)
            else:
                for put, _ in begun:
                    put.outcome, put.ended_us = "acked", self.simulation.now_us
                self._check_all_repaired(process, {letter.number for letter in batch}, queue)
                return
        for put, _ in begun:
            put.outcome = "unknown" if maybe else "refused"
            put.ended_us = self.simulation.now_us

    def _cancel(self, queue: shardq.Queue, letter: Letter) -> None:
        self.simulation.sleep(letter.cancel_s or 0.0)
        put = self.history.puts[letter.number]
        if put.outcome != "acked" or put.row is None:
            return
        receipt = queue._home.register.signer.sign(Receipt(put.row.position, 0))
        cancel = self.history.cancels[letter.number] = Cancel(letter.number, self.simulation.now_us)
        for _ in range(TRIES):
            try:
                found = queue.cancel(receipt)
            except StoreError as error:
                if isinstance(error, StoreTimeout):
                    cancel.outcome = "maybe"
                self.simulation.sleep(0.2)
            else:
                if cancel.outcome != "maybe":
                    cancel.outcome = "cancelled" if found else "gone"
                break
        cancel.ended_us = self.simulation.now_us

    def _consumer(self, process: Process, machine: Machine, queue: shardq.Queue) -> Consumer:
        consumer: Consumer

        def handler(message: Message) -> None:
            self._handle(process, consumer, message)

        consumer = Consumer(
            queue,
            handler,
            threads=machine.threads,
            prefetch=machine.prefetch,
            isolated=machine.isolated,
            deadline=f"{round(machine.deadline_s * 1e3)}ms",
        )
        self.consumers[process.name] = consumer
        return consumer

    def _consume(self, process: Process, machine: Machine, queue: shardq.Queue) -> None:
        consumer = self._consumer(process, machine, queue)
        consumer.start()
        while not self.stopping[process.name]:
            self.simulation.sleep(0.25)
            if not consumer._engine_thread.is_alive():
                break
        self.history.stops[process.name] = (self.simulation.now_us, None)
        consumer.stop()
        try:
            consumer.join()
        except (ClockError, UnknownQueue):
            self.history.reached.add("clock refused later")
        self.history.stops[process.name] = (
            self.history.stops[process.name][0],
            self.simulation.now_us,
        )

    def _step(self, process: Process, machine: Machine, queue: shardq.Queue) -> None:
        consumer = self._consumer(process, machine, queue)
        engine = consumer._engine
        queue._home.listeners.append(engine.news.on_put)
        while not self.stopping[process.name]:
            try:
                delay = consumer.step()
            except (StoreTimeout, StoreUnavailable) as error:
                delay = engine.news.back_off(error)
            except ClockError:
                self.history.reached.add("clock refused later")
                break
            if delay:
                engine.news.wait(delay)
        begun_us = self.simulation.now_us
        self.history.stops[process.name] = (begun_us, None)
        self._repeat(consumer.close)
        self.history.stops[process.name] = (begun_us, self.simulation.now_us)

    def _call(self, process: Process, machine: Machine, queue: shardq.Queue) -> None:
        self.queues[process.name] = queue
        pause = process.chance.choice((0.0, 0.3, 4.0))
        while not self.stopping[process.name]:
            try:
                got = queue.receive(
                    machine.count,
                    f"{round(machine.visibility_s * 1e3)}ms",
                    wait="2s",
                    # Only the first of two callers takes several messages of a group at once.
                    per_group=machine.count if machine.name == "r0" else 1,
                )
            except StoreError:
                self.simulation.sleep(0.3)
                continue
            except ClockError:
                self.history.reached.add("clock refused later")
                break
            # If a claim ended while this process stood still, another member may have the message.
            now_ms = self._scheduler.wall_us() // 1_000
            got = [message for message in got if message.due_ms > now_ms]
            grouped = [message.group for message in got if message.group is not None]
            if len(set(grouped)) < len(grouped):
                self.history.reached.add("several of a group claimed")
            ones = [self._begin(process, "receive", message) for message in got]
            for one, message in zip(ones, got, strict=True):
                self._settle(process, queue, one, message)
            self.simulation.sleep(pause)

    # Deliveries -----------------------------------------------------------------------------------

    def _begin(
        self, process: Process, kind: str, message: Message, *, fenced: bool = True
    ) -> Delivery:
        body = self.runs.told(message._row._replace(body=message.body)).body
        token = token_of(body)
        now_us = self.simulation.now_us
        row = self.as_placed(message._row)

        one = Delivery(
            token,
            row,
            message.id,
            message.attempt,
            body,
            message.headers,
            process.name,
            kind,
            now_us,
            fenced,
            until_us=row.due_ms * 1_000 if kind == "receive" else 0,
            seen_us=self.seen_us.get((process.name, row.id), 0),
        )
        self.history.deliveries.append(one)
        self.begun[token] = self.begun.get(token, 0) + 1
        self._note("deliver", process, (token, message.attempt))
        return one

    def _act_of(self, one: Delivery) -> Act:
        put = self.history.puts.get(one.token)
        acts = put.letter.acts if put is not None else ()
        turn = self.begun[one.token] - 1
        return acts[turn] if turn < len(acts) else Act("ack")

    def _ended(self, one: Delivery, outcome: str, delay_ms: int | None = None) -> None:
        one.ended_us, one.outcome, one.delay_ms = self.simulation.now_us, outcome, delay_ms
        one.settled_us = one.settled_us or one.ended_us

    def _handle(self, process: Process, consumer: Consumer, message: Message) -> None:
        shard = leased_as(message._row.shard)
        lease = consumer._engine.leases.get(shard)
        lock = self.simulation.cells.lease(shard).lock
        one = self._begin(
            process, "handler", message, fenced=lease is not None and lease.lock == lock
        )
        act = self._act_of(one)
        if act.seconds:
            # A stepper handles in the thread that steps, so it must not work longer than a lease.
            is_stepper = self.machines[machine_of(process.name)].role == "stepper"
            self._work(one, message, min(act.seconds, 0.2) if is_stepper else act.seconds)
        if act.kind == "crash":
            self._crash(process)
            raise Killed
        kind = "raise" if act.kind == "ignore" else act.kind
        self._ended(one, kind, act.delay_ms)
        if kind == "retry":
            raise Retry(timedelta(milliseconds=act.delay_ms or 0))
        if kind == "snooze":
            raise Snooze(timedelta(milliseconds=act.delay_ms or 0))
        if kind == "bury":
            raise Bury("as planned")
        if kind == "raise":
            raise LookupError("as planned")

    def _work(self, one: Delivery, message: Message, seconds: float) -> None:
        parts = _ASKS if message.key is not None and seconds > _ASKS_S else 0
        self.simulation.sleep(seconds / (parts + 1))
        for _ in range(parts):
            one.asked.append((self.simulation.now_us, message.is_cancelled))
            self.simulation.sleep(seconds / (parts + 1))

    def _settle(
        self, process: Process, queue: shardq.Queue, one: Delivery, message: Message
    ) -> None:
        """Settle a message that a caller received, as its plan says."""
        act = self._act_of(one)
        receipt = message.receipt
        if act.seconds:
            if act.seconds > 1.0:
                receipt = self._extend(queue, one, receipt)
            self.simulation.sleep(act.seconds)
        if act.kind == "crash":
            self._crash(process)
            raise Killed
        if act.kind == "ignore":
            self._ended(one, "ignore")
            return
        delay = timedelta(milliseconds=act.delay_ms or 0)
        settle: dict[str, Callable[[], object]] = {
            "ack": lambda: queue.ack(receipt),
            "retry": lambda: queue.retry(receipt, delay),
            "raise": lambda: queue.retry(receipt),
            "snooze": lambda: queue.snooze(receipt, delay),
            "bury": lambda: queue.bury(receipt, "as planned"),
        }
        maybe = False
        one.settled_us = self.simulation.now_us
        # If this process dies now, the call may have been carried out.
        one.outcome = f"maybe {act.kind}"
        for _ in range(3):
            try:
                settle[act.kind]()
            except StaleReceipt:
                self._refused(one, receipt, queue)
                self._ended(one, f"maybe {act.kind}" if maybe else "stale", act.delay_ms)
                return
            except StoreTimeout:
                maybe = True
                self._unsure(one)
            except StoreUnavailable:
                self.simulation.sleep(0.1)
            else:
                self._ended(one, act.kind, act.delay_ms)
                return
        self._ended(one, f"maybe {act.kind}" if maybe else "gave up", act.delay_ms)

    def _extend(self, queue: shardq.Queue, one: Delivery, receipt: str) -> str:
        try:
            receipt = queue.extend(receipt, "20s")
            one.until_us = queue._home.register.signer.read(receipt).position.due_ms * 1_000
            self.history.reached.add("extended")
        except StaleReceipt:
            self._refused(one, receipt, queue)
        except StoreTimeout:
            self._unsure(one)
        except StoreUnavailable:
            pass
        return receipt

    def _refused(self, one: Delivery, receipt: str, queue: shardq.Queue) -> None:
        row_id = queue._home.register.signer.read(receipt).position.id
        one.refusals.append(Refusal(self.simulation.now_us, row_id))

    def _unsure(self, one: Delivery) -> None:
        one.unsure_us.append(self.simulation.now_us)

    @abstractmethod
    def begin_errands(self, process: Process, machine: Machine, queue: shardq.Queue) -> None:
        """Start a producer's calls by key, without those begun before a restart."""

    @abstractmethod
    def start(self, machine: Machine) -> None:
        """Start a process of a machine, the first one or one after a restart."""

    def _crash(self, process: Process) -> None:
        self.history.crashes.append((self.simulation.now_us, process.name))
        self.stopping.pop(process.name, None)
        self.simulation.crash(process)
        machine = self.machines.get(machine_of(process.name))
        if machine is not None:
            after_us = process.chance.randrange(200_000, 4_000_000)
            self.simulation.scheduler.at(
                self.simulation.now_us + after_us, partial(self.start, machine)
            )

    def _repeat(self, act: Callable[[], object]) -> bool:
        """Do something until the store lets it."""
        for _ in range(TRIES):
            try:
                act()
            except StoreError:
                self.simulation.sleep(0.3)
            else:
                return True
        return False


def body_of(letter: Letter) -> bytes:
    """The unique body of a message."""
    return f"{letter.number}|".encode() + b"x" * letter.size
