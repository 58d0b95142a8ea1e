"""The files that `docs/deploy.md` shows: read by what reads them, and stopped in time."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardq.cli.work import work
from shardq.model.times import duration_ms
from shardq.tasks import line

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent.parent / "docs" / "deploy.md"
_FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FILES: dict[str, str] = dict(_FILE.findall(PAGE.read_text()))
yaml: Any = import_module("yaml")


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False)
    parser.read_string(FILES["shardq-worker.service"])
    return parser


def deployment() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load(FILES["worker.yaml"])
    return made["spec"]["template"]["spec"]


def command_lines() -> Iterator[list[str]]:
    """How each of the files starts a worker."""
    yield shlex.split(unit()["Service"]["ExecStart"])
    yield json.loads(re.search(r"^CMD (.*)$", FILES["Dockerfile"], re.MULTILINE)[1])  # type: ignore[index]
    [container] = deployment()["containers"]
    yield container["args"]


def stop_times_s() -> dict[str, float]:
    """For how long each of them waits before it kills."""
    compose = yaml.safe_load(FILES["compose.yaml"])["services"]["worker"]["stop_grace_period"]
    return {
        "systemd": float(unit()["Service"]["TimeoutStopSec"]),
        "compose": duration_ms(compose) / 1_000,
        "Kubernetes": float(deployment()["terminationGracePeriodSeconds"]),
    }


@pytest.mark.parametrize("words", list(command_lines()), ids=["systemd", "Docker", "Kubernetes"])
def test_a_file_of_the_page_starts_a_worker_with_options_that_there_are(words: list[str]) -> None:
    name, command, *arguments = words
    assert (Path(name).name, command) == ("shardq", "work")
    work.make_context("work", arguments)


def test_whoever_stops_a_worker_waits_longer_than_its_deadline_and_its_supervisor() -> None:
    [deadline] = [one.default for one in work.params if one.name == "deadline"]
    longest_s = duration_ms(str(deadline)) / 1_000 + line.MARGIN_S
    for name, waits_s in stop_times_s().items():
        assert waits_s > longest_s, name


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    text = FILES["shardq-worker.service"].replace("/srv/shop/.venv/bin/shardq", "/bin/true")
    path = tmp_path / "shardq-worker.service"
    path.write_text(text.replace("User=shop\n", "").replace("/srv/shop", str(tmp_path)))
    found = subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", path],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (found.returncode, found.stderr) == (0, "")
