"""A picture of rectangles and texts, written as SVG by hand or as PNG by matplotlib.

SVG needs nothing installed, and looks the same everywhere but for its letters. Lengths are pixels,
from the top left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Literal, TypeAlias

from shardq.pictures import png
from shardq.pictures.colours import DARK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Anchor: TypeAlias = Literal["start", "middle", "end"]
"""The part of a text that is at its x."""

_FONT = "'DejaVu Sans', Verdana, sans-serif"
_DPI = 144
_PIXELS_AN_INCH = 72
_TO_MATPLOTLIB = {"start": "left", "middle": "center", "end": "right"}


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str


@dataclass(frozen=True, slots=True)
class _Text:
    x: float
    y: float
    text: str
    size: float
    anchor: Anchor
    fill: str
    is_bold: bool


@dataclass(slots=True)
class Drawing:
    """A picture: rectangles and texts, in the order in which they are drawn.

    Args:
        width: The width of the picture.
        title: The content of the picture, for people who cannot see it.

    Attributes:
        height: The height of the picture, which grows as it is drawn.
    """

    width: float
    title: str
    height: float = 0.0
    _shapes: list[_Box | _Text] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, *, title: str = ""
    ) -> None:
        """Add a filled rectangle.

        Args:
            x: Its left edge.
            y: Its top edge.
            width: Its width.
            height: Its height.
            fill: Its colour, `#rrggbb`.
            title: The text that a browser shows while the mouse is over the rectangle.
        """
        self._shapes.append(_Box(x, y, width, height, fill, title))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        anchor: Anchor = "start",
        fill: str = DARK,
        bold: bool = False,
    ) -> None:
        """Add a line of text.

        Args:
            x: The position of the part that `anchor` names.
            y: The position of the baseline.
            text: The text.
            size: The size of the letters.
            anchor: The part of the text that is at `x`.
            fill: The colour of the text, `#rrggbb`.
            bold: True for bold letters.
        """
        self._shapes.append(_Text(x, y, text, size, anchor, fill, bold))

    def svg(self) -> bytes:
        """The picture as SVG, without a script or anything to be loaded."""
        width, height = f"{self.width:g}", f"{self.height:g}"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{_FONT}" role="img">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *map(_svg_of, self._shapes),
            "</svg>\n",
        ]
        return "\n".join(parts).encode("utf-8", "replace")

    def png(self) -> bytes:
        """The picture as PNG, twice as wide and high in pixels.

        Raises:
            MissingExtra: If matplotlib is not installed.
        """
        figure = _figure(self.width, self.height)
        from matplotlib.patches import Rectangle
        from matplotlib.transforms import Affine2D

        pixels = Affine2D().scale(_DPI / _PIXELS_AN_INCH)

        for shape in self._shapes:
            if isinstance(shape, _Box):
                bottom = self.height - shape.y - shape.height
                box = Rectangle(
                    (shape.x, bottom), shape.width, shape.height, facecolor=shape.fill, linewidth=0
                )
                box.set_transform(pixels)
                figure.add_artist(box)
                continue
            figure.text(
                shape.x,
                self.height - shape.y,
                shape.text,
                transform=pixels,
                color=shape.fill,
                fontsize=shape.size,
                fontfamily="DejaVu Sans",
                fontweight="bold" if shape.is_bold else "normal",
                horizontalalignment=_TO_MATPLOTLIB[shape.anchor],
                verticalalignment="baseline",
            )
        return png.written(figure)


def check_png() -> None:
    """Check that a PNG can be made here.

    Raises:
        MissingExtra: If matplotlib is not installed.
    """
    _figure(1, 1)


def _figure(width: float, height: float) -> Figure:
    return png.figure(width / _PIXELS_AN_INCH, height / _PIXELS_AN_INCH, dpi=_DPI)


def _svg_of(shape: _Box | _Text) -> str:
    if isinstance(shape, _Box):
        said = f"<title>{escape(shape.title)}</title>" if shape.title else ""
        return (
            f'<rect x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" '
            f'height="{shape.height:g}" fill="{shape.fill}">{said}</rect>'
        )
    weight = ' font-weight="bold"' if shape.is_bold else ""
    return (
        f'<text x="{shape.x:g}" y="{shape.y:g}" font-size="{shape.size:g}" '
        f'text-anchor="{shape.anchor}" fill="{shape.fill}"{weight}>{escape(shape.text)}</text>'
    )
