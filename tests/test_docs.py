"""What the documentation says is so: its code runs, and its tables agree with the code.

The blocks of a page run one after the other, in one directory and one namespace:

- `python` runs here; with a `title="name.py"` it becomes that file;
- `bash` runs with this checkout's `shardq` on the path; what one block exports, the next ones have;
- `output` is what the block before it has printed, where `...` stands for anything.

A block that cannot be run follows a comment that says why: `<!-- skip: next "needs a network" -->`.
"""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

import pytest
from jobs import at_home, bash
from manual import commands
from packaging.requirements import Requirement
from sybil import Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

import shardq
import shardq.aio
import shardq.logs
import shardq.tasks
import shardq.testing
import shardq.tracing
from shardq import errors
from shardq.cli.exits import Exit, exit_of
from shardq.cli.work import work
from shardq.model import settings
from shardq.model.times import duration_text
from shardq.records.actions import What
from shardq.schedules import policy, schedule
from shardq.schedules.definition import NAME_MAX
from shardq.schedules.options import BODY_BYTES_MAX
from shardq.schedules.schedule import BACKFILL_MAX
from shardq.schedules.stored import LEAD_LOCAL_MS, LEAD_MS, TOGETHER_MS
from shardq.schedules.triggers.foreign import STATE_MAX
from shardq.schedules.triggers.rules import DEPTH_MAX, INTERVAL_MS_MIN, PARTS_MAX
from shardq.server.grants import Level
from shardq.stores import sqlite
from shardq.stores.cassandra import address as cassandra_address
from shardq.stores.sqlite import address as sqlite_address
from shardq.tasks import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil import Document

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MADE = {DOCS / "reference" / "cli.md"}
"""Made from the code by `scripts/docs`."""
SPARK_PAGE = DOCS / "spark.md"
PAGES = [ROOT / "README.md", *sorted(set(DOCS.rglob("*.md")) - MADE)]

PORT = "9324"
"""Where pages have a server; a free port takes its place."""
BACKGROUND = ".background"
"""Where the numbers of processes are that a page has begun in the background."""
CASSANDRA = "cassandra://127.0.0.1:9042/shardq"
"""Where pages have a Cassandra; the tests' own takes its place."""
ON_CASSANDRA = pytest.mark.cassandra
SKIPPED = re.compile(r"<!--+\s*skip:(.*?)--+>")
TIMEOUT_S = 300
_OUTPUT = "printed by the block before"
_CHECKER = doctest.OutputChecker()
_LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_PIP = re.compile(r"^pip install (.*)$", re.MULTILINE)


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages(*, on_cassandra: bool) -> list[Any]:
    """The pages that name a Cassandra, or the others, as parameters of tests."""
    return [
        pytest.param(page, id=shown(page))
        for page in PAGES
        if page != SPARK_PAGE and (CASSANDRA in page.read_text()) == on_cassandra
    ]


# Code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(on_cassandra=False))
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(page, page.read_text(), tmp_path, monkeypatch)


@pytest.mark.spark
def test_the_code_of_the_page_of_spark_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    shutil.copy(ROOT / "data" / "commits.jsonl.gz", tmp_path)
    with at_home(request.getfixturevalue("spark"), tmp_path):
        run(SPARK_PAGE, SPARK_PAGE.read_text(), tmp_path, monkeypatch)


