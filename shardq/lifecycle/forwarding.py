"""Moving messages into other queues: forwards, and redrives of dead messages."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import KeyTaken
from shardq.model import names
from shardq.model.message import Message
from shardq.records.keyrow import own_key
from shardq.records.stats import NEAR_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Position

_SHOWN = 3


class Moved(NamedTuple):
    """The result of a move of rows into another queue.

    Attributes:
        done: How many rows were moved.
        gone: The positions of rows that did not exist any more.
        taken: The position of each row that stays because another message has its key -> the row
            that it would have become.
    """

    done: int
    gone: set[Position]
    taken: dict[Position, Row]


class Forwarder:
    """Moves messages of one queue into other queues, and counts them in both.

    Args:
        source: The queue's home.
    """

    def __init__(self, source: QueueHome) -> None:
        self._source = source
        self._settler = source.settler

    def move(self, rows: Sequence[Row], target: QueueHome) -> Moved:
        """Move rows, which existed a moment ago, into a queue known to this queue's record."""
        source, register = self._source.register, target.register
        is_death = register.name == source.dead_name
        moves = [self._settler.planner.forward(row, register) for row in rows]
        keyed = [] if is_death else [move for move in moves if move.new.key is not None]
        plain = moves
        if keyed:
            register.use_keys()
            plain = [move for move in moves if move.new.key is None]
        gone = self._settler.carry_out_surely(plain)
        taken: dict[Position, Row] = {}
        if keyed:
            gone_keyed, left = self._settler.take_along(keyed, target.settler.keys)
            gone |= gone_keyed
            taken = {move.old: move.new for move in left}
        done = [move for move in moves if move.old not in gone and move.old not in taken]
        if done:
            # Count at once, or a full count meanwhile would count these messages too.
            target.stats.add(put=len(done))
            self._source.stats.add(**{"buried" if is_death else "forwarded": len(done)})
            if not names.is_dead_queue(source.name):
                # Nobody owns a lane of a dead-letter queue for long, so nobody needs a note.
                ended = {move.old for move in done}
                self._settler.tell([row for row in rows if row.position in ended])
            dues = [move.new.due_ms for move in done]
            target.on_put(min(dues))
            if max(dues) > self._source.clock.now_ms() + NEAR_MS:
                target.stats.note_farthest(max(dues))
        return Moved(len(done), gone, taken)

    def run(
        self,
        pages: Iterable[Sequence[Row]],
        limit: int | None,
        target_of: Callable[[Row], QueueHome | None],
    ) -> int:
        """Move messages; returns how many were moved.

        Args:
            pages: The rows of the queue, in the order in which to move them.
            limit: The most to move; None for all.
            target_of: Returns the home of the queue to which a row moves; None if the row stays.

        Raises:
            KeyTaken: If other messages have the keys of some messages by now: these stay, and all
                others are moved.
            StoreTimeout, StoreUnavailable: A note of the error says how many were moved before.
        """
        purged_before_us = self._source.register.settings.purged_before_us
        count = moving = 0
        taken: dict[str, tuple[QueueHome, list[Row]]] = {}
        try:
            for page in pages:
                rows = (row for row in page if row.entered_us >= purged_before_us)
                found = ((row, target_of(row)) for row in rows)
                wanted = ((row, target) for row, target in found if target is not None)
                # Take no more than may be moved, because the history of each row is read.
                while chosen := list(islice(wanted, None if limit is None else limit - count)):
                    # An earlier run that crashed may have moved some of the rows already.
                    live = {row.id for row in self._settler.without_ended([r for r, _ in chosen])}
                    for target in {one.register.name: one for _, one in chosen}.values():
                        some = [row for row, one in chosen if one is target and row.id in live]
                        moving = len(some)
                        moved = self.move(some, target)
                        count += moved.done
                        _, left = taken.setdefault(target.register.name, (target, []))
                        left += moved.taken.values()
                        moving = 0
                if limit is not None and count >= limit:
                    break
        except BaseException as error:
            more = f", and of the next {moving:,} maybe some" if moving else ""
            error.add_note(f"{count:,} messages were moved before it{more}.")
            raise
        for target, left in taken.values():
            if left:
                failure = self.key_taken(left, target)
                failure.add_note(f"Moved: {count:,}.")
                raise failure
        return count

    def key_taken(self, rows: Sequence[Row], target: QueueHome) -> KeyTaken:
        """The error of rows that stay, because other messages in the target have their keys."""
        held = [own_key(row).name for row in rows]
        found = target.settler.keys.seek(held[:1])[held[0]].row
        shown = ", ".join(map(repr, held[:_SHOWN]))
        if len(held) > _SHOWN:
            shown += f" and {len(held) - _SHOWN:,} more"
        one = ("message stays", "its key is", "it when that is")
        many = ("messages stay", "their keys are", "them when those are")
        stay, their, them = one if len(held) == 1 else many
        return KeyTaken(
            f"{len(held):,} {stay} in queue {self._source.register.name!r}: {their} taken in "
            f"{target.register.name!r} ({shown}); move {them} free.",
            None if found is None else Message(found, 0, target.register.signer),
        )
