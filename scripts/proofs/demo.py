"""Replay a trace through real processes and prove what became of every message.

```
 trace ──► producers (processes) ──► store ──► consumers (processes) ──► out files
   │                                   └► observer, live                     │
   └────────────────────► judge ◄────────────────────────────────────────────┘
```

Consumers may be killed or frozen half way, and clocks set wrong. The judge reads only the files.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

import shardq
from proofs.stage import Stage
from proofs.verdict import Interruption, Verdict, compare, read_deliveries
from shardq.cli import options, run, screen, trace
from shardq.cli.dashboard import Dashboard
from shardq.cli.exits import Exit
from shardq.clock import CORRECTION_VARIABLE, OFFSET_VARIABLE, machine_us
from shardq.errors import UsageError
from shardq.model.times import iso
from shardq.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from proofs.stage import Process
    from shardq.connection import Connection

COMMITS = Path(__file__).parents[2] / "data" / "commits.jsonl.gz"
"""The trace that a checkout of the repository contains."""
_WALL_S = 25.0
"""Seconds in which the trace is replayed if no speed is given."""
_WARM_UP_S = 4.0
"""Seconds until the first line is due: the processes start in this time."""
_LEAD = "5s"
_FROZEN_S = 15.0
"""Seconds for which a consumer is frozen: longer than the lease of 10 s."""
_QUIET_S = 45.0
"""A message that was not delivered this long after the last due is lost: longer than lease, park
and retry."""
_TICK_S = 0.25
_SHOW_S = 1.0
_TELL_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of one run.

    Attributes:
        url: The store.
        queue: A queue that nobody else uses.
        events: The file of the trace.
        limit: How many lines are replayed; None: all.
        speed: Divides the gaps between lines.
        producers: Processes.
        consumers: Processes.
        threads: Handlers of a consumer.
        kill: True to kill the first consumer half way.
        freeze: True to freeze the last consumer half way, for longer than its lease.
        offsets: Seconds by which the processes' clocks are wrong: in turn, producers first.
        corrected: True if the processes correct their clocks.
    """

    url: str
    queue: str
    events: Path
    limit: int | None
    speed: float
    producers: int
    consumers: int
    threads: int
    kill: bool = False
    freeze: bool = False
    offsets: tuple[float, ...] = ()
    corrected: bool = True


@options.command(
    "scripts/demo",
    "scripts/demo --store cassandra://127.0.0.1:9042/demo --kill --freeze",
    "scripts/demo --clock-offsets=-60,+60,-30,+30,0 --no-correction",
)
@options.option("--producers N", "Processes that put.", least=1, most=16, default=2)
@options.option("--consumers N", "Processes that consume.", least=1, most=16, default=3)
@options.option("--threads N", "Handlers of each consumer.", least=1, most=64, default=8)
@options.option("--kill", "Kill a consumer half way, as kill -9 does.")
@options.option("--freeze", "Freeze a consumer half way, past its lease.")
@options.option(
    "--clock-offsets SECONDS,..",
    "Set the processes' clocks wrong, in turn, producers first: -60,+60,0.",
)
@options.option("--no-correction", "Do not correct the wrong clocks.")
@options.option(
    "--speed FACTOR",
    "How much faster than it happened. Where not given, all of it takes 25 s.",
    type=float,
)
@options.option("--limit N", "Replay only the first N lines.", least=1)
@options.option(
    "--from FILE",
    "Replay this trace: JSON lines, each with its time in `at`.",
    name="path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@options.option(
    "--keep DIR",
    "Keep what the consumers wrote, and all logs, in this directory.",
    name="directory",
    type=click.Path(file_okay=False, path_type=Path),
)
def demo(
    *,
    producers: int,
    consumers: int,
    threads: int,
    clock_offsets: str | None,
    speed: float | None,
    limit: int | None,
    path: Path | None,
    directory: Path | None,
    kill: bool,
    freeze: bool,
    no_correction: bool,
) -> Exit:
    """Replay 17 years of commits in 25 s, with many processes, and prove what became of each.

    It runs in a SQLite file of its own where no --store is given. What consumers wrote down is
    compared with what was put. Ends with 1 where a message was lost, doubled or early.
    """
    if speed is not None and not 0 < speed < float("inf"):
        raise click.UsageError(f"--speed must be more than 0, not {speed}.")
    if (kill or freeze) and consumers < 1 + kill + freeze:
        raise click.UsageError("--kill and --freeze need one consumer more than they take away.")
    with ExitStack() as stack:
        if directory is None:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="shardq-demo-"))
            directory = Path(made)
        events = path or COMMITS
        chosen = options.given_url()
        plan = Plan(
            url=chosen or f"sqlite:///{directory.resolve()}/demo.db",
            queue=f"demo-{machine_us() // 1_000}",
            events=events,
            limit=limit,
            speed=speed or _span_ms(events, limit) / (_WALL_S * 1_000) or 1.0,
            producers=producers,
            consumers=consumers,
            threads=threads,
            kill=kill,
            freeze=freeze,
            offsets=_offsets(clock_offsets),
            corrected=not no_correction,
        )
        stack.enter_context(_interrupted_by_signals())
        stage = stack.enter_context(Stage(None, plan.url, directory))
        verdict = Run(plan, stage).run()
    return tell(verdict, plan)


