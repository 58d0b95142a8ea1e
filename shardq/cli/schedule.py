"""Schedules, which put messages repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardq.cli import (
    firings,
    jobs,
    listing,
    options,
    schedulelines,
    scheduling,
    screen,
    streams,
)
from shardq.cli.messages import tell_put
from shardq.clock import SystemClock
from shardq.errors import StoreCorrupt, UsageError, shown
from shardq.model.names import is_dead_queue
from shardq.model.times import due_ms
from shardq.schedules.definition import ScheduleDefinition, ScheduledPut
from shardq.schedules.options import check
from shardq.schedules.policy import Policies
from shardq.schedules.schedule import PREVIEW_MAX, fired_ahead
from shardq.schedules.triggers.zones import local_moment, zone_of
from shardq.tasks.importing import put_here_on_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

    from shardq.queue import Queue
    from shardq.schedules.options import Make
    from shardq.schedules.schedule import Schedule


@options.command_group(
    'shardq schedule add mail nightly go --cron "0 3 * * *" --tz Europe/Berlin',
    "shardq schedule list",
    "shardq schedule preview mail nightly",
    "shardq schedule pause mail nightly",
)
def schedule() -> None:
    """Put messages or jobs again and again, by schedules: see the commands below.

    The consumers of a queue, `shardq consume` and `shardq work`, fire its schedules: each fire time
    is fired once, by any of them. A change made here holds for all consumers at once.
    """


# Making -------------------------------------------------------------------------------------------


@options.command(
    'shardq schedule add mail nightly go --cron "0 3 * * *" --tz Europe/Berlin',
    "shardq schedule add mail heartbeat ping --every 15m --missed skip",
    """shardq schedule add crm sync --every 1h --task app.sync --args '{"all": 1}'""",
    "shardq schedule add sync --every 1h --app app:app --task app.sync",
    of=schedule,
)
@click.argument("words", metavar="QUEUE NAME [BODY]", nargs=-1)
@scheduling.trigger
@options.option("--at-start", "With --every: it fires at once, and then after each interval.")
@scheduling.policies
@scheduling.job
@jobs.task
@jobs.arguments
@jobs.app
def add(
    *,
    words: tuple[str, ...],
    task: str | None,
    arguments: str | None,
    app_name: str | None,
    **given: Any,
) -> None:
    """Put BODY into QUEUE again and again, by a schedule called NAME.

    Without BODY, or with `-`, the body is read from stdin. With --task the schedule puts jobs,
    which `shardq work` runs. A missing QUEUE is created. Adding the same schedule again changes
    nothing; ends with 23 if a different schedule has the name.
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
        with jobs.opened(app_name) as app:
            target, job = jobs.drafted_job(app, task, jobs.arguments_of(arguments), chosen)
            made = _made(target, make, name, {**job, **how})
            _tell_made(made, target, f"in queue {target.name} of {app.connection.url_shown}")
        return
    content = options.content(body) if task is None else jobs.content_of(arguments)
    if task is not None:
        chosen["headers"] = {jobs.TASK_HEADER: task, **chosen.get("headers", {})}
    target = options.connect(makes=True).queue(str(queue))
    made = _made(target, make, name, {"body": content, **chosen, **how})
    _tell_made(made, target, "")


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


def _made(target: Queue, make: Make | None, name: str, chosen: dict[str, Any]) -> Schedule:
    return target.schedules._home.make(make, chosen.pop("body"), name=name, **chosen)


def _tell_made(one: Schedule, target: Queue, where: str) -> None:
    with streams.saying(f"The schedule is stored, as {one.name}."):
        _tell(one, target, where)


def _tell(one: Schedule, source: Queue, done: str) -> None:
    """Print the result for a schedule, and its next fire time."""
    told = schedulelines.ahead(one, source._home.clock.now_ms())
    is_ahead = one.next is not None
    told = f"{done}{'; ' if done else ''}next {told}" if is_ahead else done or told
    screen.result(schedulelines.to_json(one), f"{streams.escaped(one.name)}: {told}")


# Looking ------------------------------------------------------------------------------------------


@options.command(
    "shardq schedule list",
    "shardq schedule list mail",
    "shardq schedule list --json | jq '{queue, name, next}'",
    of=schedule,
    name="list",
)
@click.argument("queue", required=False)
def list_(*, queue: str | None) -> None:
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
    db = options.connect()
    now_ms = db._home.clock.now_ms()
    found: list[Schedule] = []
    wrong: list[str] = []
    for source in options.queues_of([queue] if queue else ()):
        if not queue and is_dead_queue(source.name):
            continue
        some, damaged = source.schedules._home.readable()
        found += some
        wrong += damaged
    for text in wrong:
        streams.note(text)
    if found or not wrong:
        example = "shardq schedule add mail hello hi --every 1h"
        empty = f"{queue or db.url_shown} has no schedules; make one: {example}"
        schedulelines.show_list(found, now_ms, has_queues=queue is None, empty=empty)
    states = {schedulelines.state_of(one, now_ms) for one in found}
    if states & {"overdue", "failing"} and not options.is_json():
        click.echo("What is wrong, and what to do, says `shardq check`.", err=True)


