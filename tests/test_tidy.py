"""House rules that a linter cannot see."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import sys
import tomllib
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import pytest

import shardq
from shardq import aio, errors, logs, tasks, testing, tracing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shardq"
SPARK = ROOT / "spark" / "pyspark_shardq"
TESTS = ROOT / "tests"

FLOORS = [
    ["errors"], ["locks"], ["clock"], ["child"],
    ["model"], ["logs", "tracing"],
    ["stores"], ["records"], ["lifecycle"], ["engine"], ["inspection"],
    ["schedules"],
    ["queue", "consumer", "connection", "observer"], ["health"], ["metrics"],
    ["tasks"], ["aio"], ["__init__"], ["pictures"], ["server"],
    ["testing"], ["node"], ["bench"], ["cli"], ["pyspark_shardq"], ["__main__"],
]  # fmt: skip
"""The packages from the ground up: a room imports only from its own floor and those below it.

What only a type checker reads counts too. What users import is one floor.
"""

CATCH_ALL_ROOMS = {
    "aio/feed.py",
    "engine/handing/call.py",
    "engine/deliverer.py",
    "engine/handing/outcome.py",
    "lifecycle/producer.py",
    "schedules/triggers/foreign.py",
    "server/app.py",
    "server/jobs.py",
    "tasks/executor.py",
    "tasks/hooks.py",
    "tasks/importing.py",
    "tasks/keeping.py",
    "tasks/loop.py",
    "tasks/runner.py",
}
"""Where anything may be caught: around the user's functions and what they raised, iterables, and
a server's requests."""

VAGUE_NAMES = {"utils", "util", "common", "base", "manager", "helper", "helpers", "misc"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".cql", ".sql", ".java", ""}
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
CLOCK_CALLS = {"now", "utcnow", "today"}
ROW_VERBS = {"move", "delete"}
SETTLING_ROOM = "lifecycle/settle.py"
"""Where rows move and go: what names them by their places is written before that."""

TWINS = {
    "aio/": "the twin of a class that users import",
    "server/api/": "the name of a schema, which clients see",
    "stores/sqlite/": "a store's half of a part that each store has",
    "stores/cassandra/": "likewise, or what implements a protocol of the port",
    "pyspark_shardq/": "`Preview` is public in both",
}
"""Folders whose classes may have the name of a class elsewhere, and why."""

RIDDLES = {"Of", "As", "So", "Who", "Which"}
"""First words after which the thing that is described comes last, or never."""

PUBLIC = [shardq, aio, errors, logs, tasks, testing, tracing]
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

SPARK_MODULES = sorted(SPARK.rglob("*.py"))
MODULES = sorted(PACKAGE.rglob("*.py")) + SPARK_MODULES
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
    for folder in (PACKAGE, SPARK.parent, TESTS, ROOT / "cql", ROOT / "scripts", ROOT / ".ci"):
        yield from (path for path in sorted(folder.rglob("*")) if path.suffix in TEXT_SUFFIXES)
    yield from sorted(ROOT.glob("*.md"))
    yield ROOT / "pyproject.toml"


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(path: Path) -> str:
    """A module's path within its package, `stores/sqlite/store.py`; Spark's with its package."""
    return path.relative_to(SPARK.parent if SPARK in path.parents else PACKAGE).as_posix()


def floor_of(module: str) -> int:
    """On which floor of `FLOORS` a module is, `shardq.stores.url` say; each door is on the top."""
    package, _, within = module.partition(".")
    name = within.partition(".")[0] or "__init__" if package == "shardq" else package
    name = "__main__" if module.endswith(".__main__") else name
    return next(number for number, rooms in enumerate(FLOORS) if name in rooms)


