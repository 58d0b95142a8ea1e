"""Print the documentation page of the command line, in Markdown, from click's commands."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import click

from shardq.cli import shardq_command

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """\
# Command line

`shardq` does at a shell what the library does in Python. This page is made from the commands' own
help: `shardq COMMAND --help` shows the same at the terminal. [Exit codes](exits.md) lists what a
command ends with.

Name the store once, in the environment variable `SHARDQ_STORE`, or with `--store` at each command.
[Store urls](urls.md) lists what a url can say.
"""
ROOT = click.Context(shardq_command, info_name="shardq")
_AS_IT_STANDS = "\b\n"
"""The mark of a paragraph whose line ends click keeps."""


def page() -> Iterator[str]:
    yield HEAD
    yield from section(ROOT, 2)


def section(context: click.Context, level: int) -> Iterator[str]:
    """The section of a command, and the sections of its subcommands."""
    command = context.command
    yield f"{'#' * level} `{context.command_path}`\n"
    yield from paragraphs(command.help or "")
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield from options(context)
    contexts = list(below(context))
    if contexts:
        yield "| command | what it does |\n|---|---|"
        for one in contexts:
            path = one.command_path
            link = f"[`{path}`](#{path.replace(' ', '-')})"
            yield f"| {link} | {cell(one.command.get_short_help_str(1_000))} |"
        yield ""
    # Leave out the exit codes, which have a page of their own.
    yield from paragraphs((command.epilog or "").partition("\b\nExit codes:")[0])
    for one in contexts:
        yield from section(one, 3 if context.parent else 2)


def below(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if found is not None and not found.hidden:
                yield click.Context(found, info_name=name, parent=context)


def options(context: click.Context) -> Iterator[str]:
    # Leave out arguments, which the text above names, and `--help`, which every command has.
    records = [one.get_help_record(context) for one in context.command.params]
    rows = [f"| `{names}` | {cell(text)} |" for names, text in filter(None, records) if text]
    if rows:
        yield "| option | what it does |\n|---|---|"
        yield from rows
        yield ""


def paragraphs(text: str) -> Iterator[str]:
    """A help text: prose as it is, lists and examples as blocks."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not paragraph.startswith(_AS_IT_STANDS):
            yield f"{prose(' '.join(paragraph.split()))}\n"
            continue
        lines = paragraph.removeprefix(_AS_IT_STANDS).splitlines()
        language = "text"
        if lines[0] == "Examples:":
            language = "bash"
            yield f"{lines.pop(0)}\n"
        listing = "\n".join(line.removeprefix("  ") for line in lines)
        yield f"```{language}\n{listing}\n```\n"


def cell(text: str) -> str:
    return prose(text).replace("|", "\\|")


def prose(text: str) -> str:
    """A text in which characters that Markdown would take for markup are escaped."""
    return text.replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    print("\n".join(page()))
