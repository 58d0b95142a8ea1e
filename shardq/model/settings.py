"""A queue's settings, their bounds, and their stored form. `queue.py` changes them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from shardq.errors import BadSetting, BadTime, SchemaNewer, StoreCorrupt, shown
from shardq.model import formats, names
from shardq.model.limits import Pause, limits_of, queue_limit_of, read_groups, read_limits
from shardq.model.shard import FIRST_GROUP_LANE, MINUTE_MS, Layout
from shardq.model.times import KEPT_MS_MAX, Duration, duration_ms, duration_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LANES_MAX = 256
BANDS_MAX = 16
FIRST_LANE_MAX = 1 << 27
"""Reached after 30,000 drops of a queue of 4,096 lanes."""
GROUP_LANE_MAX = (1 << 28) - 1
"""Reached after 500,000 drops of a queue of 256 lanes for groups; a receipt has room for it."""
GROUP_LANES = 64
OFF = "off"
"""The value of `history` that keeps no history, and of `dead` that keeps no dead messages."""
FOLLOWED_MS = 5_000
"""Every process follows a change of settings within this time."""
STRICT, WEIGHTED = "strict", "weighted"
"""How bands share handlers: the first ones first, or each twice as often as the next one."""
AUTO = "auto"
"""The value of `lanes` that lets the consumers choose the number of lanes."""
AUTO_LANES_MIN = 8
AUTO_LANES_MAX = 64
_DAY_MS = 86_400_000
_BANDS = 3
"""The bands of a new queue, enough for most queues; a band without puts costs nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one queue. Those in `FIXED` never change after its creation.

    The defaults are for stored records that lack the value; `create` sets those of a new queue.

    Attributes:
        minute_ms: A shard's minute; 60,000 (60 s) unless a test shortens it.
        bands: Priorities of the queue, 1 to 16; 0 is first.
        bands_used: All puts so far went to bands below this one. Never falls.
        group_lanes: Lanes over which groups are hashed, 1 to 256.
        first_group_lane: The number of the first lane for groups; higher if a queue of this name
            was dropped.
        groups_used: True if a message with a group was ever put. Never falls.
        lanes_auto: True if the consumers choose the number of lanes that producers fill.
        lanes_written: Lanes of a band that producers fill, 1 to 256.
        lanes_read: Lanes of a band that consumers visit; never falls.
        lanes_fell_ms: When `lanes_written` fell last, epoch milliseconds; 0: it never did.
        offset_ms: How long a shard stays open after its minute ended.
        attempts: Deliveries before a message goes to the dead-letter queue.
        dead: The name of the dead-letter queue; `off`: a message that dies is gone; empty: the name
            of the queue with `.dead` after it.
        backoff_ms: Delay of the first retry; doubled by each further one.
        backoff_max_ms: Longest delay of a retry.
        hold_ms: How long a delivery may run before it is parked.
        visibility_ms: How far ahead a parked delivery's claim is placed.
        lease_ms: How long a consumer's lease of a shard lasts without renewal.
        delay_ms: The delay of a message that is put without a due and a delay.
        retention_ms: How long a message is kept after the later of its entry and its first due; 0:
            until it has ended.
        depth_max: The number of messages from which on puts are refused; 0: no limit.
        paused: True if nothing is delivered.
        purged_before_us: Messages that entered the queue before this epoch microsecond are deleted.
        dropped: True if the queue has been dropped.
        lanes_made: (lanes_read, epoch millisecond) of each rise, the first at the queue's creation.
        history_ms: How long the ledger keeps the record of each message; 0: it is off.
        history_from_ms: The ledger is complete for messages that entered the queue from this epoch
            millisecond on, as far back as its retention reaches.
        first_lane: The number of the first lane. It is above 0 if a dropped queue of this name had
            minutes of another length, so that the same lanes would mean other shards.
        former_until_us: Messages that entered before this epoch microsecond belonged to a dropped
            queue of this name; 0: there was none.
        keyed: True if each message's key is its id.
        keys_used: True if a message was ever put under a key. Never falls.
        schedules_used: True if the queue ever had a schedule. Never falls.
        group_limits: The limits of groups, as `GroupLimits.to_json` gives them; empty: none.
        queue_limit: The limits of the queue, as `QueueLimit.to_json` gives them; empty: none.
        priorities: `strict`, or `weighted`: bands take turns.
        needs: The least `formats.FORMAT` of a release that may work on this queue. A release that
            adds a setting that older releases must not ignore, or widens a setting's bounds, raises
            `FORMAT`, and stores the new number here once such a value is set. Processes of older
            releases then end. Older releases ignore any other unknown setting.
        unknown: Settings of a newer release: (name, value as JSON). Changes by this release keep
            them.
    """

    minute_ms: int = MINUTE_MS
    bands: int = 1
    bands_used: int = BANDS_MAX
    group_lanes: int = GROUP_LANES
    first_group_lane: int = FIRST_GROUP_LANE
    groups_used: bool = True
    lanes_auto: bool = False
    lanes_written: int = 4
    lanes_read: int = 4
    lanes_fell_ms: int = 0
    offset_ms: int = 120_000
    attempts: int = 5
    dead: str = ""
    backoff_ms: int = 1_000
    backoff_max_ms: int = 3_600_000
    hold_ms: int = 30_000
    visibility_ms: int = 60_000
    lease_ms: int = 10_000
    delay_ms: int = 0
    retention_ms: int = 0
    depth_max: int = 0
    paused: bool = False
    purged_before_us: int = 0
    dropped: bool = False
    lanes_made: tuple[tuple[int, int], ...] = ()
    history_ms: int = 0
    history_from_ms: int = 0
    first_lane: int = 0
    former_until_us: int = 0
    keyed: bool = False
    keys_used: bool = False
    schedules_used: bool = False
    group_limits: str = ""
    queue_limit: str = ""
    priorities: str = STRICT
    needs: int = formats.BASE
    unknown: tuple[tuple[str, str], ...] = ()

    def backoff_of(self, attempt: int) -> int:
        """Milliseconds to wait after delivery number `attempt` failed.

        Examples:
            >>> Settings().backoff_of(3)
            4000
        """
        doublings = min(max(attempt - 1, 0), 40)
        return min(self.backoff_ms << doublings, self.backoff_max_ms)

    def lane_made_ms(self, index: int) -> int:
        """Epoch milliseconds at which a band's lane `index` was first read.

        The lanes for groups were made with lane 0.
        """
        return next((at for count, at in self.lanes_made if count > index), 0)

    @property
    def lanes_agreed(self) -> int:
        """The lanes of a band over which writers hash rows that need the same lane each time.

        The number of filled lanes would not do, because consumers change it from hour to hour.
        """
        return AUTO_LANES_MIN if self.lanes_auto else self.lanes_written

    def lanes_polled(self, now_ms: int) -> int:
        """The number of lanes of a band that may get rows: those filled now or until lately.

        A producer follows a fall within 5 s, and its last writes before that may arrive late. Lanes
        that were made just now are about to be filled.
        """
        changed_ms = max([self.lanes_fell_ms, *(at for _, at in self.lanes_made)])
        if now_ms < changed_ms + FOLLOWED_MS + self.offset_ms:
            return self.lanes_read
        return self.lanes_written

    def to_json(self) -> str:
        """The stored form."""
        stored = asdict(self)
        del stored["unknown"]
        return _json(stored | {name: json.loads(text) for name, text in self.unknown})

    @classmethod
    def from_json(cls, text: str, queue: str) -> Settings:
        """Settings from their stored form.

        Args:
            text: The stored form.
            queue: The queue's name, for errors.

        Raises:
            SchemaNewer: If the settings need a newer release of shardq than this one.
            StoreCorrupt: If the form or a value cannot be used.
        """
        try:
            stored = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise _damaged(queue, text) from error
        if not isinstance(stored, dict):
            raise _damaged(queue, text)
        # Checked first, because a newer release may use the other settings differently.
        needs = stored.get("needs")
        if type(needs) is int and needs > formats.FORMAT:
            raise SchemaNewer(
                f"queue {queue!r} has settings that need a newer shardq (format {needs}, this one "
                f"has {formats.FORMAT}); upgrade shardq here."
            )
        known = {name: stored.pop(name) for name in _TYPES.keys() & stored.keys()}
        for name, value in known.items():
            if not _is_storable(name, value):
                raise _damaged(queue, {name: value})
        known["lanes_made"] = tuple((count, at) for count, at in known.get("lanes_made", ()))
        try:
            unknown = tuple((name, _json(stored[name])) for name in sorted(stored))
        except RecursionError as error:
            raise _damaged(queue, text) from error
        return cls(**known, unknown=unknown)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


_TYPES = {name: type(value) for name, value in asdict(Settings()).items() if name != "unknown"}
"""Setting -> its type, of all settings that this release knows."""


def layout_of(settings: Settings, queue: str) -> Layout:
    """The layout of a queue with these settings."""
    return Layout(
        queue=queue,
        minute_ms=settings.minute_ms,
        bands=settings.bands,
        lanes_written=settings.lanes_written,
        lanes_read=settings.lanes_read,
        group_lanes=settings.group_lanes,
        offset_ms=settings.offset_ms,
        first_lane=settings.first_lane,
        bands_used=settings.bands_used,
        first_group_lane=settings.first_group_lane,
        groups_used=settings.groups_used,
    )


def expected_lanes(settings: Settings, layout: Layout, now_ms: int) -> list[int]:
    """The lanes in which rows are expected, without lanes for groups.

    They are the filled lanes of the bands in use.
    """
    filled = settings.lanes_polled(now_ms)
    return [lane for lane in layout.lanes_used() if layout.index_of(lane) < filled]


def pauses_of(settings: Settings, now_ms: int) -> list[Pause]:
    """The pauses of groups, tasks and keys of a queue that hold now."""
    groups = sorted(limits_of(settings.group_limits).paused)
    others = queue_limit_of(settings.queue_limit).at(now_ms).paused
    return [*(Pause("group", one) for one in groups), *others]


def _is_storable(name: str, value: Any) -> bool:
    if name == "lanes_made":
        return isinstance(value, list) and all(
            isinstance(pair, list) and [type(one) for one in pair] == [int, int] for pair in value
        )
    # Not by getattr: each stored text has new name objects, which the interpreter would cache.
    if type(value) is not _TYPES[name]:
        return False
    if name == "priorities":
        return value in (STRICT, WEIGHTED)
    if name in _LIMITS:
        return _are_limits(name, value)
    if isinstance(value, str):
        return not value or names.is_queue_name(value)
    least, most = _BOUNDS.get(name, (0, sys.maxsize))
    return bool(least <= value <= most or (name in _MAY_BE_OFF and not value))


_LIMITS = ("group_limits", "queue_limit")


def _are_limits(name: str, stored: str) -> bool:
    try:
        read = limits_of(stored) if name == "group_limits" else queue_limit_of(stored)
        return read.to_json() == stored
    except (ValueError, RecursionError, BadSetting):
        return False


def _damaged(queue: str, what: object) -> StoreCorrupt:
    return StoreCorrupt(
        f"the settings of queue {queue!r} are damaged: {shown(what)}; restore the store from a "
        f"copy, or the row of that queue."
    )


def said(stored: str, value: int | str) -> str:
    """A stored setting's value as its user writes it.

    >>> said("hold_ms", 30_000), said("lanes_written", 4), said("history_ms", 0)
    ('30s', '4', 'off')
    >>> said("keyed", True)
    'yes'
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if stored in _LIMITS:
        return str(value or OFF)
    if isinstance(value, str):
        return value or f"QUEUE{names.DEAD_SUFFIX}"
    if stored in _MAY_BE_OFF and not value:
        return OFF
    return duration_text(value) if stored.endswith("_ms") else shown(value)


