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
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ours", "shop")]:
        monkeypatch.delitem(sys.modules, name)
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


@pytest.mark.parametrize("name", ["ours", "ours:app", "ours:other", "shop.ours", "shop.ours:other"])
def test_an_app_is_found_by_its_module_and_attribute(here: Path, name: str) -> None:
    made = "from test_importing import App\napp, other = App(), App()\n"
    write(here / "ours.py", made)
    write(here / "shop" / "ours.py", made)
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
        (
            "ours.none",
            "",
            "there is no module ours.none: ours is a file (ours.py), no package.",
        ),
        ("shop.none", "", "there is no module shop.none in package shop (shop)."),
        (
            "ours",
            "a = 1\nimport requests_of_old\n",
            "module ours cannot be imported: it needs requests_of_old, which is not installed "
            "(ours.py, line 2).",
        ),
        (
            "ours",
            "import shop.helper\n",
            "module ours cannot be imported: ZeroDivisionError: division by zero (shop/helper.py, "
            "line 2).",
        ),
        (
            "ours",
            "import json\njson.loads('[')\n",
            "module ours cannot be imported: JSONDecodeError: Expecting value: line 1 column 2 "
            "(char 1) (ours.py, line 2).",
        ),
        (
            "ours",
            "def (:\n",
            "module ours cannot be imported: SyntaxError: invalid syntax ({here}/ours.py, line 1).",
        ),
        (
            "ours",
            "import sys\nsys.exit(3)\n",
            "module ours cannot be imported: it calls sys.exit(3) (ours.py, line 2).",
        ),
        (
            "ours",
            "class Stop(BaseException): pass\nraise Stop\n",
            "module ours cannot be imported: Stop (ours.py, line 2).",
        ),
        (
            "ours",
            "from shardq.errors import UsageError\nraise UsageError('two tasks are called a.')\n",
            "module ours cannot be imported: two tasks are called a (ours.py, line 2).",
        ),
        (
            "ours",
            f"{MAKES}ours = App()\n",
            "module ours (ours.py) has no app; it has ours:ours.",
        ),
        (
            "ours",
            f"{MAKES}one = App()\ntwo = App()\ndef app(): pass\n",
            "app of module ours (ours.py) is of type function, not App; it has ours:one, ours:two.",
        ),
        (
            "ours:tasks",
            "",
            "module ours (ours.py) has no tasks, and there is no App in it; add app = App(), "
            "outside of functions.",
        ),
        (
            "ours:create_app",
            f"{MAKES}def create_app(): return App()\n",
            "create_app of module ours (ours.py) is of type function, not App, and there is no App "
            "in it; add app = App(), outside of functions.",
        ),
        (
            "sys",
            "",
            "module sys (built into Python) has no app, and there is no App in it; add app",
        ),
        (
            "ours.py",
            "",
            "'ours.py' names a file; name the module, as it is imported from the current "
            "directory: ours:app.",
        ),
        (
            "./shop/ours.py:other",
            "",
            "'./shop/ours.py:other' names a file; name the module, as it is imported from the "
            "current directory: shop.ours:other.",
        ),
        ("ours:", "", "'ours:' names no app; write module:attribute, such as app:app."),
        ("", "", "'' names no app; write module:attribute, such as app:app."),
        ("ours:a.b", "", "'ours:a.b' names no app; write module:attribute, such as app:app."),
        (".ours", "", "'.ours' names no app; write module:attribute, such as app:app."),
    ],
)
def test_an_app_that_cannot_be_imported_is_told_why_in_a_line(
    here: Path, name: str, source: str, said: str
) -> None:
    write(here / "ours.py", source)
    write(here / "shop" / "helper.py", "a = 1\nb = 1 / 0\n")
    assert refused(name).startswith(said.format(here=here))


def test_a_module_that_is_interrupted_is_no_bad_app(here: Path) -> None:
    write(here / "ours.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load("ours", App)


def test_the_sources_of_an_app_are_found_without_importing_it(here: Path) -> None:
    write(here / "ours.py", "1 / 0")
    write(here / "shop" / "__init__.py", "1 / 0")
    assert directory_of("ours:app") == here
    assert directory_of("shop.ours:app") == here
    assert directory_of("none") == here
    # A package that is installed elsewhere.
    assert (directory_of("pytest") / "__init__.py").samefile(pytest.__file__)
