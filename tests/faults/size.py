"""How much a play plays, and how strictly it is judged: in the gate, by itself, and at length."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Size:
    """How much is played.

    Attributes:
        rate: Messages a second of each producer.
        messages: How many they put at the least: until the trouble is over, and so many.
        delays_ms: How far ahead messages are due, in turn.
        groups: Of each producer; half of its messages are of one.
        before_s: How long all goes well at first.
        trouble_s: How long trouble lasts, where it can be chosen.
        acts: How many troubles are mixed.
        together: So many plays that leave the nodes alone go on side by side.
        overlaps: True if a play begins while the one before it drains.
        quiet_s: How long nothing may come before what is missing is lost.
        is_plain: True if messages are only acked, and judged by what is lost, early or there twice
            without a cause: by nothing that hangs on how fast the machine is.
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
    # Half of what three nodes and all processes can on two cores: it has to catch up afterwards.
    rate=100,
    messages=100_000,
    delays_ms=(0, 1_000, 5_000, 20_000, 40_000),
    # What waits behind a head moves with it: with hundreds in each, a caller settles five a second.
    groups=1_000,
    before_s=20,
    trouble_s=30,
    acts=8,
    together=1,
    overlaps=False,
)