@pytest.mark.parametrize("page", pages(on_cassandra=True))
def test_the_code_of_a_page_runs_on_cassandra(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_url: str
) -> None:
    run(page, page.read_text().replace(CASSANDRA, own_url), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("cassandra", marks=[ON_CASSANDRA, pytest.mark.nightly])]
)
def test_the_first_program_of_the_readme_runs_on_either_store_by_its_url_alone(
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    before, after = "", "```output\n...welcome, ada de...welcome, bob en...\n```\n"
    if store == "cassandra":
        url = request.getfixturevalue("own_url")
        before = f"```bash\nexport SHARDQ_STORE='{url}'\nshardq init\n```\n"
    first = PAGES[0].read_text().partition("shardq work")
    text = f"{before}{first[0]}{first[1]}{first[2].partition('```')[0]}```\n{after}"
    run(PAGES[0], text, tmp_path, monkeypatch)


def run(page: Path, text: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a page in the order in which they stand."""
    monkeypatch.chdir(directory)
    monkeypatch.delenv("SHARDQ_STORE", raising=False)
    # A failure names the page's line: the copy has the same lines.
    copy = directory / f".{page.name}"
    copy.write_text(text.replace(PORT, str(free_port())))
    try:
        for example in SYBIL.parse(copy).examples():
            with contextlib.suppress(SkipTest):
                example.evaluate()
    finally:
        end_background()


def end_background() -> None:
    """End what a block has begun in the background and no later one has ended."""
    begun = Path(BACKGROUND)
    for pid in begun.read_text().split() if begun.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def write_file(example: Example) -> None:
    Path(example.region.lexemes["name"]).write_text(example.parsed)


def run_python(example: Example) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        PythonEvaluator()(example)
    example.namespace[_OUTPUT] = printed.getvalue()


def run_bash(example: Example) -> str | None:
    block = _PIP.sub(_installed, example.parsed)
    exported = Path(".exported")
    exported.touch()
    before = f". ./{exported}\ntrap 'jobs -p >> {BACKGROUND}' EXIT"
    code, printed = bash(
        f"{before}\n{block}\nexport -p | grep -v '^declare -x PATH=' > {exported}",
        os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            # test_plugin tests that pytest finds our plugin by itself.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "shardq.testing.plugin",
        },
        TIMEOUT_S,
    )
    example.namespace[_OUTPUT] = printed
    return None if code == 0 else f"ended with {code}:\n{printed}"


def _installed(line: re.Match[str]) -> str:
    """Nothing is fetched: the checkout is what would be installed, with the extras that it has."""
    projects = [
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (ROOT, ROOT / "spark")
    ]
    extras = {one["name"]: one.get("optional-dependencies", {}) for one in projects}
    for wanted in shlex.split(line[1], comments=True):
        asked = Requirement(wanted)
        assert asked.extras <= extras[asked.name].keys()
    return ""


def compare(example: Example) -> str | None:
    printed, wanted = example.namespace[_OUTPUT], example.parsed
    if _CHECKER.check_output(wanted, printed, _LENIENT):
        return None
    return _CHECKER.output_difference(doctest.Example("", wanted), printed, _LENIENT)


def files(document: Document) -> Iterator[Region]:
    """The blocks that are files."""
    info = re.compile(r'\w+ title="(?P<name>[^"]+)"$\n', re.MULTILINE)
    for region in RawFencedCodeBlockLexer(info)(document):
        region.parsed, region.evaluator = region.lexemes["source"], write_file
        yield region


SYBIL = Sybil(
    parsers=[
        SkipParser(),
        files,
        CodeBlockParser("python", run_python),
        CodeBlockParser("bash", run_bash),
        CodeBlockParser("output", compare),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_code_that_is_not_run_has_a_reason(page: Path) -> None:
    for action in SKIPPED.findall(page.read_text()):
        assert re.fullmatch(r'\s*(next|start) ".+"\s*|\s*end\s*', action)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_page_s_blocks_are_of_languages_that_the_tests_know(page: Path) -> None:
    opened = re.findall(r"^ *```(\w+)", page.read_text(), re.MULTILINE)
    assert set(opened) <= {
        "python", "bash", "output", "text", "cql", "yaml", "ini", "dockerfile",
        "javascript",
    }  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [PAGES[0], *(DOCS / name for name in ("index.md", "start.md", "queue.md"))],
    ids=shown,
)
def test_what_a_newcomer_reads_first_can_be_pasted_into_python(page: Path) -> None:
    for block in re.findall(r"```python[^\n]*\n(.*?)```", page.read_text(), re.DOTALL):
        # Python ends an indented block there, at its prompt.
        assert not re.search(r"\n\n +", block), block
        assert "import shardq\n" in block, block


@pytest.mark.parametrize("page", [PAGES[0], DOCS / "index.md", DOCS / "start.md"], ids=shown)
def test_what_a_newcomer_reads_first_leads_into_tasks_and_then_into_the_queue(page: Path) -> None:
    task, consumer = (page.read_text().find(text) for text in ("@app.task", "shardq.Consumer("))
    assert -1 < task < consumer


# Tables -------------------------------------------------------------------------------------------


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The first table below a heading: each row's cells by its first, without their backticks."""
    text = "\n" + (DOCS / page).read_text()
    assert f"\n{heading}\n" in text
    found: dict[str, list[str]] = {}
    for line in text.partition(f"\n{heading}\n")[2].splitlines():
        if line.startswith("#") or (found and not line.startswith("|")):
            break
        if line.startswith("| `"):
            cells = [cell.strip().replace("`", "") for cell in line.strip("|").split(" | ")]
            found[cells[0]] = cells[1:]
    return found


def test_the_settings_page_has_every_setting_with_its_default_and_bounds() -> None:
    wanted = {}
    for name, choice in settings.CHOICES.items():
        stored, bounds = choice.stored, choice.bounds
        words = {"dead": "a queue, off", "keyed": "no, yes"}.get(
            stored, choice.form.replace("|", ", ")
        )
        said = " to ".join(settings.said(stored, one) for one in bounds) if bounds else words
        default = settings.text_of(settings.create({}, 0), name)
        words_of = {
            "history": ", off",
            "retention": ", off",
            "depth_max": ", off",
            "lanes": ", auto",
        }
        more = words_of.get(name, "")
        wanted[name] = [
            default,
            f"{said}{more}",
            "no" if stored in settings.FIXED else "yes",
        ]
    written = rows("reference/settings.md", "## Settings of a queue")
    assert {name: cells[:3] for name, cells in written.items()} == wanted


def test_the_settings_page_has_every_parameter_of_a_consumer_with_its_default() -> None:
    given = inspect.signature(shardq.Consumer).parameters.values()
    wanted = {one.name: one.default for one in given if one.kind is one.KEYWORD_ONLY}
    written = rows("reference/settings.md", "## Parameters of a consumer")
    wanted |= {"member": "made up", "on_dead": "none"}
    plain = {False: "no"}
    assert {name: cells[0] for name, cells in written.items()} == {
        name: plain.get(default, f"{default:,}" if type(default) is int else default)
        for name, default in wanted.items()
    }


@pytest.mark.parametrize("name", ["threads", "prefetch"])
def test_the_bounds_of_a_consumer_s_parameter_are_those_of_the_settings_page(name: str) -> None:
    text = rows("reference/settings.md", "## Parameters of a consumer")[name][1]
    least, most = (int(bound.replace(",", "")) for bound in text.split(" to "))
    with shardq.connect("sqlite://") as db:
        for value in (least, most):
            shardq.Consumer(db.queue("q"), print, **{name: value})  # type: ignore[arg-type]
        for value in (least - 1, most + 1):
            with pytest.raises(errors.BadSetting):
                shardq.Consumer(db.queue("q"), print, **{name: value})  # type: ignore[arg-type]


def url_options(heading: str) -> dict[str, list[str]]:
    """The rows of a table of options, by name: an example of each, its default, and the text."""
    written = rows("reference/urls.md", heading)
    return {example.partition("=")[0]: [example, *cells] for example, cells in written.items()}


def test_the_page_of_urls_has_every_option_of_sqlite() -> None:
    written = url_options("### Options of SQLite")
    assert written.keys() == {option.partition("=")[0] for option in sqlite_address._OPTIONS}
    assert written["busy"][1] == duration_text(sqlite_address.BUSY_MS)
    store = inspect.signature(sqlite.SqliteStore).parameters
    assert written["synchronous"][1] == store["synchronous"].default
    assert all(value in written["synchronous"][2] for value in sqlite_address._SYNCHRONOUS)
    for example, *_ in written.values():
        sqlite_address.read_url(f"sqlite:///jobs.db?{example}")


def test_the_page_of_urls_has_every_option_of_cassandra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = url_options("### Options of Cassandra")
    assert written.keys() == cassandra_address._OPTIONS.keys()
    default = cassandra_address.read_url("cassandra://host")
    assert written["consistency"][1] == default.consistency
    assert written["tls"][1] == default.tls
    assert written["timeout"][1] == duration_text(default.timeout_ms)
    for name, values in {
        "consistency": cassandra_address.CONSISTENCIES,
        "tls": cassandra_address.TLS,
    }.items():
        assert all(value in written[name][2] for value in values)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "secret")
    for file in ("ca.pem", "client.pem"):
        Path(file).touch()
    for name, (example, *_) in written.items():
        needed = {"user": "&password=secret", "password": "&user=me", "password_env": "&user=me"}
        needed |= dict.fromkeys(("ca", "cert", "tls_name"), "&tls=on")
        other = needed.get(name, "")
        cassandra_address.read_url(f"cassandra://host/jobs?{example}{other}")


def test_the_page_of_tasks_has_every_option_and_says_which_are_of_a_put_alone() -> None:
    written = rows("tasks.md", "## Options")
    of_tasks, of_puts = (
        set(one.__annotations__) for one in (shardq.tasks.TaskOptions, shardq.tasks.CallOptions)
    )
    of_declared = set(shardq.tasks.DeclaredOptions.__annotations__)
    assert written.keys() == of_declared | of_puts
    of_app_task = {name for name, cells in written.items() if "Only of app.task" in cells[-1]}
    assert of_app_task == of_declared - of_tasks
    of_puts_alone = {name for name, cells in written.items() if "Only of a put" in cells[-1]}
    assert of_puts_alone == of_puts - of_tasks
    usual = options.Policy()
    assert written["attempts"][0] == str(usual.attempts)
    assert "1 s, doubling to 1 h" in written["backoff"][0]
    backoff = shardq.tasks.Backoff("1s", factor=2, longest="1h", jitter=0.2)
    assert backoff == options._USUAL


def test_the_page_of_tasks_has_every_state_of_a_job() -> None:
    _, *states = rows("tasks.md", "## Results and progress")
    assert states == [state.value for state in shardq.tasks.JobState]


def test_the_page_of_tasks_has_all_that_a_running_job_tells() -> None:
    _, *written = rows("tasks.md", "## The running job")
    told = {name for name in vars(shardq.tasks.Context) if not name.startswith("_")}
    of_the_worker = {"on_progress", "is_asked_to_stop", "is_stopped", "begin", "end"}
    assert told - of_the_worker <= set(re.findall(r"\w+", " ".join(written)))


def test_the_page_of_tasks_has_options_of_workers_as_they_are() -> None:
    of_work = {one.opts[0]: one for one in work.params if one.param_type_name == "option"}
    for example in rows("tasks.md", "## Workers"):
        name, _, value = example.partition(" ")
        assert name in of_work, name
        if name in ("--threads", "--coroutines", "--deadline"):
            assert str(of_work[name].default) == value


def test_the_page_of_schedules_has_every_policy_with_its_choices_and_its_default() -> None:
    written = rows("schedules.md", "## Policies")
    spans = {example.partition("=")[0] for example in written if example not in _choices()}
    assert written.keys() >= _choices()
    assert spans == set(policy._SPANS)
    usual = policy.Policies()
    for example, cells in written.items():
        name, _, choice = example.replace('"', "").partition("=")
        # The default of `twice` is the trigger's.
        is_default = choice in (getattr(usual, name, None) or ("first", "both"))
        assert cells[0].startswith("the default") == is_default


def _choices() -> set[str]:
    return {f'{name}="{one}"' for name, some in policy._CHOICES.items() for one in some}


def test_the_page_of_schedules_has_limits_and_times_as_they_are() -> None:
    text = (DOCS / "schedules.md").read_text()
    limits = text.partition("\n## Limits\n")[2]
    for most in (NAME_MAX, BACKFILL_MAX, PARTS_MAX, DEPTH_MAX, STATE_MAX):
        assert f"{most:,}" in limits
    assert f"| {BODY_BYTES_MAX >> 10} KiB" in limits
    assert f"| {INTERVAL_MS_MIN // 1_000} s or more" in limits
    for lead_ms in (LEAD_LOCAL_MS, LEAD_MS):
        assert f"{lead_ms / 1_000} s before" in text
    change = text.partition("**A change is exact**")[2].partition("\n\n")[0]
    most_ms = LEAD_MS + schedule._SOON_MS + TOGETHER_MS
    local_ms = LEAD_LOCAL_MS + TOGETHER_MS
    assert f"within {local_ms / 1_000} s, on Cassandra {most_ms / 1_000} s" in change
    assert policy.MISSED_MS == 60_000
    assert "for over a minute" in text


def test_the_page_of_accounts_has_every_level_and_every_command_that_is_recorded() -> None:
    written = rows("accounts.md", "## Levels")
    assert {letter: cells[0] for letter, cells in written.items()} == {
        level.value: level.name.lower() for level in Level
    }
    recorded = ", ".join(rows("accounts.md", "## What was done")).split(", ")
    assert sorted(recorded) == sorted(What)


def test_the_page_of_exit_codes_has_every_code_and_every_error() -> None:
    written = rows("reference/exits.md", "# Exit codes")
    assert sorted(map(int, written)) == sorted({int(code) for code in Exit})
    for name in re.findall(r"\[(\w+)\]\(errors", (DOCS / "reference" / "exits.md").read_text()):
        code = exit_of(getattr(errors, name)(""))
        assert name in " ".join(written[str(int(code))])


# References ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "package"),
    [
        ("api.md", shardq),
        ("api.md", shardq.logs),
        ("api.md", shardq.tracing),
        ("aio.md", shardq.aio),
        ("tasks.md", shardq.tasks),
        ("testing.md", shardq.testing),
    ],
    ids=["api", "logs", "tracing", "aio", "tasks", "testing"],
)
def test_the_reference_has_all_that_is_exported(page: str, package: Any) -> None:
    text = (DOCS / "reference" / page).read_text()
    written = re.findall(rf"^::: {re.escape(package.__name__)}\.(\w+)$", text, re.MULTILINE)
    # Errors are all on the page of their module.
    exported = [name for name in package.__all__ if name != "errors" and not hasattr(errors, name)]
    assert sorted(written) == sorted(exported)


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    made = "\n".join(commands.page()) + "\n"
    assert next(iter(MADE)).read_text() == made, "scripts/docs makes it anew"
    for one in commands.below(commands.ROOT):
        assert f"\n## `{one.command_path}`\n" in made


def test_every_page_is_in_the_site_s_navigation() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    named = set(re.findall(r"'([\w/-]+\.md)'", str(config["project"]["nav"])))
    assert named == {path.relative_to(DOCS).as_posix() for path in {*PAGES[1:], *MADE}}
