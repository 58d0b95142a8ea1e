"""Apps that are named on a command line: found, or a sentence that says why not."""

from __future__ import annotations

import importlib
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from shardq.errors import BadApp
from shardq.tasks.importing import directory_of, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class App:
    """What is looked for: these tests need no more of it."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))


def refused(name: str) -> str:
    with pytest.raises(BadApp) as caught:
        load(name, App)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["jobs", "jobs:app", "jobs:other", "shop.jobs", "shop.jobs:other"])
def test_an_app_is_found_by_its_module_and_attribute(here: Path, name: str) -> None:
    made = "from test_importing import App\napp, other = App(), App()\n"
    write(here / "jobs.py", made)
    write(here / "shop" / "jobs.py", made)
    assert isinstance(load(name, App), App)


MAKES = "from test_importing import App\n"


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        (
            "none",
            "",
            "there is no module none in {here}, nor where Python looks for installed ones; start "
            "in the directory that has none.py or none/.",
        ),
        ("jobs.none", "", "there is no module jobs.none: jobs is a file (jobs.py), no package."),
        ("shop.none", "", "there is no module shop.none in package shop (shop)."),
        (
            "jobs",
            "a = 1\nimport requests_of_old\n",
            "module jobs cannot be imported: it needs requests_of_old, which is not installed "
            "(jobs.py, line 2).",
        ),
        (
            "jobs",
            "import shop.helper\n",
            "module jobs cannot be imported: ZeroDivisionError: division by zero (shop/helper.py, "
            "line 2).",
        ),
        (
            "jobs",
            "import json\njson.loads('[')\n",
            "module jobs cannot be imported: JSONDecodeError: Expecting value: line 1 column 2 "
            "(char 1) (jobs.py, line 2).",
        ),
        (
            "jobs",
            "def (:\n",
            "module jobs cannot be imported: SyntaxError: invalid syntax ({here}/jobs.py, line 1).",
        ),
        (
            "jobs",
            "import sys\nsys.exit(3)\n",
            "module jobs cannot be imported: it calls sys.exit(3) (jobs.py, line 2).",
        ),
        (
            "jobs",
            "class Stop(BaseException): pass\nraise Stop\n",
            "module jobs cannot be imported: Stop (jobs.py, line 2).",
        ),
        (
            "jobs",
            "from shardq.errors import UsageError\nraise UsageError('two tasks are called a.')\n",
            "module jobs cannot be imported: two tasks are called a (jobs.py, line 2).",
        ),
        (
            "jobs",
            f"{MAKES}jobs = App()\n",
            "module jobs (jobs.py) has no app; it has jobs:jobs.",
        ),
        (
            "jobs",
            f"{MAKES}one = App()\ntwo = App()\ndef app(): pass\n",
            "app of module jobs (jobs.py) is of type function, not App; it has jobs:one, jobs:two.",
        ),
        (
            "jobs:tasks",
            "",
            "module jobs (jobs.py) has no tasks, and there is no App in it; add app = App().",
        ),
        (
            "sys",
            "",
            "module sys (built into Python) has no app, and there is no App in it; add app",
        ),
        (
            "jobs.py",
            "",
            "'jobs.py' names a file; name the module, as it is imported from the current "
            "directory: jobs:app.",
        ),
        (
            "./shop/jobs.py:other",
            "",
            "'./shop/jobs.py:other' names a file; name the module, as it is imported from the "
            "current directory: shop.jobs:other.",
        ),
        ("jobs:", "", "'jobs:' names no app; write module:attribute, such as app:app."),
        ("", "", "'' names no app; write module:attribute, such as app:app."),
        ("jobs:a.b", "", "'jobs:a.b' names no app; write module:attribute, such as app:app."),
        (".jobs", "", "'.jobs' names no app; write module:attribute, such as app:app."),
    ],
)
def test_an_app_that_cannot_be_imported_is_told_why_in_a_line(
    here: Path, name: str, source: str, said: str
) -> None:
    write(here / "jobs.py", source)
    write(here / "shop" / "helper.py", "a = 1\nb = 1 / 0\n")
    assert refused(name).startswith(said.format(here=here))


def test_a_module_that_is_interrupted_is_no_bad_app(here: Path) -> None:
    write(here / "jobs.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load("jobs", App)


def test_the_sources_of_an_app_are_found_without_importing_it(here: Path) -> None:
    write(here / "jobs.py", "1 / 0")
    write(here / "shop" / "__init__.py", "1 / 0")
    assert directory_of("jobs:app") == here
    assert directory_of("shop.jobs:app") == here
    assert directory_of("none") == here
    # One that is installed elsewhere.
    assert (directory_of("pytest") / "__init__.py").samefile(pytest.__file__)
