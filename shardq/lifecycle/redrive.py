"""Putting dead messages back into the queue that they died in."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardq.errors import KeyTaken
from shardq.model.message import Message
from shardq.records.keyrow import own_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.stores.store import Move

_SHOWN = 3


class Redriver:
    """Puts dead messages back.

    Args:
        home: The queue's home.
        dead: The home of its dead-letter queue.
    """

    def __init__(self, home: QueueHome, dead: QueueHome) -> None:
        self._home = home
        self._dead = dead
        self._settler = home.settler

    def run(
        self, pages: Iterable[Sequence[Row]], limit: int | None, is_wanted: Callable[[Row], bool]
    ) -> int:
        """Put back the wanted dead messages; returns how many, and counts them in both queues.

        Args:
            pages: The dead messages, those that died first in front.
            limit: The most to put back; None for all.
            is_wanted: True for a row to put back.

        Raises:
            KeyTaken: If other messages have the keys of some by now: these stay dead, and all
                others are put back.
            StoreTimeout, StoreUnavailable: A note says how many were put back before it.
        """
        purged_before_us = self._dead.register.settings.purged_before_us
        count = moving = 0
        taken: list[Row] = []
        try:
            for page in pages:
                rows = (row for row in page if row.entered_us >= purged_before_us)
                wanted = filter(is_wanted, rows)
                # Takes no more than may be put back, because the history of each is read.
                while chosen := list(islice(wanted, None if limit is None else limit - count)):
                    # A redrive that crashed may have put back some of them already.
                    chosen = self._settler.without_ended(chosen)
                    moves = [self._revive(row) for row in chosen]
                    moving = len(moves)
                    put_back = self._carry_out(moves, taken)
                    if put_back:
                        # Counted at once, or a full count meanwhile would count them too.
                        self._home.stats.add(put=put_back)
                        self._dead.stats.add(acked=put_back)
                    count += put_back
                    moving = 0
                if limit is not None and count >= limit:
                    break
        except BaseException as error:
            more = f", and of the next {moving:,} maybe some" if moving else ""
            error.add_note(f"{count:,} messages were put back before it{more}.")
            raise
        finally:
            if count:
                self._home.on_put(self._home.clock.now_ms())
        if taken:
            left = self._taken(taken)
            left.add_note(f"Put back: {count:,}.")
            raise left
        return count

    def _carry_out(self, moves: Sequence[Move], taken: list[Row]) -> int:
        """Put back; returns how many, and adds to `taken` the rows whose keys others have."""
        keyed = [move for move in moves if move.new.key is not None]
        if not keyed:
            return len(moves) - len(self._settler.carry_out_surely(moves))
        self._home.register.use_keys()
        plain = [move for move in moves if move.new.key is None]
        gone = self._settler.carry_out_surely(plain)
        gone_keyed, left = self._settler.revive(keyed)
        taken += [move.new for move in left]
        return len(moves) - len(gone) - len(gone_keyed) - len(left)

    def _taken(self, rows: Sequence[Row]) -> KeyTaken:
        names = [own_key(row).name for row in rows]
        found = self._settler.keys.seek(names[:1])[names[0]].row
        shown = ", ".join(map(repr, names[:_SHOWN]))
        if len(names) > _SHOWN:
            shown += f" and {len(names) - _SHOWN:,} more"
        one = ("message stays", "its key is", "it when that is")
        many = ("messages stay", "their keys are", "them when those are")
        stay, their, them = one if len(names) == 1 else many
        return KeyTaken(
            f"{len(names):,} dead {stay} in queue {self._dead.register.name!r}: {their} taken "
            f"by now ({shown}); redrive {them} free.",
            None if found is None else Message(found, 0, self._home.register.signer),
        )

    def _revive(self, row: Row) -> Move:
        move = self._settler.planner.revival(row)
        register = self._home.register
        # A queue that was dropped and made anew may not use such lanes yet.
        register.use_lanes_of([move.new.shard])
        return move
