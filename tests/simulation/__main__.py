"""The command: run seeds, repeat one, make a failing one smaller, plant bugs."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

from shardq.clock import SystemClock
from simulation import mutants
from simulation.case import FAULT
from simulation.plan import WITHIN, plan_of
from simulation.report import explain, show
from simulation.run import RECORDED, SOMETIMES, Outcome, run_many, run_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EVERY = 25
_BATCH = 200
_MANY = 2_000
"""Seeds enough to meet the rarest fault, which one world in 240 has."""


def main() -> int:
    """Run the command line; returns 1 if a promise was broken or a mutant survived, else 0."""
    options = _options()
    # SIGTERM raises KeyboardInterrupt, so that the worker processes are ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.mutants:
        return _hunt(options.seeds or _BATCH)
    if options.seed is not None:
        return _repeat(options.seed, options.without, options.mutant, shrinks=options.shrink)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    clock = SystemClock(0)
    begun_us = clock.boot_us()
    causes: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    calls = count = 0
    failed: list[Outcome] = []

    def progress() -> str:
        minutes = (clock.boot_us() - begun_us) / 60e6
        return (
            f"{count:,} seeds, {len(failed)} failed, {count / minutes:,.0f} seeds a minute, "
            f"{calls // count:,} store calls a seed"
        )

    told = 0
    for outcome in run_many(_seeds(options, clock), jobs=options.jobs):
        count += 1
        calls += outcome.calls
        causes += outcome.causes
        reached.update(outcome.reached)
        if outcome.breaches:
            failed.append(outcome)
            print(f"seed {outcome.seed} breaks {', '.join(outcome.rules)}", flush=True)
        if count >= told + options.jobs * _EVERY:
            told = count
            print(progress(), flush=True)
    if count > told:
        print(progress(), flush=True)
    print(f"duplicates by cause: {dict(causes.most_common())}")
    print(f"reached, in seeds: {dict(reached.most_common())}")
    wanted = SOMETIMES if count >= _MANY else SOMETIMES - RECORDED["rare"].keys()
    missed = sorted(wanted - set(reached)) if count >= _BATCH and options.of is None else []
    for name in missed:
        print(f"never reached: {name}")
    for outcome in failed[:3]:
        explain(outcome)
    return int(bool(failed or missed))


def _seeds(options: argparse.Namespace, clock: SystemClock) -> Iterator[int]:
    begun_us, drawn = clock.boot_us(), 0
    for seed in itertools.count(options.first):
        over_s = (clock.boot_us() - begun_us) / 1e6
        if options.minutes and over_s > options.minutes * 60:
            return
        if not options.minutes and drawn >= (options.seeds or _BATCH):
            return
        if options.of is None or options.of in plan_of(seed).kinds:
            drawn += 1
            yield seed


def _repeat(seed: int, without: Sequence[str], mutant: str | None, *, shrinks: bool) -> int:
    outcome = run_seed(seed, without, mutant=mutant, keep_trace=True)
    if outcome.breaches and shrinks:
        explain(outcome, mutant=mutant)
    else:
        show(outcome, without, mutant)
    return int(bool(outcome.breaches))


def _hunt(seeds: int) -> int:
    """Print how many seeds each mutant needs until the rule meant for it finds it."""
    survivors = 0
    for name in mutants.MUTANTS:
        _, rule = RECORDED["mutants"].get(name, (0, None))
        others: Counter[str] = Counter()
        for seed in range(seeds):
            rules = run_seed(seed, mutant=name).rules
            # A mutant that makes a world raise was planted, but no rule has found it.
            if rule in rules or (rule is None and set(rules) - {FAULT}):
                print(f"{name:52} {seed + 1:4}  {', '.join(rules)}", flush=True)
                break
            others.update(rules)
        else:
            survivors += 1
            found = f"; broken were {', '.join(sorted(others))}" if others else ""
            print(f"{name:52} survived {seeds} seeds{found}", flush=True)
    return int(survivors > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate",
        description="Run worlds in which much goes wrong, each decided by a seed, and judge them.",
        epilog="Ends with 1 where a promise was broken. A failing seed is made smaller, shown, and "
        "the command that repeats it is printed.",
    )
    parser.add_argument("--seeds", type=_count, help=f"how many to run; {_BATCH} unless given")
    parser.add_argument("--first", type=int, default=0, help="the first of them; 0")
    parser.add_argument(
        "--of", choices=sorted(WITHIN), metavar="KIND", help="only such worlds, as schedules, keys"
    )
    parser.add_argument("--minutes", type=_minutes, help="run for so long instead")
    parser.add_argument(
        "--jobs", type=_count, default=os.cpu_count() or 1, help="processes; all cores"
    )
    parser.add_argument("--seed", type=int, help="run this one alone and show its last calls")
    parser.add_argument("--shrink", action="store_true", help="make that one smaller")
    parser.add_argument("--without", default="", help="parts of its plan to leave out, by commas")
    parser.add_argument(
        "--mutant", choices=mutants.MUTANTS, metavar="NAME", help="with one of the planted bugs"
    )
    parser.add_argument("--mutants", action="store_true", help="how many seeds each one needs")
    options = parser.parse_args()
    options.without = [name for name in options.without.split(",") if name]
    if options.without and options.seed is None:
        parser.error("--without is of one seed; name it with --seed")
    if options.seed is not None:
        plan = plan_of(options.seed)
        unknown = [name for name in options.without if plan.without({name}) == plan]
        if unknown:
            parser.error(f"seed {options.seed} has no part {', '.join(unknown)} to leave out")
    return options


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {count}")
    return count


def _minutes(text: str) -> float:
    if not 0 < (minutes := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
    return minutes


if __name__ == "__main__":
    sys.exit(main())
