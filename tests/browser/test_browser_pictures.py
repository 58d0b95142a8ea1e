"""The pictures of the documentation can be made, are small, and are those that its pages show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from browser.pictures import PICTURES, make

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from browser.shop import Shop

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"
BYTES_MAX = 60_000


def is_right(directory: Path) -> bool:
    """True if a directory has all pictures, as large as they are to be and no larger."""
    for name, picture in PICTURES.items():
        path = directory / name
        with Image.open(path) as drawn:
            if drawn.size != (picture.mode.width, picture.height):
                return False
        if path.stat().st_size > BYTES_MAX:
            return False
    return True


@pytest.mark.browser
@pytest.mark.nightly
def test_the_pictures_of_the_documentation_can_be_made_anew(
    browser: Browser, on_sqlite: Shop, tmp_path: Path
) -> None:
    make(browser, on_sqlite, tmp_path)
    assert is_right(tmp_path)


def test_the_documentation_shows_each_of_its_pictures_once_and_the_readme_one() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(assets/(dashboard-[\w-]+\.png)\)", page("docs/dashboard.md"))
    assert sorted(shown) == sorted(PICTURES)
    assert re.findall(r"!\[[^\]]+\]\(docs/assets/([\w-]+\.png)\)", page("README.md")) == [
        "dashboard-queues.png"
    ]
    assert is_right(ASSETS)


def page(name: str) -> str:
    return (ROOT / name).read_text()
