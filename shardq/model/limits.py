"""Limits: how many deliveries of a group may run at once, and how many may begin in a time.

```
 groups={"places": 3, "rate": "10/s", "burst": 5, "vip-*": {"places": 10, "tier": 3}}
          └── of each group ──────────────────┘   └── of groups whose names match ─┘
```

A rate is kept by a token bucket: in any time T at most `rate * T + burst` deliveries begin.

Source: the generic cell rate algorithm (ITU-T I.371), which keeps one time for each rate.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from shardq.errors import BadSetting, BadTime, shown
from shardq.model.key import parsed
from shardq.model.message import task_of
from shardq.model.names import is_within
from shardq.model.times import due_ms, duration_ms, duration_text, iso

if TYPE_CHECKING:
    from shardq.model.message import Row

PLACES_MAX = 1_000
RUNNING_MAX = 100_000
TIER_MAX = 100
BURST_MAX = 1_000_000
RULES_MAX = 1_000
RATES_MAX = 4
SLOW_US = 10_000_000
"""A rate whose tokens need this time or longer to come back keeps them in a record."""
_GRANT_PART = 10
"""A token is granted alone, or with others up to this part of the burst."""
AWAY_MS = 600_000
"""The longest time to which a message is moved that waits for limits or a pause of its task or key:
these may be raised, and it may end, meanwhile."""
_COUNT_MAX = 1_000_000
_PER_MS_MAX = 366 * 86_400_000
_PATTERN_MAX = 256
_OF_TASK = ("rate", "burst", "running")
_OF_QUEUE = (*_OF_TASK, "catch_up", "budget", "tasks", "paused")
LATE_MS = 5_000
"""A message is late if it was due longer ago than this when it came up for delivery."""
_PAUSED = {"tasks": "task", "keys": "key"}
_UNTIL = "until"
_RATE = re.compile(r"(\d[\d,_]*) ?/ ?(\d+)? ?(ms|[a-z]+)\Z", re.ASCII)
_INSTEAD_OF_NONE = {
    "rate": "to deliver nothing, pause the group, the task or the queue",
    "catch_up": "leave it out for no limit, or give 1/d to hold late messages back",
    "budget": "leave it out for no limit",
}
"""The advice for a limit of 0."""
_UNITS = {
    **dict.fromkeys(("ms",), "ms"),
    **dict.fromkeys(("s", "sec", "second"), "s"),
    **dict.fromkeys(("m", "min", "minute"), "m"),
    **dict.fromkeys(("h", "hr", "hour"), "h"),
    **dict.fromkeys(("d", "day"), "d"),
}


class GroupOptions(TypedDict, total=False):
    """The limits of a group, as users give them.

    Attributes:
        places: Deliveries that may run at once, 1 to 1,000; 1 unless given. With more than 1 the
            messages of a group have no order.
        rate: Deliveries that may begin in a time, `10/s` or `1,000/h`; several in a list.
        burst: How many may begin at once after a rest, 1 to 1,000,000; 1 unless given. It belongs
            to the rate over the shortest time; the burst of any other rate is its count.
        tier: The group's weight beside other groups, 1 to 100; 1 unless given.
    """

    places: int
    rate: str | list[str]
    burst: int
    tier: int


class BeginRate(NamedTuple):
    """A number of deliveries in a time.

    Attributes:
        number: How many.
        per_ms: The time, milliseconds.
    """

    number: int
    per_ms: int

    @property
    def interval_us(self) -> float:
        """Microseconds from one to the next."""
        return self.per_ms * 1_000 / self.number

    def __str__(self) -> str:
        """Return the rate as users write it.

        >>> str(BeginRate(10, 1_000)), str(BeginRate(1_000, 3_600_000)), str(BeginRate(5, 90_000))
        ('10/s', '1000/h', '5/90s')
        """
        for unit in ("d", "h", "m", "s"):
            if self.per_ms == duration_ms(f"1{unit}"):
                return f"{self.number}/{unit}"
        if self.per_ms % 1_000:
            return f"{self.number}/{self.per_ms}ms"
        return f"{self.number}/{self.per_ms // 1_000}s"


class GroupLimit(NamedTuple):
    """The limits of one group.

    Attributes:
        places: Deliveries that may run at once.
        rates: Rates, each with its burst, the one over the shortest time first.
        tier: The weight beside other groups.
    """

    places: int = 1
    rates: tuple[tuple[BeginRate, int], ...] = ()
    tier: int = 1

    def __str__(self) -> str:
        """Return the limits as a sentence has them.

        >>> str(read_group({"places": 3, "rate": ["10/s", "1,000/h"], "burst": 5, "tier": 2}))
        '3 places, 10/s and 1000/h, burst 5, tier 2'
        """
        said = [f"{self.places} {'place' if self.places == 1 else 'places'}", *self.rates_text]
        if self.tier > 1:
            said.append(f"tier {self.tier}")
        return ", ".join(said)

    @property
    def rates_text(self) -> list[str]:
        """The rates and their burst, as a sentence has them."""
        if not self.rates:
            return []
        burst = self.rates[0][1]
        rates = " and ".join(str(rate) for rate, _ in self.rates)
        return [rates, f"burst {burst}"] if burst > 1 else [rates]

    def to_json(self) -> dict[str, Any]:
        """Return the limits as users give them, without defaults."""
        said: dict[str, Any] = {}
        if self.places != 1:
            said["places"] = self.places
        if self.rates:
            rates = [str(rate) for rate, _ in self.rates]
            said["rate"] = rates[0] if len(rates) == 1 else rates
            if self.rates[0][1] != 1:
                said["burst"] = self.rates[0][1]
        if self.tier != 1:
            said["tier"] = self.tier
        return said


def rule_for(name: str, rules: Iterable[str]) -> str | None:
    """Return the rule that holds for a name: the name, else the longest pattern that matches.

    >>> rule_for("eu-7", ["eu-*", "e*", "us"]), rule_for("asia", ["eu-*"])
    ('eu-*', None)
    """
    found = (rule for rule in rules if is_within(name, rule))
    return max(found, key=lambda rule: (rule == name, len(rule)), default=None)


def wait_ms(rates: tuple[tuple[BeginRate, int], ...], count: int) -> int:
    """How long a bucket without tokens needs for so many deliveries, milliseconds; 0: no rate.

    >>> wait_ms(read_group({"rate": ["10/s", "60/m"]}).rates, 100)
    100000
    """
    return int(max((count * rate.interval_us for rate, _ in rates), default=0) // 1_000)


ORDERED = GroupLimit()
"""The limits of a group without any: one place, so that its messages keep their order."""


class TaskLimitOptions(TypedDict, total=False):
    """The limits of a task over all workers, as users give them.

    Attributes:
        rate: Jobs that may begin in a time, `10/s` or `1,000/h`; several in a list.
        burst: How many may begin at once after a rest; as `GroupOptions.burst`.
        running: Jobs that may run at once, 1 to 100,000.
    """

    rate: str | list[str]
    burst: int
    running: int


class Pause(NamedTuple):
    """A pause of tasks or keys of a queue.

    Attributes:
        of: `task` or `key`.
        names: The name that is paused, or the beginning of names and a `*`.
        until_ms: When it ends by itself, epoch milliseconds; 0: it lasts until `resume`.
    """

    of: str
    names: str
    until_ms: int = 0

    def __str__(self) -> str:
        """Return the pause as a list has it.

        >>> str(Pause("key", "order-*")), str(Pause("task", "shop.charge", 60_000))
        ('key order-*', 'task shop.charge until 1970-01-01T00:01:00.000Z')
        """
        until = f" until {iso(self.until_ms)}" if self.until_ms else ""
        return f"{self.of} {self.names}{until}"

    def is_over(self, now_ms: int) -> bool:
        """True if it has ended by itself."""
        return 0 < self.until_ms <= now_ms


LATE = Pause("late", "")
"""Stands for the late messages of a queue that limits how it catches up."""


class QueueLimit(NamedTuple):
    """The limits of a queue, or of one task in it, over all consumers.

    Attributes:
        running: Deliveries to handlers that may run at once; 0: any number.
        rates: As `GroupLimit.rates`.
        budget: Messages that may be due in each stretch of time; None: any number.
        tasks: The name of a task, or the beginning of names and `*`, and the limits of each such
            task; sorted by name. Empty for a task.
        paused: What is paused of the queue, sorted; the queue itself and its groups are not in it.
        catch_up: The rate at which late messages begin; None: any. Empty for a task.
    """

    running: int = 0
    rates: tuple[tuple[BeginRate, int], ...] = ()
    budget: BeginRate | None = None
    tasks: tuple[tuple[str, QueueLimit], ...] = ()
    paused: tuple[Pause, ...] = ()
    catch_up: BeginRate | None = None

    @property
    def of_late(self) -> QueueLimit:
        """The limits of late messages. The burst is what the rate allows in a tenth of a second."""
        rate = self.catch_up
        if rate is None:
            return _UNLIMITED
        return QueueLimit(rates=((rate, max(rate.number * 100 // rate.per_ms, 1)),))

    @property
    def has_lines(self) -> bool:
        """True if some messages may have to wait while others pass."""
        return bool(self.tasks or self.paused or self.catch_up)

    @property
    def is_gate(self) -> bool:
        """True if a delivery may have to wait for these limits, without those of tasks."""
        return bool(self.running or self.rates)

    def rule_of(self, task: str) -> str | None:
        """Return the rule that holds for a task; None if it has no limits."""
        return rule_for(task, (rule for rule, _ in self.tasks))

    def of_task(self, task: str) -> QueueLimit:
        """Return the limits of a task."""
        rule = self.rule_of(task)
        return _UNLIMITED if rule is None else dict(self.tasks)[rule]

    def at(self, now_ms: int) -> QueueLimit:
        """Return these limits without pauses that are over."""
        if not any(pause.is_over(now_ms) for pause in self.paused):
            return self
        return self._replace(paused=tuple(one for one in self.paused if not one.is_over(now_ms)))

    def with_holds(self, holds: Iterable[Pause], now_ms: int) -> QueueLimit:
        """Return these limits with pauses of tasks until a time; pauses that are over go.

        Args:
            holds: The pauses. None of them shortens a pause of the same task.
            now_ms: Now, epoch milliseconds.
        """
        limit = self.at(now_ms)
        paused = {(pause.of, pause.names): pause for pause in limit.paused}
        for hold in holds:
            before = paused.get((hold.of, hold.names))
            is_new = before is None and len(paused) < RULES_MAX and can_be_paused(hold.names)
            if is_new or (before is not None and 0 < before.until_ms < hold.until_ms):
                paused[hold.of, hold.names] = hold
        return limit._replace(paused=tuple(sorted(paused.values())))

    @property
    def lasting(self) -> QueueLimit:
        """These limits without the pauses that end by themselves."""
        return self._replace(paused=tuple(one for one in self.paused if not one.until_ms))

    def pause_of(self, row: Row, now_ms: int) -> Pause | None:
        """Return the pause that holds for a message; None if its task and its key have none."""
        if not self.paused:
            return None
        key = None if row.key is None else parsed(row.key)
        named = {"task": task_of(row), "key": None if key is None else key.name}
        for pause in self.paused:
            name = named[pause.of]
            is_named = name is not None and is_within(name, pause.names)
            if is_named and not pause.is_over(now_ms):
                return pause
        return None

    def line_of(self, row: Row, now_ms: int) -> str | Pause | None:
        """Name the line in which a due message waits while others pass.

        Returns:
            The pause of its task or key; its task if that has limits; `LATE`; None: no line.
        """
        if (pause := self.pause_of(row, now_ms)) is not None:
            return pause
        task = task_of(row) if self.tasks else None
        if task is not None and self.rule_of(task) is not None:
            return task
        is_late = self.catch_up is not None and row.wanted_ms < now_ms - LATE_MS
        return LATE if is_late else None

    def of_line(self, name: str | Pause) -> QueueLimit:
        """Return the limits of the messages of a line that is not paused."""
        return self.of_task(name) if isinstance(name, str) else self.of_late

    @property
    def a_second(self) -> float | None:
        """Deliveries per second that the rates allow in the long run; None: any number."""
        return min((1e6 / rate.interval_us for rate, _ in self.rates), default=None)

    @property
    def units(self) -> int:
        """Into how many parts the rates are shared out: as many as the smallest burst."""
        return min((burst for _, burst in self.rates), default=0)

    def __str__(self) -> str:
        """Return the limits of deliveries as a sentence has them.

        >>> str(read_limits({"rate": "10/s", "burst": 5, "running": 3}))
        '10/s, burst 5, 3 running'
        """
        said = GroupLimit(rates=self.rates).rates_text
        return ", ".join([*said, *([f"{self.running:,} running"] if self.running else [])])

    def part_of(self, units: int) -> tuple[tuple[BeginRate, int], ...]:
        """The rates and bursts of a share of so many units."""
        whole = self.units
        return tuple(
            (BeginRate(rate.number * units, rate.per_ms * whole), burst * units // whole)
            for rate, burst in self.rates
        )

    def to_options(self) -> dict[str, Any]:
        """Return the limits as users give them, without defaults."""
        said = GroupLimit(rates=self.rates).to_json()
        if self.running:
            said["running"] = self.running
        for name, rate in (("catch_up", self.catch_up), ("budget", self.budget)):
            if rate is not None:
                said[name] = str(rate)
        if self.tasks:
            said["tasks"] = {rule: limit.to_options() for rule, limit in self.tasks}
        if self.paused:
            said["paused"] = {
                several: names
                for several, of in _PAUSED.items()
                if (names := [pause.names for pause in self.paused if pause.of == of])
            }
            ends = {one.names: one.until_ms for one in self.paused if one.until_ms}
            if ends:
                said["paused"]["until"] = {name: iso(ends[name]) for name in sorted(ends)}
        return said

    def to_json(self) -> str:
        """Return the stored form; empty if there are no limits."""
        said = self.to_options()
        return json.dumps(said, separators=(",", ":"), sort_keys=True) if said else ""


_UNLIMITED = QueueLimit()


class GroupLimits:
    """The limits of all groups of a queue.

    Args:
        each: The limits of groups that no rule names.
        rules: Name, or beginning of names and `*` -> the limits of these groups.
        paused: Names, or beginnings of names and `*`, of groups that are paused.
    """

    def __init__(
        self, each: GroupLimit, rules: Mapping[str, GroupLimit], paused: Iterable[str] = ()
    ) -> None:
        self.each = each
        self.rules = dict(rules)
        self.paused = frozenset(paused)

    def of(self, group: str) -> GroupLimit:
        """Return the limits of a group."""
        rule = self.rule_of(group)
        return self.each if rule is None else self.rules[rule]

    def pause_of(self, group: str) -> str | None:
        """Return the name or pattern by which a group is paused; None if it is not."""
        return next((one for one in self.paused if is_within(group, one)), None)

    def rule_of(self, group: str) -> str | None:
        """Return the rule that holds for a group; None if it has the limits of each group."""
        return rule_for(group, self.rules)

    def to_json(self) -> str:
        """Return the stored form; empty if there are no limits."""
        said = self.each.to_json() | {name: one.to_json() for name, one in self.rules.items()}
        if self.paused:
            said["paused"] = sorted(self.paused)
        return json.dumps(said, separators=(",", ":"), sort_keys=True) if said else ""


@lru_cache(maxsize=256)
def limits_of(stored: str) -> GroupLimits:
    """Return the limits of a queue's groups from their stored form.

    Raises:
        BadSetting: If they cannot be read.

    >>> limits_of('{"places":3,"vip-*":{"tier":5}}').of("vip-7")
    GroupLimit(places=1, rates=(), tier=5)
    """
    return read_groups(json.loads(stored)) if stored else GroupLimits(ORDERED, {})


def read_groups(given: object) -> GroupLimits:
    """Read the limits of a queue's groups as users give them.

    Args:
        given: A mapping of `GroupOptions`, in which a name or pattern of groups has a mapping of
            its own, and `paused` a list of names and patterns.

    Raises:
        BadSetting: If a limit is unknown, out of bounds, or contradicts another.
    """
    if not isinstance(given, Mapping):
        raise BadSetting(
            f"groups must be limits such as {{'places': 3, 'rate': '10/s'}}, not {shown(given)}."
        )
    own = {name: value for name, value in given.items() if not isinstance(value, Mapping)}
    paused = own.pop("paused", ())
    if not isinstance(paused, (list, tuple)):
        raise BadSetting(f"paused must be a list of groups, not {shown(paused)}.")
    rules = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    if len(rules) + len(paused) > RULES_MAX:
        raise BadSetting(
            f"groups may have {RULES_MAX} rules and pauses at most, not {len(rules) + len(paused)}."
        )
    for name in (*rules, *paused):
        _check_pattern(name)
    each = read_group(own)
    found = {name: read_group(value) for name, value in sorted(rules.items())}
    return GroupLimits(each, found, paused)


def with_rule(stored: str, groups: str, options: Mapping[str, Any]) -> str:
    """Return limits in which a rule is added or replaced, or removed if it has no options.

    Args:
        stored: The limits, in their stored form.
        groups: The name or pattern of groups that the rule is for; `*`: each that no rule names.
        options: The limits.

    Raises:
        BadSetting: If the name or a limit cannot be used.

    >>> with_rule('{"places":3}', "vip-*", {"places": 9}), with_rule('{"places":3}', "*", {})
    ('{"places":3,"vip-*":{"places":9}}', '')
    """
    limits = limits_of(stored)
    if groups == "*":
        return GroupLimits(read_group(options), limits.rules, limits.paused).to_json()
    _check_pattern(groups)
    rules = {name: rule for name, rule in limits.rules.items() if name != groups}
    if options:
        rules[groups] = read_group(options)
    return read_groups(json.loads(_said(GroupLimits(limits.each, rules, limits.paused)))).to_json()


def with_pause(stored: str, groups: str, *, paused: bool) -> str:
    """Return limits in which groups are paused, or are not any more.

    Args:
        stored: The limits, in their stored form.
        groups: The name or pattern of the groups.
        paused: True to pause them.

    Raises:
        BadSetting: If the name cannot be used, or nothing is paused by it that is to be resumed.
    """
    limits = limits_of(stored)
    names = _paused_names(limits.paused, groups, "group", paused=paused)
    return read_groups(json.loads(_said(GroupLimits(limits.each, limits.rules, names)))).to_json()


def with_pause_of(stored: str, of: str, names: str, now_ms: int, *, paused: bool) -> str:
    """Return limits of a queue in which tasks or keys are paused, or are not any more.

    Args:
        stored: The limits, in their stored form.
        of: `task` or `key`.
        names: The name or pattern of the tasks or keys.
        now_ms: Now, epoch milliseconds: pauses that are over make room for one.
        paused: True to pause them.

    Raises:
        BadSetting: If the name cannot be used, or nothing is paused by it that is to be resumed.
    """
    limits = queue_limit_of(stored)
    limits = limits.at(now_ms) if paused else limits
    present = {pause.names: pause for pause in limits.paused if pause.of == of}
    others = [pause for pause in limits.paused if pause.of != of]
    left = _paused_names(present, names, of, paused=paused)
    changed = [Pause(of, one) if one == names else present[one] for one in left]
    return read_limits(limits._replace(paused=(*others, *changed)).to_options()).to_json()


def can_be_paused(task: str) -> bool:
    """True if a pause can name just this task: the name is no pattern, and not too long.

    >>> can_be_paused("shop.charge"), can_be_paused("shop.*")
    (True, False)
    """
    return 0 < len(task) <= _PATTERN_MAX and "*" not in task


def _paused_names(present: Iterable[str], names: str, of: str, *, paused: bool) -> set[str]:
    """The names by which groups, tasks or keys are paused after a pause or its end."""
    held = {*present}
    _check_pattern(names, of)
    if not paused and names not in held:
        others = ", ".join(sorted(held)) or "none"
        raise BadSetting(f"{shown(names)} is not paused; paused {of}s: {others}.")
    return held | {names} if paused else held - {names}


def with_task(stored: str, tasks: str, options: Mapping[str, Any]) -> str:
    """Return limits of a queue in which the limits of tasks are set, or removed if there are none.

    Args:
        stored: The limits, in their stored form.
        tasks: The name of a task, or the beginning of names and `*`.
        options: The limits, as `TaskLimitOptions` names them.

    Raises:
        BadSetting: If the name or a limit cannot be used.
    """
    said: dict[str, Any] = queue_limit_of(stored).to_options()
    rules = {rule: limit for rule, limit in said.pop("tasks", {}).items() if rule != tasks}
    _check_pattern(tasks, "task")
    if options:
        rules[tasks] = dict(options)
    return read_limits(said | {"tasks": rules}).to_json()


def _said(limits: GroupLimits) -> str:
    return limits.to_json() or "{}"


def _check_pattern(name: object, what: str = "group") -> None:
    if not (isinstance(name, str) and name and len(name) <= _PATTERN_MAX) or "*" in name[:-1]:
        raise BadSetting(
            f"{shown(name)} must be the name of a {what}, or the beginning of names and a '*', of "
            f"{_PATTERN_MAX} characters at most."
        )


def read_group(given: Mapping[str, Any]) -> GroupLimit:
    """Read the limits of one group.

    Raises:
        BadSetting: If a limit is unknown, out of bounds, or contradicts another.
    """
    if unknown := given.keys() - GroupOptions.__annotations__.keys():
        raise BadSetting(
            f"there is no limit {shown(min(unknown, key=str))} of a group; there are "
            f"{', '.join(GroupOptions.__annotations__)}, and patterns such as 'vip-*' with limits "
            f"of their own."
        )
    burst = _whole(given, "burst", BURST_MAX)
    rates = read_rates(given["rate"]) if "rate" in given else ()
    if "burst" in given and not rates:
        raise BadSetting("a burst needs a rate: give both, or neither.")
    bursts = (burst, *(rate.number for rate in rates[1:]))
    return GroupLimit(
        places=_whole(given, "places", PLACES_MAX),
        rates=tuple(zip(rates, bursts, strict=False)),
        tier=_whole(given, "tier", TIER_MAX),
    )


@lru_cache(maxsize=256)
def queue_limit_of(stored: str) -> QueueLimit:
    """Return the limits of a queue from their stored form.

    Raises:
        BadSetting: If they cannot be read.
    """
    return read_limits(json.loads(stored)) if stored else QueueLimit()


def read_limits(given: object) -> QueueLimit:
    """Read the limits of a queue as users give them, by the names in `_OF_QUEUE`.

    Raises:
        BadSetting: If a limit is unknown, out of bounds, or contradicts another.
    """
    if not isinstance(given, Mapping) or given.keys() - {*_OF_QUEUE}:
        raise BadSetting(
            f"limits of a queue are {', '.join(_OF_QUEUE)}, such as "
            f"{{'rate': '10/s', 'running': 20}}, not {shown(given)}."
        )
    own = read_task({name: value for name, value in given.items() if name in _OF_TASK})
    catch_up, budget = (
        read_rate(given[name], name) if name in given else None for name in ("catch_up", "budget")
    )
    return own._replace(
        catch_up=catch_up,
        budget=budget,
        tasks=_read_tasks(given.get("tasks", {})),
        paused=_read_paused(given.get("paused", {})),
    )


def _read_paused(given: Any) -> tuple[Pause, ...]:
    is_known = isinstance(given, Mapping) and {*given} <= {*_PAUSED, _UNTIL}
    lists = dict(given) if is_known else {}
    ends = lists.pop(_UNTIL, {})
    are_lists = all(isinstance(one, (list, tuple)) for one in lists.values())
    is_read = is_known and are_lists and isinstance(ends, Mapping)
    if not is_read or sum(map(len, lists.values())) > RULES_MAX:
        raise BadSetting(
            f"paused must be up to {RULES_MAX} names or patterns of tasks and keys, such as "
            f"{{'tasks': ['shop.*'], 'keys': ['order-*']}}, not {shown(given)}."
        )
    found = [Pause(_PAUSED[several], one) for several in lists for one in lists[several]]
    for pause in found:
        _check_pattern(pause.names, pause.of)
    if unknown := {*ends} - {*lists.get("tasks", ())}:
        raise BadSetting(
            f"{shown(min(unknown, key=str))} in 'until' must be one of the paused tasks."
        )
    try:
        until_ms = {Pause("task", name): due_ms(at, name="until") for name, at in ends.items()}
    except BadTime as error:
        raise BadSetting(str(error)) from error
    return tuple(sorted({one._replace(until_ms=until_ms.get(one, 0)) for one in found}))


def _read_tasks(given: object) -> tuple[tuple[str, QueueLimit], ...]:
    if not isinstance(given, Mapping) or len(given) > RULES_MAX:
        raise BadSetting(
            f"tasks must be limits of up to {RULES_MAX} names or patterns of tasks, such as "
            f"{{'shop.*': {{'rate': '10/s'}}}}, not {shown(given)}."
        )
    for rule in given:
        _check_pattern(rule, "task")
    return tuple((rule, read_task(given[rule])) for rule in sorted(given))


def read_task(given: object) -> QueueLimit:
    """Read the limits of a task as users give them.

    Raises:
        BadSetting: If a limit is unknown, out of bounds, or contradicts another.
    """
    if not isinstance(given, Mapping) or given.keys() - {*_OF_TASK}:
        raise BadSetting(
            f"limits of a task are {', '.join(_OF_TASK)}, such as {{'rate': '10/s'}}, not "
            f"{shown(given)}."
        )
    named = {name: given[name] for name in ("rate", "burst") if name in given}
    running = _whole(given, "running", RUNNING_MAX) if "running" in given else 0
    return QueueLimit(running, read_group(named).rates)


def read_rates(given: object) -> tuple[BeginRate, ...]:
    """Read one rate or several, the one over the shortest time first.

    Raises:
        BadSetting: If one cannot be read, two are over the same time, or one makes another useless.
    """
    texts = given if isinstance(given, (list, tuple)) else [given]
    rates = sorted(map(read_rate, texts), key=lambda rate: rate.per_ms)
    if not 0 < len(rates) <= RATES_MAX:
        raise BadSetting(f"give 1 to {RATES_MAX} rates, not {len(rates)}.")
    for shorter, longer in pairwise(rates):
        if shorter.per_ms == longer.per_ms or longer.interval_us <= shorter.interval_us:
            raise BadSetting(
                f"the rates {shorter} and {longer} contradict each other: the one over the longer "
                f"time must allow fewer on average, or it limits nothing."
            )
    return tuple(rates)


def read_rate(given: object, limit: str = "rate") -> BeginRate:
    """Read a rate.

    Args:
        given: A count and a time: `10/s`, `1,000/min`, `5/90s`.
        limit: The limit that it is of, for errors: `rate`, `catch_up` or `budget`.

    Raises:
        BadSetting: If it cannot be read, or is out of bounds.

    >>> read_rate("1,000/min"), read_rate("5/90s")
    (BeginRate(number=1000, per_ms=60000), BeginRate(number=5, per_ms=90000))
    """
    said = "a rate" if limit == "rate" else limit
    parts = _RATE.match(given) if isinstance(given, str) and len(given) <= 64 else None
    unit = None if parts is None else _UNITS.get(parts[3])
    if parts is None or unit is None:
        raise BadSetting(
            f"{said} must be a count and a time such as '10/s', '1,000/min' or '5/90s', not "
            f"{shown(given)}."
        )
    count = int(re.sub("[,_]", "", parts[1]))
    try:
        per_ms = duration_ms(f"{parts[2] or 1}{unit}")
    except BadTime:
        per_ms = 0
    if not (0 < count <= _COUNT_MAX and 0 < per_ms <= _PER_MS_MAX):
        raise BadSetting(
            f"{said} must be 1 to {_COUNT_MAX} in 1ms to {duration_text(_PER_MS_MAX)}, not "
            f"{shown(given)}; {_INSTEAD_OF_NONE[limit]}."
        )
    return BeginRate(count, per_ms)


def _whole(given: Mapping[str, Any], name: str, most: int) -> int:
    value = given.get(name, 1)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise BadSetting(f"{name} must be a whole number from 1 to {most}, not {shown(value)}.")


class Bucket:
    """The tokens of one group: each delivery takes one of each rate.

    Args:
        rates: The rates, each with its burst.
        empty_us: When the bucket was empty, time since boot: tokens come from then on.

    Attributes:
        rates: The rates, each with its burst.
    """

    __slots__ = ("_rates", "_taken_us", "rates")

    def __init__(self, rates: tuple[tuple[BeginRate, int], ...], empty_us: int) -> None:
        self.rates = rates
        self._rates = [(rate.interval_us, (burst - 1) * rate.interval_us) for rate, burst in rates]
        # The time at which the bucket of each rate is full again.
        self._taken_us = [empty_us + every_us + burst_us for every_us, burst_us in self._rates]

    @property
    def full_us(self) -> tuple[float, ...]:
        """When each rate's bucket is full again, time since boot."""
        return tuple(self._taken_us)

    def fill(self, full_us: Iterable[float]) -> None:
        """Add tokens: each rate's bucket is full at the given time since boot, or before."""
        self._taken_us = [min(pair) for pair in zip(self._taken_us, full_us, strict=True)]

    def next_us(self) -> float:
        """Return when a token is there, time since boot."""
        times = zip(self._taken_us, self._rates, strict=True)
        return max(full_us - burst_us for full_us, (_, burst_us) in times)

    def tokens(self, now_us: int) -> list[tuple[float, float]]:
        """How many tokens of each rate are there, and how long it is from one to the next, us."""
        return [
            ((burst_us + every_us - max(full_us - now_us, 0)) / every_us, every_us)
            for full_us, (every_us, burst_us) in zip(self._taken_us, self._rates, strict=True)
        ]

    def change(self, rates: tuple[tuple[BeginRate, int], ...], now_us: int) -> None:
        """Become another part of the same limit.

        The tokens of a larger part are those that were there, of a smaller one in proportion: the
        rest of the limit may be another's, with its tokens.
        """
        changed, taken_us = [], []
        for (count, _), (_, former), (rate, burst) in zip(
            self.tokens(now_us), self.rates, rates, strict=True
        ):
            new_us = rate.interval_us
            taken_us.append(now_us + (burst - max(count, 0) * min(burst / former, 1)) * new_us)
            changed.append((new_us, (burst - 1) * new_us))
        self.rates, self._rates, self._taken_us = rates, changed, taken_us

    def take(self, now_us: int) -> bool:
        """Take a token of each rate; False if one has none, and nothing is taken."""
        if self.next_us() > now_us:
            return False
        self._taken_us = [
            max(full_us, now_us) + every_us
            for full_us, (every_us, _) in zip(self._taken_us, self._rates, strict=True)
        ]
        return True

    def opens_us(self) -> float:
        """Return when a token may be taken, time since boot; infinite: once it is granted."""
        return self.next_us()

    def may_take(self, now_us: int) -> bool:
        """True if a token may be taken now."""
        return self.opens_us() <= now_us

    def is_full(self, now_us: int) -> bool:
        """True if nothing was taken lately: a full bucket need not be remembered."""
        return all(full_us <= now_us for full_us in self._taken_us)


