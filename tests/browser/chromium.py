"""The one browser of a run, or why there is none."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import Browser, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "SHARDQ_TEST_CHROMIUM"
"""Names the browser's program, where it is not on PATH."""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "there is no Chromium: install it (on Debian `apt install chromium`), or name its program in "
    f"{VARIABLE}"
)


def program() -> str:
    """Chromium's program.

    Raises:
        LookupError: If there is none.
    """
    named = [os.environ[VARIABLE]] if VARIABLE in os.environ else _NAMES
    found = next(filter(None, map(shutil.which, named)), None)
    if found is None:
        raise LookupError(MISSING)
    return found


@contextmanager
def started() -> Iterator[Browser]:
    """Start Chromium."""
    # Its sandbox refuses to work for root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program(), args=arguments)
