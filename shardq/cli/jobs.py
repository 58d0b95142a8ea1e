"""Jobs of tasks at a shell: their app, their arguments, and their texts."""

from __future__ import annotations

import inspect
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import click

from shardq.cli import options, recorded, screen, streams
from shardq.errors import ShardqError, StoreCorrupt, UsageError, shown
from shardq.model import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardq.model.message import Message
    from shardq.queue import Queue
    from shardq.tasks import App
    from shardq.tasks.definition import TaskDefinition
    from shardq.tasks.task import Bound

TASK_HEADER = message.TASK_HEADER
_VALUE_MAX = 200
"""The most characters of an argument that are shown."""


task = options.option("--task NAME", "Jobs of this task are put, with --args for a body.")
arguments = options.option(
    "--args JSON",
    "The arguments of --task: an object by name; with --app also a list by position. None where it "
    "is left out.",
    name="arguments",
)
app = options.option(
    "--app APP",
    "The app of --task, app:app say: its arguments are checked, and what is not given here is as "
    "the task has it, QUEUE too. Where the app names a store, that has the jobs, whatever "
    "SHARDQ_STORE says.",
    name="app_name",
)


def app_of(name: str) -> App:
    """The app of a name, with the chosen store.

    Args:
        name: `module:attribute`.

    Raises:
        UsageError: If it cannot be imported, or has a store of its own besides a given one.
    """
    # Import here, because this takes longer than most commands.
    from shardq.stores import store_of
    from shardq.tasks import App
    from shardq.tasks.importing import load

    given = options.given_url()
    if given:
        os.environ[options.STORE_VARIABLE] = given
    app = load(name, App)
    own = _store_of(app)
    if given and store_of(given).shown != own:
        raise UsageError(
            f"app {name} has a store of its own, {own}; leave --store out, or the store of App(..)."
        )
    options.tell_memory(own)
    return app


@contextmanager
def opened(name: str) -> Iterator[App]:
    """The app of a name, which a command puts jobs with. It is open until the command line ends.

    At the end a note is printed if the app has its own store, so that `SHARDQ_STORE` was not used.
    """
    from shardq.stores import store_of

    app = app_of(name)
    recorded.keep_open(app, lambda: app.connection)
    yield app

    chosen, own = os.environ.get(options.STORE_VARIABLE), _store_of(app)
    if not chosen:
        return
    try:
        is_other = store_of(chosen).shown != own
    except ShardqError:
        # Ignore a wrong url, because it is not used.
        is_other = True
    if is_other:
        streams.note(
            f"the app has a store of its own, {own}; {options.STORE_VARIABLE}, which names "
            f"another, is not used."
        )


def _store_of(app: App) -> str:
    """The url of an app's store, to be shown; makes no connection."""
    from shardq.stores import store_of

    store = app._home.store
    return store_of(store).shown if isinstance(store, str) else store.url_shown


def arguments_of(text: str | None) -> dict[str, Any] | list[Any]:
    """The arguments given as JSON; empty if there are none.

    Raises:
        click.UsageError: If they are no JSON object or list.
    """
    try:
        given = json.loads(text or "{}", parse_constant=_refuse_constant)
    except ValueError as error:
        raise click.UsageError(f"--args {shown(text)} is not JSON: {error}.") from error
    if not isinstance(given, (dict, list)):
        raise click.UsageError(
            f"--args must be an object of arguments by name, or a list by position, not "
            f"{shown(text)}."
        )
    return given


def content_of(text: str | None) -> bytes:
    """The body of a job whose task is not known here, from its arguments given as JSON.

    Raises:
        click.UsageError: If they are not given by name.
    """
    values = arguments_of(text)
    if not isinstance(values, dict):
        raise click.UsageError(
            "--args by position need the names of the arguments; give an object."
        )
    return body_of(values)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def body_of(given: Any) -> bytes:
    """Arguments as the body of a job.

    Raises:
        click.UsageError: If a text cannot be UTF-8.
    """
    try:
        return json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise click.UsageError("--args has half a surrogate pair, which no text may have.") from (
            error
        )


