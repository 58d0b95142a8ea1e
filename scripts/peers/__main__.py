"""Runs moto's tests against shardq's server; what fails has to be what docs/sqs.md leaves out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from peers.host import hosted

FILES = ("test_sqs.py", "test_sqs_message_attributes.py")
PAGE = Path(__file__).parents[2] / "docs" / "sqs.md"
_ROW = re.compile(r"^\| `(test_\w+)` \| (json, query|json|query) \|", re.MULTILINE)


def left_out(protocol: str) -> set[str]:
    """The tests that the page names as left out."""
    return {name for name, said in _ROW.findall(PAGE.read_text()) if protocol in said.split(", ")}


def run(python: str, source: Path) -> tuple[set[str], set[str]]:
    """Run the tests; returns the names of those that passed, and of those that failed."""
    with TemporaryDirectory(prefix="shardq-peers-") as folder, hosted() as url:
        copy = Path(folder, "moto")
        shutil.copytree(source, copy)
        for name in FILES:
            # Some tests name the port of moto's server.
            path = copy / "tests" / "test_sqs" / name
            path.write_text(path.read_text().replace("http://localhost:5000", url))
        report = Path(folder, "report.xml")
        environment = os.environ | {
            "TEST_SERVER_MODE": "true",
            "TEST_SERVER_MODE_ENDPOINT": url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
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


def main(protocol: str, python: str, source: str) -> int:
    """Compare, and print the difference; returns the exit code."""
    passed, failed = run(python, Path(source))
    said = left_out(protocol)
    print(f"{protocol}: {len(passed)} passed, {len(failed & said)} left out by docs/sqs.md")
    for name in sorted(failed - said):
        print(f"{protocol}: {name} fails")
    for name in sorted(said - failed):
        print(f"{protocol}: {name} does not fail, and docs/sqs.md leaves it out")
    return 0 if failed == said and passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
