"""Queues: list, show, create, alter, pause, resume, purge, drop."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from shardq.cli import options, screen
from shardq.errors import SchemaNewer, ShardqError, StoreCorrupt
from shardq.inspection.depth import DepthCounter
from shardq.model import settings as model
from shardq.model.limits import limits_of, queue_limit_of
from shardq.model.names import is_dead_queue
from shardq.model.times import moment_of
from shardq.observer import late_to_json, lateness_of
from shardq.records.folded import stored_totals
from shardq.records.register import DEAD_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardq.inspection.depth import Depth
    from shardq.model.settings import Settings
    from shardq.observer import Quantiles
    from shardq.queue import Queue
    from shardq.records.folded import Stored

_Counted: TypeAlias = "tuple[Queue, Depth, tuple[Quantiles, Quantiles], int]"
_WIDE = 100
"""The table is complete from this width on, in columns."""


_SETTINGS = {
    "lanes": (
        "Partitions that each minute of a band is spread over, for more speed: 1 to 256, or auto: "
        "as many as consumers and puts need."
    ),
    "bands": "Priorities, 1 to 16: messages of priority 0 come first.",
    "group-lanes": "Lanes that groups are spread over, 1 to 256.",
    "minute": "Stretch of due times in one partition; tests shorten it.",
    "offset": "Time after its minute for which a partition takes in late writes.",
    "attempts": "Deliveries until a message that fails is dead.",
    "dead": "The queue that takes its dead messages; off: they are counted, and gone.",
    "backoff": "Delay of the first retry, which doubles with each further.",
    "backoff-max": "Longest delay of a retry.",
    "hold": "Run time after which a delivery is parked, so that its partition can end.",
    "visibility": "Time after which a parked delivery whose consumer is gone comes again.",
    "lease": "Time after which what a killed consumer held goes to another; 5s to 1m.",
    "delay": "Delay of a message that is put with neither --due nor --delay.",
    "retention": "Time after its due for which a message is kept; then it has expired.",
    "depth-max": "Messages from which on puts are refused, about.",
    "history": "Time for which to keep what became of each message, for `audit`.",
    "keyed": "Give each message a key: its id, unless it is put with another.",
    "groups": "Limits of its groups, as JSON; `shardq limits` lists and sets them.",
    "priorities": "Strict: the first bands first; weighted: each twice as often as the next one.",
    "limits": "Its limits over all consumers, as JSON, such as rate, running, catch_up, tasks.",
}
"""Each setting in a sentence without its default, in the order in which people meet them; the names
are those of Python, with dashes."""


def _choice(option: str) -> model.SettingChoice:
    return model.CHOICES[option.replace("-", "_")]


def _is_fixed(option: str) -> bool:
    return _choice(option).stored in model.FIXED


def _default(option: str, queue: str = "") -> str:
    """A setting's default as users write it; a dead-letter queue has defaults of its own."""
    name = option.replace("-", "_")
    own = DEAD_SETTINGS if is_dead_queue(queue) else {}
    if name in own:
        return f"{own[name]:,}" if isinstance(own[name], int) else str(own[name])
    return model.text_of(model.create({}, 0), name)


def _lanes(settings: Settings) -> str:
    """How many lanes producers fill, as text; with `auto` if shardq chooses the number."""
    count = f"{settings.lanes_written:,}"
    return f"auto ({count})" if settings.lanes_auto else count


