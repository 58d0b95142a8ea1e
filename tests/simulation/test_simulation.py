"""Seeds that every change runs; that a seed is one run; that planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardq.testing.simulation import Simulation
from shardq.testing.simulation.scheduler import Stuck
from simulation import __main__ as command
from simulation import mutants, watch
from simulation.case import FAULT
from simulation.report import explain
from simulation.run import RECORDED, SOMETIMES, Outcome, run_many, run_seed, shrink

SEEDS = 200
_SHRINK_S = 60.0
"""How long to look for a shorter run of a seed that fails: as long as half of them all take."""
TESTS = Path(__file__).parent.parent


def test_no_seed_breaks_what_is_promised_and_every_fault_is_met() -> None:
    reached: set[str] = set()
    failed: list[Outcome] = []
    for outcome in run_many(range(SEEDS), jobs=os.cpu_count() or 1):
        reached |= outcome.reached
        if outcome.breaches:
            failed.append(outcome)
    for outcome in failed[:1]:
        explain(outcome, seconds=_SHRINK_S)
    assert [
        f"scripts/simulate --seed {outcome.seed} --shrink: {outcome.breaches[0]}"
        for outcome in failed
    ] == []
    assert reached >= SOMETIMES


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest) -> dict[tuple[int, str | None], Outcome]:
    """What came of the recorded runs that are asked for, made on all cores."""
    asked = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    runs: list[tuple[int, str | None]] = [
        *((params["once"], None) for params in asked if "once" in params),
        *((RECORDED["mutants"][p["mutant"]][0], p["mutant"]) for p in asked if "mutant" in p),
    ]
    seeds, planted = zip(*runs, strict=True)
    outcomes = run_many(seeds, planted=planted, jobs=os.cpu_count() or 1)
    return dict(zip(runs, outcomes, strict=True))


@pytest.mark.parametrize("once", RECORDED["seeds"])
def test_a_seed_that_once_failed_fails_no_more(
    once: int, recorded: dict[tuple[int, str | None], Outcome]
) -> None:
    if recorded[once, None].breaches:
        explain(recorded[once, None], seconds=_SHRINK_S)
    assert recorded[once, None].breaches == []


@pytest.mark.parametrize("mutant", RECORDED["mutants"])
def test_a_planted_bug_is_found(
    mutant: str, recorded: dict[tuple[int, str | None], Outcome]
) -> None:
    seed, rule = RECORDED["mutants"][mutant]
    # By what it breaks: another rule may be broken by an error that it only happens to cause.
    assert rule in recorded[seed, mutant].rules


def test_every_planted_bug_has_a_seed_that_finds_it() -> None:
    assert sorted(RECORDED["mutants"]) == sorted(mutants.MUTANTS)
    assert all(0 <= seed < SEEDS for seed, _ in RECORDED["mutants"].values())


def test_a_planted_bug_is_gone_afterwards() -> None:
    for name, edits in mutants.MUTANTS.items():
        before = [getattr(owner, function) for owner, function, _, _ in edits]
        with mutants.planted(name):
            during = [getattr(owner, function) for owner, function, _, _ in edits]
        after = [getattr(owner, function) for owner, function, _, _ in edits]
        assert after == before
        assert during != before


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_is_the_same_run_whatever_the_salt_of_hashes(seed: int) -> None:
    code = f"from simulation.run import run_seed; print(run_seed({seed}).trace)"
    traces = set()
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
        traces.add(done.stdout)
    assert len(traces) == 1
    assert traces == {run_seed(seed).trace + "\n"}


def test_a_failing_seed_is_made_smaller_and_still_fails() -> None:
    name = "an exception acks"
    seed, _ = RECORDED["mutants"][name]
    whole = run_seed(seed, mutant=name)
    dropped, smallest = shrink(whole, mutant=name, runs=20)
    assert dropped
    assert set(smallest.rules) & set(whole.rules)
    assert smallest.calls < whole.calls


def test_a_world_that_spins_ends_with_an_error_rather_than_never() -> None:
    with Simulation(0) as world:

        def spin() -> None:
            while True:
                world.sleep(0)

        world.spawn(world.process("one"), spin, "spinner")
        with pytest.raises(Stuck, match="spinner"):
            world.run(60)


@pytest.mark.parametrize("bound", ["_CALLS_MAX", "_ROWS_MAX"])
def test_a_world_of_calls_or_copies_without_end_is_cut_short_and_judged_as_that_alone(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_seed(0)
    monkeypatch.setattr(watch, bound, 50)
    cut = run_seed(0)
    assert cut.rules == [FAULT]
    assert "50 " in cut.breaches[0].text
    assert cut.calls < whole.calls // 2


def test_a_failing_seed_prints_its_shortest_run_and_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "an exception acks"
    seed, rule = RECORDED["mutants"][name]
    explain(run_seed(seed, mutant=name), mutant=name, seconds=0)
    told = capsys.readouterr().out
    assert f"\n{rule}: " in told
    assert f"repeat it: scripts/simulate --seed {seed}" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "0"], "argument --seeds: must be at least 1, not 0"),
        (["--seeds", "-5"], "argument --seeds: must be at least 1, not -5"),
        (["--jobs", "0"], "argument --jobs: must be at least 1, not 0"),
        (["--minutes", "nan"], "argument --minutes: must be more than 0, not nan"),
        (["--seed", "7", "--without", "nosuch,e99,m1"], "seed 7 has no part nosuch, e99 to leave"),
        (["--without", "m1"], "--without is of one seed"),
    ],
)
def test_a_command_that_would_prove_nothing_is_refused(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
