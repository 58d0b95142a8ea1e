"""Shards of lanes that have rows which are due, and of which a member has no lease.

Its groups go no further than the oldest of them; beside one that is another's, none may go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.engine.lane import Lane
    from shardq.engine.lease import Leases
    from shardq.model.message import Row
    from shardq.model.shard import Layout
    from shardq.stores.store import Store

_PAST_MINUTES = 1_440
"""Of a lane that nobody has sealed for longer, older shards are not looked for."""


class Older(NamedTuple):
    """A shard with rows that is not ours.

    Attributes:
        first: Its first row that is due.
        is_free: Whether nobody has it; not where that row has gone since, which another settled.
    """

    first: Row
    is_free: bool


def find_older(
    store: Store, leases: Leases, layout: Layout, lanes: Sequence[Lane], now_ms: int
) -> list[Older]:
    """Shards of lanes, up to now, that have rows and that are not leased here.

    It takes three calls of the store, two where no ended minute is unsealed.

    Args:
        lanes: One at the least; from the minute on after which the first of them is sealed.
        now_ms: Epoch milliseconds.
    """
    numbers = [lane.number for lane in lanes]
    oldest = min(lane.sealed for lane in lanes) + 1
    open_from = max(oldest, layout.newest_sealable(now_ms) + 1)
    past = range(max(oldest, open_from - _PAST_MINUTES), open_from)
    occupied = store.occupied(layout.queue, past, numbers) if past else []
    minutes = sorted({shard.minute for shard in occupied})
    minutes += range(open_from, layout.minute_of(now_ms) + 1)
    after_ms = layout.start_ms(minutes[0]) - 1 if minutes else -1
    wanted = Slice(layout.queue, minutes, numbers, after_ms, now_ms, 1, purpose="groups")
    firsts = [row for row in store.read(wanted) if leases.get(row.shard) is None]
    locks = store.locks([row.position for row in firsts])
    return [
        Older(row, row.shard in locks and leases.is_free(locks[row.shard].lock)) for row in firsts
    ]