def text_of(settings: Settings, name: str) -> str:
    """A setting's value as its user writes it.

    >>> text_of(Settings(lanes_auto=True), "lanes"), text_of(Settings(), "lanes")
    ('auto', '4')
    """
    if name == "lanes" and settings.lanes_auto:
        return AUTO
    stored = CHOICES[name].stored
    return said(stored, getattr(settings, stored))


def create(given: Mapping[str, Any], now_ms: int) -> Settings:
    """The settings of a new queue.

    Args:
        given: The settings that the user chose, by the names of `CHOICES`.
        now_ms: Epoch milliseconds of the creation.

    Raises:
        BadSetting: If a name is unknown or a value is out of bounds.
    """
    chosen = read_choices(given)
    is_auto = chosen.pop("lanes_auto", True)
    lanes = chosen.pop("lanes_written", AUTO_LANES_MIN)
    made = replace(
        Settings(),
        # A user who chooses bands will use them: all are polled at once, so no first message waits.
        bands_used=BANDS_MAX if "bands" in chosen else 1,
        groups_used=False,
        **{"bands": _BANDS, **chosen},
        lanes_auto=is_auto,
        lanes_written=lanes,
        lanes_read=lanes,
        lanes_made=((lanes, now_ms),),
        # A process whose clock is behind puts messages that are born before the queue was made.
        history_from_ms=max(now_ms - chosen.get("offset_ms", Settings().offset_ms), 0),
    )
    _check_backoff(made, chosen)
    return use_keys(made)[0] if made.keyed else made