@options.command("shardq schedule show mail nightly", of=schedule)
@options.queue
@click.argument("name")
def show(queue: str, name: str) -> None:
    """Show all of the schedule NAME of QUEUE. Ends with 21 where there is none."""
    source = options.queue_of(queue)
    one = source.schedules[name]
    if options.is_json():
        screen.print_json(schedulelines.to_json(one))
    else:
        screen.print_facts(schedulelines.facts(one, source._home.clock.now_ms()))


@options.command(
    "shardq schedule preview mail nightly",
    "shardq schedule preview mail nightly -n 3 --after 2027-03-27",
    'shardq schedule preview --cron "30 2 * * *" --tz Europe/Berlin --gap skip',
    "shardq schedule preview --every 36h --start 2027-03-27T00:00Z -n 3",
    of=schedule,
)
@click.argument("queue", required=False)
@click.argument("name", required=False)
@options.option("-n, --number N", "How many.", least=1, most=PREVIEW_MAX, default=10)
@options.option(
    "--after TIME",
    "From when on, now where it is not given. A day, or a TIME without an offset, is one of "
    "the schedule's zone.",
)
@scheduling.trigger
@scheduling.policies
def preview(
    *, queue: str | None, name: str | None, number: int, after: str | None, **given: Any
) -> None:
    """Show the next fire times of the schedule NAME of QUEUE, or of one that is not made.

    Each fire time is shown by the wall clock and in UTC, with the due of its message if --jitter or
    --spread make it later, and with the reason for anything unusual. Lines between fire times mark
    changes of the clocks. For a schedule that does not exist give --every or --cron; this needs no
    store. For an existing one --tz is the zone to show times in.
    """
    if queue is None:
        definition = _drafted(given)
        _show_firings(definition, number, after, None, SystemClock().now_ms())
        return
    if name is None:
        raise click.UsageError("give the schedule's NAME as well, or --every or --cron alone.")
    others = {option: value for option, value in given.items() if option != "tz"}
    scheduling.refuse_all(others, "goes without QUEUE and NAME: that schedule has its own.")
    zone = None if given["tz"] is None else zone_of(given["tz"])
    put_here_on_path()
    source = options.queue_of(queue)
    one = source.schedules[name]
    now_ms = source._home.clock.now_ms()
    definition = ScheduleDefinition(
        name, one.trigger, ScheduledPut(one.body), policies=one.policies, count=one.count
    )
    if one.state == "paused" and not options.is_json():
        click.echo(f"It is paused: first `shardq schedule resume {queue} {name}`.", err=True)
    _show_firings(definition, number, after, zone, now_ms, fired=one.fired)


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
    fired: int = 0,
) -> None:
    own = definition.trigger.tzinfo
    after_ms = now_ms if after is None else due_ms(local_moment(after, own, "--after"))
    found = firings.events(definition, after_ms, number, fired=fired)
    if options.is_json():
        for one in found:
            screen.print_json(firings.to_json(one))
        return
    to = screen.console()
    policies = definition.policies
    told = ", ".join(f"{name} {value}" for name, value in policies.said().items())
    trigger = str(definition.trigger)
    title = [trigger if definition.name == trigger else f"{definition.name}: {trigger}"]
    title += [told] if told else []
    click.echo(streams.escaped("; ".join(title)) + "\n")
    made = firings.Timetable(
        found, zone or own, after_ms, policies.latest_ms > 0, to.options.ascii_only
    )
    listing.print_lines(made.lines(to.width) if found else [])
    if sum(one.due is not None for one in found) < number:
        click.echo("It never fires after that." if found else "It never fires then.")


# Changing -----------------------------------------------------------------------------------------


@options.command(
    'shardq schedule change mail nightly --cron "0 3 * * *" --tz Europe/Berlin',
    "shardq schedule change mail nightly --jitter 5m --missed skip",
    """shardq schedule change crm sync --args '{"all": 0}'""",
    'shardq schedule change mail nightly --window "" --count 0',
    of=schedule,
)
@options.queue
@click.argument("name")
@options.option("--body TEXT", "What it puts; `-` reads that from stdin.")
@options.option("--args JSON", "The new arguments of its task, an object.", name="arguments")
@scheduling.trigger
@scheduling.policies
@scheduling.job
def change(*, queue: str, name: str, body: str | None, arguments: str | None, **given: Any) -> None:
    """Change the schedule NAME of QUEUE; what is not given stays.

    Once the command has ended, the old schedule fires no more, except for fire times within 0.1 s,
    on Cassandra 2.5 s. If only the times are changed, zone, start and end stay. An empty text
    removes --start, --end, --window, --group, --key or --unique-for; 0 removes --count. Given
    headers replace all headers, except the name of a task. Ends with 21 if the schedule does not
    exist.
    """
    is_timed = scheduling.is_timed(given)
    changes = scheduling.changes_of(given)
    if not (is_timed or changes) and body is None and arguments is None:
        raise click.UsageError("give at least one thing to change.")
    put_here_on_path()
    source = options.queue_of(queue)
    before = source.schedules[name]
    retime = scheduling.retime_of(given, before.trigger)
    content = _new_content(before, body, arguments)
    made = source.schedules._home.change(name, retime, content, changes)
    _tell(made, source, "changed")
    if made.revision:
        streams.note(
            f"code declares {streams.escaped(name)}, with revision {made.revision}: it "
            f"stays as it is now until the code has a higher revision, which takes its place."
        )