def module_of(path: Path) -> str:
    """A file's dotted name, `shardq.stores` for that of a package."""
    top = SPARK.parent if SPARK in path.parents else ROOT
    dotted = ".".join(path.relative_to(top).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


def is_forked(path: Path) -> bool:
    """True if users' programs, which may fork, have what is in a module."""
    return floor_of(module_of(path)) <= floor_of("shardq.connection")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def at_lines(nodes: Iterable[ast.AST], path: Path) -> list[str]:
    """Where nodes of a file stand, `shardq/queue.py:17`."""
    return [f"{shown(path)}:{node.lineno}" for node in nodes]  # type: ignore[attr-defined]


def importing(package: str, *, outside: tuple[str, ...]) -> list[str]:
    """Where a module of the package imports a distribution, but in these rooms."""
    return [
        f"{shown(path)}:{line} imports {name}"
        for path in MODULES
        if not room(path).startswith(outside)
        for line, name in imports_of(path)
        if name.partition(".")[0] == package
    ]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def dotted(node: ast.AST) -> str:
    """The last two names of a path such as `asyncio.sleep`; an empty text of what is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value).rpartition('.')[2]}.{node.attr}"
    return ""


@cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and full name of each import of a file."""
    return list(imported(nodes_of(path)))


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
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
        for line, name in imports_of(path):
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


@pytest.mark.parametrize(
    ("distribution", "rooms"),
    [
        ("cassandra", ("stores/cassandra/",)),
        ("pyspark", ("pyspark_shardq/",)),
        ("pyarrow", ("pyspark_shardq/",)),
        ("matplotlib", ("pictures/", "pyspark_shardq/plots.py")),
        ("prometheus_client", ("metrics/",)),
        ("uvicorn", ("server/",)),
        ("opentelemetry", ("tracing/",)),
    ],
)
def test_a_distribution_is_imported_in_its_rooms_alone(
    distribution: str, rooms: tuple[str, ...]
) -> None:
    assert importing(distribution, outside=()), "the rule is of nothing"
    assert importing(distribution, outside=rooms) == []


def test_jobs_in_spark_work_through_spark_connect_and_without_pandas() -> None:
    found = [
        f"{shown(path)}: {name}"
        for path in SPARK_MODULES
        for name in sorted(NOT_ON_CONNECT & reached_in(path))
    ]
    assert found == []


def test_spark_submit_finds_no_module_of_ours_in_place_of_python_s() -> None:
    # The directory of the script that it runs comes first where Python looks for modules.
    assert {path.stem for path in SPARK.iterdir()} & set(sys.stdlib_module_names) == set()


def test_both_distributions_have_one_version() -> None:
    project = tomllib.loads((SPARK.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == shardq.__version__
    assert f"shardq[plots]=={shardq.__version__}" in project["dependencies"]


def test_the_page_of_a_distribution_on_an_index_links_to_no_file_beside_it() -> None:
    page = (SPARK.parent / "README.md").read_text()
    assert set(re.findall(r"\]\((.*?:|)", page)) == {"https:"}


def reached_in(path: Path) -> set[str]:
    """Attributes and distributions that a module names."""
    attributes = {node.attr for node in nodes_of(path) if isinstance(node, ast.Attribute)}
    return attributes | {name.partition(".")[0] for _, name in imports_of(path)}


def test_only_the_clock_reads_time_or_sleeps() -> None:
    found = [
        place
        for path in MODULES
        if room(path) != "clock.py"
        for place in [
            *at_lines(filter(reads_time, nodes_of(path)), path),
            *imports_of_time(path),
        ]
    ]
    assert found == [], "a clock is passed in"


def reads_time(node: ast.AST) -> bool:
    """True if a call reads the wall clock or sleeps."""
    called = dotted(node.func) if isinstance(node, ast.Call) else ""
    owner, _, name = called.rpartition(".")
    is_read = name in CLOCK_CALLS and owner in {"datetime", "date", "pendulum"}
    return is_read or called == "asyncio.sleep"


def imports_of_time(path: Path) -> list[str]:
    return [
        f"{shown(path)}:{line}" for line, name in imports_of(path) if name.split(".")[0] == "time"
    ]


def test_a_lock_is_one_that_is_free_in_a_forked_child() -> None:
    found = [
        place
        for path in MODULES
        if is_forked(path) and room(path) != "locks.py"
        for place in at_lines(filter(makes_a_lock, nodes_of(path)), path)
    ]
    assert found == [], "locks.py makes them"


def makes_a_lock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in LOCKS


def test_only_the_user_s_handler_may_raise_anything() -> None:
    catching = {room(path): at_lines(filter(catches_all, nodes_of(path)), path) for path in MODULES}
    found = {name: places for name, places in catching.items() if places}
    assert [places for name, places in found.items() if name not in CATCH_ALL_ROOMS] == []
    assert CATCH_ALL_ROOMS - found.keys() == set(), "these rooms catch all no more"


def catches_all(node: ast.AST) -> bool:
    """True if a handler catches anything and does not raise it again."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = "" if node.type is None else ast.unparse(node.type)
    is_broad = node.type is None or bool(re.search(r"\b(Base)?Exception\b", caught))
    last = node.body[-1]
    return is_broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_only_settling_moves_or_deletes_rows() -> None:
    found = [
        place
        for path in MODULES
        if room(path) != SETTLING_ROOM and not room(path).startswith(("stores/", "testing/"))
        for place in at_lines(filter(changes_rows, nodes_of(path)), path)
    ]
    assert found == [], "`Settler` moves and deletes rows"


def changes_rows(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ROW_VERBS
        and dotted(node.value).rpartition(".")[2] in {"store", "_store"}
    )


def test_no_test_sleeps() -> None:
    # Parsing all tests takes longer than all other rules, and few of them have the word.
    suspects = [path for path in TEST_MODULES if "sleep" in path.read_text()]
    found = [shown(path) for path in suspects if sleeps(path)]
    assert found == [], "take a manual clock"


def sleeps(path: Path) -> bool:
    names = {name for _, name in imports_of(path)}
    calls = {dotted(node.func) for node in nodes_of(path) if isinstance(node, ast.Call)}
    return not {"time.sleep", "asyncio.sleep"}.isdisjoint(names | calls)


def test_a_file_is_named_for_what_it_holds() -> None:
    every = [*MODULES, *TEST_MODULES, *SCRIPTS]
    assert [shown(path) for path in every if path.stem in VAGUE_NAMES] == []


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(room(path))
    several = {name: places for name, places in found.items() if len(places) > 1}
    assert {"Queue", "Schedule"} <= several.keys()
    alone = {
        name: [place for place in places if not place.startswith(tuple(TWINS))]
        for name, places in several.items()
    }
    assert [
        f"{name}: {', '.join(places)}" for name, places in alone.items() if len(places) > 1
    ] == []
    # A folder may repeat names of others, and none of its own.
    for folder in TWINS:
        own = [name for name, places in several.items() for p in places if p.startswith(folder)]
        assert sorted(own) == sorted(set(own))
    in_spark = {
        name
        for name, places in several.items()
        if any(one.startswith("pyspark_shardq/") for one in places)
    }
    assert in_spark == {"Preview"}


def test_what_a_docstring_shows_is_so() -> None:
    has_spark = find_spec("pyspark") is not None
    failed = [
        shown(path)
        for path in MODULES
        if ">>> " in path.read_text() and (has_spark or path not in SPARK_MODULES)
        for done in [doctest.testmod(importlib.import_module(module_of(path)))]
        if done.failed or not done.attempted
    ]
    assert failed == []


def test_a_docstring_begins_with_the_thing_that_it_describes() -> None:
    found = [
        f"{shown(path)}:{node.lineno}: {text.splitlines()[0]}"
        for path in MODULES
        for node, text in docstrings(path)
        if re.split(r"\W", text.lstrip("`"), maxsplit=1)[0] in RIDDLES
    ]
    assert found == []


def docstrings(path: Path) -> Iterator[tuple[ast.Expr, str]]:
    """Texts that are statements of their own, those below assignments too."""
    for node in nodes_of(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and text.strip():
                yield node, text.strip()


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


def test_what_a_public_module_exports_is_there() -> None:
    for module in PUBLIC:
        assert len(module.__all__) == len(set(module.__all__)), module.__name__
        assert [name for name in module.__all__ if not hasattr(module, name)] == []
        assert set(module.__all__) <= set(dir(module)), module.__name__


def test_what_is_public_speaks_of_public_types_alone() -> None:
    found = {name: own for name, one in EXPORTED.items() if (own := private_types(one))}
    assert found == {}


def private_types(made: object) -> set[str]:
    """Our types in the signature of a public function or class that are not public."""
    if not isinstance(made, type | FunctionType):
        return set()
    path = Path(inspect.getfile(made))
    tree = tree_of(path)
    [node] = [one for one in tree.body if getattr(one, "name", None) == made.__name__]
    ours = {full.rpartition(".")[2] for _, full in imports_of(path) if "shardq." in full}
    ours |= {one.name for one in tree.body if isinstance(one, ast.ClassDef)}
    spoken = {word for text in annotations(node) for word in re.findall(r"\w+", text)}
    return (spoken & ours) - NAMES


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


def test_an_example_uses_public_names_alone() -> None:
    public = {module.__name__ for module in PUBLIC} | EXPORTED.keys()
    found = {shown(path): own for path in EXAMPLES if (own := hidden_names(path, public))}
    assert found == {}


def hidden_names(path: Path, public: set[str]) -> set[str]:
    """Names of ours that an example uses and that users cannot rely on."""
    names = {name for _, name in imports_of(path) if name.startswith("shardq")}
    reached = {node.attr for node in nodes_of(path) if isinstance(node, ast.Attribute)}
    return (names - public) | {name for name in reached if name.startswith("_")}


def test_the_readme_is_short_and_shows_code_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) < 120
    assert any(line.startswith("```") for line in lines[:29])
