"""A delivery: a row on its way through a handler, and what is known of it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from shardq.engine.lease import Lease
    from shardq.model.message import Row


class Delivery:
    """A row on its way through a handler.

    Attributes:
        row: The row, where it is now: parking and claiming move it.
        band: Its priority.
        lease: The lease under which it was read.
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
        grouped: Whether its row lives in a group lane, where it stays.
        is_stale: Of the head of a group: whether its row is read again before it is handed out.
        is_edited: Of one of a group: whether its row was edited under its lease.
    """

    __slots__ = (
        "band",
        "begun_us",
        "careful",
        "claimed",
        "counted",
        "ended",
        "grouped",
        "is_edited",
        "is_fresh",
        "is_stale",
        "lease",
        "parking",
        "recording",
        "row",
        "settled",
        "stored",
        "there_until_us",
        "thread_id",
    )

    def __init__(
        self,
        row: Row,
        band: int,
        lease: Lease,
        *,
        careful: bool = False,
        grouped: bool = False,
    ) -> None:
        self.row = row
        self.band = band
        self.lease = lease
        self.careful = careful
        self.grouped = grouped
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
        self.is_stale = False
        self.is_edited = False

    @property
    def doubtful(self) -> bool:
        """Whether another may settle its row: it is looked at again before it is handed out."""
        return self.careful or self.row.claim is not None

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self.row.attempt if self.counted else self.row.attempt + 1