def alter(current: Settings, given: Mapping[str, Any], now_ms: int) -> list[Settings]:
    """The settings to store, one after another, so that no reader ever misses a lane.

    For more lanes, first consumers read them, then producers fill them. For fewer, producers fill
    fewer, and consumers still read all.

    Raises:
        BadSetting: If a setting is unknown, out of bounds, or fixed at creation.
    """
    chosen = read_choices(given)
    if chosen.get("lanes_auto"):
        chosen["lanes_written"] = max(current.lanes_written, AUTO_LANES_MIN)
    for name in FIXED:
        if name in chosen and chosen[name] != getattr(current, name):
            raise BadSetting(
                f"{_CHOICE_OF[name]} is fixed when a queue is created; make a new one for another."
            )
    changed = replace(current, **chosen)
    _check_backoff(changed, chosen)
    changed = replace(changed, history_from_ms=_history_from_ms(current, changed, now_ms))
    if changed.lanes_written < current.lanes_written:
        changed = replace(changed, lanes_fell_ms=now_ms)
    if changed.lanes_written <= current.lanes_read:
        return [changed]
    lanes = changed.lanes_written
    risen = _read_more(replace(changed, lanes_written=current.lanes_written), lanes, now_ms)
    return [risen, replace(risen, lanes_written=lanes)]


