"""The worlds that every change runs; that a seed is one run; that planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation import mutants
from simulation.report import explain
from simulation.run import RECORDED, SOMETIMES, run_seed

GATE_WORLDS: list[int] = RECORDED["gate worlds"]
"""The same before every change, so that a change fails by what it changes. They meet each fault at
least once; scripts/nightly runs all of the first 200, and others that nobody has seen yet."""
NIGHTLY_WORLDS = [seed for seed in range(200) if seed not in GATE_WORLDS]
_WORLDS = 10
"""So many are one test: two processes share them to the end."""
_SHRINK_S = 60.0
"""How long to look for a shorter run of a seed that fails: as long as half of them all take."""
TESTS = Path(__file__).parent.parent


def batches(seeds: list[int]) -> list[list[int]]:
    return [seeds[first : first + _WORLDS] for first in range(0, len(seeds), _WORLDS)]


@pytest.mark.parametrize(
    "seeds",
    [
        *batches(GATE_WORLDS),
        *(pytest.param(batch, marks=pytest.mark.nightly) for batch in batches(NIGHTLY_WORLDS)),
    ],
    ids=lambda batch: f"{batch[0]}-{batch[-1]}",
)
def test_no_seed_breaks_what_is_promised(seeds: list[int]) -> None:
    for seed in seeds:
        outcome = run_seed(seed)
        if outcome.breaches:
            explain(outcome, seconds=_SHRINK_S)
            pytest.fail(f"scripts/simulate --seed {seed} --shrink: {outcome.breaches[0]}")


@pytest.mark.nightly
@pytest.mark.parametrize("fault", RECORDED["rare"])
def test_a_fault_that_few_worlds_meet_is_met_by_a_seed_of_its_own(fault: str) -> None:
    assert fault in SOMETIMES
    # A change that moves what calls take may take it from one of them, and not from all.
    assert any(fault in run_seed(seed).reached for seed in RECORDED["rare"][fault])


@pytest.mark.parametrize("seed", RECORDED["seeds"])
def test_a_seed_that_once_failed_fails_no_more(seed: str) -> None:
    outcome = run_seed(int(seed))
    if outcome.breaches:
        explain(outcome, seconds=_SHRINK_S)
        pytest.fail(f"{RECORDED['seeds'][seed]}: {outcome.breaches[0]}")


@pytest.mark.parametrize(
    "mutant",
    [
        name if name in RECORDED["gate mutants"] else pytest.param(name, marks=pytest.mark.nightly)
        for name in mutants.MUTANTS
    ],
)
def test_a_planted_bug_is_found(mutant: str) -> None:
    seed, rule = RECORDED["mutants"][mutant]
    # By what it breaks: another rule may be broken by an error that it only happens to cause.
    assert rule in run_seed(seed, mutant=mutant).rules


def test_a_seed_is_the_same_run_whatever_the_salt_of_hashes() -> None:
    code = "from simulation.run import run_seed; print(run_seed(165).trace)"
    for salt in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": salt,
            "PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == run_seed(165).trace + "\n"
