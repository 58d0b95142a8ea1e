"""Records commands that make, change or remove something, so that no command needs to do so.

```
 command ──► options.connect: is it in COMMANDS? ──► noted ──► outcome known ──► actions
                            └──► the connection stays open until the command line ends
```

A command that was not begun is not recorded: wrong usage, a refused confirmation, or a store that
is open for reading only.
"""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardq.cli.exits import MEANINGS, Exit
from shardq.errors import StoreRefused, UsageError
from shardq.model.receipt import Signer
from shardq.records.actions import DONE, Actions, What

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from shardq.connection import Connection

T = TypeVar("T")

_META = "shardq.recorded"
_NAMED_MAX = 5
_VIA = "shell"


def _named(params: Mapping[str, Any]) -> str:
    """The queue and the messages that a command names; receipts are secret, and left out."""
    if params.get("of_failed"):
        return f"{params['queue']}: all that wait for a retry"
    keys = params.get("keys") or [one for one in [params.get("key")] if one]
    ids = ["a receipt" if Signer.is_meant(one) else one for one in params.get("ids", ())]
    words = [*ids, *(f"key {one}" for one in keys)]
    more = f" and {len(words) - _NAMED_MAX} more" if len(words) > _NAMED_MAX else ""
    named = f"{params['queue']} {', '.join(words[:_NAMED_MAX])}{more}"
    reason = f"with reason {params['reason']}" if params.get("reason") else ""
    return " ".join(f"{named} {reason}".split())


def _forward(params: Mapping[str, Any]) -> str:
    return f"{_named(params)} to {params['to'] or 'the queues that they died in'}"


def _schedule(params: Mapping[str, Any]) -> str:
    words = params["words"][:2] if "words" in params else (params["queue"], params["name"])
    return " ".join(words)


def _dead(params: Mapping[str, Any]) -> What | None:
    choices = {"redrive": What.REDRIVE, "delete": What.DELETE_DEAD, "purge": What.PURGE_DEAD}
    return next((what for option, what in choices.items() if params[option]), None)


def _limits(params: Mapping[str, Any]) -> What | None:
    given = ("places", "rate", "burst", "tier", "running", "remove")
    return What.ALTER if any(params.get(name) for name in given) else None


def _queue(params: Mapping[str, Any]) -> str:
    return str(params["queue"])


def _part(params: Mapping[str, Any]) -> str:
    named = (f" {of} {params[of]}" for of in ("group", "task", "key") if params[of] is not None)
    return f"{params['queue']}{''.join(named)}"


def _account(params: Mapping[str, Any]) -> str:
    return str(params.get("name") or params.get("account") or params.get("key"))


_What = What | None
COMMANDS: dict[
    tuple[str, ...], tuple[What | Callable[[Mapping[str, Any]], _What], Callable[..., str]]
] = {
    ("queues", "create"): (What.CREATE, _queue),
    ("queues", "alter"): (What.ALTER, _queue),
    ("queues", "pause"): (What.PAUSE, _part),
    ("limits",): (_limits, _queue),
    ("queues", "resume"): (What.RESUME, _part),
    ("queues", "purge"): (What.PURGE, _queue),
    ("queues", "drop"): (What.DROP, _queue),
    ("dead",): (_dead, _named),
    ("forward",): (What.FORWARD, _forward),
    ("cancel",): (What.CANCEL, _named),
    ("move",): (What.MOVE, _named),
    ("edit",): (What.EDIT, _named),
    ("schedule", "add"): (What.SCHEDULE_ADD, _schedule),
    ("schedule", "change"): (What.SCHEDULE_CHANGE, _schedule),
    ("schedule", "pause"): (What.SCHEDULE_PAUSE, _schedule),
    ("schedule", "resume"): (What.SCHEDULE_RESUME, _schedule),
    ("schedule", "run"): (What.SCHEDULE_RUN, _schedule),
    ("schedule", "backfill"): (
        lambda params: None if params["dry_run"] else What.SCHEDULE_BACKFILL,
        _schedule,
    ),
    ("schedule", "remove"): (What.SCHEDULE_REMOVE, _schedule),
    ("accounts", "create"): (What.ACCOUNT_CREATE, _account),
    ("accounts", "key", "add"): (What.KEY_ADD, _account),
    ("accounts", "key", "rotate"): (What.KEY_ROTATE, _account),
    ("accounts", "key", "revoke"): (What.KEY_REVOKE, _account),
    ("accounts", "sign"): (What.SIGN, _account),
}
"""The words of each command -> its action, which may depend on its options, and its object."""


@dataclass(slots=True)
class _Begun:
    """A command that is to be recorded.

    Attributes:
        what: Its action.
        about: Its object.
        db_of: Returns its connection, which is still open when the command has ended.
    """

    what: What
    about: str
    db_of: Callable[[], Connection]


def keep_open(opened: AbstractContextManager[Any], db_of: Callable[[], Connection]) -> None:
    """Keep a connection or app open until the command line ends; note if its command is recorded.

    Args:
        opened: The connection or app that the command has opened.
        db_of: Returns the connection.
    """
    context = click.get_current_context()
    root = context.find_root()
    root.with_resource(opened)
    what, about = COMMANDS.get(_words(context), (None, None))
    chosen = what(context.params) if callable(what) else what
    if chosen is not None and about is not None:
        root.meta[_META] = _Begun(chosen, about(context.params), db_of)


def refine(about: str) -> None:
    """Make the object of the present command more exact, after the command has made it."""
    found = click.get_current_context().find_root().meta.get(_META)
    if found is not None:
        found.about = about


def carried_out(root: click.Context, command: Callable[[], T]) -> T:
    """Carry out a command, and record it if it is one of `COMMANDS`.

    Args:
        root: The context of the whole command line.
        command: The command.
    """
    try:
        result = command()
    except (click.ClickException, click.Abort, UsageError, StoreRefused):
        raise
    except BaseException as error:
        _record(root, type(error).__name__)
        raise
    code = Exit(result) if isinstance(result, int) else Exit.OK
    _record(root, MEANINGS[code] if code else DONE)
    return result


def _record(root: click.Context, outcome: str) -> None:
    found = root.meta.get(_META)
    if found is not None:
        home = found.db_of()._home
        actions = Actions(home.store, home.clock)
        actions.record(user(), _VIA, found.what, found.about, outcome)


def user() -> str:
    """The user of the system, and the machine: `ada@web-1`."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        # In a container the user may have a number and no name.
        name = str(number)
    return f"{name}@{socket.gethostname()}"


def _words(context: click.Context) -> tuple[str, ...]:
    """The words of a command, without `shardq`; empty for another program."""
    words: list[str] = []
    now: click.Context | None = context
    while now is not None and now.parent is not None:
        words.append(now.command.name or "")
        now = now.parent
    is_ours = now is not None and now.info_name == "shardq"
    return tuple(reversed(words)) if is_ours else ()