def _read_more(current: Settings, lanes: int, now_ms: int) -> Settings:
    return replace(current, lanes_read=lanes, lanes_made=(*current.lanes_made, (lanes, now_ms)))


def follow(current: Settings, lanes: int, now_ms: int) -> list[Settings]:
    """The settings to store if consumers find that `lanes` lanes are needed; none if unchanged.

    More lanes take two calls, 5 s apart, because producers fill new lanes only once every consumer
    reads them.
    """
    if not current.lanes_auto or lanes == current.lanes_written:
        return []
    if lanes < current.lanes_written:
        return [replace(current, lanes_written=lanes, lanes_fell_ms=now_ms)]
    if lanes > current.lanes_read:
        return [_read_more(current, lanes, now_ms)]
    if now_ms < current.lanes_made[-1][1] + FOLLOWED_MS:
        return []
    return [replace(current, lanes_written=lanes)]


def use_band(current: Settings, band: int) -> list[Settings]:
    """The settings to store, if any, at a put to a band: from then on consumers poll it."""
    return [] if band < current.bands_used else [replace(current, bands_used=band + 1)]


def use_groups(current: Settings) -> list[Settings]:
    """The settings to store, if any, at a put of a message with a group."""
    return [] if current.groups_used else [replace(current, groups_used=True)]


