"""The pictures of the documentation: `python -m browser.pictures DIRECTORY` makes them anew."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from browser import chromium
from browser.shop import opened
from browser.shown import SHOWN
from browser.viewer import Mode, looking

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from browser.shop import Shop

_COLOURS = 128
"""A page has few: so a picture takes a third of the bytes."""


class Picture(NamedTuple):
    """A picture.

    Attributes:
        shown: The page, by its name in `SHOWN`.
        mode: How it is looked at.
        height: How much of it, in pixels.
        shows: What it waits for; empty: for nothing.
    """

    shown: str
    mode: Mode
    height: int
    shows: str = ""


PICTURES = {
    "dashboard-queues.png": Picture("queues", Mode(width=1_100), 500, "3 of 6"),
    "dashboard-message.png": Picture("behind", Mode(width=1_180), 540),
    "dashboard-dead.png": Picture("dead by error", Mode(width=1_180), 520),
    "dashboard-to-come.png": Picture("to come", Mode("dark", 1_160), 760),
    "dashboard-phone.png": Picture("schedules", Mode(width=400), 660),
}


def make(browser: Browser, shop: Shop, directory: Path) -> None:
    """Make all pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        path = directory / name
        with looking(browser, shop, picture.mode) as viewer:
            viewer.page.set_viewport_size({"width": picture.mode.width, "height": picture.height})
            viewer.open(SHOWN[picture.shown].path_in(shop))
            viewer.expect(picture.shows)
            viewer.picture(path, whole=False)
        with Image.open(path) as drawn:
            few = drawn.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


def main() -> None:
    """Make the pictures of a shop in a file that is deleted."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium.started() as browser,
        opened(f"sqlite:///{folder}/shop.db?synchronous=normal") as shop,
    ):
        make(browser, shop, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
