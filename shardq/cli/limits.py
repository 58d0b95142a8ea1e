"""Limits of a queue's groups and tasks: listed, set, removed, explained."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import click

from shardq.cli import listing, options, screen, streams
from shardq.inspection.backlog import PartBacklog, PartBacklogs, backlogs
from shardq.model.limits import (
    ORDERED,
    PLACES_MAX,
    RUNNING_MAX,
    TIER_MAX,
    QueueLimit,
    limits_of,
    queue_limit_of,
    wait_ms,
)
from shardq.model.times import iso, span

if TYPE_CHECKING:
    from shardq.queue import Queue


@options.command(
    "shardq limits mail",
    "shardq limits mail '*' --places 2 --rate 10/s --burst 5",
    "shardq limits mail 'vip-*' --places 10 --tier 3",
    "shardq limits mail 'vip-*' --remove",
    "shardq limits mail tenant-7",
    "shardq limits shop --task shop.charge --rate 10/s --running 5",
    "shardq limits shop --task 'shop.*'",
)
@options.queue
@click.argument("groups", required=False)
@options.option("--places N", "Deliveries that may run at once.", least=1, most=PLACES_MAX)
@options.option("--rate RATE", "Deliveries that may begin: 10/s, 1,000/h.", multiple=True)
@options.option("--burst N", "How many may begin at once after a rest.", least=1)
@options.option("--tier N", "Its weight beside other groups.", least=1, most=TIER_MAX)
@options.option("--running N", "Jobs of a task that may run at once.", least=1, most=RUNNING_MAX)
@options.option("--task TASK", "Instead of GROUPS: a task, or the beginning of names and a *.")
@options.option("--remove", "Remove the limits of GROUPS or TASK.")
def limits(
    queue: str,
    groups: str | None,
    rate: tuple[str, ...],
    task: str | None,
    *,
    remove: bool,
    **given: int | None,
) -> None:
    """List the limits of QUEUE and its groups; or set those of GROUPS or a task, or explain them.

    GROUPS is the name of a group, or the beginning of names and a *, or * for each group that no
    other limit names. The given limits replace all limits of GROUPS. A name precedes the longest
    beginning of names. Without an option, explains the limits of one group: its due and running
    messages, and about when the last due message begins. A task has --rate, --burst and --running,
    over all workers.
    """
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if rate:
        wanted["rate"] = list(rate)
    if task is not None and groups is not None:
        raise click.UsageError("give GROUPS or --task, one of them.")
    if (wanted or remove) and groups is None and task is None:
        raise click.UsageError("name the GROUPS whose limits to change; * is each group.")
    if wanted and remove:
        raise click.UsageError("--remove goes with no other option.")
    target = options.queue_of(queue)
    if task is not None:
        if wanted or remove:
            target.limit(task=task, **wanted)
        _explain_task(queue_limit_of(target.settings.queue_limit), task)
    elif groups is None:
        _list(target.settings.group_limits)
        now_ms = target._home.clock.now_ms()
        _list_of_queue(queue_limit_of(target.settings.queue_limit).at(now_ms))
    elif wanted or remove:
        before = limits_of(target.settings.group_limits)
        had = groups in before.rules or (groups == "*" and before.each != ORDERED)
        target.limit(groups, **wanted)
        limit = limits_of(target.settings.group_limits).of(groups.rstrip("*"))
        removed = "; its own limits are removed" if had else "; there were no limits of its own"
        click.echo(f"{queue}: {groups}: {limit}{removed * remove}")
    else:
        _explain(target, groups)


def _explain_task(limits: QueueLimit, task: str) -> None:
    rules = dict(limits.tasks)
    rule = task if task in rules else limits.rule_of(task.rstrip("*"))
    limit = QueueLimit() if rule is None else rules[rule]
    if options.is_json():
        screen.print_json({"task": task, "rule": rule, **limit.to_options()})
    elif rule is None:
        click.echo(f"{task}: no limits")
    else:
        click.echo(f"{task}: {limit}; by the rule {rule}")


def _list(stored: str) -> None:
    found = limits_of(stored)
    rules = [*found.rules.items(), ("*", found.each)]
    rows = [(name, limit, _paused(name, found.paused)) for name, limit in rules]
    named = {name for name, *_ in rows}
    rows += [(name, found.of(name.rstrip("*")), "yes") for name in sorted(found.paused - named)]
    listing.show_all(
        rows,
        lambda row: {"groups": row[0], **_limit_to_json(row[1]), "paused": row[2] == "yes"},
        lambda row: {
            "groups": row[0],
            ">places": f"{row[1].places:,}",
            "rate": " ".join(str(rate) for rate, _ in row[1].rates) or "-",
            ">burst": " ".join(f"{burst:,}" for _, burst in row[1].rates) or "-",
            ">tier": f"{row[1].tier:,}",
            "paused": row[2],
        },
        free=0,
        empty="",
    )


def _list_of_queue(limit: QueueLimit) -> None:
    """Print the limits of the queue itself and of its tasks, if there are any."""
    own = limit.to_options()
    tasks = own.pop("tasks", {})
    if options.is_json():
        found = [{"queue": own}] if own else []
        found += [{"task": rule, **said} for rule, said in tasks.items()]
        for one in found:
            screen.print_json(one)
        return
    if own:
        click.echo(f"the queue: {json.dumps(own)}")
    for rule, said in tasks.items():
        click.echo(f"task {rule}: {json.dumps(said)}")


def _paused(name: str, paused: frozenset[str]) -> str:
    return "yes" if name in paused else "no"


def _limit_to_json(limit: Any) -> dict[str, Any]:
    return {
        "places": limit.places,
        "rates": [str(rate) for rate, _ in limit.rates],
        "bursts": [burst for _, burst in limit.rates],
        "tier": limit.tier,
    }


def _explain(queue: Queue, group: str) -> None:
    found = limits_of(queue.settings.group_limits)
    limit, rule, pause = found.of(group), found.rule_of(group), found.pause_of(group)
    counted, backlog = _backlog_of(queue, group)
    now_ms = queue._home.clock.now_ms()
    taken_ms = min(backlog.claims_ms) if len(backlog.claims_ms) >= limit.places else 0
    next_ms = max(backlog.held_ms, taken_ms, now_ms)
    left_ms = wait_ms(limit.rates, backlog.due) if pause is None and counted.is_whole else 0
    left_ms += next_ms - now_ms if left_ms else 0
    last = iso(now_ms + left_ms) if left_ms else None
    if options.is_json():
        told = {"group": group, "rule": rule, "paused_by": pause, **_limit_to_json(limit)}
        told |= {"due": backlog.due, "running": backlog.running}
        told |= {"next_begins": iso(next_ms) if next_ms > now_ms else None, "last_begins": last}
        screen.print_json(told | {"exact": counted.is_whole})
        return
    by = (
        "no rule names it, so it has those of each group" if rule is None else f"by the rule {rule}"
    )
    click.echo(f"{group}: {limit}; {by}")
    if limit.places == 1:
        click.echo("Its messages are delivered one at a time, in order.")
    else:
        click.echo("Its messages have no order.")
    least = "" if counted.is_whole else "at least "
    until = f"; the last of the due ones begins about {last}, in {span(left_ms)}" if last else ""
    click.echo(f"{least}{backlog.due:,} due, {backlog.running:,} running{until}")
    if backlog.held_ms:
        until = f"{iso(backlog.held_ms)}, in {span(backlog.held_ms - now_ms)}"
        named = streams.escaped(shlex.quote(group))
        end = f"`shardq queues resume {queue.name} --group {named}`"
        click.echo(f"It is held back until {until}; {end} ends that.")
    elif taken_ms:
        until = f"{iso(taken_ms)}, in {span(taken_ms - now_ms)}"
        click.echo(f"All its places are taken, the first until about {until}.")
    if pause is not None:
        named = streams.escaped(shlex.quote(pause))
        click.echo(f"It is paused by {pause}: `shardq queues resume {queue.name} --group {named}`.")


def _backlog_of(queue: Queue, group: str) -> tuple[PartBacklogs, PartBacklog]:
    home = queue._home
    lanes = [home.register.layout.group_lane(group)]
    found = backlogs(home.store, home.register, home.clock.now_ms(), lanes=lanes)
    return found, found.groups.get(group, PartBacklog())