def use_keys(current: Settings) -> list[Settings]:
    """The settings to store, if any, at a put under a key."""
    return [] if current.keys_used else [replace(current, keys_used=True)]


def drop(current: Settings, before_us: int) -> list[Settings]:
    """The settings to store to drop a queue: it is purged, and no longer listed.

    Args:
        current: The stored settings.
        before_us: Now, epoch microseconds.
    """
    # Later than any earlier purge or drop: the time tells this queue from a new one of its name.
    purged_us = max(before_us, current.purged_before_us + 1)
    return [replace(current, purged_before_us=purged_us, dropped=True)]


def use_schedules(current: Settings) -> list[Settings]:
    """The settings to store, if any, when a schedule is made: from then on consumers fire it."""
    return [] if current.schedules_used else [replace(current, schedules_used=True)]


def _history_from_ms(current: Settings, changed: Settings, now_ms: int) -> int:
    """The time from which the ledger is complete after a change, epoch milliseconds."""
    if not current.history_ms:
        # Until every process has read the change, some will not record.
        return now_ms + FOLLOWED_MS if changed.history_ms else current.history_from_ms
    if changed.history_ms > current.history_ms:
        # Earlier records are kept only for the shorter time.
        return now_ms + FOLLOWED_MS
    return current.history_from_ms


def read_choices(given: Mapping[str, Any]) -> dict[str, Any]:
    """The user's settings under the names and in the units in which they are stored.

    Raises:
        BadSetting: If a name is unknown, or a value has the wrong type or is out of bounds.
    """
    chosen = {}
    for name, value in given.items():
        if name not in CHOICES:
            raise BadSetting(
                f"unknown setting {shown(name)}; there are {', '.join(sorted(CHOICES))}."
            )
        if name == "lanes":
            chosen["lanes_auto"] = value == AUTO
            if value == AUTO:
                continue
        chosen[CHOICES[name].stored] = CHOICES[name].read(value, name)
    _check_bounds(chosen)
    return chosen


def _duration(value: Any, name: str) -> int:
    return duration_ms(value, name=name)


def _kept(value: Any, name: str) -> int:
    if value == OFF:
        return 0
    stored = CHOICES[name].stored
    try:
        kept_ms = duration_ms(value, name=name)
    except BadTime as error:
        raise BadTime(_bounds_text(stored, shown(value))) from error
    if not kept_ms:
        raise BadSetting(_bounds_text(stored, shown(value)))
    return kept_ms


