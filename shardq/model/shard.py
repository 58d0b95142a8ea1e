"""The place of a row, and the minutes that are open: pure arithmetic, without clock or I/O.

```
   due ──► minute = due // minute_ms
 group ──► lane   = first of groups + crc32(queue, group) % group_lanes
 no group ─► i    = the lane that the producer is filling, or, where it has to be the same again,
                    crc32(queue, name) % lanes_written
             lane = first + band + bands * i

 minutes   sealed ]            open              [ not yet
           ───────┤ .. late writes .. │ current ├─ ahead ─
                  └─ minute end + offset < now    now
```
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MINUTE_MS = 60_000
FIRST_GROUP_LANE = (1 << 27) + (1 << 16)
"""The first lane for groups in a queue that was never dropped. All ordinary lanes are below."""
HOUR_MS = 3_600_000


def spans(minutes: range, length: int) -> Iterator[range]:
    """Minutes in ranges of `length`; the last may be shorter.

    >>> list(spans(range(3, 8), 2))
    [range(3, 5), range(5, 7), range(7, 8)]
    """
    for start in range(minutes.start, minutes.stop, length):
        yield range(start, min(start + length, minutes.stop))


LANE_LEASE = -1
"""Takes the place of the minute in the lease of a whole lane for groups."""


class Shard(NamedTuple):
    """One partition. A tuple, because drains hash a shard for every row: 0.1 us instead of 0.6."""

    queue: str
    minute: int
    lane: int

    def __str__(self) -> str:
        """The shard as people read it in a log.

        >>> str(Shard("mail", 29930829, 3))
        'queue mail, minute 29930829, lane 3'
        """
        return f"queue {self.queue}, minute {self.minute}, {lane_name(self.lane)}"


def lane_name(lane: int) -> str:
    """A lane as people read it.

    >>> lane_name(3), lane_name(FIRST_GROUP_LANE + 3)
    ('lane 3', 'group lane 3')
    """
    return f"lane {lane}" if lane < FIRST_GROUP_LANE else f"group lane {lane - FIRST_GROUP_LANE}"


class Position(NamedTuple):
    """The place of a message's row: `shard`, due in epoch milliseconds, row id."""

    shard: Shard
    due_ms: int
    id: bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitions of a queue's rows: minutes, each `bands` times `lanes` partitions wide.

    Rows of groups have `group_lanes` partitions of their own in each minute, whatever their
    priorities.

    Args:
        queue: The queue's name.
        minute_ms: A minute's length.
        bands: Priorities; 0 is first.
        lanes_written: Lanes of a band that producers fill.
        lanes_read: Lanes of a band that consumers visit, never fewer than were ever written.
        group_lanes: Lanes over which groups are hashed; fixed for the queue's life.
        offset_ms: How long a shard stays open after its minute.
        first_lane: The number of the first lane. Lower lanes belong to dropped queues of this name,
            whose minutes had another length.
        bands_used: All puts so far went to bands below this one.
        first_group_lane: The number of the first lane for groups. Lower ones belong to dropped
            queues of this name.
        groups_used: True if a message with a group was ever put.
    """

    queue: str
    minute_ms: int = MINUTE_MS
    bands: int = 1
    lanes_written: int = 4
    lanes_read: int = 4
    group_lanes: int = 64
    offset_ms: int = 120_000
    first_lane: int = 0
    bands_used: int = 16
    first_group_lane: int = FIRST_GROUP_LANE
    groups_used: bool = True

    def minute_of(self, due_ms: int) -> int:
        """The minute of a due time.

        >>> Layout("mail").minute_of(90_000)
        1
        """
        return due_ms // self.minute_ms

    def hour_of(self, now_ms: int) -> int:
        """The first minute of the hour that contains a time.

        >>> Layout("mail").hour_of(3_700_000)
        60
        """
        return self.minute_of(now_ms - now_ms % HOUR_MS)

    def start_ms(self, minute: int) -> int:
        """The first millisecond of a minute."""
        return minute * self.minute_ms

    def end_ms(self, minute: int) -> int:
        """The first millisecond after a minute."""
        return (minute + 1) * self.minute_ms

    def lane(self, band: int, index: int) -> int:
        """The lane number of a band's lane `index`."""
        return self.first_lane + band + self.bands * index

    def band_of(self, lane: int) -> int:
        """The band of a lane.

        >>> Layout("mail", bands=3).band_of(7)
        1
        """
        return (lane - self.first_lane) % self.bands

    def index_of(self, lane: int) -> int:
        """The number of a lane among the lanes of its band, from 0."""
        return (lane - self.first_lane) // self.bands

    def group_lane(self, group: str) -> int:
        """The lane of a group: equal in every process and language.

        crc32 over the queue's name, a zero byte and the group, which any language and Spark can do.
        """
        seed = zlib.crc32(self.queue.encode() + b"\0")
        return self.first_group_lane + zlib.crc32(group.encode(), seed) % self.group_lanes

    def is_of_groups(self, lane: int) -> bool:
        """True if a lane is one for groups, of this queue or of a dropped one of its name."""
        return lane >= FIRST_GROUP_LANE

    def lane_lease(self, lane: int) -> Shard:
        """The shard that stands for the lease of a whole lane for groups."""
        return Shard(self.queue, LANE_LEASE, lane)

    def lanes_of_groups(self) -> range:
        """Every lane for groups, whether a message with a group was ever put or not."""
        return range(self.first_group_lane, self.first_group_lane + self.group_lanes)

    def named_lane(self, name: str, band: int) -> int:
        """The lane of a row without a group that every writer has to put into the same lane.

        The name is hashed as groups are, over the lanes that producers fill. All writers have to
        agree on the number of these lanes.
        """
        seed = zlib.crc32(self.queue.encode() + b"\0")
        return self.lane(band, zlib.crc32(name.encode(), seed) % self.lanes_written)

    def written_lane(self, lane: int) -> int:
        """The lane to which a row without a group moves: its own lane if producers still fill it.

        >>> Layout("mail", bands=3, lanes_written=2, lanes_read=8).written_lane(16)
        4
        """
        index = self.index_of(lane)
        if index < self.lanes_written:
            return lane
        return self.lane(self.band_of(lane), index % self.lanes_written)

    def next_lane(self, lane: int) -> int:
        """The next lane of the same band that producers fill; after the last lane, the first.

        >>> Layout("mail", bands=3, lanes_written=2, lanes_read=8).next_lane(4)
        1
        """
        index = (self.index_of(lane) + 1) % self.lanes_written
        return self.lane(self.band_of(lane), index)

    def lanes(self) -> range:
        """Every lane that consumers visit, except lanes for groups."""
        return range(self.first_lane, self.first_lane + self.bands * self.lanes_read)

    def lanes_used(self) -> list[int]:
        """Every lane that consumers visit in the bands that are in use, except lanes for groups.

        >>> Layout("mail", bands=3, lanes_read=2, bands_used=1).lanes_used()
        [0, 3]
        """
        return [lane for lane in self.lanes() if self.band_of(lane) < self.bands_used]

    def all_lanes(self) -> Sequence[int]:
        """Every lane that consumers visit; lanes for groups only if a group was ever put."""
        return [*self.lanes(), *self.lanes_of_groups()] if self.groups_used else self.lanes()

    def all_used(self) -> list[int]:
        """The lanes of `lanes_used`; lanes for groups too if a group was ever put."""
        return [*self.lanes_used(), *(self.lanes_of_groups() if self.groups_used else ())]

    def has_lane(self, lane: int) -> bool:
        """True if consumers may visit a lane; False for a lane of a dropped queue of this name."""
        return lane in self.lanes() or lane in self.lanes_of_groups()

    def shard(self, due_ms: int, lane: int) -> Shard:
        """The shard of a due time in a lane."""
        return Shard(self.queue, due_ms // self.minute_ms, lane)

    def may_seal(self, minute: int, now_ms: int) -> bool:
        """True if a minute ended at least the offset ago, so that readers may seal it."""
        return self.end_ms(minute) + self.offset_ms <= now_ms

    def newest_sealable(self, now_ms: int) -> int:
        """The newest minute that readers may seal; -1 if there is none yet.

        >>> Layout("mail").newest_sealable(180_000)
        0
        """
        return (now_ms - self.offset_ms) // self.minute_ms - 1

    def is_late(self, minute: int, now_ms: int) -> bool:
        """True if a write into `minute`, acknowledged now, is late: its writer has to repair it."""
        return now_ms > self.end_ms(minute) + self.offset_ms // 2
