"""The options of `schedule`: a schedule's trigger, its job and its policies."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, get_args

import click

from shardq.cli import options
from shardq.schedules import policy
from shardq.schedules.options import JobOptions, chosen, retimed
from shardq.schedules.triggers.zones import local_moment, zone_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.schedules.options import Make, Retime
    from shardq.schedules.triggers.trigger import Trigger

_EMPTY_TAKES_BACK = ("window", "group", "key", "unique_for")
_CONFLICTS = ("keep", "replace")

_TRIGGER = {
    "every": options.option(
        "--every DURATION", "It fires again and again after so long, from 1s on: 15m, 1h30m."
    ),
    "cron": options.option(
        "--cron TEXT",
        'Instead: at times of the wall clock, as cron has them: "30 2 * * 1-5", with seconds in '
        "front where there are six fields, or @daily and the like.",
    ),
    "tz": options.option(
        "--tz ZONE",
        "Whose wall clock --cron goes by: Europe/Berlin, or an offset as +02:00. Without it: UTC, "
        "and of a schedule that is changed the zone that it has.",
    ),
    "start": options.option(
        "--start TIME",
        "It fires no sooner; with --every, then for the first time. A day, which means its "
        "midnight, or a TIME without an offset, is one of --tz, and of UTC with --every.",
    ),
    "end": options.option("--end TIME", "It fires no later. TIME is read as that of --start."),
}
_POLICIES = {
    "missed": options.option(
        "--missed",
        "What becomes of fire times at which no consumer was there for over 1 m: none, the last "
        "one, or all of them are fired later. Otherwise once.",
        type=click.Choice(get_args(policy.Missed)),
    ),
    "window": options.option("--window DURATION", "Of those missed, none that is longer ago."),
    "overlap": options.option(
        "--overlap",
        "What to do while the message before has not ended: put one all the same, pass the fire "
        "time by, queue it behind that, or cancel that. Otherwise allow.",
        type=click.Choice(get_args(policy.Overlap)),
    ),
    "twice": options.option(
        "--twice",
        "Which of the two fires where clocks go back and a local time comes twice. Otherwise both "
        "where the cron's minutes or hours begin with *, else first.",
        type=click.Choice(get_args(policy.Twice)),
    ),
    "gap": options.option(
        "--gap",
        "Where clocks go forward and a local time does not exist: fire as much later, or not at "
        "all. Otherwise shift.",
        type=click.Choice(get_args(policy.Gap)),
    ),
    "jitter": options.option(
        "--jitter DURATION",
        "Each message is due up to so long after its fire time, always as long for the same one.",
    ),
    "spread": options.option(
        "--spread DURATION",
        "All messages are due up to so long after their fire times, the same for each, so that "
        "schedules of one time do not fire together.",
    ),
}
trigger = options.together(*_TRIGGER.values())
"""The options for the fire times of a schedule."""
policies = options.together(*_POLICIES.values())
"""The options for missed times, long runs and clock changes."""
job = options.together(
    options.option("--count N", "It fires N times.", type=options.WholeNumber(0)),
    options.option("--priority N", "Among those due, messages of priority 0 come first.", type=int),
    options.group,
    options.option(
        "--key KEY", "A name that no other message of QUEUE has: while one has it, none is put."
    ),
    options.option(
        "--on-conflict CHOICE",
        "What to do where a message has the key: keep it and put none, or put the new one in its "
        "place (replace). Otherwise keep.",
        type=click.Choice(_CONFLICTS),
    ),
    options.option("--unique-for DURATION", "How long the key is held after its end."),
    options.headers,
)
"""The options for the job of a schedule, including those of `put`, and for the count."""


def needed_make(given: Mapping[str, Any]) -> Make:
    """The chosen trigger.

    Args:
        given: The options by name.

    Raises:
        click.UsageError: If there is none, or several.
        UsageError: If it cannot be used.
    """
    every, cron, tz, start, end = (given[name] for name in _TRIGGER)
    _check_one(every, cron, tz)
    at_start = given.get("at_start", False)
    if at_start and cron is not None:
        raise click.UsageError("--at-start goes with --every: a cron has times of its own.")
    zone = UTC if cron is None else zone_of(tz or "UTC")
    made = (
        None
        if every is cron is None
        else chosen(
            every=every,
            cron=cron,
            tz=tz,
            start=None if start is None else local_moment(start, zone, "--start"),
            end=None if end is None else local_moment(end, zone, "--end"),
            at_start=at_start,
        )
    )
    if made is None:
        raise click.UsageError("give --every or --cron: when is it to fire?")
    return made


def is_timed(given: Mapping[str, Any]) -> bool:
    """True if any option for the fire times was given."""
    return any(given[name] is not None for name in _TRIGGER)


def retime_of(given: Mapping[str, Any], before: Trigger) -> Retime | None:
    """The change of a schedule's fire times, as given; None if they stay.

    Args:
        given: The options by name.
        before: The present trigger.

    Raises:
        click.UsageError: If two triggers were given.
        UsageError: If something cannot be used.
    """
    every, cron, tz, start, end = (given[name] for name in _TRIGGER)
    _check_one(every, cron, tz)
    zone = UTC if every is not None else zone_of(tz or before.zone)
    bounds = {
        name: local_moment(text, zone, f"--{name}") if text else None
        for name, text in (("start", start), ("end", end))
        if text is not None
    }
    return retimed(every=every, cron=cron, tz=tz, bounds=bounds)


def _check_one(every: str | None, cron: str | None, tz: str | None) -> None:
    if every is not None and cron is not None:
        raise click.UsageError("give --every or --cron, one of them.")
    if every is not None and tz is not None:
        raise click.UsageError(
            "--tz goes with --cron: an interval is the same in every zone. Leave it out."
        )


def policies_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen policies, as `PolicyOptions` takes them."""
    return {name: given[name] for name in _POLICIES if given[name] is not None}


def job_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen options of the job, as `JobOptions` takes them.

    Raises:
        click.UsageError: If a header has no `=`.
    """
    made = {**given, "headers": options.headers_of(given["headers"])}
    return {name: made[name] for name in JobOptions.__annotations__ if made[name] is not None}


def changes_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen changes of a schedule; an empty value removes the option.

    Raises:
        click.UsageError: If a header has no `=`.
    """
    made = policies_of(given) | job_of(given)
    if given["count"] is not None:
        made["count"] = given["count"] or None
    return made | {name: None for name in _EMPTY_TAKES_BACK if made.get(name) == ""}


def refuse_all(given: Mapping[str, Any], why: str) -> None:
    """Refuse every given option.

    Raises:
        click.UsageError: If there is one.
    """
    for name, value in given.items():
        if value not in (None, (), False):
            raise click.UsageError(f"--{name.replace('_', '-')} {why}")
