"""One play: a steady load, trouble in the middle of it, and the judgement of what came of it.

The judge believes the files of the processes alone; then the queue's own books must balance.
"""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proofs import judge

import shardq
from shardq import trace
from shardq.clock import SystemClock, machine_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proofs.stage import Process, Stage

    from faults.nodes import Nodes
    from shardq.audit import Audit

LATE_US = 2_000_000
"""A message that waited longer than this was held up."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is played.

    Attributes:
        rate: Messages a second of each producer.
        seconds: How long they produce.
        delays_ms: How far ahead messages are due, in turn.
        before_s: How long all goes well at first.
        trouble_s: How long trouble lasts, where it can be chosen.
        quiet_s: How long nothing may come before what is missing is lost.
    """

    rate: int
    seconds: float
    delays_ms: tuple[int, ...]
    before_s: float
    trouble_s: float
    quiet_s: float = 60.0


SHORT = Size(rate=150, seconds=12, delays_ms=(0, 500, 2_000, 6_000), before_s=4, trouble_s=12)
LONG = Size(
    rate=500, seconds=100, delays_ms=(0, 1_000, 5_000, 20_000, 40_000), before_s=20, trouble_s=30
)
PRODUCERS = 2
CONSUMERS = 3


@dataclass(slots=True)
class Line:
    """One line of the table.

    Attributes:
        fault: What was done.
        messages: Messages that the store has acknowledged.
        lost: Bodies of those that were never delivered.
        early: Deliveries before the due that was asked for.
        unexplained: Bodies delivered twice without an allowed cause.
        causes: Second deliveries, by their cause.
        recovered: Delivered though their put never returned, for its producer was killed.
        foreign: Delivered and never put.
        worst_s: The longest that a message waited, due and stored.
        resumed_s: Seconds until nothing that was handed out had waited for 2 s any more: from the
            end of a store's trouble, or the beginning of a consumer's.
        left: Rows in the queue at the end.
        audit: What the queue's own books say; None where it kept none.
        note: What else was seen.
    """

    fault: str
    messages: int = 0
    lost: list[str] = field(default_factory=list)
    early: int = 0
    unexplained: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    recovered: int = 0
    foreign: list[str] = field(default_factory=list)
    worst_s: float = 0.0
    resumed_s: float = 0.0
    left: int = 0
    audit: Audit | None = None
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(self.causes.items()))
        if self.unexplained:
            causes = ", ".join(filter(None, [causes, f"{len(self.unexplained)} UNEXPLAINED"]))
        return (
            self.fault,
            f"{self.messages:,}",
            str(len(self.lost)),
            str(self.early),
            causes or "0",
            "-" if self.audit is None else "even" if self.audit.is_even else "UNEVEN",
            f"{self.worst_s:.1f}",
            f"{self.resumed_s:.1f}",
            self.note,
        )


TITLES = (
    "fault",
    "messages",
    "lost",
    "early",
    "duplicates",
    "audit",
    "worst s",
    "resumed s",
    "note",
)