def put_job(
    app: App, task: str, given: dict[str, Any] | list[Any], chosen: Mapping[str, Any]
) -> Message:
    """Put a job of an app's task; returns its message.

    Args:
        app: The app.
        task: The task's name, or an alias.
        given: Its arguments, by name or by position.
        chosen: Options that replace the task's own.

    Raises:
        UsageError: If there is no such task, it does not take the arguments, or an option cannot be
            used.
    """
    bound, args, kwargs = _call(app, task, given)
    # The message is there, because the job was put just now.
    return cast("Message", bound.using(**chosen).put(*args, **kwargs).message)


def drafted_job(
    app: App, task: str, given: dict[str, Any] | list[Any], chosen: Mapping[str, Any]
) -> tuple[Queue, dict[str, Any]]:
    """The queue and the options of a task's job for a schedule; the task's delay is left out.

    Raises:
        UsageError: As `put_job`, and for options that make no sense with a schedule.
    """
    # Import here, because this takes longer than most commands.
    from shardq.tasks.declared import scheduled

    bound, args, kwargs = _call(app, task, given)
    call = bound.using(**chosen, delay=None).of(*args, **kwargs)
    made = scheduled(call, app._home, ())
    return app._home.queue(made.queue), {"body": made.body, **made.options}


def _call(
    app: App, task: str, given: dict[str, Any] | list[Any]
) -> tuple[Bound[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A task of an app, and the arguments of the call."""
    definition = app._home.find(task)
    if definition is None:
        raise UsageError(f"the app has no task {shown(task)}; {app._home.known(task)}")
    body = body_of(_named(definition, given))
    args, kwargs = definition.signature.decode(body)
    if definition.batch is not None:
        args, kwargs = tuple(kwargs.values()), {}
    return app.tasks[definition.name], args, kwargs


def _named(definition: TaskDefinition, given: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Arguments by name, as the body of a job holds them."""
    if isinstance(given, dict):
        return given
    named: dict[str, Any] = {}
    left = [*given]
    for name, one in inspect.signature(definition.function).parameters.items():
        if one.kind is one.VAR_POSITIONAL:
            named["*"], left = left, []
        elif one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and left:
            named[name] = left.pop(0)
    if left:
        raise UsageError(
            f"task {definition.name} takes {screen.plural(len(named), 'argument')} by position, "
            f"{definition.signature.shown}, not {len(given):,}."
        )
    return named


def call_text(headers: Mapping[str, str], body: bytes) -> str | None:
    """A job as a call, `mail.welcome(user="ada")`; None for any other message."""
    task = headers.get(TASK_HEADER)
    if task is None:
        return None
    try:
        given = json.loads(body)
    except ValueError:
        return None
    if not isinstance(given, dict):
        return None
    by_position, by_name = given.pop("*", []), given.pop("**", {})
    if not isinstance(by_position, list) or not isinstance(by_name, dict):
        return None
    values = [_value(one) for one in by_position]
    values += [f"{name}={_value(one)}" for name, one in (given | by_name).items()]
    return f"{task}({', '.join(values)})"


def attempts_allowed(headers: Mapping[str, str], attempts: int) -> str:
    """How often a job may run, as far as its headers record it.

    Args:
        headers: Its headers.
        attempts: How often its queue lets a message be delivered.
    """
    try:
        chosen = json.loads(headers.get(message.OPTIONS_HEADER, "{}"))
    except ValueError:
        chosen = {}
    own = chosen.get("attempts") if isinstance(chosen, dict) else None
    return f"{own:,}" if type(own) is int else f"at most {attempts:,}, as its task says"


def is_job(message: Message) -> bool:
    """True if a message is a job of a task; False if its headers are damaged."""
    try:
        return TASK_HEADER in message.headers
    except StoreCorrupt:
        return False


def starting(queue: str, *, are_jobs: bool) -> str:
    """The advice for a queue without consumers.

    Args:
        queue: The queue's name.
        are_jobs: True if its messages are jobs of tasks.
    """
    if are_jobs:
        return "These are jobs of tasks: start a worker, `shardq work MODULE:app`."
    return f"Start a consumer, such as `shardq consume {queue}`."


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}.."