def _whole(value: Any, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    more = f", or {AUTO!r}" if name == "lanes" else ""
    raise BadSetting(f"{name} must be a whole number{more}, not {shown(value)}.")


def _dead(value: Any, name: str) -> str:
    if isinstance(value, str) and names.is_queue_name(value):
        return value
    raise BadSetting(f"{name} must be the name of a queue, or {OFF!r}, not {shown(value)}.")


def _cap(value: Any, name: str) -> int:
    if value == OFF:
        return 0
    if isinstance(value, int) and not isinstance(value, bool) and value:
        return value
    raise BadSetting(_bounds_text(name, shown(value)))


def _limits(value: Any, name: str) -> str:
    if isinstance(value, str):
        if value == OFF:
            return ""
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadSetting(f"{name} must be JSON, or {OFF!r}, not {shown(value)}.") from error
    return (read_groups(value) if name == "groups" else read_limits(value)).to_json()


def _priorities(value: Any, name: str) -> str:
    if isinstance(value, str) and value in {STRICT, WEIGHTED}:
        return str(value)
    raise BadSetting(f"{name} must be {STRICT!r} or {WEIGHTED!r}, not {shown(value)}.")


def _flag(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    raise BadSetting(f"{name} must be True or False, not {shown(value)}.")


class QueueOptions(TypedDict, total=False):
    """The settings that `Connection.queue` and `Queue.alter` take, as keyword arguments.

    Attributes:
        minute: A shard's minute, 1 min unless given; fixed at the queue's creation, as `bands`,
            `group_lanes` and `keyed` are.
        bands: Priorities, 1 to 16; 3 unless given. 0 is first.
        group_lanes: Lanes over which groups are hashed, 1 to 256; 64 unless given.
        lanes: Lanes of a band, 1 to 256; `auto` unless given: 8 to 64, as consumers and puts need.
        offset: How long a shard stays open after its minute ended, for late writes; 2 min unless
            given.
        attempts: Deliveries before a message goes to the dead-letter queue; 5 unless given.
        dead: The queue that takes the messages that die; `off`: none does, and they are gone; the
            queue's own, `<name>.dead`, unless given.
        backoff: Delay of the first retry, doubled by each further one; 1 s unless given.
        backoff_max: Longest delay of a retry; 1 h unless given.
        hold: How long a delivery may run before it is parked; 30 s unless given.
        visibility: How far ahead a parked delivery's claim is placed; 1 min unless given.
        lease: How long a consumer that is gone keeps its shards, 5 s to 1 min; 10 s unless given.
        delay: How long after its put a message is due that is given neither a due nor a delay; 0 s
            unless given.
        retention: How long a message is kept after the later of its entry and its first due, or
            `off`: older ones are not delivered, and end as expired; off unless given.
        depth_max: From how many messages on puts are refused with `QueueFull`, or `off`; by the
            totals, so that several processes may exceed it by what they put in 3 s; off unless
            given.
        history: How long the history keeps what became of each message, or `off`; off unless given.
        keyed: Whether each message has a key: its id, unless it is put with another; False unless
            given.
        groups: Limits of each group, and of groups by name or pattern; `off` unless given.
        priorities: `weighted`: of bands with due messages each is delivered twice as often as the
            next one; `strict` unless given: a band waits for all bands before it.
        limits: Limits of the queue over all its consumers: `rate`, `burst`, `running`, `budget`;
            `catch_up`, the rate of late messages; `tasks`, the limits of tasks by name or pattern;
            and `paused`, the `tasks` and `keys` that are paused, lists of names or patterns; `off`
            unless given.
    """

    minute: Duration
    bands: int
    group_lanes: int
    lanes: int | Literal["auto"]
    offset: Duration
    attempts: int
    dead: str
    backoff: Duration
    backoff_max: Duration
    hold: Duration
    visibility: Duration
    lease: Duration
    delay: Duration
    retention: Duration
    depth_max: int | Literal["off"]
    history: Duration
    keyed: bool
    groups: dict[str, Any] | Literal["off"]
    limits: dict[str, Any] | Literal["off"]
    priorities: Literal["strict", "weighted"]


class SettingChoice(NamedTuple):
    """A setting that a user may choose.

    Attributes:
        stored: The name under which it is stored.
        read: A function of a user's value and the setting's name that returns the stored value.
        form: The form of its text, `DURATION|off` say; empty for a flag.
        bounds: The least and the greatest stored value; None for a flag or a name.
    """

    stored: str
    read: Callable[[Any, str], Any]
    form: str
    bounds: tuple[int, int] | None = None


CHOICES = {
    "minute": SettingChoice("minute_ms", _duration, "DURATION", (100, _DAY_MS)),
    "bands": SettingChoice("bands", _whole, "N", (1, BANDS_MAX)),
    "group_lanes": SettingChoice("group_lanes", _whole, "N", (1, LANES_MAX)),
    "lanes": SettingChoice("lanes_written", _whole, "N|auto", (1, LANES_MAX)),
    "offset": SettingChoice("offset_ms", _duration, "DURATION", (100, _DAY_MS)),
    "attempts": SettingChoice("attempts", _whole, "N", (1, 10_000)),
    "dead": SettingChoice("dead", _dead, "QUEUE|off"),
    "backoff": SettingChoice("backoff_ms", _duration, "DURATION", (0, _DAY_MS)),
    "backoff_max": SettingChoice("backoff_max_ms", _duration, "DURATION", (0, 30 * _DAY_MS)),
    "hold": SettingChoice("hold_ms", _duration, "DURATION", (100, 3_600_000)),
    "visibility": SettingChoice("visibility_ms", _duration, "DURATION", (1_000, _DAY_MS)),
    "lease": SettingChoice("lease_ms", _duration, "DURATION", (5_000, 60_000)),
    "delay": SettingChoice("delay_ms", _duration, "DURATION", (0, 365 * _DAY_MS)),
    "retention": SettingChoice("retention_ms", _kept, "DURATION|off", (1_000, KEPT_MS_MAX)),
    "depth_max": SettingChoice("depth_max", _cap, "N|off", (1, 1_000_000_000)),
    "history": SettingChoice("history_ms", _kept, "DURATION|off", (60_000, KEPT_MS_MAX)),
    "keyed": SettingChoice("keyed", _flag, ""),
    "groups": SettingChoice("group_limits", _limits, "JSON|off"),
    "limits": SettingChoice("queue_limit", _limits, "JSON|off"),
    "priorities": SettingChoice("priorities", _priorities, "strict|weighted"),
}
"""The settings that a user may choose, by name."""

SHARED = ("history", "offset")
"""Settings that a queue shares with its dead-letter queue."""
_MAY_BE_OFF = ("history_ms", "retention_ms", "depth_max")
"""Settings in which 0 means `off`."""
FIXED = ("minute_ms", "bands", "group_lanes", "keyed")
_CHOICE_OF = {choice.stored: name for name, choice in CHOICES.items()}

_BOUNDS = {
    # A value above `FORMAT` has an error of its own.
    "needs": (formats.BASE, sys.maxsize),
    "first_lane": (0, FIRST_LANE_MAX),
    "first_group_lane": (FIRST_GROUP_LANE, GROUP_LANE_MAX - LANES_MAX),
    "bands_used": (1, BANDS_MAX),
    "lanes_read": (1, LANES_MAX),
    **{choice.stored: choice.bounds for choice in CHOICES.values() if choice.bounds},
}


def _check_bounds(chosen: Mapping[str, Any]) -> None:
    for name, value in chosen.items():
        if isinstance(value, (bool, str)) or (name in _MAY_BE_OFF and not value):
            continue
        least, most = _BOUNDS[name]
        if not least <= value <= most:
            raise BadSetting(_bounds_text(name, said(name, value)))


def _check_backoff(settings: Settings, chosen: Mapping[str, Any]) -> None:
    # A queue that already breaks this rule may still have its other settings altered.
    if chosen.keys() & {"backoff_ms", "backoff_max_ms"} and (
        settings.backoff_ms > settings.backoff_max_ms
    ):
        raise BadSetting(
            f"backoff {duration_text(settings.backoff_ms)} must be no longer than backoff_max "
            f"{duration_text(settings.backoff_max_ms)}; give both to change both."
        )


def _bounds_text(name: str, given: str) -> str:
    least, most = (said(name, bound) for bound in _BOUNDS[name])
    words = {"lanes_written": AUTO} | dict.fromkeys(_MAY_BE_OFF, OFF)
    more = f", or {words[name]!r}" if name in words else ""
    return f"{_CHOICE_OF[name]} must be between {least} and {most}{more}, not {given}."
