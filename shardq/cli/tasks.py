"""The tasks of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len

from shardq.cli import options, screen, streams
from shardq.model.times import duration_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.tasks.definition import TaskDefinition

_INDENT = "    "
_WIDTH = 120
"""Columns at most, without a terminal."""


@options.command(
    "shardq tasks app:app", "shardq tasks shop.jobs:app --json | jq .name", has_store=False
)
@click.argument("name", metavar="APP")
def tasks(*, name: str) -> None:
    """Show the tasks of APP: their queues, arguments, options and schedules. No store is needed.

    Schedules are those that the app declares, app.every(..) say.

    APP is module:attribute, app:app say, imported from the current directory.
    """
    # Import here, because the help does not need these modules.
    from shardq.tasks import App
    from shardq.tasks.importing import load
    from shardq.tasks.worker import HOW_TO_DECLARE

    app = load(name, App)
    for task in app.tasks.values():
        task.check()
    found = [*app._home.definitions.values()]
    triggers_of = app._declarations.triggers  # noqa: SLF001 - it is shardq's own
    if options.is_json():
        for one in found:
            screen.print_json(_json(one, triggers_of(one)))
    elif found:
        _show(found, triggers_of)
    else:
        click.echo(f"{name} has no tasks; {HOW_TO_DECLARE}.")


def _show(
    found: list[TaskDefinition], triggers_of: Callable[[TaskDefinition], dict[str, str]]
) -> None:
    names = max(cell_len(one.name) for one in found)
    queues = max(cell_len(one.options.queue) for one in found)
    width = min(screen.console().width, _WIDTH)
    click.echo(f"{'task':{names}}  {'queue':{queues}}  arguments".rstrip())
    for one in found:
        begin = f"{one.name:{names}}  {one.options.queue:{queues}}"
        shown = one.signature.shown
        is_beside = cell_len(begin) + 2 + cell_len(shown) <= width
        below = [*([] if is_beside else [shown]), _options_text(one)]
        below += [f"schedule {name}: {when}" for name, when in triggers_of(one).items()]
        lines = [f"{begin}  {shown}" if is_beside else begin.rstrip()]
        for text in below:
            wrapped = screen.wrapped(text, width - len(_INDENT), indent="  ")
            lines += [f"{_INDENT}{line}" for line in wrapped]
        for line in lines:
            click.echo(streams.escaped(line))


def _facts(one: TaskDefinition) -> dict[str, Any]:
    """The options of a task, spans of time as text."""
    # Import here, because the help does not need these modules.
    from shardq.tasks.options import backoff_text

    policy = one.options.policy
    errors = {"retry_on": policy.retry_on, "bury_on": policy.bury_on}
    spans = {"timeout": policy.timeout_ms, "expires": policy.expires_ms, "keep": policy.keep_ms}
    return {
        "attempts": policy.attempts,
        **({} if policy.backoff is None else {"backoff": backoff_text(policy.backoff)}),
        **{
            name: " ".join(each.removeprefix("builtins.") for each in named)
            for name, named in errors.items()
            if named
        },
        **{name: duration_text(ms) for name, ms in spans.items() if ms is not None},
        **({} if one.batch is None else {"batch": one.batch}),
        **{name: str(value) for name, value in one.options.putting.items()},
    }


def _options_text(one: TaskDefinition) -> str:
    facts = [f"{name} {value}" for name, value in _facts(one).items()]
    if one.is_async:
        facts.insert(0, "async")
    if one.aliases:
        facts.append(f"also {', '.join(one.aliases)}")
    return ", ".join(facts)


def _json(one: TaskDefinition, triggers: dict[str, str]) -> dict[str, Any]:
    return {
        "name": one.name,
        "aliases": one.aliases,
        "queue": one.options.queue,
        "arguments": one.signature.shown,
        "async": one.is_async,
        "options": _facts(one),
        "headers": dict(one.options.headers),
        "schedules": triggers,
    }
