"""The pytest plugin `shardq`: a sandbox for a test, and apps that take part in each sandbox.

pytest imports this module in every run if shardq is installed. So the module imports nothing else
until a test asks for a sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.testing.sandbox import Sandbox

_APPS = "shardq_apps"
_MARKER = "shardq"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting that names apps."""
    parser.addini(
        _APPS,
        "apps that are in each shardq_sandbox, as shardq work names them: module:app",
        type="args",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(*actors, start=.., inline=.., raises=..): with what, and how, this test's "
        f"shardq_sandbox is made",
    )


@pytest.fixture
def shardq_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A shardq.testing.Sandbox: the apps of this project on a clock of their own.

    The apps that `shardq_apps` names and the arguments of the marker `shardq` take part in it.
    """
    from shardq.tasks.app import App
    from shardq.tasks.importing import load
    from shardq.testing.sandbox import Sandbox

    marker = request.node.get_closest_marker(_MARKER)
    actors, settings = ((), {}) if marker is None else (marker.args, marker.kwargs)
    apps = [load(name, App) for name in request.config.getini(_APPS)]
    with Sandbox(*apps, *actors, **settings) as sandbox:
        yield sandbox
