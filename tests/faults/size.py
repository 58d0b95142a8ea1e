"""Sizes of plays, and the strictness of their judge: in the gate, by hand, and at length."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a play.

    Attributes:
        rate: Messages a second of each producer.
        messages: The fewest messages that producers put; they also put until the trouble ends.
        delays_ms: The delays of messages, in turn.
        groups: The groups of each producer; half of its messages have one.
        before_s: How long the load runs before the trouble.
        trouble_s: How long a trouble lasts, if it can be chosen.
        acts: How many troubles the fault `mixed` has.
        together: How many plays that leave the nodes alone run side by side.
        overlaps: True if a play begins while the one before it drains.
        quiet_s: After this long without a delivery, missing messages count as lost.
        is_plain: True if messages are only acked, and the judge looks only for lost, early and
            repeated ones: at nothing that depends on the speed of the machine.
    """

    rate: int
    messages: int
    delays_ms: tuple[int, ...]
    groups: int
    before_s: float
    trouble_s: float
    acts: int
    together: int
    overlaps: bool
    quiet_s: float = 60.0
    is_plain: bool = False


SHORT = Size(
    rate=50,
    messages=0,
    delays_ms=(0, 500, 1_000, 2_000),
    groups=100,
    before_s=3,
    trouble_s=10,
    acts=3,
    together=2,
    overlaps=True,
)
GATE = replace(SHORT, quiet_s=300.0, is_plain=True)
LONG = Size(
    # Half of what nodes and processes can do on two cores, so that they catch up afterwards.
    rate=100,
    messages=100_000,
    delays_ms=(0, 1_000, 5_000, 20_000, 40_000),
    # Many groups: waiting messages move with their head, which is slow with hundreds in a group.
    groups=1_000,
    before_s=20,
    trouble_s=30,
    acts=8,
    together=1,
    overlaps=False,
)
