"""PNG by matplotlib, which is imported when the first picture is drawn."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from shardq.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(width_in: float, height_in: float, *, dpi: int, layout: str | None = None) -> Figure:
    """An empty figure.

    Raises:
        MissingExtra: If matplotlib is not installed.
    """
    try:
        # Without pyplot: that has a state of its own, and may ask for a screen.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "a PNG needs matplotlib: pip install 'shardq[plots]' brings it. An SVG needs nothing."
        ) from error
    return Figure(figsize=(width_in, height_in), dpi=dpi, layout=layout)  # type: ignore[arg-type]


def written(drawn: Figure) -> bytes:
    """A figure as PNG."""
    buffer = BytesIO()
    # The release of matplotlib is left out, so that equal figures give equal bytes.
    drawn.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
