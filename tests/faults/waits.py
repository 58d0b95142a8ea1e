"""How long messages waited, by the files of the processes that put and delivered them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proofs.courses import Course

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from proofs.judge import HandOut, Put

LATE_US = 2_000_000
"""A message that waited longer than this was late."""
HELD_UP_US = 5_000_000
"""A message that waited this long, half a lease, was delayed by more than a busy machine."""
CALM_US = 30_000_000
"""After three leases without a late message, a later one has another reason."""


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
        """When the wait began, by the machine's clock, epoch microseconds."""
        return self.first.began_us - self.us

    def __str__(self) -> str:
        stored_s = (self.put.acked_us - self.put.began_us) / 1e6
        return (
            f"{self.put.body} (group {self.put.group}, stored in {stored_s:.1f} s) waited "
            f"{self.us / 1e6:.1f} s for {self.first.consumer}, attempt {self.first.attempt}"
        )


def waits(
    puts: Iterable[Put], hand_outs: Iterable[HandOut], course: Callable[[str], Course]
) -> list[Wait]:
    """All waits, the longest first. A message of a group waits once those before it have ended.

    Args:
        puts: The puts, those of each producer in order.
        hand_outs: The deliveries of all consumers.
        course: Returns the course that a body asks for.
    """
    firsts: dict[str, HandOut] = {}
    ends_us: dict[str, int] = {}
    for one in hand_outs:
        if one.body not in firsts or one.began_us < firsts[one.body].began_us:
            firsts[one.body] = one
        ends_us[one.body] = max(one.ended_us, ends_us.get(one.body, 0))
    found = []
    free_us: dict[str, int] = {}
    for put in sorted(puts, key=lambda put: put.due_ms):
        first = firsts.get(put.body)
        if first is None:
            continue
        there_us = max(put.due_ms * 1_000, put.acked_us)
        if put.group is not None:
            there_us = max(there_us, free_us.get(put.group, 0))
            if course(put.body) is not Course.PLAIN:
                free_us[put.group] = max(ends_us[put.body], free_us.get(put.group, 0))
        found.append(Wait(first.began_us - there_us, put, first))
    return sorted(found, reverse=True)


def resumed_s(found: Iterable[Wait], from_us: int) -> float:
    """Seconds from a time until, for `CALM_US`, no delivered message was late."""
    resumed_us = from_us
    for began_us in sorted(_began(found, from_us, LATE_US)):
        if began_us - resumed_us > CALM_US:
            break
        resumed_us = began_us
    return (resumed_us - from_us) / 1e6


def back_s(found: Iterable[Wait], from_us: int) -> float:
    """Seconds from a time until no later delivery was delayed."""
    return (max(_began(found, from_us, HELD_UP_US), default=from_us) - from_us) / 1e6


def _began(found: Iterable[Wait], from_us: int, late_us: int) -> Iterator[int]:
    """The times, from `from_us` on, of deliveries after a wait over `late_us`."""
    return (
        one.first.began_us for one in found if one.us > late_us and one.first.began_us >= from_us
    )


def within(found: Sequence[Wait], from_us: int, until_us: int) -> list[Wait]:
    """The waits of what came due in a stretch of time."""
    return [one for one in found if from_us <= one.since_us <= until_us]


def held_up(found: Sequence[Wait]) -> float:
    """The share of waits that were longer than `HELD_UP_US`."""
    return sum(one.us > HELD_UP_US for one in found) / len(found)
