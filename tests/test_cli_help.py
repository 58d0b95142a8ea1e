"""The help of every command, and what the command line logs."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from shell import Shell, shell

from shardq.cli import shardq_command
from shardq.cli.exits import MEANINGS, Exit

if TYPE_CHECKING:
    from collections.abc import Iterator


COLUMNS = 80


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each command, that of `shardq` itself first."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))


@contextmanager
def terminal_of(columns: int) -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def help_of(path: tuple[str, ...]) -> str:
    with terminal_of(COLUMNS):
        done = CliRunner().invoke(shardq_command, [*path, "--help"], prog_name="shardq")
    assert done.exit_code == 0
    return done.output


PATHS = list(commands(shardq_command))


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_a_help_fits_a_terminal_and_cuts_no_sentence(path: tuple[str, ...]) -> None:
    text = help_of(path)
    assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
    # The first line may have `[QUEUES]...`, and a shell's command is quoted.
    assert re.search(r"(?<!')\.\.\.(?!')", text.partition("\n")[2]) is None
    assert "Examples:\n    shardq" in text or "Examples:\n    export" in text


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_option_is_explained_by_whole_sentences(path: tuple[str, ...]) -> None:
    command: click.Command = shardq_command
    for name in path:
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), name)
        assert below is not None
        command = below
    texts = [command.help or ""]
    texts += [one.help or one.opts[0] for one in command.params if isinstance(one, click.Option)]
    for text in texts:
        assert re.match(r"[A-Z0-9`]", text), text
        assert re.search(r"[.)]\Z", text.strip()), text


def test_the_help_names_every_exit_code() -> None:
    assert set(MEANINGS) == set(Exit)
    assert len({code.value for code in Exit}) == len(Exit.__members__)
    text = help_of(())
    for code, meaning in MEANINGS.items():
        assert re.search(rf"(?:^|\s){code.value} {re.escape(meaning)}(?:\s|$)", text), meaning


def test_a_line_of_the_log_has_its_time(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    logged = shell.ok("-v", "consume", "mail", "--until-empty").err.splitlines()
    assert any(
        re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO shardq\.\S+: \S", line)
        for line in logged
    ), logged
