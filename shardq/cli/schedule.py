"""Schedules, which put messages repeatedly."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from shardq.cli import (
    firings,
    jobs,
    listing,
    options,
    recorded,
    schedulelines,
    scheduling,
    screen,
    streams,
)
from shardq.cli.messages import stored_json
from shardq.clock import SystemClock
from shardq.errors import SchemaNewer, StoreCorrupt, UsageError, shown
from shardq.model.names import is_dead_queue
from shardq.model.times import due_ms
from shardq.schedules.definition import ScheduleDefinition, ScheduledPut
from shardq.schedules.options import check
from shardq.schedules.policy import Policies
from shardq.schedules.schedule import PREVIEW_MAX, fired_ahead
from shardq.schedules.triggers.zones import local_moment, zone_of
from shardq.tasks.importing import put_here_on_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from shardq.connection import Connection
    from shardq.queue import Queue
    from shardq.schedules.options import Make
    from shardq.schedules.schedule import Schedule


@click.group(
    cls=options.CommandGroup,
    epilog=options.examples(
        'shardq schedule add mail nightly go --cron "0 3 * * *" --tz Europe/Berlin',
        "shardq schedule list",
        "shardq schedule preview mail nightly",
        "shardq schedule pause mail nightly",
    ),
)
def schedule() -> None:
    """Put messages or jobs again and again, by schedules: see the commands below.

    A queue's consumers fire its schedules, `shardq consume` and `shardq work`: any of them, and
    each fire time once. What is done here holds for all of them at once.
    """


# Making -------------------------------------------------------------------------------------------

_task = click.option("--task", metavar="NAME", help="It puts jobs of this task, with --args.")
_arguments = click.option(
    "--args",
    "arguments",
    metavar="JSON",
    help="The arguments of the task: an object by name; with --app also a list by position.",
)


@schedule.command(
    epilog=options.examples(
        'shardq schedule add mail nightly go --cron "0 3 * * *" --tz Europe/Berlin',
        "shardq schedule add mail heartbeat ping --every 15m --missed skip",
        """shardq schedule add crm sync --every 1h --task app.sync --args '{"all": 1}'""",
        "shardq schedule add sync --every 1h --app app:app --task app.sync",
    )
)
@click.argument("words", metavar="QUEUE NAME [BODY]", nargs=-1)
@scheduling.trigger
@click.option(
    "--at-start", is_flag=True, help="With --every: it fires at once, and then after each interval."
)
@scheduling.policies
@scheduling.job
@_task
@_arguments
@click.option(
    "--app",
    "app_name",
    metavar="APP",
    help="The app of --task, app:app say: its arguments are checked, and what is not given here is "
    "as the task has it, QUEUE too. Where the app names a store, that has the schedule, "
    "whatever SHARDQ_STORE says.",
)
@options.store
@options.as_json
def add(
    *,
    words: tuple[str, ...],
    task: str | None,
    arguments: str | None,
    app_name: str | None,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Put BODY into QUEUE again and again, by a schedule called NAME.

    BODY is read from stdin where it is left out or `-`. With --task jobs are put instead, as
    `shardq work` runs them. QUEUE is created where it does not exist. Making the very same schedule
    again changes nothing; ends with 23 where another one has the name.
    """
    if task is None and (arguments is not None or app_name is not None):
        raise click.UsageError("--args and --app belong to --task; name the task as well.")
    queue, name, body = _words(words, has_task=task is not None, has_app=app_name is not None)
    make = scheduling.needed_make(given)
    how = scheduling.policies_of(given)
    if given["count"] is not None:
        how["count"] = given["count"]
    chosen = scheduling.job_of(given)
    if task is not None and app_name is not None:
        if queue is not None:
            chosen["queue"] = queue
        opened = recorded.kept(jobs.app_of(app_name, url), lambda app: app.connection)
        with opened as app:
            target, job = jobs.drafted_job(app, task, jobs.arguments_of(arguments), chosen)
            made = _made(target, make, name, {**job, **how})
            where = f"in queue {target.name} of {app.connection.url_shown}"
            _tell_made(made, target, where, as_json=as_json)
            jobs.tell_store(app)
        return
    content = _content(body) if task is None else _job_body(arguments, "add --app, which has them")
    if task is not None:
        chosen["headers"] = {jobs.TASK_HEADER: task, **chosen.get("headers", {})}
    with options.connect(url, makes=True) as db:
        target = db.queue(str(queue))
        made = _made(target, make, name, {"body": content, **chosen, **how})
        _tell_made(made, target, "", as_json=as_json)


