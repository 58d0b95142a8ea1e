"""Runs seeds, one or many, and makes a failing one smaller."""

from __future__ import annotations

import gc
import json
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.clock import SystemClock
from simulation import mutants
from simulation.case import Breach
from simulation.checker import judge
from simulation.plan import WITHIN, plan_of
from simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from concurrent.futures import Future

SOMETIMES = frozenset(
    {
        "attempt recorded with care",
        "audited meanwhile",
        "by key: cancel: done",
        "by key: cancel: running",
        "by key: edit: done",
        "by key: move: done",
        "by key: put debounce: put",
        "by key: put keep: held",
        "by key: put keep: kept",
        "by key: put reject: taken",
        "by key: put replace: put",
        "by key: recall: done",
        "call late",
        "call lost",
        "call parted",
        "call refused",
        "call slow",
        "call slow_lwt",
        "call twice",
        "call unanswered",
        "caller left",
        "cancelled",
        "clock refused",
        "clock set back",
        "clock set forward",
        "clock stepped",
        "consumer left",
        "crashed",
        "dead letter",
        "extended",
        "fewer lanes",
        "found by sweep sealed 256 min",
        "found by sweep sealed 32 min",
        "found by sweep sealed 4 min",
        "frozen",
        "row edited in place",
        "heartbeat: garbled",
        "heartbeat: liar",
        "heartbeat: terse",
        "joined",
        "kept a history",
        "lane left alone",
        "late batch repaired",
        "late by minutes",
        "late move",
        "late write beaten by its tombstone",
        "late write repaired",
        "leases changed",
        "lease released by a fork",
        "lease taken over unclean",
        "group paused",
        "limits of groups changed",
        "limits of the queue changed",
        "more lanes",
        "paused",
        "purged",
        "put back",
        "row lost behind its queue's back",
        "row parked",
        "stale receipt",
        "stepper left",
        "task paused",
        "store out of reach",
        "struck: cut",
        "struck: fail",
        "struck: lose",
        "struck: stall",
        "surplus moved",
        "surplus moved, or not",
        "unknown write",
        "woke past its lease",
        *(f"with {kind}" for kind in WITHIN),
    }
)
"""Faults that a batch of seeds must meet, because a fault that never occurs proves nothing.
Recorded seeds meet those that a batch may miss."""

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
"""Recorded seeds: those that once failed, with the fault that they still meet; for each fault that
a batch may miss, seeds that meet it; for each mutant, a seed that finds it and the broken rule."""
_SHRINKS = 120
_AHEAD = 8
"""Seeds queued for each process, so that a slow seed does not stop the others."""


@dataclass
class Outcome:
    """The result of one seed."""

    seed: int
    breaches: list[Breach] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    reached: set[str] = field(default_factory=set)
    calls: int = 0
    trace: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def rules(self) -> list[str]:
        """The rules that were broken."""
        return sorted({breach.rule for breach in self.breaches})


def run_seed(
    seed: int,
    without: Collection[str] = (),
    *,
    mutant: str | None = None,
    keep_trace: bool = False,
) -> Outcome:
    """Run one seed.

    Args:
        seed: Decides everything.
        without: The parts of its plan to leave out.
        mutant: A planted bug.
        keep_trace: True to keep a line for every call.
    """
    world = World(plan_of(seed).without(set(without)), keep_trace=keep_trace)
    # Reference cycles live until the end of the run; searching for them takes 10 % of the time.
    gc.disable()
    try:
        with mutants.planted(mutant):
            history = world.run()
    finally:
        gc.enable()
    verdict = judge(history)
    return Outcome(
        seed,
        verdict.breaches,
        verdict.causes,
        history.reached,
        history.calls,
        history.trace,
        world.trace or [],
    )


def run_many(
    seeds: Iterable[int], *, planted: Iterable[str | None] = repeat(None), jobs: int = 1
) -> Iterator[Outcome]:
    """Run seeds, as many at a time as there are jobs, in order.

    Args:
        seeds: The seeds; each is taken only when it is about to be run.
        planted: A mutant for each.
        jobs: How many processes run them, each of which lives until the last seed.
    """
    if jobs == 1:
        for seed, mutant in zip(seeds, planted, strict=False):
            yield run_seed(seed, mutant=mutant)
        return
    # Spawned: a fork of a program that has threads may inherit their locks.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: deque[Future[Outcome]] = deque()
        for seed, mutant in zip(seeds, planted, strict=False):
            running.append(pool.submit(run_seed, seed, mutant=mutant))
            if len(running) >= jobs * _AHEAD:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def shrink(
    outcome: Outcome,
    *,
    mutant: str | None = None,
    runs: int = _SHRINKS,
    seconds: float | None = None,
) -> tuple[list[str], Outcome]:
    """Leave out the parts of a failing seed's plan without which it still breaks the same rule.

    Args:
        outcome: The run that failed.
        mutant: The bug that was planted in it.
        runs: How many plans to try.
        seconds: When to stop trying; None: no limit.

    Returns:
        The names of the parts that were left out, and the run without them.
    """
    clock = SystemClock(0)
    begun_us = clock.boot_us()

    def is_over() -> bool:
        over_us = clock.boot_us() - begun_us
        return tries >= runs or (seconds is not None and over_us > seconds * 1e6)

    rules = set(outcome.rules)
    parts = plan_of(outcome.seed).parts()
    dropped: list[str] = []
    best = outcome
    size = max(len(parts) // 2, 1)
    tries = 0
    # Leave out halves, then quarters, and so on, as delta debugging does.
    while size >= 1 and not is_over():
        at = 0
        while at < len(parts) and not is_over():
            chunk = parts[at : at + size]
            tries += 1
            again = run_seed(outcome.seed, [*dropped, *chunk], mutant=mutant)
            if rules & set(again.rules):
                dropped += chunk
                del parts[at : at + size]
                best = again
            else:
                at += size
        size //= 2
    return dropped, best
