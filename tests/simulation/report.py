"""The report on a failing seed: the shortest run that was found, and how to repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.plan import plan_of
from simulation.run import Outcome, run_seed, shrink

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINES = 400


def explain(outcome: Outcome, *, mutant: str | None = None, seconds: float | None = None) -> None:
    """Print the shortest run that could be found, and how to repeat it.

    Args:
        outcome: A run that broke a rule.
        mutant: The bug that was planted in it.
        seconds: How long to search for a shorter run; None: without a limit.
    """
    dropped, smallest = shrink(outcome, mutant=mutant, seconds=seconds)
    again = run_seed(outcome.seed, dropped, mutant=mutant, keep_trace=True)
    show(again, dropped, mutant)
    print(f"({outcome.calls:,} store calls before, {smallest.calls:,} now)")


def show(outcome: Outcome, without: Sequence[str], mutant: str | None) -> None:
    """Print the last calls of a run, its plan, its breaches, and how to repeat it."""
    plan = plan_of(outcome.seed).without(set(without))
    for line in outcome.lines[-_LINES:]:
        print(line[:200])
    print(f"seed {outcome.seed}: {plan.settings} {plan.weather}")
    for part in (*plan.machines, *plan.events):
        print(f"  {part}")
    for breach in outcome.breaches:
        print(f"{breach.rule}: {breach.text}")
    print(f"{len(outcome.breaches)} breaches, {outcome.calls:,} calls, trace {outcome.trace}")
    if outcome.breaches:
        command = f"scripts/simulate --seed {outcome.seed}"
        if without:
            command += f" --without {','.join(without)}"
        if mutant:
            command += f" --mutant '{mutant}'"
        print(f"repeat it: {command}")
