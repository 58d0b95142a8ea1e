"""A delivery: a row on its way through a handler, and what is known of it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.model.ids import order_key
from shardq.model.message import group_of

if TYPE_CHECKING:
    import threading

    from shardq.engine.lease import Lease
    from shardq.model.message import GroupKey, Row


class Delivery:
    """A row on its way through a handler.

    Attributes:
        row: The row, where it is now: parking and claiming move it.
        band: Its priority.
        lease: The lease under which it was read.
        after_ms: The due up to which its lane is to be read before it is handed out; 0: its own.
        careful: Whether its attempt is recorded before it is handed out, and its ack before the
            next.
        counted: Whether the row's `attempt` counts this delivery already.
        claimed: Whether the row is a claim of ours, no longer covered by the lease.
        begun_us: Time since boot of the hand-out; 0 before.
        is_fresh: Whether its hand-out is still to be counted.
        ended: Whether the handler is through with it.
        parking: Whether the engine was about to park it.
        stored: Whether its ack is stored already, by the handler's thread.
        recording: Whether its thread is looking whether it may begin, and recording that it does,
            or its ack: of one that is doubtful, or has a key.
        settled: Set once a careful delivery's outcome is stored.
        thread_id: Of the thread that its handler runs in; 0 before.
        there_until_us: Of a doubtful one: time since boot until which it is taken to be there.
        blocked_ms: Until when its group was last told to wait for it, epoch milliseconds; 0: never.
        said_ms: What its group's block said of it when its end was first sent to the store; None:
            not sent yet.
    """

    __slots__ = (
        "after_ms",
        "band",
        "begun_us",
        "blocked_ms",
        "careful",
        "claimed",
        "counted",
        "ended",
        "is_fresh",
        "lease",
        "parking",
        "recording",
        "row",
        "said_ms",
        "settled",
        "stored",
        "there_until_us",
        "thread_id",
    )

    def __init__(self, row: Row, band: int, lease: Lease, *, careful: bool = False) -> None:
        self.row = row
        self.band = band
        self.lease = lease
        self.careful = careful
        self.after_ms = 0
        self.counted = False
        self.claimed = False
        self.begun_us = 0
        self.is_fresh = False
        self.ended = False
        self.parking = False
        self.stored = False
        self.recording = False
        self.settled: threading.Event | None = None
        self.thread_id = 0
        self.there_until_us = 0
        self.blocked_ms = 0
        self.said_ms: int | None = None

    @property
    def group(self) -> GroupKey | None:
        """Whose turn it takes; None without a group."""
        return group_of(self.row)

    @property
    def doubtful(self) -> bool:
        """Whether another may settle its row: it is looked at again before it is handed out."""
        return self.careful or self.row.claim is not None

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self.row.attempt if self.counted else self.row.attempt + 1


def place_of(one: Delivery) -> tuple[int, bytes, bytes]:
    """Where a row comes in its group."""
    return (*one.row.order, order_key(one.row.id))
