"""The hour that comes twice, and the hour that is missing."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple, get_args
from zoneinfo import ZoneInfo

import pendulum
import pytest
from apscheduler.triggers.cron import CronTrigger

from shardq.errors import BadSetting
from shardq.model.times import due_ms, moment_of
from shardq.schedules.triggers.fire import Gap, Twice
from shardq.schedules.triggers.trigger import Trigger
from shardq.schedules.triggers.zones import zone_name, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterator

POLICIES: list[tuple[Twice, Gap]] = list(product(get_args(Twice), get_args(Gap)))


def fires(cron: str, zone: str, days: str, **policies: Any) -> list[str]:
    """When a cron fires on some days, in UTC, and why."""
    first, _, last = days.partition("/")
    trigger = Trigger.cron(cron, tz=zone)
    found = trigger.fires(
        due_ms(f"{first}T00Z") - 1, due_ms(f"{last or first}T24Z") - 1, **policies
    )
    return [f"{moment_of(fire.at_ms):%d %H:%M} {fire.why}".strip() for fire in found]


FORWARD, BACK = "clocks go forward: moved to", "clocks go back"


@pytest.mark.parametrize(
    ("cron", "zone", "days", "shifted", "skipped"),
    [
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2027-03-27/2027-03-29",
            ["27 01:30", f"28 01:30 02:30 does not exist, {FORWARD} 03:30", "29 00:30"],
            ["27 01:30", "29 00:30"],
        ),
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2027-10-02",
            [f"02 15:45 02:15 does not exist, {FORWARD} 02:45"],
            [],
        ),
        (
            "20 2 * * *",
            "Antarctica/Troll",
            "2027-03-28",
            [f"28 02:20 02:20 does not exist, {FORWARD} 04:20"],
            [],
        ),
        (
            "0 9 * * 5",
            "Pacific/Apia",
            "2011-12-30",
            [f"30 19:00 2011-12-30 09:00 does not exist, {FORWARD} 2011-12-31 09:00"],
            [],
        ),
    ],
)
def test_a_local_time_that_does_not_exist_fires_by_the_old_clock_or_not_at_all(
    cron: str, zone: str, days: str, shifted: list[str], skipped: list[str]
) -> None:
    assert fires(cron, zone, days, gap="shift") == shifted
    assert fires(cron, zone, days, gap="skip") == skipped


@pytest.mark.parametrize(
    ("cron", "zone", "days", "both"),
    [
        ("30 2 * * *", "Europe/Berlin", "2027-10-31", ["31 00:30", "31 01:30"]),
        ("59 0 * * *", "America/Havana", "2027-11-07", ["07 04:59", "07 05:59"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2027-04-03", ["03 14:45", "03 15:15"]),
        ("20 2 * * *", "Antarctica/Troll", "2027-10-31", ["31 00:20", "31 02:20"]),
    ],
)
def test_a_local_time_that_comes_twice_fires_at_the_first_the_last_or_both(
    cron: str, zone: str, days: str, both: list[str]
) -> None:
    minute, hour, *_ = cron.split()
    wall = f"{int(hour):02}:{minute}"
    first = f"{both[0]} first of two {wall}, {BACK}"
    second = f"{both[1]} second of two {wall}, {BACK}"
    assert fires(cron, zone, days, twice="both") == [first, second]
    assert fires(cron, zone, days, twice="first") == [first]
    assert fires(cron, zone, days, twice="last") == [second]


def test_times_that_are_moved_to_one_that_fires_anyway_are_one_firing() -> None:
    assert fires("*/30 * * * *", "Europe/Berlin", "2027-03-28")[:5] == [
        "28 00:00",
        "28 00:30",
        "28 01:00",
        "28 01:30",
        "28 02:00",
    ]
    assert fires("0 * * * *", "Australia/Lord_Howe", "2027-10-02")[14:17] == [
        "02 14:30",
        f"02 15:30 02:00 does not exist, {FORWARD} 02:30",
        "02 16:00",
    ]


def test_a_day_that_does_not_exist_is_moved_onto_the_next_and_fires_once() -> None:
    days = "2011-12-29/2011-12-31"
    assert fires("0 9 * * *", "Pacific/Apia", days) == ["29 19:00", "30 19:00", "31 19:00"]
    assert fires("0 9 * * *", "Pacific/Apia", days, gap="skip") == fires(
        "0 9 * * *", "Pacific/Apia", days
    )


@pytest.mark.parametrize(
    ("minute", "hour", "expected"),
    [
        ("0", "*", ["00:00", "01:00"]),
        ("0", "*/2", ["00:00", "01:00"]),
        ("*/30", "2", ["00:00", "00:30", "01:00", "01:30"]),
        ("0", "0-23", ["00:00"]),
        ("0", "0,2,4", ["00:00"]),
        ("0,30", "2", ["00:00", "00:30"]),
        ("0", "2,*/4", ["00:00"]),
    ],
)
def test_text_and_fields_of_a_cron_fire_alike_where_an_hour_comes_twice(
    minute: str, hour: str, expected: list[str]
) -> None:
    # Like cron(8), fire at both times if minutes or hours begin with an asterisk.
    begin = due_ms("2027-10-31T00:00Z") - 1
    fields = CronTrigger(minute=minute, hour=hour, timezone="Europe/Berlin")
    for trigger in (
        Trigger.cron(f"{minute} {hour} * * *", tz="Europe/Berlin"),
        Trigger.of(fields, now_ms=0),
    ):
        found = trigger.fires(begin, due_ms("2027-10-31T01:59Z"))
        assert [f"{moment_of(one.at_ms):%H:%M}" for one in found] == expected


@pytest.mark.parametrize(
    ("cron", "asked", "expected"),
    [
        ("0 * * * *", "03-28 01:30", "28 02:00+0200, 28 04:00+0300"),
        ("30 */2 * * *", "03-28 01:30", "28 02:30+0200, 28 04:30+0300, 28 06:30+0300"),
        ("0 1,2,3,4,5 * * *", "03-28 01:30", "28 02:00+0200, 28 04:00+0300, 28 05:00+0300"),
        ("0 3 * * *", "03-27 01:30", "27 03:00+0200, 28 04:00+0300, 29 03:00+0300"),
        ("* 1-6 * * *", "03-28 02:58", "28 02:59+0200, 28 04:00+0300"),
        ("1 1 1-7 * */7", "03-28 01:30", "04 01:01+0300, 02 01:01+0300, 06 01:01+0300"),
        ("0 * * * *", "10-31 02:30", "31 03:00+0300, 31 03:00+0200, 31 04:00+0200"),
        ("0 */2 * * *", "10-31 01:30", "31 02:00+0300, 31 04:00+0200, 31 06:00+0200"),
        ("30 1-5 * * *", "10-31 01:30", "31 02:30+0300, 31 03:30+0300, 31 04:30+0200"),
        ("0 0-23 * * *", "10-31 01:30", "31 02:00+0300, 31 03:00+0300, 31 04:00+0200"),
        ("15 3 * * *", "10-30 00:00", "30 03:15+0300, 31 03:15+0300, 01 03:15+0200"),
        ("* 1-6 * * *", "10-31 03:58", "31 03:59+0300, 31 03:00+0200, 31 03:01+0200"),
    ],
)
def test_a_cron_fires_as_in_debian_where_clocks_are_set(
    cron: str, asked: str, expected: str
) -> None:
    # From the tests of cronsim, which follows cron(8) of Debian. What it does otherwise is left
    # out: there a time that does not exist runs as soon as clocks have gone forward.
    riga = ZoneInfo("Europe/Riga")
    at_ms = due_ms(datetime.fromisoformat(f"2021-{asked}").replace(tzinfo=riga))
    trigger, found = Trigger.cron(cron, tz="Europe/Riga"), []
    for _ in expected.split(", "):
        fire = trigger.after(at_ms)
        at_ms = fire.at_ms
        found.append(f"{moment_of(at_ms).astimezone(riga):%d %H:%M%z}")
    assert ", ".join(found) == expected


def test_an_interval_is_touched_by_no_clock_change() -> None:
    trigger = Trigger.every("1h", start="2027-10-31T00:00+02:00", now_ms=0)
    start_ms = due_ms("2027-10-30T22:00Z")
    times = [fire.at_ms for fire in trigger.fires(start_ms, start_ms + 24 * 3_600_000)]
    assert times == [start_ms + hours * 3_600_000 for hours in range(1, 25)]


ZONES = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Havana",
    "America/New_York",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Europe/Dublin",
    "Pacific/Chatham",
    "UTC",
]
"""Zones of all kinds: two hemispheres, changes of 30 to 120 minutes, at midnight, in Ramadan."""
YEAR = datetime(2027, 1, 1), datetime(2028, 1, 1)  # noqa: DTZ001 - local times
HOUR = timedelta(hours=1)


@cache
def moments(wall: datetime, zone: tzinfo) -> tuple[list[datetime], datetime | None]:
    """The instants that show a local time, by `zoneinfo` alone, and where it is moved if none."""
    shown = {wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    real = sorted(at for at in shown if at.astimezone(zone).replace(tzinfo=None) == wall)
    if real:
        return real, None
    before = (wall - 25 * HOUR).replace(tzinfo=zone).utcoffset()
    assert before is not None
    return [], (wall - before).replace(tzinfo=UTC)


def expected(
    walls: list[datetime], zone: str, twice: Twice, gap: Gap, after: datetime, until: datetime
) -> list[datetime]:
    found: set[datetime] = set()
    for wall in walls:
        real, moved = moments(wall, ZoneInfo(zone))
        found.update({"first": real[:1], "last": real[-1:], "both": real}[twice])
        if moved is not None and gap == "shift":
            found.add(moved)
    return sorted(at for at in found if after < at <= until)


def every(span: timedelta, start: datetime, end: datetime) -> Iterator[datetime]:
    while start < end:
        yield start
        start += span


SCHEDULES = 200
HOURS_A_DAY_MAX = 4


class Made(NamedTuple):
    """A field of a cron that was drawn, and the values that fit it."""

    text: str
    values: range

    @property
    def is_restricted(self) -> bool:
        return not self.text.startswith("*")


def drawn(dice: random.Random, low: int, high: int, any_of_ten: int) -> Made:
    """A field of a cron; `any_of_ten` of ten are an asterisk."""
    if dice.randrange(10) < any_of_ten:
        return Made("*", range(low, high + 1))
    first, last = sorted(dice.choices(range(low, high + 1), k=2))
    step = dice.randint(1, high - low)
    return dice.choice(
        [
            Made(str(first), range(first, first + 1)),
            Made(f"{first}-{last}", range(first, last + 1)),
            Made(f"{first}-{last}/{step}", range(first, last + 1, step)),
            Made(f"*/{step}", range(low, high + 1, step)),
        ]
    )


def walls_of(minute: int, hour: Made, day: Made, month: Made, weekday: Made) -> Iterator[datetime]:
    """The local times of the year that fit a cron."""
    weekdays = {value % 7 for value in weekday.values}
    enough = any if day.is_restricted and weekday.is_restricted else all
    for at in every(24 * HOUR, *YEAR):
        fits = enough([at.day in day.values, at.isoweekday() % 7 in weekdays])
        if fits and at.month in month.values:
            yield from (at.replace(hour=value, minute=minute) for value in hour.values)


def test_a_year_of_200_schedules_in_15_zones_is_what_an_independent_calculation_says() -> None:
    seed = 27
    dice = random.Random(seed)
    start, end = (at.replace(tzinfo=UTC) for at in YEAR)
    # Local times of the year's first and last hours lie outside it in UTC: a day less each.
    after, until = start + 24 * HOUR, end - 24 * HOUR
    total = 0
    for number in range(SCHEDULES):
        minute = dice.randrange(60)
        while len((hour := drawn(dice, 0, 23, 0)).values) > HOURS_A_DAY_MAX:
            pass
        day, month, weekday = drawn(dice, 1, 31, 5), drawn(dice, 1, 12, 8), drawn(dice, 0, 7, 5)
        walls = list(walls_of(minute, hour, day, month, weekday))
        zone, (twice, gap) = ZONES[number % len(ZONES)], dice.choice(POLICIES)
        cron = f"{minute} {hour.text} {day.text} {month.text} {weekday.text}"
        trigger = Trigger.cron(cron, tz=zone)
        found = trigger.fires(due_ms(after), due_ms(until), twice=twice, gap=gap)
        times = [moment_of(fire.at_ms) for fire in found]
        said = f"cron {cron} {zone}, {twice}, {gap}, seed {seed}"
        assert times == expected(walls, zone, twice, gap, after, until), said
        assert trigger.count(due_ms(after), due_ms(until), twice=twice, gap=gap) == len(times), said
        total += len(times)
    assert total > SCHEDULES * 12, "too few to tell anything"


def changes(zone: str) -> list[datetime]:
    """The days of the year in which a zone's clocks are set."""
    days = [at.replace(tzinfo=UTC) for at in every(24 * HOUR, *YEAR)]
    offsets = [at.astimezone(ZoneInfo(zone)).utcoffset() for at in days]
    return [day for day, old, new in zip(days, offsets, offsets[1:], strict=False) if old != new]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    ("cron", "span"),
    [("0 * * * *", HOUR), ("*/30 * * * *", HOUR / 2), ("7-59/20 * * * *", HOUR / 3)],
)
def test_firings_near_a_clock_change_are_what_an_independent_calculation_says(
    cron: str, span: timedelta, zone: str
) -> None:
    trigger = Trigger.cron(cron, tz=zone)
    seed = 27
    dice = random.Random(seed)
    for change, (twice, gap) in product(changes(zone), POLICIES):
        after, until = change - 2 * HOUR, change + 27 * HOUR
        local = change.replace(tzinfo=None)
        offset = timedelta(minutes=7) if cron.startswith("7") else timedelta()
        walls = [at + offset for at in every(span, local - 18 * HOUR, local + 43 * HOUR)]
        found = list(trigger.fires(due_ms(after), due_ms(until), twice=twice, gap=gap))
        times = [moment_of(fire.at_ms) for fire in found]
        assert times == expected(walls, zone, twice, gap, after, until), (change, twice, gap)
        count = trigger.count(due_ms(after), due_ms(until), twice=twice, gap=gap)
        assert count == len(times), (change, twice, gap)
        for earlier, later in dice.sample(list(pairwise(found)), 10):
            between_ms = dice.randrange(earlier.at_ms, later.at_ms)
            assert trigger.after(between_ms, twice=twice, gap=gap) == later, f"seed {seed}"


