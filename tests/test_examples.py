"""Properties are tried with other examples in each run, and what fails can be repeated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import reproduce_failure
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from test_model import run

TESTS = Path(__file__).parent
REPEATS = re.compile(r"@reproduce_failure\('([^']+)', b'([^']+)'\)")

PLANTED = """
from examples import bounded
from hypothesis import given, reproduce_failure, strategies as st

@bounded(20)
@given(st.integers(0, 1 << 60))
def test_planted(n):
    print("drawn", n)
    assert n < 1_000
"""


def pytest_says(file: Path) -> str:
    """What a run of one file prints, where CI is set."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-s", file],
        env={**os.environ, "CI": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        cwd=file.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done
    return done.stdout


def test_ci_tries_other_examples_in_each_run_and_prints_what_repeats_a_failure(
    tmp_path: Path,
) -> None:
    file = tmp_path / "test_planted.py"
    file.write_text(PLANTED)
    first, second = pytest_says(file), pytest_says(file)
    drawn = [re.findall(r"drawn (\d+)", said) for said in (first, second)]
    assert drawn[0] != drawn[1]
    [printed] = {found.group() for found in REPEATS.finditer(first)}
    file.write_text(PLANTED.replace("@given", f"{printed}\n@given"))
    assert set(re.findall(r"drawn (\d+)", pytest_says(file))) == {"1000"}


class Planted(RuleBasedStateMachine):
    """A model that the third number above a hundred breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.large = 0

    @rule(n=st.integers(0, 1 << 30))
    def look(self, n: int) -> None:
        self.large += n > 100
        assert self.large < 3, "broken"


def test_what_breaks_the_model_can_be_repeated() -> None:
    with pytest.raises(AssertionError, match="broken") as first:
        run(Planted, examples=50, steps=20)
    [printed] = {
        found.groups() for note in first.value.__notes__ for found in REPEATS.finditer(note)
    }
    version, blob = printed

    @reproduce_failure(version, blob.encode())
    class Again(Planted):
        """The same, from what was printed."""

    with pytest.raises(AssertionError, match="broken"):
        run(Again, examples=1, steps=20)
