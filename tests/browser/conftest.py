"""What all tests in the browser share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import own_keyspace

import shardq
from browser import chromium
from browser.shop import Shop, opened
from shardq.model.ids import row_ids

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """One Chromium. It ends with the tests of this folder: its loop would be in others' way.

    Without one these tests are skipped, as it is not installed everywhere; by night they fail.
    """
    try:
        chromium.program()
    except LookupError as missing:
        if request.config.option.nightly:
            raise
        pytest.skip(str(missing))
    with chromium.started() as made:
        yield made


@pytest.fixture(scope="package")
def on_sqlite(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop, which nobody changes."""
    row_ids._last_us = 0
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    with opened(f"sqlite:///{path}?synchronous=normal") as made:
        yield made


@pytest.fixture(scope="package")
def on_cassandra(browser: Browser, cassandra_url: str) -> Iterator[Shop]:
    """The same in a keyspace of its own."""
    row_ids._last_us = 0
    with own_keyspace(cassandra_url) as url:
        shardq.init(url)
        with opened(url) as made:
            yield made


@pytest.fixture
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pictures of pages are kept: `--pictures`, or a temporary directory."""
    given = request.config.getoption("pictures")
    return tmp_path if given is None else request.config.rootpath / given
