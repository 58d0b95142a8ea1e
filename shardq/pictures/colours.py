"""The colours of all pictures: those of Okabe and Ito, and scales from little to much.

People with any colour vision tell them apart (https://jfly.uni-koeln.de/color/), and what differs
by colour differs by position or text too.
"""

from __future__ import annotations

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY, DARK = "#CC79A7", "#56B4E9", "#999999", "#222222"

ON_PAPER = ("#d9e8f5", "#b3d3ec", "#7fb5de", "#4892c8", "#1b6cab", "#0b4478")
"""Colours from little to much on a white background: more is darker."""
ON_SCREEN = ("#00005f", "#005f87", "#0087af", "#00afd7", "#5fd7ff", "#afffff")
"""Colours from little to much on a black background: more is lighter. All are among xterm's 256."""


def is_dark(colour: str) -> bool:
    """True if white text is easier to read on a colour than black text.

    Args:
        colour: `#rrggbb`.

    >>> is_dark(BLUE), is_dark(SKY)
    (True, False)
    """
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 120
