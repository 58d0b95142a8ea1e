"""Each page in the browser: light, dark, on a phone and without script, on both stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from browser.shown import GATE, SHOWN
from browser.viewer import MODES, looking

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

    from browser.shop import Shop


def check(name: str, browser: Browser, shop: Shop, pictures: Path) -> None:
    """A page shows its facts in each mode, and nothing is wrong with it."""
    shown = SHOWN[name]
    found: list[str] = []
    for how, mode in MODES.items():
        with looking(browser, shop, mode, signed_in=shown.needs_session) as viewer:
            viewer.open(shown.path_in(shop), shown.status)
            viewer.picture(pictures / f"{name.replace(' ', '-')}-{how.replace(' ', '-')}.png")
            facts = viewer.facts()
            found += [f"{how}: no {fact!r} in {facts}" for fact in shown.facts if fact not in facts]
            found += [f"{how}: {problem}" for problem in viewer.problems]
            if viewer.is_cut_off():
                found.append(f"{how}: wider than its window")
            if mode.has_script:
                found += [f"{how}: {violation}" for violation in viewer.violations()]
    assert not found, "\n".join(found)


@pytest.mark.browser
@pytest.mark.parametrize(
    "name",
    [one if one in GATE else pytest.param(one, marks=pytest.mark.nightly) for one in SHOWN],
)
def test_a_page_is_whole_in_every_mode(
    name: str, browser: Browser, on_sqlite: Shop, pictures: Path
) -> None:
    check(name, browser, on_sqlite, pictures / "sqlite")


@pytest.mark.browser
@pytest.mark.nightly
@pytest.mark.parametrize("name", SHOWN)
def test_each_page_is_whole_on_cassandra(
    name: str, browser: Browser, on_cassandra: Shop, pictures: Path
) -> None:
    check(name, browser, on_cassandra, pictures / "cassandra")