def _words(
    words: Sequence[str], *, has_task: bool, has_app: bool
) -> tuple[str | None, str, str | None]:
    """Queue, name and body."""
    if has_app and len(words) == 1:
        return None, words[0], None
    if len(words) < 2:
        raise click.UsageError("give QUEUE and the schedule's NAME.")
    if has_task and len(words) > 2:
        raise click.UsageError("a job of --task has --args for a body; leave BODY out.")
    if len(words) > 3:
        raise click.UsageError(f"{words[3]!r} is one word too many; quote a BODY with spaces.")
    return words[0], words[1], words[2] if len(words) == 3 else None


def _content(body: str | None) -> bytes:
    """The bytes of a body: those of the argument, whatever the locale made of them, or stdin's."""
    return options.stdin("the body").read() if body in (None, "-") else os.fsencode(body or "")


def _job_body(arguments: str | None, instead: str) -> bytes:
    values = jobs.arguments_of(arguments)
    if not isinstance(values, dict):
        raise click.UsageError(f"--args by position need the names of the arguments; {instead}.")
    return jobs.body_of(values)


def _made(target: Queue, make: Make | None, name: str, chosen: dict[str, Any]) -> Schedule:
    return target.schedules._home.make(make, chosen.pop("body"), name=name, **chosen)


def _tell_made(one: Schedule, target: Queue, where: str, *, as_json: bool) -> None:
    with streams.saying(f"The schedule is stored, as {one.name}."):
        _tell(one, target, where, as_json=as_json)


def _tell(one: Schedule, source: Queue, done: str, *, as_json: bool) -> None:
    """Print the result for a schedule, and its next fire time."""
    if as_json:
        screen.print_json(schedulelines.to_json(one))
        return
    told = schedulelines.ahead(one, source._home.clock.now_ms())
    is_ahead = one.next is not None
    told = f"{done}{'; ' if done else ''}next {told}" if is_ahead else done or told
    click.echo(f"{screen.exact(one.name).plain}: {told}")


# Looking ------------------------------------------------------------------------------------------


@schedule.command(
    "list",
    epilog=options.examples(
        "shardq schedule list",
        "shardq schedule list mail",
        "shardq schedule list --json | jq '{queue, name, next}'",
    ),
)
@click.argument("queue", required=False)
@options.store
@options.as_json
def list_(*, queue: str | None, url: str | None, as_json: bool) -> None:
    """List the schedules of QUEUE, or of all queues.

    \b
    next     when it fires next, by the wall clock of its zone
    in       how long that is from now
    previous the last time for which it has put a message
    fired    for how many fire times it has put messages
    skipped  for how many it has not, by --missed and --overlap
    state    waiting or paused; overdue, where no message is there
             1 m after its time; failing, where its trigger does
    fires    when it fires
    puts     the body, or the call of a task

    A terminal of under 160 columns leaves out the time before, one of under 130 `in` and the counts
    as well, and one of under 100 what is put; `show` and --json have all. `shardq check` says what
    to do where one is overdue or failing.
    """  # noqa: D301 - click's own mark
    with options.connect(url) as db:
        now_ms = db._home.clock.now_ms()
        found: list[Schedule] = []
        wrong: list[str] = []
        for source in [db.queue(queue, create=False)] if queue else _queues(db):
            some, damaged = source.schedules._home.readable()
            found += some
            wrong += damaged
        for text in wrong:
            click.echo(f"shardq: {text}", err=True)
        if as_json:
            for one in found:
                screen.print_json(schedulelines.to_json(one))
        elif found:
            schedulelines.show_list(found, now_ms, has_queues=queue is None)
        elif not wrong:
            example = "shardq schedule add mail hello hi --every 1h"
            click.echo(f"{queue or db.url_shown} has no schedules; make one: {example}")
        states = {schedulelines.state_of(one, now_ms) for one in found}
        if states & {"overdue", "failing"} and not as_json:
            click.echo("What is wrong, and what to do, says `shardq check`.", err=True)


