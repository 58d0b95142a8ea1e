"""How long messages waited, by the files of the processes that put and delivered them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proofs.judge import HandOut, Put

LATE_US = 2_000_000
"""A message that waited longer than this was held up."""
HELD_UP_US = 5_000_000
"""And one that waited for half a lease, not by what else a machine of two cores has to do."""


class Wait(NamedTuple):
    """A message that was delivered.

    Attributes:
        us: How long it waited once it was due and stored, microseconds.
        put: Its put.
        first: Its first delivery.
    """

    us: int
    put: Put
    first: HandOut

    @property
    def since_us(self) -> int:
        """From when on it waited, by the machine's clock."""
        return self.first.began_us - self.us

    def __str__(self) -> str:
        stored_s = (self.put.acked_us - self.put.began_us) / 1e6
        return (
            f"{self.put.body} (group {self.put.group}, stored in {stored_s:.1f} s) waited "
            f"{self.us / 1e6:.1f} s for {self.first.consumer}, attempt {self.first.attempt}"
        )


def waits(puts: Iterable[Put], hand_outs: Iterable[HandOut]) -> list[Wait]:
    """All waits, the longest first."""
    firsts: dict[str, HandOut] = {}
    for one in hand_outs:
        if one.body not in firsts or one.began_us < firsts[one.body].began_us:
            firsts[one.body] = one
    found = [
        Wait(first.began_us - max(put.due_ms * 1_000, put.acked_us), put, first)
        for put in puts
        if (first := firsts.get(put.body)) is not None
    ]
    return sorted(found, reverse=True)


def resumed_s(found: Sequence[Wait], from_us: int, late_us: int) -> float:
    """Seconds from a moment until nothing that was delivered had waited for so long any more."""
    held_up = (
        one.first.began_us for one in found if one.us > late_us and one.first.began_us >= from_us
    )
    return (max(held_up, default=from_us) - from_us) / 1e6


def within(found: Sequence[Wait], from_us: int, until_us: int) -> list[Wait]:
    """The waits of what came due in a stretch of time."""
    return [one for one in found if from_us <= one.since_us <= until_us]


def held_up(found: Sequence[Wait]) -> float:
    """The share of waits that were longer than `HELD_UP_US`."""
    return sum(one.us > HELD_UP_US for one in found) / len(found)