class Play:
    """One queue, its producers and consumers, and what happens to them.

    Args:
        stage: Where the processes run.
        nodes: The nodes under them.
        name: What is played; the queue's name.
        size: How much.
    """

    def __init__(self, stage: Stage, nodes: Nodes, name: str, size: Size) -> None:
        self.stage = stage
        self.nodes = nodes
        self.size = size
        self.line = Line(name)
        self.clock = SystemClock()
        # Nodes that are used again have the queues of earlier plays.
        self._queue_name = f"{name.replace(' ', '-')}-{secrets.token_hex(2)}"
        self._cuts: list[trace.Interruption] = []
        self._killed: list[Process] = []
        self._healed_us = 0
        self._puts: list[judge.Put] | None = None
        self._hand_outs: list[judge.HandOut] = []

    # The load -------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        shifts_s: Sequence[float] = (0,),
        rate: int | None = None,
        history: str = "1d",
        **settings: object,
    ) -> None:
        """Start consumers and producers, and let all go well for a while.

        Args:
            shifts_s: Seconds by which the processes' wall clocks are wrong, in turn.
            rate: Messages a second of each producer, where not the size's.
            history: How long the queue's ledger is kept, for the audit at the end; "off" for none.
            settings: The queue's.
        """
        with shardq.connect(self.nodes.url) as db:
            db.queue(self._queue_name, history=history, **settings)
        for number in range(CONSUMERS):
            self.consume(shift_s=shifts_s[number % len(shifts_s)])
        for number in range(PRODUCERS):
            self.stage.produce(
                self._queue_name,
                rate=rate or self.size.rate,
                seconds=self.size.seconds,
                delays_ms=self.size.delays_ms,
                shift_s=shifts_s[number % len(shifts_s)],
            )
        assert self.stage.wait(self.stage.handed_out), "nothing is delivered before any fault"
        self.stage.sleep(self.size.before_s)

    def consume(self, *, shift_s: float = 0) -> Process:
        """Start one more consumer."""
        return self.stage.consume(self._queue_name, shift_s=shift_s, threads=4, work_ms=1)

    def go_on(self, seconds: float | None = None) -> None:
        """Let it go on, for as long as the trouble lasts where not said."""
        self.stage.sleep(self.size.trouble_s if seconds is None else seconds)

    # Trouble --------------------------------------------------------------------------------------

    @contextmanager
    def trouble(self, cause: str, *whose: Process) -> Iterator[None]:
        """What is done meanwhile may make deliveries come twice, of these consumers or of all."""
        from_us = machine_us()
        yield
        until_us = self._healed_us = machine_us()
        self._cuts += [
            trace.Interruption(one.out.name, cause, from_us, until_us)
            for one in whose or self.stage.consumers
        ]

    def kill(self, one: Process) -> None:
        """End a process as `kill -9` does."""
        at_us = self.stage.kill(one)
        self._healed_us = at_us
        self._killed.append(one)
        self._cuts.append(trace.Interruption(one.out.name, "consumer killed", at_us, at_us))

    @contextmanager
    def frozen(self, *these: Process) -> Iterator[None]:
        """While this lasts these processes stand still."""
        with self.trouble("consumer frozen", *these):
            from_us = machine_us()
            for one in these:
                self.stage.freeze(one)
            try:
                yield
            finally:
                for one in these:
                    self.stage.thaw(one)
        self._healed_us = from_us

    # The end --------------------------------------------------------------------------------------

    def wait_for_all(self) -> list[judge.Put]:
        """Wait until all that was put has been delivered; returns it."""
        stage = self.stage
        puts = stage.wait_for_producers()
        wanted = {one.body for one in puts}
        stage.wait(lambda: wanted <= stage.handed_out(), quiet_s=self.size.quiet_s)
        return puts

    def drain(self) -> None:
        """Wait until all has been delivered, and stop the consumers."""
        stage = self.stage
        self._puts = self.wait_for_all()
        with shardq.connect(self.nodes.url) as db:
            queue = db.queue(self._queue_name, create=False)
            self._hand_outs = stage.finish(queue)
            self.line.left = queue.depth(exact=True).total
            if queue.settings.history_ms:
                self.line.audit = queue.audit()

    def balance(self, *, left: bool = False) -> Line:
        """The end, at which nothing may be lost, early, left, or twice without a cause.

        Args:
            left: Whether rows may be left, which only sweeps of sealed shards find.
        """
        if self._puts is None:
            self.drain()
        self._judge(self._puts or [], self._hand_outs)
        line = self.line
        assert not line.lost, f"lost {len(line.lost)}: {line.lost[:5]}"
        assert not line.early
        assert not line.unexplained, f"twice without a cause: {line.unexplained[:5]}"
        assert not line.foreign, f"never put: {line.foreign[:5]}"
        assert left or not line.left, f"{line.left} rows are left"
        assert line.audit is None or line.audit.is_even, line.audit.misfits[:5]
        return line

    def _judge(self, puts: list[judge.Put], hand_outs: list[judge.HandOut]) -> None:
        line = self.line
        verdict = judge.whole(puts, hand_outs, self._cuts)
        line.messages = verdict.put
        line.lost = [body.decode() for body in verdict.lost]
        line.early = len(verdict.early)
        line.unexplained = [body.decode() for body in verdict.duplicated]
        for cause, count in verdict.excused.items():
            line.causes[cause.rpartition(" ")[0]] += count
        # What a killed producer's last call put, it could not write down.
        cut_short = tuple(f"{one.name}-" for one in self._killed)
        for body in (body.decode() for body in verdict.foreign):
            if cut_short and body.startswith(cut_short):
                line.recovered += 1
            else:
                line.foreign.append(body)
        self._time(puts, hand_outs)

    def _time(self, puts: list[judge.Put], hand_outs: list[judge.HandOut]) -> None:
        healed_us = self._healed_us
        first_us: dict[str, int] = {}
        for one in hand_outs:
            first_us[one.body] = min(one.began_us, first_us.get(one.body, one.began_us))
        waits_us = [
            (began - max(put.due_ms * 1_000, put.acked_us), began)
            for put in puts
            if (began := first_us.get(put.body)) is not None
        ]
        self.line.worst_s = max((wait for wait, _ in waits_us), default=0) / 1e6
        held_up = [began for wait, began in waits_us if wait > LATE_US and began >= healed_us]
        if held_up and healed_us:
            self.line.resumed_s = (max(held_up) - healed_us) / 1e6