def _queues(db: Connection) -> Iterator[Queue]:
    """All queues that can have schedules, except those whose errors `check` reports."""
    for name in db.queues():
        if is_dead_queue(name):
            continue
        try:
            yield db.queue(name, create=False)
        except (SchemaNewer, StoreCorrupt) as error:
            click.echo(f"shardq: {error}", err=True)


@schedule.command(epilog=options.examples("shardq schedule show mail nightly"))
@options.queue
@click.argument("name")
@options.store
@options.as_json
def show(queue: str, name: str, url: str | None, *, as_json: bool) -> None:
    """Show all of the schedule NAME of QUEUE. Ends with 21 where there is none."""
    with options.connect(url) as db:
        source = db.queue(queue, create=False)
        one = source.schedules[name]
        if as_json:
            screen.print_json(schedulelines.to_json(one))
        else:
            for line in schedulelines.facts(one, source._home.clock.now_ms()):
                click.echo(line)


@schedule.command(
    epilog=options.examples(
        "shardq schedule preview mail nightly",
        "shardq schedule preview mail nightly -n 3 --after 2027-03-27",
        'shardq schedule preview --cron "30 2 * * *" --tz Europe/Berlin --gap skip',
        "shardq schedule preview --every 36h --start 2027-03-27T00:00Z -n 3",
    )
)
@click.argument("queue", required=False)
@click.argument("name", required=False)
@options.whole("-n", "--number", text="How many.", least=1, most=PREVIEW_MAX, default=10)
@click.option(
    "--after",
    metavar="TIME",
    help="From when on, now where it is not given. A day, or a TIME without an offset, is one of "
    "the schedule's zone.",
)
@scheduling.trigger
@scheduling.policies
@options.store
@options.as_json
def preview(
    *,
    queue: str | None,
    name: str | None,
    number: int,
    after: str | None,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Show the next fire times of the schedule NAME of QUEUE, or of one that is not made.

    Each is shown by the wall clock and in UTC, with its message's due where --jitter or --spread
    make it later, and the reason of what is unusual. Lines between them mark where the clocks are
    changed. For a schedule that is not made give --every or --cron; no store is needed then.
    Otherwise --tz is the zone to show times in.
    """
    if queue is None:
        definition = _drafted(given)
        _show_firings(definition, number, after, None, SystemClock().now_ms(), as_json=as_json)
        return
    if name is None:
        raise click.UsageError("give the schedule's NAME as well, or --every or --cron alone.")
    others = {option: value for option, value in given.items() if option != "tz"}
    scheduling.refuse_all(others, "goes without QUEUE and NAME: that schedule has its own.")
    zone = None if given["tz"] is None else zone_of(given["tz"])
    put_here_on_path()
    with options.connect(url) as db:
        source = db.queue(queue, create=False)
        one = source.schedules[name]
        now_ms = source._home.clock.now_ms()
    definition = ScheduleDefinition(
        name, one.trigger, ScheduledPut(one.body), policies=one.policies, count=one.count
    )
    if one.state == "paused" and not as_json:
        click.echo(f"It is paused: first `shardq schedule resume {queue} {name}`.", err=True)
    _show_firings(definition, number, after, zone, now_ms, fired=one.fired, as_json=as_json)


def _drafted(given: dict[str, Any]) -> ScheduleDefinition:
    """The schedule of the options, which is not made."""
    make = scheduling.needed_make(given)
    now_ms = SystemClock().now_ms()
    trigger = make(now_ms)
    policies = Policies().with_(scheduling.policies_of(given), "the schedule")
    made = ScheduleDefinition(str(trigger), trigger, ScheduledPut(b""), policies=policies)
    check(made, now_ms)
    return made


def _show_firings(
    definition: ScheduleDefinition,
    number: int,
    after: str | None,
    zone: tzinfo | None,
    now_ms: int,
    *,
    as_json: bool,
    fired: int = 0,
) -> None:
    own = definition.trigger.tzinfo
    after_ms = now_ms if after is None else due_ms(local_moment(after, own, "--after"))
    found = firings.events(definition, after_ms, number, fired=fired)
    if as_json:
        for one in found:
            screen.print_json(firings.to_json(one))
        return
    to = screen.console()
    policies = definition.policies
    told = ", ".join(f"{name} {value}" for name, value in policies.said().items())
    trigger = str(definition.trigger)
    title = [trigger if definition.name == trigger else f"{definition.name}: {trigger}"]
    title += [told] if told else []
    click.echo(screen.exact("; ".join(title)).plain + "\n")
    made = firings.Timetable(
        found, zone or own, after_ms, policies.latest_ms > 0, to.options.ascii_only
    )
    listing.print_lines(made.lines(to.width) if found else [])
    if sum(one.due is not None for one in found) < number:
        click.echo("It never fires after that." if found else "It never fires then.")


# Changing -----------------------------------------------------------------------------------------


@schedule.command(
    epilog=options.examples(
        'shardq schedule change mail nightly --cron "0 3 * * *" --tz Europe/Berlin',
        "shardq schedule change mail nightly --jitter 5m --missed skip",
        """shardq schedule change crm sync --args '{"all": 0}'""",
        'shardq schedule change mail nightly --window "" --count 0',
    )
)
@options.queue
@click.argument("name")
@click.option("--body", metavar="TEXT", help="What it puts; `-` reads that from stdin.")
@_arguments
@scheduling.trigger
@scheduling.policies
@scheduling.job
@options.store
@options.as_json
def change(
    *,
    queue: str,
    name: str,
    body: str | None,
    arguments: str | None,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Change the schedule NAME of QUEUE; what is not given stays.

    When this ends, nothing fires any more as it was before, but for what was due within 0.1 s, on
    Cassandra 2.5 s. Zone, start and end stay where only the times are changed. An empty text takes
    back --start, --end, --window, --group, --key or --unique-for, and 0 --count. Headers that are
    given take the place of all that it has, but for the name of a task. Ends with 21 where there is
    no such schedule.
    """
    is_timed = scheduling.is_timed(given)
    changes = scheduling.changes_of(given)
    if not (is_timed or changes) and body is None and arguments is None:
        raise click.UsageError("give at least one thing to change.")
    put_here_on_path()
    with options.connect(url) as db:
        source = db.queue(queue, create=False)
        before = source.schedules[name]
        retime = scheduling.retime_of(given, before.trigger)
        content = _new_content(before, body, arguments)
        made = source.schedules._home.change(name, retime, content, changes)
        _tell(made, source, "changed", as_json=as_json)
    if made.revision:
        click.echo(
            f"shardq: code declares {screen.exact(name).plain}, with revision {made.revision}: it "
            f"stays as it is now until the code has a higher revision, which takes its place.",
            err=True,
        )


def _new_content(before: Schedule, body: str | None, arguments: str | None) -> bytes | None:
    """The new content of a schedule; None if it stays."""
    call = schedulelines.call_of(before)
    if body is not None:
        if call is not None:
            raise click.UsageError(f"it puts jobs, {call}; give --args instead of --body.")
        return _content(body)
    if arguments is None:
        return None
    if call is None:
        raise click.UsageError("it puts no jobs of a task; give --body instead of --args.")
    return _job_body(arguments, "give an object")


@schedule.command(epilog=options.examples("shardq schedule pause mail nightly"))
@options.queue
@click.argument("name")
@options.store
@options.as_json
def pause(queue: str, name: str, url: str | None, *, as_json: bool) -> None:
    """Let the schedule NAME of QUEUE not fire until it is resumed.

    Its fire times meanwhile are passed by. Ends with 21 where there is no such schedule.
    """
    with options.connect(url) as db:
        source = db.queue(queue, create=False)
        _tell(source.schedules[name].pause(), source, "paused", as_json=as_json)


@schedule.command(epilog=options.examples("shardq schedule resume mail nightly"))
@options.queue
@click.argument("name")
@options.store
@options.as_json
def resume(queue: str, name: str, url: str | None, *, as_json: bool) -> None:
    """Let the schedule NAME of QUEUE fire again, from its next fire time on.

    A schedule that a clock which was ahead has fired goes by the clock again. Ends with 21 where
    there is no such schedule.
    """
    put_here_on_path()
    with options.connect(url) as db:
        source = db.queue(queue, create=False)
        before = source.schedules[name]
        if before.state == "paused":
            done = "resumed"
        elif fired_ahead(before, source._home.clock.now_ms()):
            done = "goes by the clock again"
        else:
            done = "was not paused"
        _tell(before.resume(), source, done, as_json=as_json)


@schedule.command(epilog=options.examples("shardq schedule run mail nightly"))
@options.queue
@click.argument("name")
@options.store
@options.as_json
def run(queue: str, name: str, url: str | None, *, as_json: bool) -> None:
    """Put what the schedule NAME of QUEUE puts, now; it fires as it would all the same.

    Prints the message's id. Ends with 21 where there is no such schedule.
    """
    with options.connect(url) as db:
        message = db.queue(queue, create=False).schedules[name].run()
        with streams.saying(f"The message is stored, as {message.id}."):
            if as_json:
                screen.print_json(stored_json(message))
            else:
                click.echo(message.id)


@schedule.command(
    epilog=options.examples(
        "shardq schedule backfill mail daily --after 2026-11-01 --until 2026-11-08",
    )
)
@options.queue
@click.argument("name")
@click.option(
    "--after",
    metavar="TIME",
    required=True,
    help="From when on. A day, or a TIME without an offset, is one of the schedule's zone.",
)
@click.option("--until", metavar="TIME", required=True, help="Up to when; that itself is not in.")
@click.option("--dry-run", is_flag=True, help="Put none, and say how many it would be.")
@options.store
@options.as_json
def backfill(
    *,
    queue: str,
    name: str,
    after: str,
    until: str,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Put what the schedule NAME of QUEUE puts, once for each fire time of a span, all due now.

    Each message has its fire time in its headers, as if it were of that time, and the id NAME@TIME.
    Each call puts them again, under the same ids, and so those as well for which it has fired: see
    by --dry-run how many that is, and ask for what is missing alone. Of a schedule with a --key one
    message waits at a time, so that of a span one is put. Ends with 21 where there is no such
    schedule.
    """
    put_here_on_path()
    with options.connect(url) as db:
        one = db.queue(queue, create=False).schedules[name]
        zone = one.trigger.tzinfo
        first, end = (
            local_moment(text, zone, option)
            for text, option in ((after, "--after"), (until, "--until"))
        )
        if end <= first:
            raise UsageError(f"--until {shown(until)} must be later than --after {shown(after)}.")
        count = one.backfill(first, end, dry_run=dry_run)
        put = screen.plural(count, "message")
        with streams.saying("Nothing was put." if dry_run else f"Stored: {put}."):
            if as_json:
                screen.print_json(
                    {
                        "queue": queue,
                        "name": name,
                        "put": 0 if dry_run else count,
                        "fire_times": count,
                    }
                )
            else:
                click.echo(f"would put {put}" if dry_run else _backfilled(put, queue, name))


def _backfilled(put: str, queue: str, name: str) -> str:
    """A sentence on the messages put, and how to find them."""
    found = screen.exact(f"{name}@TIME").plain
    return (
        f"put {put} into {queue}, by their fire times with ids {found}: see `shardq peek {queue}`"
    )


@schedule.command(epilog=options.examples("shardq schedule remove mail nightly"))
@options.queue
@click.argument("name")
@options.store
@options.as_json
def remove(queue: str, name: str, url: str | None, *, as_json: bool) -> None:
    """Remove the schedule NAME of QUEUE: when this ends, it never fires again.

    What it has put stays. Ends with 21 where there is no such schedule.
    """
    with options.connect(url) as db:
        schedules = db.queue(queue, create=False).schedules
        try:
            revision = schedules[name].revision
        except StoreCorrupt:
            # An unreadable schedule can be removed, to be made again.
            revision = 0
        schedules.remove(name)
        if as_json:
            screen.print_json({"queue": queue, "name": name, "removed": True})
        else:
            click.echo(f"{screen.exact(name).plain}: removed")
    if revision:
        click.echo(
            f"shardq: code declares {screen.exact(name).plain}, with revision {revision}: the next "
            f"worker that starts makes it again. Take it out of the code, or pause it: that lasts.",
            err=True,
        )
