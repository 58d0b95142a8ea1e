"""House rules that a linter cannot see."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import pytest

import shardq
from shardq import aio, errors, tasks, testing

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shardq"
TESTS = ROOT / "tests"

FLOORS = [
    ["errors"], ["locks"], ["clock"],
    ["model"], ["stores"], ["records"], ["lifecycle"], ["engine"], ["inspection"],
    ["schedules"],
    ["queue", "consumer", "connection", "observer"],
    ["tasks"], ["aio"], ["__init__"],
    ["testing"], ["node"], ["bench"], ["pictures"], ["cli"], ["spark"], ["__main__"],
]  # fmt: skip
"""The package from the ground up: a room imports only from its own floor and those below it.

What only a type checker reads counts too. What users import is one floor.
"""

DRIVER_ROOM = "stores/cassandra"
CATCH_ALL_ROOMS = {
    "aio/feed.py",
    "engine/call.py",
    "engine/deliverer.py",
    "engine/outcome.py",
    "lifecycle/producer.py",
    "schedules/foreign.py",
    "tasks/importing.py",
    "tasks/keeping.py",
    "tasks/loop.py",
    "tasks/runner.py",
}
"""Where anything may be caught: around the user's functions and what they raised, and iterables."""

FILE_LINES_MAX = 700
"""A file is split by noun, never by this bound: it stops growth that nobody looks at."""
VAGUE_NAMES = {"utils", "util", "common", "base", "manager", "helper", "helpers", "misc"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".cql", ".sql", ".java", ""}
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
CLOCK_CALLS = {"now", "utcnow", "today"}
ROW_VERBS = {"move", "move_once", "delete"}
SETTLING_ROOM = "lifecycle/settle.py"
"""Where rows move and go: what names them by their places is written before that."""

PUBLIC = [shardq, aio, errors, tasks, testing]
"""What these modules export is public, and nothing else."""
EXPORTED = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in PUBLIC
    for name in module.__all__
}
NAMES = {name.rpartition(".")[2] for name in [*EXPORTED, *(one.__name__ for one in PUBLIC)]}
EXAMPLES = [
    *(ROOT / "scripts" / f"{role}.py" for role in ("consumer", "observer", "producer")),
    *sorted((ROOT / "docs" / "examples").glob("*.py")),
]

MODULES = sorted(PACKAGE.rglob("*.py"))
SPARK_MODULES = sorted((PACKAGE / "spark").rglob("*.py"))
NOT_ON_CONNECT = {
    "sparkContext",
    "rdd",
    "_jvm",
    "_jsparkSession",
    "toPandas",
    "mapInArrow",
    "pandas",
}
TEST_MODULES = sorted(TESTS.rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))


def text_files() -> Iterator[Path]:
    for folder in (PACKAGE, TESTS, ROOT / "cql", ROOT / "scripts", ROOT / ".ci"):
        yield from (path for path in sorted(folder.rglob("*")) if path.suffix in TEXT_SUFFIXES)
    yield from sorted(ROOT.glob("*.md"))
    yield ROOT / "pyproject.toml"


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(path: Path) -> str:
    """A module's path within the package, `stores/sqlite/store.py`."""
    return path.relative_to(PACKAGE).as_posix()


def floor_of(module: str) -> int:
    """On which floor of `FLOORS` a module is, `shardq.stores.url` say."""
    name = module.split(".")[1] if "." in module else "__init__"
    return next(number for number, rooms in enumerate(FLOORS) if name in rooms)


def module_of(path: Path) -> str:
    """A file's dotted name, `shardq.stores` for that of a package."""
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


