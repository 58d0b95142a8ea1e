"""What tasks an app has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from shardq.cli import listing, options, screen
from shardq.model.times import duration_text

if TYPE_CHECKING:
    from shardq.tasks.definition import Definition


@click.command(
    epilog=options.examples("shardq tasks app:app", "shardq tasks shop.jobs:app --json | jq .name")
)
@click.argument("name", metavar="APP")
@options.as_json
def tasks(*, name: str, as_json: bool) -> None:
    """Show the tasks of APP: their queues, options and arguments. No store is needed.

    APP is module:attribute, app:app say, imported from the current directory.
    """
    # Here, because the help of all commands does not wait for it.
    from shardq.tasks import App
    from shardq.tasks.importing import load
    from shardq.tasks.worker import HOW_TO_DECLARE

    app = load(name, App)
    for task in app.tasks.values():
        task.check()
    found = [*app._home.definitions.values()]
    if as_json:
        for one in found:
            screen.print_json(_json(one))
    elif found:
        rows = [
            [
                screen.exact(one.name),
                Text(one.options.queue),
                screen.plain(_options_text(one)),
                screen.plain(one.signature.shown),
            ]
            for one in found
        ]
        listing.show(["task", "queue", "options", "arguments"], rows, free=2)
    else:
        click.echo(f"{name} has no tasks; {HOW_TO_DECLARE}.")


def _facts(one: Definition) -> dict[str, Any]:
    """What was chosen of a task, spans of time as text."""
    policy = one.options.policy
    spans = {"timeout": policy.timeout_ms, "expires": policy.expires_ms, "keep": policy.keep_ms}
    return {
        "attempts": policy.attempts,
        **{name: duration_text(ms) for name, ms in spans.items() if ms is not None},
        **({} if one.batch is None else {"batch": one.batch}),
        **{name: str(value) for name, value in one.options.putting.items()},
    }


def _options_text(one: Definition) -> str:
    facts = [f"{name} {value}" for name, value in _facts(one).items()]
    if one.is_async:
        facts.insert(0, "async")
    if one.aliases:
        facts.append(f"also {', '.join(one.aliases)}")
    return ", ".join(facts)


def _json(one: Definition) -> dict[str, Any]:
    return {
        "name": one.name,
        "aliases": one.aliases,
        "queue": one.options.queue,
        "arguments": one.signature.shown,
        "async": one.is_async,
        "options": _facts(one),
        "headers": dict(one.options.headers),
    }
