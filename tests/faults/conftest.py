"""The nodes that all faults share, the options of `scripts/faults`, and the table at the end."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shardq
from faults import network
from faults.nodes import Nodes
from faults.programme import Programme
from faults.size import GATE, LONG, SHORT
from faults.table import TITLES, Line
from faults.turn import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEFT = {TITLES[0], TITLES[5], TITLES[6], TITLES[-1]}
"""Columns of text."""
_LINES: list[list[Line]] = []
_CI_VARIABLE = "CI"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--gate", action="store_true", help="those of the gate alone, and not timed")
    group.addoption("--long", action="store_true", help="100,000 messages a fault, longer trouble")
    group.addoption("--seed", type=int, help="of what is chosen at random; printed at the end")
    group.addoption("--keep", type=Path, help="keep the files of nodes and processes there")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "root: needs root, and a Linux with iproute2")
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(1 << 32)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.gate:
        _leave_out(config, items, lambda item: not item.callspec.params["fault"].in_gate)
    lacking = network.lacking()
    # In CI no fault is left out in silence: one that cannot be played fails.
    if lacking is None or os.environ.get(_CI_VARIABLE):
        return
    if left_out := _leave_out(config, items, lambda item: item.get_closest_marker("root")):
        names = ", ".join(item.callspec.id for item in left_out)
        config.stash[_LEFT_OUT] = f"left out, for want of {lacking}: {names}"


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], is_out: Callable[[Any], object]
) -> list[Any]:
    """Deselect the tests for which `is_out` is true; returns them."""
    left_out = [item for item in items if is_out(item)]
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    return left_out


_LEFT_OUT = pytest.StashKey[str]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    terminalreporter.write_line(f"seed {config.option.seed}")
    if _LEFT_OUT in config.stash:
        terminalreporter.write_line(config.stash[_LEFT_OUT])
    if not _LINES:
        return
    rows = [TITLES, *(line.cells() for lines in _LINES for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(TITLES))]
    for row in rows:
        cells = (
            cell.ljust(width) if TITLES[column] in _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        terminalreporter.write_line(" | ".join(cells).rstrip())


@pytest.fixture(scope="session")
def files(request: pytest.FixtureRequest) -> Iterator[Path]:
    kept = request.config.option.keep
    if kept is not None:
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="shardq-faults-", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture(scope="session")
def programme(request: pytest.FixtureRequest, files: Path) -> Iterator[Programme]:
    options, clock = request.config.option, Patience()
    size = GATE if options.gate else LONG if options.long else SHORT
    with (
        Nodes(files / "nodes", clock) as nodes,
        Programme(nodes, files, size, options.seed, clock) as programme,
    ):
        shardq.init(nodes.url)
        _LINES.append(programme.lines)
        items = request.session.items
        programme.begin([item.callspec.params["fault"] for item in items])  # type: ignore[attr-defined]
        yield programme