def is_forked(path: Path) -> bool:
    """Whether users' programs, which may fork, have what is in a module."""
    return floor_of(module_of(path)) <= floor_of("shardq.connection")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported(nodes: Iterator[ast.AST]) -> Iterator[tuple[int, str]]:
    """Each import's line and full name; `from a import b` gives `a.b`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def arrows() -> dict[str, dict[str, int]]:
    """The modules that each module imports, and in which line."""
    known = {module_of(path) for path in MODULES}
    drawn: dict[str, dict[str, int]] = {}
    for path in MODULES:
        own = drawn.setdefault(module_of(path), {})
        for line, name in imported(ast.walk(tree_of(path))):
            target = name if name in known else name.rpartition(".")[0]
            if target in known and target != module_of(path):
                own.setdefault(target, line)
    return drawn


def test_a_room_imports_only_from_its_floor_and_below() -> None:
    climbing = [
        f"{module}:{line} imports {target}, which is above it"
        for module, targets in arrows().items()
        for target, line in targets.items()
        if floor_of(target) > floor_of(module)
    ]
    assert climbing == []


def test_no_imports_go_in_a_circle() -> None:
    drawn = arrows()
    while free := {module for module, targets in drawn.items() if not targets.keys() & drawn}:
        drawn = {module: targets for module, targets in drawn.items() if module not in free}
    assert drawn == {}, "of these, some import each other"


@pytest.mark.parametrize("path", MODULES, ids=room)
def test_only_the_cassandra_store_imports_the_driver(path: Path) -> None:
    found = [line for line, name in imported(ast.walk(tree_of(path))) if is_driver(name)]
    assert not found or room(path).startswith(DRIVER_ROOM)


def is_driver(name: str) -> bool:
    return name.partition(".")[0] == "cassandra"


@pytest.mark.parametrize("path", MODULES, ids=room)
def test_only_spark_s_room_imports_pyspark(path: Path) -> None:
    found = [line for line, name in imported(ast.walk(tree_of(path))) if is_spark_s(name)]
    assert not found or room(path).startswith("spark/")


def is_spark_s(name: str) -> bool:
    return name.partition(".")[0] in {"pyspark", "pyarrow"}


@pytest.mark.parametrize("path", MODULES, ids=room)
def test_only_pictures_and_spark_s_plots_import_what_draws_them(path: Path) -> None:
    found = [line for line, name in imported(ast.walk(tree_of(path))) if is_drawing_s(name)]
    assert not found or room(path).startswith(("pictures/", "spark/"))


def is_drawing_s(name: str) -> bool:
    return name.partition(".")[0] == "matplotlib"


@pytest.mark.parametrize("path", SPARK_MODULES, ids=room)
def test_jobs_in_spark_work_through_spark_connect_and_without_pandas(path: Path) -> None:
    tree = tree_of(path)
    reached = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    imports = [name.partition(".")[0] for _, name in imported(ast.walk(tree))]
    assert not NOT_ON_CONNECT & {*reached, *imports}


@pytest.mark.parametrize("path", MODULES, ids=room)
def test_only_the_clock_reads_time_or_sleeps(path: Path) -> None:
    if room(path) == "clock.py":
        return
    tree = tree_of(path)
    found = [line for line, name in imported(ast.walk(tree)) if name.split(".")[0] == "time"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value).split(".")[-1]
            reads = node.func.attr in CLOCK_CALLS and owner in {"datetime", "date", "pendulum"}
            if reads or (owner, node.func.attr) == ("asyncio", "sleep"):
                found.append(node.lineno)
    assert not found, f"{shown(path)} reads time or sleeps in lines {found}; a clock is passed in"


@pytest.mark.parametrize("path", [path for path in MODULES if is_forked(path)], ids=room)
def test_a_lock_is_one_that_is_free_in_a_forked_child(path: Path) -> None:
    made = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in LOCKS
    ]
    assert not made or room(path) == "locks.py", f"{shown(path)}, lines {made}: locks.py makes them"


@pytest.mark.parametrize("path", MODULES, ids=room)
def test_only_the_user_s_handler_may_raise_anything(path: Path) -> None:
    found = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler) and catches_all(node) and not raises_again(node)
    ]
    assert not found or room(path) in CATCH_ALL_ROOMS, f"{shown(path)} catches all in {found}"


def catches_all(handler: ast.ExceptHandler) -> bool:
    caught = "" if handler.type is None else ast.unparse(handler.type)
    return handler.type is None or bool(re.search(r"\b(Base)?Exception\b", caught))


def raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


@pytest.mark.parametrize("path", MODULES, ids=room)
def test_only_settling_moves_or_deletes_rows(path: Path) -> None:
    if room(path) == SETTLING_ROOM or room(path).startswith(("stores/", "testing/")):
        return
    found = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and node.attr in ROW_VERBS
        and ast.unparse(node.value).split(".")[-1] in {"store", "_store"}
    ]
    assert not found, f"{shown(path)} moves or deletes rows in lines {found}; `Settler` does"


@pytest.mark.parametrize("path", TEST_MODULES, ids=shown)
def test_no_test_sleeps(path: Path) -> None:
    tree = tree_of(path)
    names = {name for _, name in imported(ast.walk(tree))}
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not {"time.sleep", "asyncio.sleep"} & (names | set(calls)), "take a manual clock"


@pytest.mark.parametrize("path", [*MODULES, *TEST_MODULES, *SCRIPTS], ids=shown)
def test_a_file_is_one_noun(path: Path) -> None:
    assert path.stem not in VAGUE_NAMES, "name it for what it holds"
    lines = len(path.read_text().splitlines())
    assert lines <= FILE_LINES_MAX, f"{shown(path)} has {lines} lines; is it one noun?"


@pytest.mark.parametrize("path", [path for path in MODULES if ">>> " in path.read_text()], ids=room)
def test_what_a_docstring_shows_is_so(path: Path) -> None:
    if room(path).startswith("spark/"):
        pytest.importorskip("pyspark", reason="PySpark is not installed")
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted
    assert not done.failed


def test_no_path_of_somebody_s_machine_is_written_down() -> None:
    home = re.compile(r"/(?:home|Users|root|work)/[\w.]")
    found = [
        f"{shown(path)}:{number}"
        for path in text_files()
        if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if home.search(line)
    ]
    assert found == []


def test_what_says_how_to_run_it_can_be_run() -> None:
    run = [path for path in text_files() if path.is_file() and path.read_bytes()[:2] == b"#!"]
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    told = re.findall(r"^(scripts/\w+|\.ci/run) ", guide, re.MULTILINE)
    assert {"scripts/prove", "scripts/simulate", ".ci/run"} <= set(told)
    assert set(told) <= set(map(shown, run))
    for path in run:
        assert path.stat().st_mode & 0o111 == 0o111, f"chmod +x {shown(path)}"


def test_the_tree_of_errors_has_each_of_them_under_what_it_is() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    tree = errors.__doc__ or ""
    for lead, name in re.findall(r"^([│├└─ ]*)([A-Z]\w+)(?=\s|$)", tree, re.MULTILINE):
        depth = len(lead) // 4
        if lead or name == "ShardqError":
            above[depth:] = [name]
            drawn[name] = above[depth - 1] if depth else "Exception"
    made = {
        name: one.__bases__[0].__name__
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.ShardqError)
    }
    assert drawn == made


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_what_a_public_module_exports_is_there(module: ModuleType) -> None:
    assert len(module.__all__) == len(set(module.__all__))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("name", sorted(EXPORTED), ids=str)
def test_what_is_public_speaks_of_public_types_alone(name: str) -> None:
    made = EXPORTED[name]
    if not isinstance(made, type | FunctionType):
        return
    tree = tree_of(Path(inspect.getfile(made)))
    [node] = [one for one in tree.body if getattr(one, "name", None) == made.__name__]
    ours = {full.rpartition(".")[2] for _, full in imported(ast.walk(tree)) if "shardq." in full}
    ours |= {one.name for one in tree.body if isinstance(one, ast.ClassDef)}
    spoken = {word for text in annotations(node) for word in re.findall(r"\w+", text)}
    assert (spoken & ours) - NAMES == set()


def annotations(node: ast.AST) -> Iterator[str]:
    """The types in the signature of a function, or in those of a class's public members."""
    if isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.annotation)
    elif isinstance(node, ast.FunctionDef):
        given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        for one in (*given, node.args.vararg, node.args.kwarg):
            if one is not None and one.annotation is not None:
                yield ast.unparse(one.annotation)
        yield ast.unparse(node.returns) if node.returns is not None else ""
    elif isinstance(node, ast.ClassDef):
        is_made_by_us = "Made by " in (ast.get_docstring(node) or "")
        for member in node.body:
            target = member.target if isinstance(member, ast.AnnAssign) else None
            member_name = getattr(member, "name", getattr(target, "id", ""))
            is_private = member_name.startswith("_") and not member_name.endswith("__")
            if not is_private and not (is_made_by_us and member_name == "__init__"):
                yield from annotations(member)


@pytest.mark.parametrize("path", EXAMPLES, ids=shown)
def test_an_example_uses_public_names_alone(path: Path) -> None:
    tree = tree_of(path)
    public = {module.__name__ for module in PUBLIC}
    names = [name for _, name in imported(ast.walk(tree)) if name.startswith("shardq")]
    exported = {f"{module.__name__}.{name}" for module in PUBLIC for name in module.__all__}
    assert set(names) <= public | exported
    reached = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert [name for name in reached if name.startswith("_")] == []


def test_the_readme_is_short_and_shows_code_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) < 120
    assert any(line.startswith("```") for line in lines[:29])