def _span_ms(events: Path, limit: int | None) -> int:
    times = [event.at_ms for event in islice(trace.read(events, "at"), limit)]
    if not times:
        raise UsageError(f"{events} has no lines.")
    return max(times) - times[0]


def _offsets(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise click.UsageError(
            f"--clock-offsets {text!r} must be seconds such as -60,+60."
        ) from error


def tell(verdict: Verdict, plan: Plan) -> Exit:
    """Print the verdict; returns the exit code."""
    wrong_clocks = not plan.corrected
    failed = not verdict.is_proved(with_wrong_clocks=wrong_clocks)
    if options.is_json():
        screen.print_json(
            {
                "put": verdict.put,
                "delivered": verdict.delivered,
                "lost": len(verdict.lost),
                "duplicated": len(verdict.duplicated),
                "in_flight": dict(verdict.excused),
                "early": len(verdict.early),
                "never_put": len(verdict.foreign),
                "late_ms": {f"p{f * 100:g}": verdict.late_ms(f) for f in (0.5, 0.9, 0.99, 1.0)},
                "proved": not failed,
            }
        )
        return Exit.FAILED if failed else Exit.OK
    click.echo("\n".join(["", *verdict.lines(), ""]))
    screen.show(Text(verdict.sentence(with_wrong_clocks=wrong_clocks)))
    return Exit.FAILED if failed else Exit.OK


@dataclass(slots=True)
class Run:
    """One run of a plan.

    Args:
        plan: The plan.
        stage: Its processes.
        as_json: True to print only the verdict to stdout.
    """

    plan: Plan
    stage: Stage
    as_json: bool = False
    interruptions: list[Interruption] = field(default_factory=list)
    _bodies: set[bytes] = field(default_factory=set)

    def run(self) -> Verdict:
        """Run the plan; returns the verdict on all messages.

        Raises:
            ShardqError: If a process ended with an error; the text is the process's.
        """
        plan, stage = self.plan, self.stage
        shardq.init(plan.url)
        with shardq.connect(plan.url) as db:
            queue = db.queue(plan.queue)
            start_ms = machine_us() // 1_000 + round(_WARM_UP_S * 1_000)
            events = islice(trace.read(plan.events, "at"), plan.limit)
            put = list(trace.replay(events, start_ms=start_ms, speed=plan.speed))
            told = [
                f"{len(put):,} messages in {screen.span(put[-1].due_ms - start_ms)}",
                screen.plural(plan.producers, "producer"),
                screen.plural(plan.consumers, "consumer"),
            ]
            self._say(", ".join(told))
            self._say(f"store {db.url_shown}")
            self._start(start_ms)
            self._watch(db, put)
            # Wait until the acks of the last deliveries are stored.
            stage.wait_until_empty(queue)
            stage.stop(*stage.consumers)
        deliveries = []
        for one in stage.consumers:
            if one.out.exists():
                deliveries += read_deliveries(one.out)[0]
        return compare(put, deliveries, self.interruptions)

    def _start(self, start_ms: int) -> None:
        plan, stage = self.plan, self.stage
        clocks = self._environments()
        produce = ["produce", plan.queue, "--from", str(plan.events)]
        produce += ["--speed", repr(plan.speed), "--start", iso(start_ms), "--lead", _LEAD]
        produce += ["--limit", str(plan.limit)] if plan.limit else []
        for number in range(1, plan.producers + 1):
            part = [*produce, "--part", f"{number}/{plan.producers}"]
            stage.producers.append(self._spawn(f"producer-{number}", part, next(clocks)))
        for number in range(1, plan.consumers + 1):
            name = f"consumer-{number}"
            out = str(stage.directory / f"{name}.jsonl")
            consume = ["consume", plan.queue, "--out", out, "--threads", str(plan.threads)]
            stage.consumers.append(self._spawn(name, consume, next(clocks)))

    def _spawn(self, name: str, words: list[str], clock: dict[str, str]) -> Process:
        out = self.stage.file(f"{name}.jsonl")
        return self.stage.spawn(name, ["shardq", *words, "--store", self.plan.url], out, clock)

    def _environments(self) -> Iterator[dict[str, str]]:
        """The environment that sets a process's clock wrong, for each process in turn."""
        correction = {} if self.plan.corrected else {CORRECTION_VARIABLE: "off"}
        for offset in cycle(self.plan.offsets or (0.0,)):
            yield correction | {OFFSET_VARIABLE: str(offset)}

    def _watch(self, db: Connection, put: Sequence[trace.Timed]) -> None:
        """Wait until every body was recorded, or no more are delivered."""
        first_ms = min(message.due_ms for message in put)
        last_ms = max(message.due_ms for message in put)
        wanted = {message.body for message in put}
        trouble = self._trouble((first_ms + last_ms) // 2)
        observer = Observer(db, [self.plan.queue])
        quiet_s = _QUIET_S
        if not self.plan.corrected:
            # Wait longer: a producer's clock may be ahead, and all consumers' clocks behind.
            quiet_s += 2 * max(map(abs, self.plan.offsets), default=0)
        news_us = shown_us = told_us = 0
        with ExitStack() as stack:
            live = self._live(stack)
            while True:
                now_us = machine_us()
                next(trouble)
                if self._read():
                    news_us = now_us
                if live is not None and now_us - shown_us >= _SHOW_S * 1e6:
                    live.update(self._screen(db, observer, len(wanted)), refresh=True)
                    shown_us = machine_us()
                elif live is None and now_us - told_us >= _TELL_S * 1e6:
                    self._say(f"  {len(self._bodies):,} of {len(wanted):,} delivered")
                    told_us = now_us
                if self._bodies >= wanted and self._is_calm(now_us):
                    return
                if now_us - max(last_ms * 1_000, news_us) > quiet_s * 1e6:
                    return
                self.stage.sleep(_TICK_S)

    def _is_calm(self, now_us: int) -> bool:
        """True if all planned kills and freezes are over."""
        wanted = self.plan.kill + self.plan.freeze
        return len(self.interruptions) == wanted and all(
            cut.until_us <= now_us for cut in self.interruptions
        )

    def _trouble(self, half_ms: int) -> Iterator[None]:
        """Kill and freeze consumers at their times; advanced once a tick."""
        stage = self.stage
        while machine_us() < half_ms * 1_000:
            yield
        if self.plan.kill:
            victim, at_us = stage.consumers[0], machine_us()
            self._cut(victim, "killed", at_us, stage.kill(victim))
        if self.plan.freeze:
            victim = stage.consumers[-1]
            at_us = stage.freeze(victim)
            while machine_us() - at_us < _FROZEN_S * 1e6:
                yield
            self._cut(victim, "frozen", at_us, stage.thaw(victim))
        while True:
            yield

    def _cut(self, victim: Process, what: str, from_us: int, until_us: int) -> None:
        self.interruptions.append(Interruption(victim.out.name, what, from_us, until_us))

    def _read(self) -> bool:
        """Read what consumers have written since the last call; True if there was anything."""
        before = len(self._bodies)
        for line in chain.from_iterable(map(self.stage.news, self.stage.consumers)):
            # Skip a line that a kill has cut off; the judge counts such lines.
            with suppress(ValueError):
                self._bodies.add(trace.TraceLine.from_json(line).body)
        return len(self._bodies) > before

    def _live(self, stack: ExitStack) -> Live | None:
        shown = screen.console()
        if self.as_json or not shown.is_terminal:
            return None
        return stack.enter_context(
            Live(console=shown, auto_refresh=False, screen=True, redirect_stdout=False)
        )

    def _screen(self, db: Connection, observer: Observer, total: int) -> RenderableType:
        to = screen.console()
        head = f"delivered {len(self._bodies):,} of {total:,}"
        if self.interruptions:
            head += " | " + ", ".join(f"{c.consumer} {c.what}" for c in self.interruptions)
        dashboard = Dashboard(db.url_shown, ascii_only=to.options.ascii_only)
        lines = (Text(head, no_wrap=True, overflow="ellipsis"), Text())
        below = dashboard.fitted(observer.look(), to.width, to.height - len(lines))
        return Group(*lines, below)

    def _say(self, text: str) -> None:
        click.echo(text, err=self.as_json)


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, unless they are ignored.

    The processes of a run are in sessions of their own: no signal that ends this one reaches them.
    """
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(run(command=demo, name="scripts/demo"))
