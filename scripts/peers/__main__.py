"""Runs moto's tests against shardq's server; what fails has to be what docs/sqs.md leaves out."""

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

FILES = ("test_sqs.py", "test_sqs_message_attributes.py")
PAGE = Path(__file__).parents[2] / "docs" / "sqs.md"
_ROW = re.compile(r"^\| `(test_\w+)` \| (json, query|json|query) \|", re.MULTILINE)


def left_out(protocol: str) -> set[str]:
    """The tests that the page names as left out."""
    return {name for name, said in _ROW.findall(PAGE.read_text()) if protocol in said.split(", ")}


@contextmanager
def stored(kind: str) -> Iterator[str]:
    """The url of a store: `sqlite`, in memory, or `cassandra`, a node that is ended afterwards."""
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


def run(python: str, source: Path, kind: str) -> tuple[set[str], set[str]]:
    """Run the tests; returns the names of those that passed, and of those that failed."""
    with (
        TemporaryDirectory(prefix="shardq-peers-") as folder,
        stored(kind) as store,
        hosted(store) as (url, key),
    ):
        copy = Path(folder, "moto")
        shutil.copytree(source, copy)
        for name in FILES:
            # Some tests name the port of moto's server.
            path = copy / "tests" / "test_sqs" / name
            path.write_text(path.read_text().replace("http://localhost:5000", url))
        # Else moto's tests sign with keys of its own.
        config = copy / "moto" / "core" / "config.py"
        config.write_text(
            config.read_text().replace('"mock_credentials": True', '"mock_credentials": False')
        )
        report = Path(folder, "report.xml")
        environment = os.environ | {
            "TEST_SERVER_MODE": "true",
            "TEST_SERVER_MODE_ENDPOINT": url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key.id,
            "AWS_SECRET_ACCESS_KEY": key.secret,
            "PYTHONPATH": str(copy),
        }
        command = [python, "-m", "pytest", "-q", "--tb=short", f"--junit-xml={report}"]
        command += [f"tests/test_sqs/{name}" for name in FILES]
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


def main(protocol: str, kind: str, python: str, source: str) -> int:
    """Compare, and print the difference; returns the exit code."""
    passed, failed = run(python, Path(source), kind)
    said = left_out(protocol)
    print(
        f"{protocol} on {kind}: {len(passed)} passed, {len(failed & said)} left out by docs/sqs.md"
    )
    for name in sorted(failed - said):
        print(f"{protocol}: {name} fails")
    for name in sorted(said - failed):
        print(f"{protocol}: {name} does not fail, and docs/sqs.md leaves it out")
    return 0 if failed == said and passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