def _settings(*, of_creation: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options for a queue's settings; those that are fixed at creation only for `create`."""
    added = []
    for name, text in _SETTINGS.items():
        if _is_fixed(name) and not of_creation:
            continue
        form, said = _choice(name).form, text
        if of_creation:
            fixed = "; fixed from then on" if _is_fixed(name) else ""
            said = f"{text} Default: {_default(name)}{fixed}."
        kind: dict[str, Any] = {"default": None}
        if form:
            number = _number_or_word if form.startswith("N|") else {"N": int}.get(form, str)
            kind["type"] = number
        added.append(options.option(f"--{name} {form or ''}", said, **kind))
    return options.together(*added)


def _number_or_word(text: str) -> int | str:
    return int(text) if text.isascii() and text.lstrip("-").isdigit() else text


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


@options.command_group(
    "shardq queues",
    "shardq queues create mail --lanes 8 --bands 3",
    "shardq queues show mail",
    "shardq queues alter mail --lanes 3 --attempts 10",
    "shardq queues purge mail --yes",
    has_store=True,
    invoke_without_command=True,
)
@click.pass_context
def queues(context: click.Context) -> None:
    """List all queues, or do something with one: see the commands below."""
    if context.invoked_subcommand is not None:
        return
    db = options.connect()
    opened = db._home.open_all()
    rows = []
    failed = {}
    with screen.progress() as bar:
        tell = screen.teller(bar)
        looked = db._home.side_by_side(partial(_counted, opened), opened)
        for number, (name, one) in enumerate(zip(opened, looked, strict=True), 1):
            tell("queues", number, len(opened))
            if isinstance(one, ShardqError):
                is_newer = isinstance(one, SchemaNewer)
                failed[name] = "needs a newer shardq" if is_newer else "damaged"
            elif not options.is_json():
                rows.append(one)
            if options.is_json():
                # Print each queue as soon as it was read.
                screen.print_json(_told(name, one))
    if options.is_json():
        return
    is_wide = screen.console().width >= _WIDE
    heads = "queue", ">ready", ">waiting", ">in flight", ">late p50/p99", ">in the day"
    columns = (*heads[: None if is_wide else -1], ">lanes", ">bands", "state")
    made = screen.table(*columns)
    for queue, depth, late, schedules in rows:
        made.add_row(
            queue.name,
            f"{depth.ready:,}",
            f"{depth.waiting:,}",
            f"{depth.in_flight:,}",
            *map(screen.quantiles, late if is_wide else late[:1]),
            _lanes(queue.settings),
            f"{queue.settings.bands:,}",
            ", ".join(_state(queue, schedules)),
        )
    for name, state in failed.items():
        made.add_row(name, *"-" * (len(columns) - 2), state)
    screen.show(made if rows or failed else screen.no_queues(db.url_shown))
    if failed:
        click.echo("What is wrong, and what to do, says `shardq check`.", err=True)


def _state(queue: Queue, schedules: int) -> Iterator[str]:
    if queue.settings.paused:
        yield "paused"
    if schedules:
        yield screen.plural(schedules, "schedule")


def _counted(opened: Mapping[str, Queue | ShardqError], name: str) -> _Counted | ShardqError:
    """A queue, its depth, the lateness of its deliveries, and its number of schedules."""
    queue = opened[name]
    if isinstance(queue, ShardqError):
        return queue
    home, totals = queue._home, []

    def read_totals() -> Stored:
        totals.append(stored_totals(home.store, home.register.totals_key))
        return totals[0]

    try:
        counter = DepthCounter(home.store, home.clock, home.register)
        depth = counter.depth(read_totals, is_fresh=True)
        late = lateness_of(totals[0], home.register.layout, home.clock.now_ms())
        schedules = len(queue.schedules) if queue.settings.schedules_used else 0
    except (SchemaNewer, StoreCorrupt) as error:
        return error
    return queue, depth, late, schedules


def _told(name: str, one: _Counted | ShardqError) -> dict[str, Any]:
    """A queue for programs."""
    if isinstance(one, ShardqError):
        return {"queue": name, "error": str(one)}
    queue, depth, late, schedules = one
    return {
        **_described(queue),
        "ready": depth.ready,
        "waiting": depth.waiting,
        "in_flight": depth.in_flight,
        "schedules": schedules,
        **late_to_json(*late),
    }


@options.command(
    "shardq queues show mail",
    "shardq queues show mail --json | jq .settings.lanes.value",
    of=queues,
)
@options.queue
def show(queue: str) -> None:
    """Show every setting of QUEUE with its default, and other facts about QUEUE."""
    db = options.connect()
    shown = db.queue(queue, create=False)
    settings = shown.settings
    if options.is_json():
        screen.print_json(_described(shown))
        return
    click.echo(f"{shown.name} in {db.url_shown}")
    for line in _facts(settings, shown._home.clock.now_ms()):
        click.echo(f"  {line}")
    if count := len(shown.schedules):
        told = screen.plural(count, "schedule")
        click.echo(f"  has {told}: see `shardq schedule list {shown.name}`")
    click.echo()
    made = screen.table("setting", ">value", ">default", "", "what it is")
    for option, text in _SETTINGS.items():
        value = model.text_of(settings, option.replace("-", "_"))
        fixed = "fixed" if _is_fixed(option) else ""
        made.add_row(option, value, _default(option, shown.name), fixed, text)
    screen.show(made)
    click.echo()
    click.echo("Fixed ones hold from a queue's creation on; change others with:")
    click.echo(f"  shardq queues alter {shown.name} --attempts 10")


def _facts(settings: Settings, now_ms: int) -> list[str]:
    facts = [f"made at {screen.when(moment_of(settings.lane_made_ms(0)))}"]
    facts.append("paused: delivers nothing" if settings.paused else "not paused")
    if pauses := model.pauses_of(settings, now_ms):
        facts.append(f"paused: {', '.join(map(str, pauses))}")
    lanes = screen.plural(settings.lanes_read, "lane")
    bands = screen.plural(settings.bands, "band")
    facts.append(f"consumers read {lanes} of {bands}, producers fill {settings.lanes_written:,}")
    if settings.lanes_auto:
        facts.append("consumers decide how many lanes producers fill")
    used, last = settings.bands_used, settings.bands - 1
    if used == last:
        facts.append(f"nothing was put to priority {used} yet, so consumers do not poll it")
    elif used < last:
        facts.append(
            f"nothing was put to priorities {used} to {last} yet, so consumers do not poll them"
        )
    if settings.history_ms:
        whole = screen.when(moment_of(settings.history_from_ms))
        facts.append(f"keeps a history, whole for what entered from {whole} on")
    else:
        facts.append("keeps no history")
    if settings.purged_before_us:
        purged = screen.when(moment_of(settings.purged_before_us // 1_000))
        facts.append(f"last purged at {purged}")
    return facts


def _described(queue: Queue) -> dict[str, Any]:
    """A queue's settings and other facts, for programs."""
    settings = queue.settings

    def value(option: str) -> Any:
        text = model.text_of(settings, option.replace("-", "_"))
        form, stored = _choice(option).form, _choice(option).stored
        is_plain = not form or (form.startswith("N") and text not in (model.AUTO, model.OFF))
        return getattr(settings, stored) if is_plain else text

    def default(option: str) -> Any:
        text = _default(option, queue.name)
        if not _choice(option).form:
            return text == "yes"
        number = text.replace(",", "")
        return int(number) if number.isdigit() else text

    kept = settings.history_ms > 0
    purged_ms = settings.purged_before_us // 1_000
    return {
        "queue": queue.name,
        "made": screen.when(moment_of(settings.lane_made_ms(0))),
        "paused": settings.paused,
        "lanes_written": settings.lanes_written,
        "lanes_read": settings.lanes_read,
        "bands_used": min(settings.bands_used, settings.bands),
        "history_from": screen.when(moment_of(settings.history_from_ms)) if kept else None,
        "purged_before": screen.when(moment_of(purged_ms)) if purged_ms else None,
        "settings": {
            option.replace("-", "_"): {
                "value": value(option),
                "default": default(option),
                "fixed": _is_fixed(option),
            }
            for option in _SETTINGS
        },
    }


@options.command(
    "shardq queues create mail --lanes 8 --bands 3 --attempts 10", of=queues, has_json=False
)
@options.queue
@_settings(of_creation=True)
def create(queue: str, **settings: Any) -> None:
    """Create QUEUE with these settings. Doing so again changes nothing."""
    made = options.connect(makes=True).queue(queue, **_given(settings))
    lanes = screen.plural(made.settings.lanes_written, "lane")
    how = " (auto)" if made.settings.lanes_auto else ""
    bands = screen.plural(made.settings.bands, "band")
    click.echo(f"{made.name}: {lanes}{how}, {bands}")


@options.command(
    "shardq queues alter mail --lanes 8",
    "shardq queues alter mail --attempts 10 --backoff 5s",
    "shardq queues alter mail --history 7d",
    of=queues,
    has_json=False,
)
@options.queue
@_settings(of_creation=False)
def alter(queue: str, **settings: Any) -> None:
    """Change settings of QUEUE while it runs. Its consumers follow within 5 s."""
    given = _given(settings)
    if not given:
        raise click.UsageError("give at least one setting to change.")
    altered = options.queue_of(queue)
    now_ms = altered._home.clock.now_ms()
    before = _limited(altered.settings, now_ms)
    altered.alter(**given)
    click.echo(f"{queue}: changed {', '.join(sorted(given))}")
    left = {*_limited(altered.settings, now_ms)}
    if removed := [one for one in before if one not in left]:
        click.echo(f"{queue}: removed what was there before: {', '.join(removed)}")
    if "history" in given and altered.settings.history_ms:
        whole = screen.when(moment_of(altered.settings.history_from_ms))
        click.echo(f"{queue}: its history is whole for what enters from {whole} on")


def _limited(settings: Settings, now_ms: int) -> list[str]:
    """What the limits of a queue and of its groups set, as text: each limit and each pause."""
    groups, queue = limits_of(settings.group_limits), queue_limit_of(settings.queue_limit)
    own = queue.to_options()
    tasks = own.pop("tasks", {})
    own.pop("paused", None)
    of_groups = {rule: limit.to_json() for rule, limit in groups.rules.items()}
    return [
        *own,
        *(f"{name} of task {rule}" for rule, limits in tasks.items() for name in limits),
        *(f"{name} of each group" for name in groups.each.to_json()),
        *(f"{name} of group {rule}" for rule, limits in of_groups.items() for name in limits),
        *(f"the pause of {one.of} {one.names}" for one in model.pauses_of(settings, now_ms)),
    ]


_PAUSED = {"group": "messages of a group", "task": "jobs of a task", "key": "messages of a key"}


def _pauses(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that pauses or resumes a part of a queue."""
    for of, some in reversed(_PAUSED.items()):
        text = f"Only {some}; or of {of}s whose names begin with a text before a *."
        command = options.option(f"--{of} {of.upper()}", text)(command)
    return command


def _named(names: Mapping[str, str | None]) -> str:
    """The part of a queue that a command pauses or resumes, as text; empty: all of it."""
    given = {of: name for of, name in names.items() if name is not None}
    if len(given) > 1:
        raise click.UsageError(f"give {' or '.join(f'--{of}' for of in _PAUSED)}, one of them.")
    return "".join(f" {of} {name}" for of, name in given.items())


@options.command(
    "shardq queues pause mail",
    "shardq queues pause mail --group 'tenant-7*'",
    "shardq queues pause shop --task 'shop.*'",
    "shardq queues pause shop --key order-7",
    of=queues,
    has_json=False,
)
@options.queue
@_pauses
def pause(queue: str, **names: str | None) -> None:
    """Hold back all deliveries of QUEUE, or a part of them. Messages can still be put."""
    named = _named(names)
    options.queue_of(queue).pause(**names)
    click.echo(f"{queue}: paused{named}")


@options.command(
    "shardq queues resume mail",
    "shardq queues resume mail --group 'tenant-7*'",
    "shardq queues resume shop --task 'shop.*'",
    of=queues,
    has_json=False,
)
@options.queue
@_pauses
def resume(queue: str, **names: str | None) -> None:
    """Deliver QUEUE again, or a part of it. Messages due in the meantime come first.

    A --group that is not paused, but held back by limited messages, is delivered again, too.
    """
    named = _named(names)
    options.queue_of(queue).resume(**names)
    click.echo(f"{queue}: resumed{named}")


_yes = options.option("--yes", "Do not ask first.")


@options.command("shardq queues purge mail --yes", of=queues, has_json=False)
@options.queue
@_yes
def purge(queue: str, *, yes: bool) -> None:
    """Delete all messages that have entered QUEUE until now, however far their due.

    Its schedules stay, and go on putting messages.
    """
    target = options.queue_of(queue)
    schedules = screen.plural(count, "schedule") if (count := len(target.schedules)) else ""
    sure(f"delete all messages of {queue}", yes=yes)
    target.purge()
    click.echo(f"{queue}: purged; within 5s no older message is delivered any more")
    if schedules:
        click.echo(f"{queue}: {schedules} as before; see `shardq schedule list {queue}`")


@options.command("shardq queues drop mail --yes", of=queues, has_json=False)
@options.queue
@_yes
def drop(queue: str, *, yes: bool) -> None:
    """Delete QUEUE, all its messages and all its schedules."""
    target = options.queue_of(queue)
    schedules = screen.plural(count, "schedule") if (count := len(target.schedules)) else ""
    with_them = f" and its {schedules}" if schedules else ""
    sure(f"drop {queue} with all its messages{with_them}", yes=yes)
    target.drop()
    click.echo(f"{queue}: dropped{f', with {schedules}' if schedules else ''}")


def sure(what: str, *, yes: bool) -> None:
    """Ask for confirmation; without a terminal, `--yes` must have been given.

    Raises:
        click.UsageError: If it was not given.
    """
    if yes:
        return
    # stdin is None if it is closed, although its type excludes None.
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"to {what} without being asked, add --yes.")
    click.confirm(f"Really {what}?", abort=True, err=True)