def _new_content(before: Schedule, body: str | None, arguments: str | None) -> bytes | None:
    """The new content of a schedule; None if it stays."""
    call = schedulelines.call_of(before)
    if body is not None:
        if call is not None:
            raise click.UsageError(f"it puts jobs, {call}; give --args instead of --body.")
        return options.content(body)
    if arguments is None:
        return None
    if call is None:
        raise click.UsageError("it puts no jobs of a task; give --body instead of --args.")
    return jobs.content_of(arguments)


@options.command("shardq schedule pause mail nightly", of=schedule)
@options.queue
@click.argument("name")
def pause(queue: str, name: str) -> None:
    """Let the schedule NAME of QUEUE not fire until it is resumed.

    Fire times meanwhile are skipped. Ends with 21 where there is no such schedule.
    """
    source = options.queue_of(queue)
    _tell(source.schedules[name].pause(), source, "paused")


@options.command("shardq schedule resume mail nightly", of=schedule)
@options.queue
@click.argument("name")
def resume(queue: str, name: str) -> None:
    """Let the schedule NAME of QUEUE fire again, from its next fire time on.

    A schedule that was fired by a clock ahead follows the right clock again. Ends with 21 where
    there is no such schedule.
    """
    put_here_on_path()
    source = options.queue_of(queue)
    before = source.schedules[name]
    if before.state == "paused":
        done = "resumed"
    elif fired_ahead(before, source._home.clock.now_ms()):
        done = "goes by the clock again"
    else:
        done = "was not paused"
    _tell(before.resume(), source, done)


@options.command("shardq schedule run mail nightly", of=schedule)
@options.queue
@click.argument("name")
def run(queue: str, name: str) -> None:
    """Put the message of the schedule NAME of QUEUE now; its fire times stay the same.

    Prints the message's id. Ends with 21 where there is no such schedule.
    """
    tell_put(options.queue_of(queue).schedules[name].run())


@options.command(
    "shardq schedule backfill mail daily --after 2026-11-01 --until 2026-11-08", of=schedule
)
@options.queue
@click.argument("name")
@options.option(
    "--after TIME",
    "From when on. A day, or a TIME without an offset, is one of the schedule's zone.",
    required=True,
)
@options.option("--until TIME", "Up to when; that itself is not in.", required=True)
@options.option("--dry-run", "Put none, and say how many it would be.")
def backfill(*, queue: str, name: str, after: str, until: str, dry_run: bool) -> None:
    """Put what the schedule NAME of QUEUE puts, once for each fire time of a span, all due now.

    Each message has its fire time in its headers, as if fired at that time, and the id NAME@TIME.
    Each call puts all messages of the span again, under the same ids, even for times that have
    fired: --dry-run shows how many, so that you can ask only for missing times. If the schedule has
    a --key, only one message waits at a time, so one message is put for the span. Ends with 21 if
    the schedule does not exist.
    """
    put_here_on_path()
    one = options.queue_of(queue).schedules[name]
    zone = one.trigger.tzinfo
    first, end = (
        local_moment(text, zone, option)
        for text, option in ((after, "--after"), (until, "--until"))
    )
    if end <= first:
        raise UsageError(f"--until {shown(until)} must be later than --after {shown(after)}.")
    count = one.backfill(first, end, dry_run=dry_run)
    put = screen.plural(count, "message")
    stored = 0 if dry_run else count
    ids = f"{streams.escaped(name)}@TIME"
    text = f"put {put} into {queue}, by their fire times with ids {ids}: see `shardq peek {queue}`"
    with streams.saying("Nothing was put." if dry_run else f"Stored: {put}."):
        screen.result(
            {"queue": queue, "name": name, "put": stored, "fire_times": count},
            f"would put {put}" if dry_run else text,
        )


@options.command("shardq schedule remove mail nightly", of=schedule)
@options.queue
@click.argument("name")
def remove(queue: str, name: str) -> None:
    """Remove the schedule NAME of QUEUE: when this ends, it never fires again.

    Its messages stay. Ends with 21 where there is no such schedule.
    """
    schedules = options.queue_of(queue).schedules
    try:
        revision = schedules[name].revision
    except StoreCorrupt:
        # Remove even an unreadable schedule, so that it can be made again.
        revision = 0
    schedules.remove(name)
    told = {"queue": queue, "name": name, "removed": True}
    screen.result(told, f"{streams.escaped(name)}: removed")
    if revision:
        streams.note(
            f"code declares {streams.escaped(name)}, with revision {revision}: the next "
            f"worker that starts makes it again. Take it out of the code, or pause it: that lasts."
        )