class SlowBucket(Bucket):
    """The tokens of a group with slow rates: they are granted, by a record, before they are taken.

    Attributes:
        record: The record, as it was last read or written; None: there is none.
        is_read: True if the record was read, and no write of it has an unknown outcome.
        is_known: True once a missing record no longer means a full bucket.
        granted: How many tokens are granted.
        granted_us: They may be taken until this time since boot.
    """

    __slots__ = ("granted", "granted_us", "is_known", "is_read", "record")

    def __init__(self, rates: tuple[tuple[BeginRate, int], ...], empty_us: int) -> None:
        super().__init__(rates, empty_us)
        self.record: str | None = None
        self.is_read = self.is_known = False
        self.granted = 0
        self.granted_us = 0.0

    def opens_us(self) -> float:
        """Return when a token may be taken, time since boot; infinite: once it is granted."""
        return self.next_us() if self.granted else math.inf

    def is_granted(self, now_us: int) -> bool:
        """True if a token was granted that may still be taken."""
        if self.granted_us < now_us:
            self.granted = 0
        return self.granted > 0

    def may_take(self, now_us: int) -> bool:
        """True if a token was granted and may be taken now."""
        return self.is_granted(now_us) and super().may_take(now_us)

    def take(self, now_us: int) -> bool:
        """Take a token that was granted; False if there is none."""
        is_taken = self.granted > 0 and super().take(now_us)
        self.granted -= is_taken
        return is_taken

    def inherit(self, former: Bucket, now_us: int) -> None:
        """Take over the tokens of rates that stay, where these limits replace others.

        A new rate begins without tokens; beside a rate over a shorter time it begins with all.
        """
        for n, rate in enumerate(self.rates):
            if rate in former.rates:
                self._taken_us[n] = former.full_us[former.rates.index(rate)]
            elif n:
                self._taken_us[n] = now_us
        # A fast rate writes no record, so a missing record does not prove a full bucket.
        self.is_known = True

    def grantable(self, now_us: int) -> int:
        """How many tokens one write of the record grants, if one is there."""
        there = (
            min(int(count), burst // _GRANT_PART)
            for (count, _), (rate, burst) in zip(self.tokens(now_us), self.rates, strict=True)
            if is_slow(rate, burst)
        )
        return max(min(there), 1)

    @property
    def slowest_us(self) -> float:
        """Microseconds from one token of the slowest rate to the next."""
        return max(rate.interval_us for rate, _ in self.rates)

    @property
    def filling_us(self) -> float:
        """Microseconds in which the empty bucket of each rate is full."""
        return max(burst * rate.interval_us for rate, burst in self.rates)

    def full_after(self, us: float, count: int) -> dict[str, float]:
        """Return when all tokens of each slow rate are there, after some are taken at a time.

        Returns:
            The rate and its burst -> time since boot.
        """
        return {
            rate_name(rate, burst): max(full_us, us) + count * rate.interval_us
            for full_us, (rate, burst) in zip(self._taken_us, self.rates, strict=True)
            if is_slow(rate, burst)
        }

    def adopt(self, full_us: Mapping[str, float] | None) -> None:
        """Let the tokens of slow rates be there by the record.

        Args:
            full_us: When all tokens of a rate are there, as `full_after` returns it; None: there is
                no record, so none was taken lately.
        """
        for n, (rate, burst) in enumerate(self.rates):
            if not is_slow(rate, burst) or (full_us is None and self.is_known):
                continue
            missing_us = 0.0 if n else math.inf
            there_us = 0.0 if full_us is None else full_us.get(rate_name(rate, burst), missing_us)
            choose = max if self.is_known and there_us < math.inf else min
            self._taken_us[n] = choose(self._taken_us[n], there_us)
        self.is_read = self.is_known = True


def rate_name(rate: BeginRate, burst: int) -> str:
    """The name of a rate and its burst in a record.

    A changed rate has another name, so older records do not apply to it.
    """
    return f"{rate} {burst}"


def is_slow(rate: BeginRate, burst: int) -> bool:
    """True if the tokens of a rate are kept in a record: a new owner would wait for them too long.

    >>> is_slow(BeginRate(10, 1_000), 5), is_slow(BeginRate(1_000, 3_600_000), 1_000)
    (False, True)
    """
    return burst * rate.interval_us >= SLOW_US


def bucket_of(rates: tuple[tuple[BeginRate, int], ...], empty_us: int) -> Bucket:
    """Return an empty bucket, as `Bucket` is made."""
    made = SlowBucket if any(is_slow(*rate) for rate in rates) else Bucket
    return made(rates, empty_us)
