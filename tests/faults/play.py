"""One play: a steady load, trouble in the middle, and the judgement of the results.

The judge reads only the files of the processes. Then the queue's own books must balance.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from proofs import courses, endings, judge, repeats
from proofs.endings import Letter
from proofs.repeats import Kind, Trouble
from proofs.stage import Stage

import shardq
from faults import waits
from faults.table import Line
from shardq.clock import machine_us
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.ids import birth_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from proofs.courses import Course
    from proofs.stage import Process
    from proofs.verdict import Verdict

    from faults.nodes import Nodes
    from faults.proxy import Proxy
    from faults.size import Size
    from faults.turn import Turn
    from shardq.model.message import Row

_Told = TypeVar("_Told")


PRODUCERS = 2
CONSUMERS = 3
THREADS = 4
_TICK_S = 0.5
_LETTERS_MAX = 10_000
_LEFT_MAX = 5
_LATE_MAX = 1_000
_ASKED_MAX = 10
_PRODUCE_S_MAX = 3_600.0
BACK_S = 60
"""How soon after a trouble all delayed messages are delivered; the table shows the time.

A lease lapses in 10 s, and waiting messages are then delivered with care, as fast as the machine
can: on an idle one after two leases and a poll. The sweep of the last minute finds rows in time,
the sweep of the seal only after more than two minutes.
"""
HELD_UP_MAX = 0.25
"""With one node of three away, a smaller share of messages waits for half a lease. If the queue
stood still in a trouble of 10 s, half of them would."""
WORST_S = 75
"""No message waits longer than this: a lease, and the sweep of the last minute."""
_TOLD_CHARACTERS = 10_000
_NOT_RENEWED = "lost: it was not renewed in time"
"""The text that a consumer logs when a lease lapsed."""
_SETTLED_MIN = 0.99
"""The least share of deliveries with recorded outcomes: others excuse their repeats."""
_TROUBLED_MIN = 100
"""At least this many messages must come due in a trouble, to judge the share that it delays."""
_EXCUSED_MAX = 0.01
"""The largest share of messages with a group that may be out of order with a cause."""


class Play:
    """One queue, its producers and consumers, and the troubles that they meet.

    Args:
        stage: Where the processes run.
        nodes: The nodes of the store.
        name: The name of the fault, and the begin of the queue's name.
        size: The size of the load, and the strictness of the judge.
        turn: Tells when the play, and when its trouble, may begin.
        lines: The lines of the table, to which the play adds its own.

    Attributes:
        queue: The queue's name.
        proxy: The proxy between the processes and the nodes; None: there is none.
    """

    def __init__(
        self, stage: Stage, nodes: Nodes, name: str, size: Size, turn: Turn, lines: list[Line]
    ) -> None:
        self.stage = stage
        self.nodes = nodes
        self.size = size
        self.turn = turn
        self.line = Line(name)
        self.proxy: Proxy | None = None
        self._lines = lines
        self._lines.append(self.line)
        # Nodes that are used again have the queues of earlier plays.
        self.queue = f"{name.replace(' ', '-')}-{secrets.token_hex(2)}"
        self._troubles: list[Trouble] = []
        self._killed: list[Process] = []
        self._wanted = 0
        self._loads_until_us = 0
        self._resumes_us = 0
        self._puts: list[judge.Put] | None = None
        self._hand_outs: list[judge.HandOut] = []
        self._letters: list[Letter] = []
        self._left: list[shardq.Message] = []
        self._course: Callable[[str], Course] = courses.course_of

    # The load -------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        shifts_s: Sequence[float] = (0,),
        rate: int | None = None,
        messages: int | None = None,
        history: str = "1d",
        consumers: int = CONSUMERS,
        producers: int = PRODUCERS,
        callers: int = 0,
        threads: int = THREADS,
        plain: bool = False,
        **settings: Any,
    ) -> None:
        """Start consumers and producers, and let all go well for a while.

        Args:
            shifts_s: Seconds by which the processes' wall clocks are wrong, in turn.
            rate: Messages a second of each producer; None: the size's.
            messages: The fewest messages to put; None: the size's.
            history: How long the queue's ledger is kept, for the last audit; "off": no ledger.
            consumers: How many consumers to start, callers among them.
            producers: How many producers to start.
            callers: How many of the consumers are callers, which `receive`.
            threads: Threads of each consumer.
            plain: True if all messages are acked, whatever their bodies ask for.
            settings: The queue's settings.
        """
        # A failed play before this one may have left a node dead.
        self.nodes.start()
        if plain or self.size.is_plain:
            self._course = endings.plain
        with shardq.connect(self.nodes.url) as db:
            settings = {"history": history, **courses.SETTINGS, **settings}
            db.queue(self.queue, **settings)
        for number in range(consumers - callers):
            self.consume(shift_s=shifts_s[number % len(shifts_s)], threads=threads)
        for _ in range(callers):
            self.call()
        rate = rate or self.size.rate
        for number in range(producers):
            self.produce(rate, shift_s=shifts_s[number % len(shifts_s)])
        runs = self.stage.wait(self._runs, quiet_s=self.size.quiet_s)
        assert runs, "nothing is delivered before any fault"
        self._wanted = self.size.messages if messages is None else messages
        load_s = self._wanted / (rate * producers)
        self._loads_until_us = self.stage.clock.boot_us() + round(load_s * 1e6)
        self.stage.sleep(self.size.before_s)
        self.turn.wait_for_trouble()

    def _runs(self) -> bool:
        there = all(one.out.exists() for one in self.stage.producers)
        return there and bool(self.stage.handed_out())

    def consume(self, *, shift_s: float = 0, threads: int = THREADS) -> Process:
        """Start one more consumer."""
        return self.stage.consume(
            self.queue,
            shift_s=shift_s,
            threads=threads,
            work_ms=courses.WORK_MS,
            settled=True,
            courses=self._has_courses,
        )

    def call(self) -> Process:
        """Start one more caller."""
        return self.stage.call(self.queue, courses=self._has_courses)

    @property
    def _has_courses(self) -> bool:
        return self._course is courses.course_of

    def produce(self, rate: int | None = None, *, shift_s: float = 0) -> Process:
        """Start one more producer."""
        return self.stage.produce(
            self.queue,
            rate=rate or self.size.rate,
            seconds=_PRODUCE_S_MAX,
            delays_ms=self.size.delays_ms,
            groups=self.size.groups,
            shift_s=shift_s,
        )

    @contextmanager
    def beside(self, name: str) -> Iterator[Play]:
        """Another play on the same nodes at the same time; begin and judge it as this one."""
        begun_us = self.stage.clock.boot_us()
        directory = self.stage.directory.with_name(name.replace(" ", "_"))
        with Stage(None, self.stage.url, directory, clock=self.stage.clock) as stage:
            other = Play(stage, self.nodes, name, self.size, self.turn, self._lines)
            try:
                yield other
            finally:
                other.line.took_s = (stage.clock.boot_us() - begun_us) / 1e6

    def go_on(self, seconds: float | None = None) -> None:
        """Let the load go on for some seconds; None: as long as the size's trouble lasts."""
        self.stage.sleep(self.size.trouble_s if seconds is None else seconds)

    def wait_for(self, done: Callable[[], bool], seconds: float) -> None:
        """Let the load go on until `done`, for `seconds` at most."""
        clock = self.stage.clock
        deadline_us = clock.boot_us() + round(seconds * 1e6)
        while clock.boot_us() < deadline_us and not done():
            self.stage.sleep(_TICK_S)

    # Trouble --------------------------------------------------------------------------------------

    @contextmanager
    def trouble(
        self,
        cause: str,
        *,
        endured: bool = False,
        kind: Kind = Kind.STORE,
        grace_s: float = 0,
    ) -> Iterator[None]:
        """While this lasts, the store is in trouble, which may cause second deliveries.

        Args:
            cause: The cause in words.
            endured: True if the queue must go on meanwhile.
            kind: The kind of the trouble.
            grace_s: How long tombstones are kept, for zombies.
        """
        from_us = machine_us()
        yield
        until_us = machine_us()
        self._resumes_us = from_us if endured else until_us
        self._troubles.append(
            Trouble(cause, kind, from_us, until_us, grace_us=round(grace_s * 1e6))
        )

    def kill(self, one: Process) -> None:
        """End a process as `kill -9` does."""
        self._resumes_us = at_us = self.stage.kill(one)
        self._killed.append(one)
        if one in self.stage.consumers:
            self._troubles.append(
                Trouble("consumer killed", Kind.KILLED, at_us, at_us, one.out.name)
            )

    @contextmanager
    def frozen(self, one: Process) -> Iterator[None]:
        """While this lasts, a process stands still."""
        self._resumes_us = from_us = self.stage.freeze(one)
        try:
            yield
        finally:
            until_us = self.stage.thaw(one)
        if one in self.stage.consumers:
            self._troubles.append(
                Trouble("consumer frozen", Kind.FROZEN, from_us, until_us, one.out.name, THREADS)
            )

    # The end --------------------------------------------------------------------------------------

    def end_load(self) -> None:
        """Let producers end once they have put the messages that the play needs."""
        stage = self.stage
        stage.sleep(max(self._loads_until_us - stage.clock.boot_us(), 0) / 1e6)
        self.wait_for(lambda: stage.put_count() >= self._wanted, _PRODUCE_S_MAX)
        stage.stop(*(one for one in stage.producers if one not in self._killed))

    def wait_for_all(self) -> list[judge.Put]:
        """End the load, and wait until all messages are delivered; returns their puts."""
        self.end_load()
        stage = self.stage
        puts = stage.wait_for_producers()
        deadly = self._deadly(puts)
        wanted = {one.body for one in puts} - deadly
        stage.wait(
            lambda: wanted <= stage.ended() and deadly <= stage.handed_out(),
            quiet_s=self.size.quiet_s,
        )
        return puts

    def _deadly(self, puts: list[judge.Put]) -> set[str]:
        return {one.body for one in puts if self._course(one.body).is_deadly}

    def drain(self, *, left: bool = False, checked: bool = False) -> None:
        """Wait until all messages are delivered, and stop the consumers.

        Args:
            left: True if rows may be left that only sweeps of sealed shards find.
            checked: True to search for rows that are left, as `shardq check --all` does.
        """
        self.end_load()
        if self.size.overlaps:
            self.turn.healed.set()
        stage = self.stage
        self._puts = self.wait_for_all()
        if self.size.is_plain:
            self._hand_outs = stage.finish()
            return
        dead = len(self._deadly(self._puts))
        # Long timeout: a count reads all tombstones, while other plays keep the machine busy.
        with shardq.connect(f"{self.nodes.url}?timeout=60s") as db:
            queue = db.queue(self.queue, create=False)
            emptied = not (left or checked) and stage.wait_until_empty(queue, dead=dead)
            self._hand_outs = stage.finish()
            if emptied:
                self._consume_late(queue)
            if checked:
                # Only one node has the zombies, so all nodes must answer.
                self.line.dropped = self._of_all_nodes(shardq.Queue.check_all).dropped
            self.line.left = queue.depth(exact=True).total
            self._left = queue.peek(_LEFT_MAX)
            self._letters = [_letter(one) for one in queue.dead.peek(_LETTERS_MAX)]
            if queue.settings.history_ms:
                audit = self.line.audit = queue.audit()
                if not audit.is_even or audit.total.unrecorded:
                    # A put or an end may be on one node only: the others were killed just after,
                    # and their commit logs lack the last tenth of a second. So ask all nodes.
                    self.line.audit = self._of_all_nodes(shardq.Queue.audit)

    def _consume_late(self, queue: shardq.Queue) -> None:
        """Consume rows that a node wrote only after the consumers had ended.

        Such a row is of a move that a consumer gave up, because another had settled the old row. A
        node that stood still first carries out what it was sent, and a node repeats a batch from
        its batch log within 10 s. The next consumer finds the copy.
        """
        rows = [one._row for one in queue.peek(_LATE_MAX)]
        if rows and all(self._was_planned_in_trouble(row) for row in rows):
            self.line.late = len(rows)
            self.consume()
            self._hand_outs = self.stage.finish(queue)

    def _was_planned_in_trouble(self, row: Row) -> bool:
        at_us = birth_us(row.id)
        return any(one.kind is Kind.STORE and _overlap(at_us, one) for one in self._troubles)

    def _of_all_nodes(self, ask: Callable[[shardq.Queue], _Told]) -> _Told:
        """The answer of all nodes together; repeated while one of them is too busy to answer."""
        self.nodes.settle()
        url = f"{self.nodes.url}?timeout=60s&consistency=all"
        for left in range(_ASKED_MAX, 0, -1):
            try:
                with shardq.connect(url) as db:
                    return ask(db.queue(self.queue, create=False))
            except (StoreTimeout, StoreUnavailable):
                if left == 1:
                    raise
                self.stage.sleep(_TICK_S)
        raise AssertionError("never asked")

    def balance(self, *, left: bool = False) -> Line:
        """Drain and judge: nothing may be lost, early, left over, or repeated without a cause.

        Args:
            left: True if rows may be left that only sweeps of sealed shards find.
        """
        if self._puts is None:
            self.drain(left=left)
        puts = self._puts or []
        line = self.line
        if self.size.is_plain:
            self._judge_plainly(puts, self._hand_outs)
        else:
            self._judge(puts, self._hand_outs)
        assert not line.lost, f"lost {len(line.lost)}: {line.lost[:5]}"
        assert not line.early
        assert not line.repeats.unexplained, self._shown_repeats()
        if self.size.is_plain:
            return line
        assert line.messages >= self._wanted, f"{line.messages} of {self._wanted} were put"
        assert not line.foreign, f"never put: {line.foreign[:5]}"
        assert not line.groups.disordered, f"out of order: {line.groups.disordered[:3]}"
        assert not line.groups.together, f"two of a group at a time: {line.groups.together[:3]}"
        excused = f"{line.excused} of {line.groups.messages} out of order, with a cause"
        assert line.excused <= _EXCUSED_MAX * line.groups.messages, excused
        assert left or not line.left, self._shown_left()
        ended = line.endings
        assert not line.groups.passed, f"before one that was put off: {line.groups.passed[:3]}"
        assert not ended.miscounted, f"attempts: {ended.miscounted[:3]}"
        assert not ended.hasty, f"sooner than asked: {ended.hasty[:3]}"
        assert not ended.wrong, f"ended otherwise: {ended.wrong[:5]}"
        assert not ended.unended, f"neither acked nor dead: {ended.unended[:5]}"
        assert not line.uneven, line.uneven
        assert line.audit is None or line.audit.is_even, line.audit.misfits[:5]
        for one in self._troubles:
            assert any(_overlap(put.began_us, one) for put in puts), f"no put meets {one.cause}"
        return line

    def assert_went_on(self) -> None:
        """Judge a trouble that the queue endures: most messages came soon, all in time."""
        line = self.balance()
        if self.size.is_plain:
            return
        assert len(line.troubled) > _TROUBLED_MIN, "too few came due"
        assert waits.held_up(line.troubled) < HELD_UP_MAX, self._shown_waits()
        assert line.worst_s < WORST_S, self._shown_waits()

    def assert_is_back(self) -> None:
        """Judge a trouble that stops the queue: all delayed messages came within `BACK_S`."""
        line = self.balance()
        assert self.size.is_plain or line.back_s < BACK_S, (
            f"{line.back_s:.1f} s: {self._shown_waits()}"
        )

    def logged(self) -> str:
        """The end of each consumer's log, without the driver's attempts to reach a node."""
        told = []
        for one in self.stage.consumers:
            lines = one.log.read_text(errors="replace").splitlines()
            said = "\n".join(line for line in lines if "cassandra.pool" not in line)
            told.append(f"{one.name}\n{said[-_TOLD_CHARACTERS:]}")
        return "\n".join(told)

    def _shown_waits(self) -> str:
        return "; ".join(str(one) for one in self.line.waits[:10])

    def _shown_repeats(self) -> str:
        unexplained = self.line.repeats.unexplained
        shown = "; ".join(f"{one.body}: {why}" for one, why in unexplained[:5])
        first = f"{len(unexplained)} twice without a cause: {shown}"
        return self._shown_course(first, {one.body for one, _ in unexplained[:5]})

    def _shown_left(self) -> str:
        rows = [f"{one.text}: {one._row}" for one in self._left]
        first = "\n".join([f"{self.line.left} rows are left", *rows])
        return self._shown_course(first, {one.text for one in self._left})

    def _shown_course(self, first: str, bodies: set[str]) -> str:
        of_these = [one for one in self._hand_outs if one.body in bodies]
        return "\n".join([first, *map(str, of_these), *map(str, self._troubles)])

    def _judge_plainly(self, puts: list[judge.Put], hand_outs: list[judge.HandOut]) -> None:
        """Judge only lost, early and repeated messages, however long it took."""
        self._judge_whole(puts, hand_outs)
        # A lease not renewed because the machine was busy is a cause too; the consumer logs it.
        starved = [
            Trouble("lease not renewed", Kind.KILLED, one.started_us, one.started_us, one.out.name)
            for one in self.stage.consumers
            if _NOT_RENEWED in one.log.read_text(errors="replace")
        ]
        self.line.repeats = repeats.judge_plainly(
            hand_outs, self._times("settled"), [*self._troubles, *starved]
        )

    def _judge_whole(self, puts: list[judge.Put], hand_outs: list[judge.HandOut]) -> Verdict:
        line = self.line
        verdict = judge.whole(puts, hand_outs)
        line.messages = verdict.put
        line.received = sum(one.is_claim for one in hand_outs)
        line.lost = [body.decode() for body in verdict.lost]
        line.early = len(verdict.early)
        return verdict

    def _times(self, what: str) -> repeats.Times:
        return repeats.read_times(
            one.out.with_name(f"{one.out.name}.{what}") for one in self.stage.consumers
        )

    def _judge(self, puts: list[judge.Put], hand_outs: list[judge.HandOut]) -> None:
        line = self.line
        verdict = self._judge_whole(puts, hand_outs)
        settled, taken = self._times("settled"), self._times("taken")
        known = repeats.known_share(hand_outs, settled, self._troubles)
        assert known >= _SETTLED_MIN, f"of {known:.2%} it is known that they were settled"
        line.repeats = repeats.judge(hand_outs, settled, taken, self._troubles)
        line.endings = endings.judge(
            puts, hand_outs, self._letters, settled, self._troubles, self._course
        )
        line.groups = judge.group_faults(puts, hand_outs, late_us=judge.SLACK_MS * 1_000)
        line.excused = self._excuse(line.groups, settled)
        # A killed producer could not record the puts of its last call.
        cut_short = tuple(f"{one.name}-" for one in self._killed)
        for body in {body.decode() for body in verdict.foreign}:
            if cut_short and body.startswith(cut_short):
                line.recovered += 1
            else:
                line.foreign.append(body)
        sizes = {"put": line.messages, "recovered": line.recovered}
        # Remaining rows, for later sweeps to find, are zombies: their messages have ended.
        left = 0 if self._is_haunted else line.left
        line.uneven = endings.uneven(line.endings, left=left, **sizes)
        if line.audit is not None:
            line.uneven += endings.misbooked(line.endings, line.audit.total, **sizes)
        self._time(puts, hand_outs)

    def _excuse(self, found: judge.GroupFaults, settled: repeats.Times) -> int:
        """Remove the faults of groups that have a cause; returns how many had one."""
        many = len(found.passed) + len(found.together)
        found.passed = [
            pair
            for pair in found.passed
            if not (repeats.was_stored_late(*pair, settled) or pair[0] in self.line.repeats.again)
        ]
        found.together = [
            pair for pair in found.together if not repeats.stood_still(pair, self._troubles)
        ]
        left = len(found.passed) + len(found.together)
        return many - left + len(found.lagged) + len(found.stored_late)

    @property
    def _is_haunted(self) -> bool:
        return any(one.kind is Kind.ZOMBIES for one in self._troubles)

    def _time(self, puts: list[judge.Put], hand_outs: list[judge.HandOut]) -> None:
        line = self.line
        line.waits = waits.waits(puts, hand_outs, self._course)
        if self._troubles:
            from_us = min(one.from_us for one in self._troubles)
            until_us = max(one.until_us for one in self._troubles)
            # Only consumers must go on: a caller takes what it can, and keeps its lanes.
            line.troubled = [
                one for one in waits.within(line.waits, from_us, until_us) if not one.first.is_claim
            ]
        if self._resumes_us:
            line.resumed_s = waits.resumed_s(line.waits, self._resumes_us)
            line.back_s = waits.back_s(line.waits, self._resumes_us)


def _letter(dead: shardq.Message) -> Letter:
    headers = dead.headers
    return Letter(dead.text, int(headers["shardq-attempts"]), headers["shardq-reason"])


def _overlap(at_us: int, trouble: Trouble) -> bool:
    """True if a time is in a trouble, or less than a second before it."""
    return trouble.from_us - 1_000_000 <= at_us <= trouble.until_us