@pytest.mark.parametrize("cron", ["0 12 29 2 *", "0 0 1 1 *"])
def test_a_rare_time_is_found_across_many_clock_changes(cron: str) -> None:
    trigger = Trigger.cron(cron, tz="America/New_York")
    fire = trigger.after(due_ms("2096-03-01T00Z"))
    local = moment_of(fire.at_ms).astimezone(ZoneInfo("America/New_York"))
    assert f"{local:%F %H}" == {"0 12": "2104-02-29 12", "0 0 ": "2097-01-01 00"}[cron[:4]]


@pytest.mark.parametrize("asked", ["9999-12-30T00Z", "9998-01-01T00Z"])
def test_at_the_end_of_time_nothing_fires_any_more(asked: str) -> None:
    assert Trigger.cron("* * * * *", tz="Europe/Berlin").after(due_ms(asked)) is None


def test_the_first_firings_since_1970_are_found() -> None:
    fire = Trigger.cron("0 1 * * *", tz="Europe/Berlin").after(-1)
    assert fire.at_ms == 0


class Nameless(tzinfo):
    def utcoffset(self, at: datetime | None) -> timedelta:
        return HOUR


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        (ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
        (pendulum.timezone("Europe/Berlin"), "Europe/Berlin"),
        (UTC, "UTC"),
        ("+05:30", "+05:30"),
        (timezone(timedelta(hours=-3.5)), "-03:30"),
        (timezone(timedelta(hours=2), "CEST"), "+02:00"),
    ],
    ids=repr,
)
def test_a_zone_has_a_name_by_which_it_is_found_again(given: object, name: str) -> None:
    zone = zone_of(given)
    assert zone_name(zone) == name
    at = datetime(2027, 7, 1, tzinfo=UTC)
    assert at.astimezone(zone_of(name)).utcoffset() == at.astimezone(zone).utcoffset()
    assert Trigger.cron("0 0 * * *", tz=given).zone == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Europe/Berln", "there is no time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?"),
        ("europe/berlin", "; did you mean 'Europe/Berlin'?"),
        ("Berlin", "; did you mean 'Europe/Berlin'?"),
        ("New York", "; did you mean 'America/New_York'?"),
        ("PST", "; take one such as 'Europe/Berlin', or an offset such as '+02:00'."),
        ("", "; take one such as 'Europe/Berlin', or an offset such as '+02:00'."),
        ("GMT+2", "there is no time zone 'GMT+2'; did you mean '+02:00'?"),
        ("GMT 2", "; take one such as 'Europe/Berlin', or"),
        ("../../etc/passwd", "there is no time zone '../../etc/passwd'; "),
        ("localtime", "there is no time zone 'localtime'; "),
        ("right/UTC", "there is no time zone 'right/UTC'; did you mean 'UTC'?"),
        ("x" * 1_000, "there is no time zone 'xxxx"),
        ("+2", "there is no time zone '+2'; did you mean '+02:00'?"),
        ("+24:00", "; take one such as 'Europe/Berlin', or an offset such as '+02:00'."),
        (Nameless(), "has no name that other processes know; take ZoneInfo('Europe/Berlin')"),
        (None, "a zone must be a name such as 'Europe/Berlin', or a tzinfo, not None."),
    ],
)
def test_a_zone_that_nobody_knows_is_refused_with_the_nearest_one(given: object, said: str) -> None:
    with pytest.raises(BadSetting) as caught:
        zone_of(given)
    assert said in str(caught.value)
