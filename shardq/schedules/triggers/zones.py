"""The zones by their names."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from shardq.errors import BadSetting, shown
from shardq.model.times import due_ms, moment_of

_NEAR = 0.8
"""A name this similar to a zone's is taken for a misspelling; `PST` is not `MST`."""
_OFFSET = re.compile(r"(?:UTC|GMT)? ?([+-])(\d{1,2})(?::?(\d\d))?\Z", re.ASCII | re.IGNORECASE)
_ABBREVIATION = re.compile(r"[A-Z]{2,4}\Z")
_SIGNED = re.compile(r"[+-]\d")
_EXAMPLES = "take one such as 'Europe/Berlin', or an offset such as '+02:00'."
_NOT_PORTABLE = ("posix/", "right/", "localtime", "posixrules", "Factory")
"""Entries of a machine's own database that are no zones."""


def zone_of(given: object) -> tzinfo:
    """A zone, by its name or as an object.

    Args:
        given: A name (`Europe/Berlin`), an offset (`+02:00`), a `ZoneInfo` or another tzinfo that
            has a name, or a `timezone`.

    Raises:
        BadSetting: If there is no such zone; the nearest name is in the text.
    """
    if isinstance(given, timezone):
        return given
    if isinstance(given, tzinfo):
        # pytz's zones have their name in `zone`, those of zoneinfo and pendulum in `key`.
        name = getattr(given, "key", None) or getattr(given, "zone", None)
        if not isinstance(name, str):
            raise BadSetting(
                f"zone {shown(given)} has no name that other processes know; take "
                f"ZoneInfo('Europe/Berlin') or the like."
            )
        given = name
    if not isinstance(given, str):
        raise BadSetting(
            f"a zone must be a name such as 'Europe/Berlin', or a tzinfo, not {shown(given)}."
        )
    return _named(given)


def zone_name(zone: tzinfo) -> str:
    """The name by which `zone_of` finds a zone again.

    >>> zone_name(zone_of("+02:00")), zone_name(zone_of("UTC"))
    ('+02:00', 'UTC')
    """
    if isinstance(zone, ZoneInfo):
        return zone.key
    offset = zone.utcoffset(None)
    return "UTC" if not offset else datetime(1970, 1, 1, tzinfo=zone).isoformat()[19:]


def local_moment(text: str, zone: tzinfo, name: str) -> datetime:
    """A given time; without an offset it is local to a zone.

    Args:
        text: ISO 8601, or a day alone, which means its midnight.
        zone: The zone.
        name: The name of the time, for errors.

    Raises:
        BadTime: If it cannot be read.

    >>> local_moment("2026-03-28", zone_of("Europe/Berlin"), "after").isoformat()
    '2026-03-27T23:00:00+00:00'
    """
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        local = None
    if local is not None and local.tzinfo is None:
        return local.replace(tzinfo=zone).astimezone(UTC)
    return moment_of(due_ms(text, name=name))


def _named(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    if (fixed := _fixed(name)) is not None:
        return fixed
    if not name.startswith(_NOT_PORTABLE):
        try:
            return ZoneInfo(name)
        except (ValueError, OSError, LookupError):
            pass
    raise BadSetting(f"there is no time zone {shown(name)}; {_hint(name)}")


def _hint(name: str) -> str:
    """The zone that may be meant, by its whole name or its city's; never one of another offset."""
    from difflib import get_close_matches

    if (offset := _OFFSET.match(name)) is not None:
        sign, hours, minutes = offset.groups(default="00")
        if _fixed(fixed := f"{sign}{hours:0>2}:{minutes}") is not None:
            return f"did you mean {fixed!r}?"
    if _ABBREVIATION.match(name) or _SIGNED.search(name):
        # Suggest no similar name, which may be another zone: CEST is not EST, and Etc/GMT+2 is two
        # hours behind.
        return _EXAMPLES
    zones = sorted(
        zone
        for zone in available_timezones()
        if zone not in _NOT_PORTABLE and not _SIGNED.search(zone)
    )
    cities = {zone.rpartition("/")[2].casefold(): zone for zone in zones}
    asked = name.replace(" ", "_").casefold()
    meant = cities.get(asked.rpartition("/")[2])
    if meant is None:
        known = cities | {zone.casefold(): zone for zone in zones}
        near = get_close_matches(asked, known, 1, _NEAR)
        if not near:
            return _EXAMPLES
        meant = known[near[0]]
    return f"did you mean {meant!r}?"


def _fixed(name: str) -> tzinfo | None:
    """The zone of an offset (`+02:00`); None for any other name."""
    if name[:1] not in ("+", "-"):
        return None
    try:
        return datetime.fromisoformat(f"1970-01-01T00:00:00{name}").tzinfo
    except ValueError:
        return None
