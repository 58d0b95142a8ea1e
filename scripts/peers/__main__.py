"""Runs others' tests against shardq's server; only those that docs/sqs.md leaves out may fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import shardq
from peers.host import hosted
from shardq import node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from measures.asked import Key

MOTO = ("tests/test_sqs/test_sqs.py", "tests/test_sqs/test_sqs_message_attributes.py")
KOMBU = ("t/integration/test_sqs.py",)
PAGE = Path(__file__).parents[2] / "docs" / "sqs.md"
_ROW = re.compile(r"^\| `(test_\w+)` \| ([a-z, ]+) \|", re.MULTILINE)


def left_out(suite: str) -> set[str]:
    """The tests that docs/sqs.md names as left out."""
    return {name for name, said in _ROW.findall(PAGE.read_text()) if suite in said.split(", ")}


@contextmanager
def stored(kind: str) -> Iterator[str]:
    """The url of a store: `sqlite` in memory, or `cassandra`, a node that is stopped at the end."""
    if kind == "sqlite":
        yield "sqlite://"
        return
    with TemporaryDirectory(prefix="shardq-peers-node-") as folder:
        url = node.start(1, folder).url
        try:
            shardq.init(url)
            yield url
        finally:
            node.stop(folder, remove=True)


def replace(path: Path, texts: dict[str, str]) -> None:
    """Replace texts in a file."""
    text = path.read_text()
    for before, after in texts.items():
        text = text.replace(before, after)
    path.write_text(text)


def moto(copy: Path, url: str, _key: Key) -> dict[str, str]:
    """Let a copy of moto's tests use a server; returns the environment that they need."""
    for name in MOTO:
        # Some tests have the url of moto's server in their code.
        replace(copy / name, {"http://localhost:5000": url})
    # Keep moto from signing with keys of its own.
    replace(
        copy / "moto" / "core" / "config.py",
        {'"mock_credentials": True': '"mock_credentials": False'},
    )
    return {"TEST_SERVER_MODE": "true", "TEST_SERVER_MODE_ENDPOINT": url, "PYTHONPATH": str(copy)}


def kombu(copy: Path, url: str, key: Key) -> dict[str, str]:
    """Let a copy of kombu's tests use a server; returns the environment that they need."""
    for name in KOMBU:
        replace(copy / name, {"TestUsername": key.id, "TestPassword": key.secret})
    host, _, port = url.removeprefix("http://").partition(":")
    return {"SQS_HOST": host, "SQS_PORT": port}


def run(suite: str, kind: str, python: str, source: Path) -> tuple[set[str], set[str]]:
    """Run the tests; returns the names of those that passed, and of those that failed."""
    with (
        TemporaryDirectory(prefix="shardq-peers-") as folder,
        stored(kind) as store,
        hosted(store) as (url, key),
    ):
        copy = Path(folder, "source")
        shutil.copytree(source, copy)
        prepare, files = (kombu, KOMBU) if suite == "kombu" else (moto, MOTO)
        environment = os.environ | prepare(copy, url, key)
        environment |= {
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key.id,
            "AWS_SECRET_ACCESS_KEY": key.secret,
        }
        report = Path(folder, "report.xml")
        command = [python, "-m", "pytest", "-q", "--tb=short", f"--junit-xml={report}"]
        command += ["--override-ini=addopts=", *files]
        subprocess.run(command, cwd=copy, env=environment, check=False)  # noqa: S603 - its own words
        passed: set[str] = set()
        failed: set[str] = set()
        found = ElementTree.parse(report)  # noqa: S314 - written by pytest just now
        for case in found.iter("testcase"):
            name = case.get("name", "").partition("[")[0]
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                failed.add(name)
            elif "skipped" not in kinds:
                passed.add(name)
        return passed - failed, failed


def main(suite: str, kind: str, python: str, source: str) -> int:
    """Run a suite, and print the difference from the documented failures; returns the exit code."""
    passed, failed = run(suite, kind, python, Path(source))
    said = left_out(suite)
    print(f"{suite} on {kind}: {len(passed)} passed, {len(failed & said)} left out by docs/sqs.md")
    for name in sorted(failed - said):
        print(f"{suite}: {name} fails")
    for name in sorted(said - failed):
        print(f"{suite}: {name} does not fail, and docs/sqs.md leaves it out")
    return 0 if failed == said and passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
