"""Unchanged clients of SQS, each in its language: one round against a server with an account.

`tests/clients/` has their programs. Each makes a queue whose dead letters go to another one; sends,
receives, extends and deletes; lets a message fail until it is dead, and redrives it; sends to a
FIFO queue, one message twice; and is refused with a wrong key. It ends with 0, or says why not.

Libraries are fetched once, into `.venv/clients`. Where a language's tools are missing its tests are
skipped; under CI they fail.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import test_docs
from served import Server, serving
from shell import Shell, shell

import shardq

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "tests" / "clients"
MADE = ROOT / ".venv" / "clients"
TIMEOUT_S = 600
LEVELS = "rpuagcdm"

PYTHON = {
    "aws_cli": ["bash", "by_aws_cli.sh"],
    "aiobotocore": ["python", "by_aiobotocore.py"],
    "celery": ["python", "by_celery.py"],
}
OTHERS = {
    "javascript": ["node", "client.mjs"],
    "sqs_consumer": ["node", "consumer.mjs"],
    "go": ["./client"],
    "java": ["java", "-cp", "target/classes:target/dependency/*", "Client"],
}
FOLDERS = {"sqs_consumer": "javascript"}
TOOLS = {"javascript": ["node", "npm"], "go": ["go"], "java": ["java", "mvn"]}
BUILT = {
    "python": [
        [sys.executable, "-m", "venv", "."],
        ["bin/python", "-m", "pip", "install", "--quiet", "pip>=25.1"],
        [
            "bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--group",
            f"{ROOT}/pyproject.toml:clients",
        ],
    ],
    "javascript": [["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"]],
    "go": [["go", "build", "-o", "client", "."]],
    "java": [["mvn", "--quiet", "--batch-mode", "compile", "dependency:copy-dependencies"]],
}
"""What makes a folder's programs run, in a copy of it."""


@pytest.fixture(params=["sqlite", pytest.param("cassandra", marks=pytest.mark.nightly)])
def served(request: pytest.FixtureRequest, shell: Shell) -> Iterator[dict[str, str]]:
    """A server with an account, on each store; gives the environment of its clients."""
    if request.param == "cassandra":
        # A keyspace of its own: others have queues of the same names.
        shell.url = request.getfixturevalue("own_url")
        shardq.init(shell.url)
    shell.ok("accounts", "create", "shop")
    printed = shell.ok("accounts", "key", "add", "shop", "--sigv4", "--levels", LEVELS).out
    with serving(shell) as server:
        yield environment(server, printed)
        assert server.stop() == 0


def environment(server: Server, key: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    lines = [line.split("=", 1) for line in key.splitlines() if line.startswith("AWS_")]
    return (
        kept
        | dict(lines)
        | {
            "AWS_ENDPOINT_URL_SQS": f"http://127.0.0.1:{server.port}",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    )


@pytest.mark.parametrize("name", PYTHON)
def test_a_client_in_python(name: str, served: dict[str, str], shell: Shell) -> None:
    binaries = made("python") / "bin"
    here = PROGRAMS / "python"
    interpreter, program = PYTHON[name]
    path = {"PATH": f"{binaries}:{served['PATH']}", "PYTHONPATH": str(here)}
    play([interpreter, str(here / program)], served | path, shell)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OTHERS)
def test_a_client_in_another_language(name: str, served: dict[str, str], shell: Shell) -> None:
    play(OTHERS[name], served, shell, made(FOLDERS.get(name, name)))


def test_a_message_of_aws_cli_is_handled_as_the_page_of_the_server_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_section("server.md", "## Start one", tmp_path, monkeypatch)


@pytest.mark.nightly
def test_the_examples_of_the_page_of_sqs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Node looks for modules beside the program.
    (tmp_path / "node_modules").symlink_to(made("javascript") / "node_modules")
    run_section("sqs.md", "## Examples", tmp_path, monkeypatch)


def run_section(page: str, title: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what other tests of the page skip, with the clients that it needs."""
    monkeypatch.setenv("PATH", f"{made('python') / 'bin'}:{os.environ['PATH']}")
    text = (test_docs.DOCS / page).read_text().partition(f"\n{title}\n")[2].partition("\n## ")[0]
    test_docs.run(Path(page), test_docs.SKIPPED.sub("", text), directory, monkeypatch)


def play(
    words: list[str], environment: dict[str, str], shell: Shell, directory: Path | None = None
) -> None:
    """Run a client's program, which has to leave nothing in its queues."""
    run([*words, "mail"], directory or shell.directory, environment)
    with shardq.connect(shell.url) as db:
        for queue in ("mail", "mail-dead", "mail.fifo"):
            depth = db.queue(queue).depth(exact=True)
            assert (depth.ready, depth.waiting) == (0, 0)


def made(folder: str) -> Path:
    """The copy of a folder of `tests/clients` in which its programs run."""
    if missing := [tool for tool in TOOLS.get(folder, []) if shutil.which(tool) is None]:
        reason = f"{folder}: {' and '.join(missing)} not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    copy = MADE / folder
    with alone(folder):
        recipe = repr([(path.name, path.read_text()) for path in sources(folder)])
        written = copy / "recipe"
        if not written.exists() or written.read_text() != recipe:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(PROGRAMS / folder, copy)
            for words in BUILT[folder]:
                run(words, copy, dict(os.environ))
            written.write_text(recipe)
    return copy


def sources(folder: str) -> list[Path]:
    if folder == "python":
        return [ROOT / "pyproject.toml"]
    return sorted(path for path in (PROGRAMS / folder).iterdir() if path.is_file())


@contextmanager
def alone(folder: str) -> Iterator[None]:
    """While this lasts, no other process of a test makes the copy of this folder."""
    MADE.mkdir(parents=True, exist_ok=True)
    with (MADE / f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(words: list[str], directory: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        words,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{words[0]}: {done.stdout.decode()[-8_000:]}"
